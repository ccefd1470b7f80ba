"""A micro-batch on a simulated machine: its records go through planning, tasks and sink.

Every batch becomes a ``BatchMeasure``, so that whatever controls a real query controls simulated
ones (``control/simulated.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tailrace.constraint import SOURCE
from tailrace.errors import InputError
from tailrace.model.batch import Engine, TaskTimes, Work, cores_of_a_task
from tailrace.model.stages import schedule, stages_of
from tailrace.profile.batch import BatchMeasure, StepMeasure
from tailrace.profile.calls import Calls
from tailrace.profile.costs import BatchCosts
from tailrace.profile.histogram import LogHistogram, bin_of
from tailrace.profile.moments import Moments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tailrace.graph import Graph
    from tailrace.load.trace import Trace
    from tailrace.model.stages import Stage
    from tailrace.plan import Plan

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]

_KEYS_COUNTED = 20
_GOLDEN = 2_654_435_769
"""2**32 over the golden ratio: multiplied by it, neighbouring keys land far apart."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a record costs in a step: gamma distributed with that mean and variation.

    ``selectivity`` is how many records leave for each one that enters. An Arrow batch of records
    takes ``call_ms`` beside them.
    """

    service_ms: float
    cv: float = 0.0
    selectivity: float = 1.0
    call_ms: float = 0.0

    def __post_init__(self) -> None:
        """Refuse costs that no step can have."""
        costs = (self.service_ms, self.cv, self.selectivity, self.call_ms)
        if not all(0 <= x < math.inf for x in costs):
            raise InputError(
                "The service time, variation, selectivity and call of a step cannot be negative or "
                f"infinite as in {self}: give finite numbers from 0 up."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """The machine and the engine that are simulated.

    Every batch pays ``planning_ms`` before its tasks and ``sink_ms`` after them; each of its stages
    but the first ``stage_ms``, the second ``shuffle_ms`` more, and each stage ``per_task_ms`` for
    every task beyond the first. A task pays ``per_chain_ms`` for every chain that it hands its
    records to, and ``per_record_ms`` for every record of each (``batch.py`` has the formula).
    A batch takes ``most_records`` at most, where that is given. Records pass from process to
    process ``arrow_records`` at a time. ``noise`` is the coefficient
    of variation of the whole batch, lognormal. ``cold`` holds the factors by which the engine,
    though not the steps, is slower in the first batches. A change of chains or partitions restarts
    the query, which takes ``restart_ms``; a query that runs back to back looks for records every
    ``poll_ms``.

    ``slots`` is how many tasks run at once, unless the plan speaks of executors: then there are as
    many as it wants, of ``cores`` each, new ones ``start_ms`` after they are wanted; they take
    tasks of a batch that runs already, if it has some to give. Until then the engine is slower by a
    factor ``starting``, where they start on machines that it shares.
    """

    planning_ms: float
    sink_ms: float
    steps: Mapping[str, StepCost]
    per_record_ms: float = 0.0
    per_chain_ms: float = 0.0
    per_task_ms: float = 0.0
    stage_ms: float = 0.0
    shuffle_ms: float = 0.0
    slots: int = 2
    source_partitions: int = 1
    arrow_records: int = 100
    most_records: int | None = None
    noise: float = 0.0
    cold: tuple[float, ...] = ()
    restart_ms: float = 0.0
    poll_ms: float = 10.0
    cores: int = 1
    start_ms: float = 0.0
    starting: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a machine that cannot run."""
        most = 1 if self.most_records is None else self.most_records
        counts = (self.slots, self.cores, self.source_partitions, self.arrow_records, most)
        if min(counts) < 1 or self.poll_ms <= 0:
            raise InputError(
                "A plant needs slots, cores, source partitions and records per Arrow batch and per "
                "batch of at least 1 and a poll above 0 ms."
            )
        tasks = (self.per_record_ms, self.per_chain_ms, self.per_task_ms)
        starts = (self.restart_ms, self.start_ms, self.starting, *self.cold)
        stages = (self.stage_ms, self.shuffle_ms)
        costs = (self.planning_ms, self.sink_ms, *tasks, *stages, self.noise, *starts)
        if not all(0 <= x < math.inf for x in costs):
            raise InputError("The costs of a plant must be finite numbers from 0 up.")

    @property
    def engine(self) -> Engine:
        """What it takes for a batch, beside the steps."""
        costs = BatchCosts(
            self.planning_ms + self.sink_ms,
            self.per_record_ms,
            self.stage_ms,
            self.per_task_ms,
            self.shuffle_ms,
        )
        return Engine(costs, self.per_chain_ms, self.arrow_records)

    def slowed(self, factor: float) -> Plant:
        """The plant with an engine that many times slower."""
        if factor == 1:
            return self
        return replace(
            self,
            planning_ms=self.planning_ms * factor,
            sink_ms=self.sink_ms * factor,
            per_chain_ms=self.per_chain_ms * factor,
            per_task_ms=self.per_task_ms * factor,
            stage_ms=self.stage_ms * factor,
            shuffle_ms=self.shuffle_ms * factor,
            per_record_ms=self.per_record_ms * factor,
        )


