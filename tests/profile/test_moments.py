"""Moments against numpy and against exact arithmetic."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.profile.moments import Moments

VALUES = st.lists(st.floats(-1e6, 1e6), max_size=30)


def assert_same(one: Moments, other: Moments, scale: float = 1e6) -> None:
    assert one.count == other.count
    assert one.mean == pytest.approx(other.mean, rel=1e-12, abs=1e-12 * scale)
    assert one.m2 == pytest.approx(other.m2, rel=1e-9, abs=1e-12 * scale**2)


@settings(max_examples=60)
@given(VALUES.filter(bool))
def test_the_moments_of_an_array_are_those_of_numpy(values: list[float]) -> None:
    moments = Moments.of(values)
    assert moments.count == len(values)
    assert moments.mean == pytest.approx(np.mean(values), rel=1e-12, abs=1e-9)
    assert moments.variance == pytest.approx(np.var(values), rel=1e-12, abs=1e-9)
    assert moments.deviation == pytest.approx(np.std(values), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e12, -1e12])
@pytest.mark.parametrize("parts", [1, 7, 500])
def test_the_variance_survives_an_offset_that_dwarfs_the_spread(offset: float, parts: int) -> None:
    values = offset + np.random.default_rng(7).gamma(2.0, 50.0, 2_000)
    moments = Moments.merged(Moments.of(part) for part in np.array_split(values, parts))
    exact = [float(value) for value in values]
    assert moments.count == 2_000
    assert moments.mean == pytest.approx(statistics.mean(exact), rel=1e-14)
    assert moments.variance == pytest.approx(statistics.pvariance(exact), rel=1e-5)


@settings(max_examples=60)
@given(VALUES, VALUES, VALUES)
def test_merging_is_associative_and_commutative(
    first: list[float], second: list[float], third: list[float]
) -> None:
    a, b, c = Moments.of(first), Moments.of(second), Moments.of(third)
    whole = Moments.of([*first, *second, *third])
    for merged in ((a + b) + c, a + (b + c), (c + a) + b, Moments.merged([c, b, a])):
        assert_same(merged, whole)


def test_nothing_has_no_moments_and_changes_none() -> None:
    some = Moments.of([1.0, 4.0])
    assert Moments.of([]) == Moments.merged([]) == Moments()
    assert some + Moments() == Moments() + some == some
    assert (Moments().variance, Moments().deviation) == (0.0, 0.0)
    assert Moments().shifted(3.0) == Moments().scaled_to(8.0) == Moments()


@settings(max_examples=40)
@given(VALUES.filter(bool), st.floats(-1e6, 1e6))
def test_a_shift_moves_the_mean_alone(values: list[float], by: float) -> None:
    assert_same(Moments.of(values).shifted(by), Moments.of(np.asarray(values) + by))


@settings(max_examples=40)
@given(VALUES.filter(bool), st.integers(1, 9))
def test_scaling_to_a_count_is_repeating_every_value(values: list[float], times: int) -> None:
    count = float(len(values) * times)
    assert_same(Moments.of(values).scaled_to(count), Moments.of(np.tile(values, times)), 1e7)


def test_one_value_has_no_variance() -> None:
    assert Moments.of([3.5]) == Moments(1.0, 3.5, 0.0)
    assert Moments.of([3.5]).variance == 0.0
