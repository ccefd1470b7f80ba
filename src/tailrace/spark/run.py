"""Run: a flow that is running, on either backend."""

from __future__ import annotations

import math
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

from tailrace.constraint import SINK
from tailrace.control import Controller, Mode
from tailrace.control.backend import Steering
from tailrace.control.scaling import Scaling
from tailrace.control.switching import Switching
from tailrace.errors import EnvironmentUnfit, InputError, TailraceError
from tailrace.graph import OnError
from tailrace.plan import Backend, Plan, first_plan
from tailrace.policy.batching import first_interval_ms
from tailrace.policy.scaling.choice import scaler_of
from tailrace.report.data import Report, report_of
from tailrace.spark.backends.base import Job
from tailrace.spark.backends.microbatch import MicroBatch, Pool
from tailrace.spark.backends.realtime import RealTime, check, why_not
from tailrace.spark.backends.slots import MICROBATCH, SlotShare
from tailrace.spark.backends.switch import AUTO, Switch
from tailrace.spark.checkpoints.checkpoint import Checkpoint
from tailrace.spark.cluster.executors import Executors, in_charge, warmer
from tailrace.spark.health.selftest import require_milliseconds
from tailrace.spark.health.usage import UsageMeter
from tailrace.spark.jvm.hush import hush
from tailrace.spark.pipeline.trace import traced
from tailrace.spark.settings import findings
from tailrace.spark.sinks.base import OnceSink
from tailrace.spark.sinks.once import compare
from tailrace.spark.sources import most_records, open_source
from tailrace.state.lock import sole_user
from tailrace.state.partitions import partitions_of
from tailrace.units import duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Event

    from pyspark.sql import SparkSession

    from tailrace.control.actions import SwitchBackend
    from tailrace.graph import Graph
    from tailrace.policy.scaling.sizing import Limits
    from tailrace.profile.batch import BatchMeasure
    from tailrace.profile.stall import Stall
    from tailrace.spark.flow import Flow
    from tailrace.spark.pipeline.trace import Traced
    from tailrace.spark.sources import Opened

LOOK_S = 0.5
"""How often a run is checked."""

NO_ARRIVALS = (
    "No column says when records arrived: they are assumed to have come evenly since the previous "
    "batch."
)


