"""Model-predictive scaling: look ahead, weigh latency, cost and unrest, move before it hurts.

At each control step the scaler forecasts the rates of the steps ahead, asks the model of the flow
what every number of units (and every speed grade) would do under them, and takes the first move of
the cheapest sequence (De Matteis 2016, sections 5.4.3 and 6.3). The cost of a step is
(eq. 6.12)::

    alpha exp(e latency/bound)  +  beta cost(size, grade)  +  gamma |move|**2
    alpha exp(utilisation/0.95)     for a goal of throughput (eq. 7.1)

where e is the mean of the last three ratios of measured to modelled latency. Some things differ
from the original. Its e corrects the wait alone (eq. 6.10), with the prediction that was made for
the step: here the model of the moment is held against the step, and its whole latency corrected,
since a model of batches has no wait of its own. The published weights of its throughput strategies
belong to another cost (eq. 6.13), which was given up for eq. 7.1. From 12 bounds on the exponential
goes on as its tangent, since sums of numbers like ``exp(100)`` lose everything else. A move takes
``delay_steps`` to be in place: the steps before that are run by what is there, so they are left out
of the weighing, and the horizon counts the steps after them. And a backlog is worked off: the
records that wait, beyond those that always do (rate times latency, by Little's law), are added to
the rate of the first ``drain_steps`` of the horizon.

A unit of speed v is taken to do at a rate what a unit of speed 1 does at ``rate/v``, in ``1/v`` of
the time. That is exact where all of the latency is work or waiting for work (``T(f) = T(f0) f0/f``,
section 6.2.2); a fixed part, such as a batch interval, does not really shrink, which e makes good
for the grade that runs. The model speaks of units of speed 1.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.errors import InputError
from tailrace.model.kingman import Correction
from tailrace.policy.decision import Alternative
from tailrace.policy.scaling.calibration import (
    HEADROOM,
    Goal,
    Priorities,
    Strategy,
    step_costs,
    unable,
)
from tailrace.policy.scaling.horizon import Outlook, best_trajectory
from tailrace.policy.scaling.moves import settling, stay, wait
from tailrace.policy.scaling.sizing import LatencyModel, Load, Move
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tailrace.model.forecasting.forecast import Forecast
    from tailrace.policy.scaling.costs import Grade
    from tailrace.policy.scaling.horizon import Trajectory

    Floats = NDArray[np.float64]

WARM_UP_STEPS: Final = 2
"""For this many steps the load is only watched."""

_LOG: Final = 100
_STEADY: Final = 0.2
_BAND: Final = 0.8


@dataclass(frozen=True, slots=True)
class ScoredPrediction:
    """What was expected of a control step, and what was measured in it.

    ``predicted_ms`` was made before the step, from the rate that was expected, for the size that
    then ran; ``factor`` is the e in it.
    """

    at_us: int
    size: int
    grade: int
    expected_per_s: float
    rate_per_s: float
    predicted_ms: float
    measured_ms: float | None
    factor: float


class _Modelled(NamedTuple):
    """A model, with the factor that corrects it."""

    model: LatencyModel
    factor: float

    def latency_ms(self, size: int, grade: Grade, rate_per_s: float) -> float:
        latency_ms = self.model.latency_ms(size, rate_per_s / grade.speed)
        return self.factor * latency_ms / grade.speed

    def busy(self, size: int, grade: Grade, rate_per_s: float) -> float:
        return self.model.utilisation(size, rate_per_s / grade.speed)


class _View(NamedTuple):
    """What the first step of the horizon would be, and what all of it costs."""

    load: Load
    modelled: _Modelled
    forecast: Forecast
    rate_per_s: float
    drain_per_s: float
    latency_ms: Floats
    unable: NDArray[np.bool_]
    costs: Floats
    gamma: float


class Predictive:
    """A scaler that follows a strategy; it remembers rates and how well they were predicted.

    ``grade`` is the position of the grade that runs: the one last asked for, so set it where a move
    was only advised. ``trajectory`` is the latest plan, of which one move was made.
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        outlook: Outlook | None = None,
        *,
        grade: int | None = None,
        name: str = "predictive",
    ) -> None:
        """Begin without a past; the grade that runs is the fastest unless told."""
        self.strategy = strategy or Strategy()
        self.grade = len(self.strategy.grades) - 1 if grade is None else grade
        if not 0 <= self.grade < len(self.strategy.grades):
            raise InputError(
                f"There is no grade {grade}: give 0 to {len(self.strategy.grades) - 1}."
            )
        self.trajectory: Trajectory | None = None
        self._name = name
        self._outlook = outlook or Outlook()
        self._correction = Correction()
        self._before: _Modelled | None = None
        self._log: deque[ScoredPrediction] = deque(maxlen=_LOG)
        self._steps = 0

    @property
    def name(self) -> str:
        """What reports call it."""
        return self._name

    @property
    def predictions(self) -> tuple[ScoredPrediction, ...]:
        """The last 100 steps, predicted and measured side by side."""
        return tuple(self._log)

    @property
    def forecast_error(self) -> float | None:
        """The mean of error over rate, one step ahead; None before the second step."""
        return self._outlook.error_share

    @property
    def factor(self) -> float:
        """How far measured latencies are from the model's: e (De Matteis 2016, eq. 6.10)."""
        return self._correction.factor

    def decide(self, load: Load, /) -> Move:
        """The first move of the cheapest sequence of configurations over the horizon."""
        self._watch(load)
        strategy = self.strategy
        forecast = self._outlook.ahead(
            strategy.delay_steps + strategy.horizon, load.at_us, load.step_ms
        )
        if settling(load):
            return replace(wait(load), grade=self.grade)
        overload = load.model.utilisation(load.size, load.rate_per_s) > 1
        if self._steps <= WARM_UP_STEPS and not overload:
            watched = stay(load, f"The first {WARM_UP_STEPS} steps are only watched.")
            return replace(watched, grade=self.grade)
        view = self._view(load, forecast)
        present = (load.size, self.grade)
        sizes = range(load.limits.least, load.limits.most + 1)
        found = best_trajectory(view.costs, sizes, present, view.gamma)
        self.trajectory, self.grade = found, found.grades[0]
        return _told(strategy, view, present, found)

    def _watch(self, load: Load) -> None:
        """Hold the step that has ended against what was expected of it, and learn from it."""
        grade = self.strategy.grades[self.grade]
        self._steps += load.steps
        expected = self._outlook.add(load.rate_per_s, load.steps)
        if expected is not None and self._before is not None:
            predicted_ms = self._before.latency_ms(load.size, grade, expected)
            self._log.append(
                ScoredPrediction(
                    load.at_us,
                    load.size,
                    self.grade,
                    expected,
                    load.rate_per_s,
                    predicted_ms,
                    load.latency_ms,
                    self._before.factor,
                )
            )
        # While a move or a backlog is under way latencies say little about the model.
        steady = abs(load.done_per_s - load.rate_per_s) <= _STEADY * load.rate_per_s
        if steady and not load.corrected and not settling(load):
            plain_ms = _Modelled(load.model, 1.0).latency_ms(load.size, grade, load.rate_per_s)
            measured_ms = math.nan if load.latency_ms is None else load.latency_ms
            self._correction = self._correction.learned(measured_ms, plain_ms)
        self._before = _Modelled(load.model, self.factor)

    def _view(self, load: Load, forecast: Forecast) -> _View:
        strategy, grades = self.strategy, self.strategy.grades
        modelled = _Modelled(load.model, self.factor)
        chance, delay = strategy.chance, strategy.delay_steps
        planned = forecast.mean_per_s if chance is None else forecast.quantile(chance)
        waiting = _waiting(load, modelled, grades[self.grade], planned[:delay])
        drain_per_s = 1e3 * waiting / (load.step_ms * strategy.drain_steps)
        rates = [
            rate + (drain_per_s if step < strategy.drain_steps else 0.0)
            for step, rate in enumerate(planned[delay:])
        ]
        latency_ms, busy = _tables(load, modelled, grades, rates)
        weights = strategy.weights
        if isinstance(weights, Priorities):
            weights = weights.over(load.limits, grades, strategy.cost)
        costs = step_costs(strategy, weights, load, latency_ms, busy)
        return _View(
            load,
            modelled,
            forecast,
            rates[0],
            drain_per_s,
            latency_ms[0],
            unable(latency_ms[0], busy[0]),
            costs,
            weights.gamma,
        )


