"""Intervals and verdicts, against the truth record by record."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.constraint import Constraint
from tailrace.plan import Plan
from tailrace.profile.batch import BatchMeasure, StepMeasure
from tailrace.profile.histogram import ACCURACY, LogHistogram
from tailrace.profile.interval import Interval, Intervals, Verdict, judge
from tailrace.profile.moments import Moments

if TYPE_CHECKING:
    from numpy.typing import NDArray

START_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
WHOLE = ("source", "a", "b", "sink")


def batch_of(
    arrived_us: NDArray[np.float64], planned_us: int, rest_us: int = 100_000, batch_id: int = 0
) -> BatchMeasure:
    """A batch of records that came at those times: 10 ms to the flow, then ``rest_us``."""
    handed_us = planned_us + 10_000
    ages = (handed_us - arrived_us) / 1e3
    return BatchMeasure(
        batch_id=batch_id,
        records=ages.size,
        planned_us=planned_us,
        handed_us=handed_us,
        submitted_us=handed_us + rest_us // 10,
        started_us=handed_us + rest_us // 5,
        computed_us=handed_us + rest_us * 9 // 10,
        ended_us=handed_us + rest_us,
        ages_ms=LogHistogram.of(ages),
        age_ms=Moments.of(ages),
        steps={},
        plan=Plan(interval_ms=250.0),
        slots=2,
    )


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Batches in the order of their cuts, and each record's arrival, age and latency."""

    batches: tuple[BatchMeasure, ...]
    arrived_us: NDArray[np.float64]
    age_ms: NDArray[np.float64]
    latency_ms: NDArray[np.float64]

    def close_to(self, moment_us: int) -> int:
        """How many records came so close to a moment that their bin may lie on its far side."""
        apart_ms = np.abs(self.arrived_us - moment_us) / 1e3
        return int(np.count_nonzero(apart_ms <= (ACCURACY + 1e-8) * self.age_ms))


def dense_run(seed: int, cycle_ms: int, jitter_ms: int) -> Arrivals:
    """Nine seconds at 1000 /s, cut about every ``cycle_ms``, taking longer and longer."""
    rng = np.random.default_rng(seed)
    arrived = np.sort(START_US + rng.uniform(0, 9 * SECOND_US, 9_000))
    batches: list[BatchMeasure] = []
    ages: list[NDArray[np.float64]] = []
    latencies: list[NDArray[np.float64]] = []
    seen, cut = 0, START_US
    while seen < arrived.size:
        cut += (cycle_ms + int(rng.integers(0, jitter_ms + 1))) * 1_000
        until = int(np.searchsorted(arrived, cut))
        rest_us = int(rng.integers(50_000, 200_000)) + 20_000 * len(batches)
        batch = batch_of(arrived[seen:until], cut, rest_us, len(batches))
        ages.append((batch.handed_us - arrived[seen:until]) / 1e3)
        latencies.append((batch.ended_us - arrived[seen:until]) / 1e3)
        batches.append(batch)
        seen = until
    return Arrivals(tuple(batches), arrived, np.concatenate(ages), np.concatenate(latencies))


@st.composite
def histories(draw: st.DrawFn) -> list[BatchMeasure]:
    """Any batches in the order of their cuts: empty ones, and records as late as can be."""
    gaps = draw(st.lists(st.integers(0, 4_000_000), min_size=1, max_size=8))
    waits = st.lists(st.floats(0.0, 20_000.0), max_size=8)
    return [
        batch_of(planned_us - np.asarray(draw(waits)) * 1e3, planned_us, batch_id=index)
        for index, planned_us in enumerate((START_US + np.cumsum(gaps)).tolist())
    ]


def collect(batches: list[BatchMeasure], every_ms: float) -> list[Interval]:
    intervals = Intervals(every_ms, START_US)
    found = [interval for batch in batches for interval in intervals.add(batch)]
    return [*found, *intervals.flush()]


@settings(max_examples=80)
@given(histories(), st.sampled_from([100.0, 333.3, 1_000.0, 5_000.0]))
def test_every_record_lands_in_exactly_one_interval(
    batches: list[BatchMeasure], every_ms: float
) -> None:
    found = collect(batches, every_ms)
    starts = [interval.start_us for interval in found]
    assert starts == sorted(set(starts))
    assert min(starts, default=START_US) >= START_US
    assert all(interval.records for interval in found)
    shared: dict[int, list[LogHistogram]] = defaultdict(list)
    for share in (share for interval in found for share in interval.shares):
        shared[share.batch.batch_id].append(share.ages_ms)
        assert share.age_ms.count == share.records == share.fraction * share.batch.records
    for batch in batches:
        together = LogHistogram.merged(shared[batch.batch_id])
        assert together.bins.tolist() == batch.ages_ms.bins.tolist()
        assert together.counts.tolist() == batch.ages_ms.counts.tolist()


