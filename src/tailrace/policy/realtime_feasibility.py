"""Honest impossibility in real-time mode: which bounds cannot be kept, because of what.

Even a record that is handed over at once waits for a free task, passes steps, shuffles and the
sink, and now and then meets the gap between two batches. Each constraint is held against that.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.policy.decision import Impossible, known
from tailrace.policy.realtime import SHORTEST_FLUSH_MS, batch_ms, boundary_of, bounded, flow_of
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from tailrace.constraint import Constraint
    from tailrace.model.realtime import Boundary, FlowModel
    from tailrace.policy.decision import Observation, Reading

HAND_OVER = "hand-over"
SHUFFLE = "shuffle"
GAP = "gap"
SINK_TIME = "sink"
OUTSIDE = "outside of chains"


def assess(observation: Observation) -> tuple[Impossible, ...]:
    """The constraints that even lifetime 0 cannot keep, with what dominates and a remedy.

    Those that hold between batch boundaries but not across one are named too, with the share of
    windows that this concerns.
    """
    hand_overs, readings = known(observation.realtime), bounded(observation)
    covered = [hand_overs.chain(name) for reading in readings for name in reading.chains]
    silent = bool(covered) and all(chain.rate_per_s <= 0 for chain in covered)
    if not readings or silent:
        return ()
    waits = replace(
        observation.plan,
        lifetimes_ms={},
        flush_ms=SHORTEST_FLUSH_MS,
        interval_ms=batch_ms(observation),
    )
    at_once = replace(observation, plan=waits)
    judged = (_impossible(at_once, reading) for reading in observation.readings)
    return tuple(impossible for impossible in judged if impossible is not None)


def _impossible(observation: Observation, reading: Reading) -> Impossible | None:
    goal = reading.constraint
    flow = flow_of(observation, reading)
    best_ms = flow.statistic_ms(goal.quantile, goal.every_ms)
    if math.isinf(best_ms):
        return _overloaded(observation, reading)
    if best_ms > goal.bound_ms:
        return _too_slow(observation, reading, flow, best_ms)
    boundary = boundary_of(observation, reading)
    if boundary is None:
        return None
    across_ms = flow.statistic_ms(goal.quantile, goal.every_ms, boundary)
    return _gap_too_long(goal, boundary, across_ms) if across_ms > goal.bound_ms else None


def _overloaded(observation: Observation, reading: Reading) -> Impossible:
    """A chain whose task cannot keep up at all."""
    chains = map(known(observation.realtime).chain, reading.chains)
    chain = max(chains, key=lambda chain: chain.rate_per_s / chain.model.highest_rate_per_s)
    most = show_rate(chain.model.highest_rate_per_s)
    element = max(chain.steps_ms, key=chain.steps_ms.__getitem__, default=HAND_OVER)
    if chain.work_ms < chain.per_record_ms:
        element = HAND_OVER
    blame = "handing over" if element == HAND_OVER else f"step '{element}'"
    tasks = math.ceil(chain.rate_per_s / chain.model.highest_rate_per_s / 0.9)
    reason = (
        f"A task of chain '{chain.chain}' gets {show_rate(chain.rate_per_s)} and can take less "
        f"than {most}, mostly because of {blame}, so its backlog grows without end."
    )
    remedy = f"Give the chain {tasks} tasks for each one it has, or send less than {most} to it."
    return Impossible(reading.constraint, element, math.inf, reason, remedy)


_KINDS = {
    HAND_OVER: "hand-overs",
    SHUFFLE: "the shuffles",
    SINK_TIME: "the sink",
    OUTSIDE: "steps outside of chains",
}
_REMEDIES = {
    HAND_OVER: "Chain the steps so that there are fewer hand-overs",
    SHUFFLE: "Take a shuffle out of the path",
    SINK_TIME: "Use a sink that shows its results sooner",
    OUTSIDE: "Make the steps outside of chains faster",
}


def _too_slow(
    observation: Observation, reading: Reading, flow: FlowModel, best_ms: float
) -> Impossible:
    """Shipping at once is not enough: name the part that takes the most."""
    goal = reading.constraint
    parts = _parts(observation, reading, flow)
    element = max(parts, key=parts.__getitem__)
    best, bound = show_duration(best_ms), show_duration(goal.bound_ms)
    blame = _KINDS.get(element, f"step '{element}'")
    reason = (
        f"Even when records are handed over at once the {goal.statistic} is {best}, above "
        f"{bound}, and {show_duration(parts[element])} of that is for {blame}."
    )
    repair = _REMEDIES.get(element, f"Make step '{element}' faster or give it more tasks")
    return Impossible(goal, element, best_ms, reason, f"{repair}, or loosen the bound to {best}.")


def _parts(observation: Observation, reading: Reading, flow: FlowModel) -> dict[str, float]:
    """Where the mean latency of a path goes; a chain's share is split by what keeps it busy."""
    parts = {
        HAND_OVER: 0.0,
        SHUFFLE: flow.hops * flow.flush_ms / 2,
        SINK_TIME: reading.sink_ms,
        OUTSIDE: reading.fixed_ms,
    }
    for name, hand_over in zip(reading.chains, flow.hand_overs, strict=True):
        chain, spent_ms = known(observation.realtime).chain(name), hand_over.latency().mean_ms
        records = hand_over.model.records(hand_over.rate_per_s, hand_over.lifetime_ms)
        per_busy = spent_ms * records / hand_over.model.service_ms(records)
        for step, step_ms in chain.steps_ms.items():
            parts[step] = parts.get(step, 0.0) + step_ms * per_busy
        parts[HAND_OVER] += spent_ms - chain.work_ms * per_busy
    return parts


def _gap_too_long(goal: Constraint, boundary: Boundary, across_ms: float) -> Impossible:
    """The bound holds between batch boundaries, but not in a window that has one."""
    share = boundary.share_of_windows(goal.every_ms)
    gap, every = show_duration(boundary.gap_ms), show_duration(goal.every_ms)
    in_gap = boundary.gaps_in(goal.every_ms) * boundary.gap_ms / goal.every_ms
    beyond = (
        f", as {in_gap:.3g} of its records come in it and only {1 - goal.quantile:.3g} may be late"
        if goal.quantile is not None and in_gap > 1 - goal.quantile
        else ""
    )
    reason = (
        f"Nothing flows for {gap} between two real-time batches, so in the {share:.0%} of windows "
        f"of {every} that hold such a gap the {goal.statistic} is {show_duration(across_ms)}, "
        f"above {show_duration(goal.bound_ms)}{beyond}."
    )
    remedy = (
        f"Allow a longer recovery than {show_duration(boundary.length_ms)} to have fewer gaps, "
        f"a longer span than {every}, or a bound of {show_duration(across_ms)}."
    )
    return Impossible(goal, GAP, across_ms, reason, remedy)
