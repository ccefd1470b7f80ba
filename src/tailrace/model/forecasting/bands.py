"""Bands around a forecast, from how far past rates were off."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_PATHS: Final = 200
_CLOSED_FORM_WORTH: Final = 10.0
_NORMAL_WORTH: Final = 20.0

STANDARD: Final = NormalDist()
_CHANCES: Final = (np.arange(200) + 0.5) / 200
SCORES: Final = np.array([STANDARD.inv_cdf(float(chance)) for chance in _CHANCES])
"""The standard normal distribution, and its quantiles at 200 evenly spaced probabilities."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A method's errors from each origin (rows) at each horizon; NaN where none was measured.

    ``unit`` is the unit of the errors: 1, or the forecast itself for relative ones. ``echo`` is the
    later effect of a surprise (``smoothing.echo_of``), and ``stride`` is the number of steps
    between origins.
    """

    errors: Floats
    unit: Floats
    echo: Floats
    stride: int


@dataclass(frozen=True, slots=True)
class Bands:
    """How far rates may be off: the deviation at each horizon, in the unit of the trial, and more.

    ``shape`` holds the quantiles of errors divided by their deviation, at the probabilities of
    ``SCORES``; ``paths`` holds such errors jointly, a row for each of many possible futures.
    """

    deviation: Floats
    shape: Floats
    paths: Floats


def bands_of(trial: Trial) -> Bands:
    """How far rates may be off: mostly by closed form at first, by the backtest as it grows.

    The variance at a horizon is a weighted mean of two: that of the backtest, weighted by its
    number of non-overlapping errors, and the closed form from the error one step ahead, with a
    weight of ten. It never shrinks with the horizon. The shape is mixed in the same way, from all
    standard errors and a normal distribution with a weight of twenty, with the tails of Student's t
    (first term of its expansion) because the variance is estimated from few errors; and so are the
    paths.
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
        return Bands(deviation, SCORES, np.zeros((1, horizon)))
    standard = errors / deviation
    freedom = max(int(counts[first]) * trial.stride, 3)
    normal = SCORES + (SCORES**3 + SCORES) / (4 * freedom)
    seen = standard[~np.isnan(standard)]
    shape = _mixed(seen, float(apart.mean()), normal, _NORMAL_WORTH)
    whole = standard[~np.isnan(standard).any(axis=1)]
    share = float(apart[-1]) / (float(apart[-1]) + _NORMAL_WORTH)
    taken = np.linspace(0, len(whole) - 1, min(round(_PATHS * share), len(whole)))
    made = _made_paths(trial.echo, _PATHS - len(taken)) / np.sqrt(growth)
    return Bands(deviation, shape, np.vstack((whole[taken.astype(np.int64)], made)))


def _made_paths(echo: Floats, count: int) -> Floats:
    """Joint errors under normally distributed surprises; the seed is fixed.

    They are a table to integrate over, so that a forecast depends only on its series.
    """
    size = 2 * len(echo)
    surprises = np.random.default_rng(0).standard_normal((count, len(echo)))
    spectrum = np.fft.rfft(surprises, size) * np.fft.rfft(echo, size)
    return np.fft.irfft(spectrum, size)[:, : len(echo)]


def error_at(shape: Sequence[float] | Floats, chance: float) -> float:
    """The standard error not exceeded with this probability; normal beyond the shape."""
    score = STANDARD.inv_cdf(chance)
    inside = float(np.clip(score, SCORES[0], SCORES[-1]))
    return float(np.interp(inside, SCORES, shape)) + score - inside


def _mixed(seen: Floats, seen_worth: float, normal: Floats, normal_worth: float) -> Floats:
    """Quantiles, at evenly spaced probabilities, of two samples mixed by their weights."""
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
