"""What real-time mode would do: a hand-over to Python for every chain, an exchange between stages.

Every task is a bulk server with an open batch before it (``tailrace.model.realtime``); records of
different partitions meet differently busy ones, and what a hand-over sends on arrives together at
the next. All stages run at once, so a plan needs a slot for every task of every stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.model.distribution import Distribution
from tailrace.model.prediction import Outcome, impossible
from tailrace.model.realtime import MOST_RECORDS, Boundary, HandOver, HandOverModel, hop
from tailrace.model.windows import window_wait_ms
from tailrace.plan import chain_name
from tailrace.units import show_rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tailrace.model.loads import Loads, StageLoad
    from tailrace.plan import Plan
    from tailrace.profile.costs import HandOverCosts
    from tailrace.profile.profile import Profile

    Floats = NDArray[np.float64]

ALIKE = 0.02
"""Partitions whose rates differ by less than this share are taken as one."""


def real_time(profile: Profile, plan: Plan, loads: Loads, costs: HandOverCosts) -> Outcome:
    """What real-time mode under that plan would do."""
    utilisation = {
        name: tuple(map(float, busy)) for load in loads.stages for name, busy in load.busy.items()
    }
    if (slots := sum(loads.tasks)) > loads.cores:
        return impossible(
            f"Real-time mode needs a slot for each of {slots} tasks, as all stages run at once, "
            f"and there are {loads.cores}: add cores or take partitions away.",
            utilisation,
        )
    tasks = _tasks(plan, loads, costs)
    highest = loads.rate_per_s * min(
        (
            task.hand_over.model.highest_rate_per_s / task.hand_over.rate_per_s
            for task in tasks
            if task.rate_per_s > 0
        ),
        default=math.inf,
    )
    used = _cores_used(profile, loads, costs, tasks)
    if loads.rate_per_s >= highest:
        return impossible(_too_much(tasks, loads, highest), utilisation, highest, used)
    parts = _parts(plan, loads, costs, tasks)
    return Outcome(
        parts,
        lambda: _breakdown_ms(plan, loads, costs, parts, tasks),
        highest,
        used,
        utilisation,
        window_wait_ms(profile, loads),
    )


def _cores_used(profile: Profile, loads: Loads, costs: HandOverCosts, tasks: list[_Task]) -> float:
    """What hand-overs, their records, and the part of the steps that computes keep busy."""
    handing_ms = math.fsum(
        task.rate_per_s * (task.hand_over.model.fixed_ms / task.records + costs.per_record_ms)
        for task in tasks
    )
    steps = math.fsum(
        float(busy.sum()) * profile.step(name).cpu_share
        for load in loads.stages
        for name, busy in load.busy.items()
    )
    return handing_ms / 1e3 + steps


@dataclass(frozen=True, slots=True)
class _Task:
    """A partition of a chain: its hand-over, of groups of ``group`` records that come at once.

    A group of g records at a rate of lambda is like one record at lambda/g that takes g times as
    long.
    """

    chain: str
    partition: int
    hand_over: HandOver
    group: float

    @property
    def rate_per_s(self) -> float:
        """Of single records."""
        return self.hand_over.rate_per_s * self.group

    @property
    def records(self) -> float:
        """How many records a hand-over holds, in the mean."""
        h = self.hand_over
        return self.group * h.model.records(h.rate_per_s, h.lifetime_ms)


def _tasks(plan: Plan, loads: Loads, costs: HandOverCosts) -> list[_Task]:
    """The hand-overs of all stages, in order.

    What became of one record comes at once: where ten are made of one, tens arrive, in the
    partition of their key or in turn. Records that only travel together are not counted so: the
    hand-overs that send them are regular, and groups are taken to come at random.
    """
    found: list[_Task] = []
    for load in loads.stages:
        rates = load.rates_per_s
        shares = rates / max(float(rates.sum()), 1e-12)
        for place, chain in enumerate(load.stage.chains):
            together = loads.copies[chain[0]]
            spread = load.stage.keyed or place > 0
            groups = np.full_like(rates, together) if spread else together * shares
            found += _tasks_of((plan, load, loads), costs, chain, np.maximum(1.0, groups))
    return found


def _tasks_of(
    laid: tuple[Plan, StageLoad, Loads],
    costs: HandOverCosts,
    chain: tuple[str, ...],
    groups: Floats,
) -> Iterator[_Task]:
    plan, load, loads = laid
    name, rates, busy = chain_name(chain), loads.entering[chain[0]], load.chain_busy(chain)
    lifetime_ms = plan.lifetimes_ms.get(name, 0.0)
    call_ms = math.fsum(loads.call_ms[step] for step in chain)
    for partition, rate in enumerate(rates):
        work_ms = float(busy[partition]) / rate * 1e3 if rate > 0 else 0.0
        group = min(float(groups[partition]), float(MOST_RECORDS))
        model = HandOverModel.of(costs.fixed_ms, costs.per_record_ms, work_ms, call_ms, group)
        yield _Task(name, partition, HandOver(model, float(rate) / group, lifetime_ms), group)


def _parts(
    plan: Plan, loads: Loads, costs: HandOverCosts, tasks: list[_Task]
) -> tuple[Distribution, ...]:
    """What a record meets: the ends of the flow, each hand-over with its hop, and gaps."""
    parts = [Distribution.constant(costs.source_ms + costs.sink_ms)]
    for number, load in enumerate(loads.stages):
        for place, chain in enumerate(load.stage.chains):
            name = chain_name(chain)
            passed = _mixed([task.hand_over for task in tasks if task.chain == name])
            parts.append(passed)
            if number and not place:
                parts.append(hop(plan.flush_ms, costs.hop_ms))
    length_ms = max(plan.interval_ms, 1.0)
    boundary = Boundary(costs.gap_ms, length_ms)
    excess = boundary.excess([task.hand_over for task in tasks], costs.gap_ms + length_ms)
    return (*parts, excess)


def _breakdown_ms(
    plan: Plan,
    loads: Loads,
    costs: HandOverCosts,
    parts: tuple[Distribution, ...],
    tasks: list[_Task],
) -> dict[str, float]:
    """The mean latency by element."""
    steps: dict[str, float] = {}
    for load in loads.stages:
        steps |= _steps_ms(loads, load, tasks)
    hops_ms = (len(loads.stages) - 1) * hop(plan.flush_ms, costs.hop_ms).mean_ms
    gap_ms = parts[-1].mean_ms
    inside_ms = math.fsum(part.mean_ms for part in parts[1:-1])
    return {
        "source_wait": costs.source_ms,
        "hand-over": inside_ms - hops_ms - math.fsum(steps.values()),
        "shuffle": hops_ms,
        **{f"step:{name}": ms for name, ms in steps.items()},
        "gap": gap_ms,
        "sink": costs.sink_ms,
    }


def _mixed(hand_overs: list[HandOver]) -> Distribution:
    """The latency over all partitions of a chain; those that are alike are computed once."""
    live = sorted((h for h in hand_overs if h.rate_per_s > 0), key=lambda h: h.rate_per_s)
    if not live:
        return Distribution.constant(0.0)
    groups: list[list[HandOver]] = [[live[0]]]
    for hand_over in live[1:]:
        first = groups[-1][0]
        if hand_over.rate_per_s <= first.rate_per_s * (1 + ALIKE) and math.isclose(
            hand_over.model.per_record_ms, first.model.per_record_ms, rel_tol=ALIKE
        ):
            groups[-1].append(hand_over)
        else:
            groups.append([hand_over])
    spreads = [group[len(group) // 2].latency() for group in groups]
    return Distribution.mixed(spreads, [sum(h.rate_per_s for h in group) for group in groups])


def _steps_ms(loads: Loads, load: StageLoad, tasks: list[_Task]) -> dict[str, float]:
    """How long records stay in each step: what it takes for all records of their hand-over."""
    found = {}
    for chain in load.stage.chains:
        name = chain_name(chain)
        of_chain = [task for task in tasks if task.chain == name and task.rate_per_s > 0]
        whole = math.fsum(task.rate_per_s for task in of_chain)
        for step in chain:
            found[step] = loads.call_ms[step] + math.fsum(
                float(load.busy[step][task.partition]) * task.records / whole * 1e3
                for task in of_chain
            )
    return found


def _too_much(tasks: list[_Task], loads: Loads, highest_per_s: float) -> str:
    busiest = max(
        (task for task in tasks if task.rate_per_s > 0),
        key=lambda task: task.hand_over.rate_per_s / task.hand_over.model.highest_rate_per_s,
    )
    step, _, _ = loads.busiest()
    most = show_rate(busiest.hand_over.model.highest_rate_per_s * busiest.group)
    return (
        f"At {show_rate(loads.rate_per_s)} partition {busiest.partition} of chain "
        f"'{busiest.chain}' gets {show_rate(busiest.rate_per_s)} and can take {most}, mostly "
        f"because of step '{step}', so the plan saturates at {show_rate(highest_per_s)}: give the "
        "chain more tasks."
    )