class Run:
    """A flow that is running."""

    _backend: MicroBatch | RealTime

    def __init__(
        self,
        flow: Flow,
        spark: SparkSession,
        plan: Callable[[Graph], Plan] | None,
        measured: bool,
        on_measure: Callable[[BatchMeasure], None] | None,
        *,
        after_restore: bool = False,
    ) -> None:
        """Open, trace and start everything."""
        hush(spark)
        self.flow = flow
        self._held = ExitStack()
        self._switch: Switch | None = None
        try:
            if flow.executors:
                self._held.enter_context(in_charge(spark, flow.name))
            self._executors = Executors(spark) if flow.executors else None
            self._limits = _limits(flow.executors, self._executors)
            self._meter = UsageMeter(self._slots(spark))
            self._held.callback(self._meter.close)
            self._share = SlotShare(spark.sparkContext, flow.name)
            self._held.callback(self._share.release)
            self._directory = flow.checkpoint or self._temporary_directory()
            opened = self._open(spark)
            read = traced(flow.pipeline, opened.frame)
            graph = read.graph
            self._check(graph, measured)
            self._notes = tuple(f"{f.what} {f.remedy}" for f in findings(spark))
            self._notes += self._resume(read, after_restore)
            if opened.arrived is None:
                self._notes += (NO_ARRIVALS,)
            self._job = self._job_of(spark, opened, measured)
            self._graph, self._on_measure = graph, on_measure
            if self._executors is not None:
                self._executors.warm_up = warmer(spark, self._executors.cores, read.functions)
            self._turn = threading.Lock()
            self._ended = False
            self._restarts_ms: list[float] = []
            self._stalls: tuple[Stall, ...] = ()
            switching = self._switching() if plan is None and flow.backend == AUTO else None
            start = self._kept(plan(graph)) if plan else self._plan_on(self._first(switching))
            self._checkpoint.prepare(start.partitions)
            self.controller = self._controller(switching)
            self._steering = Steering(self.controller, self._ask_to_switch)
            self._launch(start, self._other_tasks(start))
            self._switch = Switch(self._change_to, self._steering.tell) if switching else None
            self._backend.start()
        except BaseException:
            if self._switch is not None:
                self._switch.close()
            self._held.close()
            raise

    def _temporary_directory(self) -> Path:
        """A directory for a checkpoint that will not be resumed."""
        made = tempfile.TemporaryDirectory(prefix="tailrace-", ignore_cleanup_errors=True)
        return Path(self._held.enter_context(made))

    def _slots(self, spark: SparkSession) -> int:
        """How many tasks run at once; if executors come and go, at the start."""
        if self._executors is None or self._limits is None:
            return spark.sparkContext.defaultParallelism
        return max(self._limits.least, len(self._executors.ready())) * self._executors.cores

    def _first(self, switching: Switching | None) -> Backend:
        return switching.decision.plan.backend if switching else Backend(self.flow.backend)

    def _switching(self) -> Switching:
        obstacles = tuple(why_not(self._job, self._graph, self.flow.constraints))
        job = self._job
        return Switching(
            self._graph,
            self.flow.constraints,
            lambda: job.room,
            obstacles,
            self.flow.recovery_ms,
        )

    def _controller(self, switching: Switching | None) -> Controller:
        flow = self.flow
        return Controller(
            self._graph,
            flow.constraints,
            mode=flow.mode,
            interval_ms=flow.interval_ms,
            recovery_ms=flow.recovery_ms,
            scaling=self._scaling(),
            switching=switching,
            most_records=most_records(self._job.frame),
        )

    def _plan_on(self, backend: Backend) -> Plan:
        """The plan to start with on a backend; keyed steps keep their partitions."""
        flow, slots = self.flow, self._slots(self._job.spark)
        live = backend is Backend.REALTIME
        # Real-time mode holds a slot for every partition, so it starts with one for each.
        few = 1 if live or flow.backend == AUTO else slots
        plan = first_plan(self._graph, flow.recovery_ms if live else self._first_interval_ms(), few)
        if self._limits is not None:
            widest = first_plan(self._graph, 0.0, self._limits.most * self._limits.cores)
            keyed = {s.name: widest.partitions[s.name] for s in self._graph.steps if s.keyed_by}
            at_least = max(self._limits.least, slots // self._limits.cores)
            plan = replace(plan, partitions=plan.partitions | keyed, executors=at_least)
        return replace(plan, backend=backend, partitions=plan.partitions | self._fixed())

    def _kept(self, plan: Plan) -> Plan:
        """The given plan, with the partitions that keyed steps have, or else start with."""
        usual = first_plan(self._graph, 0.0, self._slots(self._job.spark)).partitions
        keyed = {s.name: usual[s.name] for s in self._graph.steps if s.keyed_by}
        return replace(plan, partitions=keyed | self._fixed() | dict(plan.partitions))

    def _first_interval_ms(self) -> float:
        flow = self.flow
        if flow.start_interval_ms is not None:
            return flow.start_interval_ms
        enforced = flow.mode is Mode.ENFORCE
        return first_interval_ms(flow.constraints, flow.interval_ms) if enforced else 0.0

    def _fixed(self) -> dict[str, int]:
        """The partitions that the state of keyed steps is already spread over."""
        names = self._graph.names
        found = {name: partitions_of(self._checkpoint.state_of(name)) for name in names}
        return {name: partitions for name, partitions in found.items() if partitions}

    def _launch(self, plan: Plan, other_tasks: int) -> None:
        """Create the backend for a plan that passed the checks."""
        job, graph, tell = self._job, self._graph, self._steering.tell
        if plan.backend is Backend.REALTIME:
            self._backend = RealTime(job, graph, plan, tell, other_tasks=other_tasks)
        else:
            self._backend = MicroBatch(
                job,
                graph,
                plan,
                tell,
                on_measure=self._on_measure,
                pool=self._pool(),
                idle_ms=self.flow.interval_ms,
            )
        self._steering.backend = self._backend

    def _pool(self) -> Pool | None:
        if self._executors is None:
            return None
        return Pool(self._executors, self._meter.hold, steered=self.flow.mode is Mode.ENFORCE)

    def _other_tasks(self, plan: Plan) -> int:
        """The tasks that a plan holds slots for besides those of its partitions.

        A plan that real-time mode could not run, or that has no slots, is refused before anything
        is stopped for it.
        """
        if plan.backend is not Backend.REALTIME:
            self._share.wait_for(MICROBATCH)
            return 0
        others = check(self._job, self._graph, plan, self.flow.constraints)
        require_milliseconds(self._job.spark)
        return others

    def _scaling(self) -> Scaling | None:
        if self._limits is None:
            return None
        return Scaling(self._graph, scaler_of(self.flow.scaler), self._limits)

    def _ask_to_switch(self, action: SwitchBackend) -> None:
        if self._switch is not None:
            self._switch.ask(action)

    def _change_to(self, backend: Backend) -> None:
        """Continue on the other backend from where this one stops.

        Raises:
            TailraceError: If the other one could not run; then this one continues.
        """
        with self._turn:
            if self._ended or backend is self._backend.plan.backend:
                return
            plan = self._plan_on(backend)
            other_tasks = self._other_tasks(plan)
            began = time.monotonic()
            self._backend.stop(math.inf)
            if self._backend.failure is None:
                self._restarts_ms += self._backend.restarts_ms
                self._notes += self._backend.notes()
                self._stalls += self._backend.stalls.found
                self._launch(plan, other_tasks)
                with suppress(TailraceError):  # the new backend keeps its failure, and reports it
                    self._backend.start()
                self._restarts_ms.append((time.monotonic() - began) * 1e3)

    def _open(self, spark: SparkSession) -> Opened:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(sole_user(self._directory))
        self._checkpoint = Checkpoint(self._directory)
        for sink in (*self.flow.sinks.values(), self.flow.dead_letters):
            if sink is not None:
                sink.prepare(spark, self._checkpoint.identity)
            if isinstance(sink, OnceSink):
                self._held.callback(sink.release)
        return open_source(self.flow.source, self.flow.arrived, spark, self._directory)

    def _resume(self, read: Traced, after_restore: bool) -> tuple[str, ...]:
        """Refuse changes that do not fit the checkpoint; returns notes for the report on others."""
        flow = self.flow
        formerly = {step.name: step.formerly for step in read.graph.steps if step.formerly}
        told = self._checkpoint.adopt(flow.name, read.layouts, formerly)
        log = self._checkpoint.log
        return told + compare(flow.sinks, flow.dead_letters, log, after_restore=after_restore)

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
                f"Step '{wants[0]}' has on_error='dead-letter', but the flow has nowhere to put "
                "dead letters: give it Flow(..., dead_letters=sink)."
            )
        if wants and not measured:
            raise InputError(
                f"Step '{wants[0]}' has on_error='dead-letter', and dead letters travel with the "
                "measurements: run the flow with measured=True."
            )

    def _job_of(self, spark: SparkSession, opened: Opened, measured: bool) -> Job:
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
            token_bytes(16) if flow.redact else None,
            flow.stall_ms / 1e3,
            self._share,
        )

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to the given time; True if the flow ended by itself, which means it failed."""
        backend = self._backend
        if not backend.wait(seconds):
            return False
        with self._turn:
            return backend is self._backend  # if not, the other one runs now

    def looks(self, seconds: float | None, asked_to_end: Event) -> Iterator[None]:
        """Yield whenever the run should be checked, until its time is up, it fails or is ended."""
        left = seconds
        while (left is None or left > 0) and not asked_to_end.is_set():
            step = LOOK_S if left is None else min(LOOK_S, left)
            if self.wait(step):
                return
            left = None if left is None else left - step
            yield

    def hurry(self, within: str | float = 0.0) -> None:
        """From now on, wait no longer than this for the current batch when the run is stopped."""
        self._backend.hurry(duration_ms(within) / 1e3)

    def stop(self, within: str | float | None = None) -> Report:
        """Finish the current batch, end, and report.

        A batch that takes longer than ``within`` (by default the flow's own ``stop_within``) is
        given up, and the report says so: a start from the same checkpoint repeats it.

        Raises:
            TailraceError: If the flow had failed; its ``report`` is what was measured until then.
        """
        within_ms = self.flow.stop_within_ms if within is None else duration_ms(within)
        within_s = self._backend.STOP_WITHIN_S if within_ms is None else within_ms / 1e3
        self._backend.hurry(within_s)  # also if it is being stopped for the other one
        with self._turn:
            self._ended = True
        if self._switch is not None:
            self._switch.close()
        self._backend.stop(within_s)
        with self._held:
            report = self.report()
        failure = self._backend.failure
        if failure is not None:
            failure.report = report
            raise failure
        return report

    def report(self) -> Report:
        """What has happened so far."""
        return report_of(
            self.flow.name,
            self.controller.log,
            self._meter.read(),
            warm_up_ms=self.flow.warm_up_ms,
            profile=self.controller.profile(self.flow.name, self.flow.warm_up_ms),
            restarts_ms=(*self._restarts_ms, *self._backend.restarts_ms),
            notes=(*self._notes, *self._backend.notes()),
            failure=self._backend.failure,
            stalls=(*self._stalls, *self._backend.stalls.found),
        )


def _limits(wanted: Limits | None, executors: Executors | None) -> Limits | None:
    """The limits on executors, with the cores that each has here."""
    if wanted is None or executors is None:
        return None
    if executors.most is not None and wanted.most > executors.most:
        raise EnvironmentUnfit(
            f"The flow may have {wanted.most} executors, but spark.cores.max of this session "
            f"allows {executors.most} of {executors.cores} cores: raise it, or ask for fewer."
        )
    return replace(wanted, cores=executors.cores)


def _outputs(names: Any) -> str:
    return ", ".join(name.removeprefix(f"{SINK}:") for name in names) or "none"