@dataclass(slots=True)
class SimulatedBatch:
    """One batch on its way through the plant. Times in ms since its tasks were submitted.

    ``joining`` are slots that come while it runs, and how long after its cut.
    """

    graph: Graph
    plant: Plant
    trace: Trace
    plan: Plan
    records: Indices
    rng: np.random.Generator
    joining: tuple[int, float] = (0, 0.0)
    left: dict[str, Indices] = field(default_factory=dict)
    steps: dict[str, StepMeasure] = field(default_factory=dict)
    read_ms: list[tuple[float, int]] = field(default_factory=list)

    def measure(self, batch_id: int, cut_us: int) -> BatchMeasure:
        """Run the stages one after another, each when the one before it is done."""
        plant, slow = self.plant, self._slowness()
        self.left[SOURCE] = self.records
        clock_ms = 0.0
        stages = stages_of(self.graph, self.plan, plant.slots, plant.source_partitions)
        for number, stage in enumerate(stages):
            launch_ms = plant.engine.costs.launch_ms(number, stage.partitions)
            clock_ms = self._run(stage, clock_ms, slow) + launch_ms * slow
        planning_ms, sink_ms = plant.planning_ms * slow, plant.sink_ms * slow
        handed_us = cut_us + round(planning_ms / 2 * 1e3)
        read = sum(count for _, count in self.read_ms)
        started_ms = sum(at * count for at, count in self.read_ms) / read if read else 0.0
        submitted_us = cut_us + round(planning_ms * 1e3)
        computed_us = submitted_us + round(clock_ms * 1e3)
        ages_ms = (handed_us - self.trace.due_us[self.records]) / 1e3
        return BatchMeasure(
            batch_id=batch_id,
            records=len(self.records),
            planned_us=cut_us,
            handed_us=handed_us,
            submitted_us=submitted_us,
            started_us=submitted_us + round(started_ms * 1e3),
            computed_us=computed_us,
            ended_us=computed_us + round(sink_ms * 1e3),
            ages_ms=LogHistogram.of(ages_ms),
            age_ms=Moments.of(ages_ms),
            steps=self.steps,
            plan=self.plan,
            slots=plant.slots,
        )

    def _slowness(self) -> float:
        """How much slower than usual this batch is, with mean 1."""
        if not self.plant.noise:
            return 1.0
        sigma = math.sqrt(math.log1p(self.plant.noise**2))
        return float(self.rng.lognormal(-(sigma**2) / 2, sigma))

    def _run(self, stage: Stage, start_ms: float, slow: float) -> float:
        """Run a stage from ``start_ms``; when it is done."""
        inputs = self.graph.streams_to(stage.chains[0][0])
        records = np.concatenate([self.left[stream.origin] for stream in inputs])
        partition = self._partition(records, stage)
        counts = np.bincount(partition, minlength=stage.partitions)
        passed = {}
        for name in (name for chain in stage.chains for name in chain):
            work = self._serve(name, records, partition, stage.partitions)
            passed[name] = work
            records, partition = work.records_out, work.partition_out
            self.left[name] = records
        times = _StageTimes.of(stage, self.plant, counts, passed)
        task_ms = times.tasks.ms
        more, cut_ms = self.joining
        joined_ms = max(0.0, (cut_ms - self.plant.planning_ms * slow - start_ms) / slow)
        starts_ms, end_ms = schedule(task_ms, self.plant.slots, max(0, more), joined_ms)
        if inputs[0].origin == SOURCE:
            mean_ms = float(starts_ms @ counts) / max(1, int(counts.sum()))
            self.read_ms.append((start_ms + mean_ms * slow, int(counts.sum())))
        handed_ms = start_ms + self.plant.planning_ms * slow / 2
        for name, work in passed.items():
            keys = self._frequent(work.records_in) if stage.keyed else {}
            entered_ms = handed_ms + slow * (starts_ms + times.entered_ms[name])
            self.steps[name] = work.measure(entered_ms, slow * times.stay_ms[name], slow, keys)
        return start_ms + end_ms * slow

    def _partition(self, records: Indices, stage: Stage) -> Indices:
        """Where records go: by the hash of their key, or in turn."""
        if not stage.keyed:
            return records % stage.partitions
        hashed = (self.trace.key[records].astype(np.int64) * _GOLDEN & 0xFFFFFFFF) >> 16
        return hashed % stage.partitions

    def _serve(self, name: str, records: Indices, partition: Indices, partitions: int) -> _Work:
        """The work of a step on the records of each partition, and what leaves it."""
        cost, rng = self.plant.steps[name], self.rng
        counts = np.bincount(partition, minlength=partitions)
        busy_ms: Floats = counts.astype(np.float64) * cost.service_ms
        service_ms = Moments(float(len(records)), cost.service_ms, 0.0)
        if cost.cv and cost.service_ms:
            scale = cost.cv**2
            times_ms = rng.gamma(1 / scale, scale * cost.service_ms, len(records))
            busy_ms = np.bincount(partition, times_ms, partitions).astype(np.float64)
            service_ms = Moments.of(times_ms)
        out, partition_out = records, partition
        if cost.selectivity != 1:
            copies = np.floor(cost.selectivity + rng.random(len(records))).astype(np.int64)
            out, partition_out = np.repeat(records, copies), np.repeat(partition, copies)
        return _Work(records, out, partition_out, counts, busy_ms, service_ms)

    def _frequent(self, records: Indices) -> dict[str, int]:
        """The most frequent keys of some records."""
        keys, counts = np.unique(self.trace.key[records], return_counts=True)
        most = np.argsort(-counts, kind="stable")[:_KEYS_COUNTED]
        return {self.trace.key_names[keys[i]]: int(counts[i]) for i in most}


