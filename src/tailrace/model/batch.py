"""What a batch takes: the one duration that predictions, the simulator and policies go by.

A batch pays for itself and then runs its stages one after the other. Each is launched, and lasts
until the last of its tasks is done:

    D = a + sum over stages of (launch + makespan of its tasks)

A task gets n records in b Arrow batches and passes them through K chains, the steps of which are
busy for ``w_1..w_K`` with all of them. The chains are processes in a row, through which Arrow
batches move as through a flow shop: the slowest sets the pace, and the others are idle while the
first batch comes to them and the last one leaves them. Where a task has less than a core for each
of its chains, they take turns on its c cores:

    task = K*(e*n + h) + f*b + max(max(w) + (sum(w) - max(w))/b, sum(w)/c)

with e for what the engine takes for a record, h for a hand-over to a chain, and f for what calls
of the steps take for an Arrow batch beside its records.

Predictions (``outcome_microbatch.py``) ask for it by the rates of partitions, the simulator
(``simulator.py``) by the records that a batch has. Batching and feasibility know it as a line,
fitted to measured batches (``microbatch.py``); :meth:`BatchDuration.line` is the line it has by
itself. Sizing (``sized.py``) knows it as :func:`shared_line`, the same where all tasks run at once
and are of one size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.model.microbatch import BatchModel
from tailrace.model.stages import makespan_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tailrace.profile.costs import BatchCosts

    Floats = NDArray[np.float64]

ARROW_RECORDS = 10_000
"""How many records pass between the JVM and Python at a time: Spark's default."""

LEAST_MS = 1e-6
"""No batch is done in less: without any cost, batches back to back would have no length."""

_ALIKE = 1e-9
"""What is off by less is a rounding error."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What the engine takes for a batch, beside the steps.

    A task pays ``per_chain_ms`` for each chain that it hands its records to, over ``arrow_records``
    at a time.
    """

    costs: BatchCosts
    per_chain_ms: float = 0.0
    arrow_records: int = ARROW_RECORDS


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What a stage has to do for a batch.

    ``records`` enter each of its partitions; the steps of each chain (row) are busy with those of a
    partition (column) for ``chain_ms``. An Arrow batch takes ``call_ms`` beside, over all steps.
    """

    records: Floats
    chain_ms: Floats
    call_ms: float = 0.0

    def times(self, factor: float) -> Work:
        """The work times a factor."""
        return Work(self.records * factor, self.chain_ms * factor, self.call_ms)

    def of(self, partitions: Sequence[int]) -> Work:
        """The work of some of the partitions."""
        chosen = list(partitions)
        return Work(self.records[chosen], self.chain_ms[:, chosen], self.call_ms)


@dataclass(frozen=True, slots=True, eq=False)
class TaskTimes:
    """How long the task of each partition takes.

    Its records come in ``batches`` Arrow batches. It spends ``ahead_ms`` in the engine and in
    calls, and ``work_ms`` in the chains, where a core for each of them would do with
    ``through_ms``.
    """

    batches: Floats
    ahead_ms: Floats
    work_ms: Floats
    through_ms: Floats

    @property
    def stretch(self) -> Floats:
        """How many times longer it is in the chains than with a core for each of them."""
        return np.maximum(1.0, self.work_ms / np.maximum(self.through_ms, 1e-12))

    @property
    def ms(self) -> Floats:
        """The whole task."""
        return self.ahead_ms + self.work_ms

    @classmethod
    def of(cls, work: Work, engine: Engine, cores: float) -> TaskTimes:
        """The times of tasks with ``cores`` each."""
        chains = len(work.chain_ms)
        batches = np.maximum(1.0, np.ceil(work.records / engine.arrow_records * (1 - _ALIKE)))
        ahead_ms = chains * (engine.costs.per_record_ms * work.records + engine.per_chain_ms)
        ahead_ms = ahead_ms + work.call_ms * batches
        if chains == 1:
            return cls(batches, ahead_ms, work.chain_ms[0], work.chain_ms[0])
        whole_ms, slowest_ms = work.chain_ms.sum(axis=0), work.chain_ms.max(axis=0)
        through_ms = slowest_ms + (whole_ms - slowest_ms) / batches
        return cls(batches, ahead_ms, np.maximum(through_ms, whole_ms / cores), through_ms)


def cores_of_a_task(tasks: int, slots: int) -> float:
    """How many cores each of the tasks has that run at once."""
    return slots / min(tasks, slots)


class StageDuration:
    """The duration of a stage, by the records of the source that a batch has."""

    def __init__(self, work: Work, engine: Engine, slots: int) -> None:
        """``work`` is what one record of the source makes, spread over the partitions."""
        self._work, self._engine, self._slots = work, engine, slots
        self._cores = cores_of_a_task(len(work.records), slots)
        self._longest = work
        if len(work.records) <= slots and _proportional(work):
            self._longest = work.of([int(np.argmax(work.records))])

    def task_ms(self, records: float) -> Floats:
        """How long the task of each partition takes."""
        return TaskTimes.of(self._work.times(records), self._engine, self._cores).ms

    def duration_ms(self, records: float) -> float:
        """How long all take on the slots; at once, the longest of them."""
        times = TaskTimes.of(self._longest.times(records), self._engine, self._cores)
        return makespan_ms(times.ms, self._slots)


class BatchDuration:
    """The duration of the batches of a flow under one plan, by the records of the source."""

    def __init__(self, works: Sequence[Work], engine: Engine, slots: int) -> None:
        """``works`` are what one record of the source makes in each stage."""
        self.stages = [StageDuration(work, engine, slots) for work in works]
        tasks = [len(work.records) for work in works]
        costs = engine.costs
        self.fixed_ms = max(LEAST_MS, costs.fixed_ms + costs.stages_ms(tasks))

    def duration_ms(self, records: float) -> float:
        """``D(N)``, from the cut of a batch to its visible results."""
        return self.fixed_ms + math.fsum(stage.duration_ms(records) for stage in self.stages)

    def line(self, records: float) -> BatchModel:
        """The batch model ``D(n) = a + c*n`` through batches of ``records`` and of twice as many.

        As long as no task gets more than one Arrow batch D is a line, and this is it. Beyond that
        calls come in steps, and chains of one task begin to overlap. It is exact at both sizes; and
        as D is not above twice the one at half the size, neither cost is below zero.
        """
        here_ms = self.duration_ms(records)
        slope_ms = max(0.0, (self.duration_ms(2 * records) - here_ms) / records)
        return BatchModel(max(0.0, here_ms - slope_ms * records), slope_ms)


def shared_line(batch_ms: float, task_ms: float, busy_ms: float, tasks: int) -> BatchModel:
    """``D(n) = a + p*s + b*n/s``: the batch model where s tasks share the records of each stage.

    It is :class:`BatchDuration` where every stage has s tasks, all of them run at once, and their
    shares are even. A record then takes b of a task's time, over all stages and with the engine's
    part, and every task costs p beside, over all stages; a is the rest.
    """
    return BatchModel(batch_ms + task_ms * tasks, busy_ms / tasks)


def _proportional(work: Work) -> bool:
    """Whether the partition with most records has the longest task, however many there are.

    So it is where a record costs a chain the same in every partition.
    """
    if len(work.records) == 1:
        return True
    shares = work.records / max(float(work.records.max()), _ALIKE)
    longest = work.chain_ms[:, [int(np.argmax(work.records))]]
    return bool((np.abs(work.chain_ms - longest * shares) <= _ALIKE * longest).all())
