"""The steps ahead: what rates they bring, and the cheapest way through them.

A receding horizon looks a few control steps ahead, finds the whole sequence of configurations that
is cheapest over them, and applies only its first move; one step later it looks again (De Matteis
2016, section 5.4.3).

The sequence is found exactly, by dynamic programming. The cost of moving between two
configurations is the squared distance of their coordinates, which is a sum over size and grade, so
that the least cost to go is found along one coordinate after the other::

    togo_i(v) = min over u of  step_i(u) + togo_(i+1)(u) + gamma |u - v|**2

The original searches a tree of ``configurations**horizon`` leaves by branch and bound (section
6.3.2); here each configuration is one state a step, independent of what came before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.errors import InputError
from tailrace.model.forecasting.bands import SCORES, Trial, bands_of
from tailrace.model.forecasting.forecast import Forecast
from tailrace.model.forecasting.smoothing import (
    Method,
    Weights,
    echo_of,
    fit_weights,
    look_ahead,
    run_methods,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_TIE: Final = 1e-12


# --- the way ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The cheapest sequence of configurations, one for each step, and what it costs in all.

    ``firsts`` holds, for every first move (sizes by grades), the cost of the best sequence that
    begins with it. ``explored`` counts states that were looked at; a tree of all sequences has
    ``configurations + ... + configurations**steps`` of them.
    """

    sizes: tuple[int, ...]
    grades: tuple[int, ...]
    cost: float
    explored: int
    firsts: Floats = field(repr=False, compare=False)


def best_trajectory(
    costs: Floats, sizes: Sequence[int], present: tuple[int, int], gamma: float
) -> Trajectory:
    """The sequence of configurations of least step costs and switching costs together.

    Of sequences that cost the same, the one whose first move is shortest is taken, so to stay is
    best; then the one to the smaller size, then to the slower grade; and so on at each later step
    (the order in which the original's search would meet them).

    Args:
        costs: What each step costs under each configuration: steps by sizes by grades. The
            coordinates of a configuration are its size and the position of its grade.
        sizes: The size of each row of configurations.
        present: Size and grade that run now; the size may lie outside ``sizes``.
        gamma: The weight of the squared distance between one configuration and the next.
    """
    if costs.ndim != 3 or costs.shape[1] != len(sizes) or not costs.size:
        raise InputError(
            f"Costs of shape {costs.shape} do not fit {len(sizes)} sizes: give one for each step, "
            "size and grade, and at least one of each."
        )
    if not (np.isfinite(costs).all() and 0 <= gamma < np.inf):
        raise InputError(
            "A trajectory needs finite costs and a finite switching weight from 0 up: give a large "
            "number for what cannot be."
        )
    steps, _, kinds = costs.shape
    rows = np.array(sizes, dtype=np.float64)
    columns = np.arange(kinds, dtype=np.float64)
    along_sizes = gamma * (rows[:, None] - rows) ** 2
    along_grades = gamma * (columns[:, None] - columns) ** 2
    ahead = np.empty_like(costs)
    ahead[-1] = costs[-1]
    for step in range(steps - 1, 0, -1):
        by_grade = (ahead[step][:, :, None] + along_grades).min(axis=1)
        togo = (by_grade[:, None, :] + along_sizes[:, :, None]).min(axis=0)
        ahead[step - 1] = costs[step - 1] + togo
    at, way, firsts = present, [], ahead[0]
    for step in range(steps):
        distance = (rows[:, None] - at[0]) ** 2 + (columns - at[1]) ** 2
        totals = ahead[step] + gamma * distance
        if not step:
            firsts = totals
        row, column = _nearest_of_best(totals, distance)
        at = sizes[row], column
        way.append(at)
    return Trajectory(
        tuple(size for size, _ in way),
        tuple(grade for _, grade in way),
        float(firsts.min()),
        costs.size,
        firsts,
    )


def _nearest_of_best(totals: Floats, distance: Floats) -> tuple[int, int]:
    """The row and column of the least total; of equal ones the nearest, then the first.

    Totals that differ by less than rounding are equal.
    """
    best = float(totals.min())
    equal = totals <= best + _TIE * abs(best)
    nearest = np.where(equal, distance, np.inf)
    row, column = np.unravel_index(int(nearest.argmin()), nearest.shape)
    return int(row), int(column)


# --- the rates --------------------------------------------------------------------------------

_HISTORY: Final = 120
_ENOUGH: Final = 10
_LONGEST_SEASON: Final = 60
_ERRORS: Final = 100
_LEAST_PER_S: Final = 1e-6

_SURPRISE: Final = 5.0
_LEVELS_OFF: Final = 4
"""A rate that is ``_SURPRISE`` times further off than the others were, about four deviations, is a
jump. What weights fitted to the rest make of it is chance, from no rise at all to as much again at
every step: for ``_LEVELS_OFF`` steps the last rate is assumed to stay, unless it jumps again, which
is a trend."""