@dataclass(frozen=True, slots=True)
class _Work:
    """What a step has to do in one batch, by partition."""

    records_in: Indices
    records_out: Indices
    partition_out: Indices
    counts: Indices
    busy_ms: Floats
    service_ms: Moments

    def measure(
        self, entered_ms: Floats, stay_ms: Floats, slow: float, keys: dict[str, int]
    ) -> StepMeasure:
        """The measure of the step, from when records enter it and how long they stay."""
        records = len(self.records_in)
        if not records:
            return StepMeasure()
        service = self.service_ms
        seen = np.flatnonzero(self.counts)
        bins, where = np.unique(bin_of(stay_ms[seen]), return_inverse=True)
        in_bins = np.bincount(where, self.counts[seen]).astype(np.int64)
        return StepMeasure(
            records_in=records,
            records_out=len(self.records_out),
            service_ms=Moments(service.count, service.mean * slow, service.m2 * slow**2),
            residence_ms=LogHistogram(bins, in_bins),
            busy_ms={int(p): float(self.busy_ms[p]) * slow for p in seen},
            entered_ms=float(entered_ms @ self.counts) / records,
            left_ms=float((entered_ms + stay_ms) @ self.counts) / records,
            keys=keys,
            cpu_ms=float(self.busy_ms.sum()) * slow,
            calls=Calls.of(
                zip(self.counts[seen].tolist(), (self.busy_ms[seen] * slow).tolist(), strict=True)
            ),
        )


@dataclass(frozen=True, slots=True)
class _StageTimes:
    """How long the task of each partition takes, and when records enter each step in it."""

    tasks: TaskTimes
    entered_ms: dict[str, Floats]
    stay_ms: dict[str, Floats]

    @classmethod
    def of(
        cls, stage: Stage, plant: Plant, counts: Indices, passed: Mapping[str, _Work]
    ) -> _StageTimes:
        """The times of a stage on an idle machine.

        If one of the b Arrow batches of a task takes ``w_k`` in chain k, the i-th of them enters
        chain k at ``w_1 + ... + w_(k-1) + i*max(w_1..w_k)``, a flow shop.
        """
        chain_ms = np.array([sum(passed[name].busy_ms for name in chain) for chain in stage.chains])
        call_ms = math.fsum(plant.steps[name].call_ms for name in stage.steps)
        work = Work(counts.astype(np.float64), chain_ms, call_ms)
        cores = cores_of_a_task(stage.partitions, plant.slots)
        tasks = TaskTimes.of(work, plant.engine, cores)
        pace_ms = np.maximum.accumulate(chain_ms / tasks.batches, axis=0)
        entered_ms, stay_ms = {}, {}
        before_ms = np.zeros(stage.partitions)
        for number, chain in enumerate(stage.chains):
            handed_ms = tasks.ahead_ms * (number + 1) / len(stage.chains)
            turn_ms = (tasks.batches - 1) / 2 * pace_ms[number]
            for name in chain:
                entered_ms[name] = handed_ms + tasks.stretch * (before_ms + turn_ms)
                stay_ms[name] = tasks.stretch * passed[name].busy_ms / tasks.batches
                before_ms = before_ms + passed[name].busy_ms / tasks.batches
        return cls(tasks, entered_ms, stay_ms)
