"""What is known about a flow in real-time mode while its batch is still running.

Tasks report several times a second what has passed since their last report: a
:class:`SinkReport` covers records at the end of the flow, a :class:`ChainReport` the work of a
chain. All times are ages, the time since a record arrived, at some point on its way; the time
between two points is the difference of the ages there. A record counts in the interval in which it
is seen.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tailrace.constraint import SOURCE, is_sink
from tailrace.profile.batch import StepMeasure
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.moments import Moments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tailrace.constraint import Constraint
    from tailrace.graph import Graph

SEEN_LATE_US = 1_000_000
"""How long after its end an interval still waits for reports of tasks."""


@dataclass(frozen=True, slots=True)
class SinkReport:
    """Records that passed the end of a flow in one task, by their age."""

    sink: str
    batch: int
    partition: int
    first_us: int
    last_us: int
    age_ms: Moments
    ages_ms: LogHistogram


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What a chain did in one task since its last report.

    ``read_ms`` and ``entered_ms`` are the mean ages at which records entered the open batch and
    reached Python. ``entered_ms`` and ``left_ms`` of each step's ``StepMeasure`` are mean ages
    here. ``cpu_ms`` is the CPU time that the worker used for all of it.
    """

    chain: str
    batch: int
    partition: int
    first_us: int
    last_us: int
    handovers: int
    records: int
    read_ms: float
    entered_ms: float
    cpu_ms: float
    steps: Mapping[str, StepMeasure]


@dataclass(frozen=True, slots=True)
class HandOverMeasure:
    """The hand-overs to a chain in an interval, over all its tasks."""

    handovers: int
    records: int
    read_ms: float
    entered_ms: float
    cpu_ms: float
    tasks: int
    busiest: int

    @classmethod
    def merged(cls, parts: Iterable[ChainReport]) -> HandOverMeasure:
        """Several reports together; the ages are means over their records."""
        parts = list(parts)
        records = sum(part.records for part in parts)
        by_task: Counter[int] = Counter()
        for part in parts:
            by_task[part.partition] += part.records
        weight = max(1, records)
        return cls(
            sum(part.handovers for part in parts),
            records,
            sum(part.read_ms * part.records for part in parts) / weight,
            sum(part.entered_ms * part.records for part in parts) / weight,
            sum(part.cpu_ms for part in parts),
            len(by_task),
            max(by_task.values(), default=0),
        )


