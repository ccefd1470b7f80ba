"""The settings of a predictive scaler, and what fits it to a flow: strategy, weights, bound, model.

The weights of three costs that are counted in different units mean nothing to a person. Priorities
do: each is divided by the range of its cost, so that equal priorities weigh equally whatever the
units are (De Matteis 2016, section 7.2.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.errors import InputError
from tailrace.policy.scaling.costs import STANDARD, ExecutorCount, check_grades

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tailrace.policy.scaling.costs import Cost, Grade
    from tailrace.policy.scaling.sizing import Limits, Load

    Floats = NDArray[np.float64]

HEADROOM: Final = 0.95
"""So busy units can be at most; beyond, a configuration counts as unable to keep up."""

_PUBLISHED: Final = 11.0
"""The distance between 1 and 12 units, for which weights are published."""

_STEEPEST: Final = 12.0
_LARGEST: Final = 100.0
_BUSIEST: Final = 1e6


@dataclass(frozen=True, slots=True)
class CostWeights:
    """The factors of quality, resources and switching in the cost of a step (De Matteis, 6.12).

    The defaults are those of Lat-Node on 12 cores (table 7.2). A ``gamma`` of 0 is the published
    NoSw: each step then stands alone, and the horizon makes no difference to the first move.
    """

    alpha: float = 2.0
    beta: float = 0.5
    gamma: float = 0.4

    def __post_init__(self) -> None:
        """Refuse weights under which nothing would be wanted, or everything."""
        _check(self.alpha, self.beta, self.gamma)


@dataclass(frozen=True, slots=True)
class Priorities:
    """How much quality, resources and switching matter, as plain numbers without a unit.

    A weight is the priority over the range of its cost: of quality ``qos_range``, which at the
    bound is e (``exp(latency/bound)``); of resources what the most and dearest units cost; of
    switching eleven times the distance between the furthest configurations. The defaults give the
    published weights 2, 0.5 and 0.4 where there are 1 to 12 executors of one grade.

    Moves are counted by the square of their distance, but the square of the furthest would be no
    range: a move by one would then weigh the more against the cost of a unit the fewer units there
    are, until giving one back never pays.
    """

    qos: float = 5.4
    resource: float = 6.0
    switching: float = 48.0
    qos_range: float = math.e

    def __post_init__(self) -> None:
        """Refuse priorities under which nothing would be wanted, or everything."""
        _check(self.qos, self.resource, self.switching)
        if not 0 < self.qos_range < math.inf:
            raise InputError(
                f"A range of quality of {self.qos_range} cannot be: give a finite number above 0."
            )

    def over(self, limits: Limits, grades: Sequence[Grade], cost: Cost) -> CostWeights:
        """The weights that these priorities come to within limits."""
        dearest = max(cost.of(limits.most, grade) for grade in grades)
        furthest = math.hypot(limits.most - limits.least, len(grades) - 1)
        return CostWeights(
            self.qos / self.qos_range,
            self.resource / dearest,
            self.switching / (_PUBLISHED * max(furthest, 1.0)),
        )


def _check(quality: float, resources: float, switching: float) -> None:
    if not (0 < quality < math.inf and 0 <= resources < math.inf and 0 <= switching < math.inf):
        raise InputError(
            f"Costs cannot be weighed by {quality}, {resources} and {switching}: give finite "
            "numbers, above 0 for quality and from 0 up for resources and switching."
        )


class Goal(StrEnum):
    """What is to be kept: the bound on the latency, or the rate alone."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a predictive scaler wants, and how far it looks.

    The published strategies are a goal and a cost each: Lat-Node and Th-Node with
    ``ExecutorCount`` or ``Cores``, Lat-Power and Th-Power with ``Watts`` and grades of several
    frequencies; NoSw is a ``gamma`` of 0. Weights are priorities, or the published alpha, beta and
    gamma.

    A move is in place after ``delay_steps``, and ``horizon`` counts the steps from then on; a
    backlog is to be gone in ``drain_steps`` of them.
    ``chance`` plans for the rate that is not exceeded with it, such as 0.9; None for the mean.
    """

    goal: Goal = Goal.LATENCY
    cost: Cost = field(default_factory=ExecutorCount)
    grades: tuple[Grade, ...] = STANDARD
    weights: Priorities | CostWeights = field(default_factory=Priorities)
    horizon: int = 2
    delay_steps: int = 1
    drain_steps: int = 2
    chance: float | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be followed, before anything runs."""
        for grade in check_grades(self.grades):
            self.cost.of(1, grade)
        if self.horizon < 1 or self.delay_steps < 0 or self.drain_steps < 1:
            raise InputError(
                f"A horizon of {self.horizon} steps, a delay of {self.delay_steps} and "
                f"{self.drain_steps} to work off a backlog cannot be: give at least 1, 0 and 1."
            )
        if self.chance is not None and not 0 < self.chance < 1:
            raise InputError(f"A chance of {self.chance} cannot be planned for: give 0 to 1.")


def step_costs(
    strategy: Strategy, weights: CostWeights, load: Load, latency_ms: Floats, busy: Floats
) -> Floats:
    """Quality and resources at each step (De Matteis 2016, eq. 6.14 to 6.16 and 7.1).

    What cannot keep up costs more than all that can; and the more the busier it would be, so that
    where nothing can the most capacity is taken.
    """
    limits = load.limits
    resources = np.array(
        [
            [strategy.cost.of(size, grade) for grade in strategy.grades]
            for size in range(limits.least, limits.most + 1)
        ]
    )
    latency_goal = strategy.goal is Goal.LATENCY
    strain = np.minimum(latency_ms / load.bound_ms if latency_goal else busy / HEADROOM, _LARGEST)
    steep = np.exp(np.minimum(strain, _STEEPEST)) * (1 + np.maximum(strain - _STEEPEST, 0.0))
    costs: Floats = weights.alpha * steep + weights.beta * resources
    reach = max(limits.most, load.size) - min(limits.least, load.size)
    moves = weights.gamma * (reach**2 + len(strategy.grades) ** 2)
    beyond = 10 * len(costs) * (float(costs.max()) + moves)
    worse = costs + beyond * (1 + np.minimum(busy, _BUSIEST))
    return np.where(unable(latency_ms, busy), worse, costs)


def unable(latency_ms: Floats, busy: Floats) -> NDArray[np.bool_]:
    """Where units would not keep up, with some time to spare."""
    return (busy >= HEADROOM) | np.isinf(latency_ms)
