from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import LoadError
from tailrace.load import Burst, Constant, RandomWalk, RateProfile, Sine, Staircase

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

PROFILES: list[RateProfile] = [
    Constant("2 k/s", "60 s"),
    Staircase("10 k/s", "80 k/s", steps=7, step_s=60),
    Sine(1000, 990, period_s=7.0, duration_s=31.0),
    Sine(1000, 400, period_s=86_400, duration_s=3_600),
    Burst(1000, 6734, at_s=24, length_s=3.5, duration_s=60),
    Burst(1000, 50, at_s=0, length_s=60, duration_s=60),
    RandomWalk(1000, 300, 5, low=500, high=1200, duration_s=93, seed=4),
]
every_profile = pytest.mark.parametrize("profile", PROFILES, ids=lambda p: type(p).__name__)


@every_profile
def test_the_expected_count_is_the_integral_of_the_rate(profile: RateProfile) -> None:
    cells = 2**20
    middles_s = (np.arange(cells) + 0.5) * profile.duration_s / cells
    summed = np.cumsum(profile.rate_at(middles_s)) * profile.duration_s / cells
    ends_s = np.arange(1, cells + 1) * profile.duration_s / cells
    np.testing.assert_allclose(profile.expected(ends_s)[999:], summed[999:], rtol=2e-4)
    np.testing.assert_allclose(profile.expected(ends_s)[-1], summed[-1], rtol=1e-6)


@every_profile
def test_the_inverse_undoes_the_integral(profile: RateProfile) -> None:
    t_s = np.linspace(0, profile.duration_s, 10_001)
    back_s = profile.time_of(profile.expected(t_s))
    np.testing.assert_allclose(back_s, t_s, atol=1e-11 * profile.duration_s)


@every_profile
def test_nothing_is_due_outside_the_load(profile: RateProfile) -> None:
    outside_s = np.array([-1.0, profile.duration_s + 1.0])
    total = profile.expected(np.array([profile.duration_s]))[0]
    np.testing.assert_array_equal(profile.rate_at(outside_s), [0.0, 0.0])
    np.testing.assert_array_equal(profile.expected(outside_s), [0.0, total])


def test_the_staircase_is_that_of_the_prime_test() -> None:
    stairs = Staircase("10 k/s", "80 k/s", steps=7, step_s="60 s")
    middles_s = np.arange(15, dtype=np.float64) * 60 + 30
    thousands = [10, 20, 30, 40, 50, 60, 70, 80, 70, 60, 50, 40, 30, 20, 10]
    assert stairs.duration_s == 15 * 60
    np.testing.assert_allclose(stairs.rate_at(middles_s), np.array(thousands) * 1e3)


def test_a_burst_starts_and_ends_when_it_is_told_to() -> None:
    burst = Burst(base=10, peak=100, at_s=20, length_s=5, duration_s=60)
    rates = burst.rate_at(np.array([0, 19.9, 20, 24.9, 25, 60.0]))
    np.testing.assert_array_equal(rates, [10, 10, 100, 100, 10, 10])
    assert burst.expected(np.array([60.0]))[0] == 10 * 55 + 100 * 5


def test_the_sine_has_its_closed_form() -> None:
    sine = Sine(mean=100, amplitude=50, period_s=8, duration_s=16)
    quarters_s = np.array([0.0, 2.0, 4.0, 6.0, 8.0, 16.0])
    np.testing.assert_allclose(sine.rate_at(quarters_s), [100, 150, 100, 50, 100, 100], atol=1e-10)
    bump = 50 * 8 / (2 * np.pi)
    np.testing.assert_allclose(
        sine.expected(quarters_s),
        [0, 200 + bump, 400 + 2 * bump, 600 + bump, 800, 1600],
        rtol=1e-14,
    )


def reflected(start: float, moves: list[float], low: float, high: float) -> list[float]:
    """The walk move by move, bouncing off the bounds as often as needed."""
    rates = [start]
    direction = 1.0
    for move in moves:
        position, direction_now = rates[-1] + direction * move, direction
        while not low <= position <= high:
            position = 2 * (low if position < low else high) - position
            direction_now = -direction_now
        direction = direction_now
        rates.append(position)
    return rates


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.floats(1, 2000))
def test_a_random_walk_bounces_off_its_bounds(seed: int, step: float) -> None:
    walk = RandomWalk(700, step, 1, low=500, high=1200, duration_s=50, seed=seed)
    moves = np.random.default_rng(seed).uniform(-step, step, 49)
    rates = walk.rate_at(np.arange(50, dtype=np.float64) + 0.5)
    np.testing.assert_allclose(rates, reflected(700, list(moves), 500, 1200), rtol=1e-9)


def test_a_random_walk_is_repeated_by_its_seed() -> None:
    def walk(seed: int) -> NDArray[np.float64]:
        profile = RandomWalk(700, 100, 1, low=500, high=1200, duration_s=50, seed=seed)
        return profile.rate_at(np.linspace(0, 50, 500))

    np.testing.assert_array_equal(walk(1), walk(1))
    assert not np.array_equal(walk(1), walk(2))


def test_rates_and_times_may_be_texts_and_a_number_alone_is_seconds() -> None:
    assert Constant("2 k/s", "1 min") == Constant(2000, 60) == Constant("2000", "60")
    assert Constant(2000, timedelta(minutes=1)) == Constant(2000, 60.0)
    assert Constant(5, "500 ms").duration_s == 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(0, 60),
        lambda: Constant(-1, 60),
        lambda: Constant(float("nan"), 60),
        lambda: Constant("quick", 60),
        lambda: Constant(1, 0),
        lambda: Constant(1, "-1 s"),
        lambda: Constant(1, "soon"),
        lambda: Constant(1, float("inf")),
        lambda: Staircase(10, 10, 2, 60),
        lambda: Staircase(10, 20, 0, 60),
        lambda: Staircase(10, 20, True, 60),
        lambda: Sine(10, 10, 60, 60),
        lambda: Sine(10, 0, 60, 60),
        lambda: Sine(10, 5, 0, 60),
        lambda: Burst(1, 2, 50, 11, 60),
        lambda: Burst(1, 2, -1, 11, 60),
        lambda: Burst(1, 2, 1, 0, 60),
        lambda: RandomWalk(10, 1, 1, low=20, high=30, duration_s=9, seed=0),
        lambda: RandomWalk(10, 1, 1, low=10, high=10, duration_s=9, seed=0),
        lambda: RandomWalk(10, 0, 1, low=5, high=20, duration_s=9, seed=0),
        lambda: RandomWalk(10, 1, 1, low=5, high=20, duration_s=9, seed=-1),
    ],
)
def test_a_profile_that_makes_no_load_is_refused(make: Callable[[], RateProfile]) -> None:
    with pytest.raises(LoadError, match=r"^[^\n]+\.$"):
        make()
