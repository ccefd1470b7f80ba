"""Forecasts of the rate with bands, by the method that was most accurate so far.

The methods are those of ``smoothing``; ``backtests`` picks one of them, and ``bands`` derives from
its errors how far off it may be.

Nothing is learnt at a gap, and it is left out of all errors. Gaps at the start are dropped; gaps at
the end make every forecast longer by as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.errors import InputError
from tailrace.model.forecasting.backtests import Past, try_methods
from tailrace.model.forecasting.bands import SCORES, STANDARD, bands_of, error_at
from tailrace.model.forecasting.seasons import season_of
from tailrace.model.forecasting.smoothing import Method, fit_weights, look_ahead, run_methods
from tailrace.outside import MOST_RATE_PER_S
from tailrace.units import show_duration

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.model.forecasting.backtests import MethodScore

    Floats = NDArray[np.float64]

NEWEST: Final = 5_000
"""Only this many steps are used, or four seasons if that is more; older ones add little."""

MOST_AHEAD: Final = 5_000
"""The most steps of a forecast: no more than it is based on; memory grows with them."""

FIRST_US: Final = -62_000_000_000_000_000
LAST_US: Final = 253_000_000_000_000_000
"""Times in this range have a date in every time zone: from year 6 to year 9987."""


@dataclass(frozen=True, slots=True)
class Series:
    """Rates at equal time steps, the first at ``start_us``; NaN where none was measured."""

    rates_per_s: tuple[float, ...]
    step_ms: float
    start_us: int = 0

    def __post_init__(self) -> None:
        """Refuse an invalid series."""
        if not 0 < self.step_ms < math.inf:
            raise InputError(f"A step of {self.step_ms} ms is impossible: give a time above zero.")
        for position, rate in enumerate(self.rates_per_s):
            if rate < 0 or rate > MOST_RATE_PER_S:
                raise InputError(
                    f"Rate {position} of the series is {rate}: give finite rates from 0 to "
                    f"{MOST_RATE_PER_S:g}, and NaN where none was measured."
                )
        measured = sum(not math.isnan(rate) for rate in self.rates_per_s)
        if measured < 4:
            raise InputError(
                f"A series with {measured} measured rates cannot be forecast: wait for 4."
            )


@dataclass(frozen=True, slots=True)
class Forecast:
    """The rates of the steps to come, the first of them starting at ``start_us``.

    The rate at a step is the mean plus the deviation times a standard error, whose quantiles are
    ``shape`` (at 200 evenly spaced probabilities, from 1/400 to 399/400). ``paths`` holds joint
    standard errors, a row for each of many possible futures: those of the backtest and, while it is
    short, those that the method implies.
    """

    start_us: int
    step_ms: float
    mean_per_s: tuple[float, ...]
    deviation_per_s: tuple[float, ...]
    method: Method = Method.NAIVE
    season: int | None = None
    reason: str = ""
    scores: tuple[MethodScore, ...] = ()
    shape: tuple[float, ...] = field(default=tuple(SCORES.tolist()), repr=False)
    paths: Floats | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse an invalid forecast."""
        if not self.mean_per_s or len(self.mean_per_s) != len(self.deviation_per_s):
            raise InputError(
                f"A forecast with {len(self.mean_per_s)} means and {len(self.deviation_per_s)} "
                "deviations is impossible: give one of each for every step, and at least one step."
            )
        if not self.start_us > FIRST_US or not self.at_us(len(self.mean_per_s)) < LAST_US:
            raise InputError(
                f"A forecast of {len(self.mean_per_s)} steps of {self.step_ms:g} ms leaves the "
                "years that have dates: give times in microseconds since 1970."
            )

    @property
    def horizon_ms(self) -> float:
        """How far ahead it looks."""
        return len(self.mean_per_s) * self.step_ms

    def at_us(self, step: int) -> int:
        """When a step begins; the first is step 0."""
        return self.start_us + round(step * self.step_ms * 1_000)

    def quantile(self, chance: float) -> tuple[float, ...]:
        """The rate that each step does not exceed with this probability.

        Beyond the quantiles of ``shape`` it continues like the normal distribution.
        """
        if not 0 < chance < 1:
            raise InputError(f"A chance of {chance} has no quantile: give one between 0 and 1.")
        error = error_at(self.shape, chance)
        pairs = zip(self.mean_per_s, self.deviation_per_s, strict=True)
        return tuple(max(0.0, mean + deviation * error) for mean, deviation in pairs)

    def band(self, level: float) -> tuple[tuple[float, float], ...]:
        """The lower and upper edge, for each step, of the band with this probability."""
        if not 0 < level < 1:
            raise InputError(f"A band of level {level} cannot be drawn: give one such as 0.8.")
        edges = self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)
        return tuple(zip(*edges, strict=True))

    def chance_above(self, rate_per_s: float) -> tuple[float, ...]:
        """The probability that each step, by itself, exceeds a rate."""
        return tuple(self._chance(error) for error in self._errors_to(rate_per_s).tolist())

    def chance_by(self, rate_per_s: float, since: int = 0) -> tuple[float, ...]:
        """The probability that a rate is exceeded between ``since`` and each step, inclusive.

        The share of ``paths`` that, added to this forecast, exceed it by then, but at least the
        probability at any single step so far.
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
        with np.errstate(over="ignore"):  # out of reach is infinitely far
            np.divide(distance, deviation, out=errors, where=deviation > 0)
        return errors

    def _chance(self, error: float) -> float:
        """The probability of a standard error above this one: the inverse of :meth:`quantile`."""
        if math.isinf(error):
            return float(error < 0)
        inside = min(max(error, self.shape[0]), self.shape[-1])
        score = float(np.interp(inside, self.shape, SCORES)) + error - inside
        return 1 - STANDARD.cdf(score)


def forecast(
    series: Series, horizon: int, *, method: Method | None = None, season: int | None = None
) -> Forecast:
    """Forecast ``horizon`` steps, with bands from the errors of a backtest.

    Args:
        series: The measured rates.
        horizon: How many steps ahead.
        method: The method; None for the one that a backtest picks.
        season: How many steps a season has; None to look for one.

    Raises:
        InputError: If the horizon is empty or the series too short for the method.
    """
    past = _past(series, horizon, season)
    tried, trials = try_methods(past, tuple(Method) if method is None else (method,))
    chosen = tried.method
    fitted = fit_weights(past.rates, (chosen,), past.period)
    run = run_methods(past.rates, len(past.rates), fitted, past.period)
    mean = look_ahead(run, 0, np.array([len(past.rates) - 1]), past.reach)[0]
    bands = bands_of(trials[chosen])
    deviation = bands.deviation * (mean if chosen is Method.MULTIPLICATIVE else 1.0)
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
        tuple(bands.shape.tolist()),
        bands.paths[:, late:],
    )


def _past(series: Series, horizon: int, season: int | None) -> Past:
    if horizon < 1:
        raise InputError(f"A horizon of {horizon} steps is empty: give 1 or more.")
    if season is not None and season < 2:
        raise InputError(f"A season of {season} steps is impossible: give 2 or more, or None.")
    late = next(n for n, rate in enumerate(reversed(series.rates_per_s)) if not math.isnan(rate))
    rates = _newest(series, max(NEWEST, 4 * (season or 1)))
    found = season_of(rates) if season is None else season
    if horizon + late > MOST_AHEAD:
        step, measured = show_duration(series.step_ms), show_duration(late * series.step_ms)
        old = f" from {measured} before the end of the series" if late else ""
        raise InputError(
            f"A forecast{old} over {horizon + late:,} steps of {step} is too long, as "
            f"{MOST_AHEAD:,} are the most: look less far ahead, or give rates in longer steps."
        )
    training = len(rates) // 2
    if found and 3 * found <= len(rates):
        training = max(training, 2 * found)
    return Past(rates, series.step_ms, found, horizon + late, training)


def _newest(series: Series, steps: int) -> Floats:
    """The last ``steps`` steps up to the newest measurement, without gaps at their start."""
    rates = np.array(series.rates_per_s, dtype=np.float64)
    rates = rates[: np.flatnonzero(~np.isnan(rates))[-1] + 1][-steps:]
    return rates[np.flatnonzero(~np.isnan(rates))[0] :]
