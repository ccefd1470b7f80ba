"""The measurements of one batch: when it was cut, how long each part took, what its steps did.

They are everything that Tailrace knows about a running flow; intervals, models and decisions are
computed from them. Any backend that fills in a ``BatchMeasure``, real or simulated, can be
controlled.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING

from tailrace.constraint import SOURCE, is_sink
from tailrace.profile.calls import Calls
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.moments import Moments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace.plan import Plan


BINS = 0.01
"""The relative error allowed for a quantile of ages."""

MOST_PER_READ = 8.0
"""Records are assumed to arrive at most this many times as fast as they were read: an instantaneous
burst says nothing about the rate."""

MOST_KEYS = 256
"""How many keys of a step are counted separately; if there are more, half of them are kept."""


def service_ms(
    records: int, busy_ms: float, sampled: int, sum_ms: float, squares_ms: float
) -> Moments:
    """Moments of the time per record: the mean of all, the variance of those timed one by one."""
    variance = max(0.0, squares_ms / sampled - (sum_ms / sampled) ** 2) if sampled > 1 else 0.0
    return Moments(records, busy_ms / records if records else 0.0, variance * records)


@dataclass(frozen=True, slots=True)
class StepMeasure:
    """What a step did in one batch, over all its partitions.

    ``service_ms`` is the time per record: its mean is exact, its variance comes from the sampled
    records. ``residence_ms`` is how long records stay in the step, which is the time of the whole
    Arrow batch that they are part of. ``entered_ms`` and ``left_ms`` are the mean times at which
    records enter and leave, measured from ``BatchMeasure.handed_us``: the mean latency between two
    points is the difference of these means. ``keys`` counts the most frequent keys, whose Arrow
    type is ``key_type``. ``cpu_ms`` is the CPU part of the busy time, and ``calls`` separates the
    cost of an Arrow batch from that of its records.
    """

    records_in: int = 0
    records_out: int = 0
    errors: int = 0
    service_ms: Moments = field(default_factory=Moments)
    residence_ms: LogHistogram = field(default_factory=LogHistogram)
    busy_ms: Mapping[int, float] = field(default_factory=dict)
    entered_ms: float = 0.0
    left_ms: float = 0.0
    keys: Mapping[str, float] = field(default_factory=dict)
    key_type: str = ""
    cpu_ms: float = 0.0
    calls: Calls = field(default_factory=Calls)

    @classmethod
    def merged(cls, parts: Iterable[StepMeasure]) -> StepMeasure:
        """The measure of several partitions together."""
        parts = [part for part in parts if part.records_in]
        records = sum(part.records_in for part in parts)
        if not records:
            return cls()
        busy: Counter[int] = Counter()
        keys: defaultdict[str, float] = defaultdict(float)
        for part in parts:
            busy.update(part.busy_ms)
            for key, count in part.keys.items():
                keys[key] += count
        return cls(
            records,
            sum(part.records_out for part in parts),
            sum(part.errors for part in parts),
            Moments.merged(part.service_ms for part in parts),
            LogHistogram.merged(part.residence_ms for part in parts),
            dict(busy),
            sum(part.entered_ms * part.records_in for part in parts) / records,
            sum(part.left_ms * part.records_in for part in parts) / records,
            _frequent(keys),
            next((part.key_type for part in parts if part.key_type), ""),
            math.fsum(part.cpu_ms for part in parts),
            Calls.merged(part.calls for part in parts),
        )

    def part(self, fraction: float) -> StepMeasure:
        """The measure of a part of the records, assumed to be like the whole."""
        if fraction >= 1:
            return self
        records = round(self.records_in * fraction)
        return replace(
            self,
            records_in=records,
            records_out=round(self.records_out * fraction),
            errors=round(self.errors * fraction),
            service_ms=self.service_ms.scaled_to(records),
            busy_ms={partition: busy * fraction for partition, busy in self.busy_ms.items()},
            keys={key: count * fraction for key, count in self.keys.items()},
            cpu_ms=self.cpu_ms * fraction,
            calls=self.calls.part(fraction),
        )


def _frequent(keys: Mapping[str, float]) -> dict[str, float]:
    """The most frequent keys, or all while there are few, so that memory use is bounded."""
    if len(keys) <= MOST_KEYS:
        return dict(keys)
    return dict(nlargest(MOST_KEYS // 2, keys.items(), key=itemgetter(1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMeasure:
    """One finished batch, with its times in order.

    A record is due, then waits until the batch that takes it is cut (``planned_us``); the batch is
    logged, planned and handed to the flow (``handed_us``), compiled under the plan and submitted
    (``submitted_us``); its tasks start (``started_us``, the mean over records of the start of their
    task) and are done (``computed_us``); the sink makes the results visible (``ended_us``).
    ``ages_ms`` holds ``handed_us`` minus the arrival of each record. If no column says when records
    arrived, they are assumed to have arrived evenly since the previous batch was cut, and
    ``arrivals_known`` is False.

    ``left_ms`` is the time span over which the records arrived that the batch left at its source,
    because the source limits the records per batch; 0 if it took all (``source_limit.py``).
    """

    batch_id: int
    records: int
    planned_us: int
    handed_us: int
    submitted_us: int
    started_us: int
    computed_us: int
    ended_us: int
    ages_ms: LogHistogram
    age_ms: Moments
    steps: Mapping[str, StepMeasure]
    plan: Plan
    slots: int
    arrivals_known: bool = True
    left_ms: float = 0.0

    @property
    def arrived_us(self) -> float:
        """When its records arrived: the mean, or the median if there are a few outliers."""
        low, age_ms, high = (self.ages_ms.quantile_ms(q) for q in (0.25, 0.5, 0.75))
        if abs(self.age_ms.mean - age_ms) <= high - low + BINS * age_ms:
            age_ms = self.age_ms.mean
        return self.handed_us - age_ms * 1e3

    @property
    def duration_ms(self) -> float:
        """From the cut of the batch to its results: D(n) of the batch model."""
        return (self.ended_us - self.planned_us) / 1e3

    @property
    def work_ms(self) -> dict[str, float]:
        """The time that the batch spent in its tasks, by step.

        Partitions run in parallel, so the busy time of a step is divided by the number of its
        partitions, or of slots if those are fewer. Steps in separate processes overlap, so their
        sum is scaled down to the elapsed time.
        """
        shares = {
            name: sum(step.busy_ms.values()) / max(1, min(self.slots, len(step.busy_ms)))
            for name, step in self.steps.items()
        }
        passed = max(0.0, (self.computed_us - self.started_us) / 1e3)
        whole = sum(shares.values())
        scale = min(1.0, passed / whole) if whole else 0.0
        return {name: share * scale for name, share in shares.items()}

    def breakdown_ms(self, age_ms: float, batching_ms: float) -> dict[str, float]:
        """The mean latency of records of mean age ``age_ms``, by element; adds up to the total.

        ``source_wait`` is waiting because the engine was busy, ``batching`` waiting because the
        plan wants batches, ``planning`` the time in the log, Spark's planner and our compiler,
        ``queueing`` waiting for a slot, ``engine`` the time in Spark between the steps, ``sink``
        the time until the results are visible.
        """
        work = self.work_ms
        wait = max(0.0, age_ms - (self.handed_us - self.planned_us) / 1e3)
        computing = max(0.0, (self.computed_us - self.started_us) / 1e3)
        return {
            "source_wait": wait - batching_ms,
            "batching": batching_ms,
            "planning": (self.submitted_us - self.planned_us) / 1e3,
            "queueing": (self.started_us - self.submitted_us) / 1e3,
            **{f"step:{name}": share for name, share in work.items()},
            "engine": computing - sum(work.values()),
            "sink": (self.ended_us - self.computed_us) / 1e3,
        }

    def path_ms(self, path: tuple[str, ...], age_ms: float) -> float:
        """The mean latency of records of mean age ``age_ms`` along a path of the graph."""
        first, last = path[0], path[-1]
        start = -age_ms if first == SOURCE else self._moment(first, entering=True)
        ended = (self.ended_us - self.handed_us) / 1e3
        end = ended if is_sink(last) else self._moment(last, entering=False)
        return max(0.0, end - start)

    def _moment(self, step: str, *, entering: bool) -> float:
        measure = self.steps.get(step)
        if measure is None or not measure.records_in:
            return (self.computed_us - self.handed_us) / 1e3
        return measure.entered_ms if entering else measure.left_ms


def came(batches: Sequence[BatchMeasure]) -> tuple[float, float]:
    """How many records arrived, and in how many seconds, judged by consecutive batches.

    Counted from cut to cut, which leaves out the first batch; if records were left behind, from the
    arrivals of the first batch to those of the last, which leaves out half of each.
    """
    batches = [batch for batch in batches if batch.records]
    if len(batches) < 2:
        return 0.0, 0.0
    first, last = batches[0], batches[-1]
    records = sum(batch.records for batch in batches[1:])
    read_s = (last.planned_us - first.planned_us) / 1e6
    if not any(batch.left_ms for batch in batches):
        return records, read_s
    in_between = records + (first.records - last.records) / 2
    return in_between, max((last.arrived_us - first.arrived_us) / 1e6, read_s / MOST_PER_READ)
