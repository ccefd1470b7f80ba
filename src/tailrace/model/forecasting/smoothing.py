"""Exponential smoothing: the recursion behind all forecasting methods, and how it is fitted.

Every method here is one recursion with some of its parts switched off (Holt 1957, Winters 1960, in
the form of De Matteis 2016, section 6.3, with damping by Gardner 1985). With the season removed
from a rate, ``d = y - s`` or ``d = y / s``, and ``*`` the new values::

    level*  = level + phi trend + alpha (d - level - phi trend)
    trend*  = phi trend + beta (level* - level - phi trend)
    season* = season + gamma (y - level* - season)          or   y / level* - season

and ``h`` steps ahead it predicts ``level + (phi + ... + phi**h) trend``, plus or times the season.

Nothing is learnt at a gap: the state moves on as expected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.model.forecasting.seasons import straight_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Steps = NDArray[np.int64]

_ROUNDING: Final = 1e-9
_LEVELS: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
_TRENDS: Final = (0.0, 0.02, 0.1, 0.4)
_SEASONS: Final = (0.0, 0.05, 0.15, 0.4, 0.8)
_DAMPINGS: Final = (0.98, 0.95, 0.9, 0.8)


class Method(StrEnum):
    """The methods, simplest first: of two equally good ones the first is taken."""

    NAIVE = "naive"
    SEASONAL_NAIVE = "seasonal-naive"
    SMOOTHING = "exponential smoothing"
    HOLT = "Holt"
    DAMPED_HOLT = "damped Holt"
    ADDITIVE = "additive Holt-Winters"
    MULTIPLICATIVE = "multiplicative Holt-Winters"

    @property
    def seasonal(self) -> bool:
        """Whether it needs the length of a season."""
        return self in {Method.SEASONAL_NAIVE, Method.ADDITIVE, Method.MULTIPLICATIVE}


class Weights(NamedTuple):
    """How strongly each part follows a new rate, from 0 (never) to 1 (at once), and the damping."""

    level: float
    trend: float
    season: float
    damping: float


_FIXED: Final = {
    Method.NAIVE: Weights(1.0, 0.0, 0.0, 0.0),
    Method.SEASONAL_NAIVE: Weights(0.0, 0.0, 1.0, 0.0),
}


# --- the recursion ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Smoothed:
    """Where the recursion starts, a column for each of several candidates.

    ``season`` has a row for each step of a season.
    """

    level: Floats
    trend: Floats
    season: Floats


def smooth(
    rates: Floats, weights: Floats, start: Smoothed, *, divide: bool = False
) -> Iterator[tuple[Floats, Floats, Floats, Floats]]:
    """Run the recursion of this module for many candidates at once, step by step.

    Args:
        rates: The measured rates; NaN is a gap.
        weights: The rows alpha, beta, gamma and phi, with a column for each candidate.
        start: The state before the first rate.
        divide: Whether the season is a factor rather than a summand.

    Yields:
        The rate expected at the step, then level, trend and season after it; the season is
        valid only until the next item.
    """
    alpha, beta, gamma, phi = weights
    level, trend, season = start.level, start.trend, start.season.copy()
    for step, rate in enumerate(rates.tolist()):
        slot = season[step % len(season)]
        drift = phi * trend
        base = level + drift
        expected = base * slot if divide else base + slot
        if math.isnan(rate):
            level, trend = base, drift
        else:
            gain = alpha * ((rate / slot if divide else rate - slot) - base)
            level = base + gain
            trend = drift + beta * gain
            slot += gamma * ((rate / level if divide else rate - level) - slot)
        yield expected, level, trend, slot


@dataclass(frozen=True, slots=True)
class SmoothedRun:
    """The states after every step, a column for each method; the season also before the first."""

    weights: Floats
    level: Floats
    trend: Floats
    season: Floats
    period: int
    divide: bool


def run_methods(
    rates: Floats, training: int, fitted: Mapping[Method, Weights], period: int
) -> SmoothedRun:
    """Run methods over all rates, starting from states estimated on the training part."""
    methods = list(fitted)
    table = np.array(list(fitted.values())).T
    starts = [_start(rates[:training], method, period) for method in methods]
    start = _together(starts, [1] * len(methods))
    divide = methods[0] is Method.MULTIPLICATIVE
    levels, trends = np.empty((2, len(rates), len(methods)))
    seasons = np.empty((period + len(rates), len(methods)))
    seasons[:period] = start.season
    with np.errstate(all="ignore"):
        states = smooth(rates, table, start, divide=divide)
        for step, (_, level, trend, slot) in enumerate(states):
            levels[step], trends[step], seasons[period + step] = level, trend, slot
    return SmoothedRun(table, levels, trends, seasons, period, divide)


def look_ahead(run: SmoothedRun, column: int, origins: Steps, horizon: int) -> Floats:
    """Forecasts from each origin (rows) for each horizon (columns), never below zero."""
    damped = np.cumsum(run.weights[3, column] ** np.arange(1, horizon + 1))
    ahead = np.arange(1, horizon + 1)
    slots = origins[:, None] + (ahead - run.period * -(-ahead // run.period)) + run.period
    base = run.level[origins, column, None] + run.trend[origins, column, None] * damped
    season = run.season[slots, column]
    rates: Floats = np.maximum(base * season if run.divide else base + season, 0.0)
    return rates


def echo_of(weights: Weights, period: int, horizon: int) -> Floats:
    """The remaining effect of a surprise, 0, 1, ... steps later.

    It is ``c_0 = 1`` and then ``c_j = alpha (1 + beta (phi + ... + phi**j))``, and ``gamma (1 -
    alpha)`` more after whole seasons. An error ``h`` steps ahead is the sum of the echoes of ``h``
    surprises, so its variance grows as ``c_0**2 + ... + c_(h-1)**2`` (Hyndman et al. 2008, table
    6.1). For factors the same holds for relative errors, to first order.
    """
    later = np.arange(1, horizon)
    echo = weights.level * (1 + weights.trend * np.cumsum(weights.damping**later))
    echo = echo + weights.season * (1 - weights.level) * (later % period == 0)
    return np.concatenate(([1.0], echo))


# --- fitting ----------------------------------------------------------------------------------


def fit_weights(rates: Floats, methods: Sequence[Method], period: int) -> dict[Method, Weights]:
    """The weights of each method with the least squared error one step ahead.

    A coarse grid, then twice a finer one around the best, for all methods at once: the time depends
    on the steps of the series, not on the number of candidates. Deterministic and independent of
    scale.
    """
    free = [method for method in methods if method not in _FIXED]
    if not free:
        return {method: _FIXED[method] for method in methods}
    starts = [_start(rates, method, period) for method in free]
    divide = free[0] is Method.MULTIPLICATIVE
    slack = 1e-18 * float(np.nansum(rates**2))
    best = [Weights(0, 0, 0, 0)] * len(free)
    for finer in (0.0, 1.4, 1.18):
        pairs = zip(free, best, strict=True)
        grids = [_around(weights, finer) if finer else _grid(method) for method, weights in pairs]
        counts = [grid.shape[1] for grid in grids]
        errors = _squares(rates, np.hstack(grids), _together(starts, counts), divide=divide)
        parts = np.split(errors, np.cumsum(counts)[:-1])
        picks = [int(np.argmax(part <= part.min() * (1 + _ROUNDING) + slack)) for part in parts]
        best = [Weights(*g[:, pick].tolist()) for g, pick in zip(grids, picks, strict=True)]
    fitted = _FIXED | dict(zip(free, best, strict=True))
    return {method: fitted[method] for method in methods}


def _squares(rates: Floats, weights: Floats, start: Smoothed, *, divide: bool) -> Floats:
    total = np.zeros(weights.shape[1])
    with np.errstate(all="ignore"):
        states = smooth(rates, weights, start, divide=divide)
        for rate, (expected, *_) in zip(rates.tolist(), states, strict=True):
            if not math.isnan(rate):
                error = expected - rate
                total += error * error
    return np.nan_to_num(total, nan=np.inf, posinf=np.inf)


def _grid(method: Method) -> Floats:
    """Candidates for the weights of a method, as columns."""
    dampings = {Method.SMOOTHING: (), Method.HOLT: (1.0,), Method.DAMPED_HOLT: _DAMPINGS}
    trends = [(trend, phi) for trend in _TRENDS for phi in dampings.get(method, (0.98, 1.0))]
    if method not in {Method.HOLT, Method.DAMPED_HOLT}:
        trends.insert(0, (0.0, 0.0))
    seasons = _SEASONS if method.seasonal else (0.0,)
    return np.array([(a, b, g, phi) for b, phi in trends for a in _LEVELS for g in seasons]).T


def _around(weights: Weights, finer: float) -> Floats:
    """The weights and their neighbours, larger and smaller by a factor; zeros stay zero."""
    factors = (1.0, 1 / finer, finer)
    levels, trends, seasons = (
        sorted({min(weight * factor, 1.0) for factor in factors}) for weight in weights[:3]
    )
    table = [(a, b, g, weights.damping) for a in levels for b in trends for g in seasons]
    return np.array(table).T


def _together(starts: Sequence[Smoothed], counts: Sequence[int]) -> Smoothed:
    """The columns of several states in one, each repeated for its number of candidates."""
    return Smoothed(
        np.concatenate([np.repeat(s.level, n) for s, n in zip(starts, counts, strict=True)]),
        np.concatenate([np.repeat(s.trend, n) for s, n in zip(starts, counts, strict=True)]),
        np.hstack([np.repeat(s.season, n, axis=1) for s, n in zip(starts, counts, strict=True)]),
    )


# --- where it starts --------------------------------------------------------------------------


def _start(rates: Floats, method: Method, period: int) -> Smoothed:
    """The state before the first rate, from the first ten rates or up to four seasons."""
    if method.seasonal:
        level, trend, season = _first_seasons(rates, method, period)
    else:
        steps = np.flatnonzero(~np.isnan(rates))[:10].astype(np.float64)
        first = rates[steps.astype(np.int64)]
        level, trend = (first[0], 0.0) if method is Method.NAIVE else (first.mean(), 0.0)
        if method in {Method.HOLT, Method.DAMPED_HOLT}:
            level, trend = straight_line(steps, first)
        season = np.zeros(period)
    return Smoothed(np.array([level - trend]), np.array([trend]), season[:, None])


def _first_seasons(rates: Floats, method: Method, period: int) -> tuple[float, float, Floats]:
    """Level at the first step, trend and season; exact if the rates are a line plus a season.

    The trend comes from rates that are one season apart, so that neither the season nor a gap
    distorts it. With factors, the line and the season are estimated in turns, each given the other.
    """
    seasons = min(len(rates) // period, 4)
    table = rates[: seasons * period].reshape(seasons, period)
    steps = np.arange(seasons * period, dtype=np.float64).reshape(seasons, period)
    if method is Method.SEASONAL_NAIVE:
        return 0.0, 0.0, _slots(table)
    rises = table[1:] - table[:-1]
    known = ~np.isnan(rises)
    trend = float(rises[known].mean()) / period if known.any() else 0.0
    slots = _slots(table - trend * steps)
    level = float(slots.mean())
    if method is Method.ADDITIVE:
        return level, trend, slots - level
    measured = ~np.isnan(table)
    season = np.ones(period)
    for _ in range(20):
        line = np.maximum(level + trend * steps, 1e-6 * abs(level))
        season = np.maximum(_slots(table / line), 1e-6)
        season /= season.mean()
        level, trend = straight_line(steps[measured], (table / season)[measured])
    return level, trend, season


def _slots(table: Floats) -> Floats:
    """The mean of every column; a column without values is interpolated from its neighbours."""
    known = ~np.isnan(table)
    counts = known.sum(axis=0)
    means = np.where(known, table, 0.0).sum(axis=0) / np.maximum(counts, 1)
    there = np.flatnonzero(counts)
    filled: Floats = np.interp(np.arange(len(means)), there, means[there], period=len(means))
    return filled
