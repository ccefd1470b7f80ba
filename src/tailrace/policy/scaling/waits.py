"""What was measured at the tasks of a step, and how long records wait there with more or fewer.

In real-time mode each task of a step is a queue of its own. A step with p tasks makes its records
wait ``W(p) = a/(p - b)``, where b is the work that comes in, in tasks, and a tells how unevenly it
comes (Lohrmann 2016, section 4.6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.model.kingman import Correction, Kingman

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BUSY_UP_TO = 0.9
"""No step is planned to be busier than this, unless its most tasks force it."""

BOTTLENECK = 0.95
"""From here on a step is a bottleneck, and what was measured of it is no basis for a model."""

ROUNDING = 1e-9

_STEADY = 1e-15
"""Times that vary by less than floating point resolves count as equal; waits computed from such a
variation would be meaningless."""


@dataclass(frozen=True, slots=True)
class WaitCurve:
    """``W(p) = a/(p - b)``: how long records wait at a step with p tasks, on average.

    ``offered`` is b, the work that comes in, in tasks kept busy; ``scale_ms`` is a. With b tasks or
    fewer the wait has no end.
    """

    scale_ms: float
    offered: float

    def wait_ms(self, tasks: int) -> float:
        """How long records wait with this number of tasks."""
        return self.scale_ms / (tasks - self.offered) if tasks > self.offered else math.inf

    def saved_ms(self, tasks: int) -> float:
        """What one more task saves; infinite where these tasks cannot keep up."""
        spare = tasks - self.offered
        return self.scale_ms / (spare * (spare + 1)) if spare > 0 else math.inf


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """What was measured at the tasks of one step, and how many of them there may be.

    ``service_ms`` is how long a task is busy with a record, ``gap_ms`` the mean time between two
    arrivals at one task (infinite where none came), and the coefficients of variation are theirs.
    ``waited_ms`` is how long records waited in front of a task, None if unknown. ``latency_ms`` is
    what a record spends in the step itself. A step that cannot be scaled has ``least`` and
    ``most`` equal to ``tasks``.
    """

    name: str
    service_ms: float
    gap_ms: float
    cv_arrivals: float
    cv_service: float
    waited_ms: float | None
    tasks: int
    least: int
    most: int
    latency_ms: float = 0.0
    curve: WaitCurve = field(init=False, repr=False, compare=False)
    """``b = p*S/A`` and ``a = e*S*b*(ca**2 + cs**2)/2`` (Lohrmann 2016, eq. 4.7, in short).

    Service and both variations are assumed not to depend on the number of tasks.
    """

    def __post_init__(self) -> None:
        """Refuse what no step can have, and work out the curve."""
        if not self.gap_ms > 0:
            raise InputError(
                f"Records cannot come to step {self.name} every {self.gap_ms} ms: give the mean "
                "time between two at one task, or infinity where none came."
            )
        if not (1 <= self.least <= self.most and self.tasks >= 1):
            raise InputError(
                f"Step {self.name} cannot have {self.tasks} tasks of {self.least} to {self.most}: "
                "give whole numbers from 1 up, the least first."
            )
        for name in ("cv_arrivals", "cv_service"):
            if 0 < getattr(self, name) < _STEADY:
                object.__setattr__(self, name, 0.0)
        offered = self.tasks * self.utilisation
        variation = (self.cv_arrivals**2 + self.cv_service**2) / 2
        scale_ms = self.queue.correction * self.service_ms * offered * variation
        object.__setattr__(self, "curve", WaitCurve(scale_ms, offered))

    @property
    def utilisation(self) -> float:
        """``rho = S/A``: the share of time that a task is busy, or would have to be."""
        return self.service_ms / self.gap_ms

    @property
    def queue(self) -> Kingman:
        """The queue at one of the present tasks, fitted to the wait that was measured there.

        The fitting factor e is the measured wait over Kingman's (Lohrmann 2016, eq. 4.5). It
        counts as 0.2 or 5 at most, the limits of De Matteis that :class:`Correction` has: without
        any, a burst makes it explode and too many tasks are asked for. The prototype's 0.8 to 1.2
        is too narrow, for Kingman's formula alone is off by more than half at low load. Where
        nothing can be learned, from a saturated queue, from one without waits or without a
        measured one, it is 1: the formula as it is.
        """
        plain = Kingman(1_000.0 / self.gap_ms, self.service_ms, self.cv_arrivals, self.cv_service)
        measured_ms = math.nan if self.waited_ms is None else self.waited_ms
        return replace(plain, correction=Correction(span=1).after(measured_ms, plain).factor)

    @property
    def unhurried(self) -> int:
        """The fewest tasks that are at most 90 % busy, ``b/0.9``, regardless of the limits."""
        return whole(self.tasks * self.utilisation / BUSY_UP_TO)

    @property
    def floor(self) -> int:
        """The fewest tasks that may be chosen: the user's least, and no busier than 90 %."""
        return min(self.most, max(self.least, self.unhurried))


def whole(number: float) -> int:
    """Rounded up, but not for the sake of a rounding error."""
    return math.ceil(number - ROUNDING)


def within(wait_ms: float, budget_ms: float) -> bool:
    """Whether a wait keeps a budget, but for a rounding error."""
    return wait_ms <= budget_ms * (1 + ROUNDING)


def path_wait_ms(path: Iterable[TaskLoad], sizes: Mapping[str, int]) -> float:
    """``W = sum(W_i(p_i))`` (Lohrmann 2016, eq. 4.7)."""
    return math.fsum(task.curve.wait_ms(sizes[task.name]) for task in path)
