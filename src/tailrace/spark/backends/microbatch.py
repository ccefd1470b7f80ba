"""The micro-batch backend: one streaming query per flow, paced and measured batch by batch.

The steps live in the streaming plan, so that Spark plans them once and its own stateful operators
keep their meaning. Compiling each batch anew inside ``foreachBatch`` would let chains change from
batch to batch without a restart, but makes Spark analyse and plan a second query for every batch,
which doubled the time of a small batch when both were tried side by side: a restart between two
batches (below 0.3 s, and rare) is cheaper. Only a flow with several outputs, or with branches that
come together again, is compiled for each batch: what they share is computed once.

The interval changes live: a ``Pacer`` stands in for the clock that Spark's trigger waits on
(``jvm/src/tailrace/pacing/Pacer.java``), which works for every source and lets the query be held
between two batches, where stopping interrupts nothing.
"""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from py4j.protocol import Py4JError

from tailrace.constraint import SOURCE
from tailrace.control.actions import SetExecutors, SetFlush, SetInterval, SetLifetimes
from tailrace.control.events import BatchFinished, Idle, PoolChanged, Refused
from tailrace.errors import EnvironmentUnfit, FlowFailed
from tailrace.profile.batch import BatchMeasure
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.moments import Moments
from tailrace.profile.pool import ExecutorPool
from tailrace.profile.stall import Stall
from tailrace.spark.backends import arrivals
from tailrace.spark.backends.base import Job, SparkBackend, now_us
from tailrace.spark.backends.dead_letters import frame_of
from tailrace.spark.backends.stalls import Phases
from tailrace.spark.pipeline.compilation import Compilation
from tailrace.spark.pipeline.trace import keeps_state, outputs_of, splits
from tailrace.spark.sinks import OnceSink, compute
from tailrace.spark.sinks.base import computes_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from tailrace.control.actions import Change
    from tailrace.control.events import Event
    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.profile.live import ChainReport, SinkReport
    from tailrace.spark.cluster.executors import Executors
    from tailrace.spark.sinks import Publish, Sink
    from tailrace.spark.worker.meter import Meters

FIRST_TRIGGER = "10 milliseconds"
"""How often the query checks for its first records, before the pacer takes over."""


WAITING = "Waiting for"
"""The start of Spark's status message for a query that has nothing to do."""

UNWORKED_S = 10.0
"""How long to wait for the end of a batch when there are no executors."""


@dataclass
class _Times:
    """The times of the current batch."""

    planned_us: int
    handed_us: int
    submitted_us: int = 0
    computed_us: int = 0
    ended_us: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """The executors that a job runs on, and a callback for how many tasks they could hold.

    They follow the plan only if ``steered``.
    """

    executors: Executors
    on_slots: Callable[[int], None]
    steered: bool = True

    def look(self, wanted: int | None) -> ExecutorPool:
        """How many there are now."""
        there, ready = len(self.executors.there()), len(self.executors.ready())
        requested = self.executors.requested
        state = ExecutorPool(
            there if wanted is None else wanted,
            there if requested is None else requested,
            there,
            ready,
            self.executors.cores,
        )
        self.on_slots(state.held_slots)
        return state


