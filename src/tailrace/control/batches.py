"""The loop for micro-batches: everything follows from what was measured of finished batches."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from tailrace.control.actions import SetExecutors
from tailrace.control.events import BatchFinished, Idle, PoolChanged, Refused
from tailrace.control.log import Mode, Saving
from tailrace.control.loop import LIKELY, SURE, Loop, clear_rise, load_of
from tailrace.control.scaling import POLICY as SCALING
from tailrace.goals import SOURCE
from tailrace.model.microbatch import BatchModel, BatchPoint, fit, spread
from tailrace.policy import batching, chaining, feasibility
from tailrace.policy.backend import MicroBatchCosts
from tailrace.policy.decision import Observation, Reading
from tailrace.profile.batch import came
from tailrace.profile.clock import Forward
from tailrace.profile.interval import Interval, Intervals
from tailrace.profile.source_limit import SourceLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.control.events import Event
    from tailrace.control.log import Log
    from tailrace.control.scaling import Scaling
    from tailrace.flow import Graph
    from tailrace.goals import Constraint
    from tailrace.plan import Plan
    from tailrace.profile.batch import BatchMeasure
    from tailrace.profile.pool import ExecutorPool

POLICIES = (batching.decide, chaining.decide)
"""In the order of their price: batching is free, chaining costs a restart of the query."""

HISTORY = 400
"""Finished batches that the batch model is fitted to, at most."""

RATIOS = 5
"""Intervals whose median is the ratio of measured to predicted latency: where an interval happens
to cut the batches, or a backlog that one of them works off, must not move the plan."""

RECENT_US = (1_000_000, 2_000_000, 4_000_000)
RECENT_BATCHES = 64
"""How far back the rate of the moment is taken from, in time and in batches: a small rise takes
longer to tell from chance than a large one."""

SETTLING_US = 6_000_000
"""Executors that have just come run their first batches slower than all later ones: for so long,
what a batch takes is no reason for still more of them."""

CPU_SHARE = 1.05
"""CPU time of a batch over its duration, as measured on two cores."""

LEAST_POINTS = 5
"""Batches that a model must rest on before it may call a constraint impossible."""


class BatchLoop(Loop[Interval, Intervals]):
    """Turns finished micro-batches into intervals, verdicts and plans."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        log: Log,
        *,
        scaling: Scaling | None = None,
        most_records: int | None = None,
    ) -> None:
        """With ``scaling`` the number of executors is decided here too.

        ``most_records`` is what the source gives a batch at most, if that is known.
        """
        enforced = log.mode is Mode.ENFORCE
        super().__init__(graph, _capped(plan, log.constraints) if enforced else plan, log)
        self.model: BatchModel | None = None
        self.scaling = scaling
        log.scaling = None if scaling is None else scaling.record()
        self._pool: ExecutorPool | None = None
        self._interval: Interval | None = None
        self._forward = Forward()
        self._source_limit = SourceLimit(most_records)
        self._points: deque[BatchPoint] = deque(maxlen=HISTORY)
        self._ratios = _no_ratios()
        self._seen: Observation | None = None
        self._scaled_per_s = 0.0
        self._silent_us = 0
        self._silences = 0
        self._recent: deque[BatchMeasure] = deque(maxlen=RECENT_BATCHES)

    def hear(self, event: Event) -> None:
        """Take in a finished batch, that there is none, or what became of executors."""
        match event:
            case BatchFinished(batch):
                self._on_batch(batch)
            case Idle(at_us):
                self._on_idle(at_us)
            case PoolChanged(pool):
                self._pool = pool
            case Refused(SetExecutors(), reason) if self.scaling is not None:
                self.scaling.refuse(reason, 1 if self._pool is None else max(1, self._pool.there))

    def costs(self) -> MicroBatchCosts | None:
        """What micro-batches take here, as last fitted; None before the first interval."""
        model = self.model
        if model is None:
            return None
        return MicroBatchCosts(model, CPU_SHARE * model.fixed_ms, CPU_SHARE * model.per_record_ms)

    def _on_batch(self, batch: BatchMeasure) -> None:
        batch = self._source_limit(self._forward(batch))
        self._recent.append(batch)
        self.log.batches += 1
        self.recording.add_batch(batch)
        if batch.slots != self._slots:
            self._resized(batch.slots, batch.ended_us, batch)
        if batch.records and self._is_representative(batch):
            self._points.append(BatchPoint(batch.records, batch.duration_ms, batch.ended_us))
        closed = self._closed(lambda intervals: intervals.add(batch))
        self._silent_us = batch.ended_us
        if closed and self.model is not None and self._points:
            self._decide(closed[-1], self.model, batch.ended_us)
        elif self._seen is not None:
            self._react_early(self._seen, batch.ended_us)

    def _on_idle(self, at_us: int) -> None:
        """Take in that no record waits and none is worked on.

        Batches tell of records only. So that executors are given back where none come, whoever
        decides on their number is asked once an interval all the same.
        """
        now_us = self._forward.at(at_us)
        if self._recent:
            self._recent[-1] = replace(self._recent[-1], left_ms=0.0)
        closed = self._closed(lambda intervals: intervals.complete(now_us))
        if closed and self.model is not None and self._points:
            self._silent_us = now_us
            self._decide(closed[-1], self.model, now_us)
        elif self._seen is not None and now_us - self._silent_us >= self.interval_ms * 1e3:
            self._silent_us = now_us
            self._scale_idle(self._seen, now_us)

    def _scale_idle(self, seen: Observation, now_us: int) -> None:
        """Ask for executors at the end of a control step in which no record came."""
        if self.scaling is None or self.mode is Mode.OBSERVE:
            return
        slots = self._slots if self._pool is None else self._pool.slots
        if slots != self._slots:
            self._resized(slots, now_us, self._recent[-1])
        self._scaled_per_s = 0.0
        self._silences += 1
        self._scale(replace(seen, slots=slots), now_us, since=self._silences)

    def _is_representative(self, batch: BatchMeasure) -> bool:
        """Whether to fit the model to this batch.

        Not if it ran under other chains, nor while executors start, stop or are new: that takes
        the machine's time. Unless there is nothing else to learn from.
        """
        same = (batch.plan.chains, batch.plan.partitions) == (
            self.plan.chains,
            self.plan.partitions,
        )
        settled = same and not self._moving and not self._settling(batch.planned_us)
        return settled or (not self._points and batch.plan.chains == self.plan.chains)

    def _settling(self, at_us: int) -> bool:
        """Whether executors came a moment ago."""
        return self.scaling is not None and at_us < self.scaling.grown_us + SETTLING_US

    def _resized(self, slots: int, at_us: int, last: BatchMeasure) -> None:
        """Take up executors that came or went, and carry over what the model had learnt.

        What the records of the last batch took tells how much of it is shared by all.
        """
        before, self._slots = self._slots, slots
        if self.scaling is None:
            return
        if before:
            self.scaling.moved_us = at_us
        if before and slots > before:
            self.scaling.grown_us = at_us
        if self.mode is Mode.ENFORCE:
            self.plan = self.scaling.fitted(self.plan, slots)
        else:  # nobody asks for executors: what is there is what the plan has
            self.plan = replace(self.plan, executors=slots // self.scaling.limits.cores)
        if before and last.records:
            work_ms = self.scaling.busy_ms(last) / last.records * (last.slots / before)
            more_ms = work_ms * (before / slots - 1)
            points = (_longer(point, more_ms) for point in self._points)
            self._points = deque(points, maxlen=HISTORY)

    def _collector(self, every_ms: float) -> Intervals:
        return Intervals(every_ms, self.log.origin_us)

    def _closed(self, ended: Callable[[Intervals], tuple[Interval, ...]]) -> tuple[Interval, ...]:
        """Judge the intervals that have ended; those at the end of which plans may change."""
        for track in self._tracks.values():
            for interval in ended(track.intervals):
                self._judge(interval, track.constraints)
        closed = ended(self._adjustment)
        for interval in closed:
            self._close(interval)
        return closed

    def _close(self, interval: Interval) -> None:
        self._remember(interval)
        self._realise(interval)
        self._interval, self._silences = interval, 0
        self._since_change += 1
        if self._points:
            self._learn(interval)

    def _forget(self) -> None:
        self._points.clear()
        self._ratios = _no_ratios()

    def _learn(self, interval: Interval) -> None:
        """Fit the model, hold it against the interval, and count what its batches spared."""
        ran_ms, rate = interval.last_batch.plan.interval_ms, self._rate(interval)
        self.model = self.log.model = fit(list(self._points), _half_life(interval))
        predicted = self.model.latency_ms(ran_ms, rate, self.interval_ms, None)
        settled = not self._moving and not self._settling(interval.start_us)
        if 0 < predicted < math.inf and settled:
            in_flow_ms = max(0.0, interval.latency_ms.mean - self._source_limit.late_ms)
            self._ratios.append(in_flow_ms / predicted)
        batches, cpu_ms = batching.saving(self.model, rate, ran_ms, interval.every_ms)
        saved = self.log.saving
        self.log.saving = Saving(saved.batches + batches, saved.cpu_ms + cpu_ms)

    def _decide(self, interval: Interval, model: BatchModel, now_us: int) -> None:
        """Act on the newest interval; one batch may close several, and is one piece of news."""
        observation = self._seen = self._observe(interval, model)
        reach = observation if self.scaling is None else self.scaling.within_reach(observation)
        # One batch, as after a change of chains, does not tell what it costs from its records.
        found = feasibility.assess(reach) if len(self._points) > 1 else self._presumed
        self._suspect(found, enough=len(self._points) >= LEAST_POINTS)
        if self.mode is Mode.OBSERVE:
            return
        chains = self.plan.chains
        # A start takes the machine's time: how busy steps are meanwhile says little of chains.
        for decide in POLICIES[:1] if self._moving else POLICIES:
            self._act(decide(replace(observation, plan=self.plan)), now_us)
        self._scaled_per_s = self._recent_rate(self._rate(interval), SURE)
        if self.plan.chains == chains:
            self._scale(observation, now_us)

    def _persists(self, constraint: Constraint) -> bool:
        """From the source on, every batch but the coldest must have taken too long by itself.

        Nor may they get faster for the records that they hold, as they do while code gets warm.
        """
        if not constraint.from_source:
            return super()._persists(constraint)
        values_ms = self._values_ms(constraint)
        warm = [batch for batch in self._recent if batch.records][1:]
        return (
            len(values_ms) > 1
            and min(values_ms) > feasibility.FAR * constraint.bound_ms
            and feasibility.persists([b.duration_ms for b in warm], constraint.bound_ms)
            and feasibility.persists([b.duration_ms / b.records for b in warm], 0.0)
        )

    def _scale_if_risen(self, seen: Observation, now_us: int) -> None:
        """Ask for executors before the interval is over if it is sure that the rate has risen."""
        rate = self._recent_rate(self._scaled_per_s, SURE)
        if rate > self._scaled_per_s:
            self._scaled_per_s = rate
            self._scale(seen, now_us, since=1)

    def _scale(self, seen: Observation, now_us: int, since: int = 0) -> None:
        """The dearest of all, and so the last: another number of executors.

        ``since`` counts the control steps that have begun since the last interval.
        """
        if self.scaling is not None and self._interval is not None:
            seen = replace(seen, plan=self.plan, rate_per_s=self._scaled_per_s)
            recent = list(self._recent)
            decision = self.scaling.decide(seen, self._interval, recent, now_us, since)
            self.log.scaling = self.scaling.record()
            if self._scaled_per_s:
                last = self.log.history[-1]
                self.log.history[-1] = replace(last, needed=self.scaling.needed)
            elif decision is not None:  # of no record no latency can be foretold
                decision = replace(decision, predicted_ms=None)
            if decision is not None:
                self._act(decision, now_us)

    @property
    def _wanted(self) -> int:
        """The slots of the executors that are wanted; those there are where nobody decides."""
        if self.scaling is None or not self._slots or self.plan.executors is None:
            return self._slots
        return self.plan.executors * self.scaling.limits.cores

    @property
    def _moving(self) -> bool:
        """Whether executors that are wanted have not come yet, or others not gone."""
        return self._wanted != self._slots

    def _realise(self, interval: Interval) -> None:
        """Score decisions; one on executors by an interval that began when all had settled.

        Batches are adjusted again and again until then, which makes it no less worth a score.
        """
        if self.scaling is None:
            super()._realise(interval)
            return
        decided = (r for r in reversed(self.log.decisions) if r.policy == SCALING)
        record = next(decided, None)
        if record is None or not record.applied or record.realised_ms is not None:
            super()._realise(interval)
        elif not self._moving and interval.start_us >= self._settled_us(self.scaling):
            self._score(record, interval)

    def _settled_us(self, scaling: Scaling) -> float:
        """When the last move was over: new executors settled, and batches as long as before."""
        if scaling.grown_us < scaling.moved_us:
            return scaling.moved_us
        return scaling.grown_us + SETTLING_US + 2e3 * self.interval_ms

    def _react_early(self, seen: Observation, now_us: int) -> None:
        """Shorten batches at once when the rate rises or records are left behind.

        The interval that the plan rests on may be 5 s old; until the next is complete, a step in
        the load would be answered by batches that are too long for it.
        """
        if self.mode is Mode.OBSERVE:
            return
        rate = self._recent_rate(seen.rate_per_s, LIKELY)
        if rate > seen.rate_per_s or self._behind:
            seen = self._seen = replace(
                seen,
                plan=self.plan,
                rate_per_s=rate,
                most_records=self._source_limit.most_records,
                behind=self._behind,
            )
            decision = batching.decide(seen)
            if decision.plan.interval_ms < self.plan.interval_ms:
                self._act(decision, now_us)
        self._scale_if_risen(seen, now_us)

    def _recent_rate(self, known_per_s: float, deviations: float) -> float:
        """The rate of the last seconds, or batch, if it has clearly risen, else the known one."""
        known_s = self.interval_ms / 1e3
        for recent_us in RECENT_US:
            records, lately_s = came(self._lately(recent_us))
            if lately_s <= 0:  # of one batch nothing is known, nor where the clock was set back
                continue
            if clear_rise(known_per_s, known_s, records / lately_s, lately_s, deviations):
                return records / lately_s
        return known_per_s

    def _lately(self, recent_us: float) -> list[BatchMeasure]:
        """The batches that were cut in the last so much of time, and the one before the last.

        Where records are left behind, time is that in which they came, and all of it is covered.
        """
        at_us = [b.arrived_us if self._behind else b.planned_us for b in self._recent]
        since_us = min(at_us[-1] - recent_us, *at_us[-2:])
        if self._behind:
            since_us = max((at for at in at_us if at <= since_us), default=min(at_us))
        return [b for b, at in zip(self._recent, at_us, strict=True) if at >= since_us]

    @property
    def _behind(self) -> bool:
        """Whether the last batch left records at the source."""
        return self._recent[-1].left_ms > 0

    def _rate(self, interval: Interval) -> float:
        """Records that came per second in the interval.

        Where the source holds records back an interval has those that were read in it, which says
        what the flow can do and not what is asked of it.
        """
        lately = self._lately(self.interval_ms * 1e3)
        records, seconds = came(lately)
        if not seconds > 0 or not any(batch.left_ms for batch in lately):
            return interval.rate_per_s
        return records / seconds

    def _observe(self, interval: Interval, model: BatchModel) -> Observation:
        return Observation(
            graph=self.graph,
            plan=self.plan,
            readings=tuple(self._reading(constraint) for constraint in self.constraints),
            rate_per_s=self._recent_rate(self._rate(interval), LIKELY),
            model=model,
            noise=spread(list(self._points), model, _half_life(interval)),
            steps={
                name: load_of(measure, interval.utilisation(name))
                for name, measure in interval.steps().items()
            },
            slots=interval.last_batch.slots,
            intervals_since_change=self._since_change,
            latency_ratio=median(self._ratios),
            unsettled=self._wanted > self._slots or self._settling(interval.start_us),
            most_records=self._source_limit.most_records,
            behind=self._behind,
            late_ms=self._source_limit.late_ms,
        )

    def _reading(self, constraint: Constraint) -> Reading:
        """What a constraint measured, and how much of that no plan can change.

        Where records are older than its bound when they reach the source nothing keeps it, and
        nothing is spent on that: what the flow itself adds is then held against the bound.
        """
        latest = self._latest.get(constraint)
        if latest is None:
            return Reading(constraint, None, 0.0)
        verdict, interval = latest
        path = self._paths[constraint]
        if path[0] != SOURCE:
            return Reading(constraint, verdict.value_ms, verdict.value_ms)
        along = interval.value_ms(replace(constraint, quantile=None), path)
        fixed_ms, late_ms = along - interval.latency_ms.mean, self._source_limit.late_ms
        if late_ms < constraint.bound_ms:
            return Reading(constraint, verdict.value_ms, fixed_ms + late_ms)
        return Reading(constraint, max(0.0, verdict.value_ms - late_ms), fixed_ms)


def _longer(point: BatchPoint, per_record_ms: float) -> BatchPoint:
    """A batch as it would have been if each record took so much longer, or less."""
    duration_ms = point.duration_ms + per_record_ms * point.records
    return replace(point, duration_ms=max(duration_ms, point.duration_ms / 10))


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
