"""Intervals: the records that entered a flow in one span of time, and what happened to them.

A constraint is about the records that *enter* in any ``every``. A batch may hold records from
several such spans, so it is divided among them by the arrival times of its records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tailrace.constraint import SOURCE, is_sink
from tailrace.profile.batch import StepMeasure
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.moments import Moments

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.constraint import Constraint
    from tailrace.profile.batch import BatchMeasure


@dataclass(frozen=True, slots=True)
class BatchShare:
    """The records of one batch that entered in one interval, by their age when handed over."""

    batch: BatchMeasure
    ages_ms: LogHistogram
    age_ms: Moments

    @property
    def records(self) -> int:
        """How many records of the batch belong to the interval."""
        return self.ages_ms.count

    @property
    def fraction(self) -> float:
        """The same as a fraction of the batch."""
        return self.records / self.batch.records

    @property
    def rest_ms(self) -> float:
        """From the hand-over of the batch to its visible results, the same for all records."""
        return (self.batch.ended_us - self.batch.handed_us) / 1e3

    def breakdown_ms(self) -> dict[str, float]:
        """The mean latency of these records by element."""
        lag = (self.batch.handed_us - self.batch.planned_us) / 1e3
        waits = np.maximum(self.ages_ms.values_ms - lag, 0.0)
        batching = np.minimum(waits, self.batch.plan.interval_ms)
        mean = float(np.average(batching, weights=self.ages_ms.counts))
        wait = max(0.0, self.age_ms.mean - lag)
        return self.batch.breakdown_ms(self.age_ms.mean, min(mean, wait))


class Span(Protocol):
    """What is known about the records of one interval, in any backend."""

    @property
    def start_us(self) -> int:
        """When it starts."""

    @property
    def every_ms(self) -> float:
        """How long it is."""

    @property
    def records(self) -> int:
        """How many records it holds."""

    @property
    def batches(self) -> int:
        """How many batches they came from."""

    @property
    def rate_per_s(self) -> float:
        """Records per second."""

    @property
    def latency_ms(self) -> Moments:
        """Moments of the latency from arrival to visible result."""

    def latencies_ms(self) -> LogHistogram:
        """The distribution of that latency."""

    def breakdown_ms(self) -> dict[str, float]:
        """The mean latency by element."""

    def value_ms(self, constraint: Constraint, path: tuple[str, ...]) -> float:
        """The statistic of a constraint, along its path as resolved on the graph."""

    def steps(self) -> dict[str, StepMeasure]:
        """What each step did."""

    def utilisation(self, step: str) -> dict[int, float]:
        """The busy share of each partition of a step."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The records that entered in ``[start, start + every)``; it holds at least one."""

    start_us: int
    every_ms: float
    shares: tuple[BatchShare, ...]

    @property
    def records(self) -> int:
        """How many records entered."""
        return sum(share.records for share in self.shares)

    @property
    def batches(self) -> int:
        """How many batches contributed to it."""
        return len(self.shares)

    @property
    def last_batch(self) -> BatchMeasure:
        """The last batch that contributed to it."""
        return self.shares[-1].batch

    @property
    def rate_per_s(self) -> float:
        """Records that entered per second."""
        return self.records / self.every_ms * 1e3

    @property
    def latency_ms(self) -> Moments:
        """Moments of the latency from arrival to visible result."""
        return Moments.merged(share.age_ms.shifted(share.rest_ms) for share in self.shares)

    def latencies_ms(self) -> LogHistogram:
        """The distribution of the latency from arrival to visible result."""
        return LogHistogram.merged(share.ages_ms.shifted(share.rest_ms) for share in self.shares)

    def breakdown_ms(self) -> dict[str, float]:
        """The mean latency by element; the elements add up to the mean."""
        whole: dict[str, float] = {}
        records = self.records
        for share in self.shares:
            weight = share.records / records
            for name, part in share.breakdown_ms().items():
                whole[name] = whole.get(name, 0.0) + part * weight
        return whole

    def value_ms(self, constraint: Constraint, path: tuple[str, ...]) -> float:
        """The statistic of a constraint, along its path as resolved on the graph.

        From source to sink it is measured record by record. If a path ends inside the flow, its
        mean is the difference of the mean times at which records pass the two ends. For its
        quantile, the rest of the way is assumed to be equal for all records (if the path starts at
        the source); otherwise each step adds the distance of its own quantile from its mean, as if
        a slow record were slow in every step.
        """
        mean = self._weighted(lambda share: share.batch.path_ms(path, share.age_ms.mean))
        if constraint.quantile is None:
            return mean
        if path[0] == SOURCE:
            after = self.latency_ms.mean - mean
            return max(0.0, self.latencies_ms().quantile_ms(constraint.quantile) - after)
        steps = self.steps()
        residences = [steps[name].residence_ms for name in path if name in steps]
        return mean + sum(
            max(0.0, residence.quantile_ms(constraint.quantile) - residence.mean_ms())
            for residence in residences
            if residence.count
        )

    def steps(self) -> dict[str, StepMeasure]:
        """What each step did for the records of this interval."""
        names = dict.fromkeys(name for share in self.shares for name in share.batch.steps)
        return {
            name: StepMeasure.merged(
                share.batch.steps[name].part(share.fraction)
                for share in self.shares
                if name in share.batch.steps
            )
            for name in names
        }

    def utilisation(self, step: str) -> dict[int, float]:
        """The busy share of each partition of a step, by the records that entered.

        Above 1, the step gets more work than one task can do: this counts the work that came in,
        not the work that was done in the meantime.
        """
        busy: dict[int, float] = {}
        for share in self.shares:
            measure = share.batch.steps.get(step)
            for partition, time_ms in (measure.busy_ms if measure else {}).items():
                part = time_ms * share.fraction / self.every_ms
                busy[partition] = busy.get(partition, 0.0) + part
        return busy

    def _weighted(self, value: Callable[[BatchShare], float]) -> float:
        return sum(value(share) * share.records for share in self.shares) / self.records


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a constraint held in one interval, by how much, and what is to blame if not.

    ``blame`` names the element with the largest part of the latency when the bound was broken.
    """

    constraint: Constraint
    start_us: int
    records: int
    value_ms: float
    blame: str | None

    @property
    def fulfilled(self) -> bool:
        """Whether the bound was kept."""
        return self.value_ms <= self.constraint.bound_ms

    @property
    def excess_ms(self) -> float:
        """By how much the bound was broken; 0 when it held."""
        return max(0.0, self.value_ms - self.constraint.bound_ms)


def judge(interval: Span, constraint: Constraint, path: tuple[str, ...]) -> Verdict:
    """The verdict on one interval."""
    value_ms = interval.value_ms(constraint, path)
    blame = None
    if value_ms > constraint.bound_ms:
        on_path = {
            name: part for name, part in interval.breakdown_ms().items() if _on_path(name, path)
        }
        blame = max(on_path, key=on_path.__getitem__, default=None)
    return Verdict(constraint, interval.start_us, interval.records, value_ms, blame)


def _on_path(element: str, path: tuple[str, ...]) -> bool:
    if element.startswith("step:"):
        return element.removeprefix("step:") in path
    if element == "sink":
        return is_sink(path[-1])
    if element == "engine":
        return len(path) > 1
    return path[0] == SOURCE


class Intervals:
    """Collects batches into consecutive intervals of one length.

    An interval is complete once a batch has been cut at or after its end: from then on, none of its
    records can still be waiting at a source that is read in order and to its end. If a source
    limits the records per batch, or delivers a record late for another reason, the record is never
    dropped but counted in the oldest open interval, so that verdicts are not held up.
    """

    def __init__(self, every_ms: float, origin_us: int) -> None:
        """Start the first interval at ``origin_us``."""
        self.every_ms = every_ms
        self._every_us = every_ms * 1e3
        self._origin_us = origin_us
        self._oldest = 0
        self._open: dict[int, list[BatchShare]] = {}

    def add(self, batch: BatchMeasure) -> tuple[Interval, ...]:
        """Divide a batch among intervals; returns the intervals that it completes, oldest first."""
        if batch.records:
            for index, share in self._shares(batch):
                self._open.setdefault(index, []).append(share)
        return self.complete(batch.planned_us)

    def complete(self, now_us: int) -> tuple[Interval, ...]:
        """The intervals that ended before ``now_us``, a time at which no record was waiting."""
        return self._close(math.floor((now_us - self._origin_us) / self._every_us))

    def flush(self) -> tuple[Interval, ...]:
        """The intervals still open, at the end of a run."""
        return self._close(max(self._open, default=self._oldest - 1) + 1)

    def _close(self, before: int) -> tuple[Interval, ...]:
        ready = sorted(index for index in self._open if index < before)
        self._oldest = max(self._oldest, before)
        return tuple(
            Interval(
                round(self._origin_us + index * self._every_us),
                self.every_ms,
                tuple(self._open.pop(index)),
            )
            for index in ready
        )

    def _shares(self, batch: BatchMeasure) -> list[tuple[int, BatchShare]]:
        arrived_us = batch.handed_us - batch.ages_ms.values_ms * 1e3
        indices = np.floor((arrived_us - self._origin_us) / self._every_us).astype(np.int64)
        indices = np.maximum(indices, self._oldest)
        found = np.unique(indices)
        if found.size == 1:
            return [(int(found[0]), BatchShare(batch, batch.ages_ms, batch.age_ms))]
        shares = []
        for index in found:
            inside = indices == index
            ages = LogHistogram(batch.ages_ms.bins[inside], batch.ages_ms.counts[inside])
            values, counts = ages.values_ms, ages.counts
            mean = float(np.average(values, weights=counts))
            m2 = float(np.dot(counts, np.square(values - mean)))
            shares.append(
                (int(index), BatchShare(batch, ages, Moments(float(ages.count), mean, m2)))
            )
        return shares