@dataclass(frozen=True, slots=True)
class LiveInterval:
    """The records that were seen in ``[start, start + every)``; it holds at least one.

    ``gap_ms`` is how long nothing flowed between the end of a batch and the start of the next.
    """

    graph: Graph
    start_us: int
    every_ms: float
    sink_reports: tuple[SinkReport, ...]
    chain_reports: tuple[ChainReport, ...]
    gap_ms: float = 0.0

    @property
    def records(self) -> int:
        """How many records entered: those that reached the first chains after the source.

        Without such a chain, those that were seen at the end of the flow.
        """
        firsts = {s.target for s in self.graph.streams_from(SOURCE)}
        if firsts.isdisjoint(self.graph.names):
            return int(self.latency_ms.count)
        return _entered(self.graph, self.chain_reports)

    @property
    def batches(self) -> int:
        """How many batches contributed to it."""
        return len({s.batch for s in self.sink_reports} | {s.batch for s in self.chain_reports})

    @property
    def rate_per_s(self) -> float:
        """Records that entered per second."""
        return self.records / self.every_ms * 1e3

    @property
    def latency_ms(self) -> Moments:
        """Moments of the latency from arrival to the end of the flow."""
        return Moments.merged(report.age_ms for report in self.sink_reports)

    def latencies_ms(self) -> LogHistogram:
        """The distribution of that latency."""
        return LogHistogram.merged(report.ages_ms for report in self.sink_reports)

    def steps(self) -> dict[str, StepMeasure]:
        """What each step did."""
        found: defaultdict[str, list[StepMeasure]] = defaultdict(list)
        for report in self.chain_reports:
            for name, step in report.steps.items():
                found[name].append(step)
        return {name: _together(parts) for name, parts in found.items()}

    def hand_overs(self) -> dict[str, HandOverMeasure]:
        """The hand-over to each chain, by its name."""
        found: defaultdict[str, list[ChainReport]] = defaultdict(list)
        for report in self.chain_reports:
            found[report.chain].append(report)
        return {chain: HandOverMeasure.merged(parts) for chain, parts in found.items()}

    def utilisation(self, step: str) -> dict[int, float]:
        """The busy share of each partition of a step."""
        measure = self.steps().get(step)
        busy = measure.busy_ms if measure else {}
        return {partition: spent / self.every_ms for partition, spent in busy.items()}

    def breakdown_ms(self) -> dict[str, float]:
        """The mean latency by element; the elements add up to the mean.

        ``source_wait`` is the time until the engine had read a record, ``gap`` the part of it
        caused by the end of a batch, ``hand-over`` the open batch and the way to Python,
        ``shuffle`` the way from one chain to the next, ``sink`` the rest. If a flow forks and
        joins, the breakdown uses the mean over the records at each point.
        """
        whole: defaultdict[str, float] = defaultdict(float)
        steps, age = self.steps(), 0.0
        gap = self.gap_ms**2 / (2 * self.every_ms)
        for chain, handed in self._in_order():
            if not handed.records:
                continue
            if not whole:
                whole["gap"] = min(gap, handed.read_ms)
                whole["source_wait"] = handed.read_ms - whole["gap"]
            else:
                whole["shuffle"] += handed.read_ms - age
            whole["hand-over"] += handed.entered_ms - handed.read_ms
            age = handed.entered_ms
            for name in chain.split("+"):
                step = steps.get(name)
                if step is not None and step.records_out:
                    whole[f"step:{name}"] += step.left_ms - age
                    age = step.left_ms
        whole["sink"] = self.latency_ms.mean - age
        return dict(whole)

    def _in_order(self) -> list[tuple[str, HandOverMeasure]]:
        order = {step.name: place for place, step in enumerate(self.graph.steps)}
        found = self.hand_overs().items()
        return sorted(found, key=lambda item: order.get(item[0].split("+")[0], math.inf))

    def value_ms(self, constraint: Constraint, path: tuple[str, ...]) -> float:
        """The statistic of a constraint along its path.

        From source to sink it is measured record by record. Elsewhere the mean is the difference of
        mean ages, and for a quantile each step adds the distance of its own quantile from its mean.
        """
        steps = self.steps()
        whole = path[0] == SOURCE and is_sink(path[-1])
        if constraint.quantile is not None and path[0] == SOURCE:
            above = self.latencies_ms().quantile_ms(constraint.quantile) - self.latency_ms.mean
        elif constraint.quantile is not None:
            residences = [steps[name].residence_ms for name in path if name in steps]
            above = sum(
                max(0.0, residence.quantile_ms(constraint.quantile) - residence.mean_ms())
                for residence in residences
                if residence.count
            )
        else:
            above = 0.0
        if whole:
            return self.latency_ms.mean + above
        start = 0.0 if path[0] == SOURCE else self._age(steps.get(path[0]), entering=True)
        last = path[-1]
        end = self.latency_ms.mean if is_sink(last) else self._age(steps.get(last), entering=False)
        return max(0.0, end - start) + above

    def _age(self, step: StepMeasure | None, *, entering: bool) -> float:
        if step is None or not step.records_in:
            return self.latency_ms.mean
        return step.entered_ms if entering else step.left_ms


def _entered(graph: Graph, reports: Iterable[ChainReport]) -> int:
    """The records that the first chains after the source received."""
    firsts = {s.target for s in graph.streams_from(SOURCE)}
    return sum(report.records for report in reports if report.chain.split("+")[0] in firsts)


