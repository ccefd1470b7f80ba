"""What rate is to come: forecasts with bands, by the method that was right most often so far.

Every method here is one recursion with some of its parts switched off (Holt 1957, Winters 1960,
in the form of De Matteis 2016, section 6.3, with damping by Gardner 1985). With the season taken
out of a rate, ``d = y - s`` or ``d = y / s``, and ``*`` the new values::

    level*  = level + phi trend + alpha (d - level - phi trend)
    trend*  = phi trend + beta (level* - level - phi trend)
    season* = season + gamma (y - level* - season)          or   y / level* - season

and ``h`` steps ahead it says ``level + (phi + ... + phi**h) trend``, plus or times the season.

At a gap nothing is learnt: the state moves on as it was expected to, and the gap counts in no
error. Gaps at the start are let go; gaps at the end make every forecast that much longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace import units
from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

NEWEST: Final = 5_000
"""As many steps are looked at, or four seasons if that is more; older ones say little."""

_MOST_BACKTESTS: Final = 400
_PATHS: Final = 200
_TIE: Final = 0.01
_TIE_ALONE: Final = 0.25
_ROUNDING: Final = 1e-9
_LEVELS: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
_TRENDS: Final = (0.0, 0.02, 0.1, 0.4)
_SEASONS: Final = (0.0, 0.05, 0.15, 0.4, 0.8)
_DAMPINGS: Final = (0.98, 0.95, 0.9, 0.8)
_CLOSED_FORM_WORTH: Final = 10.0
_NORMAL_WORTH: Final = 20.0
_STANDARD: Final = NormalDist()
_CHANCES: Final = (np.arange(200) + 0.5) / 200
_SCORES: Final = np.array([_STANDARD.inv_cdf(float(chance)) for chance in _CHANCES])


class Method(StrEnum):
    """The methods, simplest first: of two that are equally good the earlier is taken."""

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
    """How far each part follows a new rate, from 0 (never) to 1 (at once), and the damping."""

    level: float
    trend: float
    season: float
    damping: float


_FIXED: Final = {
    Method.NAIVE: Weights(1.0, 0.0, 0.0, 0.0),
    Method.SEASONAL_NAIVE: Weights(0.0, 0.0, 1.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class Series:
    """Rates at equal steps, the first from ``start_us`` on; NaN where none was measured."""

    rates_per_s: tuple[float, ...]
    step_ms: float
    start_us: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no series of rates."""
        if not 0 < self.step_ms < math.inf:
            raise InputError(f"A step of {self.step_ms} ms cannot be: give a time above zero.")
        for position, rate in enumerate(self.rates_per_s):
            if rate < 0 or math.isinf(rate):
                raise InputError(
                    f"Rate {position} of the series is {rate}: give finite rates from 0 up, and "
                    "NaN where none was measured."
                )
        measured = sum(not math.isnan(rate) for rate in self.rates_per_s)
        if measured < 4:
            raise InputError(
                f"A series with {measured} measured rates cannot be forecast: wait for 4."
            )


@dataclass(frozen=True, slots=True)
class Score:
    """How a method did from every origin of the backtest, at all horizons together.

    ``mase`` is its mean absolute error over that of the naive method, one step ahead, in the part
    that the parameters were fitted to (Hyndman and Koehler 2006); ``error_share`` is over the mean
    rate. The coverages are the shares of the later half that lay within bands drawn from the
    earlier half: None when there were too few to say.
    """

    method: Method
    weights: Weights
    mae_per_s: float
    mase: float
    error_share: float
    coverage_80: float | None
    coverage_95: float | None


