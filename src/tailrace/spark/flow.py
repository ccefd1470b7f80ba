"""Flow: a pipeline, its source, its sink, and the latency that it must keep."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.control import BatchController, LiveController, Mode
from tailrace.errors import ConstraintError, InputError
from tailrace.flow import OnError
from tailrace.goals import SINK, constraint
from tailrace.plan import Backend, Plan, first_plan
from tailrace.report.data import Report, report_of
from tailrace.spark.backend import Job, now_us
from tailrace.spark.interrupt import ctrl_c
from tailrace.spark.microbatch import MicroBatch
from tailrace.spark.realtime import RealTime
from tailrace.spark.settings import findings, session
from tailrace.spark.sinks import as_sink
from tailrace.spark.sources import open_source
from tailrace.spark.trace import trace
from tailrace.spark.usage import Meter
from tailrace.units import duration_ms, positive_duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from threading import Event

    from pyspark.sql import SparkSession

    from tailrace.flow import Graph
    from tailrace.goals import Constraint
    from tailrace.profile.batch import BatchMeasure
    from tailrace.spark.sinks import Sink
    from tailrace.spark.sources import Opened, Source
    from tailrace.spark.trace import Pipeline

LOOK_S = 0.5
"""How often a run is looked at."""

NO_ARRIVALS = (
    "No column says when records arrived: they are taken to have come evenly since the previous "
    "batch."
)


class Flow:
    """A pipeline with a declared latency.

    ``pipeline`` is an ordinary function from DataFrame to DataFrame, or to a dict of DataFrames by
    the name of the output; ``sink`` is then a dict of sinks by the same names. ``source`` is a
    streaming DataFrame, a function of the session that returns one, or a load to replay.

    Args:
        name: how reports and Spark's own tools speak of the flow.
        source: where records come from.
        pipeline: what happens to them.
        sink: where results go: something of ``tailrace.sinks``, or a function
            ``(frame, batch_id)``.
        arrived: the column that says when a record arrived. Without one, records are taken to
            have come evenly since the previous batch, and the report says so.
        checkpoint: the directory that a run leaves, and that a later run resumes from. Without
            one, a run starts afresh and leaves nothing.
        dead_letters: where records go that a step with ``on_error="dead-letter"`` raised on.
        interval: the adjustment interval, at the end of each of which plans may change.
        start_interval: the batch interval to begin with; 0 is back to back.
        warm_up: how long intervals are shown but not counted, while the JVM gets warm.
        mode: ``enforce``, ``advise`` (decide, but change nothing) or ``observe``.
        backend: ``microbatch``, or ``realtime`` for latencies of milliseconds.
        recovery: in real-time mode, how much of the input a crash may make the flow repeat: the
            length of a real-time batch.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        pipeline: Pipeline,
        sink: object,
        *,
        arrived: str | None = None,
        checkpoint: str | Path | None = None,
        dead_letters: object | None = None,
        interval: str | float = "5 s",
        start_interval: str | float = 0.0,
        warm_up: str | float = "10 s",
        mode: str = "enforce",
        backend: str = "microbatch",
        recovery: str | float = "60 s",
    ) -> None:
        """Declare the flow; nothing runs yet."""
        if backend not in set(Backend):
            raise InputError(f"backend={backend!r} is not known: write 'microbatch' or 'realtime'.")
        if mode not in set(Mode):
            raise InputError(f"mode={mode!r} is not known: write 'observe', 'advise' or 'enforce'.")
        self.name = name
        self.source = source
        self.pipeline = pipeline
        self.sinks = _sinks(sink)
        self.arrived = arrived
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.dead_letters = None if dead_letters is None else as_sink(dead_letters)
        self.interval_ms = positive_duration_ms(interval, "the adjustment interval")
        self.start_interval_ms = duration_ms(start_interval)
        self.warm_up_ms = duration_ms(warm_up)
        self.mode = Mode(mode)
        self.backend = Backend(backend)
        self.recovery_ms = positive_duration_ms(recovery, "the recovery time")
        self.constraints: tuple[Constraint, ...] = ()

    def keep(
        self,
        *,
        every: str | float = "5 s",
        path: tuple[str, ...] | None = None,
        **bounds: str | float,
    ) -> Flow:
        """Declare a latency to keep: ``flow.keep(mean="400 ms")``, ``flow.keep(p99="1 s")``.

        Over the records that enter in any ``every``, the mean or the quantile must stay within
        the bound. ``path`` names the first and the last step that count; without it, the whole
        way from arrival to visible result does. Several constraints may overlap: the tightest
        demand wins.
        """
        if not bounds:
            raise ConstraintError('Nothing to keep: write flow.keep(mean="400 ms"), or p99="1 s".')
        more = (constraint(name, bound, every=every, path=path) for name, bound in bounds.items())
        self.constraints = (*self.constraints, *more)
        return self

    def graph(self, spark: SparkSession | None = None) -> Graph:
        """The graph of named steps, traced from the pipeline. Nothing is executed."""
        with tempfile.TemporaryDirectory(prefix="tailrace-") as directory:
            opened = open_source(self.source, self.arrived, spark or session(), Path(directory))
            return trace(self.pipeline, opened.frame)

    def start(
        self,
        spark: SparkSession | None = None,
        *,
        plan: Callable[[Graph], Plan] | None = None,
        measured: bool = True,
        on_measure: Callable[[BatchMeasure], None] | None = None,
    ) -> Run:
        """Start the flow and return at once.

        ``plan`` makes another plan to begin with; ``measured=False`` runs without measuring, and
        so without control; ``on_measure`` is told of every finished batch.
        """
        return Run(self, spark or session(), plan, measured, on_measure)

    def run(self, seconds: float | None = None, spark: SparkSession | None = None) -> Report:
        """Run for so many seconds, or until interrupted, and report.

        Ctrl-C ends the run as the time does: the batch at hand is finished, the checkpoint can be
        resumed, the report is made.
        """
        run = self.start(spark)
        with ctrl_c() as asked_to_end:
            for _ in run.looks(seconds, asked_to_end):
                pass
            return run.stop()


