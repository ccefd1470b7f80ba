"""Log histograms: the promised accuracy, and counts that are never lost."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.profile.histogram import ACCURACY, GAMMA, SMALLEST_MS, LogHistogram, bin_of, value_of

if TYPE_CHECKING:
    from random import Random

LATENCIES = st.lists(st.floats(SMALLEST_MS, 1e7), min_size=1, max_size=60)
QUANTILES = st.sampled_from(["0.001", "0.07", "0.5", "0.9", "0.95", "0.99", "0.999", "1"])
ONE_PERCENT = 0.01


def nearest_rank(values: list[float], quantile: str) -> float:
    """The smallest value that at least that share does not exceed, in exact arithmetic."""
    rank = math.ceil(Fraction(quantile) * len(values))
    return sorted(values)[max(1, rank) - 1]


def counted(histogram: LogHistogram) -> dict[int, int]:
    return dict(zip(histogram.bins.tolist(), histogram.counts.tolist(), strict=True))


@settings(max_examples=100)
@given(st.lists(st.floats(SMALLEST_MS, 1e9), min_size=1, max_size=50))
def test_a_value_read_back_is_within_the_accuracy(values: list[float]) -> None:
    read = value_of(bin_of(values))
    assert np.all(np.abs(read - values) <= (ACCURACY + 1e-8) * np.asarray(values))


def test_bins_meet_without_gap_or_overlap() -> None:
    edges = SMALLEST_MS * GAMMA ** np.arange(1, 2_000)
    assert bin_of(edges * (1 - 1e-7)).tolist() == list(range(1, 2_000))
    assert bin_of(edges * (1 + 1e-7)).tolist() == list(range(2, 2_001))


@pytest.mark.parametrize("value", [-5.0, 0.0, SMALLEST_MS / 2, SMALLEST_MS])
def test_what_is_too_small_falls_into_the_first_bin(value: float) -> None:
    assert counted(LogHistogram.of([value])) == {0: 1}


@settings(max_examples=100)
@given(LATENCIES, QUANTILES)
def test_a_quantile_is_within_one_percent_of_the_exact_one(
    values: list[float], quantile: str
) -> None:
    read = LogHistogram.of(values).quantile_ms(float(quantile))
    assert read == pytest.approx(nearest_rank(values, quantile), rel=ACCURACY + 1e-8)


@settings(max_examples=100)
@given(LATENCIES, st.floats(0.0, 1e6), QUANTILES)
def test_a_quantile_stays_within_one_percent_when_ages_are_binned_and_then_shifted(
    ages: list[float], rest_ms: float, quantile: str
) -> None:
    read = LogHistogram.of(ages).shifted(rest_ms).quantile_ms(float(quantile))
    exact = nearest_rank([age + rest_ms for age in ages], quantile)
    assert read == pytest.approx(exact, rel=ONE_PERCENT)


@pytest.mark.parametrize("quantile", [0.07, 0.14, 0.28, 0.55, 0.57])
def test_a_rank_is_not_pushed_up_by_the_rounding_of_a_product(quantile: float) -> None:
    rank = round(quantile * 100)
    read = LogHistogram.of(np.arange(1.0, 101.0)).quantile_ms(quantile)
    assert read == pytest.approx(rank, rel=ACCURACY + 1e-8)


@pytest.mark.parametrize("rest_ms", [0.0, 3.0, 80.0, 5_000.0])
def test_many_quantiles_agree_with_numpy_after_both_binnings(rest_ms: float) -> None:
    ages = np.random.default_rng(3).lognormal(4.0, 1.2, 50_000)
    asked = np.linspace(0.0005, 0.9995, 1_000)
    exact = np.quantile(ages + rest_ms, asked, method="inverted_cdf")
    shifted = LogHistogram.of(ages).shifted(rest_ms)
    read = np.array([shifted.quantile_ms(float(quantile)) for quantile in asked])
    assert np.max(np.abs(read / exact - 1)) < ONE_PERCENT


@settings(max_examples=40)
@given(LATENCIES)
def test_the_mean_and_the_largest_are_within_the_accuracy(values: list[float]) -> None:
    histogram = LogHistogram.of(values)
    assert histogram.mean_ms() == pytest.approx(float(np.mean(values)), rel=ACCURACY + 1e-8)
    assert histogram.max_ms() == pytest.approx(max(values), rel=ACCURACY + 1e-8)


@settings(max_examples=60)
@given(st.lists(st.lists(st.floats(0.0, 1e5), max_size=20), max_size=6), st.randoms())
def test_a_merge_in_any_order_is_the_histogram_of_the_whole(
    lists: list[list[float]], random: Random
) -> None:
    whole = LogHistogram.of([value for values in lists for value in values])
    parts = [LogHistogram.of(values) for values in lists]
    random.shuffle(parts)
    left = LogHistogram()
    for part in parts:
        left = LogHistogram.merged([left, part])
    assert counted(LogHistogram.merged(parts)) == counted(left) == counted(whole)
    assert np.all(np.diff(left.bins) > 0)


@settings(max_examples=60)
@given(st.lists(st.floats(0.0, 1e5), max_size=40), st.floats(-1e5, 1e5))
def test_a_shift_loses_no_value(values: list[float], by_ms: float) -> None:
    shifted = LogHistogram.of(values).shifted(by_ms)
    assert shifted.count == len(values)
    assert np.all(np.diff(shifted.bins) > 0)


@settings(max_examples=40)
@given(st.lists(st.floats(0.0, 1e5), max_size=40))
def test_bins_counted_elsewhere_give_the_same_histogram(values: list[float]) -> None:
    here = LogHistogram.of(values)
    assert counted(LogHistogram.from_bins(counted(here))) == counted(here)


def test_a_bin_counted_as_empty_is_no_bin() -> None:
    assert LogHistogram.from_bins({7: 0}).bins.size == 0
    assert counted(LogHistogram.from_bins({9: 0, 5: 2, 3: 1})) == {3: 1, 5: 2}


def test_nothing_has_no_quantile() -> None:
    for empty in (LogHistogram(), LogHistogram.of([]), LogHistogram.merged([])):
        assert empty.count == 0
        assert math.isnan(empty.quantile_ms(0.5))
        assert math.isnan(empty.max_ms())
        assert empty.mean_ms() == 0.0
        assert empty.shifted(5.0).count == 0