def _waiting(load: Load, modelled: _Modelled, grade: Grade, before: Sequence[float]) -> float:
    """The records that wait, beyond those that always do, when a move made now is in place.

    What runs now takes ``rate/utilisation`` off them until then.
    """
    usual_ms = modelled.latency_ms(load.size, grade, load.rate_per_s)
    usual = load.rate_per_s * usual_ms / 1e3 if math.isfinite(usual_ms) else 0.0
    waiting = max(0.0, load.backlog - usual)
    for rate in before:
        busy = modelled.busy(load.size, grade, rate)
        spare_per_s = rate / busy - rate if busy else math.inf
        waiting = max(0.0, waiting - spare_per_s * load.step_ms / 1e3)
    return waiting


def _tables(
    load: Load, modelled: _Modelled, grades: Sequence[Grade], rates: Sequence[float]
) -> tuple[Floats, Floats]:
    """Latency and utilisation at each step (first), size and grade (last)."""
    least, most = load.limits.least, load.limits.most
    latency_ms, busy = np.empty((2, len(rates), most - least + 1, len(grades)))
    for step, rate in enumerate(rates):
        for column, grade in enumerate(grades):
            for row, size in enumerate(range(least, most + 1)):
                place, share = (step, row, column), modelled.busy(size, grade, rate)
                late_ms = modelled.latency_ms(size, grade, rate) if share < 1 else math.inf
                latency_ms[place], busy[place] = late_ms, share
    return latency_ms, busy


