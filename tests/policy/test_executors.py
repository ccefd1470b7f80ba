"""A scaler's move as a decision, and the batch interval that goes with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.constraint import SINK, SOURCE, Constraint
from tailrace.errors import InputError
from tailrace.graph import Graph, Step, Stream, graph
from tailrace.model.microbatch import BatchModel
from tailrace.model.sized import SizedBatches
from tailrace.plan import Backend, Plan
from tailrace.policy import batching, chaining, handover, order
from tailrace.policy.decision import MicroBatchState, Observation, Reading, RealTimeState, known
from tailrace.policy.order import move_executors, policies
from tailrace.policy.scaling import tasks
from tailrace.policy.scaling.executors import COMING_MS, ExecutorState, Refusal, decide
from tailrace.policy.scaling.sizing import Limits, Load, Move

FLOW: Graph = graph(
    (Step("parse", "x int"), Step("score", "x int", scale=(1, 6))),
    (Stream(SOURCE, "parse"), Stream("parse", "score"), Stream("score", SINK)),
)
GOAL = Constraint(500.0)
SIZED = SizedBatches(batch_ms=50.0, busy_ms=4.0, every_ms=5_000.0, cores=2)
LIMITS = Limits(1, 8, cores=2)


@dataclass
class Wants:
    """A scaler that wants one size."""

    size: int
    name: str = "wants"
    seen: list[Load] = field(default_factory=list)

    def decide(self, load: Load, /) -> Move:
        self.seen.append(load)
        return Move(self.size, f"It wants {self.size}.", 7.0)


def observed(size: int = 2, *, wanted: int | None = None, next_ms: float = 100.0) -> Observation:
    """A flow at 300 records/s on executors of two cores, whose batches follow ``SIZED``."""
    load = Load(
        at_us=60_000_000,
        step_ms=5_000.0,
        size=size,
        limits=LIMITS,
        bound_ms=GOAL.bound_ms,
        rate_per_s=300.0,
        done_per_s=300.0,
        service_ms=2.0,
        busy=0.3,
        latency_ms=200.0,
        backlog=0.0,
        model=SIZED,
        wanted=wanted or size,
    )
    return Observation(
        FLOW,
        Plan(300.0, (("parse",), ("score",)), {"score": 2 * size}, executors=wanted or size),
        (Reading(GOAL, 250.0),),
        300.0,
        {},
        2 * size,
        9,
        microbatch=MicroBatchState(SIZED.on(size)),
        executors=ExecutorState(load, SIZED, GOAL, next_ms),
    )


def test_what_the_scaler_wants_is_the_plan_and_its_words_are_the_reason() -> None:
    scaler, seen = Wants(3), observed()
    decision = decide(scaler, seen)
    assert decision.plan == replace(seen.plan, executors=3)  # partitions follow when they are there
    assert (decision.policy, decision.reason) == ("scaling", "It wants 3.")
    assert decision.constraint == GOAL
    assert isinstance(seen.executors, ExecutorState)
    assert scaler.seen == [seen.executors.load]


def test_fewer_executors_have_fewer_partitions_at_once() -> None:
    assert decide(Wants(1), observed(3)).plan.partitions == {"score": 2}


def test_a_next_batch_that_outlasts_the_start_has_a_task_for_each_that_comes() -> None:
    assert decide(Wants(3), observed(2, next_ms=COMING_MS)).plan.partitions == {"score": 6}
    assert decide(Wants(8), observed(2, next_ms=COMING_MS)).plan.partitions == {"score": 6}  # scale


@pytest.mark.parametrize("size", [2, 3])
def test_nothing_changes_while_a_move_is_under_way_or_none_is_wanted(size: int) -> None:
    scaler, seen = Wants(size), observed(2, wanted=None if size == 2 else 5)
    assert move_executors(scaler, seen).plan == seen.plan
    assert len(scaler.seen) == 1  # but it missed nothing


def test_a_size_beyond_the_limits_is_brought_within_them() -> None:
    assert decide(Wants(99), observed()).plan.executors == 8


def test_what_the_cluster_refuses_is_settled_for_and_no_scaler_is_asked() -> None:
    scaler, seen = Wants(8), replace(observed(2, wanted=5), executors=Refusal(3, "It is full."))
    decision = move_executors(scaler, seen)
    assert decision.plan == replace(seen.plan, executors=3)
    assert decision.reason == "It is full."
    assert scaler.seen == []


def test_without_a_measured_bound_from_the_source_the_executors_stay() -> None:
    scaler, seen = Wants(8), replace(observed(), executors=None)
    assert move_executors(scaler, seen).plan == seen.plan
    assert scaler.seen == []


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(1, 8))
def test_a_move_takes_the_interval_along_that_batching_gives_it_and_its_prediction(
    size: int, wants: int
) -> None:
    seen = observed(size)
    moved = move_executors(Wants(wants), seen)
    plain = decide(Wants(wants), seen)
    if wants == size:
        assert moved == plain
        return
    state = known(seen.microbatch)
    there = replace(seen, plan=plain.plan, microbatch=replace(state, model=SIZED.on(wants)))
    starting = replace(seen, plan=plain.plan, microbatch=replace(state, unsettled=True))
    asked = starting if wants > size else there
    shorter_ms = min(300.0, batching.decide(asked).plan.interval_ms)
    assert moved.plan == replace(plain.plan, interval_ms=shorter_ms)
    assert moved.predicted_ms == batching.decide(there).predicted_ms


def test_chains_wait_while_executors_move_and_each_backend_has_its_policies() -> None:
    seen = observed()
    assert policies(seen) == (batching.decide, chaining.decide) == order.MICROBATCH
    moving = replace(seen, microbatch=replace(known(seen.microbatch), moving=True))
    assert policies(moving) == (batching.decide,)
    live = replace(seen, microbatch=None, realtime=RealTimeState())
    assert policies(live) == (handover.decide, chaining.decide, tasks.decide)


def test_a_policy_of_the_other_backend_is_refused() -> None:
    plan = Plan(backend=Backend.REALTIME)
    live = Observation(FLOW, plan, (Reading(GOAL),), 1.0, {}, 2, 9, realtime=RealTimeState())
    with pytest.raises(InputError, match="a backend that it knows nothing of"):
        batching.decide(live)
    batches = replace(live, realtime=None, microbatch=MicroBatchState(BatchModel(1.0, 0.0)))
    with pytest.raises(InputError, match="a backend that it knows nothing of"):
        handover.decide(batches)
