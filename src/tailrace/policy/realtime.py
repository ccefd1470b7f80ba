"""What the policies of real-time mode look at: hand-overs to chains, and the paths they lie on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from tailrace.errors import ConstraintError
from tailrace.model.realtime import Boundary, FlowModel, HandOver, HandOverModel
from tailrace.plan import FLUSH_MS
from tailrace.profile.costs import USUAL_HAND_OVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.goals import Constraint

SHORTEST_BATCH_MS = 5_000.0
"""Spark refuses shorter real-time batches unless told otherwise, and gaps would dominate."""

SHORTEST_FLUSH_MS = FLUSH_MS
LONGEST_FLUSH_MS = 50.0
"""How often the buffers of a shuffle are swept: from once a millisecond to Spark's default."""


@dataclass(frozen=True, slots=True)
class ChainLoad:
    """The hand-over to one chain, as measured in the last interval.

    ``rate_per_s`` is that of its busiest task. ``wait_ms`` is the mean time in the open batch and
    ``records`` the mean size of a batch, None when none came. ``fixed_ms`` and ``per_record_ms``
    are the costs of handing over alone, None until they are known; ``steps_ms`` holds the time
    that each step of the chain takes for a record.
    """

    chain: str
    rate_per_s: float
    lifetime_ms: float
    wait_ms: float | None = None
    records: float | None = None
    fixed_ms: float | None = None
    per_record_ms: float | None = None
    steps_ms: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def work_ms(self) -> float:
        """What the steps of the chain take for a record."""
        return math.fsum(self.steps_ms.values())

    @property
    def model(self) -> HandOverModel | None:
        """What keeps Python busy: handing over and the steps."""
        if self.fixed_ms is None or self.per_record_ms is None:
            return None
        return HandOverModel.of(self.fixed_ms, self.per_record_ms, self.work_ms)


@dataclass(frozen=True, slots=True)
class PathReading:
    """What a constraint measured last, None when no record came, and what lies on its path.

    ``chains`` are the ones whose hand-over counts, ``hops`` the shuffles between them,
    ``steps_ms`` the time in steps outside of chains, ``sink_ms`` the time after the last step, 0
    where the path ends before the sink.
    """

    constraint: Constraint
    value_ms: float | None
    chains: tuple[str, ...]
    hops: int = 0
    steps_ms: float = 0.0
    sink_ms: float = 0.0

    @property
    def violated(self) -> bool:
        """Whether the bound was missed."""
        return self.value_ms is not None and self.value_ms > self.constraint.bound_ms


@dataclass(frozen=True, slots=True)
class RealTimeObservation:
    """What the policy may look at: the constraints, the hand-overs, and what is set now.

    ``noise`` is the relative spread of measured over predicted latency between intervals.
    ``rising`` is set where rates are those of the moment and higher than those of the interval.
    ``recovery_ms`` is how long a crash may take to make good, which is one real-time batch.
    """

    readings: tuple[PathReading, ...]
    chains: tuple[ChainLoad, ...]
    flush_ms: float = SHORTEST_FLUSH_MS
    gap_ms: float = USUAL_HAND_OVER.gap_ms
    length_ms: float = SHORTEST_BATCH_MS
    noise: float = 0.0
    recovery_ms: float = 60_000.0
    rising: bool = False

    def chain(self, name: str) -> ChainLoad:
        """The chain of that name."""
        found = next((chain for chain in self.chains if chain.chain == name), None)
        if found is None:
            raise ConstraintError(f"There is no chain '{name}' to bound: name chains that run.")
        return found

    def flow(self, reading: PathReading) -> FlowModel | None:
        """The path of a constraint under the present waits; None when a cost is not known."""
        hand_overs = []
        for chain in (self.chain(name) for name in reading.chains):
            model = chain.model
            if model is None:
                return None
            hand_overs.append(HandOver(model, chain.rate_per_s, chain.lifetime_ms))
        return FlowModel(
            tuple(hand_overs), reading.hops, self.flush_ms, reading.steps_ms, reading.sink_ms
        )

    def boundary(self, reading: PathReading) -> Boundary | None:
        """The gap that a constraint feels: only records that come from the source meet one."""
        if not reading.constraint.from_source or self.gap_ms <= 0:
            return None
        return Boundary(self.gap_ms, self.length_ms)

    def expected_ms(self, reading: PathReading) -> float | None:
        """What a constraint should measure under the present waits; None when costs are missing."""
        goal, flow = reading.constraint, self.flow(reading)
        if flow is None:
            return None
        return flow.statistic_ms(goal.quantile, goal.every_ms, self.boundary(reading))
