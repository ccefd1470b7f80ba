"""What micro-batches would do: stages on slots, the cycle of batches, the latency of records.

A batch of N records takes ``D(N) = a + (S - 1)*s + sum of the makespans of its S stages``, each the
longest way of its tasks through the slots. Batches follow one another in a cycle
``C = max(T, D(lambda*C))``, and a record waits for the cut of its batch, evenly from 0 to C, and
then for the batch. With cycles of different lengths a record is more likely to fall into a long
one: the mean wait is ``E[C^2]/(2 E[C])``, the inspection paradox. A limit of M rows a batch caps N,
and with it the rate at ``M/max(T, D(M))``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from tailrace.model.prediction import Outcome, impossible
from tailrace.model.spread import MIDDLES, WEIGHTS, Spread
from tailrace.model.stages import schedule
from tailrace.model.windows import window_wait_ms
from tailrace.units import show_rate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.model.loads import Loads, StageLoad
    from tailrace.plan import Plan
    from tailrace.profile.costs import BatchCosts
    from tailrace.profile.profile import Profile

    Floats = NDArray[np.float64]

ARROW_RECORDS = 10_000
"""Records pass between the JVM and Python so many at a time, Spark's default."""

MANY = 1e7
"""Records of a batch so large that its fixed costs no longer count."""

LEAST_MS = 1e-6
"""No batch is done in less: without any cost, batches back to back would have no length."""

_NOISE = ndtri((np.arange(24) + 0.5) / 24)
_ROUNDS = 30
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class _StageCost:
    """What a record of the source costs a stage, by partition, in ms.

    ``engine`` is Spark's part, ``steps`` that of all chains and ``slowest`` that of the slowest;
    ``records`` is how many records of the stage it makes. An Arrow batch takes ``calls`` beside.
    ``makespan`` is what a record costs the stage if every chain works for itself.
    """

    engine: Floats
    steps: Floats
    slowest: Floats
    records: Floats
    calls: float
    chains: int
    cores: int
    makespan: float

    @classmethod
    def of(cls, load: StageLoad, loads: Loads, costs: BatchCosts) -> _StageCost:
        rate, chains = loads.rate_per_s, load.stage.chains
        busy = np.stack([load.chain_busy(chain) for chain in chains]) / rate * 1e3
        records = load.rates_per_s / rate
        engine = records * costs.per_record_ms * len(chains)
        calls = math.fsum(loads.call_ms[step] for step in load.stage.steps)
        steps, cores = busy.sum(axis=0), loads.cores
        makespan = schedule(engine + steps, cores)[1]
        return cls(engine, steps, busy.max(axis=0), records, calls, len(chains), cores, makespan)

    def task_ms(self, records: float) -> Floats:
        """How long the task of each partition takes for a batch.

        The chains of a task are processes in a row through which Arrow batches move: the slowest
        sets the pace, but together they have no more cores than the task's share of them.
        """
        turns = np.maximum(1.0, np.ceil(self.records * records / ARROW_RECORDS))
        calls = self.calls * turns
        if self.chains == 1:
            return np.asarray((self.engine + self.steps) * records + calls)
        through = self.slowest + (self.steps - self.slowest) / turns
        share = max(1.0, self.cores / min(len(self.steps), self.cores))
        return np.asarray((self.engine + np.maximum(through, self.steps / share)) * records + calls)

    def duration_ms(self, records: float) -> float:
        """How long the stage takes: tasks go to slots in order.

        With one chain a task is a line over the records, and so is the whole.
        """
        if self.chains == 1:
            turns = max(1.0, math.ceil(float(self.records.max()) * records / ARROW_RECORDS))
            return self.makespan * records + self.calls * turns
        return schedule(self.task_ms(records), self.cores)[1]