def _together(parts: list[StepMeasure]) -> StepMeasure:
    """What a step did, by several reports of its chain.

    The age at which records leave is a mean over those that do: a report in which a step let none
    through does not count.
    """
    left = sum(part.left_ms * part.records_out for part in parts)
    out = sum(part.records_out for part in parts)
    return replace(StepMeasure.merged(parts), left_ms=left / max(1, out))


@dataclass(slots=True)
class _Open:
    """What is known so far about an interval."""

    sink_reports: list[SinkReport] = field(default_factory=list)
    chain_reports: list[ChainReport] = field(default_factory=list)
    gap_ms: float = 0.0


class LiveIntervals:
    """Collects the reports of tasks into consecutive intervals of one length.

    An interval is complete a second after its end, when every task has reported; later reports
    count in the oldest interval that is still open. If nothing was seen at the end of the flow in
    an interval, it is left out, as there is no latency to judge. At the start and at the end of a
    run, the work of chains in such an interval counts in the neighbouring one, so that no record
    that was seen is missing. ``unplaced_records`` entered and count in no interval, such as the
    last ones before an idle time, which a task reports when it ends.
    """

    def __init__(self, graph: Graph, every_ms: float, origin_us: int) -> None:
        """Start the first interval at ``origin_us``."""
        self._graph = graph
        self.every_ms = every_ms
        self._origin_us = origin_us
        self._oldest = 0
        self._begun = False
        self._open: defaultdict[int, _Open] = defaultdict(_Open)
        self.unplaced_records = 0

    def add(self, said: SinkReport | ChainReport) -> None:
        """Add a task's report, by the middle of the time that it covers."""
        place = self._open[max(self._oldest, self._place_of(said))]
        if isinstance(said, SinkReport):
            place.sink_reports.append(said)
        else:
            place.chain_reports.append(said)

    def add_gap(self, began_us: int, ended_us: int) -> None:
        """Add a period in which nothing flowed."""
        place = self._open[self._index(ended_us)]
        place.gap_ms = max(place.gap_ms, (ended_us - began_us) / 1e3)

    def complete(self, now_us: int) -> tuple[LiveInterval, ...]:
        """The intervals that are complete by now, oldest first."""
        return self._close(self._place(now_us - SEEN_LATE_US))

    def flush(self) -> tuple[LiveInterval, ...]:
        """The intervals still open, when no more reports will come."""
        seen = max(
            (index for index, found in self._open.items() if found.sink_reports), default=None
        )
        for index in sorted(self._open):
            if seen is not None and index > seen:
                self._open[seen].chain_reports += self._open.pop(index).chain_reports
        closed = self._close(max(self._open, default=self._oldest - 1) + 1)
        for never_seen in self._open.values():
            self.unplaced_records += _entered(self._graph, never_seen.chain_reports)
        self._open.clear()
        return closed

    def _place(self, at_us: float) -> int:
        return math.floor((at_us - self._origin_us) / (self.every_ms * 1e3))

    def _place_of(self, said: SinkReport | ChainReport) -> int:
        return self._place((said.first_us + said.last_us) / 2)

    def _index(self, at_us: float) -> int:
        return max(self._oldest, self._place(at_us))

    def _close(self, before: int) -> tuple[LiveInterval, ...]:
        ready = sorted(index for index in self._open if index < before)
        self._oldest = max(self._oldest, before)
        closed = []
        for index in ready:
            found = self._open.pop(index)
            if found.sink_reports:
                start_us = round(self._origin_us + index * self.every_ms * 1e3)
                parts = tuple(found.sink_reports), tuple(found.chain_reports)
                closed.append(
                    LiveInterval(self._graph, start_us, self.every_ms, *parts, found.gap_ms)
                )
                self._begun = True
                continue
            left = found.chain_reports
            if not self._begun and (index + 1 in self._open or index + 1 == before):
                fresh = [s for s in left if self._place_of(s) >= index]
                self._open[index + 1].chain_reports += fresh
                left = [s for s in left if self._place_of(s) < index]
            self.unplaced_records += _entered(self._graph, left)
        return tuple(closed)
