"""Intervals to verdicts: what a run measured, held against what it must keep."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tailrace.control.log import IntervalRecord, StepRecord
from tailrace.control.recording import Recording
from tailrace.policy.decision import StepLoad
from tailrace.policy.feasibility import FAR, persists
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.interval import judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.constraint import Constraint
    from tailrace.control.log import Log
    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.policy.decision import Impossible
    from tailrace.profile.batch import StepMeasure
    from tailrace.profile.interval import Span, Verdict

REMEMBERED = 17_280
"""Intervals, verdicts and decisions kept for the report: a day of intervals of 5 s."""

FINE, EARLY = 120, 24
"""The whole distribution of latencies is kept for the last 120 intervals, and for the first 24, of
which a warm-up is part."""

AnySpan = TypeVar("AnySpan", bound="Span")


class Collector(Protocol):
    """Gathers measurements into consecutive intervals of one length."""

    def flush(self) -> tuple[Any, ...]:
        """The intervals still open, when nothing more will come."""


AnyCollector = TypeVar("AnyCollector", bound=Collector)


@dataclass(slots=True)
class _Track(Generic[AnyCollector]):
    """The intervals of one length, and the constraints that are judged by them."""

    intervals: AnyCollector
    constraints: list[Constraint] = field(default_factory=list)


class Judge(Generic[AnySpan, AnyCollector]):
    """Gathers intervals, judges the constraints by them, and keeps them for the report.

    Plans may change where an interval of ``log.interval_ms`` ends; a constraint is judged by
    intervals of its own length.
    """

    def __init__(
        self,
        graph: Graph,
        log: Log,
        collector: Callable[[float], AnyCollector],
        *,
        slots: int = 1,
        bears_out: Callable[[Constraint], bool] | None = None,
    ) -> None:
        """``collector`` makes what gathers intervals of a length.

        ``bears_out`` says whether all that was seen of the run shows that a constraint cannot be
        kept; by default its verdicts do.
        """
        self.log = log
        self.recording = Recording(graph, slots)
        self.paths = {goal: graph.path(goal.path) for goal in log.constraints}
        self.latest: dict[Constraint, tuple[Verdict, AnySpan]] = {}
        self.suspected: tuple[Impossible, ...] = ()
        self.presumed: tuple[Impossible, ...] = ()
        self._bears_out = bears_out or self.missed_by_far
        self._fresh: list[Verdict] = []
        self._adjustment = collector(log.interval_ms)
        self._tracks: dict[float, _Track[AnyCollector]] = {}
        for goal in log.constraints:
            if goal.every_ms not in self._tracks:
                self._tracks[goal.every_ms] = _Track(collector(goal.every_ms))
            self._tracks[goal.every_ms].constraints.append(goal)

    def collectors(self) -> list[AnyCollector]:
        """All that measurements are to be added to; first, what ends where plans may change."""
        return [self._adjustment, *(track.intervals for track in self._tracks.values())]

    def close(self, ended: Callable[[AnyCollector], tuple[AnySpan, ...]]) -> tuple[AnySpan, ...]:
        """Judge the intervals that have ended; those at the end of which plans may change."""
        for track in self._tracks.values():
            for interval in ended(track.intervals):
                self._judge(interval, track.constraints)
        return ended(self._adjustment)

    def finish(self, plan: Plan, slots: int) -> None:
        """Judge what is left when nothing more will come."""
        for interval in self.close(lambda intervals: intervals.flush()):
            self.remember(interval, plan, slots, whole=False)
        self._name(tuple(i for i in self.log.impossible if not i.provisional))

    def _judge(self, interval: AnySpan, constraints: list[Constraint]) -> None:
        for constraint in constraints:
            verdict = judge(interval, constraint, self.paths[constraint])
            self.log.verdicts.append(verdict)
            self._fresh.append(verdict)
            self.latest[constraint] = (verdict, interval)

    def remember(self, interval: AnySpan, plan: Plan, slots: int, *, whole: bool = True) -> None:
        """Keep an interval for the report; one that was cut short is not ``whole``."""
        latencies_ms = interval.latencies_ms()
        self.recording.add_interval(interval, plan, latencies_ms, whole=whole)
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
                plan,
                tuple(self._verdicts_until(interval.start_us + interval.every_ms * 1e3)),
                slots,
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

    def suspect(self, found: tuple[Impossible, ...], *, enough: bool = True) -> None:
        """Believe that a constraint is impossible when two intervals in a row say so.

        Until then, or while there is not ``enough`` to judge by, it is so provisionally, and only
        if all that was seen of the run bears it out.
        """
        before = {impossible.constraint for impossible in self.suspected}
        self.presumed, self.suspected = found, found if enough else ()
        self._name(tuple(i for i in self.suspected if i.constraint in before))

    def _name(self, sure: tuple[Impossible, ...]) -> None:
        known = {impossible.constraint for impossible in sure}
        others = (i for i in self.presumed if i.constraint not in known)
        borne_out = (replace(i, provisional=True) for i in others if self._bears_out(i.constraint))
        self.log.impossible = (*sure, *borne_out)

    def missed_by_far(self, constraint: Constraint) -> bool:
        """Whether a constraint was missed by far whenever it was judged, and no less lately."""
        return persists(self.values_ms(constraint), FAR * constraint.bound_ms)

    def values_ms(self, constraint: Constraint) -> list[float]:
        """What a constraint measured so far."""
        return [v.value_ms for v in self.log.verdicts if v.constraint == constraint]


def loads_of(interval: Span) -> dict[str, StepLoad]:
    """How busy each step was in an interval."""
    return {
        name: load_of(measure, interval.utilisation(name))
        for name, measure in interval.steps().items()
    }


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
