"""Calls: what a step takes for an Arrow batch, told from what it takes for its records."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.profile.calls import BENT, Calls
from tailrace.profile.costs import USUAL_CALL_MS


def calls(sizes: list[int], call_ms: float, record_ms: float, noise: float = 0.0) -> Calls:
    rng = np.random.default_rng(1)
    return Calls.of((n, call_ms + record_ms * n + noise * rng.standard_normal()) for n in sizes)


@given(call_ms=st.floats(0, 0.9), record_ms=st.floats(0.01, 5), seed=st.integers(0, 1000))
def test_calls_of_many_sizes_tell_both_costs(call_ms: float, record_ms: float, seed: int) -> None:
    """Up to what is usual, which counts by :data:`BENT` of the time of a call."""
    sizes = np.random.default_rng(seed).integers(1, 6, 2_000).tolist()
    found_ms, each_ms = calls(sizes, call_ms, record_ms).line()
    took_ms = call_ms + 3 * record_ms
    drawn = 1 / (1 + (USUAL_CALL_MS / (BENT * took_ms * 3 / math.sqrt(2))) ** 2)
    usual_ms = min(USUAL_CALL_MS, took_ms / 2)
    assert found_ms == pytest.approx(call_ms + drawn * (usual_ms - call_ms), rel=0.05, abs=0.01)
    assert each_ms == pytest.approx((took_ms - found_ms) / 3, rel=0.02, abs=0.01)


@given(st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=4), min_size=1, max_size=20))
def test_without_noise_few_calls_at_a_time_tell_as_much(tasks: list[list[int]]) -> None:
    """Tasks of a micro-batch make few calls each, so that ends weigh as much as what is between."""
    several = Calls.merged(calls(sizes, 0.15, 0.002) for sizes in tasks)
    found_ms, each_ms = several.line()
    if several.grown_records - several.grown * several.records / several.count > several.count:
        assert found_ms == pytest.approx(0.15, rel=0.01)
        assert each_ms == pytest.approx(0.002, rel=0.1)


def test_records_that_pile_up_while_the_machine_is_slow_do_not_seem_costly() -> None:
    """The next call has what arrived during this one: slow calls are followed by large ones."""
    rng = np.random.default_rng(3)
    slow, took_ms, seen = 1.0, 1.0, []
    for _ in range(20_000):
        slow = rng.choice([1.0, 1.6]) if rng.random() < 0.02 else slow
        n = 1 + rng.poisson(3 * took_ms)
        took_ms = slow * (0.1 + 0.14 * n) * rng.uniform(0.7, 1.3)
        seen.append((n, took_ms, slow))
    sizes, times, slows = np.array(seen).T
    record_ms, call_ms = 0.14 * (slows @ sizes) / sizes.sum(), 0.1 * slows.mean()
    found_ms, each_ms = Calls.of((n, ms) for n, ms, _ in seen).line()
    assert each_ms == pytest.approx(record_ms, rel=0.06)
    assert found_ms == pytest.approx(call_ms, rel=0.3)
    steep_ms, nothing_ms = np.polyfit(sizes, times, 1)  # what size alone would say
    assert steep_ms > 1.15 * record_ms
    assert nothing_ms < 0.2 * call_ms


def test_noise_averages_out() -> None:
    sizes = np.random.default_rng(5).integers(1, 4, 3_000).tolist()
    found_ms, each_ms = calls(sizes, 0.3, 0.5, noise=0.2).line()
    assert found_ms == pytest.approx(0.3, abs=0.08)
    assert each_ms == pytest.approx(0.5, abs=0.04)


@given(size=st.integers(1, 100), took_ms=st.floats(0.01, 100))
def test_calls_of_one_size_are_taken_to_cost_what_is_usual(size: int, took_ms: float) -> None:
    found_ms, each_ms = calls([size] * 50, 0.0, took_ms / size).line()
    assert found_ms == pytest.approx(min(0.15, took_ms / 2), rel=1e-6)
    assert each_ms == pytest.approx((took_ms - found_ms) / size)


def test_large_calls_of_about_one_size_say_little_of_what_a_call_takes() -> None:
    """Whole Arrow batches with a rest now and then that takes a twentieth longer than its share."""
    rest = (50, 0.1 + 1.05 * 0.14 * 50)
    found_ms, each_ms = Calls.of(40 * [*12 * [(100, 0.1 + 0.14 * 100)], rest]).line()
    assert found_ms < 0.3
    assert each_ms == pytest.approx(0.14, rel=0.02)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 100)), min_size=1, max_size=30))
def test_the_line_meets_the_mean_and_is_never_below_zero(seen: list[tuple[int, float]]) -> None:
    whole = Calls.of(seen)
    call_ms, record_ms = whole.line()
    assert call_ms >= -1e-9
    assert record_ms >= 0
    assert call_ms * whole.count + record_ms * whole.records == pytest.approx(whole.busy_ms)


def test_without_calls_nothing_costs() -> None:
    assert Calls().line() == (0.0, 0.0)
