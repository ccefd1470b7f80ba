"""Calls: what a step takes for an Arrow batch, told from what it takes for its records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.profile.calls import Calls


def calls(sizes: list[int], call_ms: float, record_ms: float, noise: float = 0.0) -> Calls:
    rng = np.random.default_rng(1)
    each = (
        Calls(1, n, n * n, took, took * n)
        for n in sizes
        for took in (call_ms + record_ms * n + noise * rng.standard_normal(),)
    )
    return Calls.merged(each)


@given(call_ms=st.floats(0, 0.9), record_ms=st.floats(0.01, 0.2), seed=st.integers(0, 1000))
def test_calls_of_many_sizes_tell_both_costs(call_ms: float, record_ms: float, seed: int) -> None:
    sizes = np.random.default_rng(seed).integers(1, 6, 2_000).tolist()
    found_ms, each_ms = calls(sizes, call_ms, record_ms).line()
    assert found_ms == pytest.approx(call_ms, rel=0.3, abs=0.05)
    assert each_ms == pytest.approx(record_ms, rel=0.3, abs=0.05)


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
    whole, rest = calls([100] * 500, 0.1, 0.14), calls([50] * 40, 0.1, 1.05 * 0.14)
    found_ms, each_ms = Calls.merged([whole, rest]).line()
    assert found_ms < 0.3
    assert each_ms == pytest.approx(0.14, rel=0.02)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 100)), min_size=1, max_size=30))
def test_the_line_meets_the_mean_and_is_never_below_zero(seen: list[tuple[int, float]]) -> None:
    whole = Calls.merged(Calls(1, n, n * n, ms, ms * n) for n, ms in seen)
    call_ms, record_ms = whole.line()
    assert call_ms >= -1e-9
    assert record_ms >= 0
    assert call_ms * whole.count + record_ms * whole.records == pytest.approx(whole.busy_ms)


def test_without_calls_nothing_costs() -> None:
    assert Calls().line() == (0.0, 0.0)