class Cycle:
    """The cycle of batches of a flow under one plan."""

    def __init__(
        self, loads: Loads, costs: BatchCosts, interval_ms: float, row_limit: int | None = None
    ) -> None:
        """The flow under load, what the engine takes, and when batches are cut."""
        self.loads = loads
        self.costs = costs
        self.interval_ms = interval_ms
        self.row_limit = row_limit
        self.stages = [_StageCost.of(load, loads, costs) for load in loads.stages]
        self.fixed_ms = max(LEAST_MS, costs.fixed_ms + costs.stages_ms(loads.tasks))

    def duration_ms(self, records: float) -> float:
        """``D(N)``, the time from the cut of a batch to its visible results."""
        return self.fixed_ms + math.fsum(stage.duration_ms(records) for stage in self.stages)

    def records_within(self, limit_ms: float) -> int:
        """The most records whose batch takes no longer than that; 0 if even one does."""
        most = bisect_right(range(int(MANY)), limit_ms, key=self.duration_ms) - 1
        return max(0, most)

    @property
    def highest_per_s(self) -> float:
        """The rate at which batches no longer keep up, however long they grow."""
        if self.row_limit is not None:
            cycle_ms = max(self.interval_ms, self.duration_ms(self.row_limit))
            return self.row_limit / cycle_ms * 1e3
        slope_ms = (self.duration_ms(2 * MANY) - self.duration_ms(MANY)) / MANY
        return math.inf if slope_ms <= 0 else 1e3 / slope_ms

    def cycle_ms(self) -> float:
        """The fixed point of ``C = max(T, D(lambda*C))``; infinite when there is none.

        D is a line but for the turns of Arrow batches, so a few steps to where the line through
        two points meets the diagonal find it.
        """
        rate = self.loads.rate_per_s
        if rate > (1 - _ROUNDING) * self.highest_per_s:
            return math.inf
        if self.row_limit is not None and rate * self.interval_ms / 1e3 > self.row_limit:
            return math.inf
        cycle_ms = max(self.interval_ms, self.duration_ms(0.0))
        for _ in range(_ROUNDS):
            records = max(1.0, rate * cycle_ms / 1e3)
            here_ms = self.duration_ms(records)
            slope = (self.duration_ms(2 * records) - here_ms) / records * rate / 1e3
            fixed_ms = here_ms - slope * records / rate * 1e3
            meeting_ms = fixed_ms / (1 - slope) if slope < 1 else 2 * cycle_ms
            found_ms = max(self.interval_ms, self.fixed_ms, meeting_ms)
            if abs(found_ms - cycle_ms) < 1e-3 * cycle_ms:
                return found_ms
            cycle_ms = found_ms
        return cycle_ms

    def drain_ms(self, backlog: float) -> float:
        """How long until a backlog is gone and batches are at most 5 % larger than usual.

        Without a row limit the first batch takes it all, ``n' = lambda*max(T, D(n))``, and each
        that follows is smaller by the share of time that records leave free. With one, full
        batches take ``M - lambda*C(M)`` off it each, until the rest fits into one.
        """
        usual_ms, per_ms = self.cycle_ms(), self.loads.rate_per_s / 1e3
        if math.isinf(usual_ms):
            return math.inf
        waiting, took_ms = float(backlog), 0.0
        if self.row_limit is not None and waiting > self.row_limit:
            full_ms = max(self.interval_ms, self.duration_ms(self.row_limit))
            less = self.row_limit - per_ms * full_ms
            fulls = math.ceil((waiting - self.row_limit) / less)
            waiting, took_ms = waiting - fulls * less, fulls * full_ms
        while waiting > 1.05 * per_ms * usual_ms + 1:
            lasts_ms = max(self.interval_ms, self.duration_ms(waiting))
            waiting, took_ms = per_ms * lasts_ms, took_ms + lasts_ms
        return took_ms

    def latency(self, cycle_ms: float) -> tuple[Spread, Spread]:
        """Wait and batch of a record, both with durations that vary by ``noise`` (lognormal)."""
        duration_ms = self.duration_ms(self.loads.rate_per_s * cycle_ms / 1e3)
        sigma = math.sqrt(math.log1p(self.costs.noise**2))
        durations = duration_ms * np.exp(sigma * _NOISE - sigma**2 / 2)
        cycles = np.maximum(self.interval_ms, durations)
        if self.interval_ms < cycle_ms:  # back to back, or late: the cycle is the batch
            cycles = durations * cycle_ms / duration_ms
        waits = np.multiply.outer(cycles, MIDDLES)
        wait = Spread.of(waits, np.multiply.outer(cycles, WEIGHTS))
        each = np.full_like(durations, 1 / len(durations))
        return wait, Spread.of(durations, each)


def micro_batch(profile: Profile, plan: Plan, loads: Loads, costs: BatchCosts) -> Outcome:
    """What micro-batches under that plan would do."""
    cycle = Cycle(loads, costs, plan.interval_ms, plan.row_limit)
    utilisation = {
        name: tuple(map(float, busy)) for load in loads.stages for name, busy in load.busy.items()
    }
    cycle_ms, highest = cycle.cycle_ms(), cycle.highest_per_s
    used = _cores_used(profile, loads, costs, cycle_ms)
    if math.isinf(cycle_ms):
        return impossible(_too_much(loads, plan, highest), utilisation, highest, used)
    wait, batch = cycle.latency(cycle_ms)
    return Outcome(
        (wait, batch),
        lambda: _breakdown_ms(cycle, cycle_ms, wait.mean_ms),
        highest,
        used,
        utilisation,
        window_wait_ms(profile, loads),
    )


def _too_much(loads: Loads, plan: Plan, highest_per_s: float) -> str:
    rate, most = show_rate(loads.rate_per_s), show_rate(highest_per_s)
    if plan.row_limit is not None:
        return (
            f"Batches of at most {plan.row_limit} records take {most} and {rate} come, so the "
            "backlog grows without end: raise the row limit."
        )
    step, partition, _ = loads.busiest()
    return (
        f"At {rate} the batches grow without end, as {most} is the most that they can take; step "
        f"'{step}' has the most to do, in partition {partition}: give it more cores or partitions."
    )


def _cores_used(profile: Profile, loads: Loads, costs: BatchCosts, cycle_ms: float) -> float:
    rate = loads.rate_per_s
    batches_per_s = 0.0 if math.isinf(cycle_ms) else 1e3 / cycle_ms
    steps = math.fsum(
        float(busy.sum()) * profile.step(name).cpu_share
        for load in loads.stages
        for name, busy in load.busy.items()
    )
    return steps + (batches_per_s * costs.cpu_ms + rate * costs.cpu_record_ms) / 1e3


def _breakdown_ms(cycle: Cycle, cycle_ms: float, wait_ms: float) -> dict[str, float]:
    """The mean latency by element; a step has its part in the longest task of its stage."""
    records = cycle.loads.rate_per_s * cycle_ms / 1e3
    parts: dict[str, float] = {}
    for load, stage in zip(cycle.loads.stages, cycle.stages, strict=True):
        task_ms, whole_ms = stage.task_ms(records), stage.duration_ms(records)
        worst = int(np.argmax(task_ms))
        busy = {name: float(share[worst]) for name, share in load.busy.items()}
        together = max(math.fsum(busy.values()) * cycle_ms, 1e-12)
        work_ms = min(whole_ms, together)
        for name, share in busy.items():
            parts[f"step:{name}"] = work_ms * share * cycle_ms / together
    duration_ms = cycle.duration_ms(records)
    engine_ms = duration_ms - math.fsum(parts.values())
    wait = "batching" if cycle.interval_ms >= cycle_ms else "source_wait"
    return {wait: wait_ms, **parts, "engine": engine_ms}