# --- the telling ------------------------------------------------------------------------------


def _told(strategy: Strategy, view: _View, present: tuple[int, int], found: Trajectory) -> Move:
    """The first move of a trajectory, with its reason and what was not taken."""
    load, least = view.load, view.load.limits.least
    size, grade = found.sizes[0], found.grades[0]
    predicted_ms = float(view.latency_ms[size - least, grade])
    said = _rates(strategy, view)
    price = f"for {strategy.cost.of(size, strategy.grades[grade]):.3g} {strategy.cost.unit}"
    expected = _show_ms(predicted_ms)
    if (size, grade) == present:
        reason = f"{said}; it stays at {_show(strategy, *present)}, {price}: {expected} expected"
    else:
        way = " > ".join(
            _show(strategy, *at) for at in (present, *zip(found.sizes, found.grades, strict=True))
        )
        stay_ms = view.modelled.latency_ms(load.size, strategy.grades[present[1]], view.rate_per_s)
        reason = f"{said}; the cheapest way is {way}, {price}: {expected} expected"
        reason += f" where staying would come to {_show_ms(stay_ms)}"
    around = (present, (size - 1, grade), (size + 1, grade))
    others = tuple(
        _other(strategy, view, found, at, stays=at == present)
        for at in dict.fromkeys(around)
        if at != (size, grade) and least <= at[0] <= load.limits.most
    )
    return Move(size, f"{reason}.{_unkept(strategy, view)}", predicted_ms, others, grade)


def _other(
    strategy: Strategy, view: _View, found: Trajectory, at: tuple[int, int], *, stays: bool
) -> Alternative:
    """Another first move, and why it was not made."""
    place = at[0] - view.load.limits.least, at[1]
    why_not = (
        "It could not keep up."
        if view.unable[place]
        else f"Over {len(found.sizes)} steps it costs {found.firsts[place]:.4g} against "
        f"{found.cost:.4g}."
    )
    what = f"{'stay at' if stays else 'go to'} {_show(strategy, *at)}"
    return Alternative(what, float(view.latency_ms[place]), why_not)


def _rates(strategy: Strategy, view: _View) -> str:
    """What rate is planned for, as the beginning of a sentence."""
    delay = strategy.delay_steps
    low, high = view.forecast.band(_BAND)[delay]
    said = (
        f"The rate is {show_rate(view.load.rate_per_s)} and in {delay + 1} "
        f"step{'s' if delay else ''} {show_rate(round(view.forecast.mean_per_s[delay], 3))} "
        f"({show_rate(low)} to {show_rate(high)}) is expected"
    )
    if view.drain_per_s > 0:
        said += f", with {show_rate(view.drain_per_s)} more to work off a backlog"
    return said


def _unkept(strategy: Strategy, view: _View) -> str:
    """A sentence on a goal that nothing within the limits keeps; empty if something does.

    A backlog passes, so it does not count here.
    """
    load, fastest = view.load, strategy.grades[-1]
    bound_ms = load.bound_ms if strategy.goal is Goal.LATENCY else math.inf

    def keeps(size: int) -> bool:
        asked = size, fastest, view.rate_per_s - view.drain_per_s
        busy = view.modelled.busy(*asked)
        return busy < HEADROOM and view.modelled.latency_ms(*asked) <= bound_ms

    least, most = load.limits.least, load.limits.most
    if any(map(keeps, range(most, least - 1, -1))):
        return ""
    beyond = range(most + 1, 64 * most + 1)
    enough = next(filter(keeps, beyond), None)  # each one, as more do not always help
    goal = show_duration(bound_ms) if math.isfinite(bound_ms) else "up"
    instead = f"neither would {beyond[-1]}" if enough is None else f"{enough} would"
    return f" No size up to {most} keeps {goal}; {instead}."


def _show(strategy: Strategy, size: int, grade: int) -> str:
    return f"{size} {strategy.grades[grade].name}" if len(strategy.grades) > 1 else str(size)


def _show_ms(latency_ms: float) -> str:
    return show_duration(latency_ms) if math.isfinite(latency_ms) else "an ever longer latency"
