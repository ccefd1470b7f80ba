"""The loop for micro-batches: everything follows from what was measured of finished batches."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.constraint import SOURCE
from tailrace.control.actions import SetExecutors
from tailrace.control.decider import Decider
from tailrace.control.events import BatchFinished, Idle, PoolChanged, Refused
from tailrace.control.judge import Judge, loads_of
from tailrace.control.learning import Learning
from tailrace.control.log import Mode, Saving
from tailrace.policy import batching, feasibility, rise
from tailrace.policy.backend import MicroBatchCosts
from tailrace.policy.decision import Observation, Reading, known
from tailrace.policy.rise import LIKELY, SURE
from tailrace.policy.scaling.executors import POLICY as SCALING
from tailrace.policy.scaling.executors import fitted
from tailrace.profile.clock import Forward
from tailrace.profile.interval import Interval, Intervals

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.constraint import Constraint
    from tailrace.control.actions import Change
    from tailrace.control.events import Event
    from tailrace.control.log import Log
    from tailrace.control.recording import Recording
    from tailrace.control.scaling import Scaling
    from tailrace.graph import Graph
    from tailrace.model.microbatch import BatchModel
    from tailrace.plan import Plan
    from tailrace.profile.batch import BatchMeasure
    from tailrace.profile.pool import ExecutorPool

CPU_SHARE = 1.05
"""CPU time of a batch over its duration, as measured on two cores."""


class BatchLoop:
    """Turns finished micro-batches into intervals, verdicts and plans.

    A :class:`Judge` has the intervals, :class:`Learning` what batches teach, a :class:`Decider` the
    plan and its decisions, and :class:`Scaling` the executors, where their number is decided here.
    """

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
        self.log = log
        self._graph = graph
        first = _capped(plan, log.constraints) if log.mode is Mode.ENFORCE else plan
        self._decider = Decider(graph, first, log)
        self._judge: Judge[Interval, Intervals] = Judge(
            graph,
            log,
            lambda every_ms: Intervals(every_ms, log.origin_us),
            bears_out=self._bears_out,
        )
        self._learning = Learning(log.interval_ms, most_records)
        self._scaling = scaling
        log.scaling = None if scaling is None else scaling.record()
        self._pool: ExecutorPool | None = None
        self._slots = 0
        self._forward = Forward()
        self._interval: Interval | None = None
        self._seen: Observation | None = None
        self._scaled_per_s = 0.0
        self._silent_us = 0
        self._silences = 0

    @property
    def plan(self) -> Plan:
        """The plan that is to run."""
        return self._decider.plan

    @property
    def recording(self) -> Recording:
        """What is kept of the run for its profile."""
        return self._judge.recording

    def hear(self, event: Event) -> None:
        """Take in a finished batch, that there is none, or what became of executors."""
        match event:
            case BatchFinished(batch):
                self._on_batch(batch)
            case Idle(at_us):
                self._on_idle(at_us)
            case PoolChanged(pool):
                self._pool = pool
            case Refused(SetExecutors(), reason) if self._scaling is not None:
                self._scaling.refuse(reason, 1 if self._pool is None else max(1, self._pool.there))

    def finish(self) -> None:
        """Judge what is left when nothing more will come. Cut short, it decides nothing."""
        self._judge.finish(self.plan, self._slots)

    def take_back(self, *changes: Change, why: str) -> None:
        """Undo what was decided last and cannot be done."""
        self._decider.take_back(*changes, why=why)

    def costs(self) -> MicroBatchCosts | None:
        """What micro-batches take here, as last fitted; None before the first interval."""
        model = self._learning.model
        if model is None:
            return None
        return MicroBatchCosts(model, CPU_SHARE * model.fixed_ms, CPU_SHARE * model.per_record_ms)

    def _on_batch(self, batch: BatchMeasure) -> None:
        batch = self._learning.add(self._forward(batch))
        self.log.batches += 1
        self.recording.add_batch(batch)
        if batch.slots != self._slots:
            self._resized(batch.slots, batch.ended_us, batch)
        if batch.records and self._is_representative(batch):
            self._learning.fit_to(batch)
        closed = self._closed(lambda intervals: intervals.add(batch))
        self._silent_us = batch.ended_us
        if closed and self._learning.model is not None and self._learning.begun:
            self._decide(closed[-1], self._learning.model, batch.ended_us)
        elif self._seen is not None:
            self._react_early(self._seen, batch.ended_us)

    def _on_idle(self, at_us: int) -> None:
        """Take in that no record waits and none is worked on.

        Without records there are no batches to hear of. The scaler is asked once an interval all
        the same, so that executors are given back.
        """
        now_us = self._forward.at(at_us)
        self._learning.nothing_left()
        closed = self._closed(lambda intervals: intervals.complete(now_us))
        if closed and self._learning.model is not None and self._learning.begun:
            self._silent_us = now_us
            self._decide(closed[-1], self._learning.model, now_us)
        elif self._seen is not None and now_us - self._silent_us >= self.log.interval_ms * 1e3:
            self._silent_us = now_us
            self._scale_idle(self._seen, now_us)

    def _is_representative(self, batch: BatchMeasure) -> bool:
        """Whether to fit the model to this batch.

        Not if it ran under other chains, nor while executors start, stop or are new: that takes
        the machine's time. Unless there is nothing else to learn from.
        """
        chains, partitions = batch.plan.chains, batch.plan.partitions
        same = (chains, partitions) == (self.plan.chains, self.plan.partitions)
        settled = same and not self._moving and not self._settling(batch.planned_us)
        return settled or (not self._learning.begun and chains == self.plan.chains)

    def _closed(self, ended: Callable[[Intervals], tuple[Interval, ...]]) -> tuple[Interval, ...]:
        """Take in the intervals that have ended; those at the end of which plans may change."""
        closed = self._judge.close(ended)
        for interval in closed:
            self._judge.remember(interval, self.plan, self._slots)
            self._realise(interval)
            self._interval, self._silences = interval, 0
            self._decider.intervals_since_change += 1
            if self._learning.begun:
                self._learn(interval)
        return closed

    def _learn(self, interval: Interval) -> None:
        """Fit the model to the batches so far, and count what longer ones spared."""
        settled = not self._moving and not self._settling(interval.start_us)
        model = self.log.model = self._learning.learn(interval, settled=settled)
        ran_ms, rate = interval.last_batch.plan.interval_ms, self._learning.rate(interval)
        batches, cpu_ms = batching.saving(model, rate, ran_ms, interval.every_ms)
        saved = self.log.saving
        self.log.saving = Saving(saved.batches + batches, saved.cpu_ms + cpu_ms)

    def _decide(self, interval: Interval, model: BatchModel, now_us: int) -> None:
        """Act on the newest interval; one batch may close several, and is one piece of news."""
        learning, judge = self._learning, self._judge
        observation = self._seen = self._observe(interval, model)
        reach = observation if self._scaling is None else self._scaling.within_reach(observation)
        found = feasibility.assess(reach) if learning.tells_fixed_cost else judge.presumed
        judge.suspect(found, enough=learning.trusted)
        if self.log.mode is Mode.OBSERVE:
            return
        same_chains = self._decider.ask(observation, now_us)
        self._scaled_per_s = learning.recent_rate(learning.rate(interval), SURE)
        if same_chains:
            self._scale(observation, now_us)
        else:
            learning.forget()

    def _bears_out(self, constraint: Constraint) -> bool:
        """From the source on, every batch but the coldest must have taken too long by itself.

        Nor may they get faster for the records that they hold, as they do while code gets warm.
        """
        if not constraint.from_source:
            return self._judge.missed_by_far(constraint)
        values_ms = self._judge.values_ms(constraint)
        warm = [batch for batch in self._learning.recent if batch.records][1:]
        return (
            len(values_ms) > 1
            and min(values_ms) > feasibility.FAR * constraint.bound_ms
            and feasibility.persists([b.duration_ms for b in warm], constraint.bound_ms)
            and feasibility.persists([b.duration_ms / b.records for b in warm], 0.0)
        )

    def _react_early(self, seen: Observation, now_us: int) -> None:
        """React at once when the rate rises or records are left behind."""
        if self.log.mode is Mode.OBSERVE:
            return
        rate = self._learning.recent_rate(seen.rate_per_s, LIKELY)
        if rate > seen.rate_per_s or self._learning.behind:
            state = self._learning.at_source(known(seen.microbatch))
            seen = replace(seen, plan=self.plan, rate_per_s=rate, microbatch=state)
            self._seen = seen
            self._decider.act(rise.decide(seen), now_us)
        self._scale_if_risen(seen, now_us)

    def _scale_if_risen(self, seen: Observation, now_us: int) -> None:
        """Ask for executors before the interval is over if it is sure that the rate has risen."""
        rate = self._learning.recent_rate(self._scaled_per_s, SURE)
        if rate > self._scaled_per_s:
            self._scaled_per_s = rate
            self._scale(seen, now_us, since=1)

    def _scale_idle(self, seen: Observation, now_us: int) -> None:
        """Ask for executors at the end of a control step in which no record came."""
        if self._scaling is None or self.log.mode is Mode.OBSERVE:
            return
        slots = self._slots if self._pool is None else self._pool.slots
        if slots != self._slots:
            self._resized(slots, now_us, self._learning.recent[-1])
        self._scaled_per_s = 0.0
        self._silences += 1
        self._scale(replace(seen, slots=slots), now_us, since=self._silences)

    def _scale(self, seen: Observation, now_us: int, since: int = 0) -> None:
        """Decide on the executors, by the rate that is sure.

        ``since`` counts the control steps that have begun since the last interval.
        """
        if self._scaling is None or self._interval is None:
            return
        seen = replace(seen, plan=self.plan, rate_per_s=self._scaled_per_s)
        recent = list(self._learning.recent)
        seen = self._scaling.observe(seen, self._interval, recent, now_us, since)
        decision = self._scaling.decide(seen)
        self.log.scaling = self._scaling.record()
        if self._scaled_per_s:
            last = self.log.history[-1]
            self.log.history[-1] = replace(last, needed=self._scaling.needed)
        else:  # without records there is no latency to predict
            decision = replace(decision, predicted_ms=None)
        self._decider.act(decision, now_us)

    def _resized(self, slots: int, at_us: int, last: BatchMeasure) -> None:
        """Take up executors that came or went, and carry over what the model had learnt.

        What the records of the last batch took tells how much of it is shared by all.
        """
        before, self._slots = self._slots, slots
        scaling = self._scaling
        if scaling is None:
            return
        scaling.resized(before, slots, at_us)
        if self.log.mode is Mode.ENFORCE:
            self._decider.plan = fitted(self._graph, self.plan, slots, scaling.limits)
        else:  # no executors are asked for: those that are there are those of the plan
            self._decider.plan = replace(self.plan, executors=slots // scaling.limits.cores)
        if before and last.records:
            work_ms = scaling.busy_ms(last) / last.records * (last.slots / before)
            self._learning.resized(work_ms * (before / slots - 1))

    @property
    def _wanted(self) -> int:
        """The slots of the executors that are wanted; without scaling, those that are there."""
        if self._scaling is None or not self._slots or self.plan.executors is None:
            return self._slots
        return self.plan.executors * self._scaling.limits.cores

    @property
    def _moving(self) -> bool:
        """Whether executors that are wanted have not come yet, or others not gone."""
        return self._wanted != self._slots

    def _settling(self, at_us: int) -> bool:
        """Whether executors came a moment ago."""
        return self._scaling is not None and self._scaling.settling(at_us)

    def _realise(self, interval: Interval) -> None:
        """Score decisions; one on executors by an interval that began when all had settled.

        Batches are adjusted again and again until then, which makes it no less worth a score.
        """
        decided = (r for r in reversed(self.log.decisions) if r.policy == SCALING)
        record = next(decided, None)
        waits = record is not None and record.applied and record.realised_ms is None
        if self._scaling is None or record is None or not waits:
            self._decider.realise(interval)
            return
        settled_us = self._scaling.settled_us(self.log.interval_ms)
        if not self._moving and interval.start_us >= settled_us:
            self._decider.score(record, interval)

    def _observe(self, interval: Interval, model: BatchModel) -> Observation:
        learning = self._learning
        return Observation(
            graph=self._graph,
            plan=self.plan,
            readings=tuple(self._reading(constraint) for constraint in self.log.constraints),
            rate_per_s=learning.recent_rate(learning.rate(interval), LIKELY),
            steps=loads_of(interval),
            slots=interval.last_batch.slots,
            intervals_since_change=self._decider.intervals_since_change,
            noise=learning.noise(interval, model),
            microbatch=learning.state(
                model,
                moving=self._moving,
                unsettled=self._wanted > self._slots or self._settling(interval.start_us),
            ),
        )

    def _reading(self, constraint: Constraint) -> Reading:
        """What a constraint measured, and how much of that no plan can change.

        Where records are older than its bound when they reach the source nothing keeps it, and
        nothing is spent on that: what the flow itself adds is then held against the bound.
        """
        latest = self._judge.latest.get(constraint)
        if latest is None:
            return Reading(constraint)
        verdict, interval = latest
        path = self._judge.paths[constraint]
        if path[0] != SOURCE:
            return Reading(constraint, verdict.value_ms, verdict.value_ms)
        along = interval.value_ms(replace(constraint, quantile=None), path)
        fixed_ms, late_ms = along - interval.latency_ms.mean, self._learning.late_ms
        if late_ms < constraint.bound_ms:
            return Reading(constraint, verdict.value_ms, fixed_ms + late_ms)
        return Reading(constraint, max(0.0, verdict.value_ms - late_ms), fixed_ms)


def _capped(plan: Plan, constraints: tuple[Constraint, ...]) -> Plan:
    """The plan to begin with, its interval within twice the tightest bound from the source.

    A record waits for half an interval on average, so that no longer one could keep the bound:
    the cap of Lohrmann 2016, algorithm 3, before anything was measured.
    """
    longest_ms = min((2 * c.bound_ms for c in constraints if c.from_source), default=math.inf)
    return replace(plan, interval_ms=min(plan.interval_ms, longest_ms))
