"""What micro-batches would do: the cycle of batches, the latency of records.

A batch of N records takes ``D(N)`` (``batch.py``). Batches follow one another in a cycle
``C = max(T, D(lambda*C))``, and a record waits for the cut of its batch, evenly from 0 to C, and
then for the batch. With cycles of different lengths a record is more likely to fall into a long
one: the mean wait is ``E[C^2]/(2 E[C])``, the inspection paradox. A limit of M rows a batch caps N,
and with it the rate at ``M/max(T, D(M))``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from tailrace.model.batch import BatchDuration, Engine, Work
from tailrace.model.distribution import MIDDLES, WEIGHTS, Distribution
from tailrace.model.prediction import Outcome, impossible
from tailrace.model.windows import window_wait_ms
from tailrace.units import show_rate

if TYPE_CHECKING:
    from tailrace.model.loads import Loads, StageLoad
    from tailrace.plan import Plan
    from tailrace.profile.costs import BatchCosts
    from tailrace.profile.profile import Profile

MANY = 1e7
"""Records of a batch so large that its fixed costs no longer count."""

_NOISE = ndtri((np.arange(24) + 0.5) / 24)
_ROUNDS = 30
_ROUNDING = 1e-9


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
        works = [_work(load, loads) for load in loads.stages]
        self.batch = BatchDuration(works, Engine(costs), loads.cores)

    def duration_ms(self, records: float) -> float:
        """``D(N)``, the time from the cut of a batch to its visible results."""
        return self.batch.duration_ms(records)

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
        slope_ms = self.batch.line(MANY).per_record_ms
        return math.inf if slope_ms <= 0 else 1e3 / slope_ms

    def cycle_ms(self) -> float:
        """The fixed point of ``C = max(T, D(lambda*C))``; infinite when there is none.

        D is a line but for the turns of Arrow batches, so a few steps to the cycle of its line at
        about that size find it.
        """
        rate = self.loads.rate_per_s
        if rate > (1 - _ROUNDING) * self.highest_per_s:
            return math.inf
        if self.row_limit is not None and rate * self.interval_ms / 1e3 > self.row_limit:
            return math.inf
        cycle_ms = max(self.interval_ms, self.duration_ms(0.0))
        for _ in range(_ROUNDS):
            records = max(1.0, rate * cycle_ms / 1e3)
            meeting_ms = self.batch.line(records).cycle_ms(self.interval_ms, rate)
            found_ms = 2 * cycle_ms if math.isinf(meeting_ms) else meeting_ms
            found_ms = max(self.batch.fixed_ms, found_ms)
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

    def latency(self, cycle_ms: float) -> tuple[Distribution, Distribution]:
        """Wait and batch of a record, both with durations that vary by ``noise`` (lognormal)."""
        duration_ms = self.duration_ms(self.loads.rate_per_s * cycle_ms / 1e3)
        sigma = math.sqrt(math.log1p(self.costs.noise**2))
        durations = duration_ms * np.exp(sigma * _NOISE - sigma**2 / 2)
        cycles = np.maximum(self.interval_ms, durations)
        if self.interval_ms < cycle_ms:  # back to back, or late: the cycle is the batch
            cycles = durations * cycle_ms / duration_ms
        waits = np.multiply.outer(cycles, MIDDLES)
        wait = Distribution.of(waits, np.multiply.outer(cycles, WEIGHTS))
        each = np.full_like(durations, 1 / len(durations))
        return wait, Distribution.of(durations, each)


def _work(load: StageLoad, loads: Loads) -> Work:
    """What a record of the source makes in a stage, by partition."""
    rate = loads.rate_per_s
    chain_ms = np.stack([load.chain_busy(chain) for chain in load.stage.chains]) / rate * 1e3
    call_ms = math.fsum(loads.call_ms[step] for step in load.stage.steps)
    return Work(load.rates_per_s / rate, chain_ms, call_ms)


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
    for load, stage in zip(cycle.loads.stages, cycle.batch.stages, strict=True):
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
