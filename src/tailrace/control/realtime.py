"""The loop for real-time mode.

Tasks report what they measured while they run, and intervals end as time passes. Lifetimes change
while records flow; chains and the flush of the shuffle change where a batch ends, which the backend
ensures.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from tailrace.constraint import SOURCE, is_sink
from tailrace.control.decider import Decider
from tailrace.control.events import TasksReported, Tick
from tailrace.control.judge import Judge, loads_of
from tailrace.control.log import Mode
from tailrace.plan import chain_name
from tailrace.policy import handover, realtime_feasibility, rise
from tailrace.policy.backend import RealTimeCosts
from tailrace.policy.decision import ChainLoad, Observation, Reading, RealTimeState, known
from tailrace.policy.rise import LIKELY, clear_rise
from tailrace.profile.clock import Onward
from tailrace.profile.costs import USUAL_HAND_OVER
from tailrace.profile.live import ChainReport, LiveInterval, LiveIntervals, SinkReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.constraint import Constraint
    from tailrace.control.actions import Change
    from tailrace.control.events import Event
    from tailrace.control.log import Log
    from tailrace.control.recording import Recording
    from tailrace.graph import Graph
    from tailrace.plan import Plan
    from tailrace.profile.live import HandOverMeasure

LEAST_FIXED_MS = 0.02

GAPS = 5

RECENT_US = 500_000
"""How far back the rate of the moment is counted; tasks report five times a second."""

AHEAD = 0.5
"""A rise that was just seen is assumed to go on by half of itself: it seldom ends where it is seen
first, and the bound must hold meanwhile. Once an interval is over, its count is used."""


DEVIATIONS = 6
USUAL_DEVIATION = 0.07
"""How far intervals lie from their prediction: how many count, and what is assumed at first."""


class RealTimeLoop:
    """Turns what tasks report into intervals, verdicts and plans.

    A :class:`Judge` has the intervals, and a :class:`Decider` the plan and its decisions.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        log: Log,
        *,
        recovery_ms: float = 60_000.0,
        slots: int = 1,
        other_tasks: int = 1,
    ) -> None:
        """``recovery_ms`` is how much of the input the flow may repeat after a crash.

        ``other_tasks`` of the ``slots`` are taken by tasks that run no step: those that read the
        source, and those behind Spark's own exchanges.
        """
        self.log = log
        log.scaling = None
        self._graph = graph
        self._decider = Decider(graph, plan, log)
        self._judge: Judge[LiveInterval, LiveIntervals] = Judge(
            graph, log, lambda every_ms: LiveIntervals(graph, every_ms, log.origin_us), slots=slots
        )
        self._recovery_ms = recovery_ms
        self._slots = slots
        self._room = slots
        self._other_tasks = other_tasks
        self._onward = Onward()
        self._last: dict[tuple[str, int], SinkReport] = {}
        self._gaps_ms: deque[float] = deque(maxlen=GAPS)
        self._newest_batch = -1
        self._deviations = deque([USUAL_DEVIATION] * DEVIATIONS, maxlen=DEVIATIONS)
        self._seen: Observation | None = None
        self._recent: dict[tuple[str, int], deque[ChainReport]] = {}

    @property
    def plan(self) -> Plan:
        """The plan that is to run."""
        return self._decider.plan

    @property
    def recording(self) -> Recording:
        """What is kept of the run for its profile."""
        return self._judge.recording

    def finish(self) -> None:
        """Judge what is left when nothing more will come. Cut short, it decides nothing."""
        self._judge.finish(self.plan, self._slots)
        self.log.unplaced_records += self._judge.collectors()[0].unplaced_records

    def take_back(self, *changes: Change, why: str) -> None:
        """Undo what was decided last and cannot be done."""
        self._decider.take_back(*changes, why=why)

    def hear(self, event: Event) -> None:
        """Take in a report of a task, or that time has passed."""
        match event:
            case TasksReported(report):
                self._on_report(report)
            case Tick(at_us, room):
                self._room = self._slots if room is None else room
                self._on_tick(at_us)

    def _on_report(self, said: SinkReport | ChainReport) -> None:
        lost_us = self._onward.lost_us
        said = replace(said, first_us=said.first_us + lost_us, last_us=said.last_us + lost_us)
        if isinstance(said, SinkReport):
            self._see(said)
        else:
            self._keep(said)
        for intervals in self._judge.collectors():
            intervals.add(said)

    def _on_tick(self, at_us: int) -> None:
        """Judge the intervals that are complete by now, and decide."""
        now_us = self._onward(at_us)
        closed = self._judge.close(lambda intervals: intervals.complete(now_us))
        for interval in closed:
            self._judge.remember(interval, self.plan, self._slots)
            self._decider.realise(interval)
            self._decider.intervals_since_change += 1
        if closed:
            self._decide(closed[-1], now_us)
        elif self._seen is not None:
            self._react_early(self._seen, now_us)

    def _see(self, report: SinkReport) -> None:
        """Note the gap before the first records of another batch."""
        if report.batch > self._newest_batch:
            self._newest_batch = report.batch
            self.log.batches += 1
        place = report.sink, report.partition
        last = self._last.get(place)
        if last is not None and report.batch == last.batch + 1:
            self._gaps_ms.append((report.first_us - last.last_us) / 1e3)
            for intervals in self._judge.collectors():
                intervals.add_gap(last.last_us, report.first_us)
        self._last[place] = report

    def _keep(self, report: ChainReport) -> None:
        """Keep the latest reports of a task, and one before them, whose end starts the count."""
        recent = self._recent.setdefault((report.chain, report.partition), deque())
        recent.append(report)
        while len(recent) > 2 and recent[1].last_us < report.last_us - RECENT_US:
            recent.popleft()

    def _decide(self, interval: LiveInterval, now_us: int) -> None:
        observation = self._observe(interval)
        deviation = handover.deviation(observation)
        if deviation is not None:
            self._deviations.append(deviation)
        observation = replace(observation, noise=median(self._deviations))
        seen = self._seen = handover.risen(observation, self._rises(observation, now_us))
        self._judge.suspect(realtime_feasibility.assess(seen))
        if self.log.mode is not Mode.OBSERVE and not self._decider.ask(seen, now_us):
            self._forget()

    def _react_early(self, seen: Observation, now_us: int) -> None:
        """Shorten lifetimes at once when a rate rises, not only when the interval is over."""
        rises = self._rises(seen, now_us)
        if self.log.mode is Mode.OBSERVE or not rises:
            return
        self._seen = handover.risen(seen, rises, self.plan)
        self._decider.act(rise.decide(self._seen), now_us)

    def _rises(self, observation: Observation, now_us: int) -> dict[str, float]:
        """The rates to plan for, of chains whose rate has clearly risen in the last half second."""
        found, known_s = {}, self.log.interval_ms / 1e3
        for chain in known(observation.realtime).chains:
            rates = [
                rate
                for (name, _), reports in self._recent.items()
                if name == chain.chain
                and reports[-1].last_us >= now_us - 2 * RECENT_US
                and (rate := _recent_rate(reports, chain.rate_per_s, known_s)) > chain.rate_per_s
            ]
            if rates:
                found[chain.chain] = max(rates) + AHEAD * (max(rates) - chain.rate_per_s)
        return found

    def _forget(self) -> None:
        """Let go of what was learnt under other chains."""
        self._seen = None
        self._deviations.extend([USUAL_DEVIATION] * DEVIATIONS)
        self._recent.clear()

    def costs(self) -> RealTimeCosts | None:
        """What real-time mode takes here, as last measured; None before the first interval."""
        seen = self._seen
        if seen is None:
            return None
        hand_overs = known(seen.realtime)
        models = [chain.model for chain in hand_overs.chains]
        if not models:
            return None
        whole = next((r for r in seen.readings if r.constraint.from_source), None)
        return RealTimeCosts(
            tuple(models),
            hand_overs.gap_ms,
            slots=1 + sum(self.plan.partitions.values()),
            hops=len(self.plan.partitions),
            flush_ms=seen.plan.flush_ms,
            sink_ms=whole.sink_ms if whole else 0.0,
        )

    def _observe(self, interval: LiveInterval) -> Observation:
        handed, steps = interval.hand_overs(), interval.steps()
        work = {name: step.calls.line() for name, step in steps.items()}
        computed = {name: step.cpu_ms for name, step in steps.items()}
        names = [chain for chain in self.plan.chains if chain_name(chain) in handed]
        return Observation(
            self._graph,
            self.plan,
            tuple(self._reading(constraint, interval) for constraint in self.log.constraints),
            interval.rate_per_s,
            loads_of(interval),
            self._room,
            self._decider.intervals_since_change,
            realtime=RealTimeState(
                tuple(
                    self._load(chain, handed[chain_name(chain)], work, computed, interval.every_ms)
                    for chain in names
                ),
                median(self._gaps_ms) if self._gaps_ms else USUAL_HAND_OVER.gap_ms,
                self._recovery_ms,
                other_tasks=self._other_tasks,
            ),
        )

    def _load(
        self,
        chain: tuple[str, ...],
        handed: HandOverMeasure,
        work: Mapping[str, tuple[float, float]],
        computed: Mapping[str, float],
        every_ms: float,
    ) -> ChainLoad:
        name = chain_name(chain)
        overhead_ms = handed.cpu_ms - sum(computed.get(step, 0.0) for step in chain)
        overhead_ms -= USUAL_HAND_OVER.per_record_ms * handed.records
        fixed_ms = overhead_ms / max(1, handed.handovers)
        fixed_ms += sum(work[step][0] for step in chain if step in work)
        return ChainLoad(
            name,
            handed.busiest / every_ms * 1e3,
            max(LEAST_FIXED_MS, fixed_ms),
            USUAL_HAND_OVER.per_record_ms,
            handed.entered_ms - handed.read_ms,
            handed.records / max(1, handed.handovers),
            {step: work[step][1] if step in work else 0.0 for step in chain},
        )

    def _reading(self, constraint: Constraint, interval: LiveInterval) -> Reading:
        """What a constraint measured last, and the hand-overs and hops that lie on its path."""
        path = self._judge.paths[constraint]
        seen = {chain_name(c) for c in self.plan.chains} & set(interval.hand_overs())
        inside = path[0] if path[0] != SOURCE else None
        chains = tuple(
            chain_name(chain)
            for chain in self.plan.chains
            if chain[0] in path and chain[0] != inside and chain_name(chain) in seen
        )
        hops = sum(1 for c in chains if c.split("+")[0] in self.plan.partitions)
        latest = self._judge.latest.get(constraint)
        sink_ms = interval.breakdown_ms().get("sink", 0.0) if is_sink(path[-1]) else 0.0
        value_ms = None if latest is None else latest[0].value_ms
        return Reading(constraint, value_ms, chains=chains, hops=hops, sink_ms=max(0.0, sink_ms))


def _recent_rate(reports: Sequence[ChainReport], known_per_s: float, known_s: float) -> float:
    """The rate of what a task said lately, if clearly above the known one; else the known one."""
    first, *later = reports
    span_s = (reports[-1].last_us - first.last_us) / 1e6
    if span_s <= 0:
        return known_per_s
    rate = sum(report.records for report in later) / span_s
    return rate if clear_rise(known_per_s, known_s, rate, span_s, LIKELY) else known_per_s
