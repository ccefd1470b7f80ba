from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import LoadError
from tailrace.load import (
    Burst,
    Constant,
    Faster,
    First,
    RandomWalk,
    RateProfile,
    Sine,
    Staircase,
    Together,
    generate,
)

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
    Together(
        Sine(1000, 990, period_s=7.0, duration_s=31.0),
        Burst(1, 6734, at_s=24, length_s=3.5, duration_s=60),
    ),
    Together(RandomWalk(1000, 300, 5, low=5, high=1200, duration_s=93, seed=4), Constant(9, 7)),
    First(Sine(1000, 400, period_s=86_400, duration_s=86_400), 100.0),
    First(Together(Constant(30, 31), Burst(1, 90, at_s=2, length_s=9, duration_s=19)), "10 s"),
    Faster(Sine(1000, 400, period_s=86_400, duration_s=86_400), 200.0),
    Faster(Together(Constant(30, 31), Burst(1, 90, at_s=2, length_s=9, duration_s=19)), 0.3),
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


def test_the_beginning_of_a_load_is_all_of_it_where_it_is_shorter() -> None:
    stairs = Staircase("1 k/s", "4 k/s", steps=3, step_s=10)
    assert First(stairs, "1 h").duration_s == stairs.duration_s
    assert First(stairs, "25 s").duration_s == 25
    whole, part = generate(stairs, seed=3), generate(First(stairs, 25), seed=3)
    np.testing.assert_array_equal(part.due_us, whole.due_us[whole.due_us < 25_000_000])


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


rates_per_s = st.floats(1, 1e5)
shares = st.floats(0.01, 0.99)


@st.composite
def sines(draw: st.DrawFn) -> RateProfile:
    mean, duration_s = draw(rates_per_s), draw(st.floats(1, 1e6))
    return Sine(mean, mean * draw(shares), duration_s * draw(st.floats(0.01, 5)), duration_s)


@st.composite
def bursts(draw: st.DrawFn) -> RateProfile:
    duration_s = draw(st.floats(1, 1e6))
    at_s = duration_s * draw(shares)
    length_s = (duration_s - at_s) * draw(shares)
    return Burst(draw(rates_per_s), draw(rates_per_s), at_s, length_s, duration_s)


@st.composite
def walks(draw: st.DrawFn) -> RateProfile:
    """A walk of up to three moves in each cell of the grid by which it is inverted."""
    low, every_s = draw(rates_per_s), draw(st.floats(0.001, 20))
    high = low * draw(st.floats(1.1, 1e3))
    duration_s = every_s * draw(st.integers(1, 3 * 2**14))
    step, seed = draw(rates_per_s), draw(st.integers(0, 99))
    return RandomWalk(low, step, every_s, low=low, high=high, duration_s=duration_s, seed=seed)


@settings(max_examples=100)
@given(st.lists(st.one_of(sines(), bursts(), walks()), min_size=1, max_size=4), st.floats(0.1, 1e4))
def test_profiles_together_and_faster_are_undone_to_a_microsecond(
    parts: list[RateProfile], times: float
) -> None:
    profile = Faster(Together(*parts), times)
    t_s = np.linspace(0, profile.duration_s, 1_001)
    back_s = profile.time_of(profile.expected(t_s))
    slower = np.minimum(profile.rate_at(t_s), profile.rate_at(back_s))  # on both sides of a jump
    rounding_s = 1e-15 * profile.expected(t_s) / slower
    assert np.all(np.abs(back_s - t_s) <= 1e-6 + rounding_s)


def test_an_inverse_that_newton_alone_would_look_for_in_a_circle_is_found() -> None:
    walk = RandomWalk(1, 21, 1 / 40_240, low=1, high=7, duration_s=1, seed=0)
    t_s = np.linspace(0, 1, 1_001)
    back_s = Together(walk).time_of(walk.expected(t_s))
    np.testing.assert_allclose(back_s, t_s, atol=1e-11)


def test_the_rates_of_profiles_together_add_up_each_until_its_end() -> None:
    both = Together(Constant(10, 60), Burst(base=1, peak=100, at_s=20, length_s=5, duration_s=40))
    assert both.duration_s == 60
    rates = both.rate_at(np.array([0, 19.9, 20, 24.9, 25, 39.9, 40.1, 60.0]))
    np.testing.assert_array_equal(rates, [11, 11, 110, 110, 11, 11, 10, 10])
    np.testing.assert_array_equal(both.expected(np.array([20.0, 25.0, 60.0])), [220, 770, 1135])
    np.testing.assert_allclose(both.time_of(np.array([220.0, 495.0, 770.0])), [20, 22.5, 25])


def test_a_profile_alone_together_with_nothing_is_itself() -> None:
    stairs = Staircase("10 k/s", "80 k/s", steps=7, step_s=60)
    t_s = np.linspace(-10, stairs.duration_s + 10, 5_001)
    np.testing.assert_array_equal(Together(stairs).rate_at(t_s), stairs.rate_at(t_s))
    np.testing.assert_array_equal(Together(stairs).expected(t_s), stairs.expected(t_s))


def test_the_order_of_profiles_together_makes_no_difference() -> None:
    sine, burst = Sine(500, 200, 20, 60), Burst(10, 900, 30, 4, 60)
    records = np.linspace(0, 30_000, 1_001)
    np.testing.assert_allclose(
        Together(sine, burst).time_of(records), Together(burst, sine).time_of(records), atol=1e-9
    )


def test_a_faster_profile_has_the_same_records_in_less_time() -> None:
    week = Sine(10, 6, period_s="24 h", duration_s="168 h")
    replayed = Faster(week, 200)
    assert replayed.duration_s == 168 * 3600 / 200
    ends = np.array([week.duration_s]), np.array([replayed.duration_s])
    assert replayed.expected(ends[1]) == week.expected(ends[0])
    assert replayed.rate_at(np.array([108.0]))[0] == pytest.approx(200 * 16)


def test_a_load_of_a_faster_profile_is_the_load_at_that_speed() -> None:
    profile = Burst(50, 500, at_s=7, length_s=3, duration_s=40)
    replayed, sped_up = generate(Faster(profile, 8), seed=3), generate(profile, seed=3).speed(8)
    assert len(replayed) == len(sped_up)
    assert np.max(np.abs(replayed.due_us - sped_up.due_us)) <= 1


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
        lambda: Staircase(10, 20, 10**30, 60),
        lambda: RandomWalk(10, 1, 1e-9, low=5, high=20, duration_s=1e9, seed=0),
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
        Together,
        lambda: Faster(Constant(1, 60), 0),
        lambda: Faster(Constant(1, 60), -2),
        lambda: Faster(Constant(1, 60), float("inf")),
        lambda: Faster(Constant(1, 60), float("nan")),
    ],
)
def test_a_profile_that_makes_no_load_is_refused(make: Callable[[], RateProfile]) -> None:
    with pytest.raises(LoadError, match=r"^[^\n]+\.$"):
        make()
