"""What every backend does: a query in the background, started, restarted and stopped cleanly."""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tailrace.control.events import Ended, Started
from tailrace.errors import EnvironmentUnfit, FlowFailed
from tailrace.spark.backends.stalls import Stalls
from tailrace.spark.backends.telemetry import TelemetryServer
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.spark.failures import explained, may_quote
from tailrace.spark.jvm.java import has_ended
from tailrace.spark.worker.telemetry import STALL_S
from tailrace.spark.worker.watch import stack_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tailrace.control.actions import Change
    from tailrace.control.events import Event
    from tailrace.errors import TailraceError
    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.profile.live import ChainReport, SinkReport
    from tailrace.profile.stall import Stall
    from tailrace.spark.backends.slots import SlotShare
    from tailrace.spark.pipeline.trace import Pipeline
    from tailrace.spark.sinks import Sink

_LOG = logging.getLogger(__name__)

PATIENCE_S = 0.1
"""How often the supervisor checks the query; other events wake it earlier."""

JVM_ENDED = (
    "Spark's JVM died in the middle of the run, killed or out of memory: check the memory of the "
    "machine and spark.driver.memory, and start again; a checkpoint resumes where it stopped."
)
WATCH_S = 1.0
"""How often it checks that the query makes progress."""

HELD_MS = 200
"""How long one check waits for a query that is to be held."""

INTERRUPT_S = 10.0
"""How long an interrupted query may take to end."""

STOPPED = "The flow was stopped from outside: something else in this session stopped its query."


def now_us() -> int:
    """The wall clock in microseconds since the epoch."""
    return time.time_ns() // 1_000


@dataclass(frozen=True, slots=True)
class Job:
    """What is to run: a flow with its source opened and its sinks ready.

    ``source_partitions`` is the number of tasks that read the source, if it is known, and
    ``redaction`` the secret that hides keys, if records and keys must not be shown;
    ``stall_s`` is how long one call of a step may take before it counts as hanging. ``share`` is
    the run's share of the session's slots; without one it uses the share of another run.
    """

    name: str
    spark: SparkSession
    frame: DataFrame
    arrived: str | None
    pipeline: Pipeline
    sinks: Mapping[str, Sink]
    dead_letters: Sink | None
    directory: Path
    measured: bool = True
    source_partitions: int | None = None
    redaction: bytes | None = field(default=None, repr=False)
    stall_s: float = STALL_S
    share: SlotShare | None = None

    @property
    def room(self) -> int:
        """How many slots it may hold: those that the session's other flows do not need."""
        return self.spark.sparkContext.defaultParallelism if self.share is None else self.share.room

    @property
    def jvm(self) -> Any:
        """Spark's JVM."""
        return self.spark.sparkContext._jvm


