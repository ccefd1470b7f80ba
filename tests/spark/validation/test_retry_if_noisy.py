"""Runs while the machine is slow are repeated, but not forever."""

from __future__ import annotations

from itertools import chain, repeat

from tailrace.spark.validation.retry_if_noisy import (
    MOST_REPEATS,
    TRIES,
    Quiet,
    pace_ms,
)


def paces(*values: float) -> Quiet:
    """A machine that is so slow, look after look, and then stays so."""
    series = chain(values, repeat(values[-1]))
    return Quiet(lambda: next(series))


def test_a_quiet_run_is_done_once() -> None:
    runs = iter(range(10))
    quiet = paces(100.0, 110.0, 105.0)
    assert quiet(lambda: next(runs)) == 0
    assert quiet.as_json() == {"runs": 1, "repeated": 0, "disturbed": 0}


def test_a_disturbed_run_is_done_again_until_it_was_quiet() -> None:
    runs = iter(range(10))
    quiet = paces(100.0, 100.0, 200.0, 105.0)
    assert quiet(lambda: next(runs)) == 1
    assert quiet.as_json() == {"runs": 1, "repeated": 1, "disturbed": 0}


def test_a_machine_that_stays_slow_is_reported_and_does_not_hold_up_for_good() -> None:
    done = []
    quiet = paces(100.0, 150.0)
    for _ in range(40):
        quiet(lambda: done.append(1))
    assert quiet.as_json() == {"runs": 40, "repeated": MOST_REPEATS, "disturbed": 40}
    assert len(done) == 40 + MOST_REPEATS
    assert MOST_REPEATS > TRIES


def test_the_pace_is_a_time() -> None:
    assert 1.0 < pace_ms() < 60_000.0
