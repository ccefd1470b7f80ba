"""Measures of a batch: parts that add up to the whole, whatever the batch was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.plan import Plan
from tailrace.profile.batch import MOST_KEYS, BatchMeasure, StepMeasure, came
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.moments import Moments

NAMES = ("a", "b", "c")
SPAN_US = st.integers(0, 5_000_000)


@st.composite
def batches(draw: st.DrawFn) -> BatchMeasure:
    """Batches whose times are in order, whose records came before the cut, with steps in line."""
    planned_us = draw(st.integers(0, 2 * 10**15))
    spans = draw(st.tuples(SPAN_US, SPAN_US, SPAN_US, SPAN_US, SPAN_US))
    handed, submitted, started, computed, ended = (planned_us + np.cumsum(spans)).tolist()
    waits = draw(st.lists(st.floats(0.0, 60_000.0), min_size=1, max_size=20))
    ages = np.asarray(waits) + (handed - planned_us) / 1e3
    moments = sorted(draw(st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6)))
    busy = st.dictionaries(st.integers(0, 7), st.floats(0.0, 20_000.0), max_size=8)
    steps = {
        name: StepMeasure(
            records_in=len(waits),
            busy_ms=draw(busy),
            entered_ms=(started - handed + moments[2 * i] * (computed - started)) / 1e3,
            left_ms=(started - handed + moments[2 * i + 1] * (computed - started)) / 1e3,
        )
        for i, name in enumerate(NAMES)
    }
    return BatchMeasure(
        batch_id=0,
        records=len(waits),
        planned_us=planned_us,
        handed_us=handed,
        submitted_us=submitted,
        started_us=started,
        computed_us=computed,
        ended_us=ended,
        ages_ms=LogHistogram.of(ages),
        age_ms=Moments.of(ages),
        steps=steps,
        plan=Plan(),
        slots=draw(st.integers(1, 4)),
    )


def mean_latency_ms(batch: BatchMeasure) -> float:
    return batch.age_ms.mean + (batch.ended_us - batch.handed_us) / 1e3


QUIET = BatchMeasure(
    batch_id=0,
    records=4,
    planned_us=0,
    handed_us=10_000,
    submitted_us=30_000,
    started_us=35_000,
    computed_us=135_000,
    ended_us=150_000,
    ages_ms=LogHistogram.of([60.0] * 4),
    age_ms=Moments.of([60.0] * 4),
    steps={},
    plan=Plan(),
    slots=2,
)


@settings(max_examples=100)
@given(batches(), st.floats(0.0, 1.0))
def test_the_elements_add_up_to_the_mean_latency(batch: BatchMeasure, share: float) -> None:
    wait_ms = batch.age_ms.mean - (batch.handed_us - batch.planned_us) / 1e3
    parts = batch.breakdown_ms(batch.age_ms.mean, share * max(0.0, wait_ms))
    assert sum(parts.values()) == pytest.approx(mean_latency_ms(batch), rel=1e-9, abs=1e-6)
    assert min(parts.values()) > -1e-6


def test_each_element_is_the_span_that_it_names() -> None:
    batch = replace(QUIET, steps={"a": StepMeasure(4, busy_ms={0: 40.0, 1: 20.0})})
    assert batch.breakdown_ms(60.0, 20.0) == pytest.approx(
        {
            "source_wait": 30.0,
            "batching": 20.0,
            "planning": 30.0,
            "queueing": 5.0,
            "step:a": 30.0,
            "engine": 70.0,
            "sink": 15.0,
        }
    )
    assert batch.duration_ms == 150.0


@settings(max_examples=100)
@given(batches())
def test_the_work_of_the_steps_never_exceeds_the_time_that_passed(batch: BatchMeasure) -> None:
    passed_ms = (batch.computed_us - batch.started_us) / 1e3
    work = batch.work_ms
    assert work.keys() == batch.steps.keys()
    assert sum(work.values()) <= passed_ms * (1 + 1e-12)
    for name, step in batch.steps.items():
        assert 0.0 <= work[name] <= sum(step.busy_ms.values()) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("busy_ms", "slots", "work_ms"),
    [
        ({0: 30.0}, 4, 30.0),  # one partition is one lane
        ({0: 30.0, 1: 30.0}, 4, 30.0),  # two run side by side
        ({0: 30.0, 1: 30.0, 2: 30.0, 3: 30.0}, 2, 60.0),  # four on two slots take two rounds
        ({0: 30.0, 1: 30.0}, 1, 60.0),
        ({}, 2, 0.0),
        ({0: 500.0}, 2, 100.0),  # no more than passed
    ],
)
def test_busy_time_counts_once_per_lane(
    busy_ms: dict[int, float], slots: int, work_ms: float
) -> None:
    batch = replace(QUIET, slots=slots, steps={"a": StepMeasure(4, busy_ms=busy_ms)})
    assert batch.work_ms == {"a": pytest.approx(work_ms)}


def test_steps_that_overlap_share_the_time_that_passed_by_their_busy_times() -> None:
    steps = {"a": StepMeasure(4, busy_ms={0: 90.0}), "b": StepMeasure(4, busy_ms={0: 30.0})}
    work = replace(QUIET, steps=steps).work_ms
    assert work == pytest.approx({"a": 75.0, "b": 25.0})


@settings(max_examples=60)
@given(batches(), st.sampled_from(["sink", "sink:alerts"]))
def test_the_whole_path_takes_the_mean_latency(batch: BatchMeasure, sink: str) -> None:
    path = ("source", *NAMES, sink)
    assert batch.path_ms(path, batch.age_ms.mean) == pytest.approx(mean_latency_ms(batch))


@settings(max_examples=100)
@given(batches())
def test_parts_of_a_path_and_the_streams_between_them_add_up(batch: BatchMeasure) -> None:
    age_ms = batch.age_ms.mean
    a, b, c = (batch.steps[name] for name in NAMES)

    def path_ms(*path: str) -> float:
        return batch.path_ms(path, age_ms)

    a_to_b, b_to_c = b.entered_ms - a.left_ms, c.entered_ms - b.left_ms
    whole = path_ms("source", *NAMES, "sink")
    assert path_ms("source", "a") + a_to_b + path_ms("b", "c", "sink") == pytest.approx(whole)
    assert path_ms("source", "a", "b") + b_to_c + path_ms("c", "sink") == pytest.approx(whole)
    inner = path_ms("a") + a_to_b + path_ms("b") + b_to_c + path_ms("c")
    assert inner == pytest.approx(path_ms("a", "b", "c"), abs=1e-6)


def test_only_a_path_from_the_source_depends_on_the_age() -> None:
    batch = replace(QUIET, steps={"a": StepMeasure(4, entered_ms=30.0, left_ms=90.0)})
    assert batch.path_ms(("source", "a"), 60.0) == 150.0
    assert batch.path_ms(("source", "a"), 100.0) == 190.0
    assert batch.path_ms(("a",), 100.0) == 60.0
    assert batch.path_ms(("a", "sink"), 100.0) == 110.0


@pytest.mark.parametrize("steps", [{}, {"a": StepMeasure()}])
def test_a_step_that_saw_no_record_is_passed_when_the_tasks_are_done(
    steps: dict[str, StepMeasure],
) -> None:
    batch = replace(QUIET, steps=steps)
    assert batch.path_ms(("source", "a"), 60.0) == 185.0
    assert batch.path_ms(("a",), 60.0) == 0.0
    assert batch.path_ms(("a", "sink"), 60.0) == 15.0


@settings(max_examples=60)
@given(st.lists(st.lists(st.tuples(*[st.floats(0.0, 1e4)] * 3), max_size=8), max_size=5))
def test_partitions_merge_into_the_measure_of_all_their_records(
    partitions: list[list[tuple[float, float, float]]],
) -> None:
    """Each record is (service, entered, residence)."""
    parts = []
    for index, records in enumerate(partitions):
        service, entered, residence = np.asarray(records).reshape(-1, 3).T
        parts.append(
            StepMeasure(
                records_in=len(records),
                records_out=2 * len(records),
                errors=int(len(records) > 2),
                service_ms=Moments.of(service),
                residence_ms=LogHistogram.of(residence),
                busy_ms={index % 2: float(service.sum())},
                entered_ms=float(entered.mean()) if records else 0.0,
                left_ms=float((entered + residence).mean()) if records else 0.0,
                keys={"k": len(records), f"k{index}": 1},
            )
        )
    merged = StepMeasure.merged(parts)
    every = np.asarray([record for records in partitions for record in records]).reshape(-1, 3)
    filled = [(i, records) for i, records in enumerate(partitions) if records]
    assert merged.records_in == merged.service_ms.count == merged.residence_ms.count == len(every)
    assert merged.records_out == 2 * len(every)
    assert merged.errors == sum(len(records) > 2 for records in partitions)
    assert merged.busy_ms.keys() == {i % 2 for i, _ in filled}
    assert sum(merged.busy_ms.values()) == pytest.approx(every[:, 0].sum())
    assert merged.keys.get("k", 0) == len(every)
    assert merged.keys.keys() - {"k"} == {f"k{i}" for i, _ in filled}
    if len(every):
        assert merged.service_ms.mean == pytest.approx(every[:, 0].mean())
        assert merged.entered_ms == pytest.approx(every[:, 1].mean())
        assert merged.left_ms == pytest.approx((every[:, 1] + every[:, 2]).mean())


def test_keys_do_not_pile_up_however_many_there_are() -> None:
    parts = [
        StepMeasure(100, keys={"hot": 50.0, **{f"{part}-{i}": 1.0 for i in range(50)}})
        for part in range(200)
    ]
    whole = StepMeasure.merged(parts)
    assert len(whole.keys) <= MOST_KEYS
    assert whole.keys["hot"] == 50 * 200
    few = StepMeasure.merged([StepMeasure(3, keys={"a": 1.0, "b": 2.0})] * 10)
    assert few.keys == {"a": 10.0, "b": 20.0}


def test_of_batches_without_records_nothing_is_known_of_the_rate() -> None:
    empty, first = replace(QUIET, records=0), replace(QUIET, records=3, planned_us=-200_000)
    assert came([first, empty, QUIET]) == (4, 0.2)
    assert came([first]) == came([empty, empty]) == (0, 0)


def test_a_few_records_that_are_far_off_move_no_arrival() -> None:
    """One with a date of 1970 would make a batch decades old, by the mean."""
    ages = [1_000.0 + each for each in range(50)]
    odd = replace(
        QUIET, ages_ms=LogHistogram.of([*ages, 1.7e12]), age_ms=Moments.of([*ages, 1.7e12])
    )
    plain = replace(QUIET, ages_ms=LogHistogram.of(ages), age_ms=Moments.of(ages))
    assert plain.arrived_us == pytest.approx(QUIET.handed_us - 1_024.5e3)
    assert odd.arrived_us == pytest.approx(plain.arrived_us, abs=10e3)