@dataclass(frozen=True, slots=True)
class Backtest:
    """Which method to use, and why: all were tried on rates that they had not seen."""

    method: Method
    season: int | None
    origins: int
    scores: tuple[Score, ...]
    left_out: Mapping[Method, str]
    reason: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """The rates of the steps to come, the first of them from ``start_us`` on.

    What will be measured at a step is the mean plus the deviation times a standard error, whose
    quantiles are ``shape`` (at 200 even chances, from 1/400 to 399/400). ``paths`` are standard
    errors as they go together, a row for each of many futures: those of the backtest and, for as
    long as it is short, those that the method implies.
    """

    start_us: int
    step_ms: float
    mean_per_s: tuple[float, ...]
    deviation_per_s: tuple[float, ...]
    method: Method = Method.NAIVE
    season: int | None = None
    reason: str = ""
    scores: tuple[Score, ...] = ()
    shape: tuple[float, ...] = field(default=tuple(_SCORES.tolist()), repr=False)
    paths: Floats | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what is no forecast."""
        if not self.mean_per_s or len(self.mean_per_s) != len(self.deviation_per_s):
            raise InputError(
                f"A forecast with {len(self.mean_per_s)} means and {len(self.deviation_per_s)} "
                "deviations cannot be: give one of each for every step, and at least one step."
            )

    @property
    def horizon_ms(self) -> float:
        """How far ahead it looks."""
        return len(self.mean_per_s) * self.step_ms

    def at_us(self, step: int) -> int:
        """When a step begins; the first to come is step 0."""
        return self.start_us + round(step * self.step_ms * 1_000)

    def quantile(self, chance: float) -> tuple[float, ...]:
        """The rate that each step stays under with this chance.

        Beyond the quantiles of ``shape`` it goes on as the normal distribution does.
        """
        if not 0 < chance < 1:
            raise InputError(f"A chance of {chance} has no quantile: give one between 0 and 1.")
        error = _error_at(self.shape, chance)
        pairs = zip(self.mean_per_s, self.deviation_per_s, strict=True)
        return tuple(max(0.0, mean + deviation * error) for mean, deviation in pairs)

    def band(self, level: float) -> tuple[tuple[float, float], ...]:
        """The lower and upper edge, for each step, of what is met with this chance."""
        if not 0 < level < 1:
            raise InputError(f"A band of level {level} cannot be drawn: give one such as 0.8.")
        edges = self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)
        return tuple(zip(*edges, strict=True))

    def chance_above(self, rate_per_s: float) -> tuple[float, ...]:
        """The chance that each step, by itself, exceeds a rate."""
        return tuple(self._chance(error) for error in self._errors_to(rate_per_s).tolist())

    def chance_by(self, rate_per_s: float, since: int = 0) -> tuple[float, ...]:
        """The chance that a rate is exceeded by each step, itself included, from ``since`` on.

        The share of ``paths`` that, added to this forecast, exceed it by then, and never less than
        the chance at any one step so far.
        """
        single = np.maximum.accumulate(self.chance_above(rate_per_s)[since:])
        if self.paths is None:
            return tuple(single.tolist())
        exceeded = (self.paths > self._errors_to(rate_per_s))[:, since:]
        together = np.logical_or.accumulate(exceeded, axis=1).mean(axis=0)
        return tuple(np.maximum(single, together).tolist())

    def _errors_to(self, rate_per_s: float) -> Floats:
        """The standard error at which each step reaches a rate."""
        distance = rate_per_s - np.array(self.mean_per_s)
        deviation = np.array(self.deviation_per_s)
        errors: Floats = np.where(distance < 0, -np.inf, np.inf)
        with np.errstate(over="ignore"):  # too far to be reached is infinitely far
            np.divide(distance, deviation, out=errors, where=deviation > 0)
        return errors

    def _chance(self, error: float) -> float:
        """The chance of a standard error above this one: the inverse of :meth:`quantile`."""
        if math.isinf(error):
            return float(error < 0)
        inside = min(max(error, self.shape[0]), self.shape[-1])
        score = float(np.interp(inside, self.shape, _SCORES)) + error - inside
        return 1 - _STANDARD.cdf(score)


def forecast(
    series: Series, horizon: int, *, method: Method | None = None, season: int | None = None
) -> Forecast:
    """Forecast as many steps as the horizon has, with bands from the errors of a backtest.

    Args:
        series: What was measured.
        horizon: How many steps ahead.
        method: The method; None for the one that :func:`backtest` picks.
        season: How many steps a season has; None to look for one.

    Raises:
        InputError: If the horizon is empty or the series too short for the method.
    """
    past = _past(series, horizon, season)
    tried, trials = _try(past, tuple(Method) if method is None else (method,))
    chosen = tried.method
    fitted = _fit(past.rates, (chosen,), past.period)
    run = _run(past.rates, len(past.rates), fitted, past.period)
    mean = _ahead(run, 0, np.array([len(past.rates) - 1]), past.reach)[0]
    spread = _spread(trials[chosen])
    deviation = spread.deviation * (mean if chosen is Method.MULTIPLICATIVE else 1.0)
    late = past.reach - horizon
    return Forecast(
        series.start_us + round(len(series.rates_per_s) * series.step_ms * 1_000),
        series.step_ms,
        tuple(mean[late:].tolist()),
        tuple(deviation[late:].tolist()),
        chosen,
        past.season if chosen.seasonal else None,
        tried.reason,
        tried.scores,
        tuple(spread.shape.tolist()),
        spread.paths[:, late:],
    )


def backtest(
    series: Series,
    horizon: int,
    *,
    methods: Sequence[Method] = tuple(Method),
    season: int | None = None,
) -> Backtest:
    """Try each method from many origins in the later half of a series, and pick one.

    Parameters are fitted to the earlier half (or two seasons), so no method has seen what it is
    tried on. Of the methods within 1 % of the smallest mean absolute error, over all horizons, the
    simplest wins; with fewer than 25 backtests that do not overlap, of those within 25 % over
    their number, for so far may chance move the mean of a few.

    Raises:
        InputError: If the horizon is empty or the series too short for every method.
    """
    return _try(_past(series, horizon, season), tuple(methods))[0]


def find_season(series: Series) -> int | None:
    """The season of a series, in steps, by its autocorrelation; None when it shows none.

    A straight line is taken out first. A season is a lag, of which the series holds three or
    more, where the autocorrelation peaks: 0.3 above the lowest before it, at 0.2 or more, and
    higher than chance alone could bring it, three over the root of the number of rates.
    The height of a peak is the mean over the multiples of its lag, which tell a season from a lag
    next to it. As every multiple of a season is one, the first peak is taken that is within 0.05,
    or half of what chance could bring, of the highest.
    """
    return _season_of(_newest(series, NEWEST))


# --- the recursion ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class State:
    """Where the recursion starts, a column for each of several candidates.

    ``season`` has a row for each step of a season.
    """

    level: Floats
    trend: Floats
    season: Floats


def smooth(
    rates: Floats, weights: Floats, start: State, *, divide: bool = False
) -> Iterator[tuple[Floats, Floats, Floats, Floats]]:
    """Run the recursion of this module for many candidates at once, step by step.

    Args:
        rates: What was measured; NaN is a gap.
        weights: The rows alpha, beta, gamma and phi, with a column for each candidate.
        start: The state before the first rate.
        divide: Whether the season is a factor rather than a summand.

    Yields:
        What was expected of the step, then level, trend and season after it; the season only
        until the next one is asked for.
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
class _Run:
    """The states after every step, a column for each method; the season also before the first."""

    weights: Floats
    level: Floats
    trend: Floats
    season: Floats
    period: int
    divide: bool


