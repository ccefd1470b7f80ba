"""The batch model on other numbers of executors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.microbatch import BatchModel
from tailrace.model.sized import (
    ENOUGH,
    SizedBatches,
    Strictest,
    overheads_ms,
    shared_by,
    unshared_ms,
)

slots = st.integers(1, 64)


@given(st.floats(1, 500), st.floats(0.01, 20), slots, slots, st.floats(1, 1e4))
def test_what_was_measured_on_some_slots_tells_what_a_batch_takes_on_others(
    unshared: float, busy_ms: float, here: int, there: int, records: float
) -> None:
    measured = BatchModel(unshared, busy_ms / here)
    found = unshared_ms(measured, records, busy_ms, here)
    sized = SizedBatches(found, busy_ms, 5_000.0)
    expected = unshared + busy_ms * records / there
    assert sized.on(there).duration_ms(records) == pytest.approx(expected, rel=1e-6)


def test_no_more_slots_share_the_records_than_there_are_partitions() -> None:
    assert shared_by(16, 4) == shared_by(4, None) == 4
    found_ms = unshared_ms(BatchModel(50.0, 2.0), 100, 8.0, shared_by(16, 4))
    assert found_ms == pytest.approx(50.0)
    sized = SizedBatches(50.0, 8.0, 5_000.0, cores=2, widest=4)
    assert sized.on(2) == sized.on(8) == BatchModel(50.0, 2.0)
    assert sized.utilisation(1, 100) == pytest.approx(0.4)


def test_a_batch_that_took_less_than_its_records_has_no_other_part() -> None:
    assert unshared_ms(BatchModel(0.0, 1.0), 100, 4.0, 2) == 0.0


def test_the_latency_is_that_of_batches_back_to_back() -> None:
    sized = SizedBatches(100.0, 5.0, 5_000.0, fixed_ms=7.0, ratio=1.5)
    floor_ms = BatchModel(100.0, 2.5).floor_ms(200.0, 5_000.0, None)
    assert sized.latency_ms(2, 200.0) == pytest.approx(7.0 + 1.5 * floor_ms)


@given(
    st.floats(0, 500),
    st.floats(0, 30),
    st.lists(st.integers(1, 16), min_size=1, max_size=5, unique=True),
)
def test_what_a_task_costs_is_told_by_several_numbers_of_them(
    batch_ms: float, task_ms: float, numbers: list[int]
) -> None:
    seen = [(tasks, batch_ms + task_ms * tasks) for tasks in numbers for _ in range(ENOUGH)]
    each_ms, more_ms = overheads_ms(seen)
    sized = SizedBatches(each_ms, 5.0, 5_000.0, task_ms=more_ms)
    for tasks in numbers:
        expected_ms = batch_ms + task_ms * tasks
        assert sized.on(tasks).fixed_ms == pytest.approx(expected_ms, rel=1e-6, abs=1e-6)
    if len(numbers) > 1:
        assert more_ms == pytest.approx(task_ms, rel=1e-6, abs=1e-6)


def test_measurements_that_stray_do_not_tell_what_a_task_costs() -> None:
    steady = [(2, 100.0)] * 7
    assert overheads_ms([*steady, (3, 900.0)]) == (100.0, 0.0), "one alone says nothing"
    assert overheads_ms([*steady, *[(3, 110.0)] * 3, (3, 900.0)])[1] == 10.0
    assert overheads_ms([(3, 100.0)] * 7 + [(4, 60.0)] * 7) == (60.0, 0.0), "never less than none"


@given(st.integers(1, 16), st.floats(1, 3_000), st.floats(100, 5_000), st.floats(100, 5_000))
def test_several_constraints_are_kept_as_one_exactly_if_each_is(
    size: int, rate: float, mean_ms: float, tail_ms: float
) -> None:
    mean = SizedBatches(100.0, 5.0, 5_000.0)
    tail = SizedBatches(100.0, 5.0, 5_000.0, quantile=0.99, fixed_ms=20.0)
    both = Strictest(((mean, mean_ms), (tail, tail_ms)), mean_ms)
    each = mean.latency_ms(size, rate) / mean_ms, tail.latency_ms(size, rate) / tail_ms
    assert both.latency_ms(size, rate) / mean_ms == pytest.approx(max(each))
    assert both.utilisation(size, rate) == mean.utilisation(size, rate)
