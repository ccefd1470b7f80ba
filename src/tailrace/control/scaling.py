"""The number of executors: what a scaler is shown, and what is remembered between its moves.

A move takes seconds: executors start as processes, and a query takes new ones up between two
batches. So the plan says how many are wanted, every batch says how many there were, and while the
two differ a scaler goes on watching, but no other number is asked for.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from tailrace.control.log import ScalingRecord
from tailrace.errors import InputError
from tailrace.model.sized import (
    SizedBatches,
    Strictest,
    overheads_ms,
    shared_by,
    unshared_ms,
)
from tailrace.policy import batching
from tailrace.policy.batching import trusted_ratio
from tailrace.policy.decision import known
from tailrace.policy.order import move_executors
from tailrace.policy.scaling.executors import ExecutorState, Refusal
from tailrace.policy.scaling.predictive import Predictive
from tailrace.policy.scaling.sizing import Limits, Load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.policy.decision import Decision, Observation, Reading
    from tailrace.policy.scaling.sizing import Scaler
    from tailrace.profile.batch import BatchMeasure
    from tailrace.profile.interval import Interval

LATELY = 5
"""Batches whose mean size is the one that the model is split at."""

SPLITS = 60
"""Intervals from which the part of a batch that more executors would not shrink is estimated."""

CONTENT = 12
"""Control steps to wait before asking again, after a cluster had no more executors to give."""

SETTLING_US = 6_000_000
"""New executors run their first batches slower than later ones: for this long, slow batches are no
reason to ask for more."""

SETTLED = 1_000_000
"""Control steps after which a move has no effect any more."""


class Scaling:
    """Remembers what a scaler needs to see, and asks the policy that follows it.

    ``slowest_ms`` is how long its slowest decision took, by the clock ``now_s``.
    """

    def __init__(
        self,
        graph: Graph,
        scaler: Scaler,
        limits: Limits,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin with the executors that are there."""
        if isinstance(scaler, Predictive) and len(scaler.strategy.grades) > 1:
            raise InputError(
                "The executors of a session are all of one kind, so that a flow cannot choose "
                f"between {len(scaler.strategy.grades)} grades: give the strategy one."
            )
        self.scaler = scaler
        self.slowest_ms = 0.0
        self._now_s = now_s
        self.limits = limits
        self._refused: Refusal | None = None
        self.moved_us = self.grown_us = -math.inf
        self.needed: int | None = None
        scales = [step.scale for step in graph.steps if step.scale]
        self._scaled = bool(scales)
        self._widest = min((high for _, high in scales), default=None)
        self._ceiling = limits.most
        self._content_until_us = -math.inf
        self._unshared = deque[tuple[int, float]](maxlen=SPLITS)
        self._split_us = 0
        self._asked_us = 0
        self._steps = 1

    def refuse(self, reason: str, there: int) -> None:
        """Take in that the cluster refused, and has ``there`` executors."""
        self._refused = Refusal(there, reason)

    def resized(self, before: int, slots: int, at_us: int) -> None:
        """Take in that the number of slots changed; ``before`` is 0 at the start."""
        if before:
            self.moved_us = at_us
        if before and slots > before:
            self.grown_us = at_us

    def settling(self, at_us: int) -> bool:
        """Whether executors came a moment ago."""
        return at_us < self.grown_us + SETTLING_US

    def settled_us(self, interval_ms: float) -> float:
        """When the last move was over: new executors settled, and batches as long as before."""
        if self.grown_us < self.moved_us:
            return self.moved_us
        return self.grown_us + SETTLING_US + 2e3 * interval_ms

    def within_reach(self, seen: Observation) -> Observation:
        """The same with the slots of all the executors that may be asked for."""
        return replace(seen, slots=max(seen.slots, self._ceiling * self.limits.cores))

    def busy_ms(self, batch: BatchMeasure) -> float:
        """How long tasks were busy with a batch, divided by the tasks that share it."""
        shared = shared_by(batch.slots, self._widest)
        return math.fsum(sum(s.busy_ms.values()) for s in batch.steps.values()) / shared

    def record(self) -> ScalingRecord:
        """Scaling as the report shows it."""
        error = self.scaler.forecast_error if isinstance(self.scaler, Predictive) else None
        return ScalingRecord(self.limits.cores, self.slowest_ms, error)

    def decide(self, seen: Observation) -> Decision:
        """What the policy makes of an observation that has executors in it."""
        began_s = self._now_s()
        decision = move_executors(self.scaler, seen)
        self.slowest_ms = max(self.slowest_ms, (self._now_s() - began_s) * 1e3)
        return decision

    def observe(
        self,
        seen: Observation,
        interval: Interval,
        recent: Sequence[BatchMeasure],
        now_us: int,
        since: int = 0,
    ) -> Observation:
        """The observation with its part on executors.

        ``since`` counts the control steps that have begun since the interval.
        """
        step_us = interval.start_us + round(since * interval.every_ms * 1e3)
        passed = round((step_us - self._asked_us) / interval.every_ms / 1e3)
        self._steps = max(0, passed) if self._asked_us else 1
        self._asked_us = max(step_us, self._asked_us)
        if now_us >= self._content_until_us:
            self._ceiling = self.limits.most
        if self._refused is not None:
            refusal, self._refused = self._refused, None
            content_us = now_us + CONTENT * interval.every_ms * 1e3
            self._settle_for(seen.plan, refusal, content_us)
            return replace(seen, executors=refusal)
        return replace(seen, executors=self._measured(seen, interval, recent, now_us))

    def _settle_for(self, plan: Plan, refusal: Refusal, until_us: float) -> None:
        """Ask for no more for a while where the cluster gives no more; it may take none back."""
        if refusal.there < (plan.executors or 0):
            self._ceiling = max(refusal.there, self.limits.least)
            self._content_until_us = until_us

    def _measured(
        self,
        seen: Observation,
        interval: Interval,
        recent: Sequence[BatchMeasure],
        now_us: int,
    ) -> ExecutorState | None:
        readings = [r for r in seen.readings if r.constraint.from_source and r.value_ms is not None]
        if not readings:
            return None
        reading = max(readings, key=lambda r: (r.value_ms or 0.0) / r.constraint.bound_ms)
        if not self._scaled:  # then steps have the partitions that records come in, and no more
            self._widest = max((s.partitions for s in seen.steps.values()), default=None)
        since_move = min(SETTLED, (now_us - self.moved_us) // (interval.every_ms * 1e3))
        sized = self._sized(seen, reading, interval, recent, since_move)
        load = self._load(
            seen, reading, interval, recent, now_us=now_us, sized=sized, since_move=int(since_move)
        )
        if len(readings) > 1:
            load = replace(load, model=_strictest(sized, reading, readings))
        self.needed = _fewest(load)
        return ExecutorState(load, sized, reading.constraint, _next_ms(seen, recent))

    def _sized(
        self,
        seen: Observation,
        reading: Reading,
        interval: Interval,
        recent: Sequence[BatchMeasure],
        since_move: float,
    ) -> SizedBatches:
        """The batch model, for any number of executors and one constraint."""
        busy_ms = math.fsum(s.service_ms * s.records for s in seen.steps.values())
        busy_ms /= max(1, interval.records)
        records = fmean(batch.records for batch in recent[-LATELY:])
        tasks = shared_by(seen.slots, self._widest)
        now = (tasks, unshared_ms(known(seen.microbatch).model, records, busy_ms, tasks))
        if interval.start_us > self._split_us and since_move > 0:
            self._unshared.append(now)
            self._split_us = interval.start_us
        batch_ms, task_ms = overheads_ms(tuple(self._unshared) or (now,))
        return SizedBatches(
            batch_ms,
            busy_ms,
            reading.constraint.every_ms,
            reading.constraint.quantile,
            self.limits.cores,
            self._widest,
            reading.fixed_ms,
            trusted_ratio(seen),
            task_ms,
        )

    def _load(
        self,
        seen: Observation,
        reading: Reading,
        interval: Interval,
        recent: Sequence[BatchMeasure],
        *,
        now_us: int,
        sized: SizedBatches,
        since_move: int,
    ) -> Load:
        """What was measured, as scalers see it."""
        goal, busy_ms = reading.constraint, sized.busy_ms
        since_us = now_us - interval.every_ms * 1e3
        ended = [batch for batch in recent if batch.ended_us > since_us]
        ran = [batch for batch in ended if batch.planned_us >= self.moved_us]  # on this size
        behind_ms = 0.0
        if ended:
            last = ended[-1]
            behind_ms = max(0.0, last.duration_ms - last.plan.interval_ms) + last.left_ms
        whole_ms = math.fsum(max(b.duration_ms, b.plan.interval_ms) for b in ran)
        return Load(
            at_us=now_us,
            step_ms=interval.every_ms,
            size=seen.slots // self.limits.cores,
            limits=replace(self.limits, most=self._ceiling),
            bound_ms=goal.bound_ms,
            rate_per_s=seen.rate_per_s,
            done_per_s=1e3 * sum(b.records for b in ran) / whole_ms if whole_ms else 0.0,
            service_ms=busy_ms / self.limits.cores,
            busy=min(1.0, busy_ms * seen.rate_per_s / 1e3 / seen.slots),
            latency_ms=_back_to_back_ms(seen, reading, interval.last_batch.plan.interval_ms)
            if seen.rate_per_s
            else None,
            backlog=seen.rate_per_s * behind_ms / 1e3,
            model=sized,
            blocked=_held_up_ms(recent, since_us, self.moved_us) / whole_ms if whole_ms else 0.0,
            steps=self._steps,
            wanted=seen.plan.executors,
            since_move=since_move,
            corrected=True,  # by the fitting factor
        )


def _fewest(load: Load) -> int | None:
    """The fewest executors that keep the bound by the model; None if no allowed number does."""
    sizes = range(1, load.limits.most + 1)
    kept = (n for n in sizes if load.model.latency_ms(n, load.rate_per_s) <= load.bound_ms)
    return next(kept, None)


def _next_ms(seen: Observation, recent: Sequence[BatchMeasure]) -> float:
    """How long the next batch would take on the present executors, with all waiting records."""
    waiting = seen.rate_per_s * (recent[-1].duration_ms + recent[-1].left_ms) / 1e3
    batches = known(seen.microbatch)
    return batches.model.duration_ms(min(waiting, batches.most_records or math.inf))


def _held_up_ms(recent: Sequence[BatchMeasure], since_us: float, moved_us: float) -> float:
    """For how long the batches that ended since then, and began after a move, held records up.

    A batch may last as long as its records took to arrive, from the cut before it to its own:
    batches back to back are never idle, and yet keep up. If it lasts longer, the next ones wait,
    unless they are shorter by as much. A batch that leaves records behind holds them up all the
    time.
    """
    held_up_ms, longer_ms = 0.0, 0.0
    for before, batch in pairwise(recent):
        if batch.ended_us <= since_us or batch.planned_us < moved_us:
            continue
        if batch.left_ms:
            held_up_ms += batch.duration_ms
        else:
            came_ms = (batch.planned_us - before.planned_us) / 1e3
            longer_ms += batch.duration_ms - min(came_ms, before.duration_ms)
    return held_up_ms + max(0.0, longer_ms)


def _back_to_back_ms(seen: Observation, reading: Reading, ran_ms: float) -> float | None:
    """The part of the measured latency that depends on the size.

    Longer batches use up what the bound leaves, so that measured latencies are near the bound on
    any size. A size is judged by the latency back to back: the measured one, scaled by what the
    model predicts for both.
    """
    if reading.value_ms is None or not reading.constraint.from_source:
        return reading.value_ms
    floor_ms = batching.predicted_ms(seen, reading, 0.0)
    now_ms = batching.predicted_ms(seen, reading, ran_ms)
    return reading.value_ms * floor_ms / now_ms if 0 < now_ms < math.inf else reading.value_ms


def _strictest(sized: SizedBatches, tightest: Reading, readings: Sequence[Reading]) -> Strictest:
    """The model of all constraints, since another one may be the tightest on another size."""
    constraints = []
    for reading in readings:
        goal, fixed_ms = reading.constraint, reading.fixed_ms
        model = replace(sized, every_ms=goal.every_ms, quantile=goal.quantile, fixed_ms=fixed_ms)
        constraints.append((model, goal.bound_ms))
    return Strictest(tuple(constraints), tightest.constraint.bound_ms)
