"""Which policies are asked, and in which order: by the price of what they change.

A batch interval and the lifetimes of hand-overs are free. Chains, and tasks in real-time mode, cost
a restart of the query. Executors take seconds to come. The first change of chains ends a round:
what a step costs has to be measured anew before anything dearer is decided on.

Beside these there are the early reaction to a rise (``policy/rise.py``) and, once an interval, the
choice of the backend (``policy/backend.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.policy import batching, chaining, handover
from tailrace.policy.decision import Decision, Observation, known
from tailrace.policy.scaling import executors, tasks
from tailrace.policy.scaling.executors import ExecutorState

if TYPE_CHECKING:
    from tailrace.policy.scaling.sizing import Scaler

Policy = Callable[[Observation], Decision]

MICROBATCH: tuple[Policy, ...] = (batching.decide, chaining.decide)
"""Before executors, on which :func:`move_executors` decides."""

REALTIME: tuple[Policy, ...] = (handover.decide, chaining.decide, tasks.decide)


def policies(observation: Observation) -> tuple[Policy, ...]:
    """The policies to ask now.

    A start of executors takes the machine's time: how busy steps are meanwhile says little of
    chains, so that only the batch interval is decided on.
    """
    if observation.realtime is not None:
        return REALTIME
    return MICROBATCH[:1] if known(observation.microbatch).moving else MICROBATCH


def move_executors(scaler: Scaler, observation: Observation) -> Decision:
    """Another number of executors, together with the batch interval for the time of the move.

    What the move should bring about is what batching then makes of the new number. Fewer executors
    leave less of the bound to batching, and so do more while they start: batches get shorter
    together with either.
    """
    decision = executors.decide(scaler, observation)
    size, seen = decision.plan.executors, observation.executors
    if size is None or decision.plan == observation.plan or not isinstance(seen, ExecutorState):
        return decision
    moved, now = replace(observation, plan=decision.plan), known(observation.microbatch)
    there = replace(now, model=seen.sized.on(size))
    after = meanwhile = batching.decide(replace(moved, microbatch=there))
    if size > seen.load.size:
        meanwhile = batching.decide(replace(moved, microbatch=replace(now, unsettled=True)))
    interval_ms = min(decision.plan.interval_ms, meanwhile.plan.interval_ms)
    plan = replace(decision.plan, interval_ms=interval_ms)
    return replace(decision, plan=plan, predicted_ms=after.predicted_ms)
