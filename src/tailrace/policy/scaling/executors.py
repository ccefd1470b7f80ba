"""How many executors: the move of a scaler as a decision, with the partitions that go with it.

A scaler (``tailrace.policy.scaling.sizing``) knows nothing of plans. Here is the only place that
shows one a load and makes a plan of its answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.policy.decision import Decision

if TYPE_CHECKING:
    from tailrace.constraint import Constraint
    from tailrace.graph import Graph
    from tailrace.model.sized import SizedBatches
    from tailrace.plan import Plan
    from tailrace.policy.decision import Observation
    from tailrace.policy.scaling.sizing import Limits, Load, Scaler

POLICY = "scaling"

COMING_MS = 10_000.0
"""How long executors take to come, about."""


@dataclass(frozen=True, slots=True)
class ExecutorState:
    """What is known of executors, and of what another number of them would do.

    ``load`` is what a scaler is shown. ``sized`` says what batches would take on any number, for
    the ``constraint`` that is nearest to its bound, and ``next_ms`` how long the next batch will.
    """

    load: Load
    sized: SizedBatches
    constraint: Constraint
    next_ms: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """The cluster did not do what was asked, and has ``there`` executors."""

    there: int
    reason: str


def decide(scaler: Scaler, observation: Observation) -> Decision:
    """Follow a scaler; where the cluster refused, want what there is.

    While a move is under way the scaler is asked, so that it misses nothing, but not followed.
    """
    match observation.executors:
        case None:
            reason = "No bound from the source was measured, so the executors stay."
            return Decision(POLICY, observation.plan, reason)
        case Refusal(there, reason):
            return Decision(POLICY, replace(observation.plan, executors=there), reason)
        case ExecutorState() as seen:
            return _followed(scaler, observation, seen)


def _followed(scaler: Scaler, observation: Observation, seen: ExecutorState) -> Decision:
    """A move as a plan: fewer executors have fewer partitions at once, more when they are there.

    Unless the next batch will not be over when they come: Spark gives tasks to whichever executor
    is free, so that the batch has one for each of them from the start.
    """
    load, plan = seen.load, observation.plan
    move = scaler.decide(load)
    size = load.limits.within(move.size)
    if load.moving or size == load.size:
        return Decision(POLICY, plan, move.reason)
    slots = observation.slots if seen.next_ms < COMING_MS else size * load.limits.cores
    plan = fitted(observation.graph, replace(plan, executors=size), slots, load.limits)
    return Decision(
        POLICY, plan, move.reason, alternatives=move.alternatives, constraint=seen.constraint
    )


def fitted(graph: Graph, plan: Plan, slots: int, limits: Limits) -> Plan:
    """The plan with as many partitions as run at once, for the steps that have a scale.

    Not more than the executors that are wanted run: some may be on their way out.
    """
    wanted = (plan.executors or limits.most) * limits.cores
    fit = {
        step.name: min(max(step.scale[0], min(slots, wanted)), step.scale[1])
        for step in graph.steps
        if step.scale and not step.keyed_by
    }
    return replace(plan, partitions=plan.partitions | fit)
