"""The simulated machine that a profile describes, so that a flow can be rehearsed on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.model.simulator import Plant, StepCost
from tailrace.model.stages import stages_of
from tailrace.profile.costs import USUAL_BATCH

if TYPE_CHECKING:
    from tailrace.plan import Plan
    from tailrace.profile.profile import Profile

ARROW_RECORDS = 10_000
"""Records pass between the JVM and Python so many at a time, Spark's default."""

PLANNED = 0.6
"""The share of a batch's fixed cost that is paid before its tasks begin: it moves no latency."""


def plant_of(profile: Profile, plan: Plan, *, cores: int = 1, start_ms: float = 0.0) -> Plant:
    """The plant whose batches take what the profile says, under about that plan.

    A batch pays its fixed cost, ``stage_ms`` for each stage behind an exchange, and the calls of
    its steps once for each Arrow batch, of which small batches have one. Executors have ``cores``
    each and take ``start_ms`` to come.
    """
    costs = profile.batch or USUAL_BATCH
    stages = stages_of(profile.graph, plan, profile.cores, profile.source_partitions)
    fixed_ms = costs.fixed_ms + (len(stages) - 1) * costs.stage_ms
    if len(stages) > 1:
        fixed_ms += costs.shuffle_ms
    calls_ms = sum(step.call_ms for step in profile.steps) / max(1, len(plan.chains))
    return Plant(
        planning_ms=PLANNED * fixed_ms,
        sink_ms=(1 - PLANNED) * fixed_ms,
        steps={s.name: StepCost(s.service_ms, s.cv, s.ratio) for s in profile.steps},
        per_record_ms=costs.per_record_ms,
        per_chain_ms=calls_ms,
        per_task_ms=costs.task_ms,
        slots=profile.cores,
        source_partitions=profile.source_partitions,
        arrow_records=ARROW_RECORDS,
        most_records=plan.row_limit,
        noise=costs.noise,
        restart_ms=costs.restart_ms,
        cores=cores,
        start_ms=start_ms,
        starting=1.0 if profile.executors is None else profile.executors.slowdown,
    )
