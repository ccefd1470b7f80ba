"""What a run leaves behind for predictions: the profile of its flow.

Batches and intervals are taken in as they come, in the little that a profile needs of them, and
only the latest are kept. What was seen under other chains or partitions is let go, since it would
mix up what the engine takes, unless partitions follow the number of executors: ``batchcosts`` tells
the costs of those apart.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from tailrace.constraint import SOURCE
from tailrace.control.batchcosts import BatchRecording
from tailrace.model.keys.keytypes import from_arrow
from tailrace.model.stages import stages_of
from tailrace.plan import Backend
from tailrace.profile.batch import StepMeasure
from tailrace.profile.costs import (
    USUAL_HAND_OVER,
    HandOverCosts,
)
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.live import LiveInterval
from tailrace.profile.moments import Moments
from tailrace.profile.profile import Latency, Origin, Profile, StepProfile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.profile.batch import BatchMeasure
    from tailrace.profile.interval import Span

KEPT_INTERVALS = 120
"""Ten minutes of intervals of 5 s."""

FREQUENT_KEYS = 64

COUNT_STAYS = frozenset({"Project", "Repartition", "RepartitionByExpression"})
"""What Spark may do between two steps without adding or dropping records."""


@dataclass(frozen=True, slots=True)
class _Interval:
    """An interval: what came in, how long records took, what steps did, what hand-overs took.

    One that is not ``whole`` was cut short by the end of the run.
    """

    start_us: int
    every_ms: float
    records: int
    plan: Plan
    latency_ms: Moments
    latencies_ms: LogHistogram
    steps: dict[str, StepMeasure]
    hand_over: _HandOver | None
    whole: bool


@dataclass(frozen=True, slots=True)
class _HandOver:
    """The hand-overs of an interval, over all chains."""

    handovers: int
    records: int
    cpu_ms: float
    computed_ms: float
    source_ms: float
    shuffle_ms: float
    sink_ms: float
    gap_ms: float


class Recording:
    """Gathers the measurements that make the profile of a flow."""

    def __init__(self, graph: Graph, slots: int = 1) -> None:
        """For a flow on ``slots``; micro-batches report how many they had."""
        self._graph = graph
        self._slots = slots
        self._batches = BatchRecording(graph)
        self._intervals: deque[_Interval] = deque(maxlen=KEPT_INTERVALS)
        self._shape: tuple[object, ...] = ()

    def add_batch(self, batch: BatchMeasure) -> None:
        """Take in a finished micro-batch."""
        self._notice(batch.plan)
        self._slots = batch.slots
        self._batches.add(batch, _entered(self._graph, batch.steps, batch.records))

    def add_interval(
        self, interval: Span, plan: Plan, latencies_ms: LogHistogram, *, whole: bool = True
    ) -> None:
        """Take in an interval with its latencies: a whole one, or what the end left of it."""
        self._notice(plan)
        handed = _handed(interval) if isinstance(interval, LiveInterval) else None
        steps = interval.steps()
        self._intervals.append(
            _Interval(
                interval.start_us,
                interval.every_ms,
                _entered(self._graph, steps, interval.records),
                plan,
                interval.latency_ms,
                latencies_ms,
                steps,
                handed,
                whole,
            )
        )

    def _notice(self, plan: Plan) -> None:
        partitions = tuple(plan.partitions.items()) if plan.executors is None else ()
        shape = plan.backend, plan.chains, partitions
        if shape != self._shape:
            self._shape = shape
            self._batches.clear()
            self._intervals.clear()

    def profile(self, name: str, since_us: float = 0.0) -> Profile | None:
        """The profile of what was seen since then, and since chains or partitions changed.

        None if nothing was. The first seconds of a flow, in which code is compiled, say little of
        the others; the interval in which it ended has too few records for its length, and counts
        only where there is no other.
        """
        late = [kept for kept in tuple(self._intervals) if kept.start_us >= since_us]
        intervals = [kept for kept in late if kept.whole] or late
        if not intervals:
            return None
        plan = intervals[-1].plan
        same = [kept for kept in intervals if kept.plan == plan]
        seconds = math.fsum(kept.every_ms for kept in same) / 1e3
        records = sum(kept.records for kept in same)
        measures = {
            step: StepMeasure.merged(kept.steps[step] for kept in intervals if step in kept.steps)
            for step in self._graph.names
        }
        first = self._graph.streams_from(SOURCE)[0].target
        entry = measures.get(first)
        bare = Profile(
            name,
            tuple(self._step(step, measures) for step in self._graph.names),
            tuple(dict.fromkeys((s.origin, s.target) for s in self._graph.streams)),
            records / seconds,
            plan,
            self._slots,
            max(1, len(entry.busy_ms)) if entry is not None and first not in plan.partitions else 1,
            seconds,
            records,
            _latency(same),
            origin=Origin.FLOW,
        )
        if bare.backend is Backend.REALTIME:
            return replace(bare, hand_over=_hand_over_costs(bare, intervals))
        return replace(
            bare,
            batch=self._batches.costs(bare, since_us),
            executors=self._batches.executors(bare, since_us),
        )

    def _reaching(self, name: str, measures: Mapping[str, StepMeasure]) -> int:
        """The records of a step that reach the next: what it sent, unless Spark changes that."""
        streams = self._graph.streams_from(name)
        target = streams[0].target
        changed = len(streams) == 1 and not COUNT_STAYS.issuperset(streams[0].native)
        alone = target in measures and len(self._graph.streams_to(target)) == 1
        return measures[target].records_in if changed and alone else measures[name].records_out

    def _step(self, name: str, measures: Mapping[str, StepMeasure]) -> StepProfile:
        step, measure = self._graph.step(name), measures[name]
        keyed_by = step.keyed_by or self._graph.keyed_by(name)
        counted = sorted(measure.keys.items(), key=lambda item: -item[1])[:FREQUENT_KEYS]
        known = math.fsum(measure.keys.values())
        whole = max(1.0, measure.records_in, known)
        service = measure.service_ms
        call_ms, record_ms = measure.calls.line()
        return StepProfile(
            name,
            record_ms,
            math.sqrt(service.variance) / service.mean if service.mean else 0.0,
            call_ms=call_ms,
            cpu_share=min(1.0, measure.cpu_ms / max(1e-9, math.fsum(measure.busy_ms.values()))),
            ratio=self._reaching(name, measures) / max(1, measure.records_in),
            keyed_by=keyed_by,
            key_type=from_arrow(measure.key_type),
            keys={key: count / whole for key, count in counted} if keyed_by else {},
            distinct=len(measure.keys) if known >= 0.999 * whole else 0,
        )


def _hand_over_costs(bare: Profile, intervals: list[_Interval]) -> HandOverCosts | None:
    """What is left of hand-overs without their steps, and of exchanges without their sweep."""
    handed = [kept.hand_over for kept in intervals if kept.hand_over is not None]
    if not handed:
        return None
    hand_overs = max(1, sum(h.handovers for h in handed))
    records = max(1, sum(h.records for h in handed))
    spent_ms = math.fsum(h.cpu_ms for h in handed) - math.fsum(h.computed_ms for h in handed)
    per_record_ms = USUAL_HAND_OVER.per_record_ms
    hops = max(1, len(stages_of(bare.graph, bare.plan, bare.cores, 1)) - 1)
    gaps = [h.gap_ms for h in handed if h.gap_ms > 0]
    return HandOverCosts(
        max(0.02, (spent_ms - per_record_ms * records) / hand_overs),
        per_record_ms,
        max(0.0, median(h.source_ms for h in handed)),
        max(0.0, median(h.shuffle_ms for h in handed) / hops - bare.plan.flush_ms / 2),
        max(0.0, median(h.sink_ms for h in handed)),
        median(gaps) if gaps else USUAL_HAND_OVER.gap_ms,
    )


def _entered(graph: Graph, steps: Mapping[str, StepMeasure], read: int) -> int:
    """The records that reached the first steps, which Spark's own operators may have changed.

    Where ways part at the source each has them all, so the fullest counts; without steps to ask,
    what was read does.
    """
    firsts = {stream.target for stream in graph.streams_from(SOURCE)}
    return max((steps[name].records_in for name in firsts if name in steps), default=0) or read


def _handed(interval: LiveInterval) -> _HandOver:
    parts = interval.hand_overs().values()
    breakdown = interval.breakdown_ms()
    return _HandOver(
        sum(part.handovers for part in parts),
        sum(part.records for part in parts),
        math.fsum(part.cpu_ms for part in parts),
        math.fsum(step.cpu_ms for step in interval.steps().values()),
        breakdown.get("source_wait", 0.0),
        breakdown.get("shuffle", 0.0),
        breakdown.get("sink", 0.0),
        interval.gap_ms,
    )


def _latency(intervals: list[_Interval]) -> Latency:
    mean = Moments.merged(kept.latency_ms for kept in intervals).mean
    whole = LogHistogram.merged(kept.latencies_ms for kept in intervals)
    return Latency(mean, *(whole.quantile_ms(q) for q in (0.5, 0.95, 0.99)))
