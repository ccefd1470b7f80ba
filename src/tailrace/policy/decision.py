"""What a policy sees and what it answers: plain values in, plain values out.

Policies are functions ``decide(observation) -> Decision``. A decision carries its reason, what
else was considered and what it should bring about, so that it can be explained, logged, replayed
and scored against what then happened.

An :class:`Observation` has what every backend knows, and a part for what only one of them, or only
one policy, knows: None where it is not known. :func:`known` asks for a part that a policy needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from tailrace.errors import ConstraintError, InputError
from tailrace.model.realtime import HandOverModel
from tailrace.profile.costs import USUAL_HAND_OVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.constraint import Constraint
    from tailrace.graph import Graph
    from tailrace.model.microbatch import BatchModel
    from tailrace.plan import Plan
    from tailrace.policy.backend import MicroBatchCosts, RealTimeCosts
    from tailrace.policy.scaling.executors import ExecutorState, Refusal

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class StepLoad:
    """How busy a step was in the last interval.

    ``utilisation`` is the busy share of its busiest partition, the one that saturates first
    (Lohrmann 2016, section 4.7.3 takes the maximum over subtasks); ``mean_utilisation`` is the
    average over partitions, so that their difference shows skew. ``hot_key`` and its share of the
    records are known only where records are spread by key.
    """

    records: int
    service_ms: float
    utilisation: float
    mean_utilisation: float
    partitions: int
    hot_key: str | None = None
    hot_key_share: float = 0.0


@dataclass(frozen=True, slots=True)
class ChainLoad:
    """The hand-over to one chain, as measured in the last interval.

    ``rate_per_s`` is that of its busiest task. ``wait_ms`` is the mean time in the open batch and
    ``records`` the mean size of a batch, None when none came. ``fixed_ms`` and ``per_record_ms``
    are the costs of handing over alone; ``steps_ms`` holds the time that each step of the chain
    takes for a record.
    """

    chain: str
    rate_per_s: float
    fixed_ms: float
    per_record_ms: float
    wait_ms: float | None = None
    records: float | None = None
    steps_ms: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def work_ms(self) -> float:
        """What the steps of the chain take for a record."""
        return math.fsum(self.steps_ms.values())

    @property
    def model(self) -> HandOverModel:
        """What keeps Python busy: handing over and the steps."""
        return HandOverModel.of(self.fixed_ms, self.per_record_ms, self.work_ms)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a constraint measured in its latest complete interval, and what lies on its path.

    ``value_ms`` is None when no record came. ``fixed_ms`` is the part of it that no wait can
    change: steps before and after the batch, or outside of chains. In real-time mode ``chains`` are
    those whose hand-over counts, ``hops`` the shuffles between them, and ``sink_ms`` the time after
    the last step, 0 where the path ends before the sink.
    """

    constraint: Constraint
    value_ms: float | None = None
    fixed_ms: float = 0.0
    chains: tuple[str, ...] = ()
    hops: int = 0
    sink_ms: float = 0.0

    @property
    def violated(self) -> bool:
        """Whether the bound was missed."""
        return self.value_ms is not None and self.value_ms > self.constraint.bound_ms


@dataclass(frozen=True, slots=True)
class MicroBatchState:
    """What only micro-batches show.

    ``model`` is the batch model fitted to the batches so far.
    """

    model: BatchModel
    latency_ratio: float = 1.0
    """Measured over predicted mean latency under the present plan: the fitting factor e of
    Lohrmann 2016, eq. 4.5, which keeps the model true to what was last seen."""
    moving: bool = False
    """Whether executors that are wanted have not come yet, or others not gone."""
    unsettled: bool = False
    """Whether executors are starting, or have just come: batches may then take longer than the
    model says."""
    most_records: int | None = None
    """What the source was seen to give a batch at most; None where it gives all there is."""
    behind: bool = False
    """Whether it holds records back now."""
    late_ms: float = 0.0
    """How old records are when they reach it."""


@dataclass(frozen=True, slots=True)
class RealTimeState:
    """What only real-time mode shows: its hand-overs, and the gap between two batches.

    ``recovery_ms`` is how long a crash may take to make good, which is one real-time batch.
    ``rising`` is set where rates are those of the moment and higher than those of the interval.
    ``other_tasks`` hold slots as well: they read the source, or lie behind Spark's own exchanges.
    """

    chains: tuple[ChainLoad, ...] = ()
    gap_ms: float = USUAL_HAND_OVER.gap_ms
    recovery_ms: float = 60_000.0
    rising: bool = False
    other_tasks: int = 1

    def chain(self, name: str) -> ChainLoad:
        """The chain of that name."""
        found = next((chain for chain in self.chains if chain.chain == name), None)
        if found is None:
            raise ConstraintError(f"There is no chain '{name}' to bound: name chains that run.")
        return found


@dataclass(frozen=True, slots=True)
class Streaks:
    """For how many intervals in a row a change of backend has been called for."""

    missed: int = 0
    calm: int = 0


NO_STREAKS = Streaks()


@dataclass(frozen=True, slots=True)
class BackendState:
    """What is known of the backends that a flow may run on.

    Costs are None for a backend that was not tried. ``obstacles`` say why the flow, its source or
    its sink cannot run in real-time mode, one sentence each. ``running`` is False at the start,
    when no backend runs yet. ``streaks`` are those of the decision before.
    """

    microbatch: MicroBatchCosts | None = None
    realtime: RealTimeCosts | None = None
    obstacles: tuple[str, ...] = ()
    running: bool = True
    recovery_ms: float = 60_000.0
    streaks: Streaks = NO_STREAKS


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that a policy may look at, at the end of one adjustment interval.

    ``slots`` is how many tasks can run at once. ``intervals_since_change`` counts whole intervals
    under the present chains and partitions, for hysteresis. ``noise`` is the relative spread of
    what was measured around the model: of the durations of batches, or of latencies between
    intervals.
    """

    graph: Graph
    plan: Plan
    readings: tuple[Reading, ...]
    rate_per_s: float
    steps: Mapping[str, StepLoad]
    slots: int
    intervals_since_change: int
    noise: float = 0.0
    microbatch: MicroBatchState | None = None
    realtime: RealTimeState | None = None
    executors: ExecutorState | Refusal | None = None
    backends: BackendState | None = None

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints of the flow."""
        return tuple(reading.constraint for reading in self.readings)


def known(part: Part | None) -> Part:
    """A part of an observation that the policy at hand cannot do without."""
    if part is None:
        raise InputError("A policy was asked about a flow on a backend that it knows nothing of.")
    return part


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan that was considered and not taken, and why."""

    what: str
    predicted_ms: float | None
    why_not: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy wants, why, and what it expects of it.

    ``plan`` is the plan after the decision; equal to the present one when nothing changes.
    ``predicted_ms`` is what ``constraint`` should measure under it. ``streaks`` are what the choice
    of a backend wants to see again in its next observation.
    """

    policy: str
    plan: Plan
    reason: str
    predicted_ms: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    constraint: Constraint | None = None
    streaks: Streaks = NO_STREAKS


@dataclass(frozen=True, slots=True)
class Impossible:
    """A constraint that no plan within reach can keep.

    ``element`` is what dominates (``batch``, a step, a key, the source) and ``remedy`` what would
    change that. ``provisional`` if it rests on too little to be sure, as in a short run.
    """

    constraint: Constraint
    element: str
    best_ms: float
    reason: str
    remedy: str
    provisional: bool = False