class MicroBatch(SparkBackend):
    """Runs a job batch by batch; the batches call ``_on_batch`` on Spark's stream thread."""

    def __init__(
        self,
        job: Job,
        graph: Graph,
        plan: Plan,
        tell: Callable[[Event], object],
        *,
        on_measure: Callable[[BatchMeasure], None] | None = None,
        pool: Pool | None = None,
        idle_ms: float = 5_000.0,
    ) -> None:
        """``on_measure`` gets every finished batch; a ``pool`` of executors follows the plan.

        A query is idle when no batch was cut for ``idle_ms`` and no record waits.
        """
        super().__init__(job, graph, plan, tell)
        self.on_measure = on_measure
        context = job.spark.sparkContext
        self._meters = arrivals.meters(context)
        self._probe = arrivals.ArrivalProbe(context, job.arrived)
        self._by_batch = len(job.sinks) > 1 or splits(graph)
        self._keeps_state = keeps_state(graph)
        self._pool = pool
        self._idle_ms = idle_ms
        self._batches = 0
        self._slots = context.defaultParallelism
        self._seen: ExecutorPool | None = None
        self._compiled: Plan | None = None
        self._previous_cut_us = now_us()
        self._phases = Phases(self.stalls, job.stall_s)
        self._generation = 0

    # --- the life of the query -------------------------------------------------------------

    def _look(self) -> bool:
        others = self._pool is not None and self._steer(self._pool)
        if self._pool is not None and self._is_idle():
            self._tell(Idle(now_us()))
        return self._compiled is not None and (others or self._outdated())

    def _outdated(self) -> bool:
        """Whether the plan needs a different query from the compiled one."""
        plan, compiled = self.plan, self._compiled or self.plan
        return (plan.chains, plan.partitions) != (compiled.chains, compiled.partitions)

    def _steer(self, pool: Pool) -> bool:
        """Ask for the planned executors; returns whether some must go between two batches."""
        wanted = self.plan.executors
        self._look_at(pool)
        if wanted is None or not pool.steered:
            return False
        pool.executors.ask_for(wanted)
        missing = pool.executors.missing()
        if missing is not None:
            if not pool.executors.there() and not self._batches:
                raise EnvironmentUnfit(missing)
            self._look_at(pool)
            self._tell(Refused(SetExecutors(wanted), missing))
        return bool(pool.executors.surplus())

    def _look_at(self, pool: Pool) -> None:
        """Check the state of the executors, and report it if it has changed."""
        state = pool.look(self.plan.executors)
        self._slots = state.slots
        if state != self._seen:
            self._seen = state
            self._tell(PoolChanged(state))

    def can(self, action: Change) -> str | None:
        """Everything but actions for real-time mode, and for executors that it must not change."""
        if isinstance(action, SetLifetimes | SetFlush):
            return "Micro-batches are handed over whole, so nothing in them has a lifetime."
        if isinstance(action, SetExecutors) and self._pool is None:
            return "The flow does not decide on executors: give it executors=(least, most)."
        return None

    def apply(self, action: Change) -> None:
        """Change the interval at once, executors between two batches, and others by a restart."""
        super().apply(action)
        if isinstance(action, SetInterval) and self._pacer is not None:
            self._pacer.setInterval(float(action.interval_ms))

    def _is_idle(self) -> bool:
        """Whether the query has had nothing to do for a while: no record waits, no batch runs."""
        query, lately_us = self._query, now_us() - self._idle_ms * 1e3
        if query is None or self._previous_cut_us > lately_us:
            return False
        status = query.status  # it only waits after it has checked the source since its start
        return not status["isDataAvailable"] and status["message"].startswith(WAITING)

    def _start_query(self) -> None:
        job = self.job
        self._pacer = self._query = None
        self._compiled = self.plan
        if self._pool is not None:
            self._pool.executors.end_surplus()
            self._look_at(self._pool)
        frame = self._probe.on(job.frame) if job.measured else job.frame
        if not self._by_batch:
            frame = next(iter(self._outputs(frame, None).values()))
        self._query = (
            frame.writeStream.queryName(job.name)
            .outputMode("update" if _aggregates(frame) else "append")
            .trigger(processingTime=FIRST_TRIGGER)
            .option("checkpointLocation", str(job.directory / "checkpoint"))
            .foreachBatch(self._on_batch)
            .start()
        )

    def _outputs(
        self, frame: DataFrame, made_of: Callable[[DataFrame, str], DataFrame] | None
    ) -> dict[str, DataFrame]:
        """The outputs of the pipeline on a stream or a batch, compiled under the plan."""
        meters = self._meters if self.job.measured else None
        compilation = Compilation(
            self._compiled,
            self.graph,
            meters,
            made_of,
            state_directory=self._state,
            redaction=self.job.redaction,
            watched=self._telemetry.client,
        )
        with compilation.active():
            return outputs_of(self.job.pipeline, frame)

    def _stop_query(self) -> None:
        query = self._query
        if query is None:
            return
        while self._pacer is None and query.isActive and query.status["isTriggerActive"]:
            if self._late():
                break
            threading.Event().wait(0.01)  # its first batch will install the pacer
        unworked = self._pool is not None and not self._pool.executors.there()
        held = self._hold(query, UNWORKED_S if unworked else math.inf)
        self._end(query, held=held)

    def _give_up(self) -> None:
        self._generation += 1  # whatever the batch still does, it no longer publishes anything
        super()._give_up()

    def _at_hand(self) -> int:
        batch = self._phases.batch
        return super()._at_hand() if batch is None else batch

    def _hear(self, said: SinkReport | ChainReport | Stall) -> None:
        """Note that a step hangs; measurements come with the batch."""
        if isinstance(said, Stall):
            self.stalls.hear(said)

    def _check(self, now_s: float) -> None:
        self._phases.look(now_s)

    # --- one batch -------------------------------------------------------------------------

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        handed = now_us()
        try:
            self._run(frame, batch_id, handed)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._phases.end()

    def _run(self, frame: DataFrame, batch_id: int, handed_us: int) -> None:
        times = _Times(self._cut_us(handed_us), handed_us)
        self._probe.begin(handed_us)
        arrivals.taken(self._meters)
        shared: list[DataFrame] = []
        try:
            meters = self._compute_and_publish(frame, batch_id, times, shared)
        finally:
            for cached in shared:
                with suppress(Py4JError, OSError):  # a JVM that is gone holds nothing
                    cached.unpersist()
        self._learn(batch_id, times, meters)

    def _compute_and_publish(
        self, frame: DataFrame, batch_id: int, times: _Times, shared: list[DataFrame]
    ) -> Meters:
        """Have every sink compute the batch, then publish it; returns what steps measured."""
        generation = self._generation
        outputs = self._shared_outputs(frame, shared) if self._by_batch else {}
        times.submitted_us = now_us()
        publish = []
        for name, sink in self.job.sinks.items():
            self._phases.begin(batch_id, "computing", name)
            output = outputs.get(name, frame)
            publish.append((name, self._write(output, sink, batch_id, shared)))
        times.computed_us = now_us()
        meters = arrivals.taken(self._meters)
        # Dead letters first: a replayed batch that is already published is not computed again.
        for name, act in (*self._dead_letters(meters, batch_id), *publish):
            if generation != self._generation:
                raise FlowFailed(f"Batch {batch_id} was given up and is not published.")
            self._phases.begin(batch_id, "publishing", name)
            act()
        self._phases.end()
        times.ended_us = now_us()
        return meters

    def _cut_us(self, handed_us: int) -> int:
        """When the batch was cut. For a query's first batch only its hand-over is known."""
        if self._pacer is not None:
            return int(self._pacer.lastCutUs())
        query: Any = self._query or self.job.spark.streams.get(
            next(q.id for q in self.job.spark.streams.active if q.name == self.job.name)
        )
        self._pacer = self._paced(query, self.plan.interval_ms)
        return handed_us

    def _shared_outputs(self, frame: DataFrame, shared: list[DataFrame]) -> dict[str, DataFrame]:
        """The outputs of a batch with a fork, which is computed once up to there."""
        forks = self.graph.forks()

        def keep(made: DataFrame, name: str) -> DataFrame:
            if name not in forks:
                return made
            shared.append(made.persist())
            return shared[-1]

        return self._outputs(keep(frame, SOURCE), keep)

    def _write(
        self, frame: DataFrame, sink: Sink, batch_id: int, shared: list[DataFrame]
    ) -> Publish:
        """Let a sink compute and keep the batch; if it has state, it is computed in any case.

        A sink that already has the batch does not compute it again, and a user's function may not
        compute it at all. But keyed steps write their state when they are computed, and Spark
        fails a batch in which its own operators have not written theirs.
        """
        keyed = any(step.keyed_by for step in self.graph.steps)
        if self._keeps_state and isinstance(sink, OnceSink) and sink.holds(batch_id):
            compute(frame)
        elif keyed and not computes_all(sink):
            shared.append(frame.persist())
            compute(frame)
        return sink.write(frame, batch_id)

    def _dead_letters(self, meters: Meters, batch_id: int) -> list[tuple[str, Callable[[], None]]]:
        letters = [
            (batch_id, step, record, error)
            for (step, _), meter in meters.items()
            for record, error in meter.dead
        ]
        if not letters or self.job.dead_letters is None:
            return []
        frame = frame_of(self.job.spark, letters)
        return [("dead letters", self.job.dead_letters.write(frame, batch_id))]

    # --- what was learnt from it -----------------------------------------------------------

    def _learn(self, batch_id: int, times: _Times, meters: Meters) -> None:
        previous_cut_us, self._previous_cut_us = self._previous_cut_us, times.planned_us
        if not self.job.measured:
            return
        measure = self._measure(batch_id, times, meters, previous_cut_us)
        if measure is None:
            return
        self._batches += 1
        self._tell(BatchFinished(measure))
        if self._pacer is not None and self._outdated():
            self._pacer.hold()  # the next batch belongs to the next query
        if self.on_measure is not None:
            self.on_measure(measure)
        with self._wake:
            self._wake.notify_all()

    def _ran(self) -> Plan:
        """The plan of the current batch: chains and partitions as compiled."""
        compiled = self._compiled or self.plan
        return replace(self.plan, chains=compiled.chains, partitions=compiled.partitions)

    def _measure(
        self, batch_id: int, times: _Times, meters: Meters, previous_cut_us: int
    ) -> BatchMeasure | None:
        arrived = self._probe.read()
        if arrived is None:
            return None
        ages, age = arrived.ages_ms, arrived.age_ms
        if self.job.arrived is None:
            ages, age = _even_ages(arrived.records, previous_cut_us, times)
        return BatchMeasure(
            batch_id=batch_id,
            records=arrived.records,
            planned_us=times.planned_us,
            handed_us=times.handed_us,
            submitted_us=times.submitted_us,
            started_us=min(max(arrived.started_us, times.submitted_us), times.computed_us),
            computed_us=times.computed_us,
            ended_us=times.ended_us,
            ages_ms=ages,
            age_ms=age,
            steps=arrivals.step_measures(meters, times.handed_us),
            plan=self._ran(),
            slots=self._slots,
            arrivals_known=self.job.arrived is not None,
        )


def _even_ages(records: int, previous_cut_us: int, times: _Times) -> tuple[LogHistogram, Moments]:
    """Ages of records, assumed to have come evenly since the previous batch was cut."""
    oldest = (times.handed_us - previous_cut_us) / 1e3
    newest = (times.handed_us - times.planned_us) / 1e3
    ages = newest + (oldest - newest) * (np.arange(records) + 0.5) / records
    return LogHistogram.of(ages), Moments.of(ages)


def _aggregates(frame: DataFrame) -> bool:
    """Whether the plan aggregates across batches, which needs another output mode."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    return "Aggregate" in plan.toString()
