"""The events of a controller: everything that it knows comes in as one of these."""

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

    ``slots`` is how many tasks can run at once. ``other_tasks`` of them are taken by tasks that run
    no step: in real-time mode those that read the source, and those behind Spark's own exchanges.
    """

    plan: Plan
    at_us: int
    slots: int = 1
    other_tasks: int = 0


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """A micro-batch has ended, with what was measured."""

    batch: BatchMeasure


@dataclass(frozen=True, slots=True)
class TasksReported:
    """A task in real-time mode reports what it measured since its last report."""

    report: SinkReport | ChainReport


@dataclass(frozen=True, slots=True)
class Idle:
    """No record is waiting or being processed."""

    at_us: int


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """Executors were requested, arrived, became ready or left."""

    pool: ExecutorPool


@dataclass(frozen=True, slots=True)
class Refused:
    """An action was not applied, for this reason."""

    action: Action
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; in real-time mode nothing else shows that an interval is over.

    ``room`` is how many slots the flow may hold now, as others of its session come and go.
    """

    at_us: int
    room: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The running backend has ended and sends no more events."""


Event = Started | BatchFinished | TasksReported | Idle | PoolChanged | Refused | Tick | Ended
