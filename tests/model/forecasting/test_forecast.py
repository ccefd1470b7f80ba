"""Forecasts against closed forms, a plain recursion, and how often their bands were right."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.forecasting.forecast import MOST_AHEAD, NEWEST, Forecast, forecast
from tailrace.model.forecasting.smoothing import Method
from tests.model.forecasting.conftest import HOUR_MS, WAVE, backtest, bursty, series

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def mean(rates: Iterable[float], horizon: int, method: Method, season: int | None = None) -> Floats:
    return np.array(forecast(series(rates), horizon, method=method, season=season).mean_per_s)


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


# --- bands ------------------------------------------------------------------------------------


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
