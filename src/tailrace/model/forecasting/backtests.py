"""Backtests: which forecasting method was most accurate on rates that it had not seen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace import units
from tailrace.errors import InputError
from tailrace.model.forecasting.bands import Trial, bands_of, error_at
from tailrace.model.forecasting.smoothing import (
    Method,
    Weights,
    echo_of,
    fit_weights,
    look_ahead,
    run_methods,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Steps = NDArray[np.int64]

_MOST_BACKTESTS: Final = 400
_TIE: Final = 0.01
_TIE_ALONE: Final = 0.25
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class MethodScore:
    """The accuracy of a method over every origin and all horizons of the backtest.

    ``mase`` is its mean absolute error relative to that of the naive method, one step ahead, in the
    part that the parameters were fitted to (Hyndman and Koehler 2006); ``error_share`` is relative
    to the mean rate. The coverages are the shares of the later half that lay within bands drawn
    from the earlier half; None if there were too few.
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
    """Which method to use, and why, after trying all on rates that they had not seen."""

    method: Method
    season: int | None
    origins: int
    scores: tuple[MethodScore, ...]
    left_out: Mapping[Method, str]
    reason: str


@dataclass(frozen=True, slots=True)
class Past:
    """A prepared series: no gap at either end, and ``reach`` steps to forecast after it."""

    rates: Floats
    step_ms: float
    season: int | None
    reach: int
    training: int

    @property
    def period(self) -> int:
        """How many steps a season has; 1 if there is none."""
        return self.season or 1


def try_methods(past: Past, methods: tuple[Method, ...]) -> tuple[Backtest, dict[Method, Trial]]:
    """Every method that the series allows, tried from the same origins."""
    left_out = {method: why for method in methods if (why := _unfit(past, method))}
    fit = [method for method in Method if method in methods and method not in left_out]
    stride = -(-(len(past.rates) - past.training) // _MOST_BACKTESTS)
    origins = np.arange(len(past.rates) - 2, past.training - 2, -stride)[::-1]
    trials, scores = {}, []
    for method, weights, trial, actual in _trials(past, fit, origins, stride):
        if not np.isfinite(trial.errors[~np.isnan(actual)]).all():
            left_out[method] = "it diverged, as the season went towards zero"
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
    past: Past, methods: Sequence[Method], origins: Steps, stride: int
) -> Iterator[tuple[Method, Weights, Trial, Floats]]:
    """Each method with its weights, its errors and the measured rates, simplest method first.

    Errors within rounding count as 0.
    """
    targets = np.concatenate((past.rates, np.full(past.reach, np.nan)))
    actual = targets[origins[:, None] + np.arange(1, past.reach + 1)]
    rounding = _ROUNDING * float(np.nanmean(past.rates))
    for divide in (False, True):
        group = [method for method in methods if (method is Method.MULTIPLICATIVE) == divide]
        if not group:
            continue
        period = past.period if any(method.seasonal for method in group) else 1
        fitted = fit_weights(past.rates[: past.training], group, period)
        run = run_methods(past.rates, past.training, fitted, period)
        for column, (method, weights) in enumerate(fitted.items()):
            expected = look_ahead(run, column, origins, past.reach)
            errors = actual - expected
            errors = np.where(np.abs(errors) <= rounding, 0.0, errors)
            unit = np.maximum(expected, rounding) if divide else np.ones_like(expected)
            echo = echo_of(weights, past.period, past.reach)
            yield method, weights, Trial(errors, unit, echo, stride), actual


def _unfit(past: Past, method: Method) -> str:
    """Why a method cannot be tried; empty if it can."""
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
    method: Method, weights: Weights, trial: Trial, actual: Floats, training: Floats
) -> MethodScore:
    mae = float(np.nanmean(np.abs(trial.errors)))
    mean_rate = float(np.nanmean(actual))
    naive = np.abs(np.diff(training[~np.isnan(training)]))
    scale = float(naive.mean()) if len(naive) else 0.0
    return MethodScore(
        method,
        weights,
        mae,
        _over(mae, scale),
        _over(mae, mean_rate),
        *_coverages(trial),
    )


def _over(part: float, whole: float) -> float:
    return part / whole if whole else (math.inf if part else 0.0)


def _coverages(trial: Trial) -> tuple[float | None, float | None]:
    """The shares of the later origins' errors within the 80 % and 95 % bands of the earlier ones.

    An earlier error counts only if it was known by the time of the first later origin.
    """
    origins, horizon = trial.errors.shape
    half = origins // 2
    passed = np.arange(half)[:, None] * trial.stride + np.arange(1, horizon + 1)
    known = np.where(passed <= half * trial.stride, trial.errors[:half], np.nan)
    later = trial.errors[half:] / trial.unit[half:]
    if (~np.isnan(known)).sum() < 10 or np.isnan(later).all():
        return None, None
    bands = bands_of(Trial(known, trial.unit[:half], trial.echo, trial.stride))
    with np.errstate(over="ignore"):  # beyond any band, and so outside of it
        later = later / np.where(bands.deviation > 0, bands.deviation, 1e-300)
    later = later[~np.isnan(later)]

    def within(level: float) -> float:
        low, high = (error_at(bands.shape, (1 + side * level) / 2) for side in (-1, 1))
        return float(((low <= later) & (later <= high)).mean())

    return within(0.8), within(0.95)


def _reason(
    past: Past, origins: int, chosen: MethodScore, scores: Sequence[MethodScore], tie: float
) -> str:
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
