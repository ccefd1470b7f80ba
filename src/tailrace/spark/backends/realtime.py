"""The real-time backend: long tasks through which records flow one by one.

One streaming query per flow, with ``trigger(realTime=...)``. Chains get their records through our
own hand-over (``jvm/src/tailrace/handover/HandOver.java``); steps with partitions of their own come
after a pipelined shuffle. Tasks report measurements while they run (``worker/telemetry.py``), and
the lifetimes of open batches change while they run. If a plan needs another query, the current
batch is ended early, so that nothing is repeated.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tailrace.constraint import is_sink
from tailrace.control.actions import SetExecutors, SetLifetimes, SetPartitions
from tailrace.control.events import TasksReported, Tick
from tailrace.errors import InputError
from tailrace.plan import chain_name
from tailrace.policy.realtime import SHORTEST_BATCH_MS
from tailrace.profile.stall import Stall
from tailrace.spark.backends.arrivals import arrived_us
from tailrace.spark.backends.base import Job, SparkBackend, now_us
from tailrace.spark.backends.dead_letters import DeadLetters
from tailrace.spark.backends.slots import SLOTS_S
from tailrace.spark.backends.telemetry import seen
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.spark.pipeline.compilation import Compilation, carried, lost_in, tagged
from tailrace.spark.pipeline.trace import outputs_of
from tailrace.spark.settings import EXTENSION, conf_of
from tailrace.spark.sinks import StreamSink
from tailrace.spark.sinks.base import ended
from tailrace.spark.worker.chain import TAG
from tailrace.spark.worker.operator import FAILURE
from tailrace.spark.worker.telemetry import TelemetryClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from tailrace.constraint import Constraint
    from tailrace.control.actions import Change
    from tailrace.control.events import Event
    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.profile.live import ChainReport, SinkReport
    from tailrace.spark.sinks import Sink

_LOG = logging.getLogger(__name__)

LONGEST_END_S = 10.0
"""How long a batch may take to end early, by default. Tasks on executors do not notice the request:
their batch is given up if it takes longer, and repeated by the next start."""

SILENCE_S = 10.0
FIRST_WORD_S = 30.0
"""How long steps may be silent before that is reported; workers take a while to start."""

SILENCE = (
    "Nothing was heard from the steps for {:.0f} s while the query ran, so measurements are "
    "missing: tasks send them by UDP to {}, which every executor must be able to reach."
)

LOST = re.compile(
    r"ExecutorLostFailure|Lost executor"
    r"|java\.io\.IOException: (?:Failed to connect to|Connection from \S+ closed)"
    r"|\bio\.netty\.\S*Exception\b|\bClosedChannelException\b"
)
"""Spark's errors for a batch that lost an executor; a task that was sending to it may notice first.
Spark itself repeats tasks of micro-batches; those of a real-time batch send records to each other
and can only be repeated together."""

CROWDED = "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT"
"""Spark's error for a batch that finds too few free slots: because an executor was lost, or because
other flows of the session hold them for a moment."""

LOSSES = 3
"""How often in a row a batch may lose an executor before the flow itself is blamed."""

TICK_MS = 20.0
"""How often a keyed step with timers is called to check them while no records come."""

CROWDED_PAUSE_S = 1.0
"""How long a batch that found too few free slots waits before it is started again."""

NEEDED = {
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled": "false",
    "spark.sql.streaming.realTimeMode.dangerouslyAllowCheckpointV1.enabled": "true",
}
"""Settings made in a session when its first real-time flow starts; nothing else uses them.

