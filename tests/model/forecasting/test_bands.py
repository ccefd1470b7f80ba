"""Bands: how often they hold, and how they grow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tailrace.model.forecasting.forecast import forecast
from tailrace.model.forecasting.smoothing import Method
from tests.model.forecasting.conftest import WAVE, backtest, bursty, series, steady, textbook

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def walk(rng: np.random.Generator, steps: int) -> Floats:
    return 20_000 + 50 * np.cumsum(rng.standard_normal(steps))


def climbing(rng: np.random.Generator, steps: int) -> Floats:
    return 1_000 + 5 * np.arange(steps) + 50 * rng.standard_normal(steps)


def daily(rng: np.random.Generator, steps: int) -> Floats:
    wave = np.sin(2 * np.pi * np.arange(steps) / 12)
    return (
        (1_000 + 3 * np.arange(steps)) * (1 + 0.4 * wave) * (1 + 0.05 * rng.standard_normal(steps))
    )


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
