"""Backtests: which method is chosen, and why."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.model.forecasting.smoothing import Method
from tests.model.forecasting.conftest import WAVE, backtest, series, steady, textbook

# --- closed forms -----------------------------------------------------------------------------


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
