"""Which backend a flow with ``backend="auto"`` runs on: chosen at the start, and again as it runs.

The policy (``tailrace.policy.backend``) compares what both would do, from what was measured of
the one that runs and from what is usual for the one that was not tried. A change is a restart
where a batch ends, on the same offsets and the same state.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tailrace.control import BatchController, LiveController, Mode, Record
from tailrace.errors import TailraceError
from tailrace.plan import Backend
from tailrace.policy.backend import (
    NO_STREAKS,
    POLICY,
    Calibration,
    Choice,
    MicroBatchCosts,
    RealTimeCosts,
    choose,
)
from tailrace.spark.backend import Job, now_us
from tailrace.spark.realtime import why_not

if TYPE_CHECKING:
    from tailrace.flow import Graph
    from tailrace.plan import Plan
    from tailrace.spark.flow import Flow
    from tailrace.spark.run import Run

AUTO = "auto"

LOOK_S = 0.5
"""How often it looks whether another interval is over."""

UNKNOWN_RATE_PER_S = 1_000.0
"""What is assumed before the first interval."""

CPU_SHARE = 1.05
"""CPU time of a batch over its duration, as measured on two cores."""


class Switch:
    """Chooses the backend of a run, and changes it when the bounds or the load demand it."""

    def __init__(self, job: Job, graph: Graph, flow: Flow) -> None:
        """Know what could run; nothing is chosen yet."""
        self._flow = flow
        self._job = job
        self._obstacles = tuple(why_not(job, graph, flow.constraints))
        self._microbatch: MicroBatchCosts | None = None
        self._realtime: RealTimeCosts | None = None
        self._streaks = NO_STREAKS
        self._seen_us = 0
        self._choice: Choice | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def first(self) -> Backend:
        """The backend to begin with."""
        self._choice = choose(self._calibration(UNKNOWN_RATE_PER_S, None))
        return Backend(self._choice.backend)

    def watch(self, run: Run) -> None:
        """Look at the run from now on, and note why it began as it did."""
        if self._choice is not None:
            self._note(run, self._choice, run.controller.plan, run.controller.plan, applied=True)
        self._thread = threading.Thread(
            target=self._look, args=(run,), name="tailrace-switch", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self, run: Run) -> None:
        while not self._closing.wait(LOOK_S):
            history = run.controller.log.history
            last = history[-1] if history else None
            if last is not None and last.start_us > self._seen_us:
                self._seen_us = last.start_us
                self._consider(run, last.rate_per_s)

    def _consider(self, run: Run, rate_per_s: float) -> None:
        controller = run.controller
        present = controller.plan.backend
        if isinstance(controller, BatchController) and controller.model is not None:
            model = controller.model
            self._microbatch = MicroBatchCosts(
                model, CPU_SHARE * model.fixed_ms, CPU_SHARE * model.per_record_ms
            )
        elif isinstance(controller, LiveController):
            self._realtime = controller.costs() or self._realtime
        choice = choose(self._calibration(rate_per_s, present), self._streaks)
        self._streaks = choice.streaks
        if choice.backend == present or controller.mode is Mode.OBSERVE:
            return
        before = controller.plan
        applied = controller.mode is Mode.ENFORCE
        try:
            after = run.change_to(Backend(choice.backend)) if applied else before
        except TailraceError as error:
            self._obstacles += (str(error),)  # it is not tried again, and the next choice says why
            return
        self._note(run, choice, before, after, applied=applied)

    def _calibration(self, rate_per_s: float, present: Backend | None) -> Calibration:
        return Calibration(
            self._flow.constraints,
            rate_per_s,
            self._job.room,
            self._microbatch,
            self._realtime,
            self._obstacles,
            None if present is None else str(present),
            self._flow.recovery_ms,
        )

    def _note(self, run: Run, choice: Choice, before: Plan, after: Plan, *, applied: bool) -> None:
        taken = choice.taken
        run.controller.log.decisions.append(
            Record(
                now_us(),
                POLICY,
                choice.reason,
                before,
                after,
                applied,
                taken.predicted_ms,
                choice.alternatives,
                taken.constraint,
            )
        )