@settings(max_examples=80)
@given(histories(), st.sampled_from([100.0, 1_000.0, 5_000.0]))
def test_the_mean_over_intervals_is_the_mean_over_batches(
    batches: list[BatchMeasure], every_ms: float
) -> None:
    over_intervals = Moments.merged(found.latency_ms for found in collect(batches, every_ms))
    over_batches = Moments.merged(
        batch.age_ms.shifted((batch.ended_us - batch.handed_us) / 1e3) for batch in batches
    )
    assert over_intervals.count == over_batches.count
    assert over_intervals.mean == pytest.approx(over_batches.mean, rel=ACCURACY)


@settings(max_examples=80)
@given(histories(), st.sampled_from([100.0, 1_000.0, 5_000.0]))
def test_the_elements_of_an_interval_add_up_to_its_mean(
    batches: list[BatchMeasure], every_ms: float
) -> None:
    for interval in collect(batches, every_ms):
        parts = interval.breakdown_ms()
        assert sum(parts.values()) == pytest.approx(interval.latency_ms.mean, rel=ACCURACY)
        assert min(parts.values()) > -1e-6
        assert parts["batching"] <= 250.0 + 1e-6


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(60, 1_500), st.integers(0, 500))
def test_intervals_tell_what_the_records_that_entered_in_them_saw(
    seed: int, cycle_ms: int, jitter_ms: int
) -> None:
    run = dense_run(seed, cycle_ms, jitter_ms)
    found = collect(list(run.batches), 2_000.0)
    assert [(interval.start_us - START_US) // SECOND_US for interval in found] == [0, 2, 4, 6, 8]
    for interval in found[:-1]:
        ends = (interval.start_us, interval.start_us + 2 * SECOND_US)
        truth = run.latency_ms[(run.arrived_us >= ends[0]) & (run.arrived_us < ends[1])]
        strays = sum(run.close_to(end) for end in ends)
        assert abs(interval.records - truth.size) <= strays
        assert interval.rate_per_s == pytest.approx(interval.records / 2)
        mean_ms = interval.value_ms(Constraint(1.0), WHOLE)
        assert mean_ms == pytest.approx(interval.latency_ms.mean)
        assert mean_ms == pytest.approx(truth.mean(), rel=0.01)
        assert interval.latency_ms.deviation == pytest.approx(truth.std(), rel=0.03)
        for quantile in (0.5, 0.99):
            value_ms = interval.value_ms(Constraint(1.0, quantile=quantile), WHOLE)
            ranks = np.clip(quantile + np.array([-2, 2]) * strays / truth.size, 0.0, 1.0)
            low_ms, high_ms = np.quantile(truth, ranks, method="inverted_cdf")
            assert 0.99 * low_ms <= value_ms <= 1.01 * high_ms


def test_a_batch_within_one_interval_keeps_its_exact_moments() -> None:
    batch = batch_of(START_US + np.array([1_234.0, 500_001.0]), START_US + SECOND_US)
    (interval,) = Intervals(1_000.0, START_US).add(batch)
    assert interval.shares[0].age_ms is batch.age_ms


@settings(max_examples=80)
@given(histories(), st.sampled_from([100, 1_000, 5_000]))
def test_an_interval_closes_with_the_first_batch_cut_at_or_after_its_end(
    batches: list[BatchMeasure], every_ms: int
) -> None:
    intervals = Intervals(float(every_ms), START_US)
    last_cut_us = START_US
    for batch in batches:
        for interval in intervals.add(batch):
            assert last_cut_us < interval.start_us + every_ms * 1_000 <= batch.planned_us
        last_cut_us = batch.planned_us
    for interval in intervals.flush():
        assert last_cut_us < interval.start_us + every_ms * 1_000


@pytest.mark.parametrize(("planned_us", "closed"), [(999_999, 0), (1_000_000, 1), (1_000_001, 1)])
def test_the_end_of_an_interval_is_met_to_the_microsecond(planned_us: int, closed: int) -> None:
    intervals = Intervals(1_000.0, START_US)
    assert len(intervals.add(batch_of(START_US + np.array([1e5]), START_US + planned_us))) == closed


def test_a_batch_without_records_closes_what_is_over() -> None:
    intervals = Intervals(1_000.0, START_US)
    assert intervals.add(batch_of(START_US + np.array([1e5]), START_US + 200_000)) == ()
    (interval,) = intervals.add(batch_of(np.zeros(0), START_US + SECOND_US))
    assert (interval.start_us, interval.records) == (START_US, 1)


def test_intervals_that_nothing_entered_are_left_out() -> None:
    arrived = START_US + np.array([0.5, 4.5]) * SECOND_US
    found = collect([batch_of(arrived, START_US + 5 * SECOND_US)], 1_000.0)
    assert [interval.start_us for interval in found] == [START_US, START_US + 4 * SECOND_US]


def test_a_late_record_counts_in_the_oldest_interval_still_open() -> None:
    intervals = Intervals(1_000.0, START_US)
    intervals.add(batch_of(START_US + np.array([1e5]), START_US + 3 * SECOND_US))
    assert intervals.add(batch_of(START_US + np.array([2e5]), START_US + 3 * SECOND_US + 1)) == ()
    (interval,) = intervals.add(batch_of(np.zeros(0), START_US + 4 * SECOND_US))
    assert (interval.start_us, interval.records) == (START_US + 3 * SECOND_US, 1)


def test_a_record_older_than_the_run_counts_in_the_first_interval() -> None:
    early = batch_of(START_US - np.array([7e6]), START_US + 1_000)
    (interval,) = collect([early], 1_000.0)
    assert interval.start_us == START_US


def test_a_flush_gives_what_is_open_once() -> None:
    intervals = Intervals(1_000.0, START_US)
    assert intervals.flush() == ()
    intervals.add(batch_of(START_US + np.array([1e5]), START_US + 200_000))
    assert [interval.records for interval in intervals.flush()] == [1]
    assert intervals.flush() == ()


def with_steps(batch: BatchMeasure) -> BatchMeasure:
    """The batch with a step that enters 30 ms and leaves 70 ms after the hand-over."""
    residence = LogHistogram.of(np.linspace(20.0, 60.0, 101))
    step = StepMeasure(
        batch.records,
        residence_ms=residence,
        busy_ms={0: 60.0, 1: 20.0},
        entered_ms=30.0,
        left_ms=70.0,
    )
    return replace(batch, steps={"a": step})


def test_the_busy_time_of_a_batch_is_shared_out_with_its_records() -> None:
    arrived = START_US + np.array([0.2, 0.8, 0.9, 1.5]) * SECOND_US
    first, second = collect([with_steps(batch_of(arrived, START_US + 2 * SECOND_US))], 1_000.0)
    assert first.utilisation("a") == pytest.approx({0: 0.045, 1: 0.015})
    assert second.utilisation("a") == pytest.approx({0: 0.015, 1: 0.005})
    assert first.utilisation("b") == {}


def test_the_steps_of_an_interval_are_those_of_its_batches_whole() -> None:
    one = with_steps(batch_of(START_US + np.array([1e5, 2e5]), START_US + 300_000))
    two = with_steps(batch_of(START_US + np.array([4e5]), START_US + SECOND_US))
    (interval,) = collect([one, two], 1_000.0)
    steps = interval.steps()
    assert steps.keys() == {"a"}
    assert steps["a"].records_in == 3
    assert steps["a"].busy_ms == {0: 120.0, 1: 40.0}


def test_a_path_from_the_source_into_the_flow_has_the_quantile_of_the_ages() -> None:
    arrived = START_US + np.random.default_rng(5).uniform(0, SECOND_US, 3_000)
    batch = with_steps(batch_of(arrived, START_US + SECOND_US))
    (interval,) = collect([batch], 1_000.0)
    truth = (batch.handed_us - arrived) / 1e3 + 70.0
    path = ("source", "a")
    assert interval.value_ms(Constraint(1.0), path) == pytest.approx(truth.mean())
    exact = np.quantile(truth, 0.99, method="inverted_cdf")
    assert interval.value_ms(Constraint(1.0, quantile=0.99), path) == pytest.approx(exact, rel=0.01)


def test_a_path_of_steps_adds_what_the_quantile_of_each_lies_above_its_mean() -> None:
    batch = with_steps(batch_of(START_US + np.array([1e5]), START_US + SECOND_US))
    (interval,) = collect([batch], 1_000.0)
    assert interval.value_ms(Constraint(1.0), ("a",)) == pytest.approx(40.0)
    p90 = interval.value_ms(Constraint(1.0, quantile=0.9), ("a",))
    assert p90 == pytest.approx(40.0 + (56.0 - 40.0), rel=0.015)
    p10 = interval.value_ms(Constraint(1.0, quantile=0.1), ("a",))
    assert p10 == pytest.approx(40.0)


def one_interval(wait_ms: float = 0.0, rest_us: int = 100_000, **steps: StepMeasure) -> Interval:
    """One record that waited ``wait_ms`` at the source."""
    arrived = np.array([START_US + 100_000.0])
    batch = batch_of(arrived, START_US + 100_000 + int(wait_ms * 1e3), rest_us)
    (interval,) = collect([replace(batch, steps=steps)], 60_000.0)
    return interval


def test_a_bound_that_is_just_met_is_fulfilled() -> None:
    interval = one_interval(wait_ms=90.0)
    verdict = judge(interval, Constraint(200.0), WHOLE)
    assert verdict == Verdict(Constraint(200.0), START_US, 1, 200.0, None)
    assert verdict.fulfilled
    assert verdict.excess_ms == 0.0


def test_a_broken_bound_is_told_with_its_excess_and_its_cause() -> None:
    verdict = judge(one_interval(wait_ms=5_090.0), Constraint(200.0), WHOLE)
    assert not verdict.fulfilled
    assert verdict.excess_ms == pytest.approx(5_000.0)
    assert verdict.blame == "source_wait"


@pytest.mark.parametrize(
    ("wait_ms", "rest_us", "busy_ms", "blame"),
    [
        (200.0, 100_000, 5.0, "batching"),  # within the 250 ms that the plan waits for
        (700.0, 100_000, 5.0, "source_wait"),
        (0.0, 1_000_000, 600.0, "step:b"),
        (0.0, 1_000_000, 50.0, "engine"),
    ],
)
def test_the_largest_element_is_to_blame(
    wait_ms: float, rest_us: int, busy_ms: float, blame: str
) -> None:
    steps = {"a": StepMeasure(1, busy_ms={0: 1.0}), "b": StepMeasure(1, busy_ms={0: busy_ms})}
    interval = one_interval(wait_ms, rest_us, **steps)
    assert judge(interval, Constraint(1.0), WHOLE).blame == blame


@pytest.mark.parametrize("wait_ms", range(1, 250, 17))
def test_what_the_plan_waits_for_is_never_more_than_the_wait(wait_ms: int) -> None:
    parts = one_interval(float(wait_ms)).breakdown_ms()
    assert parts["source_wait"] >= 0.0
    assert parts["batching"] == pytest.approx(wait_ms, abs=ACCURACY * (wait_ms + 10.0))


def test_planning_queueing_and_the_sink_can_be_to_blame() -> None:
    share = one_interval().shares[0]
    handed_us, ended_us = share.batch.handed_us, share.batch.ended_us
    for blame, submitted_us, started_us, computed_us in (
        ("planning", ended_us, ended_us, ended_us),
        ("queueing", handed_us, ended_us, ended_us),
        ("sink", handed_us, handed_us, handed_us),
    ):
        batch = replace(
            share.batch, submitted_us=submitted_us, started_us=started_us, computed_us=computed_us
        )
        interval = Interval(START_US, 1_000.0, (replace(share, batch=batch),))
        assert judge(interval, Constraint(1.0), WHOLE).blame == blame


def test_a_path_of_steps_blames_nothing_outside_it() -> None:
    a = StepMeasure(1, busy_ms={0: 200.0}, entered_ms=210.0, left_ms=420.0)
    b = StepMeasure(1, busy_ms={0: 300.0}, entered_ms=430.0, left_ms=800.0)
    interval = one_interval(wait_ms=9_000.0, rest_us=1_000_000, a=a, b=b)
    verdict = judge(interval, Constraint(100.0), ("a", "b"))
    assert verdict.value_ms == pytest.approx(590.0)
    assert verdict.blame == "step:b"
    assert judge(interval, Constraint(100.0), ("a",)).blame == "step:a"
    assert judge(interval, Constraint(100.0), WHOLE).blame == "source_wait"


def test_what_spark_does_between_steps_is_no_part_of_a_single_step() -> None:
    a = StepMeasure(1, busy_ms={0: 50.0}, entered_ms=210.0, left_ms=420.0)
    b = StepMeasure(1, busy_ms={0: 50.0}, entered_ms=800.0, left_ms=890.0)
    interval = one_interval(rest_us=1_000_000, a=a, b=b)
    assert judge(interval, Constraint(100.0), ("a", "b")).blame == "engine"
    assert judge(interval, Constraint(100.0), ("a",)).blame == "step:a"