class SparkBackend(ABC):
    """Runs a job under a plan until it is stopped or fails; reports what happens as events.

    A supervisor thread starts the query, restarts it when the plan asks for another, and stops it
    between two batches, where nothing is interrupted. A batch that does not end in time is given
    up.
    """

    STOP_WITHIN_S: ClassVar[float] = 60.0
    """How long stopping waits for the current batch, by default."""

    def __init__(
        self,
        job: Job,
        graph: Graph,
        plan: Plan,
        tell: Callable[[Event], object],
        *,
        other_tasks: int = 0,
    ) -> None:
        """Prepare, start nothing yet. ``tell`` gets the events, from several threads.

        ``other_tasks`` hold slots besides the tasks of steps.
        """
        self.job = job
        self.graph = graph
        self.plan = plan
        self._tell = tell
        self._other_tasks = other_tasks
        self.failure: TailraceError | None = None
        self.restarts_ms: list[float] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._pacer: JavaObject | None = None
        self._query: StreamingQuery | None = None
        self._error: BaseException | None = None
        self.stalls = Stalls(job.name)
        letters = job.directory / "letters"
        self._telemetry = TelemetryServer(job.spark.sparkContext, self._hear, letters, job.stall_s)
        self._give_up_s = math.inf
        self._given_up: list[str] = []
        self._watched_s = 0.0
        self._thread = threading.Thread(
            target=self._supervise, name=f"tailrace-{job.name}", daemon=True
        )

    def start(self) -> None:
        """Start the query; it runs in the background from here on."""
        slots = self.job.spark.sparkContext.defaultParallelism
        try:
            self._tell(Started(self.plan, now_us(), slots, self._other_tasks))
        except BaseException:
            self._release()
            raise
        try:
            self._start_query()
            self._thread.start()
        except BaseException as error:
            self._abandon()
            self._release()
            self._leave_slots()
            if not isinstance(error, Exception):
                raise
            self.failure = self._explained(error)
            quoted = self.job.redaction is not None or may_quote(error)
            raise self.failure from (None if quoted else error)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to the given time for the run to end; returns whether it has."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self, within_s: float | None = None) -> None:
        """Finish the current batch, leave a checkpoint that can be resumed, and end.

        A batch that has not ended within the time is given up: the next start repeats it.
        """
        self.hurry(self.STOP_WITHIN_S if within_s is None else within_s)
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        while not self.wait(PATIENCE_S):
            if time.monotonic() > self._give_up_s + 2 * INTERRUPT_S:
                self._leave()
                return

    def hurry(self, within_s: float = 0.0) -> None:
        """Wait no longer than this for the current batch; safe to call from a signal handler."""
        self._give_up_s = min(self._give_up_s, time.monotonic() + within_s)

    def notes(self) -> tuple[str, ...]:
        """Notes on the run for the report."""
        return (*self._given_up, *self.stalls.notes(), *self._telemetry.notes())

    @abstractmethod
    def can(self, action: Change) -> str | None:
        """None if it can do that, else the reason as a sentence."""

    def apply(self, action: Change) -> None:
        """Do it: at once if possible, else when the current batch ends."""
        self.plan = action.on(self.plan)

    @abstractmethod
    def _start_query(self) -> None:
        """Start the query under the plan."""

    @abstractmethod
    def _stop_query(self) -> None:
        """Stop it between two batches."""

    @abstractmethod
    def _look(self) -> bool:
        """Supervise the running query; returns whether the plan needs another."""

    @abstractmethod
    def _check(self, now_s: float) -> None:
        """Check that the query makes progress, once a second."""

    @abstractmethod
    def _hear(self, said: SinkReport | ChainReport | Stall) -> None:
        """Handle a report of a task."""

    def _release(self) -> None:
        """Release what the backend holds besides the query."""
        self._telemetry.close()

    def _supervise(self) -> None:
        try:
            while self._wait_for_work():
                began = time.monotonic()
                if self._query is not None and self._query.isActive:
                    self._stop_query()
                self._start_query()
                self.restarts_ms.append((time.monotonic() - began) * 1e3)
            self._stop_query()
        except Exception as error:  # noqa: BLE001 - a thread has no caller to raise to
            self.failure = self._explained(self._error or error)
            self._abandon()
        finally:
            self._let_go()
            self._tell(Ended())

    def _explained(self, error: BaseException) -> TailraceError:
        """What went wrong; the same error for a JVM that is gone, whichever call noticed."""
        lost = isinstance(error, Py4JError | OSError) and has_ended(self.job.spark)
        if lost:
            return FlowFailed(JVM_ENDED)
        return explained(error, redact=self.job.redaction is not None)

    def _let_go(self) -> None:
        try:
            self._release()
        except (Py4JError, PySparkException, OSError) as error:
            self.failure = self.failure or self._explained(error)
        if self.failure is not None:
            self._leave_slots()

    def _leave_slots(self) -> None:
        """Leave the slots to others; in a run that goes well, its stop does that."""
        if self.job.share is not None:
            self.job.share.release()

    def _wait_for_work(self) -> bool:
        """Wait until the query must be restarted (True) or is to end (False)."""
        while not self._stopping:
            if not self._alive() or self._look():  # may take a while: no lock is held
                return not self._stopping
            self._keep_watch()
            with self._wake:
                if not self._stopping:
                    self._wake.wait(PATIENCE_S)
        return False

    def _keep_watch(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._watched_s + WATCH_S:
            self._watched_s = now_s
            self._check(now_s)

    def _abandon(self) -> None:
        """Stop a query that is no longer supervised, wherever it is."""
        query = self._query
        try:
            if query is not None and query.isActive:
                query.stop()
        except (Py4JError, PySparkException, OSError) as error:
            if has_ended(self.job.spark):
                return  # and its queries with it
            _LOG.warning(
                "The query of '%s' could not be stopped: %s", self.job.name, self._explained(error)
            )

    def _alive(self) -> bool:
        """Whether the query runs; if not, a restart helps, or this raises what ended it."""
        query = self._query
        if query is None or query.isActive:
            return True
        error = self._error or query.exception()
        if error is None:
            raise FlowFailed(STOPPED)
        if not self._is_mended_by_a_start(str(error)):
            raise self._explained(error)
        return False

    def _is_mended_by_a_start(self, error: str) -> bool:  # noqa: ARG002 - backends differ
        """Whether the query can simply be started again after this error."""
        return False

    @property
    def _state(self) -> Path:
        return self.job.directory / "state"

    def _paced(self, query: Any, interval_ms: float) -> JavaObject:
        """Take over the trigger of a query that is in its first batch."""
        try:
            pacer = self.job.jvm.tailrace.pacing.Pacer
            return pacer.install(query._jsq.streamingQuery(), interval_ms)
        except Exception as error:
            raise EnvironmentUnfit(
                f"The trigger of this version of Spark ({self.job.spark.version}) cannot be "
                "paced: install a PySpark that this version of Tailrace supports."
            ) from error

    def _hold(self, query: StreamingQuery, longest_s: float = math.inf) -> bool:
        """Let the current batch finish and no other begin; returns whether it did in time."""
        if self._pacer is None:
            return not self._late()
        deadline_s = time.monotonic() + longest_s
        self._pacer.hold()
        while query.isActive:
            if self._pacer.awaitHeld(HELD_MS):
                return True
            self._keep_watch()
            if self._late() or time.monotonic() > deadline_s:
                return False
        return True

    def _late(self) -> bool:
        """Whether the time for stopping is up."""
        return time.monotonic() > self._give_up_s

    def _end(self, query: StreamingQuery, *, held: bool) -> None:
        """End a query; if it is not held, its batch is interrupted, which is reported."""
        if query.isActive and held:
            query.stop()
        elif query.isActive:
            self._give_up()
        else:
            self._end_failed(query)

    def _end_failed(self, query: StreamingQuery) -> None:
        """Report that the next start repeats a batch, if that helps; else raise."""
        error = self._error or query.exception()
        if error is None:
            return
        if not self._is_mended_by_a_start(str(error)):
            raise error
        self._say_given_up(
            f"Batch {self._at_hand()} was given up, because executors or free slots were missing "
            "when the flow was stopped: a start from the same checkpoint repeats it."
        )

    def _give_up(self) -> None:
        """Interrupt the current batch: its job is cancelled, and Spark ends its Python workers."""
        hanging = " ".join(stall.sentence for stall in self.stalls.open)
        self._say_given_up(
            f"Batch {self._at_hand()} was given up, because it did not end in time when the flow "
            f"was stopped: a start from the same checkpoint repeats it. {hanging}".rstrip()
        )
        interrupting = threading.Thread(
            target=self._abandon, name=f"tailrace-{self.job.name}-interrupt", daemon=True
        )
        interrupting.start()
        interrupting.join(INTERRUPT_S)
        if interrupting.is_alive():
            self._say_given_up(
                "The query did not end when it was interrupted, since something in the driver "
                "hangs: end this process before starting the flow again."
            )

    def _at_hand(self) -> int:
        """The batch that the query is in."""
        return BatchLog(self.job.directory / "checkpoint").committed + 1

    def _leave(self) -> None:
        """Continue without the supervisor, which itself hangs, so that there is a report."""
        thread = self._thread.ident
        at = stack_of(thread) if thread is not None else ()
        self._say_given_up(
            "The run could not be ended in time, since the thread that supervises it hangs"
            f"{f' (at {at[-1]})' if at else ''}: end this process before starting the flow again."
        )
        self._telemetry.close()

    def _say_given_up(self, note: str) -> None:
        self._given_up.append(note)
        _LOG.warning("%s: %s", self.job.name, note)
