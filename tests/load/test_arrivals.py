from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tailrace.errors import LoadError
from tailrace.load import (
    Arrivals,
    Burst,
    Constant,
    Even,
    Pareto,
    Poisson,
    RateProfile,
    Sine,
    Staircase,
)
from tailrace.load.arrivals import due_us

if TYPE_CHECKING:
    from collections.abc import Callable

PROFILES: list[RateProfile] = [
    Constant(2000, 50),
    Staircase(1000, 8000, steps=7, step_s=2),
    Sine(2000, 1900, period_s=10, duration_s=50),
    Burst(1000, 9000, at_s=20, length_s=5, duration_s=60),
]
every_profile = pytest.mark.parametrize("profile", PROFILES, ids=lambda p: type(p).__name__)
LARGE = 1_000_000
Floats = np.ndarray[Any, np.dtype[np.float64]]


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def kolmogorov(sample: Floats, distribution: Callable[[Floats], Floats]) -> float:
    """The largest distance between a sample's distribution and the given one, times sqrt(n).

    Under the null hypothesis it exceeds 1.95 once in a thousand.
    """
    values = distribution(np.sort(sample))
    n = len(values)
    above = np.arange(1, n + 1) / n - values
    below = values - np.arange(n) / n
    return float(max(above.max(), below.max()) * np.sqrt(n))


@every_profile
def test_even_arrivals_count_the_rounded_integral_and_sit_where_it_says(
    profile: RateProfile,
) -> None:
    due = due_us(profile, Even(), rng())
    total = profile.expected(np.array([profile.duration_s]))[0]
    assert len(due) == round(total)
    counted = profile.expected(due / 1e6)
    most_in_a_us = profile.rate_at(np.linspace(0, profile.duration_s, 1000)).max() * 1e-6
    np.testing.assert_allclose(counted, np.arange(len(due)) + 0.5, atol=1.01 * most_in_a_us + 1e-6)


def test_even_arrivals_at_a_constant_rate_are_equally_spaced() -> None:
    due = due_us(Constant("2 k/s", "10 s"), Even(), rng())
    assert len(due) == 20_000
    assert set(np.diff(due)) <= {499, 500, 501}


@every_profile
@pytest.mark.parametrize("process", [Even(), Poisson(), Pareto(1.5)], ids=repr)
def test_due_times_are_sorted_whole_microseconds_within_the_load(
    profile: RateProfile, process: Arrivals
) -> None:
    due = due_us(profile, process, rng())
    assert due.dtype == np.int64
    assert np.all(np.diff(due) >= 0)
    assert due[0] >= 0
    assert due[-1] <= profile.duration_s * 1e6


@every_profile
def test_poisson_counts_stray_from_the_integral_by_no_more_than_chance(
    profile: RateProfile,
) -> None:
    edges_s = np.linspace(0, profile.duration_s, 51)
    expected = np.diff(profile.expected(edges_s))
    counts = np.histogram(due_us(profile, Poisson(), rng()) / 1e6, edges_s)[0]
    chi_square = float((((counts - expected) ** 2) / expected).sum())
    assert 20 < chi_square < 95  # 50 degrees of freedom: 1 in 10 000 on either side


@every_profile
def test_poisson_arrivals_are_exponential_on_the_clock_of_the_profile(profile: RateProfile) -> None:
    due = due_us(profile, Poisson(), rng())
    unrounded_s = np.sort(due + rng(2).random(len(due))) / 1e6  # they were cut to microseconds
    gaps = np.diff(profile.expected(unrounded_s))
    assert kolmogorov(gaps, lambda x: -np.expm1(-x)) < 1.95


def test_poisson_gaps_have_the_moments_and_quantiles_of_the_exponential() -> None:
    gaps = np.diff(Poisson().ticks(LARGE, rng()))
    assert gaps.mean() == pytest.approx(1.0, abs=5e-3)  # 5 standard errors
    assert gaps.var() == pytest.approx(1.0, abs=5 * np.sqrt(8) * 1e-3)
    assert kolmogorov(gaps, lambda x: -np.expm1(-x)) < 1.95
    assert np.corrcoef(gaps[1:], gaps[:-1])[0, 1] == pytest.approx(0, abs=5e-3)


@pytest.mark.parametrize("shape", [1.2, 1.5, 2.5, 4.0])
def test_pareto_gaps_follow_their_closed_form(shape: float) -> None:
    gaps = np.diff(Pareto(shape).ticks(LARGE / 4, rng()))
    assert kolmogorov(gaps, lambda x: 1 - (1 + x / (shape - 1)) ** -shape) < 1.95


def test_pareto_gaps_have_a_mean_of_one_and_vary_more_than_poisson() -> None:
    gaps = np.diff(Pareto(4.0).ticks(LARGE, rng()))
    assert gaps.mean() == pytest.approx(1.0, abs=5 * np.sqrt(2) * 1e-3)
    assert gaps.var() == pytest.approx(4 / (4 - 2), rel=0.15)


def test_a_heavy_tail_still_reaches_the_end_of_the_load() -> None:
    ticks = Pareto(1.01).ticks(1000, rng(3))
    assert len(ticks) > 0
    assert ticks[-1] < 1000


@pytest.mark.parametrize("process", [Even(), Poisson(), Pareto(1.5)], ids=repr)
def test_the_same_seed_gives_the_same_arrivals(process: Arrivals) -> None:
    first, again = (due_us(PROFILES[2], process, rng(7)) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_another_seed_gives_other_arrivals() -> None:
    first, other = (due_us(PROFILES[0], Poisson(), rng(seed)) for seed in (1, 2))
    assert not np.array_equal(first[:100], other[:100])


@pytest.mark.parametrize("shape", [1.0, 0.0, -2.0, float("nan"), float("inf")])
def test_a_pareto_shape_without_a_mean_is_refused(shape: float) -> None:
    with pytest.raises(LoadError, match="above 1"):
        Pareto(shape)


def test_a_load_that_cannot_fit_into_memory_is_refused_before_it_is_made() -> None:
    with pytest.raises(LoadError, match="lower its rate or its duration"):
        due_us(Constant("1 G/s", "1 h"), Even(), rng())
