"""The simulated machine that a profile describes, so that a flow can be rehearsed on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.model.batch import ARROW_RECORDS
from tailrace.model.simulator import Plant, StepCost
from tailrace.profile.costs import USUAL_BATCH

if TYPE_CHECKING:
    from tailrace.plan import Plan
    from tailrace.profile.profile import Profile

PLANNED = 0.6
"""The share of a batch's fixed cost that is paid before its tasks begin: it moves no latency."""


def plant_of(profile: Profile, plan: Plan, *, cores: int = 1, start_ms: float = 0.0) -> Plant:
    """The plant whose batches take what the profile says, under about that plan.

    A batch pays what the profile says of batches, stages and tasks, and each Arrow batch the calls
    of its steps. Executors have ``cores`` each and take ``start_ms`` to come.
    """
    costs = profile.batch or USUAL_BATCH
    return Plant(
        planning_ms=PLANNED * costs.fixed_ms,
        sink_ms=(1 - PLANNED) * costs.fixed_ms,
        steps={s.name: StepCost(s.service_ms, s.cv, s.ratio, s.call_ms) for s in profile.steps},
        per_record_ms=costs.per_record_ms,
        per_task_ms=costs.task_ms,
        stage_ms=costs.stage_ms,
        shuffle_ms=costs.shuffle_ms,
        slots=plan.cores or profile.cores,
        source_partitions=profile.source_partitions,
        arrow_records=ARROW_RECORDS,
        most_records=plan.row_limit,
        noise=costs.noise,
        restart_ms=costs.restart_ms,
        cores=cores,
        start_ms=start_ms,
        starting=1.0 if profile.executors is None else profile.executors.slowdown,
    )
