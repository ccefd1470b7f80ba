"""The loop: observe, decide, act, and keep a record of why.

The controller knows nothing of Spark. A backend, real or simulated, hands it every finished batch
and asks which plan to run next; everything else, from intervals and verdicts to decisions and
what came of them, happens here and can be replayed from the same batches.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

from tailrace.goals import SOURCE, Constraint
from tailrace.model.microbatch import BatchModel, BatchPoint, fit, spread
from tailrace.policy import batching, chaining, feasibility
from tailrace.policy.decision import Observation, Reading, StepLoad
from tailrace.profile.interval import Interval, Intervals, Verdict, judge

if TYPE_CHECKING:
    from tailrace.flow import Graph
    from tailrace.plan import Plan
    from tailrace.policy.decision import Alternative, Decision, Impossible
    from tailrace.profile.batch import BatchMeasure, StepMeasure
    from tailrace.profile.histogram import LogHistogram
    from tailrace.profile.moments import Moments

POLICIES = (batching.decide, chaining.decide)
"""In the order of their price: batching is free, chaining costs a restart of the query."""

HISTORY = 400
"""Finished batches that the batch model is fitted to, at most."""

REMEMBERED = 17_280
"""Intervals, verdicts and decisions kept for the report: a day of intervals of 5 s."""

RATIOS = 5
"""Intervals whose median is the ratio of measured to predicted latency: where an interval happens
to cut the batches, or a backlog that one of them works off, must not move the plan."""

RECENT_US = 1_000_000
RECENT_BATCHES = 64
"""How far back the rate of the moment is taken from, in time and in batches."""

SAME_ADVICE = 0.1
"""Advice on the interval that differs by less than this share is not given again."""

LEAST_POINTS = 5
"""Batches that a model must rest on before it may call a constraint impossible."""


class Mode(StrEnum):
    """How far the controller may go: only watch, say what it would do, or do it."""

    OBSERVE = "observe"
    ADVISE = "advise"
    ENFORCE = "enforce"


@dataclass(slots=True)
class Record:
    """A decision as it went into the log, and what came of it.

    ``realised_ms`` is what the constraint that it aimed at, or else the mean latency of the flow,
    measured in the first whole interval under the new plan; None if the plan did not last so long.
    """

    at_us: int
    policy: str
    reason: str
    before: Plan
    after: Plan
    applied: bool
    predicted_ms: float | None
    alternatives: tuple[Alternative, ...]
    constraint: Constraint | None
    realised_ms: float | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a step did in one interval, as it is remembered."""

    records_in: int
    records_out: int
    errors: int
    service_ms: Moments
    utilisation: float


@dataclass(frozen=True, slots=True)
class IntervalRecord:
    """One adjustment interval as it is remembered: its batches are summed up and let go."""

    start_us: int
    every_ms: float
    records: int
    batches: int
    latency_ms: Moments
    latencies_ms: LogHistogram
    breakdown_ms: dict[str, float]
    steps: dict[str, StepRecord]
    plan: Plan
    verdicts: tuple[Verdict, ...]

    @property
    def rate_per_s(self) -> float:
        """Records that entered per second."""
        return self.records / self.every_ms * 1e3


@dataclass(frozen=True, slots=True)
class Saving:
    """What longer batches spared, against running them back to back."""

    batches: float = 0.0
    cpu_ms: float = 0.0


@dataclass(slots=True)
class _Track:
    """The intervals of one length, and the constraints that are judged by them."""

    intervals: Intervals
    constraints: list[tuple[Constraint, tuple[str, ...]]] = field(default_factory=list)


