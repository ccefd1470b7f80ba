"""Which constraints are called impossible, what is blamed, and whether the remedy is true."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.constraint import SINK, SOURCE, Constraint
from tailrace.graph import Graph, Step, Stream, graph
from tailrace.model.microbatch import BatchModel
from tailrace.plan import Plan
from tailrace.policy.decision import MicroBatchState, Observation, Reading, StepLoad, known
from tailrace.policy.feasibility import assess, persists
from tailrace.units import duration_ms, rate_per_s


def line(scale: tuple[int, int] | None = None) -> Graph:
    steps = (Step("parse", "x int"), Step("score", "x int", scale=scale))
    names = (SOURCE, "parse", "score", SINK)
    return graph(steps, tuple(Stream(a, b) for a, b in pairwise(names)))


def load(utilisation: float, partitions: int = 2, service_ms: float = 1.0) -> StepLoad:
    return StepLoad(1_000, service_ms, utilisation, utilisation, partitions)


LIGHT, HEAVY = load(0.1), load(0.7)


def observed(
    goal: Constraint,
    model: BatchModel,
    rate: float = 1_000,
    *,
    fixed_ms: float = 0.0,
    flow: Graph | None = None,
    steps: dict[str, StepLoad] | None = None,
    slots: int = 2,
) -> Observation:
    loads = {"parse": LIGHT, "score": HEAVY} if steps is None else steps
    readings = (Reading(goal, None, fixed_ms),)
    batches = MicroBatchState(model)
    return Observation(flow or line(), Plan(), readings, rate, loads, slots, 9, microbatch=batches)


def but(observation: Observation, **batches: Any) -> Observation:
    """The same, but for something of its batches."""
    return replace(observation, microbatch=replace(known(observation.microbatch), **batches))


def test_a_bound_that_can_be_kept_is_not_impossible() -> None:
    assert assess(observed(Constraint(500), BatchModel(100, 0.3))) == ()


def test_a_bound_below_the_fixed_cost_of_a_batch_blames_the_batch() -> None:
    (found,) = assess(observed(Constraint(100), BatchModel(90, 0.1)))
    assert found.element == "batch"
    assert found.best_ms == pytest.approx(1.5 * 90 / 0.9, rel=0.02)
    assert found.reason.startswith("A batch costs 90 ms before its first record")
    assert "real-time mode" in found.remedy


@settings(max_examples=80, deadline=None)
@given(
    st.floats(5, 300),
    st.floats(0, 1.5),
    st.floats(50, 2_000),
    st.one_of(st.none(), st.floats(0.1, 0.99)),
    st.floats(0.5, 2.5),
)
def test_impossible_means_that_no_interval_at_all_keeps_the_bound(
    fixed_ms: float, busy: float, bound_ms: float, quantile: float | None, ratio: float
) -> None:
    model, goal = BatchModel(fixed_ms, busy), Constraint(bound_ms, quantile=quantile)
    seen = but(observed(goal, model), latency_ratio=ratio)
    trusted = 1.0 if 0.8 <= ratio <= 1 else min(ratio, 2.0) if ratio > 1 else max(ratio / 0.8, 0.8)
    values = [
        trusted * model.latency_ms(interval_ms, 1_000, goal.every_ms, quantile)
        for interval_ms in (0.0, 1.0, 10.0, 100.0, 1_000.0)
    ]
    assert bool(assess(seen)) == (min(values) > bound_ms)


def test_more_work_than_time_blames_the_busiest_step_and_says_what_it_needs() -> None:
    (found,) = assess(observed(Constraint(500), BatchModel(50, 1.3)))
    assert found.element == "score"
    assert found.best_ms == math.inf
    assert "130% busy" in found.reason
    assert "batches grow without end" in found.reason
    partitions = re.search(r"about (\d+) partitions", found.remedy)
    assert partitions is not None
    assert partitions[1] == "4"


def test_the_rate_and_the_partitions_of_the_remedy_would_keep_the_bound() -> None:
    model, goal = BatchModel(100, 0.8), Constraint(400)
    (found,) = assess(observed(goal, model))
    assert found.element == "score"
    rate = re.search(r"send at most (.+)\.", found.remedy)
    partitions = re.search(r"about (\d+) partitions", found.remedy)
    assert rate is not None
    assert partitions is not None
    highest = rate_per_s(rate[1])
    assert model.floor_ms(highest * 0.99, 5_000, None) <= 400
    assert model.floor_ms(highest * 1.02, 5_000, None) > 400
    spread_out = BatchModel(100, 0.8 * 2 / int(partitions[1]))
    assert spread_out.floor_ms(1_000, 5_000, None) <= 400


def test_the_looser_bound_of_the_remedy_can_be_kept() -> None:
    seen = observed(Constraint(160), BatchModel(100, 0.3))
    (found,) = assess(seen)
    assert found.element == "batch"
    looser = re.search(r"at least (\S+ \w+)", found.remedy)
    assert looser is not None
    bound_ms = duration_ms(looser[1]) * 1.005
    assert assess(replace(seen, readings=(Reading(Constraint(bound_ms), None, 0.0),))) == ()


def test_a_key_that_fills_its_partition_is_blamed_since_partitions_cannot_split_it() -> None:
    hot = StepLoad(1_000, 1.0, 0.95, 0.5, 2, "DE", 0.9)
    (found,) = assess(observed(Constraint(500), BatchModel(50, 1.2), steps={"score": hot}))
    assert found.element == "key 'DE' of step 'score'"
    assert "90% of the records" in found.reason
    assert "cannot split one key" in found.remedy


def test_a_key_that_is_only_a_part_of_its_partition_is_not_blamed() -> None:
    mild = StepLoad(1_000, 1.0, 0.95, 0.9, 2, "DE", 0.2)
    (found,) = assess(observed(Constraint(500), BatchModel(50, 1.2), steps={"score": mild}))
    assert found.element == "score"


def test_while_a_step_can_still_be_scaled_nothing_is_impossible_yet() -> None:
    goal, model = Constraint(500), BatchModel(50, 1.3)
    assert assess(observed(goal, model, flow=line((1, 16)), slots=16)) == ()
    assert assess(observed(goal, model, flow=line((1, 16)), slots=2)) != ()
    assert assess(observed(goal, model, flow=line((1, 2)), slots=16)) != ()


def test_a_scale_that_does_not_reach_far_enough_is_impossible_at_once() -> None:
    seen = observed(Constraint(500), BatchModel(50, 9.0), flow=line((1, 4)), slots=16)
    (found,) = assess(seen)
    assert found.element == "score"
    assert found.best_ms == math.inf


def test_scaling_cannot_help_a_hot_key() -> None:
    hot = StepLoad(1_000, 1.0, 0.95, 0.5, 2, "DE", 0.9)
    seen = observed(
        Constraint(500), BatchModel(50, 1.2), flow=line((1, 16)), steps={"score": hot}, slots=16
    )
    (found,) = assess(seen)
    assert found.element == "key 'DE' of step 'score'"


def test_a_step_on_one_partition_is_blamed_before_one_that_is_spread_over_many() -> None:
    steps = {"parse": load(0.3, partitions=8), "score": load(0.65, partitions=1)}
    (found,) = assess(observed(Constraint(500), BatchModel(50, 1.2), steps=steps, slots=8))
    assert found.element == "score"
    (found,) = assess(observed(Constraint(500), BatchModel(50, 1.2), steps=steps, slots=2))
    assert found.element == "parse"


def test_work_that_is_not_in_any_step_is_blamed_on_the_source() -> None:
    for steps in ({}, {"parse": load(0.05), "score": load(0.1)}):
        (found,) = assess(observed(Constraint(500), BatchModel(50, 1.2), steps=steps))
        assert found.element == "source"


def test_a_path_of_steps_whose_own_time_is_too_long_blames_the_slowest_of_them() -> None:
    steps = {"parse": load(0.1, service_ms=2.0), "score": load(0.1, service_ms=30.0)}
    goal = Constraint(20, path=("parse", "score"))
    (found,) = assess(observed(goal, BatchModel(50, 0.1), fixed_ms=32, steps=steps))
    assert found.element == "score"
    assert found.best_ms == 32
    assert found.remedy == "Make step 'score' faster, or loosen the bound to at least 32 ms."
    assert assess(observed(goal, BatchModel(50, 0.1), fixed_ms=19, steps=steps)) == ()


def test_each_constraint_is_judged_by_itself() -> None:
    seen = observed(Constraint(100), BatchModel(90, 0.1))
    loose = Reading(Constraint(1_000), None, 0.0)
    found = assess(replace(seen, readings=(*seen.readings, loose)))
    assert [impossible.constraint.bound_ms for impossible in found] == [100]


@pytest.mark.parametrize("most", [20, 60, None])
def test_a_source_that_gives_too_few_records_to_a_batch_is_named(most: int | None) -> None:
    """Batches of 20 take 67 ms, which is 300 a second, however little each record takes."""
    goal, model = Constraint(3_000), BatchModel(65, 0.1)
    seen = but(observed(goal, model, 400, steps={}), most_records=most)
    found = assess(seen)
    if most != 20:
        assert found == ()
        return
    (impossible,) = found
    assert impossible.element == SOURCE
    assert "at most 20 records, with which no more than 299 /s get through" in impossible.reason
    slower = rate_per_s(re.findall(r"send at most (.*)\.", impossible.remedy)[0])
    assert assess(replace(seen, rate_per_s=0.99 * slower)) == ()


def test_a_limit_of_the_source_is_not_blamed_for_too_much_work() -> None:
    heavy = observed(Constraint(3_000), BatchModel(65, 3.0), 400)
    (found,) = assess(but(heavy, most_records=20))
    assert found.element == "score"


@pytest.mark.parametrize(
    ("values_ms", "does"),
    [
        ([], False),
        ([900.0], False),
        ([900.0, 900.0], True),
        ([900.0, 4_000.0], True),  # it grows
        ([900.0, 100.0], False),  # not all of them
        ([4_000.0, 3_200.0, 2_500.0], False),  # it comes down
        ([900.0, 950.0, 880.0], True),  # chance
    ],
)
def test_a_series_persists_if_it_stays_above_its_floor_and_does_not_come_down(
    values_ms: list[float], does: bool
) -> None:
    assert persists(values_ms, 400.0) is does


def test_no_bound_without_end_is_recommended() -> None:
    (found,) = assess(observed(Constraint(400), BatchModel(5_000, 0.6), rate=2_000))
    assert found.element == "batch"
    assert math.isinf(found.best_ms)
    assert "inf" not in f"{found.reason} {found.remedy}"
