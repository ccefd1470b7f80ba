"""Series of rates, and the textbook recursion, for tests of forecasts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tailrace.model.forecasting import forecast as forecasting
from tailrace.model.forecasting.backtests import try_methods
from tailrace.model.forecasting.forecast import (
    NEWEST,
    Series,
)
from tailrace.model.forecasting.seasons import season_of
from tailrace.model.forecasting.smoothing import Method

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tailrace.model.forecasting.backtests import Backtest

    Floats = NDArray[np.float64]

HOUR_MS = 3_600_000.0


WAVE = (30.0, 80.0, 120.0, 60.0)


def series(rates: Iterable[float], step_ms: float = HOUR_MS, start_us: int = 0) -> Series:
    return Series(tuple(float(rate) for rate in rates), step_ms, start_us)


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


def steady(rng: np.random.Generator, steps: int) -> Floats:
    return 1_000 + 50 * rng.standard_normal(steps)


def bursty(rng: np.random.Generator, steps: int) -> Floats:
    return 5_000 + 50 * np.cumsum(rng.standard_t(3, steps))
