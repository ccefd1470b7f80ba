"""What a policy sees and what it answers: plain values in, plain values out.

Policies are functions ``decide(observation) -> Decision``. A decision carries its reason, what
else was considered and what it should bring about, so that it can be explained, logged, replayed
and scored against what then happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.flow import Graph
    from tailrace.goals import Constraint
    from tailrace.model.microbatch import BatchModel
    from tailrace.plan import Plan


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
class Reading:
    """What a constraint measured in its latest complete interval; None when no record came."""

    constraint: Constraint
    value_ms: float | None
    fixed_ms: float
    """The part of the value that the batch interval cannot change: steps before, steps after."""


class Loads(Protocol):
    """The part of an observation that says how busy the steps are under the present plan."""

    @property
    def graph(self) -> Graph:
        """The flow."""

    @property
    def plan(self) -> Plan:
        """How it runs."""

    @property
    def steps(self) -> Mapping[str, StepLoad]:
        """How busy each step is."""

    @property
    def slots(self) -> int:
        """How many tasks can run at once."""

    @property
    def intervals_since_change(self) -> int:
        """How many whole intervals the present chains have lasted."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that a policy may look at, at the end of one adjustment interval.

    ``model`` is the batch model fitted to the batches so far. ``intervals_since_change`` counts
    whole intervals under the present chains, for hysteresis. ``noise`` is the relative spread of
    the batch durations around the model (standard deviation over mean).
    """

    graph: Graph
    plan: Plan
    readings: tuple[Reading, ...]
    rate_per_s: float
    model: BatchModel
    noise: float
    steps: Mapping[str, StepLoad]
    slots: int
    intervals_since_change: int
    latency_ratio: float = 1.0
    """Measured over predicted mean latency under the present plan: the fitting factor e of
    Lohrmann 2016, eq. 4.5, which keeps the model true to what was last seen."""
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
class Alternative:
    """A plan that was considered and not taken, and why."""

    what: str
    predicted_ms: float | None
    why_not: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy wants, why, and what it expects of it.

    ``plan`` is the plan after the decision; equal to the present one when nothing changes.
    ``predicted_ms`` is what ``constraint`` should measure under it.
    """

    policy: str
    plan: Plan
    reason: str
    predicted_ms: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    constraint: Constraint | None = None


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
