"""Runs while the machine is slow are repeated, but not forever."""

from __future__ import annotations

import threading
import time
from itertools import chain, repeat

import pytest

from tailrace.spark.validation import retry_if_noisy as module
from tailrace.spark.validation.retry_if_noisy import (
    MOST_REPEATS,
    TRIES,
    Quiet,
    Standstill,
    moving,
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


class Stopping:
    """A clock that now and then jumps, as that of a machine that was stopped."""

    def __init__(self, *jumps_s: float) -> None:
        self._jumps_s = list(jumps_s)
        self._lost_s = 0.0
        self.asked = threading.Event()

    def __call__(self) -> float:
        self._lost_s += self._jumps_s.pop(0) if self._jumps_s else 0.0
        if not self._jumps_s:
            self.asked.set()
        return time.time() + self._lost_s


def test_a_machine_that_stands_still_is_noticed() -> None:
    clock = Stopping(0.0, 0.0, 18.0, 0.0)
    with Standstill(clock) as watched:
        assert clock.asked.wait(10)
    assert watched.longest_s == pytest.approx(18.0, abs=2.0)


def test_a_run_in_which_the_machine_stood_still_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = iter((5.0, 0.1, 5.0))

    class Told(Standstill):
        def __exit__(self, *_: object) -> None:
            super().__exit__()
            self.longest_s = next(found)

    monkeypatch.setattr(module, "Standstill", Told)
    runs = iter(range(3))
    assert moving(lambda: next(runs)) == 1
