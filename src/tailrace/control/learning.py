"""What finished batches teach: a model of the batch, the rate of the moment, the source's limit."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from tailrace.model.microbatch import BatchModel, BatchPoint, fit, spread
from tailrace.policy.decision import MicroBatchState
from tailrace.policy.rise import risen_rate
from tailrace.profile.batch import came
from tailrace.profile.source_limit import SourceLimit

if TYPE_CHECKING:
    from tailrace.profile.batch import BatchMeasure
    from tailrace.profile.interval import Interval

HISTORY = 400
"""Finished batches that the batch model is fitted to, at most."""

RATIOS = 5
"""Intervals whose median is the ratio of measured to predicted latency: where an interval happens
to cut the batches, or a backlog that one of them works off, must not move the plan."""

RECENT_US = (1_000_000, 2_000_000, 4_000_000)
RECENT_BATCHES = 64
"""How far back the rate of the moment is taken from, in time and in batches: a small rise takes
longer to tell from chance than a large one."""

LEAST_POINTS = 5
"""Batches that a model must rest on before it may call a constraint impossible."""


class Learning:
    """Remembers the latest batches, and what was learnt of them.

    ``model`` is None until an interval was fitted.
    """

    def __init__(self, interval_ms: float, most_records: int | None = None) -> None:
        """``most_records`` is what the source gives a batch at most, if that is known."""
        self.model: BatchModel | None = None
        self.recent: deque[BatchMeasure] = deque(maxlen=RECENT_BATCHES)
        self._interval_ms = interval_ms
        self._source_limit = SourceLimit(most_records)
        self._points: deque[BatchPoint] = deque(maxlen=HISTORY)
        self._ratios = _no_ratios()

    @property
    def begun(self) -> bool:
        """Whether a batch was measured that the model can be fitted to."""
        return bool(self._points)

    @property
    def tells_fixed_cost(self) -> bool:
        """Whether several batches were: one alone does not split into fixed cost and records."""
        return len(self._points) > 1

    @property
    def trusted(self) -> bool:
        """Whether enough batches were to call a constraint impossible."""
        return len(self._points) >= LEAST_POINTS

    @property
    def behind(self) -> bool:
        """Whether the last batch left records at the source."""
        return self.recent[-1].left_ms > 0

    @property
    def late_ms(self) -> float:
        """How old records are when they reach the source."""
        return self._source_limit.late_ms

    def add(self, batch: BatchMeasure) -> BatchMeasure:
        """Remember a batch; the same with what it left at the source."""
        batch = self._source_limit(batch)
        self.recent.append(batch)
        return batch

    def fit_to(self, batch: BatchMeasure) -> None:
        """Have the model fitted to a batch too."""
        self._points.append(BatchPoint(batch.records, batch.duration_ms, batch.ended_us))

    def nothing_left(self) -> None:
        """Take in that nothing waits at the source."""
        if self.recent:
            self.recent[-1] = replace(self.recent[-1], left_ms=0.0)

    def resized(self, more_ms: float) -> None:
        """Carry over what was learnt to executors on which a record takes that much longer."""
        points = (_longer(point, more_ms) for point in self._points)
        self._points = deque(points, maxlen=HISTORY)

    def forget(self) -> None:
        """Let go of what was learnt under other chains."""
        self._points.clear()
        self._ratios = _no_ratios()

    def learn(self, interval: Interval, *, settled: bool) -> BatchModel:
        """Fit the model, and hold it against the interval unless executors are new in it."""
        ran_ms, rate = interval.last_batch.plan.interval_ms, self.rate(interval)
        self.model = fit(list(self._points), _half_life(interval))
        predicted = self.model.latency_ms(ran_ms, rate, self._interval_ms, None)
        if 0 < predicted < math.inf and settled:
            in_flow_ms = max(0.0, interval.latency_ms.mean - self.late_ms)
            self._ratios.append(in_flow_ms / predicted)
        return self.model

    def noise(self, interval: Interval, model: BatchModel) -> float:
        """The relative spread of the durations of batches around the model."""
        return spread(list(self._points), model, _half_life(interval))

    def state(self, model: BatchModel, *, moving: bool, unsettled: bool) -> MicroBatchState:
        """What policies see of it."""
        return MicroBatchState(
            model,
            median(self._ratios),
            moving,
            unsettled,
            self._source_limit.most_records,
            self.behind,
            self.late_ms,
        )

    def at_source(self, state: MicroBatchState) -> MicroBatchState:
        """The same with what the source holds back by now."""
        return replace(state, most_records=self._source_limit.most_records, behind=self.behind)

    def rate(self, interval: Interval) -> float:
        """Records that came per second in the interval.

        Where the source holds records back an interval has those that were read in it, which says
        what the flow can do and not what is asked of it.
        """
        lately = self._lately(self._interval_ms * 1e3)
        records, seconds = came(lately)
        if not seconds > 0 or not any(batch.left_ms for batch in lately):
            return interval.rate_per_s
        return records / seconds

    def recent_rate(self, known_per_s: float, deviations: float) -> float:
        """The rate of the last seconds, or batch, if it has clearly risen, else the known one."""
        counts = (came(self._lately(recent_us)) for recent_us in RECENT_US)
        return risen_rate(known_per_s, self._interval_ms / 1e3, counts, deviations)

    def _lately(self, recent_us: float) -> list[BatchMeasure]:
        """The batches that were cut in the last ``recent_us``, and the one before the last.

        Where records are left behind, time is that in which they came, and all of it is covered.
        """
        at_us = [b.arrived_us if self.behind else b.planned_us for b in self.recent]
        since_us = min(at_us[-1] - recent_us, *at_us[-2:])
        if self.behind:
            since_us = max((at for at in at_us if at <= since_us), default=min(at_us))
        return [b for b, at in zip(self.recent, at_us, strict=True) if at >= since_us]


def _longer(point: BatchPoint, per_record_ms: float) -> BatchPoint:
    """A batch as it would have been if each record took ``per_record_ms`` longer, or less."""
    duration_ms = point.duration_ms + per_record_ms * point.records
    return replace(point, duration_ms=max(duration_ms, point.duration_ms / 10))


def _no_ratios() -> deque[float]:
    """Nothing learnt yet: the model is taken to be right until most of the intervals differ."""
    return deque([1.0] * RATIOS, maxlen=RATIOS)


def _half_life(interval: Interval) -> float:
    """In batches, about three intervals of them."""
    return max(8.0, 3.0 * len(interval.shares))
