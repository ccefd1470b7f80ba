"""The parts of the benchmark that need no engine: what is counted, and how a rate is searched."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from bench import realtime
from bench.max_rate import Climber, climb, search
from bench.peers import Result, highest_rate, peers
from bench.realtime_run import GENTLE_PER_S, GENTLE_S, Setup, Turn, counted, summed_up, trace
from tailrace.control import IntervalRecord
from tailrace.errors import EnvironmentUnfit, FlowFailed
from tailrace.plan import Plan
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.moments import Moments

ORIGIN_US = 1_000_000_000
SETUP = Setup(rate_per_s=100, seconds=5.0, settle_s=6.0)


def interval(second: float, latencies_ms: list[float]) -> IntervalRecord:
    return IntervalRecord(
        round(ORIGIN_US + second * 1e6),
        1_000.0,
        len(latencies_ms),
        1,
        Moments.of(latencies_ms),
        LogHistogram.of(latencies_ms),
        LogHistogram.of(latencies_ms).quantiles(),
        {},
        {},
        Plan(),
        (),
    )


def turn(p50_ms: float = 1.0, **changes: Any) -> Turn:
    plain = Turn(2_000, 1_000, 1_000.0, p50_ms, p50_ms, p50_ms, 4 * p50_ms, 9.0, 0.0, 1, 0.5)
    return replace(plain, **changes)


def result(p50_ms: float, p99_ms: float) -> Result:
    return Result(100, p50_ms, p99_ms, p99_ms, 0.0, 100, 100)


@dataclass(frozen=True)
class Engine:
    """Holds every rate up to its capacity, and says so plainly."""

    capacity_per_s: float
    rate_per_s: float

    @property
    def p50_ms(self) -> float:
        return 1.0 if self.held() else 1_000.0

    def held(self) -> bool:
        return self.rate_per_s <= self.capacity_per_s


def test_only_intervals_wholly_inside_the_counted_part_count():
    history = [interval(second, [1.0]) for second in (0, 5, 6, 7, 10, 10.5, 11)]
    kept = counted(history, ORIGIN_US, SETUP)
    assert [(i.start_us - ORIGIN_US) / 1e6 for i in kept] == [6, 7, 10]


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(0.02, 500), min_size=1, max_size=40), min_size=1, max_size=8))
def test_a_turn_has_the_statistics_of_all_its_records(latencies):
    found = summed_up(
        SETUP, tuple(interval(6 + i, part) for i, part in enumerate(latencies)), batches=1, cpu_s=2
    )
    every = np.concatenate(latencies)
    assert found.records == len(every)
    assert found.mean_ms == pytest.approx(every.mean())
    for q, value in ((0.5, found.p50_ms), (0.95, found.p95_ms), (0.99, found.p99_ms)):
        lower = np.quantile(every, q, method="lower")
        higher = np.quantile(every, q, method="higher")
        assert 0.99 * lower <= value <= 1.01 * higher
    assert found.cpu_s_per_million == pytest.approx(2e6 / len(every))


def test_a_backlog_that_grows_is_not_held_though_its_tail_is_within_the_bound():
    def run(latencies_ms: list[float]) -> Turn:
        parts = tuple(interval(6 + i, [ms] * 100) for i, ms in enumerate(latencies_ms))
        return summed_up(SETUP, parts, batches=1, cpu_s=1)

    assert run([80, 80, 80, 80, 80]).held()
    assert not run([5, 25, 45, 65, 85]).held()
    assert not run([5, 5, 5, 5, 120]).held()


def test_records_that_are_missing_are_not_held():
    parts = tuple(interval(6 + i, [1.0] * 90) for i in range(5))
    assert not summed_up(SETUP, parts, batches=1, cpu_s=1).held()


def test_the_share_kept_counts_intervals_by_their_mean():
    parts = (interval(6, [4.0, 5.0]), interval(7, [1.0, 30.0]))
    assert summed_up(replace(SETUP, bound_ms=5.0), parts, batches=1, cpu_s=1).share_kept == 0.5
    assert summed_up(SETUP, parts, batches=1, cpu_s=1).share_kept is None


def test_a_flow_that_passes_nothing_is_said_to_have_failed():
    with pytest.raises(FlowFailed, match="passed none in 5 s"):
        summed_up(SETUP, (), batches=0, cpu_s=0)


@pytest.mark.parametrize("rate_per_s", [200.0, 2_000.0, 30_000.0])
@pytest.mark.parametrize("seconds", [1.0, 2.5])
def test_a_load_begins_gently_and_is_even_at_its_rate_until_after_the_end(rate_per_s, seconds):
    due_s = trace(Setup(rate_per_s, seconds)).due_us / 1e6
    gentle = due_s[due_s < GENTLE_S]
    assert len(gentle) == pytest.approx(min(rate_per_s, GENTLE_PER_S) * GENTLE_S, abs=1)
    gaps = np.diff(due_s[due_s > GENTLE_S])
    assert np.abs(gaps - 1 / rate_per_s).max() < 2e-6
    assert due_s[-1] > Setup(rate_per_s, seconds).settle_s + seconds


@settings(deadline=None)
@given(st.floats(1.0, 1e7), st.floats(200, 1e6), st.sampled_from([0.1, 0.5, 1.0]))
def test_searching_step_by_step_finds_what_the_search_of_the_peers_finds(capacity, start, near):
    steps = search(start, near)
    rate, found = next(steps), None
    while found is None:
        try:
            rate = steps.send(rate <= capacity)
        except StopIteration as end:
            found = end.value
    assert found == highest_rate(lambda tried: tried <= capacity, start, near)
    assert found <= capacity
    if found:
        assert found * (1 + near) * 1.001 >= capacity


def test_sides_search_in_turns_and_one_that_gives_up_is_left_out():
    tried: list[str] = []

    def side(name: str, capacity: float, most: int = 99) -> Climber:
        def take(rate_per_s: float) -> Engine | None:
            tried.append(name)
            return Engine(capacity, rate_per_s) if tried.count(name) <= most else None

        return Climber(1_000.0, take)

    sides = {"fast": side("fast", 9_000), "slow": side("slow", 700), "gone": side("gone", 9_000, 2)}
    found = climb(sides, 1.0)
    assert tried[:6] == ["fast", "slow", "gone"] * 2
    assert tried.count("gone") == 3
    assert found == {"fast": 8_000.0, "slow": 500.0}


def test_a_rate_is_tried_again_only_if_just_its_tail_was_late():
    outcomes = [result(1, 150), result(1, 20)]
    assert Climber(1.0, lambda _: outcomes.pop(0)).holds(1.0)
    assert not outcomes
    outcomes = [result(500, 900), result(1, 20)]
    assert Climber(1.0, lambda _: outcomes.pop(0)).holds(1.0) is False
    assert len(outcomes) == 1


def test_a_rate_is_told_by_the_median_of_its_turns_and_the_busiest_machine():
    turns = [
        turn(1.0, records_per_hand_over=2.0),
        turn(9.0, others_cores=1.5, batches=2),
        turn(2.0, records_per_hand_over=4.0),
    ]
    shown = realtime.at_rate(turns)
    assert shown["p50_ms"] == 2.0
    assert shown["records_per_hand_over"] == shown["k"] == 3.0
    assert shown["others_cores"] == 1.5
    assert not shown["within_batch"]


def test_chaining_is_compared_within_each_round():
    found = realtime.chaining([turn(1), turn(10), turn(2)], [turn(3), turn(30), turn(8)])
    assert found == {"chained_p50_ms": 2, "unchained_p50_ms": 8, "ratio_p50": 3.0}


def rival_of(place: int, *results: Result, missing: str | None = None) -> realtime.Rival:
    rival = realtime.Rival(peers()[place])
    rival.results.extend(results)
    rival.missing = missing
    return rival


def test_ratios_above_one_are_in_our_favour():
    rates = {"arrow": 800.0, "row": 50.0, "pyflink process": 100.0}
    found = realtime.against(rival_of(0, result(8, 20)), [turn(2)], [turn(4)], rates)
    assert found["ratios"] == {
        "arrow": {"p50": 4.0, "p99": 2.5, "rate": 8.0},
        "row": {"p50": 2.0, "p99": 1.25, "rate": 0.5},
    }


def test_a_peer_that_fails_is_missing_and_takes_no_more_turns(monkeypatch):
    calls: list[float] = []

    def fail(_peer: object, rate_per_s: float, _seconds: float) -> Result:
        calls.append(rate_per_s)
        raise EnvironmentUnfit("The peer is left out, as it does not install.")

    monkeypatch.setattr("bench.peers.Peer.measure", fail)
    rival = rival_of(0)
    assert rival.turn(2_000, 1.0) is None
    assert rival.turn(4_000, 1.0) is None
    assert calls == [2_000]
    found = realtime.against(rival, [turn()], [turn()], {"arrow": 1.0, "row": 1.0})
    assert found["missing"] == "The peer is left out, as it does not install."


def test_the_table_shows_every_side_and_who_is_missing():
    rates = {"arrow": 800_000.0, "row": 50_000.0, "pyflink process": 16_000.0}
    rivals = [rival_of(0, result(8, 20)), rival_of(2, missing="It does not install.")]
    found = {
        "rates": [realtime.at_rate([turn()])],
        "max_rate_per_s": 800_000,
        "row_steps": realtime.at_rate([turn(1.5)]),
        "max_rate_row_steps_per_s": 50_000,
        "chaining": realtime.chaining([turn(1)], [turn(3)]),
        "bounds": [{"bound_ms": 5.0, "cpu_s_per_million": 150.0}],
        "peers": [realtime.against(rival, [turn()], [turn()], rates) for rival in rivals],
        "compared_at_per_s": 2_000,
    }
    written = io.StringIO()
    console = Console(width=120, file=written)
    console.print(realtime.table(found))
    text = written.getvalue()
    assert "800,000" in text
    assert "50,000" in text
    assert "16,000" in text
    assert "missing" in text
    assert "150 at 5 ms" in text