class Controller:
    """Turns finished batches into intervals, verdicts and plans.

    Feed it with ``on_batch`` and run what it returns. It keeps every interval, verdict and
    decision of the run for the report.
    """

    def __init__(
        self,
        graph: Graph,
        constraints: tuple[Constraint, ...],
        plan: Plan,
        *,
        origin_us: int,
        mode: Mode = Mode.ENFORCE,
        interval_ms: float = 5_000.0,
    ) -> None:
        """``origin_us`` is when the first interval begins."""
        self.graph = graph
        self.constraints = constraints
        self.plan = _capped(plan, constraints) if mode is Mode.ENFORCE else plan
        self.mode = mode
        self.interval_ms = interval_ms
        self.origin_us = origin_us
        self.history: list[IntervalRecord] = []
        self.verdicts: list[Verdict] = []
        self.decisions: list[Record] = []
        self.impossible: tuple[Impossible, ...] = ()
        self.batches = 0
        self.saving = Saving()
        self.model: BatchModel | None = None
        self._adjustment = Intervals(interval_ms, origin_us)
        self._tracks: dict[float, _Track] = {}
        for constraint in constraints:
            every = constraint.every_ms
            track = self._tracks.setdefault(every, _Track(Intervals(every, origin_us)))
            track.constraints.append((constraint, graph.path(constraint.path)))
        self._points: deque[BatchPoint] = deque(maxlen=HISTORY)
        self._latest: dict[Constraint, tuple[Verdict, Interval]] = {}
        self._fresh: list[Verdict] = []
        self._since_change = 0
        self._ratios = _no_ratios()
        self._seen: Observation | None = None
        self._recent: deque[BatchMeasure] = deque(maxlen=RECENT_BATCHES)
        self._suspected: tuple[Impossible, ...] = ()

    def on_batch(self, batch: BatchMeasure) -> Plan:
        """Take in a finished batch; the plan for the next one."""
        self.batches += 1
        if batch.records and batch.plan.chains == self.plan.chains:
            self._points.append(BatchPoint(batch.records, batch.duration_ms, batch.ended_us))
        self._judge(batch)
        closed = self._adjustment.add(batch)
        for interval in closed:
            self._close(interval)
        self._recent.append(batch)
        if closed and self.model is not None and self._points:
            self._decide(closed[-1], self.model, batch.ended_us)
        elif self._seen is not None:
            self._hurry(self._seen, batch.ended_us)
        return self.plan

    def finish(self) -> None:
        """Judge what is left when no more batches will come. Cut short, it decides nothing."""
        for track in self._tracks.values():
            for interval in track.intervals.flush():
                self._verdicts_on(track, interval)
        for interval in self._adjustment.flush():
            self._remember(interval)

    def _judge(self, batch: BatchMeasure) -> None:
        for track in self._tracks.values():
            for interval in track.intervals.add(batch):
                self._verdicts_on(track, interval)

    def _verdicts_on(self, track: _Track, interval: Interval) -> None:
        for constraint, path in track.constraints:
            verdict = judge(interval, constraint, path)
            self.verdicts.append(verdict)
            self._fresh.append(verdict)
            self._latest[constraint] = (verdict, interval)

    def _remember(self, interval: Interval) -> None:
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
        self.history.append(
            IntervalRecord(
                interval.start_us,
                interval.every_ms,
                interval.records,
                len(interval.shares),
                interval.latency_ms,
                interval.latencies_ms(),
                interval.breakdown_ms(),
                steps,
                self.plan,
                tuple(self._fresh),
            )
        )
        self._fresh.clear()
        del self.history[:-REMEMBERED]
        del self.verdicts[:-REMEMBERED]
        del self.decisions[:-REMEMBERED]

    def _close(self, interval: Interval) -> None:
        self._remember(interval)
        self._realise(interval)
        self._since_change += 1
        if self._points:
            self._learn(interval)

    def _learn(self, interval: Interval) -> None:
        """Fit the model, hold it against the interval, and count what its batches spared."""
        ran_ms, rate = interval.shares[-1].batch.plan.interval_ms, interval.rate_per_s
        self.model = fit(list(self._points), _half_life(interval))
        predicted = self.model.latency_ms(ran_ms, rate, self.interval_ms, None)
        if 0 < predicted < math.inf:
            self._ratios.append(interval.latency_ms.mean / predicted)
        batches, cpu_ms = batching.saving(self.model, rate, ran_ms, interval.every_ms)
        self.saving = Saving(self.saving.batches + batches, self.saving.cpu_ms + cpu_ms)

    def _decide(self, interval: Interval, model: BatchModel, now_us: int) -> None:
        """Act on the newest interval; one batch may close several, and is one piece of news."""
        observation = self._seen = self._observe(interval, model)
        enough = len(self._points) >= LEAST_POINTS
        self._suspect(feasibility.assess(observation) if enough else ())
        if self.mode is Mode.OBSERVE:
            return
        for decide in POLICIES:
            self._act(decide(replace(observation, plan=self.plan)), now_us)

    def _hurry(self, seen: Observation, now_us: int) -> None:
        """Shorten batches at once when the rate rises, not only when the interval is over.

        The interval that the plan rests on may be 5 s old; until the next is complete, a step in
        the load would be answered by batches that are too long for it.
        """
        rate = self._recent_rate(seen.rate_per_s)
        if self.mode is Mode.OBSERVE or rate <= seen.rate_per_s:
            return
        self._seen = replace(seen, plan=self.plan, rate_per_s=rate)
        decision = batching.decide(self._seen)
        if decision.plan.interval_ms < self.plan.interval_ms:
            self._act(decision, now_us)

    def _recent_rate(self, known_per_s: float) -> float:
        """The rate of the last second or batch, if clearly above the known one; else the known one.

        Clearly: by more than 15 %, and by more than four deviations of a Poisson count.
        """
        if len(self._recent) < 2:
            return known_per_s
        *_, before, last = self._recent
        since_us = min(before.planned_us, last.planned_us - RECENT_US)
        batches = [batch for batch in self._recent if batch.planned_us >= since_us]
        records = sum(batch.records for batch in batches[1:])
        rate = records / (batches[-1].planned_us - batches[0].planned_us) * 1e6
        clearly = 1 + max(0.15, 4 / math.sqrt(max(1, records)))
        return rate if rate > known_per_s * clearly else known_per_s

    def _suspect(self, found: tuple[Impossible, ...]) -> None:
        """Believe that a constraint is impossible when two intervals in a row say so."""
        before = {impossible.constraint for impossible in self._suspected}
        self._suspected = found
        self.impossible = tuple(i for i in found if i.constraint in before)

    def _act(self, decision: Decision, now_us: int) -> None:
        if decision.plan == self.plan:
            return
        applied = self.mode is Mode.ENFORCE
        if not applied and self._advised(decision):
            return
        self.decisions.append(
            Record(
                now_us,
                decision.policy,
                decision.reason,
                self.plan,
                decision.plan,
                applied,
                decision.predicted_ms,
                decision.alternatives,
                decision.constraint,
            )
        )
        if not applied:
            return
        if decision.plan.chains != self.plan.chains:
            self._points.clear()  # they were measured under other chains
            self._ratios = _no_ratios()
            self._since_change = 0
        self.plan = decision.plan

    def _advised(self, decision: Decision) -> bool:
        """Whether the last advice of the same policy was much the same."""
        said = (r.after for r in reversed(self.decisions) if r.policy == decision.policy)
        last, now = next(said, None), decision.plan
        return (
            last is not None
            and math.isclose(last.interval_ms, now.interval_ms, rel_tol=SAME_ADVICE)
            and replace(last, interval_ms=now.interval_ms) == now
        )

    def _realise(self, interval: Interval) -> None:
        """Score the decisions that this interval is the first whole one to see."""
        for record in reversed(self.decisions):
            newest = record.at_us == self.decisions[-1].at_us
            if not (record.applied and newest and record.realised_ms is None):
                return
            if record.at_us <= interval.start_us:
                goal = record.constraint or Constraint(math.inf)
                record.realised_ms = interval.value_ms(goal, self.graph.path(goal.path))

    def _observe(self, interval: Interval, model: BatchModel) -> Observation:
        return Observation(
            graph=self.graph,
            plan=self.plan,
            readings=tuple(self._reading(constraint) for constraint in self.constraints),
            rate_per_s=self._recent_rate(interval.rate_per_s),
            model=model,
            noise=spread(list(self._points), model, _half_life(interval)),
            steps={
                name: _load(measure, interval.utilisation(name))
                for name, measure in interval.steps().items()
            },
            slots=interval.shares[-1].batch.slots,
            intervals_since_change=self._since_change,
            latency_ratio=median(self._ratios),
        )

    def _reading(self, constraint: Constraint) -> Reading:
        latest = self._latest.get(constraint)
        if latest is None:
            return Reading(constraint, None, 0.0)
        verdict, interval = latest
        path = self.graph.path(constraint.path)
        if path[0] != SOURCE:
            return Reading(constraint, verdict.value_ms, verdict.value_ms)
        along = interval.value_ms(replace(constraint, quantile=None), path)
        return Reading(constraint, verdict.value_ms, along - interval.latency_ms.mean)


def _capped(plan: Plan, constraints: tuple[Constraint, ...]) -> Plan:
    """The plan to begin with, its interval within twice the tightest bound from the source.

    A record waits for half an interval on average, so that no longer one could keep the bound:
    the cap of Lohrmann 2016, algorithm 3, before anything was measured.
    """
    longest_ms = min((2 * c.bound_ms for c in constraints if c.from_source), default=math.inf)
    return replace(plan, interval_ms=min(plan.interval_ms, longest_ms))


def _no_ratios() -> deque[float]:
    """Nothing learnt yet: the model is taken to be right until most of the intervals differ."""
    return deque([1.0] * RATIOS, maxlen=RATIOS)


def _half_life(interval: Interval) -> float:
    """In batches, about three intervals of them."""
    return max(8.0, 3.0 * len(interval.shares))


def _load(measure: StepMeasure, busy: dict[int, float]) -> StepLoad:
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
