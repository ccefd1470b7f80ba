"""What a run keeps for its report: intervals, verdicts and decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tailrace.profile.histogram import LogHistogram

if TYPE_CHECKING:
    from tailrace.constraint import Constraint
    from tailrace.model.microbatch import BatchModel
    from tailrace.plan import Plan
    from tailrace.policy.decision import Alternative, Decision, Impossible
    from tailrace.profile.histogram import Quantiles
    from tailrace.profile.interval import Verdict
    from tailrace.profile.moments import Moments


class Mode(StrEnum):
    """How far the controller may go: only watch, say what it would do, or do it."""

    OBSERVE = "observe"
    ADVISE = "advise"
    ENFORCE = "enforce"


@dataclass(slots=True)
class DecisionRecord:
    """A decision as it was logged, and its outcome.

    ``realised_ms`` is what the constraint that it aimed at, or else the mean latency of the flow,
    measured in the first whole interval under the new plan; None if the plan did not last so long.
    """

    at_us: int
    policy: str
    reason: str
    before: Plan
    after: Plan
    applied: bool
    predicted_ms: float | None
    alternatives: tuple[Alternative, ...]
    constraint: Constraint | None
    realised_ms: float | None = None

    @classmethod
    def of(
        cls, decision: Decision, at_us: int, before: Plan, after: Plan, *, applied: bool
    ) -> DecisionRecord:
        """A decision that has just been made."""
        return cls(
            at_us,
            decision.policy,
            decision.reason,
            before,
            after,
            applied,
            decision.predicted_ms,
            decision.alternatives,
            decision.constraint,
        )


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a step did in one interval."""

    records_in: int
    records_out: int
    errors: int
    service_ms: Moments
    utilisation: float


@dataclass(frozen=True, slots=True)
class IntervalRecord:
    """One adjustment interval, summed up; its batches are not kept.

    ``slots`` is how many tasks could run at once when it ended, and ``needed`` the fewest executors
    that would have kept every bound by what was known then, where their number is decided here.
    """

    start_us: int
    every_ms: float
    records: int
    batches: int
    latency_ms: Moments
    latencies_ms: LogHistogram
    quantiles: Quantiles
    breakdown_ms: dict[str, float]
    steps: dict[str, StepRecord]
    plan: Plan
    verdicts: tuple[Verdict, ...]
    slots: int = 0
    needed: int | None = None

    @property
    def rate_per_s(self) -> float:
        """Records that entered per second."""
        return self.records / self.every_ms * 1e3


@dataclass(frozen=True, slots=True)
class Saving:
    """What longer batches saved, compared with batches back to back."""

    batches: float = 0.0
    cpu_ms: float = 0.0


@dataclass(slots=True)
class ScalingRecord:
    """Scaling as the report shows it: cores per executor, and the slowest decision.

    ``forecast_error`` is the relative error of forecast rates, one step ahead; None if the scaler
    makes no forecasts.
    """

    cores: int
    slowest_ms: float
    forecast_error: float | None


@dataclass(slots=True)
class Log:
    """Everything that the report shows of a run; it outlives a change of backend.

    ``origin_us`` is when the first interval begins. ``older`` holds the latencies of intervals
    whose own distribution has been let go. ``unplaced_records`` entered, but count in no interval.
    """

    constraints: tuple[Constraint, ...]
    interval_ms: float = 5_000.0
    mode: Mode = Mode.ENFORCE
    origin_us: int = 0
    history: list[IntervalRecord] = field(default_factory=list)
    older: LogHistogram = field(default_factory=LogHistogram)
    verdicts: list[Verdict] = field(default_factory=list)
    decisions: list[DecisionRecord] = field(default_factory=list)
    impossible: tuple[Impossible, ...] = ()
    batches: int = 0
    unplaced_records: int = 0
    saving: Saving = Saving()
    model: BatchModel | None = None
    scaling: ScalingRecord | None = None
