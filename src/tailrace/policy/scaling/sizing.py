"""What every scaler sees and answers: one interface for ours and for others.

A scaler is asked at the end of each control step, and within one if the rate has surely risen, and
answers with a size: the number of units (executors, workers, cores) to run on from then on. While a
move is under way it is asked as well, so that it misses nothing, but not followed. It may remember
what it saw, but uses nothing else: no clock, no random numbers, no cluster. The same loads give the
same moves, so that a scaler can be rehearsed in the simulator and replayed from a log.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tailrace.errors import InputError

if TYPE_CHECKING:
    from tailrace.policy.decision import Alternative


@dataclass(frozen=True, slots=True)
class Limits:
    """Between how many units a scaler may choose, and how many tasks run at once on each."""

    least: int = 1
    most: int = 1
    cores: int = 1

    def __post_init__(self) -> None:
        """Refuse a range that holds nothing."""
        if not 1 <= self.least <= self.most:
            raise InputError(
                f"From {self.least} to {self.most} executors is not a range: give (least, most) "
                "with 1 <= least <= most."
            )
        if self.cores < 1:
            raise InputError(f"An executor with {self.cores} cores runs nothing: give at least 1.")

    def within(self, size: float) -> int:
        """The whole size from ``least`` to ``most`` that is not below the given one, if any."""
        return self.most if size > self.most else max(self.least, math.ceil(size))


class LatencyModel(Protocol):
    """What the latency would be on another number of units, or at another rate."""

    def latency_ms(self, size: int, rate_per_s: float) -> float:
        """The constrained latency that is expected; infinite where the units cannot keep up."""

    def utilisation(self, size: int, rate_per_s: float) -> float:
        """The share of the units' time that the records would take; above 1 they cannot keep up."""


@dataclass(frozen=True, slots=True)
class Load:
    """What was measured in the control step that has just ended.

    ``rate_per_s`` counts records that arrived and ``done_per_s`` those that were finished;
    ``service_ms`` is how long one unit is busy with a record and ``busy`` the share of time that
    units were. ``latency_ms`` is the constrained statistic, without what is added to it by batches
    that are longer than they need be, and None when no record was finished; ``backlog`` is how
    many records wait at the end of the step. ``blocked`` is the share of time in which records had
    to wait because all units were taken.

    ``corrected`` is set if the model has been corrected by measurements already, so that a scaler
    must not correct it again.

    ``steps`` is how many control steps have passed since the scaler was last asked: usually 1, and
    0 where more is known of the same one, such as that its rate has risen.

    ``size`` is what runs, ``wanted`` what has been asked for; they differ while a move is under
    way. ``since_move`` counts whole control steps since the last move was complete.
    """

    at_us: int
    step_ms: float
    size: int
    limits: Limits
    bound_ms: float
    rate_per_s: float
    done_per_s: float
    service_ms: float
    busy: float
    latency_ms: float | None
    backlog: float
    model: LatencyModel
    blocked: float = 0.0
    steps: int = 1
    wanted: int | None = None
    since_move: int = 1_000_000
    corrected: bool = False

    @property
    def moving(self) -> bool:
        """Whether a move is still under way."""
        return self.wanted is not None and self.wanted != self.size


@dataclass(frozen=True, slots=True)
class Move:
    """The size that a scaler wants, why, and what it expects of it.

    Equal to the present size when nothing should change. ``grade`` is the speed grade, for scalers
    that choose one.
    """

    size: int
    reason: str
    predicted_ms: float | None = None
    alternatives: tuple[Alternative, ...] = field(default=())
    grade: int = 0


class Scaler(Protocol):
    """Anything that answers a load with a move."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def decide(self, load: Load, /) -> Move:
        """The size to run on from now on."""
