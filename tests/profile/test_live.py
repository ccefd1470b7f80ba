"""Intervals of real-time mode, made of invented reports of tasks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.constraint import SINK, SOURCE, Constraint
from tailrace.graph import Graph, Step, Stream, graph
from tailrace.profile.batch import StepMeasure
from tailrace.profile.histogram import ACCURACY, LogHistogram
from tailrace.profile.interval import judge
from tailrace.profile.live import (
    SEEN_LATE_US,
    ChainReport,
    HandOverMeasure,
    LiveInterval,
    LiveIntervals,
    SinkReport,
)
from tailrace.profile.moments import Moments

START_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
WHOLE = ("source", "a", "b", "sink")


def line(*names: str) -> Graph:
    steps = tuple(Step(name, "x int") for name in names)
    ends = ("source", *names, "sink")
    return graph(steps, tuple(Stream(a, b) for a, b in pairwise(ends)))


FLOW = line("a", "b")


def sink_report(
    at_s: float, ages_ms: list[float], batch: int = 0, partition: int = 0, span_s: float = 0.0
) -> SinkReport:
    """Records seen from ``at_s`` on."""
    first_us = START_US + round(at_s * SECOND_US)
    last_us = first_us + round(span_s * SECOND_US)
    ages = Moments.of(ages_ms), LogHistogram.of(ages_ms)
    return SinkReport("sink", batch, partition, first_us, last_us, *ages)


def chain_report(
    chain: str,
    at_s: float,
    records: int,
    ages_ms: tuple[float, ...],
    partition: int = 0,
    *,
    handovers: int = 1,
) -> ChainReport:
    """What a chain did; the ages are those when read, in Python, and behind each of its steps."""
    at_us = START_US + round(at_s * SECOND_US)
    read_ms, entered_ms, *left_ms = ages_ms
    names, entered = chain.split("+"), [entered_ms, *left_ms]
    steps = {
        name: StepMeasure(
            records_in=records,
            records_out=records,
            residence_ms=LogHistogram.of([after - before] * records),
            busy_ms={partition: (after - before) / 2},
            entered_ms=before,
            left_ms=after,
        )
        for name, (before, after) in zip(names, pairwise(entered), strict=True)
    }
    return ChainReport(
        chain, 0, partition, at_us, at_us, handovers, records, read_ms, entered_ms, 2.0, steps
    )


def intervals(every_ms: float = 1_000.0) -> LiveIntervals:
    return LiveIntervals(FLOW, every_ms, START_US)


def after(seconds: float) -> int:
    return START_US + round(seconds * SECOND_US)


LATE_S = SEEN_LATE_US / SECOND_US

# --- what counts where -----------------------------------------------------------------------


def test_a_sink_report_counts_where_the_middle_of_its_time_lies() -> None:
    made = intervals()
    made.add(sink_report(0.8, [1.0], span_s=0.3))
    made.add(sink_report(0.9, [1.0, 1.0], span_s=0.3))
    first, second = made.flush()
    assert (first.start_us, first.latency_ms.count) == (START_US, 1)
    assert (second.start_us, second.latency_ms.count) == (after(1), 2)


def test_an_interval_is_complete_when_tasks_have_had_their_say() -> None:
    made = intervals()
    made.add(sink_report(0.5, [1.0]))
    assert made.complete(after(1 + LATE_S) - 1) == ()
    (closed,) = made.complete(after(1 + LATE_S))
    assert closed.start_us == START_US
    assert made.complete(after(9)) == ()
    assert made.flush() == ()


def test_what_is_said_too_late_counts_in_the_oldest_interval_that_is_open() -> None:
    made = intervals()
    made.add(sink_report(0.5, [1.0]))
    made.complete(after(2 + LATE_S))
    made.add(sink_report(0.6, [1.0, 2.0, 3.0]))
    (late,) = made.complete(after(3 + LATE_S))
    assert (late.start_us, late.latency_ms.count) == (after(2), 3)


@settings(max_examples=60, deadline=None)
@given(
    said=st.lists(
        st.tuples(st.floats(0, 8), st.integers(1, 5), st.floats(0, 4)), min_size=1, max_size=25
    ),
    every_ms=st.sampled_from([300.0, 1_000.0, 2_500.0]),
)
def test_whenever_it_is_heard_every_sink_report_counts_once(
    said: list[tuple[float, int, float]], every_ms: float
) -> None:
    made = intervals(every_ms)
    closed: list[LiveInterval] = []
    heard = sorted(said, key=lambda each: each[0] + each[2])
    for at_s, records, late_s in heard:
        closed += made.complete(after(at_s + late_s))
        made.add(sink_report(at_s, [1.0] * records))
    closed += made.flush()
    assert sum(interval.latency_ms.count for interval in closed) == sum(n for _, n, _ in said)
    starts = [interval.start_us for interval in closed]
    assert starts == sorted(set(starts))
    for interval in closed:
        assert (interval.start_us - START_US) % round(every_ms * 1e3) == 0


def test_an_interval_in_which_nothing_was_seen_is_none() -> None:
    made = intervals()
    made.add(sink_report(0.5, [1.0]))
    made.add(chain_report("a+b", 1.5, 4, (0, 1, 2, 3)))
    made.add(sink_report(2.5, [1.0]))
    assert [i.start_us for i in made.complete(after(9))] == [START_US, after(2)]


def test_what_chains_did_before_the_first_was_seen_counts_with_it() -> None:
    for asked in ((), (1,)):
        made = intervals()
        made.add(chain_report("a+b", 0.9, 4, (0, 1, 2, 3)))
        closed: list[LiveInterval] = []
        for seconds in asked:
            closed += made.complete(after(seconds + LATE_S))
        made.add(chain_report("a+b", 1.1, 3, (0, 1, 2, 3)))
        made.add(sink_report(1.2, [1.0] * 7))
        closed += made.flush()
        assert [interval.records for interval in closed] == [7]


def test_what_chains_did_long_before_the_first_was_seen_does_not_pile_up() -> None:
    made = intervals()
    for second in range(6):
        made.add(chain_report("a+b", second + 0.5, 10, (0, 1, 2, 3)))
        assert made.complete(after(second + 1 + LATE_S)) == ()
    made.add(sink_report(6.5, [1.0]))
    (closed,) = made.flush()
    assert closed.records == 10


def test_what_chains_did_after_the_last_was_seen_counts_with_it() -> None:
    made = intervals()
    made.add(chain_report("a+b", 0.4, 4, (0, 1, 2, 3)))
    made.add(sink_report(0.5, [1.0]))
    made.add(chain_report("a+b", 1.1, 3, (0, 1, 2, 3)))
    (closed,) = made.flush()
    assert closed.records == 7


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 9), st.integers(0, 9)), max_size=20),
    st.lists(st.floats(0, 12), max_size=6),
)
def test_every_record_that_entered_counts_once_whether_or_not_it_was_seen(
    said: list[tuple[bool, float, int]], asked: list[float]
) -> None:
    """In an interval, or among those that have none."""
    made = intervals()
    closed: list[LiveInterval] = []
    looks = sorted(asked)
    for is_sink, at_s, records in sorted(said, key=lambda each: each[1]):
        while looks and looks[0] <= at_s:
            closed += made.complete(after(looks.pop(0)))
        if is_sink:
            made.add(sink_report(at_s, [1.0]))
        else:
            made.add(chain_report("a+b", at_s, records, (0, 1, 2, 3)))
    closed += made.flush()
    entered = sum(records for is_sink, _, records in said if not is_sink)
    assert sum(interval.records for interval in closed) + made.unplaced_records == entered


def test_the_last_records_before_an_idle_time_are_reported_when_the_task_ends() -> None:
    made = intervals()
    made.add(chain_report("a+b", 0.4, 4, (0, 1, 2, 3)))
    made.add(sink_report(0.5, [1.0] * 7))
    (closed,) = made.complete(after(5 + LATE_S))
    made.add(chain_report("a+b", 5.5, 3, (0, 1, 2, 3)))
    assert made.flush() == ()
    assert (closed.records, made.unplaced_records) == (4, 3)


def test_the_longest_gap_of_an_interval_is_the_one_that_counts() -> None:
    made = intervals()
    made.add(sink_report(0.5, [1.0]))
    made.add_gap(after(0.1), after(0.15))
    made.add_gap(after(0.1), after(0.2))
    made.add_gap(after(0.1), after(0.12))
    (closed,) = made.flush()
    assert closed.gap_ms == pytest.approx(100)


# --- what an interval says -------------------------------------------------------------------


def interval(*said: SinkReport | ChainReport, gap_ms: float = 0.0) -> LiveInterval:
    seen = tuple(s for s in said if isinstance(s, SinkReport))
    worked = tuple(s for s in said if isinstance(s, ChainReport))
    return LiveInterval(FLOW, START_US, 1_000.0, seen, worked, gap_ms)


def test_records_are_those_that_entered_and_not_what_came_of_them() -> None:
    both = chain_report("a", 0, 10, (0, 1, 2)), chain_report("b", 0, 30, (2, 3, 4))
    assert interval(sink_report(0, [5.0] * 3), *both).records == 10
    assert interval(sink_report(0, [5.0] * 3)).records == 0  # theirs counted where they entered
    native = Graph((), (Stream(SOURCE, SINK),))
    assert replace(interval(sink_report(0, [5.0] * 3)), graph=native).records == 3
    assert interval(sink_report(0, [5.0] * 3), *both).rate_per_s == 10


def test_the_latency_is_that_of_all_records_together() -> None:
    ages = np.random.default_rng(3).gamma(2.0, 4.0, 400)
    made = interval(*(sink_report(0, part.tolist(), i) for i, part in enumerate(np.split(ages, 8))))
    assert made.latency_ms.mean == pytest.approx(ages.mean())
    assert made.latency_ms.deviation == pytest.approx(ages.std())
    exact = np.percentile(ages, 99, method="inverted_cdf")
    assert made.latencies_ms().quantile_ms(0.99) == pytest.approx(exact, rel=2 * ACCURACY)
    assert made.batches == 8


def test_hand_overs_are_weighed_by_their_records() -> None:
    parts = (
        chain_report("a", 0, 1, (2, 4, 5)),
        chain_report("a", 0, 3, (6, 8, 9), partition=1, handovers=2),
    )
    assert HandOverMeasure.merged(parts) == HandOverMeasure(3, 4, 5.0, 7.0, 4.0, 2, 3)
    assert HandOverMeasure.merged([]) == HandOverMeasure(0, 0, 0.0, 0.0, 0.0, 0, 0)


def test_the_elements_of_the_way_are_the_differences_of_the_ages() -> None:
    worked = chain_report("a", 0, 10, (3, 5, 9)), chain_report("b", 0, 10, (10, 12, 20))
    parts = interval(sink_report(0, [25.0] * 10), *worked).breakdown_ms()
    assert parts == {
        "gap": 0.0,
        "source_wait": 3.0,
        "hand-over": 4.0,
        "step:a": 4.0,
        "shuffle": 1.0,
        "step:b": 8.0,
        "sink": 5.0,
    }


def test_the_gap_takes_its_part_of_the_wait_for_the_source() -> None:
    """A gap of 200 ms holds up a fifth of the records of a second, by 100 ms on average."""
    worked = chain_report("a+b", 0, 10, (30, 31, 32, 33))
    parts = interval(sink_report(0, [40.0]), worked, gap_ms=200).breakdown_ms()
    assert (parts["gap"], parts["source_wait"]) == (20.0, 10.0)
    parts = interval(sink_report(0, [40.0]), worked, gap_ms=900).breakdown_ms()
    assert (parts["gap"], parts["source_wait"]) == (30.0, 0.0)


AGES = st.lists(st.floats(0, 50), min_size=7, max_size=7).map(sorted)


@settings(max_examples=60, deadline=None)
@given(
    tasks=st.lists(st.tuples(AGES, st.integers(1, 9)), min_size=1, max_size=5),
    gap_ms=st.floats(0, 900),
    chained=st.booleans(),
)
def test_the_elements_add_up_to_the_mean_latency(
    tasks: list[tuple[list[float], int]], gap_ms: float, chained: bool
) -> None:
    said: list[SinkReport | ChainReport] = []
    for place, (ages, records) in enumerate(tasks):
        said.append(sink_report(0, [ages[6]] * records, partition=place))
        if chained:
            said.append(chain_report("a+b", 0, records, tuple(ages[:4]), place))
        else:
            said.append(chain_report("a", 0, records, tuple(ages[:3]), place))
            said.append(chain_report("b", 0, records, tuple(ages[3:6]), place))
    made = interval(*said, gap_ms=gap_ms)
    parts = made.breakdown_ms()
    assert sum(parts.values()) == pytest.approx(made.latency_ms.mean)
    assert min(parts.values()) >= -1e-9


def test_the_age_behind_a_step_is_that_of_the_records_that_left_it() -> None:
    """A report in which a step let nothing through must not make the others younger."""
    kept = chain_report("a", 0, 1, (1, 2, 10))
    dropped = chain_report("a", 0, 9, (1, 2, 2))
    nothing = {"a": replace(dropped.steps["a"], records_out=0, left_ms=0.0)}
    made = interval(sink_report(0, [12.0]), kept, replace(dropped, steps=nothing))
    assert made.steps()["a"].left_ms == 10.0
    assert made.breakdown_ms()["step:a"] == 8.0
    assert made.value_ms(Constraint(1.0), ("source", "a")) == 10.0


def test_utilisation_is_the_busy_share_of_each_partition() -> None:
    first, other = (
        chain_report("a+b", 0, 4, (0, 0, 40, 50)),
        chain_report("a+b", 0, 4, (0, 0, 80, 90), 1),
    )
    made = interval(sink_report(0, [90.0]), first, first, other)
    assert made.utilisation("a") == {0: 0.04, 1: 0.04}
    assert made.utilisation("c") == {}


# --- constraints -----------------------------------------------------------------------------

WORKED = chain_report("a", 0, 10, (3, 5, 9)), chain_report("b", 0, 10, (10, 12, 20))
SEEN = interval(sink_report(0, [25.0] * 10), *WORKED)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("source", "a", "b", "sink"), 25.0),
        (("source", "a"), 9.0),
        (("source", "a", "b"), 20.0),
        (("a",), 4.0),
        (("a", "b"), 15.0),
        (("b",), 8.0),
        (("b", "sink"), 13.0),
    ],
    ids=str,
)
def test_the_mean_along_a_path_is_the_difference_of_the_ages_at_its_ends(
    path: tuple[str, ...], expected: float
) -> None:
    assert SEEN.value_ms(Constraint(1.0, path=path), path) == pytest.approx(expected)


def test_a_quantile_of_the_whole_is_measured_record_by_record() -> None:
    ages = np.random.default_rng(5).gamma(2.0, 4.0, 500)
    made = interval(sink_report(0, ages.tolist()), *WORKED)
    for quantile in (0.5, 0.95, 0.99):
        exact = np.percentile(ages, quantile * 100, method="inverted_cdf")
        value_ms = made.value_ms(Constraint(1.0, quantile=quantile), WHOLE)
        assert value_ms == pytest.approx(exact, rel=2 * ACCURACY)


def test_a_quantile_within_is_the_mean_and_what_each_step_has_above_its_own() -> None:
    steps = dict(WORKED[1].steps)
    residence = LogHistogram.of([4.0] * 9 + [44.0])  # mean 8
    steps["b"] = replace(steps["b"], residence_ms=residence)
    made = interval(sink_report(0, [25.0] * 10), WORKED[0], replace(WORKED[1], steps=steps))
    value_ms = made.value_ms(Constraint(1.0, quantile=0.95, path=("a", "b")), ("a", "b"))
    assert value_ms == pytest.approx(15 + 44 - 8, rel=0.05)


def test_a_step_that_said_nothing_is_taken_to_lie_at_the_end() -> None:
    made = interval(sink_report(0, [25.0] * 10), WORKED[0])
    assert made.value_ms(Constraint(1.0, path=("source", "b")), ("source", "a", "b")) == 25.0
    assert made.value_ms(Constraint(1.0, path=("b",)), ("b",)) == 0.0


def test_a_bound_that_is_missed_blames_the_largest_element_on_its_path() -> None:
    kept = judge(SEEN, Constraint(25.0), WHOLE)
    assert (kept.value_ms, kept.blame) == (25.0, None)
    assert judge(SEEN, Constraint(24.9), WHOLE).blame == "step:b"
    assert judge(SEEN, Constraint(1.0, path=("a",)), ("a",)).blame == "step:a"
