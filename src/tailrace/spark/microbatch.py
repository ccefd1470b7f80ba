"""The micro-batch backend: one streaming query per flow, paced and measured batch by batch.

The steps live in the streaming plan, so that Spark plans them once and its own stateful operators
keep their meaning. Compiling each batch anew inside ``foreachBatch`` would let chains change from
batch to batch without a restart, but has Spark analyse and plan a second query for every batch,
which doubled the time of a small one when both were tried side by side: a restart between two
batches (below 0.3 s, and rare) is cheaper. Only a flow with several outputs, or with branches that
come together again, is compiled for each batch: what they share is computed once.

The interval changes live: a ``Pacer`` stands in for the clock that Spark's trigger waits on
(``jvm/src/tailrace/Pacer.java``), which works for every source and lets the query be held between
two batches, where stopping interrupts nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrace.errors import EnvironmentUnfit, FlowFailed
from tailrace.goals import SOURCE
from tailrace.profile.batch import BatchMeasure
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.moments import Moments
from tailrace.spark import probe
from tailrace.spark.failures import explained
from tailrace.spark.step import Compilation
from tailrace.spark.trace import Pipeline, outputs_of, splits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tailrace.control import Controller
    from tailrace.errors import TailraceError
    from tailrace.plan import Plan
    from tailrace.spark.chain import Meters
    from tailrace.spark.sinks import Sink

logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs what is also raised

FIRST_TRIGGER = "10 milliseconds"
"""How often the query looks for its first records, before the pacer takes over."""

PATIENCE_S = 0.1
"""How often the supervisor looks whether the query is alive; everything else wakes it."""

STOPPED = "The flow was stopped from outside: something else in this session stopped its query."


def now_us() -> int:
    """The wall clock in microseconds since the epoch."""
    return time.time_ns() // 1_000


@dataclass(frozen=True, slots=True)
class Job:
    """What is to run: a flow with its source opened and its sinks ready."""

    name: str
    spark: SparkSession
    frame: DataFrame
    arrived: str | None
    pipeline: Pipeline
    sinks: Mapping[str, Sink]
    dead_letters: Sink | None
    directory: Path
    measured: bool = True


@dataclass
class _Times:
    """The moments of the batch at hand."""

    planned_us: int
    handed_us: int
    submitted_us: int = 0
    computed_us: int = 0
    ended_us: int = 0


@dataclass
class MicroBatch:
    """Runs a job under a controller until it is told to stop, or fails.

    A supervisor thread starts the query, restarts it when the chains change, and stops it between
    two batches. The batches themselves run on Spark's stream thread, which calls ``_on_batch``.
    """

    job: Job
    controller: Controller
    on_measure: Callable[[BatchMeasure], None] | None = None
    failure: TailraceError | None = None
    restarts_ms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Prepare, start nothing yet."""
        context = self.job.spark.sparkContext
        self._meters = probe.meters(context)
        self._probe = probe.ArrivalProbe(context, self.job.arrived)
        self._by_batch = len(self.job.sinks) > 1 or splits(self.controller.graph)
        self._slots = context.defaultParallelism
        self._wake = threading.Condition()
        self._stopping = False
        self._compiled: Plan | None = None
        self._pacer: JavaObject | None = None
        self._query: StreamingQuery | None = None
        self._previous_cut_us = now_us()
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._supervise, name=f"tailrace-{self.job.name}", daemon=True
        )

    # --- the life of the query -------------------------------------------------------------

    def start(self) -> None:
        """Start the query; it runs in the background from here on."""
        try:
            self._start_query()
        except Exception as error:
            raise explained(error) from error
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the run is over, at most so long; whether it is."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Finish the batch at hand, leave a checkpoint that can be resumed, and end."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join()

    def _supervise(self) -> None:
        try:
            while self._wait_for_work():
                began = time.monotonic()
                self._stop_query()
                self._start_query()
                self.restarts_ms.append((time.monotonic() - began) * 1e3)
            self._stop_query()
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
            self.failure = explained(self._error or error)
        finally:
            self.controller.finish()

    def _wait_for_work(self) -> bool:
        """Wait until the query must be restarted (True) or is to end (False)."""
        with self._wake:
            while not self._stopping and self._alive():
                if self._compiled is not None and self._outdated(self._compiled):
                    return True
                self._wake.wait(PATIENCE_S)
        return False

    def _outdated(self, compiled: Plan) -> bool:
        plan = self.controller.plan
        return plan.chains != compiled.chains or plan.partitions != compiled.partitions

    def _alive(self) -> bool:
        query = self._query
        if query is None or query.isActive:
            return True
        error = self._error or query.exception()
        raise explained(error) if error else FlowFailed(STOPPED)

    def _start_query(self) -> None:
        job = self.job
        self._pacer = self._query = None
        self._compiled = self.controller.plan
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
        compilation = Compilation(self._compiled, self.controller.graph, meters, made_of)
        with compilation.active():
            return outputs_of(self.job.pipeline, frame)

    def _stop_query(self) -> None:
        query = self._query
        if query is None:
            return
        while self._pacer is None and query.isActive and query.status["isTriggerActive"]:
            threading.Event().wait(0.01)  # its first batch is about to bring the pacer
        if self._pacer is not None:
            self._pacer.hold()
            while query.isActive and not self._pacer.awaitHeld(1_000):
                pass
        if query.isActive:
            query.stop()
        elif self._error is not None:
            raise self._error

    # --- one batch -------------------------------------------------------------------------

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        handed = now_us()
        try:
            self._run(frame, batch_id, handed)
        except BaseException as error:
            self._error = error
            raise

    def _run(self, frame: DataFrame, batch_id: int, handed_us: int) -> None:
        times = _Times(self._cut_us(handed_us), handed_us)
        self._probe.begin(handed_us)
        probe.taken(self._meters)
        shared: list[DataFrame] = []
        outputs = self._shared_outputs(frame, shared) if self._by_batch else {}
        times.submitted_us = now_us()
        publish = [
            sink.write(outputs.get(name, frame), batch_id) for name, sink in self.job.sinks.items()
        ]
        times.computed_us = now_us()
        meters = probe.taken(self._meters)
        # Dead letters first: a replayed batch that is published already is not computed again.
        for act in (*self._dead_letters(meters, batch_id), *publish):
            act()
        times.ended_us = now_us()
        for cached in shared:
            cached.unpersist()
        self._learn(batch_id, times, meters)

    def _cut_us(self, handed_us: int) -> int:
        """When the batch was cut. Of a query's first batch only its hand-over is known."""
        if self._pacer is not None:
            return int(self._pacer.lastCutUs())
        query: Any = self._query or self.job.spark.streams.get(
            next(q.id for q in self.job.spark.streams.active if q.name == self.job.name)
        )
        jvm: Any = self.job.spark.sparkContext._jvm
        execution = query._jsq.streamingQuery()
        try:
            self._pacer = jvm.tailrace.Pacer.install(execution, self.controller.plan.interval_ms)
        except Exception as error:
            raise EnvironmentUnfit(
                f"This version of Spark ({self.job.spark.version}) does not let its trigger be "
                "paced: install a PySpark that this version of Tailrace supports."
            ) from error
        return handed_us

    def _shared_outputs(self, frame: DataFrame, shared: list[DataFrame]) -> dict[str, DataFrame]:
        """The outputs of a batch whose ways part, computed once up to there."""
        forks = self.controller.graph.forks()

        def keep(made: DataFrame, name: str) -> DataFrame:
            if name not in forks:
                return made
            shared.append(made.persist())
            return shared[-1]

        return self._outputs(keep(frame, SOURCE), keep)

    def _dead_letters(self, meters: Meters, batch_id: int) -> list[Callable[[], None]]:
        letters = [
            (batch_id, step, record, error)
            for (step, _), meter in meters.items()
            for record, error in meter.dead
        ]
        if not letters or self.job.dead_letters is None:
            return []
        frame = self.job.spark.createDataFrame(
            letters, "batch long, step string, record string, error string"
        )
        return [self.job.dead_letters.write(frame, batch_id)]

    # --- what was learnt from it -----------------------------------------------------------

    def _learn(self, batch_id: int, times: _Times, meters: Meters) -> None:
        previous_cut_us, self._previous_cut_us = self._previous_cut_us, times.planned_us
        if not self.job.measured:
            return
        measure = self._measure(batch_id, times, meters, previous_cut_us)
        if measure is None:
            return
        plan = self.controller.on_batch(measure)
        if self._pacer is not None:
            self._pacer.setInterval(float(plan.interval_ms))
        if self.on_measure is not None:
            self.on_measure(measure)
        with self._wake:
            self._wake.notify_all()

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
            steps=probe.step_measures(meters, times.handed_us),
            plan=self.controller.plan,
            slots=self._slots,
            arrivals_known=self.job.arrived is not None,
        )


def _even_ages(records: int, previous_cut_us: int, times: _Times) -> tuple[LogHistogram, Moments]:
    """Ages of records that are taken to have come evenly since the previous batch was cut."""
    oldest = (times.handed_us - previous_cut_us) / 1e3
    newest = (times.handed_us - times.planned_us) / 1e3
    ages = newest + (oldest - newest) * (np.arange(records) + 0.5) / records
    return LogHistogram.of(ages), Moments.of(ages)


def _aggregates(frame: DataFrame) -> bool:
    """Whether the plan aggregates across batches, which asks for another output mode."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    return "Aggregate" in plan.toString()
