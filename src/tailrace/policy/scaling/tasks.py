"""Tasks for each step in real-time mode: the fewest that keep every bound, changed between batches.

A step with a ``scale`` has tasks of its own there, each a queue that holds a slot all the time.
Their numbers are those of elastic scaling (Lohrmann 2016, section 4.6); what a change costs is the
end of a batch before its time, so that it has to be worth it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.plan import chain_name
from tailrace.policy.decision import Alternative, Decision, known
from tailrace.policy.scaling.rebalance import SequenceBound, scale_reactively
from tailrace.policy.scaling.waits import TaskLoad

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.constraint import Constraint
    from tailrace.policy.decision import Observation

POLICY = "tasks"

EASE = 0.2
"""Tasks are given back only if fewer would do at a rate that is higher by this share."""

DWELL_INTERVALS = 3


def decide(seen: Observation) -> Decision:
    """Give each scaled step the fewest tasks that keep all bounds together.

    More at once; fewer only after 3 whole intervals, and if they would do with a fifth more load.
    Every task holds a slot, also those that are no step's: what the slots do not allow is said, and
    not asked for.
    """
    scaled = {
        chain_name(chain): chain
        for chain in seen.plan.chains
        if chain[0] in seen.plan.partitions and all(name in seen.steps for name in chain)
    }
    bounds = [bound for goal in seen.constraints if (bound := _bound(seen, goal, scaled)).elements]
    if not bounds:
        return Decision(POLICY, seen.plan, "No bound covers a step with tasks of its own.")
    now = {name: seen.plan.partitions[chain[0]] for name, chain in scaled.items()}
    needed = scale_reactively(bounds, _loads(seen, scaled, 1.0))
    eased = scale_reactively(bounds, _loads(seen, scaled, 1.0 + EASE))
    patient = seen.intervals_since_change >= DWELL_INTERVALS
    wanted = {
        name: max(needed.parallelism[name], min(now[name], eased.parallelism[name]))
        if patient
        else max(needed.parallelism[name], now[name])
        for name in now
    }
    partitions = dict(seen.plan.partitions) | {scaled[n][0]: wanted[n] for n in wanted}
    held = known(seen.realtime).other_tasks + sum(partitions.values())
    shown = ", ".join(f"{tasks} for {name}" for name, tasks in wanted.items())
    if held > seen.slots and wanted != now:
        lacking = f"They hold {held} slots and there are {seen.slots}."
        refused = Alternative(f"tasks: {shown}", None, lacking)
        reason = f"{needed.reason} {lacking} Start the session with at least {held}."
        return Decision(POLICY, seen.plan, reason, alternatives=(refused,))
    plan = seen.plan if wanted == now else replace(seen.plan, partitions=partitions)
    return Decision(POLICY, plan, f"Tasks: {shown}. {needed.reason}")


def _bound(
    seen: Observation, goal: Constraint, scaled: Mapping[str, tuple[str, ...]]
) -> SequenceBound:
    """A constraint as the scaled chains on its path, and what the other steps leave to them.

    Waits in a queue have an exponential tail, so that a quantile q is ``-ln(1 - q)`` times the
    mean: the mean may be that much smaller.
    """
    path = seen.graph.path(goal.path)
    on_path = tuple(name for name, chain in scaled.items() if chain[0] in path)
    covered = {step for name in on_path for step in scaled[name]}
    others = [seen.steps[name] for name in path if name in seen.steps and name not in covered]
    rest_ms = math.fsum(step.service_ms for step in others)
    tail = 1.0 if goal.quantile is None else max(1.0, -math.log(1 - goal.quantile))
    return SequenceBound(on_path, goal.bound_ms / tail - rest_ms)


def _loads(
    seen: Observation, scaled: Mapping[str, tuple[str, ...]], factor: float
) -> list[TaskLoad]:
    """The chains as queues, at that many times the load."""
    return [_load(seen, name, chain, factor) for name, chain in scaled.items()]


def _load(seen: Observation, name: str, chain: tuple[str, ...], factor: float) -> TaskLoad:
    step, tasks = seen.graph.step(chain[0]), seen.plan.partitions[chain[0]]
    service_ms = math.fsum(seen.steps[part].service_ms for part in chain)
    busy = math.fsum(seen.steps[part].utilisation for part in chain) * factor
    least, most = (tasks, tasks) if step.keyed_by or step.scale is None else step.scale
    return TaskLoad(
        name=name,
        service_ms=service_ms,
        gap_ms=service_ms / busy if busy and service_ms else math.inf,
        cv_arrivals=1.0,
        cv_service=1.0,
        waited_ms=None,
        tasks=tasks,
        least=least,
        most=most,
        latency_ms=service_ms,
    )