def _run(rates: Floats, training: int, fitted: Mapping[Method, Weights], period: int) -> _Run:
    """Run methods over all rates from where the training part says that they start."""
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
    return _Run(table, levels, trends, seasons, period, divide)


def _ahead(run: _Run, column: int, origins: Steps, horizon: int) -> Floats:
    """Forecasts from after each origin (rows) for each horizon (columns), never below zero."""
    damped = np.cumsum(run.weights[3, column] ** np.arange(1, horizon + 1))
    ahead = np.arange(1, horizon + 1)
    slots = origins[:, None] + (ahead - run.period * -(-ahead // run.period)) + run.period
    base = run.level[origins, column, None] + run.trend[origins, column, None] * damped
    season = run.season[slots, column]
    rates: Floats = np.maximum(base * season if run.divide else base + season, 0.0)
    return rates


def _echo(weights: Weights, period: int, horizon: int) -> Floats:
    """What is left of a surprise, 0, 1, ... steps later.

    It is ``c_0 = 1`` and then ``c_j = alpha (1 + beta (phi + ... + phi**j))``, and ``gamma
    (1 - alpha)`` more after whole seasons. An error ``h`` steps ahead is the sum of the echoes of
    ``h`` surprises, so its variance grows as ``c_0**2 + ... + c_(h-1)**2`` (Hyndman et al. 2008,
    table 6.1). For factors the same holds of relative errors, to the first order.
    """
    later = np.arange(1, horizon)
    echo = weights.level * (1 + weights.trend * np.cumsum(weights.damping**later))
    echo = echo + weights.season * (1 - weights.level) * (later % period == 0)
    return np.concatenate(([1.0], echo))


# --- fitting ----------------------------------------------------------------------------------


def _fit(rates: Floats, methods: Sequence[Method], period: int) -> dict[Method, Weights]:
    """The weights of each method with the least squared error one step ahead.

    A coarse grid, then twice a finer one around the best, for all methods at once: the time goes
    into the steps of the series, not into the candidates. Deterministic, and blind to the scale.
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


def _squares(rates: Floats, weights: Floats, start: State, *, divide: bool) -> Floats:
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
    """The weights and their neighbours, up and down by a factor; a zero has none."""
    factors = (1.0, 1 / finer, finer)
    levels, trends, seasons = (
        sorted({min(weight * factor, 1.0) for factor in factors}) for weight in weights[:3]
    )
    table = [(a, b, g, weights.damping) for a in levels for b in trends for g in seasons]
    return np.array(table).T


def _together(starts: Sequence[State], counts: Sequence[int]) -> State:
    """One state whose columns are those of several, each as often as it has candidates."""
    return State(
        np.concatenate([np.repeat(s.level, n) for s, n in zip(starts, counts, strict=True)]),
        np.concatenate([np.repeat(s.trend, n) for s, n in zip(starts, counts, strict=True)]),
        np.hstack([np.repeat(s.season, n, axis=1) for s, n in zip(starts, counts, strict=True)]),
    )


def _start(rates: Floats, method: Method, period: int) -> State:
    """The state before the first rate, from the first ten rates or up to four seasons."""
    if method.seasonal:
        level, trend, season = _first_seasons(rates, method, period)
    else:
        steps = np.flatnonzero(~np.isnan(rates))[:10].astype(np.float64)
        first = rates[steps.astype(np.int64)]
        level, trend = (first[0], 0.0) if method is Method.NAIVE else (first.mean(), 0.0)
        if method in {Method.HOLT, Method.DAMPED_HOLT}:
            level, trend = _line(steps, first)
        season = np.zeros(period)
    return State(np.array([level - trend]), np.array([trend]), season[:, None])


def _first_seasons(rates: Floats, method: Method, period: int) -> tuple[float, float, Floats]:
    """Level at the first step, trend and season, exact where the rates are a line and a season.

    The trend comes from rates that are one season apart, so that neither the season nor a gap
    bends it. With factors, the line and the season are found in turns, each given the other.
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
        level, trend = _line(steps[measured], (table / season)[measured])
    return level, trend, season


def _slots(table: Floats) -> Floats:
    """The mean of every column; where a column has none, what lies between its neighbours."""
    known = ~np.isnan(table)
    counts = known.sum(axis=0)
    means = np.where(known, table, 0.0).sum(axis=0) / np.maximum(counts, 1)
    there = np.flatnonzero(counts)
    filled: Floats = np.interp(np.arange(len(means)), there, means[there], period=len(means))
    return filled


def _line(steps: Floats, rates: Floats) -> tuple[float, float]:
    """The height at step 0 and the slope of the line of least squares."""
    middle = float(steps.mean())
    offsets = steps - middle
    slope = float(offsets @ rates) / (float(offsets @ offsets) or 1.0)
    return float(rates.mean()) - slope * middle, slope


# --- backtesting ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Past:
    """A series made ready: no gap at either end, and ``reach`` steps to forecast after it."""

    rates: Floats
    step_ms: float
    season: int | None
    reach: int
    training: int

    @property
    def period(self) -> int:
        return self.season or 1


@dataclass(frozen=True, slots=True)
class _Trial:
    """A method's errors from each origin (rows) at each horizon; NaN where none was measured.

    ``unit`` is what they are counted in: 1, or the forecast itself for relative ones. ``stride``
    is how many steps lie between origins.
    """

    errors: Floats
    unit: Floats
    echo: Floats
    stride: int


@dataclass(frozen=True, slots=True)
class _Spread:
    deviation: Floats
    shape: Floats
    paths: Floats


def _past(series: Series, horizon: int, season: int | None) -> _Past:
    if horizon < 1:
        raise InputError(f"A horizon of {horizon} steps is empty: give 1 or more.")
    if season is not None and season < 2:
        raise InputError(f"A season of {season} steps cannot be: give 2 or more, or None.")
    late = next(n for n, rate in enumerate(reversed(series.rates_per_s)) if not math.isnan(rate))
    rates = _newest(series, max(NEWEST, 4 * (season or 1)))
    found = _season_of(rates) if season is None else season
    training = len(rates) // 2
    if found and 3 * found <= len(rates):
        training = max(training, 2 * found)
    return _Past(rates, series.step_ms, found, horizon + late, training)


def _newest(series: Series, steps: int) -> Floats:
    """As many steps, up to the newest that was measured, less the gaps before them."""
    rates = np.array(series.rates_per_s, dtype=np.float64)
    rates = rates[: np.flatnonzero(~np.isnan(rates))[-1] + 1][-steps:]
    return rates[np.flatnonzero(~np.isnan(rates))[0] :]


def _try(past: _Past, methods: tuple[Method, ...]) -> tuple[Backtest, dict[Method, _Trial]]:
    """Every method that the series allows, tried from the same origins."""
    left_out = {method: why for method in methods if (why := _unfit(past, method))}
    fit = [method for method in Method if method in methods and method not in left_out]
    stride = -(-(len(past.rates) - past.training) // _MOST_BACKTESTS)
    origins = np.arange(len(past.rates) - 2, past.training - 2, -stride)[::-1]
    trials, scores = {}, []
    for method, weights, trial, actual in _trials(past, fit, origins, stride):
        if not np.isfinite(trial.errors[~np.isnan(actual)]).all():
            left_out[method] = "it lost its way, as the season went towards zero"
            continue
        trials[method] = trial
        scores.append(_score(method, weights, trial, actual, past.rates[: past.training]))
    if not scores:
        told = "; ".join(f"as for {method}, {why}" for method, why in left_out.items())
        raise InputError(f"This series cannot be forecast: {told or 'no method was named'}.")
    apart = (len(past.rates) - past.training) / past.reach
    tie = max(_TIE, _TIE_ALONE / max(apart, 1.0))
    best = min(score.mae_per_s for score in scores)
    chosen = next(score for score in scores if score.mae_per_s <= best * (1 + tie))
    reason = _reason(past, len(origins), chosen, scores, tie)
    ranked = tuple(sorted(scores, key=lambda score: score.mae_per_s))
    return Backtest(chosen.method, past.season, len(origins), ranked, left_out, reason), trials


def _trials(
    past: _Past, methods: Sequence[Method], origins: Steps, stride: int
) -> Iterator[tuple[Method, Weights, _Trial, Floats]]:
    """Each method with its weights, its errors and what was measured, simplest method first.

    An error that rounding could have made is none.
    """
    targets = np.concatenate((past.rates, np.full(past.reach, np.nan)))
    actual = targets[origins[:, None] + np.arange(1, past.reach + 1)]
    rounding = _ROUNDING * float(np.nanmean(past.rates))
    for divide in (False, True):
        group = [method for method in methods if (method is Method.MULTIPLICATIVE) == divide]
        if not group:
            continue
        period = past.period if any(method.seasonal for method in group) else 1
        fitted = _fit(past.rates[: past.training], group, period)
        run = _run(past.rates, past.training, fitted, period)
        for column, (method, weights) in enumerate(fitted.items()):
            expected = _ahead(run, column, origins, past.reach)
            errors = actual - expected
            errors = np.where(np.abs(errors) <= rounding, 0.0, errors)
            unit = np.maximum(expected, rounding) if divide else np.ones_like(expected)
            echo = _echo(weights, past.period, past.reach)
            yield method, weights, _Trial(errors, unit, echo, stride), actual


def _unfit(past: _Past, method: Method) -> str:
    """Why a method cannot be tried; empty when it can."""
    steps = len(past.rates)
    if method.seasonal and past.season is None:
        return f"it needs a season, and {steps} steps show none, so give its length"
    if method.seasonal and past.season is not None and 3 * past.season > steps:
        return (
            f"it needs three seasons of {past.season} steps, two to fit and one to try it on, and "
            f"there are {steps} steps"
        )
    if method is Method.MULTIPLICATIVE and np.nanmin(past.rates) <= 0:
        return "a season cannot be a factor of rates that fall to zero"
    measured = int((~np.isnan(past.rates[: past.training])).sum())
    if method not in {Method.NAIVE, Method.SEASONAL_NAIVE} and measured < 4:
        return f"it is fitted to the earlier part, which has {measured} rates where 4 are needed"
    return ""


def _score(
    method: Method, weights: Weights, trial: _Trial, actual: Floats, training: Floats
) -> Score:
    mae = float(np.nanmean(np.abs(trial.errors)))
    mean_rate = float(np.nanmean(actual))
    naive = np.abs(np.diff(training[~np.isnan(training)]))
    scale = float(naive.mean()) if len(naive) else 0.0
    return Score(
        method,
        weights,
        mae,
        _over(mae, scale),
        _over(mae, mean_rate),
        *_coverages(trial),
    )


def _over(part: float, whole: float) -> float:
    return part / whole if whole else (math.inf if part else 0.0)


def _coverages(trial: _Trial) -> tuple[float | None, float | None]:
    """Shares of the later origins' errors within the bands of 80 % and 95 % of the earlier.

    An earlier error counts only if its time had come by the first of the later origins.
    """
    origins, horizon = trial.errors.shape
    half = origins // 2
    passed = np.arange(half)[:, None] * trial.stride + np.arange(1, horizon + 1)
    known = np.where(passed <= half * trial.stride, trial.errors[:half], np.nan)
    later = trial.errors[half:] / trial.unit[half:]
    if (~np.isnan(known)).sum() < 10 or np.isnan(later).all():
        return None, None
    spread = _spread(_Trial(known, trial.unit[:half], trial.echo, trial.stride))
    later = later / np.where(spread.deviation > 0, spread.deviation, 1e-300)
    later = later[~np.isnan(later)]

    def within(level: float) -> float:
        low, high = (_error_at(spread.shape, (1 + side * level) / 2) for side in (-1, 1))
        return float(((low <= later) & (later <= high)).mean())

    return within(0.8), within(0.95)


def _spread(trial: _Trial) -> _Spread:
    """How far rates stray from the forecast: by closed form first, by the backtest as it grows.

    The variance at a horizon is a mean of two: that of the backtest, which counts as often as
    errors that do not overlap, and the closed form from the error one step ahead, which counts as
    ten. It never shrinks with the horizon. The shape is mixed likewise, of all standard errors and
    of a normal one that counts as twenty, with the tails of Student's t (first term of its
    expansion) for the few errors that its variance is known from; and so are the paths.
    """
    errors = trial.errors / trial.unit
    horizon = errors.shape[1]
    counts = (~np.isnan(errors)).sum(axis=0)
    squares = np.nansum(errors**2, axis=0) / np.maximum(counts, 1)
    first = int(np.argmax(counts > 0))
    growth = np.cumsum(trial.echo**2)
    closed = squares[first] * growth / growth[first]
    apart = counts * trial.stride / np.arange(1, horizon + 1)
    variance = (apart * squares + _CLOSED_FORM_WORTH * closed) / (apart + _CLOSED_FORM_WORTH)
    deviation = np.sqrt(np.maximum.accumulate(variance))
    if not deviation[0] > 0:
        return _Spread(deviation, _SCORES, np.zeros((1, horizon)))
    standard = errors / deviation
    freedom = max(int(counts[first]) * trial.stride, 3)
    normal = _SCORES + (_SCORES**3 + _SCORES) / (4 * freedom)
    seen = standard[~np.isnan(standard)]
    shape = _mixed(seen, float(apart.mean()), normal, _NORMAL_WORTH)
    whole = standard[~np.isnan(standard).any(axis=1)]
    share = float(apart[-1]) / (float(apart[-1]) + _NORMAL_WORTH)
    taken = np.linspace(0, len(whole) - 1, min(round(_PATHS * share), len(whole)))
    made = _made_paths(trial.echo, _PATHS - len(taken)) / np.sqrt(growth)
    return _Spread(deviation, shape, np.vstack((whole[taken.astype(np.int64)], made)))


def _made_paths(echo: Floats, count: int) -> Floats:
    """Errors as they would go together if surprises were normal; the seed is fixed.

    They are a table to integrate over, so that a forecast is a function of its series alone.
    """
    size = 2 * len(echo)
    surprises = np.random.default_rng(0).standard_normal((count, len(echo)))
    spectrum = np.fft.rfft(surprises, size) * np.fft.rfft(echo, size)
    return np.fft.irfft(spectrum, size)[:, : len(echo)]


def _error_at(shape: Sequence[float] | Floats, chance: float) -> float:
    """The standard error that is not exceeded with this chance; beyond the shape as if normal."""
    score = _STANDARD.inv_cdf(chance)
    inside = float(np.clip(score, _SCORES[0], _SCORES[-1]))
    return float(np.interp(inside, _SCORES, shape)) + score - inside


def _mixed(seen: Floats, seen_worth: float, normal: Floats, normal_worth: float) -> Floats:
    """Quantiles, at the even chances, of two samples that weigh as much as they are worth."""
    values = np.concatenate((seen, normal))
    worths = np.concatenate(
        (
            np.full(len(seen), seen_worth / len(seen)),
            np.full(len(normal), normal_worth / len(normal)),
        )
    )
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(worths[order]) - worths[order] / 2
    return np.interp(_CHANCES, reached / worths.sum(), values[order])


def _reason(past: _Past, origins: int, chosen: Score, scores: Sequence[Score], tie: float) -> str:
    name = chosen.method[0].upper() + chosen.method[1:]
    if chosen.method.seasonal:
        name += f" with a season of {units.show_duration(past.period * past.step_ms)}"
    tries = f"{origins} backtests" if origins > 1 else "1 backtest"
    own = f"{chosen.error_share:.1%}"
    others = [score for score in scores if score is not chosen]
    if not others:
        return f"{name} is the only method that was tried; in {tries} its error was {own}."
    rival = min(others, key=lambda score: score.mae_per_s)
    against = f"{own} against {rival.error_share:.1%} of {rival.method}"
    if rival.mae_per_s <= chosen.mae_per_s:
        return (
            f"{name} is the simplest method with an error within {tie:.0%} of the smallest in "
            f"{tries}: {against}."
        )
    return f"{name} had the smallest error in {tries}: {against}."


# --- seasons ----------------------------------------------------------------------------------


def _season_of(rates: Floats) -> int | None:
    longest = len(rates) // 3
    if longest < 2:
        return None
    known = ~np.isnan(rates)
    steps = np.arange(len(rates), dtype=np.float64)
    height, slope = _line(steps[known], rates[known])
    flat = np.where(known, rates - height - slope * steps, 0.0)
    if float(flat @ flat) <= 1e-18 * float(np.nansum(rates**2)):
        return None
    correlation = _autocorrelation(flat, known)
    tallies = [correlation[lag : 2 * longest : lag].mean() for lag in range(1, longest + 1)]
    heights = np.array([1.0, *tallies])
    lowest = np.minimum.accumulate(correlation[: longest + 1])
    chance = 3 / math.sqrt(float(known.sum()))
    fit = (correlation[: longest + 1] - lowest >= 0.3) & (heights >= max(0.2, chance))
    left = np.concatenate(([np.inf], heights[:-1]))
    right = np.concatenate((heights[1:], [-np.inf]))
    peaks = np.flatnonzero(
        fit & (heights >= left) & (heights >= right) & (np.arange(longest + 1) > 1)
    )
    if not len(peaks):
        return None
    return int(peaks[np.argmax(heights[peaks] >= heights[peaks].max() - max(0.05, chance / 2))])


def _autocorrelation(flat: Floats, known: NDArray[np.bool_]) -> Floats:
    """By Fourier transform, each lag over the pairs of measured rates that lie so far apart."""
    size = 2 * len(flat)

    def products(values: Floats) -> Floats:
        spectrum = np.fft.rfft(values, size)
        return np.fft.irfft(spectrum * spectrum.conj(), size)[: len(values)]

    pairs = np.maximum(np.round(products(known.astype(np.float64))), 1.0)
    covariance = products(flat) / pairs
    correlation: Floats = covariance / covariance[0]
    return correlation
