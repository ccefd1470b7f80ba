"""The controller: events in, actions out.

It knows nothing of Spark. Events come in and actions go out; between the two are the loop of the
running backend and the choice of the backend.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.control.actions import SetExecutors, SwitchBackend, changes
from tailrace.control.batches import BatchLoop
from tailrace.control.events import Ended, Refused, Started
from tailrace.control.log import DecisionRecord, Log, Mode
from tailrace.control.realtime import RealTimeLoop
from tailrace.errors import InputError
from tailrace.plan import Backend

if TYPE_CHECKING:
    from tailrace.constraint import Constraint
    from tailrace.control.actions import Action
    from tailrace.control.events import Event
    from tailrace.control.scaling import Scaling
    from tailrace.control.switching import Switching
    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.policy.decision import Decision
    from tailrace.profile.profile import Profile


class Controller:
    """Keeps the constraints of a flow: pass every event to ``handle``, and do what it returns.

    The first event is :class:`Started`. Only one thread at a time may call it; :class:`Steering`
    ensures that.
    """

    def __init__(
        self,
        graph: Graph,
        constraints: tuple[Constraint, ...],
        *,
        mode: Mode = Mode.ENFORCE,
        interval_ms: float = 5_000.0,
        recovery_ms: float = 60_000.0,
        scaling: Scaling | None = None,
        switching: Switching | None = None,
        most_records: int | None = None,
    ) -> None:
        """With ``scaling`` it decides on executors too, with ``switching`` on the backend.

        ``recovery_ms`` is how much of the input real-time mode may repeat after a crash, and
        ``most_records`` the most that the source gives a batch, if known.
        """
        for goal in constraints:
            graph.path(goal.path)  # refuses one that the graph does not have
        self.graph = graph
        self.mode = mode
        self.log = Log(constraints, interval_ms, mode)
        self._recovery_ms = recovery_ms
        self._scaling = scaling
        self._switching = switching
        self._most_records = most_records
        self._loop: BatchLoop | RealTimeLoop | None = None
        self._before: Plan | None = None
        self._switched: Decision | None = None

    @property
    def plan(self) -> Plan:
        """The plan that is to run."""
        return self._running.plan

    def profile(self, flow: str, warm_up_ms: float = 0.0) -> Profile | None:
        """The run after its warm-up as predictions need it; None if it was too short."""
        since_us = self.log.origin_us + warm_up_ms * 1e3
        found = self._running.recording.profile(flow, since_us)
        if found is None or self._most_records is None or found.backend is Backend.REALTIME:
            return found
        return replace(found, plan=replace(found.plan, row_limit=self._most_records))

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Take in an event, and return the actions that follow from it."""
        if isinstance(event, Started):
            return self._begin(event)
        loop = self._running
        if isinstance(event, Ended):
            loop.finish()
            return ()
        if isinstance(event, Refused):
            self._take_back(loop, event)
            return ()
        before, closed = loop.plan, self._newest_us
        loop.hear(event)
        self._before = before
        # Advice does not change the plan, but executors that come by themselves do.
        found = changes(before, loop.plan) if self.mode is Mode.ENFORCE else ()
        if self._switching is not None and self._newest_us > closed:
            return (*found, *self._switch(loop, self._switching))
        return found

    @property
    def _running(self) -> BatchLoop | RealTimeLoop:
        if self._loop is None:
            raise InputError("A controller hears that a flow has started before anything else.")
        return self._loop

    @property
    def _newest_us(self) -> int:
        """When the newest complete interval began."""
        return self.log.history[-1].start_us if self.log.history else -1

    def _begin(self, event: Started) -> tuple[Action, ...]:
        before = event.plan if self._loop is None else self._loop.plan
        if not self.log.history:
            self.log.origin_us = event.at_us
        self._loop = loop = self._loop_on(event)
        if self._switching is not None:
            decision = self._switched or self._switching.decision
            self._note(decision, before, event.plan, event.at_us, applied=True)
        return changes(event.plan, loop.plan) if self.mode is Mode.ENFORCE else ()

    def _take_back(self, loop: BatchLoop | RealTimeLoop, event: Refused) -> None:
        """Learn what cannot be done: the plan is undone, and the decision becomes advice."""
        action = event.action
        if isinstance(action, SwitchBackend):
            if self._switching is not None:
                self._switching.refuse(event.reason)
        elif isinstance(action, SetExecutors) and self._scaling is not None:
            loop.hear(event)
        else:
            back = changes(loop.plan, self._before or loop.plan)
            loop.take_back(*(one for one in back if type(one) is type(action)), why=event.reason)

    def _loop_on(self, event: Started) -> BatchLoop | RealTimeLoop:
        if event.plan.backend is Backend.REALTIME:
            return RealTimeLoop(
                self.graph,
                event.plan,
                self.log,
                recovery_ms=self._recovery_ms,
                slots=event.slots,
                other_tasks=event.other_tasks,
            )
        return BatchLoop(
            self.graph,
            event.plan,
            self.log,
            scaling=self._scaling,
            most_records=self._most_records,
        )

    def _switch(
        self, loop: BatchLoop | RealTimeLoop, switching: Switching
    ) -> tuple[SwitchBackend, ...]:
        """Switch if the running backend is no longer the cheapest that keeps all bounds."""
        batches = loop.costs() if isinstance(loop, BatchLoop) else None
        hand_overs = loop.costs() if isinstance(loop, RealTimeLoop) else None
        last = self.log.history[-1]
        decision = switching.decide(last.rate_per_s, loop.plan, batches, hand_overs)
        chosen = decision.plan.backend
        if chosen is loop.plan.backend or self.mode is Mode.OBSERVE:
            return ()
        if self.mode is Mode.ADVISE:
            at_us = last.start_us + round(last.every_ms * 1e3)
            self._note(decision, loop.plan, loop.plan, at_us, applied=False)
            return ()
        self._switched = decision
        return (SwitchBackend(chosen),)

    def _note(
        self, decision: Decision, before: Plan, after: Plan, at_us: int, *, applied: bool
    ) -> None:
        record = DecisionRecord.of(decision, at_us, before, after, applied=applied)
        self.log.decisions.append(record)