Spark's list of allowed operators has none that runs Python. The log is written batch by batch,
since the state of keyed steps is kept by batch. And a flow may continue the log that micro-batches
wrote, which is dangerous only for Spark's own stateful operators.
"""


class RealTime(SparkBackend):
    """Runs a job in real-time mode."""

    STOP_WITHIN_S = LONGEST_END_S

    def __init__(
        self,
        job: Job,
        graph: Graph,
        plan: Plan,
        tell: Callable[[Event], object],
        *,
        other_tasks: int = 1,
    ) -> None:
        """Prepare, start nothing yet."""
        super().__init__(job, graph, plan, tell, other_tasks=other_tasks)
        self.flow_id = uuid4().hex
        self._compiled: Plan | None = None
        self._timed = {step.name for step in graph.steps if step.timed}
        committed = BatchLog(job.directory / "checkpoint").committed
        self._letters = DeadLetters(job.directory / "letters", committed)
        self._published = -1
        self._losses: list[int] = []
        self._crowded_s: dict[int, float] = {}
        self._begun_s = 0.0
        self._silent_s = 0.0

    def notes(self) -> tuple[str, ...]:
        """Notes on the run for the report."""
        found = list(super().notes())
        if self._silent_s:
            found.append(SILENCE.format(self._silent_s, self._telemetry.client.host))
        if self._losses:
            batches = ", ".join(str(batch) for batch in self._losses)
            found.append(f"Executors were lost and their batches repeated: {batches}.")
        if self._crowded_s:
            batches = ", ".join(str(batch) for batch in self._crowded_s)
            found.append(f"Batches that had to wait for free slots: {batches}.")
        return tuple(found)

    def _hear(self, said: SinkReport | ChainReport | Stall) -> None:
        if isinstance(said, Stall):
            self.stalls.hear(said)
        else:
            self._tell(TasksReported(said))

    def _check(self, now_s: float) -> None:
        """Detect silence: tasks report once a second, whether records come or not."""
        if self._pacer is None or not self.graph.names:
            return
        heard_s = self._telemetry.heard_s
        quiet_s = now_s - max(self._begun_s, heard_s or 0.0)
        if quiet_s >= (FIRST_WORD_S if heard_s is None else SILENCE_S):
            if not self._silent_s:
                _LOG.warning("%s: nothing is heard from the steps.", self.job.name)
            self._silent_s = max(self._silent_s, quiet_s)

    def _release(self) -> None:
        try:
            super()._release()
        finally:
            handover = self.job.jvm.tailrace.handover
            handover.Lifetime.forget(self.flow_id)
            handover.FlushInterval.forget(self.flow_id)

    # --- the life of the query -------------------------------------------------------------

    def _is_mended_by_a_start(self, error: str) -> bool:
        """Whether a restart helps: after a lost executor, or when other flows hold the slots.

        A lost executor is replaced, and the batch repeated. Slots are waited for, a second at a
        time.
        """
        batch, now_s = self._at_hand(), time.monotonic()
        if CROWDED in error:
            crowded_s = self._crowded_s.setdefault(batch, now_s)
            with self._wake:
                if not self._stopping:
                    self._wake.wait(CROWDED_PAUSE_S)
            return now_s - crowded_s <= SLOTS_S
        if not has_lost_executor(error) or self._losses.count(batch) >= LOSSES:
            return False
        self._losses.append(batch)
        return True

    def _start_query(self) -> None:
        job, plan = self.job, self.plan
        if job.share is not None:
            job.share.wait_for(self._tasks_of(plan.partitions), lambda: self._stopping)
        self._pacer = self._query = None
        self._begun_s = time.monotonic()
        self._compiled = plan
        self._set_lifetimes(plan)
        job.jvm.tailrace.pacing.BatchClock.install()
        job.jvm.tailrace.handover.FlushInterval.set(self.flow_id, float(plan.flush_ms))
        (name, sink), *_ = job.sinks.items()
        for key, value in NEEDED.items():
            job.spark.conf.set(key, value)
        writer = sink.attach(self._output(name, sink))  # type: ignore[attr-defined]
        writer = (
            writer.queryName(job.name)
            .outputMode("update")
            .trigger(realTime=f"{max(plan.interval_ms, SHORTEST_BATCH_MS):.0f} milliseconds")
            .option("checkpointLocation", str(job.directory / "checkpoint"))
        )
        with self._as_flow():
            self._query = writer.start()

    @contextmanager
    def _as_flow(self) -> Iterator[None]:
        """Within the block, the JVM and tasks know queries of this thread as this flow's.

        Flows of one session share a JVM, and their steps may have the same names.
        """
        context = self.job.spark.sparkContext
        name = self.job.jvm.tailrace.handover.FlowId.PROPERTY
        context.setLocalProperty(name, self.flow_id)
        try:
            yield
        finally:
            context.setLocalProperty(name, None)  # type: ignore[arg-type]

    def _output(self, name: str, sink: Any) -> DataFrame:
        """The pipeline on records that carry their arrival time, measured at its end."""
        compilation = Compilation(
            self._compiled,
            self.graph,
            telemetry=self._telemetry.client,
            state_directory=self._state,
            redaction=self.job.redaction,
        )
        output = compiled(self.job, compilation, sink)
        return seen(output, self._telemetry.client, name) if self.job.measured else output.drop(TAG)

    def _look(self) -> bool:
        if self._query is not None and self._pacer is None:
            self._pace(self._query)
        self._publish_letters()
        self._tell(Tick(now_us(), self.job.room))
        plan, compiled = self.plan, self._compiled
        return compiled is not None and (
            (plan.chains, plan.partitions, plan.flush_ms, plan.interval_ms)
            != (compiled.chains, compiled.partitions, compiled.flush_ms, compiled.interval_ms)
        )

    def _tasks_of(self, partitions: Mapping[str, int]) -> int:
        """The tasks that hold slots with these partitions."""
        return self._other_tasks + sum(partitions.values())

    def can(self, action: Change) -> str | None:
        """Everything but changing executors, and having more partitions than there are slots.

        The slots are claimed here: another flow may have taken them since they were counted.
        """
        if isinstance(action, SetExecutors):
            return "In real-time mode a flow holds its slots, so executors cannot come and go."
        if isinstance(action, SetPartitions) and self.job.share is not None:
            return self.job.share.claim(self._tasks_of(action.partitions))
        return None

    def apply(self, action: Change) -> None:
        """Change lifetimes while records flow, and everything else when the current batch ends."""
        super().apply(action)
        if isinstance(action, SetLifetimes):
            self._set_lifetimes(self.plan)

    def _publish_letters(self) -> None:
        """Publish the dead letters of batches committed since the last call."""
        if self.job.dead_letters is None:
            return
        committed = BatchLog(self.job.directory / "checkpoint").committed
        if committed > self._published:
            self._letters.publish(self.job.spark, self.job.dead_letters, committed)
            self._published = committed

    def _pace(self, query: StreamingQuery) -> None:
        """Take over the trigger, so that the query can be held between two batches."""
        if query.status["isTriggerActive"]:
            self._pacer = self._paced(query, 0.0)

    def _stop_query(self) -> None:
        query = self._query
        if query is None:
            return
        while self._pacer is None and query.isActive and not self._late():
            self._pace(query)
            threading.Event().wait(0.01)
        clock = self.job.jvm.tailrace.pacing.BatchClock
        identity = str(query.id)
        clock.end(identity)
        try:
            told = self._give_up_s < math.inf
            held = self._hold(query, math.inf if told else LONGEST_END_S)
            self._end(query, held=held)
        finally:
            clock.goOn(identity)
        self._publish_letters()

    def _set_lifetimes(self, plan: Plan) -> None:
        lifetime = self.job.jvm.tailrace.handover.Lifetime
        for chain in plan.chains:
            name = chain_name(chain)
            lifetime.set(self.flow_id, name, float(plan.lifetimes_ms.get(name, 0.0)))
            if chain[0] in self._timed:
                lifetime.setTick(self.flow_id, name, TICK_MS)


def has_lost_executor(error: str) -> bool:
    """Whether a batch failed because an executor went away, not because a step failed."""
    return FAILURE not in error and bool(LOST.search(error))


def compiled(job: Job, compilation: Compilation, sink: Sink) -> DataFrame:
    """The output of a job, whose records carry their arrival time as far as it is known."""
    arrived = job.arrived
    if arrived is None:
        raise InputError(
            "No column says when records arrived, and in real-time mode nothing else does: "
            "name one with Flow(..., arrived='column')."
        )
    source = tagged(job.frame, arrived_us(arrived))
    with compilation.active():
        output = next(iter(outputs_of(job.pipeline, source).values()))
        return carried(ended(sink, output))


def check(job: Job, graph: Graph, plan: Plan, constraints: Iterable[Constraint]) -> int:
    """Refuse a job that real-time mode cannot run, before anything is started.

    Returns:
        The tasks that it holds slots for besides those of the plan's partitions: those of the
        source, and those after Spark's own exchanges.
    """
    obstacles = _why_not_start(job, graph)
    if not obstacles:
        output = _preview(job, graph, plan)
        obstacles = _why_not_judge(output) if _to_the_end(constraints) else []
    if obstacles:
        raise InputError(f"The flow cannot run in real-time mode: {obstacles[0]}")
    needed = _slots_needed(job, output)
    if job.share is not None:
        job.share.wait_for(needed)
    return needed - sum(plan.partitions.values())


def why_not(job: Job, graph: Graph, constraints: Iterable[Constraint]) -> list[str]:
    """Why a job cannot run in real-time mode, in sentences that say what to do."""
    found = _why_not_start(job, graph)
    if found or not _to_the_end(constraints):
        return found
    return _why_not_judge(_preview(job, graph, None))


def _to_the_end(constraints: Iterable[Constraint]) -> bool:
    """Whether a constraint counts until results are visible, so that arrivals must be known."""
    return any(is_sink(constraint.path[-1]) for constraint in constraints)


def _why_not_start(job: Job, graph: Graph) -> list[str]:
    """What stands against it in the session, the source, the sinks and the shape of the graph."""
    found = []
    if conf_of(job.spark, EXTENSION.key) != EXTENSION.value:
        found.append(
            f"the session was built without {EXTENSION.key}={EXTENSION.value}; build it with "
            "tailrace.session(), or set that."
        )
    if not _reads_live(job):
        found.append(
            "its source cannot be read in real-time mode; use Kafka or a load to replay, or "
            "backend='microbatch'."
        )
    if len(job.sinks) > 1 or graph.forks():
        found.append(
            "it forks, and in real-time mode Spark reads a source for one branch only; make "
            "each output a flow of its own, or use backend='microbatch'."
        )
    found.extend(
        f"the sink '{type(sink).__name__.lower()}' takes whole batches; use kafka, each or "
        "discard, or backend='microbatch'."
        for sink in job.sinks.values()
        if not isinstance(sink, StreamSink)
    )
    return found


def _why_not_judge(output: DataFrame) -> list[str]:
    """What stands against judging it: an operator that loses the time of a record's arrival."""
    if TAG in output.columns:
        return []
    why = (
        f"there is {lost_in(output)} on the path, after which a record's arrival is no longer "
        "known, so its latency could not be measured; end the path of the constraint before that, "
        "or use backend='microbatch'."
    )
    return [why]


def _slots_needed(job: Job, output: DataFrame) -> int:
    """The tasks that run at once: those of the source, and those after every exchange."""
    shuffle = int(conf_of(job.spark, "spark.sql.shuffle.partitions") or 200)
    behind = job.jvm.tailrace.plan.LivePlan.tasksBehindExchanges(output._jdf, shuffle)
    reading = job.source_partitions or job.jvm.tailrace.plan.LivePlan.streams(job.frame._jdf)
    return int(reading) + int(behind)


def _preview(job: Job, graph: Graph, plan: Plan | None) -> DataFrame:
    """The output as it would be run, but without telemetry."""
    compilation = Compilation(plan, graph, telemetry=TelemetryClient("", 0, ""))
    return compiled(job, compilation, next(iter(job.sinks.values())))


def _reads_live(job: Job) -> bool:
    """Whether the source implements Spark's interface for real-time reading."""
    return bool(job.jvm.tailrace.plan.LivePlan.readsLive(job.frame._jdf))
