"""What the loop of every backend does: intervals to verdicts, decisions to plans, and a log of it.

How intervals are measured and which policies decide is the business of the loops for micro-batches
and for real-time mode.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tailrace.control.log import DecisionRecord, IntervalRecord, Log, Mode, StepRecord
from tailrace.control.recording import Recording
from tailrace.goals import Constraint
from tailrace.policy.decision import StepLoad
from tailrace.policy.feasibility import FAR, persists
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.interval import Verdict, judge

if TYPE_CHECKING:
    from tailrace.control.actions import Change
    from tailrace.control.events import Event
    from tailrace.control.scaling import Scaling
    from tailrace.flow import Graph
    from tailrace.plan import Plan
    from tailrace.policy.decision import Decision, Impossible
    from tailrace.profile.batch import StepMeasure
    from tailrace.profile.interval import Span

REMEMBERED = 17_280
"""Intervals, verdicts and decisions kept for the report: a day of intervals of 5 s."""

FINE, EARLY = 120, 24
"""Of so many intervals, the last and the first (a warm-up is among them), the whole distribution of
latencies is kept."""

SAME_ADVICE = 0.1
"""Advice on the interval that differs by less than this share is not given again."""

AnySpan = TypeVar("AnySpan", bound="Span")


class Collector(Protocol):
    """What gathers measurements into consecutive intervals of one length."""

    def flush(self) -> tuple[Any, ...]:
        """The intervals still open, when nothing more will come."""


AnyCollector = TypeVar("AnyCollector", bound=Collector)


@dataclass(slots=True)
class Track(Generic[AnyCollector]):
    """The intervals of one length, and the constraints that are judged by them."""

    intervals: AnyCollector
    constraints: list[Constraint] = field(default_factory=list)


class Loop(ABC, Generic[AnySpan, AnyCollector]):
    """Judges intervals, acts on decisions, and keeps every one of them for the report."""

    def __init__(self, graph: Graph, plan: Plan, log: Log) -> None:
        """Go on with a log, under a plan."""
        self.graph = graph
        self.plan = plan
        self.log = log
        self.constraints = constraints = log.constraints
        self.mode = log.mode
        self.interval_ms = log.interval_ms
        self._paths = {goal: graph.path(goal.path) for goal in constraints}
        self._latest: dict[Constraint, tuple[Verdict, AnySpan]] = {}
        self._fresh: list[Verdict] = []
        self._since_change = 0
        self._slots = 0
        self.scaling: Scaling | None = None
        self.recording = Recording(graph)
        self._suspected: tuple[Impossible, ...] = ()
        self._presumed: tuple[Impossible, ...] = ()
        self._adjustment = self._collector(log.interval_ms)
        self._tracks: dict[float, Track[AnyCollector]] = {}
        for goal in constraints:
            if goal.every_ms not in self._tracks:
                self._tracks[goal.every_ms] = Track(self._collector(goal.every_ms))
            self._tracks[goal.every_ms].constraints.append(goal)

    @abstractmethod
    def _collector(self, every_ms: float) -> AnyCollector:
        """What gathers intervals of a length; called while the loop is made."""

    @abstractmethod
    def hear(self, event: Event) -> None:
        """Take in an event; ``plan`` is the plan to run from then on."""

    def finish(self) -> None:
        """Judge what is left when nothing more will come. Cut short, it decides nothing."""
        for track in self._tracks.values():
            for interval in track.intervals.flush():
                self._judge(interval, track.constraints)
        for interval in self._adjustment.flush():
            self._remember(interval, whole=False)
        self._name(tuple(i for i in self.log.impossible if not i.provisional))

    def _judge(self, interval: AnySpan, constraints: list[Constraint]) -> None:
        for constraint in constraints:
            verdict = judge(interval, constraint, self._paths[constraint])
            self.log.verdicts.append(verdict)
            self._fresh.append(verdict)
            self._latest[constraint] = (verdict, interval)

    def _remember(self, interval: AnySpan, *, whole: bool = True) -> None:
        latencies_ms = interval.latencies_ms()
        self.recording.add_interval(interval, self.plan, latencies_ms, whole=whole)
        steps = {
            name: StepRecord(
                step.records_in,
                step.records_out,
                step.errors,
                step.service_ms,
                max(interval.utilisation(name).values(), default=0.0),
            )
            for name, step in interval.steps().items()
        }
        self.log.history.append(
            IntervalRecord(
                interval.start_us,
                interval.every_ms,
                interval.records,
                interval.batches,
                interval.latency_ms,
                latencies_ms,
                latencies_ms.quantiles(),
                interval.breakdown_ms(),
                steps,
                self.plan,
                tuple(self._verdicts_until(interval.start_us + interval.every_ms * 1e3)),
                self._slots,
            )
        )
        self._thin_out()
        del self.log.history[:-REMEMBERED]
        del self.log.verdicts[:-REMEMBERED]
        del self.log.decisions[:-REMEMBERED]

    def _verdicts_until(self, end_us: float) -> list[Verdict]:
        """The verdicts that no interval has been given yet and that begin before this one ends.

        Where a long batch ends many intervals, all of them are judged before any is remembered.
        """
        found = [verdict for verdict in self._fresh if verdict.start_us < end_us]
        self._fresh = [verdict for verdict in self._fresh if verdict.start_us >= end_us]
        return found

    def _thin_out(self) -> None:
        """Let go of the distribution of an interval that is neither among the last nor the first.

        What it adds to the whole is kept; its own quantiles are kept as well.
        """
        place = len(self.log.history) - FINE - 1
        if place >= EARLY:
            old = self.log.history[place]
            self.log.older = LogHistogram.merged((self.log.older, old.latencies_ms))
            self.log.history[place] = replace(old, latencies_ms=LogHistogram())

    def _suspect(self, found: tuple[Impossible, ...], *, enough: bool = True) -> None:
        """Believe that a constraint is impossible when two intervals in a row say so.

        Until then, or while there is not ``enough`` to judge by, it is so provisionally, and only
        if all that was seen of the run bears it out.
        """
        before = {impossible.constraint for impossible in self._suspected}
        self._presumed, self._suspected = found, found if enough else ()
        self._name(tuple(i for i in self._suspected if i.constraint in before))

    def _name(self, sure: tuple[Impossible, ...]) -> None:
        known = {impossible.constraint for impossible in sure}
        others = (i for i in self._presumed if i.constraint not in known)
        borne_out = (replace(i, provisional=True) for i in others if self._persists(i.constraint))
        self.log.impossible = (*sure, *borne_out)

    def _persists(self, constraint: Constraint) -> bool:
        """Whether a constraint was missed by far whenever it was judged, and no less lately."""
        return persists(self._values_ms(constraint), FAR * constraint.bound_ms)

    def _values_ms(self, constraint: Constraint) -> list[float]:
        """What a constraint measured so far."""
        return [v.value_ms for v in self.log.verdicts if v.constraint == constraint]

    def _act(self, decision: Decision, now_us: int) -> None:
        if decision.plan == self.plan:
            return
        applied = self.mode is Mode.ENFORCE
        if self._advised(decision):
            return
        record = DecisionRecord.of(decision, now_us, self.plan, decision.plan, applied=applied)
        self.log.decisions.append(record)
        if not applied:
            return
        before, self.plan = self.plan, decision.plan
        if self.plan.partitions != before.partitions:
            self._since_change = 0
        if self.plan.chains != before.chains:
            self._since_change = 0
            self._forget()

    def _forget(self) -> None:
        """Let go of what was learnt under other chains."""

    def _advised(self, decision: Decision) -> bool:
        """Whether the same policy said much the same last, and it was not done."""
        said = (r for r in reversed(self.log.decisions) if r.policy == decision.policy)
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
        if changes and self.log.decisions:
            last = self.log.decisions[-1]
            last.applied, last.reason = False, f"{last.reason} Not done: {why}"

    def _realise(self, interval: AnySpan) -> None:
        """Score the decisions that this interval is the first whole one to see."""
        for record in reversed(self.log.decisions):
            newest = record.at_us == self.log.decisions[-1].at_us
            if not (record.applied and newest and record.realised_ms is None):
                return
            if record.at_us <= interval.start_us:
                self._score(record, interval)

    def _score(self, record: DecisionRecord, interval: AnySpan) -> None:
        """Note what came of a decision."""
        goal = record.constraint or Constraint(math.inf)
        record.realised_ms = interval.value_ms(goal, self.graph.path(goal.path))


def load_of(measure: StepMeasure, busy: dict[int, float]) -> StepLoad:
    """How busy a step was, from what its tasks measured."""
    hot, count = max(measure.keys.items(), key=lambda item: item[1], default=(None, 0))
    return StepLoad(
        records=measure.records_in,
        service_ms=measure.service_ms.mean,
        utilisation=max(busy.values(), default=0.0),
        mean_utilisation=sum(busy.values()) / len(busy) if busy else 0.0,
        partitions=len(busy),
        hot_key=hot,
        hot_key_share=count / measure.records_in if measure.records_in else 0.0,
    )
