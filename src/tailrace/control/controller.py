"""The controller: events in, actions out.

It knows nothing of Spark and reaches for nothing: what it hears are events, what it wants are
actions, and between the two lie the loop of the backend that runs, and the choice of the backend.
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
from tailrace.policy.backend import POLICY

if TYPE_CHECKING:
    from tailrace.control.actions import Action
    from tailrace.control.events import Event
    from tailrace.control.scaling import Scaling
    from tailrace.control.switching import Switching
    from tailrace.flow import Graph
    from tailrace.goals import Constraint
    from tailrace.plan import Plan
    from tailrace.policy.backend import Choice
    from tailrace.profile.profile import Profile


class Controller:
    """Keeps the constraints of a flow: ``handle`` every event, and do what it returns.

    The first event is :class:`Started`. One thread at a time may call it: :class:`Steering` sees to
    that.
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

        ``recovery_ms`` is how much of the input a crash may make real-time mode repeat, and
        ``most_records`` what the source gives a batch at most, if that is known.
        """
        self.graph = graph
        self.mode = mode
        self.log = Log(constraints, interval_ms, mode)
        self._recovery_ms = recovery_ms
        self._scaling = scaling
        self._switching = switching
        self._most_records = most_records
        self._loop: BatchLoop | RealTimeLoop | None = None
        self._before: Plan | None = None
        self._choice: Choice | None = None

    @property
    def plan(self) -> Plan:
        """The plan that is to run."""
        return self._running.plan

    def profile(self, flow: str, warm_up_ms: float = 0.0) -> Profile | None:
        """What predictions need of the run after its warm-up; None if it was too short for that."""
        since_us = self.log.origin_us + warm_up_ms * 1e3
        found = self._running.recording.profile(flow, since_us)
        if found is None or self._most_records is None or found.backend is Backend.REALTIME:
            return found
        return replace(found, plan=replace(found.plan, row_limit=self._most_records))

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Take in what happened; what is to be done about it."""
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
        # What is only advised changes no plan; executors that come by themselves do.
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
        """When the newest interval that is complete began."""
        return self.log.history[-1].start_us if self.log.history else -1

    def _begin(self, event: Started) -> tuple[Action, ...]:
        before = event.plan if self._loop is None else self._loop.plan
        if not self.log.history:
            self.log.origin_us = event.at_us
        self._loop = loop = self._loop_on(event)
        if self._switching is not None:
            choice = self._choice or self._switching.choice
            self._note(choice, before, event.plan, event.at_us, applied=True)
        return changes(event.plan, loop.plan) if self.mode is Mode.ENFORCE else ()

    def _take_back(self, loop: BatchLoop | RealTimeLoop, event: Refused) -> None:
        """Learn what cannot be done. The plan is what runs, and the decision was only advice."""
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
        """Another backend, if the one that runs is no longer the cheapest that keeps all bounds."""
        batches = loop.costs() if isinstance(loop, BatchLoop) else None
        hand_overs = loop.costs() if isinstance(loop, RealTimeLoop) else None
        last, present = self.log.history[-1], loop.plan.backend
        chosen = switching.choose(last.rate_per_s, present, batches, hand_overs)
        if chosen == present or self.mode is Mode.OBSERVE:
            return ()
        if self.mode is Mode.ADVISE:
            at_us = last.start_us + round(last.every_ms * 1e3)
            self._note(switching.choice, loop.plan, loop.plan, at_us, applied=False)
            return ()
        self._choice = switching.choice
        return (SwitchBackend(chosen),)

    def _note(
        self, choice: Choice, before: Plan, after: Plan, at_us: int, *, applied: bool
    ) -> None:
        taken = choice.taken
        self.log.decisions.append(
            DecisionRecord(
                at_us,
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
