"""What the model of hand-overs makes of an observation in real-time mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.model.realtime import Boundary, FlowModel, HandOver
from tailrace.plan import FLUSH_MS
from tailrace.policy.decision import known

if TYPE_CHECKING:
    from tailrace.policy.decision import Observation, Reading

SHORTEST_BATCH_MS = 5_000.0
"""Spark refuses shorter real-time batches unless told otherwise, and gaps would dominate."""

SHORTEST_FLUSH_MS = FLUSH_MS
LONGEST_FLUSH_MS = 50.0
"""How often the buffers of a shuffle are swept: from once a millisecond to Spark's default."""


def batch_ms(observation: Observation) -> float:
    """How long a real-time batch may be: as long as a crash may take to make good."""
    return max(SHORTEST_BATCH_MS, known(observation.realtime).recovery_ms)


def bounded(observation: Observation) -> tuple[Reading, ...]:
    """The readings whose path has a hand-over or a shuffle, so that waits change them."""
    return tuple(reading for reading in observation.readings if reading.chains or reading.hops)


def flow_of(observation: Observation, reading: Reading) -> FlowModel:
    """The path of a constraint under the present waits."""
    plan = observation.plan
    chains = (known(observation.realtime).chain(name) for name in reading.chains)
    hand_overs = tuple(
        HandOver(chain.model, chain.rate_per_s, plan.lifetimes_ms.get(chain.chain, 0.0))
        for chain in chains
    )
    return FlowModel(hand_overs, reading.hops, plan.flush_ms, reading.fixed_ms, reading.sink_ms)


def boundary_of(observation: Observation, reading: Reading) -> Boundary | None:
    """The gap that a constraint feels: only records that come from the source meet one."""
    gap_ms = known(observation.realtime).gap_ms
    if not reading.constraint.from_source or gap_ms <= 0:
        return None
    return Boundary(gap_ms, observation.plan.interval_ms)


def expected_ms(observation: Observation, reading: Reading) -> float:
    """What a constraint should measure under the present waits."""
    goal, flow = reading.constraint, flow_of(observation, reading)
    return flow.statistic_ms(goal.quantile, goal.every_ms, boundary_of(observation, reading))
