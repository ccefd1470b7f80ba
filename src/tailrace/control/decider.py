"""Decisions to plans: what is done, what is only advice, and what came of either."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.constraint import Constraint
from tailrace.control.log import DecisionRecord, Mode
from tailrace.policy import order

if TYPE_CHECKING:
    from tailrace.control.actions import Change
    from tailrace.control.log import Log
    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.policy.decision import Decision, Observation
    from tailrace.profile.interval import Span

SAME_ADVICE = 0.1
"""Advice on the interval that differs by less than this share is not given again."""


class Decider:
    """Asks the policies, has the plan that is to run, and logs every decision that changes it."""

    def __init__(self, graph: Graph, plan: Plan, log: Log) -> None:
        """Go on with a log, under a plan."""
        self.plan = plan
        self.intervals_since_change = 0
        self._graph = graph
        self._log = log

    def ask(self, observation: Observation, at_us: int) -> bool:
        """Ask the policies in their order; whether the chains are as before.

        A change of chains ends the round.
        """
        chains = self.plan.chains
        for decide in order.policies(observation):
            self.act(decide(replace(observation, plan=self.plan)), at_us)
            if self.plan.chains != chains:
                return False
        return True

    def act(self, decision: Decision, at_us: int) -> None:
        """Log a decision that changes something, and take over its plan if it is to be done."""
        if decision.plan == self.plan or self._advised(decision):
            return
        applied = self._log.mode is Mode.ENFORCE
        record = DecisionRecord.of(decision, at_us, self.plan, decision.plan, applied=applied)
        self._log.decisions.append(record)
        if not applied:
            return
        before, self.plan = self.plan, decision.plan
        if (self.plan.partitions, self.plan.chains) != (before.partitions, before.chains):
            self.intervals_since_change = 0

    def _advised(self, decision: Decision) -> bool:
        """Whether the same policy said much the same last, and it was not done."""
        said = (r for r in reversed(self._log.decisions) if r.policy == decision.policy)
        last, now = next(said, None), decision.plan
        return (
            last is not None
            and not last.applied
            and math.isclose(last.after.interval_ms, now.interval_ms, rel_tol=SAME_ADVICE)
            and replace(last.after, interval_ms=now.interval_ms) == now
        )

    def take_back(self, *changes: Change, why: str) -> None:
        """Undo what was decided last and cannot be done: it remains as advice, with the reason."""
        for change in changes:
            self.plan = change.on(self.plan)
        if changes and self._log.decisions:
            last = self._log.decisions[-1]
            last.applied, last.reason = False, f"{last.reason} Not done: {why}"

    def realise(self, interval: Span) -> None:
        """Score the decisions that this interval is the first whole one to see."""
        for record in reversed(self._log.decisions):
            newest = record.at_us == self._log.decisions[-1].at_us
            if not (record.applied and newest and record.realised_ms is None):
                return
            if record.at_us <= interval.start_us:
                self.score(record, interval)

    def score(self, record: DecisionRecord, interval: Span) -> None:
        """Note what came of a decision."""
        goal = record.constraint or Constraint(math.inf)
        record.realised_ms = interval.value_ms(goal, self._graph.path(goal.path))