class Run:
    """A flow that is running."""

    def __init__(
        self,
        flow: Flow,
        spark: SparkSession,
        plan: Callable[[Graph], Plan] | None,
        measured: bool,
        on_measure: Callable[[BatchMeasure], None] | None,
    ) -> None:
        """Open, trace and start everything."""
        self.flow = flow
        self._temporary = flow.checkpoint is None
        self._directory = (
            Path(tempfile.mkdtemp(prefix="tailrace-"))
            if flow.checkpoint is None
            else flow.checkpoint
        )
        try:
            self._meter = Meter(spark.sparkContext.defaultParallelism)
            opened = self._open(spark)
            graph = trace(flow.pipeline, opened.frame)
            self._check(graph, measured)
            slots = spark.sparkContext.defaultParallelism
            start = plan(graph) if plan else self._first_plan(graph, slots)
            self.controller = self._control(graph, start, slots)
            self._notes = tuple(f"{f.what} {f.remedy}" for f in findings(spark))
            if opened.arrived is None:
                self._notes += (NO_ARRIVALS,)
            self._backend = self._backend_for(self._job(spark, opened, measured), on_measure)
            self._backend.start()
        except BaseException:
            self._clean()
            raise

    def _first_plan(self, graph: Graph, slots: int) -> Plan:
        flow = self.flow
        if flow.backend is Backend.REALTIME:
            return replace(first_plan(graph, flow.recovery_ms, slots=1), backend=Backend.REALTIME)
        return first_plan(graph, flow.start_interval_ms, slots)

    def _control(self, graph: Graph, plan: Plan, slots: int) -> BatchController | LiveController:
        flow, origin_us = self.flow, now_us()
        if plan.backend is Backend.REALTIME:
            return LiveController(
                graph,
                flow.constraints,
                plan,
                origin_us=origin_us,
                mode=flow.mode,
                interval_ms=flow.interval_ms,
                recovery_ms=flow.recovery_ms,
                slots=slots,
            )
        return BatchController(
            graph,
            flow.constraints,
            plan,
            origin_us=origin_us,
            mode=flow.mode,
            interval_ms=flow.interval_ms,
        )

    def _backend_for(
        self, job: Job, on_measure: Callable[[BatchMeasure], None] | None
    ) -> MicroBatch | RealTime:
        if isinstance(self.controller, LiveController):
            return RealTime(job, self.controller)
        return MicroBatch(job, self.controller, on_measure)

    def _open(self, spark: SparkSession) -> Opened:
        self._directory.mkdir(parents=True, exist_ok=True)
        identity = self._directory / "identity"
        if not identity.exists():
            identity.write_text(uuid.uuid4().hex, encoding="utf-8")
        named = identity.read_text(encoding="utf-8")
        for sink in (*self.flow.sinks.values(), self.flow.dead_letters):
            if sink is not None:
                sink.prepare(spark, named)
        return open_source(self.flow.source, self.flow.arrived, spark, self._directory)

    def _check(self, graph: Graph, measured: bool) -> None:
        missing = set(graph.sinks) ^ set(self.flow.sinks)
        if missing:
            raise InputError(
                f"The outputs of the pipeline ({_outputs(graph.sinks)}) and the sinks of the flow "
                f"({_outputs(self.flow.sinks)}) do not match: give one sink for each output."
            )
        wants = [s.name for s in graph.steps if s.on_error is OnError.DEAD_LETTER]
        if wants and self.flow.dead_letters is None:
            raise InputError(
                f"Step '{wants[0]}' has on_error='dead-letter' and the flow has nowhere to put "
                "dead letters: give it Flow(..., dead_letters=sink)."
            )
        if wants and not measured:
            raise InputError(
                f"Step '{wants[0]}' has on_error='dead-letter', and dead letters travel with the "
                "measurements: run the flow measured."
            )

    def _job(self, spark: SparkSession, opened: Opened, measured: bool) -> Job:
        flow = self.flow
        return Job(
            flow.name,
            spark,
            opened.frame,
            opened.arrived,
            flow.pipeline,
            flow.sinks,
            flow.dead_letters,
            self._directory,
            measured,
            opened.partitions,
        )

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most so long; whether the flow has ended by itself, which means it failed."""
        return self._backend.wait(seconds)

    def looks(self, seconds: float | None, asked_to_end: Event) -> Iterator[None]:
        """The moments at which to look at the run, until its time is up, it fails, or is ended."""
        left = seconds
        while (left is None or left > 0) and not asked_to_end.is_set():
            step = LOOK_S if left is None else min(LOOK_S, left)
            if self.wait(step):
                return
            left = None if left is None else left - step
            yield

    def stop(self) -> Report:
        """Finish the batch at hand, end, and report; raises if the flow had failed."""
        self._backend.stop()
        report = self.report()
        self._clean()
        if self._backend.failure is not None:
            raise self._backend.failure
        return report

    def report(self) -> Report:
        """What happened so far."""
        return report_of(
            self.flow.name,
            self.controller,
            self._meter.read(),
            warm_up_ms=self.flow.warm_up_ms,
            restarts_ms=tuple(self._backend.restarts_ms),
            notes=self._notes,
        )

    def _clean(self) -> None:
        if self._temporary:
            shutil.rmtree(self._directory, ignore_errors=True)


def _sinks(given: Any) -> dict[str, Sink]:
    if isinstance(given, Mapping):
        return {f"{SINK}:{name}": as_sink(sink) for name, sink in given.items()}
    return {SINK: as_sink(given)}


def _outputs(names: Any) -> str:
    return ", ".join(name.removeprefix(f"{SINK}:") for name in names) or "none"
