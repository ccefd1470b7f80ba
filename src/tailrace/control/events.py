"""What a controller hears of: everything that it knows comes in as one of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.control.actions import Action
    from tailrace.plan import Plan
    from tailrace.profile.batch import BatchMeasure
    from tailrace.profile.live import ChainReport, SinkReport
    from tailrace.profile.pool import ExecutorPool


@dataclass(frozen=True, slots=True)
class Started:
    """A backend has begun to run a plan, the first one or another than before.

    ``slots`` is how many tasks can run at once, of which ``other_tasks`` are held by tasks that are
    no step's: in real-time mode those that read the source, and those behind Spark's own exchanges.
    """

    plan: Plan
    at_us: int
    slots: int = 1
    other_tasks: int = 0


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """A micro-batch has ended, and this was measured of it."""

    batch: BatchMeasure


@dataclass(frozen=True, slots=True)
class TasksReported:
    """A task of real-time mode says what it measured since it last did."""

    report: SinkReport | ChainReport


@dataclass(frozen=True, slots=True)
class Idle:
    """No record waits and none is worked on."""

    at_us: int


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """Executors were asked for, came, got ready or went."""

    pool: ExecutorPool


@dataclass(frozen=True, slots=True)
class Refused:
    """An action was not done, for that reason."""

    action: Action
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; in real-time mode nothing else says that an interval is over.

    ``room`` is how many slots the flow may hold now, as others of its session come and go.
    """

    at_us: int
    room: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more will come of the backend that runs."""


Event = Started | BatchFinished | TasksReported | Idle | PoolChanged | Refused | Tick | Ended
