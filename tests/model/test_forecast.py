"""Forecasts against closed forms, a plain recursion, and how often their bands were right."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.forecasting import forecast as forecasting
from tailrace.model.forecasting.backtests import try_methods
from tailrace.model.forecasting.forecast import (
    MOST_AHEAD,
    NEWEST,
    Forecast,
    Series,
    forecast,
)
from tailrace.model.forecasting.seasons import season_of
from tailrace.model.forecasting.smoothing import Method, Smoothed, smooth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from tailrace.model.forecasting.backtests import Backtest

    Floats = NDArray[np.float64]

HOUR_MS = 3_600_000.0
WAVE = (30.0, 80.0, 120.0, 60.0)
weights = st.floats(0, 1)


def series(rates: Iterable[float], step_ms: float = HOUR_MS, start_us: int = 0) -> Series:
    return Series(tuple(float(rate) for rate in rates), step_ms, start_us)


def mean(rates: Iterable[float], horizon: int, method: Method, season: int | None = None) -> Floats:
    return np.array(forecast(series(rates), horizon, method=method, season=season).mean_per_s)


def backtest(
    series: Series,
    horizon: int,
    *,
    methods: Sequence[Method] = tuple(Method),
    season: int | None = None,
) -> Backtest:
    """How a forecast picks its method, without the forecast."""
    return try_methods(forecasting._past(series, horizon, season), tuple(methods))[0]


def find_season(series: Series) -> int | None:
    """The season that a forecast goes by where none is given."""
    return season_of(forecasting._newest(series, NEWEST))


# --- closed forms -----------------------------------------------------------------------------


def test_a_straight_line_is_continued_exactly_by_holt() -> None:
    found = forecast(series(100 + 3 * t for t in range(40)), 10)
    assert found.method is Method.HOLT
    assert found.mean_per_s == pytest.approx([100 + 3 * t for t in range(40, 50)], rel=1e-9)
    assert found.band(0.95)[9] == pytest.approx((247, 247))


def test_a_pure_season_is_continued_exactly_by_every_method_that_knows_seasons() -> None:
    rates = [WAVE[t % 4] for t in range(43)]
    expected = [WAVE[t % 4] for t in range(43, 53)]
    for method in (Method.SEASONAL_NAIVE, Method.ADDITIVE, Method.MULTIPLICATIVE):
        assert mean(rates, 10, method, 4) == pytest.approx(expected, rel=1e-9)


def test_of_methods_that_are_equally_good_the_simplest_is_taken() -> None:
    found = backtest(series(WAVE * 10), 4)
    assert found.method is Method.SEASONAL_NAIVE
    assert [score.mae_per_s for score in found.scores[:3]] == [0, 0, 0]
    assert "is the simplest method with an error within" in found.reason
    assert backtest(series([7.0] * 30), 4).method is Method.NAIVE


def test_a_method_must_be_better_than_a_simpler_one_by_more_than_chance_may_make_it() -> None:
    order = list(Method)
    simpler = 0
    for seed in range(30):
        found = backtest(series(steady(np.random.default_rng(seed), 48)), 4)
        # 24 rates are forecast 4 at a time: 6 backtests that do not overlap, so 25 % / 6.
        best = found.scores[0].mae_per_s
        near = [s.method for s in found.scores if s.mae_per_s <= best * (1 + 0.25 / 6)]
        assert found.method is min(near, key=order.index)
        simpler += found.method is not found.scores[0].method
    assert simpler > 5


def test_a_season_on_a_rising_line_is_continued_exactly_by_holt_winters() -> None:
    def rate(t: int) -> float:
        return 500 + 2 * t + WAVE[t % 4]

    found = mean(map(rate, range(50)), 9, Method.ADDITIVE, 4)
    assert found == pytest.approx([rate(t) for t in range(50, 59)], rel=1e-9)


def test_a_season_that_grows_with_the_rate_is_continued_by_its_factors() -> None:
    def rate(t: int) -> float:
        return (500 + 5 * t) * WAVE[t % 4] / 72.5

    found = forecast(series(map(rate, range(60))), 8, season=4)
    assert found.method is Method.MULTIPLICATIVE
    assert found.mean_per_s == pytest.approx([rate(t) for t in range(60, 68)], rel=1e-3)


def test_naive_repeats_the_last_rate_and_seasonal_naive_the_last_season() -> None:
    rates = np.random.default_rng(1).uniform(10, 90, 30)
    assert mean(rates, 5, Method.NAIVE) == pytest.approx([rates[-1]] * 5)
    assert mean(rates, 9, Method.SEASONAL_NAIVE, 7) == pytest.approx([*rates[-7:], *rates[-7:-5]])


def test_a_falling_line_ends_at_zero_and_so_does_its_band() -> None:
    found = forecast(series(100 - 3 * t for t in range(30)), 10, method=Method.HOLT)
    assert found.mean_per_s[4:] == (0,) * 6
    noisy = forecast(series(np.random.default_rng(0).uniform(0, 9, 40)), 5)
    assert min(low for low, _ in noisy.band(0.999)) == 0


# --- the recursion ----------------------------------------------------------------------------


def textbook(
    rates: Sequence[float],
    parameters: tuple[float, float, float, float],
    start: tuple[float, float, list[float]],
    *,
    divide: bool,
) -> list[tuple[float, float, float, float]]:
    """Holt and Winters as they wrote it, one number after the other."""
    a, b, g, phi = parameters
    level, trend, season = start[0], start[1], list(start[2])
    states = []
    for t, y in enumerate(rates):
        s, before, slope = season[t % len(season)], level, phi * trend
        expected = (before + slope) * s if divide else before + slope + s
        if math.isnan(y):
            level, trend = before + slope, slope
        elif divide:
            level = a * (y / s) + (1 - a) * (before + slope)
            trend = b * (level - before) + (1 - b) * slope
            season[t % len(season)] = g * (y / level) + (1 - g) * s
        else:
            level = a * (y - s) + (1 - a) * (before + slope)
            trend = b * (level - before) + (1 - b) * slope
            season[t % len(season)] = g * (y - level) + (1 - g) * s
        states.append((expected, level, trend, season[t % len(season)]))
    return states


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.floats(50, 150), st.just(math.nan)), min_size=1, max_size=30),
    st.lists(st.tuples(weights, weights, weights, weights), min_size=1, max_size=4),
    st.lists(st.floats(0.5, 1.5), min_size=1, max_size=5),
    st.booleans(),
)
def test_the_recursion_is_that_of_the_textbook_for_every_candidate(
    rates: list[float],
    candidates: list[tuple[float, float, float, float]],
    season: list[float],
    divide: bool,
) -> None:
    count = len(candidates)
    start = Smoothed(
        np.full(count, 100.0), np.full(count, 0.5), np.tile(np.array(season)[:, None], count)
    )
    found = smooth(np.array(rates), np.array(candidates).T, start, divide=divide)
    steps = [tuple(part.copy() for part in state) for state in found]
    for n, candidate in enumerate(candidates):
        expected = textbook(rates, candidate, (100.0, 0.5, season), divide=divide)
        assert [[part[n] for part in step] for step in steps] == pytest.approx(
            np.array(expected), rel=1e-6, abs=1e-6
        )
    assert start.level.tolist() == [100.0] * count
    assert start.season[:, 0].tolist() == season


@pytest.mark.parametrize("method", [Method.SMOOTHING, Method.HOLT, Method.DAMPED_HOLT])
def test_the_weights_are_about_as_good_as_any_that_a_fine_search_finds(method: Method) -> None:
    rng = np.random.default_rng(3)
    level, rates = 1_000.0, []
    for _ in range(160):
        surprise = 20 * rng.standard_normal()
        rates.append(level + surprise)
        level += 0.3 * surprise + 2
    found = forecast(series(rates), 1, method=method).scores[0].weights
    # The scores are of weights fitted to the earlier half.
    half = rates[:80]
    slope, height = np.polyfit(range(10), half[:10], 1)
    start = (height - slope, slope, [0.0])
    if method is Method.SMOOTHING:
        start = (float(np.mean(half[:10])), 0.0, [0.0])

    def squares(a: float, b: float, phi: float) -> float:
        states = textbook(half, (a, b, 0.0, phi), start, divide=False)
        return sum((y - state[0]) ** 2 for y, state in zip(half, states, strict=True))

    trends = [0.0] if method is Method.SMOOTHING else [n / 20 for n in range(21)]
    best = min(squares(n / 20, b, found.damping) for n in range(21) for b in trends)
    assert squares(found.level, found.trend, found.damping) <= 1.02 * best


# --- what does not matter ---------------------------------------------------------------------


noisy_rates = st.lists(st.floats(1, 100), min_size=8, max_size=60)


@settings(max_examples=60, deadline=None)
@given(noisy_rates, st.sampled_from([0.001, 10.0, 1e6]), st.sampled_from(list(Method)))
def test_ten_times_the_rates_have_ten_times_the_forecast_and_the_band(
    rates: list[float], scale: float, method: Method
) -> None:
    season = 2 if method.seasonal else None
    rates = [rate + n % 2 for n, rate in enumerate(rates)]
    once = forecast(series(rates), 5, method=method, season=season)
    more = forecast(series(scale * rate for rate in rates), 5, method=method, season=season)
    high = max(rates)
    for a, b in ((once.mean_per_s, more.mean_per_s), (once.quantile(0.9), more.quantile(0.9))):
        assert np.array(b) / scale == pytest.approx(np.array(a), rel=1e-6, abs=1e-6 * high)
    assert once.reason == more.reason


@settings(max_examples=30, deadline=None)
@given(noisy_rates, st.integers(0, 2**51), st.integers(0, 5))
def test_a_series_that_is_moved_in_time_has_its_forecast_moved(
    rates: list[float], start_us: int, gaps: int
) -> None:
    here = forecast(series(rates), 4)
    there = forecast(series([math.nan] * gaps + rates, start_us=start_us), 4)
    assert there.mean_per_s == here.mean_per_s
    assert there.band(0.8) == here.band(0.8)
    moved = round(gaps * HOUR_MS * 1_000) + start_us
    assert [there.at_us(n) for n in range(4)] == [here.at_us(n) + moved for n in range(4)]
    assert here.start_us == round(len(rates) * HOUR_MS * 1_000)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.floats(0, 1e9), st.just(math.nan)), min_size=4, max_size=50),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(2, 12)),
)
def test_whatever_was_measured_the_forecast_is_finite_and_its_bands_are_nested(
    rates: list[float], horizon: int, season: int | None
) -> None:
    if sum(not math.isnan(rate) for rate in rates) < 4:
        return
    found = forecast(series(rates), horizon, season=season)
    assert len(found.mean_per_s) == len(found.deviation_per_s) == horizon
    assert all(0 <= rate < math.inf for rate in found.mean_per_s)
    for (low, high), (lower, higher) in zip(found.band(0.8), found.band(0.95), strict=True):
        assert 0 <= lower <= low <= high <= higher < math.inf
    assert found.reason.endswith(".")


# --- gaps and long pasts ----------------------------------------------------------------------


def test_gaps_bend_neither_a_line_nor_a_season() -> None:
    rng = np.random.default_rng(5)
    whole = np.array([500 + 2 * t + WAVE[t % 4] for t in range(64)])
    holed = np.where(rng.random(64) < 0.25, math.nan, whole)
    holed[0] = whole[0]
    found = mean(holed, 8, Method.ADDITIVE, 4)
    assert found == pytest.approx([500 + 2 * t + WAVE[t % 4] for t in range(64, 72)], rel=1e-6)


def test_a_gap_at_the_end_makes_the_forecast_that_much_longer() -> None:
    rates = np.random.default_rng(6).normal(1_000, 30, 80).cumsum() / 40
    longer = forecast(series(rates), 9, method=Method.HOLT)
    late = forecast(series([*rates, *[math.nan] * 4]), 5, method=Method.HOLT)
    assert late.mean_per_s == longer.mean_per_s[4:]
    assert late.band(0.8) == longer.band(0.8)[4:]
    assert late.at_us(0) == longer.at_us(4)


def test_only_the_newest_steps_of_a_long_past_are_looked_at() -> None:
    newest = np.random.default_rng(7).normal(1_000, 30, NEWEST)
    old = forecast(series([*[9e9] * 50, *newest]), 3, method=Method.HOLT)
    assert old.mean_per_s == forecast(series(newest), 3, method=Method.HOLT).mean_per_s


# --- seasons ----------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 40), st.floats(0, 0.2), st.floats(-2, 2), st.integers(0, 2**31))
def test_a_season_is_found_under_noise_trend_and_gaps(
    season: int, noise: float, slope: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    t = np.arange(8 * season)
    shape = np.sin(2 * np.pi * np.arange(season) / season) + 0.5 * (np.arange(season) == 1)
    rates = 1_000 + 300 * np.tile(shape, 8) + slope * t + 300 * noise * rng.standard_normal(len(t))
    rates[rng.random(len(t)) < 0.05] = math.nan
    found = find_season(series(rates))
    assert found is not None
    assert abs(found - season) <= (0 if season <= 20 else 1)


def test_a_series_without_a_season_shows_none() -> None:
    assert find_season(series([5.0] * 30)) is None
    assert find_season(series(range(40))) is None
    found = [
        find_season(series(np.random.default_rng(seed).normal(100, 5, 120))) for seed in range(50)
    ]
    assert found.count(None) >= 45


# --- backtests --------------------------------------------------------------------------------


def test_the_errors_are_those_of_forecasting_from_every_origin_of_the_later_half() -> None:
    rates = np.random.default_rng(8).uniform(50, 150, 30)
    found = backtest(series(rates), 3, methods=[Method.NAIVE])
    errors = [
        abs(rates[origin + ahead] - rates[origin])
        for origin in range(14, 29)
        for ahead in (1, 2, 3)
        if origin + ahead < 30
    ]
    (score,) = found.scores
    assert found.origins == 15
    assert score.mae_per_s == pytest.approx(np.mean(errors))
    assert score.mase == pytest.approx(np.mean(errors) / np.abs(np.diff(rates[:15])).mean())


def test_the_later_half_is_not_looked_at_when_weights_and_starts_are_chosen() -> None:
    rng = np.random.default_rng(9)
    wave = 200 + 80 * np.sin(2 * np.pi * np.arange(60) / 12)
    rates = wave + rng.normal(0, 10, 60)
    other = np.concatenate((rates[:30], rng.uniform(200, 300, 30)))
    for method in Method:
        here, there = (
            backtest(series(seen), 2, methods=[method], season=12).scores[0]
            for seen in (rates, other)
        )
        assert here.weights == there.weights
    # By hand: two seasons in the earlier half say where to start.
    score = backtest(series(rates), 2, methods=[Method.ADDITIVE], season=12).scores[0]
    first, second = rates[:12], rates[12:24]
    trend = (second - first).mean() / 12
    slots = (first + second - trend * (2 * np.arange(12) + 12)) / 2
    start = (slots.mean() - trend, trend, list(slots - slots.mean()))
    states = textbook(rates.tolist(), score.weights, start, divide=False)
    errors = []
    for origin in range(29, 59):
        _, level, slope, _ = states[origin]
        for ahead in range(1, min(3, 60 - origin)):
            drift = slope * sum(score.weights.damping**n for n in range(1, ahead + 1))
            expected = level + drift + states[origin + ahead - 12][3]
            errors.append(abs(rates[origin + ahead] - expected))
    assert score.mae_per_s == pytest.approx(np.mean(errors))


def test_the_reason_names_the_method_its_season_its_error_and_the_next_best() -> None:
    rng = np.random.default_rng(10)
    day = 1_000 + 400 * np.sin(2 * np.pi * np.arange(24) / 24)
    rates = np.tile(day, 12) + 25 * rng.standard_normal(288)
    found = backtest(series(rates), 12)
    assert found.season == 24
    assert found.reason == (
        f"Additive Holt-Winters with a season of 24 h had the smallest error in 144 backtests: "
        f"{found.scores[0].error_share:.1%} against {found.scores[1].error_share:.1%} of "
        f"{found.scores[1].method}."
    )
    assert found.scores[0].mase < 0.6


def test_what_a_series_does_not_allow_is_left_out_and_said() -> None:
    found = backtest(series([0.0, *np.random.default_rng(0).uniform(1, 2, 29)]), 2)
    assert set(found.left_out) == {Method.SEASONAL_NAIVE, Method.ADDITIVE, Method.MULTIPLICATIVE}
    assert "it needs a season, and 30 steps show none" in found.left_out[Method.ADDITIVE]
    zero = backtest(series([0.0, 9.0] * 15), 2, season=2)
    assert "rates that fall to zero" in zero.left_out[Method.MULTIPLICATIVE]
    few = backtest(series([1.0, 2.0, 4.0, 3.0]), 2)
    assert few.method is Method.NAIVE
    assert "which has 2 rates where 4 are needed" in few.left_out[Method.HOLT]


# --- bands ------------------------------------------------------------------------------------


def walk(rng: np.random.Generator, steps: int) -> Floats:
    return 20_000 + 50 * np.cumsum(rng.standard_normal(steps))


def steady(rng: np.random.Generator, steps: int) -> Floats:
    return 1_000 + 50 * rng.standard_normal(steps)


def climbing(rng: np.random.Generator, steps: int) -> Floats:
    return 1_000 + 5 * np.arange(steps) + 50 * rng.standard_normal(steps)


def daily(rng: np.random.Generator, steps: int) -> Floats:
    wave = np.sin(2 * np.pi * np.arange(steps) / 12)
    return (
        (1_000 + 3 * np.arange(steps)) * (1 + 0.4 * wave) * (1 + 0.05 * rng.standard_normal(steps))
    )


def bursty(rng: np.random.Generator, steps: int) -> Floats:
    return 5_000 + 50 * np.cumsum(rng.standard_t(3, steps))


@pytest.mark.parametrize("kind", [walk, climbing, daily, bursty])
def test_bands_hold_as_often_as_they_say(
    kind: Callable[[np.random.Generator, int], Floats],
) -> None:
    """200 series of 96 steps each, the method chosen anew for each, 12 steps ahead.

    The errors of one walk go together, so that the standard error of the shares is about 0.02.
    """
    within_80: list[NDArray[np.bool_]] = []
    within_95: list[NDArray[np.bool_]] = []
    for seed in range(200):
        rates = kind(np.random.default_rng(seed), 108)
        found = forecast(series(rates[:96]), 12)
        for within, level in ((within_80, 0.8), (within_95, 0.95)):
            low, high = np.array(found.band(level)).T
            within.append((low <= rates[96:]) & (rates[96:] <= high))
    assert np.mean(within_80) == pytest.approx(0.8, abs=0.06)
    assert np.mean(within_95) == pytest.approx(0.95, abs=0.05)


def test_the_coverage_of_a_backtest_is_near_the_level_of_the_band() -> None:
    (score,) = backtest(
        series(steady(np.random.default_rng(1), 800)), 3, methods=[Method.SMOOTHING]
    ).scores
    assert score.coverage_80 == pytest.approx(0.8, abs=0.05)
    assert score.coverage_95 == pytest.approx(0.95, abs=0.03)
    (few,) = backtest(series([1.0, 2.0, 4.0, 3.0]), 2, methods=[Method.NAIVE]).scores
    assert few.coverage_80 is None


def test_the_band_of_a_random_walk_grows_with_the_root_of_the_horizon() -> None:
    found = forecast(series(walk(np.random.default_rng(2), 2_000)), 16, method=Method.NAIVE)
    assert found.deviation_per_s[15] / found.deviation_per_s[0] == pytest.approx(4, rel=0.25)


@pytest.mark.parametrize("method", [m for m in Method if m is not Method.MULTIPLICATIVE])
def test_beyond_the_backtest_the_band_grows_by_the_echoes_of_all_surprises_before(
    method: Method,
) -> None:
    rng = np.random.default_rng(12)
    rates = climbing(rng, 60) + walk(rng, 60) + np.tile(WAVE, 15)
    found = forecast(series(rates), 90, method=method, season=4)
    # What is left of a surprise of 1, when nothing is learnt after it.
    surprise = [1.0] + [math.nan] * 89
    states = textbook(surprise, found.scores[0].weights, (0.0, 0.0, [0.0] * 4), divide=False)
    variances = np.cumsum([1.0, *(expected**2 for expected, *_ in states[1:])])
    grown = np.array(found.deviation_per_s[40:]) / found.deviation_per_s[40]
    assert grown == pytest.approx(np.sqrt(variances[40:] / variances[40]))


def test_further_ahead_is_never_surer() -> None:
    for kind in (walk, steady, climbing, bursty):
        found = forecast(series(kind(np.random.default_rng(4), 100)), 20)
        assert list(found.deviation_per_s) == sorted(found.deviation_per_s)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.001, 0.999), st.integers(0, 100))
def test_the_chance_of_exceeding_a_quantile_is_what_is_left_of_it(chance: float, seed: int) -> None:
    found = forecast(series(bursty(np.random.default_rng(seed), 40)), 3, method=Method.NAIVE)
    for step, rate in enumerate(found.quantile(chance)):
        assert found.chance_above(rate)[step] == pytest.approx(1 - chance, abs=1e-6)


def test_a_normal_forecast_has_the_quantiles_of_the_normal_distribution() -> None:
    found = Forecast(0, 1_000.0, (100.0, 200.0), (10.0, 20.0))
    assert found.band(0.95)[0] == pytest.approx((80.4, 119.6), abs=0.02)
    assert found.quantile(0.99999)[1] == pytest.approx(200 + 20 * 4.2649, abs=0.01)
    assert found.chance_above(110) == pytest.approx((0.1587, 1 - 3.4e-6), abs=1e-4)
    sure = Forecast(0, 1_000.0, (100.0, 200.0), (0.0, 0.0))
    assert sure.chance_above(100) == (0.0, 1.0)


def test_the_chance_by_a_step_grows_and_counts_futures_that_exceed_at_different_steps() -> None:
    paths = np.array([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    found = Forecast(0, 1_000.0, (100.0, 100.0), (10.0, 10.0), paths=paths)
    alone = found.chance_above(115)[0]
    assert alone == pytest.approx(0.0668, abs=1e-3)
    assert found.chance_by(115) == (0.25, 0.5)
    assert found.chance_by(115, since=1) == (0.25,)
    assert found.chance_by(135)[1] == found.chance_above(135)[1] > 0


# --- what cannot be ---------------------------------------------------------------------------


def test_what_is_no_series_is_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"Rate 2 of the series is -1.0: give finite rates"):
        series([1, 2, -1, 4])
    with pytest.raises(InputError, match=r"Rate 0 of the series is inf"):
        series([math.inf, 2, 3, 4])
    with pytest.raises(InputError, match=r"Rate 3 of the series is 1e\+300"):
        series([1, 2, 3, 1e300])
    with pytest.raises(InputError, match="3 measured rates cannot be forecast: wait for 4"):
        series([1, 2, 3, math.nan])
    with pytest.raises(InputError, match=r"A step of 0.0 ms is impossible"):
        series([1, 2, 3, 4], 0.0)


def test_what_cannot_be_forecast_is_refused_with_a_sentence() -> None:
    short = series(range(10))
    with pytest.raises(InputError, match="A horizon of 0 steps is empty"):
        forecast(short, 0)
    for horizon in (MOST_AHEAD + 1, 3_600_000, 10**18):
        with pytest.raises(InputError, match=r"steps of 1 h is too long, as 5,000 are the most"):
            forecast(short, horizon)
    with pytest.raises(InputError, match=r"A forecast from 5000 h before the end of the series"):
        forecast(series([*range(10), *[math.nan] * 4_998]), 3)
    with pytest.raises(InputError, match="A season of 1 steps is impossible"):
        forecast(short, 3, season=1)
    with pytest.raises(
        InputError,
        match=r"cannot be forecast: as for additive Holt-Winters, it needs three seasons of 4 "
        r"steps, two to fit and one to try it on, and there are 10 steps\.",
    ):
        forecast(short, 3, method=Method.ADDITIVE, season=4)
    with pytest.raises(InputError, match="cannot be forecast: no method was named"):
        backtest(short, 3, methods=[])
    with pytest.raises(InputError, match=r"A band of level 1 cannot be drawn"):
        forecast(short, 3).band(1)
    with pytest.raises(InputError, match=r"A chance of 0 has no quantile"):
        forecast(short, 3).quantile(0)
    with pytest.raises(InputError, match="2 means and 1 deviations"):
        Forecast(0, 1.0, (1.0, 2.0), (1.0,))


def test_the_longest_forecast_is_finite() -> None:
    found = forecast(series(500 + 100 * np.sin(np.arange(60)), 1.0), MOST_AHEAD)
    assert len(found.mean_per_s) == MOST_AHEAD
    assert np.isfinite(found.mean_per_s).all()
    assert np.isfinite(found.band(0.8)).all()
