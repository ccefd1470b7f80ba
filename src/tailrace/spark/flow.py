"""Flow: a pipeline, its source, its sink, and the latency that it must keep."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.constraint import SINK, constraint
from tailrace.control import Mode
from tailrace.errors import ConstraintError, InputError
from tailrace.plan import Backend
from tailrace.policy.scaling.choice import DEFAULT, scaler_of
from tailrace.policy.scaling.sizing import Limits
from tailrace.spark.backends.switch import AUTO
from tailrace.spark.interrupt import ctrl_c
from tailrace.spark.kafka import uses_kafka
from tailrace.spark.pipeline.trace import trace
from tailrace.spark.run import Run
from tailrace.spark.session import session
from tailrace.spark.sinks import as_sink
from tailrace.spark.sources import open_source
from tailrace.spark.worker.telemetry import STALL_S
from tailrace.units import duration_ms, positive_duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tailrace.constraint import Constraint
    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.policy.scaling.sizing import Scaler
    from tailrace.profile.batch import BatchMeasure
    from tailrace.report.data import Report
    from tailrace.spark.pipeline.trace import Pipeline
    from tailrace.spark.sinks import Sink
    from tailrace.spark.sources import Source


class Flow:
    """A pipeline with a declared latency.

    ``pipeline`` is an ordinary function from DataFrame to DataFrame, or to a dict of DataFrames by
    output name; ``sink`` is then a dict of sinks by the same names. ``source`` is a streaming
    DataFrame, a function of the session that returns one, or a load to replay.

    Args:
        name: the name of the flow in reports and in Spark's own tools.
        source: where records come from.
        pipeline: what happens to them.
        sink: where results go: a sink from ``tailrace.sinks``, or a function
            ``(frame, batch_id)``.
        arrived: the column that says when a record arrived. Without one, records are assumed to
            have come evenly since the previous batch, and the report says so.
        checkpoint: the directory that a run leaves, and that a later run resumes from. Without
            one, a run starts from scratch and leaves nothing.
        dead_letters: where records go that a step with ``on_error="dead-letter"`` raised on.
        interval: the adjustment interval, at the end of each of which plans may change.
        start_interval: the first batch interval, 0 for back to back; by default, a third of the
            tightest bound where plans are enforced, else 0.
        warm_up: how long intervals are shown but not counted, while the JVM warms up.
        mode: ``enforce``, ``advise`` (decide, but change nothing) or ``observe``.
        backend: ``microbatch``, ``realtime`` for latencies of milliseconds, or ``auto`` for the
            cheaper of the two that keeps every constraint.
        executors: the least and the most executors that the flow may run on, on a cluster whose
            session ``tailrace.session(executors=...)`` built; without it their number is left
            alone. Steps with a ``scale`` get as many partitions as tasks run at once.
        scaler: what decides their number: ``predictive`` (the default), ``reactive``, or any
            ``Scaler``.
        recovery: in real-time mode, how much of the input the flow may have to repeat after a
            crash: the length of a real-time batch.
        redact: keep the contents of records out of errors, logs, reports and profiles: an error
            names the step and the line, not the record, and keys get pseudonyms that mean nothing
            outside the run. Dead letters still hold whole records.
        stall: how long one call of a step may take before it counts as hanging; it is then shown
            with its stack, in a warning and in the report.
        stop_within: how long stopping waits for the current batch; then the batch is given up, and
            repeated by the next start from the checkpoint. By default 60 s, in real-time mode
            10 s.
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
        start_interval: str | float | None = None,
        warm_up: str | float = "10 s",
        mode: str = "enforce",
        backend: str = "microbatch",
        recovery: str | float = "60 s",
        executors: tuple[int, int] | None = None,
        scaler: str | Scaler = DEFAULT,
        redact: bool = False,
        stall: str | float = STALL_S * 1e3,
        stop_within: str | float | None = None,
    ) -> None:
        """Declare the flow; nothing runs yet."""
        if backend not in {*Backend, AUTO}:
            raise InputError(
                f"backend={backend!r} is not known: write 'microbatch', 'realtime' or 'auto'."
            )
        if mode not in set(Mode):
            raise InputError(f"mode={mode!r} is not known: write 'observe', 'advise' or 'enforce'.")
        self.name = name
        self.source = source
        self.pipeline = pipeline
        self.sinks = _sinks(sink)
        self.arrived = arrived
        self.checkpoint = None if checkpoint is None else _directory(checkpoint)
        self.dead_letters = None if dead_letters is None else as_sink(dead_letters)
        self.interval_ms = positive_duration_ms(interval, "the adjustment interval")
        self.start_interval_ms = None if start_interval is None else duration_ms(start_interval)
        self.warm_up_ms = duration_ms(warm_up)
        self.mode = Mode(mode)
        self.backend = backend
        self.recovery_ms = positive_duration_ms(recovery, "the recovery time")
        if executors is not None and backend != Backend.MICROBATCH:
            raise InputError(
                f"With backend={backend!r} the number of executors cannot change: leave out "
                "executors, or write backend='microbatch'."
            )
        scaler_of(scaler)  # refuses an unknown name
        self.executors = None if executors is None else Limits(*executors)
        self.scaler = scaler
        self.redact = redact
        self.stall_ms = positive_duration_ms(stall, "the time after which a step hangs")
        self.stop_within_ms = None if stop_within is None else duration_ms(stop_within)
        self.constraints: tuple[Constraint, ...] = ()

    @property
    def uses_kafka(self) -> bool:
        """Whether a session for the flow needs Spark's Kafka connector."""
        return uses_kafka(self.source, *self.sinks.values(), self.dead_letters)

    def keep(
        self,
        *,
        every: str | float = "5 s",
        path: tuple[str, ...] | None = None,
        **bounds: str | float,
    ) -> Flow:
        """Declare a latency to keep: ``flow.keep(mean="400 ms")``, ``flow.keep(p99="1 s")``.

        Over the records that enter in any ``every``, the mean or the quantile must stay within
        the bound. ``path`` names the first and the last step that count; by default the whole way
        from arrival to visible result counts. Constraints may overlap: the tightest demand wins.
        """
        if not bounds:
            raise ConstraintError('Nothing to keep: write flow.keep(mean="400 ms"), or p99="1 s".')
        more = (constraint(name, bound, every=every, path=path) for name, bound in bounds.items())
        self.constraints = (*self.constraints, *more)
        return self

    def graph(self, spark: SparkSession | None = None) -> Graph:
        """The graph of named steps, traced from the pipeline. Nothing is executed."""
        with tempfile.TemporaryDirectory(prefix="tailrace-") as directory:
            spark = spark or session(kafka=self.uses_kafka)
            opened = open_source(self.source, self.arrived, spark, Path(directory))
            return trace(self.pipeline, opened.frame)

    def start(
        self,
        spark: SparkSession | None = None,
        *,
        plan: Callable[[Graph], Plan] | None = None,
        measured: bool = True,
        on_measure: Callable[[BatchMeasure], None] | None = None,
        after_restore: bool = False,
    ) -> Run:
        """Start the flow and return at once.

        ``plan`` makes another first plan; ``measured=False`` runs without measuring, and so
        without control; ``on_measure`` is called with every finished batch.

        With ``after_restore`` the flow resumes from a checkpoint that is older than the output,
        for example one restored from a copy: batches in the output that the checkpoint does not
        know are set aside, and their records are read and computed again. Without it such a start
        is refused.
        """
        used = spark or session(kafka=self.uses_kafka)
        return Run(self, used, plan, measured, on_measure, after_restore=after_restore)

    def run(
        self,
        seconds: float | None = None,
        spark: SparkSession | None = None,
        *,
        after_restore: bool = False,
    ) -> Report:
        """Run for a number of seconds, or until interrupted, and report.

        Ctrl-C ends the run as if its time were up: the current batch is finished, the checkpoint
        can be resumed, the report is made. A second Ctrl-C gives up the current batch.
        ``after_restore`` is as for ``start``.

        Raises:
            TailraceError: If the flow fails; its ``report`` is what was measured until then.
        """
        run = self.start(spark, after_restore=after_restore)
        with ctrl_c(run.hurry) as asked_to_end:
            for _ in run.looks(seconds, asked_to_end):
                pass
            return run.stop()


def _directory(given: str | Path) -> Path:
    if "://" in str(given):
        raise InputError(
            f"The checkpoint '{given}' is an address: name a directory that the driver and all "
            "executors have under one path."
        )
    return Path(given)


def _sinks(given: Any) -> dict[str, Sink]:
    if isinstance(given, Mapping):
        return {f"{SINK}:{name}": as_sink(sink) for name, sink in given.items()}
    return {SINK: as_sink(given)}
