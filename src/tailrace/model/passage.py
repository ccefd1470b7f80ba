"""What real-time mode would do: a hand-over to Python for every chain, an exchange between stages.

Every task is a bulk server with an open batch before it (``tailrace.model.realtime``); records of
different partitions meet differently busy ones. All stages run at once, so a plan needs a slot for
every task of every stage.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tailrace.model.prediction import Outcome, impossible
from tailrace.model.realtime import Boundary, HandOver, HandOverModel
from tailrace.model.spread import Spread
from tailrace.model.windows import window_wait_ms
from tailrace.plan import chain_name
from tailrace.units import show_rate

if TYPE_CHECKING:
    from tailrace.model.loads import Loads, StageLoad
    from tailrace.plan import Plan
    from tailrace.profile.profile import HandOverCosts, Profile

ALIKE = 0.02
"""Partitions whose rates differ by less than this share are taken as one."""


def real_time(profile: Profile, plan: Plan, loads: Loads, costs: HandOverCosts) -> Outcome:
    """What real-time mode under that plan would do."""
    utilisation = {
        name: tuple(map(float, busy)) for load in loads.stages for name, busy in load.busy.items()
    }
    if loads.slots > loads.cores:
        return impossible(
            f"Real-time mode needs a slot for each of {loads.slots} tasks, as all stages run at "
            f"once, and there are {loads.cores}: add cores or take partitions away.",
            utilisation,
        )
    tasks = [task for load in loads.stages for task in _tasks(plan, load, loads, costs)]
    highest = loads.rate_per_s * min(
        (h.model.highest_rate_per_s / h.rate_per_s for _, _, h in tasks if h.rate_per_s > 0),
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


def _cores_used(profile: Profile, loads: Loads, costs: HandOverCosts, tasks: list[Task]) -> float:
    """What hand-overs, their records, and the part of the steps that computes keep busy."""
    handing_ms = math.fsum(
        h.rate_per_s / h.model.records(h.rate_per_s, h.lifetime_ms) * h.model.fixed_ms
        + h.rate_per_s * costs.per_record_ms
        for _, _, h in tasks
    )
    steps = math.fsum(
        float(busy.sum()) * profile.step(name).cpu_share
        for load in loads.stages
        for name, busy in load.busy.items()
    )
    return handing_ms / 1e3 + steps


Task = tuple[str, int, HandOver]


def _tasks(plan: Plan, load: StageLoad, loads: Loads, costs: HandOverCosts) -> list[Task]:
    """The hand-overs of a stage: chain, partition, and how it is loaded."""
    found = []
    for chain in load.stage.chains:
        name, rates, busy = chain_name(chain), loads.entering[chain[0]], load.chain_busy(chain)
        lifetime_ms = plan.lifetimes_ms.get(name, 0.0)
        fixed_ms = costs.fixed_ms + math.fsum(loads.call_ms[step] for step in chain)
        for partition, rate in enumerate(rates):
            work_ms = float(busy[partition]) / rate * 1e3 if rate > 0 else 0.0
            model = HandOverModel(fixed_ms, costs.per_record_ms + work_ms)
            found.append((name, partition, HandOver(model, float(rate), lifetime_ms)))
    return found


def _parts(plan: Plan, loads: Loads, costs: HandOverCosts, tasks: list[Task]) -> tuple[Spread, ...]:
    """What a record meets: the ends of the flow, each hand-over with its hop, and gaps."""
    parts = [Spread.constant(costs.source_ms + costs.sink_ms)]
    for number, load in enumerate(loads.stages):
        for place, chain in enumerate(load.stage.chains):
            name = chain_name(chain)
            passed = _mixed([h for chain_of, _, h in tasks if chain_of == name])
            parts.append(passed)
            if number and not place:
                parts.append(_hop(plan, costs))
    length_ms = max(plan.interval_ms, 1.0)
    boundary = Boundary(costs.gap_ms, length_ms)
    return (*parts, boundary.excess([h for *_, h in tasks], costs.gap_ms + length_ms))


def _hop(plan: Plan, costs: HandOverCosts) -> Spread:
    return Spread.even(0.0, plan.flush_ms).later(costs.hop_ms)


def _breakdown_ms(
    plan: Plan, loads: Loads, costs: HandOverCosts, parts: tuple[Spread, ...], tasks: list[Task]
) -> dict[str, float]:
    """The mean latency by element."""
    steps: dict[str, float] = {}
    for load in loads.stages:
        steps |= _steps_ms(loads, load, tasks)
    hops_ms = (len(loads.stages) - 1) * _hop(plan, costs).mean_ms
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


def _mixed(hand_overs: list[HandOver]) -> Spread:
    """The latency over all partitions of a chain; those that are alike are computed once."""
    live = sorted((h for h in hand_overs if h.rate_per_s > 0), key=lambda h: h.rate_per_s)
    if not live:
        return Spread.constant(0.0)
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
    return Spread.mixed(spreads, [sum(h.rate_per_s for h in group) for group in groups])


def _steps_ms(loads: Loads, load: StageLoad, tasks: list[Task]) -> dict[str, float]:
    """How long records stay in each step: what it takes for all records of their hand-over."""
    found = {}
    for chain in load.stage.chains:
        name = chain_name(chain)
        of_chain = [(at, h) for chain_of, at, h in tasks if chain_of == name and h.rate_per_s > 0]
        whole = math.fsum(h.rate_per_s for _, h in of_chain)
        for step in chain:
            found[step] = loads.call_ms[step] + math.fsum(
                float(load.busy[step][at])
                * h.model.records(h.rate_per_s, h.lifetime_ms)
                / whole
                * 1e3
                for at, h in of_chain
            )
    return found


def _too_much(tasks: list[Task], loads: Loads, highest_per_s: float) -> str:
    chain, partition, hand_over = max(
        (task for task in tasks if task[2].rate_per_s > 0),
        key=lambda task: task[2].rate_per_s / task[2].model.highest_rate_per_s,
    )
    step, _, _ = loads.busiest()
    most = show_rate(hand_over.model.highest_rate_per_s)
    return (
        f"At {show_rate(loads.rate_per_s)} partition {partition} of chain '{chain}' gets "
        f"{show_rate(hand_over.rate_per_s)} and can take {most}, mostly because of step '{step}', "
        f"so the plan saturates at {show_rate(highest_per_s)}: give the chain more tasks."
    )
