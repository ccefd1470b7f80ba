"""What the engine takes for micro-batches, and what changes of a running query cost.

A batch tells how long it took, how much of that its busiest tasks spent in steps, and on how many
executors. What is left of it is the engine's: a line over what it holds and is spread over.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import nnls

from tailrace.model.loads import Router
from tailrace.model.stages import stages_of
from tailrace.profile.costs import USUAL_BATCH, USUAL_TASK_MS, BatchCosts, ExecutorCosts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.profile.batch import BatchMeasure
    from tailrace.profile.profile import Profile

KEPT_BATCHES = 2_000


class Phase(StrEnum):
    """What went on while a batch ran."""

    CALM = "calm"
    STARTING = "starting"
    """Executors were on their way."""
    RESTARTED = "restarted"
    """It was the first of a new query."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A batch: its records, how long it took, how much of that in tasks, and there in steps.

    ``pause_ms`` is how long nothing ran before it, where it was cut later than its interval asks
    for, and else 0.
    """

    records: int
    duration_ms: float
    tasks_ms: float
    work_ms: float
    at_us: int
    plan: Plan
    phase: Phase
    pause_ms: float

    @property
    def engine_ms(self) -> float:
        """What the engine took of it."""
        return max(0.0, self.duration_ms - self.work_ms)


class BatchRecording:
    """Gathers what the batches of a flow say of the engine."""

    def __init__(self, graph: Graph) -> None:
        """Nothing was seen yet."""
        self._graph = graph
        self._kept: deque[Kept] = deque(maxlen=KEPT_BATCHES)
        self._starts_ms: list[tuple[int, float]] = []
        self._last: BatchMeasure | None = None
        self._asked_us: int | None = None

    def clear(self) -> None:
        """Let go of batches that ran under other chains."""
        self._kept.clear()

    def add(self, batch: BatchMeasure, records: int) -> None:
        """Take in a finished batch, of that many records that entered the first steps."""
        phase, pause_ms = self._phase(batch), self._pause_ms(batch)
        self._last = batch
        if batch.records:
            tasks_ms = max(0.0, (batch.computed_us - batch.started_us) / 1e3)
            work_ms = _critical_ms(self._graph, batch)
            times_ms = (batch.duration_ms, tasks_ms, work_ms)
            self._kept.append(
                Kept(records, *times_ms, batch.planned_us, batch.plan, phase, pause_ms)
            )

    def _phase(self, batch: BatchMeasure) -> Phase:
        """What went on, as this batch and the one before it tell.

        Executors were asked for when that one ended, and came at the latest when a batch has more
        slots than the one before.
        """
        last = self._last
        if last is None:
            return Phase.CALM
        if (batch.plan.executors or 0) > (last.plan.executors or 0):
            self._asked_us = last.ended_us
        elif (batch.plan.executors or 0) < (last.plan.executors or 0):
            self._asked_us = None
        starting = self._asked_us is not None
        if batch.slots > last.slots and self._asked_us is not None:
            self._starts_ms.append((batch.planned_us, (batch.ended_us - self._asked_us) / 1e3))
            self._asked_us = None
        if _shape(batch.plan) != _shape(last.plan):
            return Phase.RESTARTED
        return Phase.STARTING if starting else Phase.CALM

    def _pause_ms(self, batch: BatchMeasure) -> float:
        """How long nothing ran, if that delayed the batch beyond its interval."""
        last = self._last
        if last is None:
            return 0.0
        due_us = max(last.ended_us, last.planned_us + round(batch.plan.interval_ms * 1e3))
        return (batch.planned_us - last.ended_us) / 1e3 if batch.planned_us > due_us else 0.0

    def costs(self, bare: Profile, since_us: float) -> BatchCosts | None:
        """What batches took since then; None if none was seen."""
        batches = [kept for kept in tuple(self._kept) if kept.at_us >= since_us]
        if not batches:
            return None
        calm = [kept for kept in batches if kept.phase is Phase.CALM] or batches
        shapes = _Shapes(bare)
        several = len({shapes.further(kept.plan) for kept in calm}) > 1
        costs = _spread_costs(calm, shapes) if several else _costs(bare, calm, shapes)
        restarts_ms = [
            kept.pause_ms + max(0.0, kept.engine_ms - shapes.engine_ms(costs, kept))
            for kept in batches
            if kept.phase is Phase.RESTARTED and kept.pause_ms
        ]
        return replace(costs, restart_ms=median(restarts_ms)) if restarts_ms else costs

    def executors(self, bare: Profile, since_us: float) -> ExecutorCosts | None:
        """What starts of executors take; None if none came."""
        starts_ms = [ms for at_us, ms in self._starts_ms if at_us >= since_us]
        costs = self.costs(bare, since_us)
        if not starts_ms or costs is None:
            return None
        shapes = _Shapes(bare)
        slower = [
            kept.engine_ms / shapes.engine_ms(costs, kept)
            for kept in tuple(self._kept)
            if kept.phase is Phase.STARTING and kept.at_us >= since_us
        ]
        return ExecutorCosts(median(starts_ms), max(1.0, median(slower)) if slower else 1.0)


def _shape(plan: Plan) -> tuple[object, ...]:
    """What another query is needed for, once it differs."""
    return plan.chains, dict(plan.partitions)


class _Shapes:
    """Over how many tasks a plan spreads a batch, and what passes through the fullest."""

    def __init__(self, bare: Profile) -> None:
        self._router = Router(bare)
        self._rate_per_s = max(bare.rate_per_s, 1e-3)
        self._known: dict[tuple[tuple[str, int], ...], tuple[tuple[int, ...], float]] = {}

    def of(self, plan: Plan) -> tuple[tuple[int, ...], float]:
        """The tasks of each stage, and the share of the records that pass its fullest task.

        A record counts for each stage that it passes.
        """
        key = tuple(sorted(plan.partitions.items()))
        if key not in self._known:
            loads = self._router.loads(plan, self._rate_per_s)
            passes = math.fsum(
                float(load.rates_per_s.max()) / loads.rate_per_s * len(load.stage.chains)
                for load in loads.stages
            )
            self._known[key] = tuple(loads.tasks), passes
        return self._known[key]

    def further(self, plan: Plan) -> int:
        """The tasks beyond the first of each stage."""
        return sum(tasks - 1 for tasks in self.of(plan)[0])

    def engine_ms(self, costs: BatchCosts, kept: Kept) -> float:
        """What the engine should take for a batch."""
        tasks, passes = self.of(kept.plan)
        fixed_ms = costs.fixed_ms + costs.stages_ms(tasks)
        return max(1e-3, fixed_ms + costs.per_record_ms * passes * kept.records)


def _costs(bare: Profile, batches: list[Kept], shapes: _Shapes) -> BatchCosts:
    """What is left of the batches' durations without their steps, where all had as many tasks.

    Planning, launching and the sink take the same for every batch. What tasks spend outside
    of steps is a line over their size, whose slope is shared out over the partitions and
    stages that records pass.
    """
    rests_ms = [max(0.0, b.tasks_ms - b.work_ms) for b in batches]
    task_ms, record_ms = _likely(
        [(1.0, b.records) for b in batches], rests_ms, (USUAL_TASK_MS, USUAL_BATCH.per_record_ms)
    )
    around_ms = median(b.duration_ms - b.tasks_ms for b in batches)
    tasks, passes = shapes.of(bare.plan)
    stages_ms = BatchCosts(0.0, 0.0).stages_ms(tasks)
    expected = [around_ms + task_ms + record_ms * b.records + b.work_ms for b in batches]
    return BatchCosts(
        max(0.0, around_ms + task_ms - stages_ms),
        record_ms / passes if passes else record_ms,
        noise=_noise(batches, expected),
    )


def _spread_costs(batches: list[Kept], shapes: _Shapes) -> BatchCosts:
    """The same where batches were spread over different numbers of tasks.

    Then they tell what a further task takes as well: ``a + e*n*passes + t*further``.
    """
    usual = BatchCosts(0.0, 0.0)
    rows = [(1.0, b.records * shapes.of(b.plan)[1], float(shapes.further(b.plan))) for b in batches]
    stages_ms = (len(shapes.of(batches[-1].plan)[0]) - 1) * usual.stage_ms
    engine_ms = [max(0.0, b.engine_ms - stages_ms) for b in batches]
    beliefs = (USUAL_BATCH.fixed_ms, USUAL_BATCH.per_record_ms, usual.task_ms)
    fixed_ms, record_ms, task_ms = found = _likely(rows, engine_ms, beliefs)
    expected = [
        float(np.dot(row, found)) + stages_ms + b.work_ms
        for row, b in zip(rows, batches, strict=True)
    ]
    return BatchCosts(fixed_ms, record_ms, task_ms=task_ms, noise=_noise(batches, expected))


def _noise(batches: list[Kept], expected_ms: list[float]) -> float:
    """The coefficient of variation of durations around what is expected, blind to outliers."""
    pairs = zip(batches, expected_ms, strict=True)
    ratios = [b.duration_ms / ms for b, ms in pairs if ms > 0]
    middle = median(ratios)
    return 1.4826 * median(abs(ratio - middle) for ratio in ratios)


def _likely(
    rows: Sequence[tuple[float, ...]], spent_ms: Sequence[float], usual: tuple[float, ...]
) -> tuple[float, ...]:
    """The most likely costs of what stands in the columns, none below zero.

    Batches of one size do not say how their time splits, so what is usual is believed until they
    differ enough, each cost within as much again. Batches far off lose influence (Huber).
    """
    table, spent = np.array(rows, dtype=np.float64), np.array(spent_ms, dtype=np.float64)
    deviation = max(0.5, 1.4826 * float(np.median(np.abs(spent - np.median(spent)))))
    weights = np.ones_like(spent)
    found = np.array(usual)
    belief = np.diag(1 / found)
    for _ in range(8):
        whole = np.concatenate((table * weights[:, None] / deviation, belief))
        sides = np.concatenate((weights * spent / deviation, np.ones(len(usual))))
        found = nnls(whole, sides)[0]
        off = np.abs(spent - table @ found) / deviation
        weights = np.sqrt(1.345 / np.maximum(off, 1.345))
    return tuple(float(cost) for cost in found)


def _critical_ms(graph: Graph, batch: BatchMeasure) -> float:
    """What the busiest task of each stage spent in steps, over all stages."""
    partitions = max((len(s.busy_ms) for s in batch.steps.values()), default=1)
    whole = 0.0
    for stage in stages_of(graph, batch.plan, batch.slots, partitions):
        tasks: Counter[int] = Counter()
        for name in stage.steps:
            tasks.update(batch.steps[name].busy_ms if name in batch.steps else {})
        whole += max(tasks.values(), default=0.0)
    return whole