class Outlook:
    """A history of rates, one a control step, and the forecast that follows from it.

    A method of ``model.forecasting.smoothing`` runs over the newest 120 rates, or three seasons,
    and bands come from how far off it was in them, so that a forecast takes a few milliseconds.
    Which method is best is a question for a backtest (``model.forecasting.forecast``).

    ``weights`` are how far the method follows new rates; None fits them to the history, at each
    step anew, since weights from before a jump follow it slowly. De Matteis 2016 has Holt's method,
    with (level, trend) of (1, 0.015) for a random walk and (0.67, 0.26) for stock quotes. Until
    there are ten rates, or two seasons, the last one is taken to stay, as it is after a jump: the
    original draws a line through the first two, and so mistakes a first jump for a trend.
    """

    def __init__(
        self,
        method: Method = Method.HOLT,
        *,
        weights: Weights | None = None,
        season: int | None = None,
    ) -> None:
        """Begin with an empty history; ``season`` is how many steps one has, where there is one."""
        if method.seasonal != (season is not None):
            raise InputError(
                f"Forecasts by {method} need a season: give its number of steps."
                if method.seasonal
                else f"Forecasts by {method} have no season: leave it out."
            )
        self._period = season or 1
        if method.seasonal and not 2 <= self._period <= _LONGEST_SEASON:
            raise InputError(
                f"A season of {season} steps cannot be followed at each of them: give 2 to "
                f"{_LONGEST_SEASON}, and control steps as long as that needs."
            )
        self._method = method
        self._given = weights
        self._enough = max(_ENOUGH, 2 * self._period)
        self._rates: deque[float] = deque(maxlen=max(_HISTORY, 3 * self._period))
        self._expected: float | None = None
        self._errors: deque[float] = deque(maxlen=_ERRORS)
        self._jumped = 0

    @property
    def error_share(self) -> float | None:
        """The mean of error over rate, one step ahead, in the last 100 steps; None before any."""
        return sum(self._errors) / len(self._errors) if self._errors else None

    def add(self, rate_per_s: float, steps: int = 1) -> float | None:
        """Take the rate of the step that has ended, and give back what was expected of it.

        ``steps`` have passed since the last rate: of those between the two nothing is known, and
        nothing was expected of this one. With 0 it is the same once more, better known now.
        """
        if not 0 <= rate_per_s < np.inf:
            raise InputError(f"A rate of {rate_per_s} records/s cannot be: give one from 0 up.")
        if steps < 1 and self._rates:
            self._rates[-1] = rate_per_s
            return None
        self._rates.extend([np.nan] * min(steps - 1, self._rates.maxlen or 0))
        expected, self._expected = (self._expected if steps == 1 else None), None
        self._jumped = max(0, self._jumped - 1)
        if expected is not None and rate_per_s > 0:
            error = abs(expected - rate_per_s) / rate_per_s
            usual = self.error_share
            if usual is not None and error > _SURPRISE * usual:
                self._jumped = 0 if self._jumped else _LEVELS_OFF
            self._errors.append(error)
        self._rates.append(rate_per_s)
        return expected

    def ahead(self, steps: int, start_us: int, step_ms: float) -> Forecast:
        """The rates of the steps to come, the first from ``start_us`` on, all above zero."""
        rates = np.array(self._rates)
        rates = rates[np.flatnonzero(~np.isnan(rates))[0] :]
        method, weights, period = self._method_for(rates)
        run = run_methods(rates, len(rates), {method: weights}, period)
        origins = np.arange(len(rates))
        expected = np.maximum(look_ahead(run, 0, origins, steps), _LEAST_PER_S)
        measured = np.concatenate((rates, np.full(steps, np.nan)))
        errors = measured[origins[:, None] + np.arange(1, steps + 1)] - expected
        mean, deviation, shape = expected[-1], np.zeros(steps), SCORES
        if len(rates) > 1:
            unit = expected if method is Method.MULTIPLICATIVE else np.ones_like(expected)
            bands = bands_of(Trial(errors, unit, echo_of(weights, period, steps), 1))
            deviation, shape = bands.deviation * unit[-1], bands.shape
        self._expected = float(mean[0])
        return Forecast(
            start_us,
            step_ms,
            tuple(mean.tolist()),
            tuple(deviation.tolist()),
            method,
            period if method.seasonal else None,
            shape=tuple(shape.tolist()),
        )

    def _method_for(self, rates: Floats) -> tuple[Method, Weights, int]:
        """The method that these rates allow, with its weights and the length of its season."""
        factors = self._method is Method.MULTIPLICATIVE and bool((rates <= 0).any())
        jumped = self._jumped > 0 and self._given is None
        if np.count_nonzero(~np.isnan(rates)) < self._enough or factors or jumped:
            naive = Method.NAIVE
            return naive, fit_weights(rates, (naive,), 1)[naive], 1
        weights = self._given or fit_weights(rates, (self._method,), self._period)[self._method]
        return self._method, weights, self._period
