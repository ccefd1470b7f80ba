"""The simulated backend, against closed forms and against simulations by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.graph import Graph, Step, Stream, graph
from tailrace.load import Constant, Frequencies, Trace, Uniform, generate
from tailrace.model.microbatch import BatchModel
from tailrace.model.simulator import Plant, StepCost
from tailrace.plan import Plan
from tailrace.profile.moments import Moments
from tests.simulated import simulate

if TYPE_CHECKING:
    from tailrace.profile.batch import BatchMeasure


class Always:
    """A driver that keeps one plan, or goes through a list of them, batch by batch."""

    def __init__(self, *plans: Plan) -> None:
        self.plan, self.rest = plans[0], list(plans[1:])

    def on_batch(self, batch: BatchMeasure, /) -> Plan:
        assert batch.plan == self.plan
        self.plan = self.rest.pop(0) if self.rest else self.plan
        return self.plan


def line(*names: str, keyed: str = "") -> Graph:
    """A pipeline without branches, one step of which may be spread by key."""
    ends = ("source", *names, "sink")
    streams = tuple(
        Stream(a, b, ("exchange",), ("key",)) if b == keyed else Stream(a, b)
        for a, b in pairwise(ends)
    )
    return graph(tuple(Step(name, "x int") for name in names), streams)


def dues(*due_ms: float) -> Trace:
    due_us = np.array([round(ms * 1e3) for ms in due_ms], np.int64)
    none = np.zeros(len(due_us), np.int32)
    return Trace(due_us, none, none, ("0",))


def even(rate_per_s: float, seconds: float) -> Trace:
    return generate(Constant(rate_per_s, seconds), arrivals="even")


ONE = line("work")
PLANT = Plant(
    planning_ms=30,
    sink_ms=20,
    steps={"work": StepCost(0.1)},
    per_record_ms=0.05,
    per_chain_ms=10,
)
MODEL = BatchModel(60, 0.15)


def whole(interval_ms: float) -> Plan:
    return Plan(interval_ms, (("work",),))


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def mean_latency_ms(batches: list[BatchMeasure]) -> float:
    ages = (b.age_ms.shifted((b.ended_us - b.handed_us) / 1e3) for b in batches)
    return Moments.merged(ages).mean


def test_a_batch_takes_its_fixed_cost_and_the_cost_of_its_records() -> None:
    batches = simulate(ONE, PLANT, even(2_000, 20), Always(whole(500)), rng())
    assert len(batches) > 30
    for batch in batches:
        assert batch.duration_ms == pytest.approx(MODEL.duration_ms(batch.records), abs=0.01)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([0.0, 100.0, 400.0, 1_000.0]), st.floats(200, 5_000))
def test_the_latency_of_a_steady_load_is_that_of_the_batch_model(
    interval_ms: float, rate: float
) -> None:
    batches = simulate(ONE, PLANT, even(rate, 30), Always(whole(interval_ms)), rng())
    later = [batch for batch in batches if 10e6 < batch.planned_us < 29e6]
    expected_ms = MODEL.latency_ms(interval_ms, rate, 1e9, None)
    assert mean_latency_ms(later) == pytest.approx(expected_ms, rel=0.03)


def test_batches_are_cut_when_the_interval_has_passed_and_the_one_before_is_done() -> None:
    noisy = replace(PLANT, noise=0.6)
    batches = simulate(ONE, noisy, even(2_000, 30), Always(whole(130)), rng())
    late = 0
    for before, after in pairwise(batches):
        assert after.planned_us == max(before.planned_us + 130_000, before.ended_us)
        late += after.planned_us > before.planned_us + 130_000
    assert 0 < late < len(batches)


def test_a_batch_takes_no_more_records_than_it_may_and_leaves_none_behind() -> None:
    trace, slow = even(2_000, 5), replace(PLANT, steps={"work": StepCost(1.0)}, most_records=300)
    sizes = [batch.records for batch in simulate(ONE, slow, trace, Always(whole(130)), rng())]
    assert sum(sizes) == len(trace)
    assert max(sizes) == 300
    assert sizes.count(300) > len(sizes) / 2


def test_every_record_is_in_one_batch_with_its_own_age() -> None:
    trace = generate(Constant(1_500, 10), seed=3)
    batches = simulate(ONE, PLANT, trace, Always(whole(300)), rng())
    assert sum(batch.records for batch in batches) == len(trace)
    first = 0
    for batch in batches:
        due_us = trace.due_us[first : first + batch.records]
        assert due_us[-1] <= batch.planned_us
        assert batch.age_ms.mean == pytest.approx(np.mean(batch.handed_us - due_us) / 1e3)
        assert batch.ages_ms.count == batch.records
        first += batch.records
        assert first == len(trace) or trace.due_us[first] > batch.planned_us


@settings(max_examples=25, deadline=None)
@given(
    noise=st.floats(0, 0.5),
    partitions=st.integers(1, 7),
    slots=st.integers(1, 4),
    interval_ms=st.floats(0, 800),
    split=st.booleans(),
)
def test_the_times_of_a_batch_are_in_order(
    *, noise: float, partitions: int, slots: int, interval_ms: float, split: bool
) -> None:
    flow = line("a", "b", keyed="b")
    plant = Plant(
        planning_ms=20,
        sink_ms=5,
        steps={"a": StepCost(0.1, cv=1.0), "b": StepCost(0.2, selectivity=0.5)},
        slots=slots,
        source_partitions=partitions,
        noise=noise,
    )
    flow = flow if split else line("a", "b")
    chains = (("a",), ("b",)) if split else (("a", "b"),)
    trace = generate(Constant(800, 4), keys=Uniform(9), seed=2)
    for batch in simulate(flow, plant, trace, Always(Plan(interval_ms, chains)), rng()):
        times = (
            batch.planned_us,
            batch.handed_us,
            batch.submitted_us,
            batch.started_us,
            batch.computed_us,
            batch.ended_us,
        )
        assert list(times) == sorted(times)
        done_ms = (batch.computed_us - batch.handed_us) / 1e3 + 0.01
        a, b = batch.steps["a"], batch.steps["b"]
        assert 0 <= a.entered_ms <= a.left_ms <= b.entered_ms + 1e-6 <= b.left_ms + 1e-6
        assert b.left_ms <= done_ms


def test_the_same_generator_gives_the_same_run() -> None:
    noisy = replace(PLANT, noise=0.2, steps={"work": StepCost(0.1, cv=0.7)})
    ends = [
        [b.ended_us for b in simulate(ONE, noisy, even(900, 10), Always(whole(200)), r)]
        for r in (rng(), rng(), np.random.default_rng(6))
    ]
    assert ends[0] == ends[1] != ends[2]


def test_without_records_nothing_is_cut_until_the_next_look_finds_some() -> None:
    trace = dues(10, 20, 3_001, 9_500)
    cuts = [b.planned_us / 1e3 for b in simulate(ONE, PLANT, trace, Always(whole(500)), rng())]
    assert cuts == [500, 3_500, 9_500]
    back_to_back = simulate(ONE, PLANT, trace, Always(whole(0)), rng())
    assert back_to_back[0].planned_us == 10_000
    for batch, due_ms in zip(back_to_back[2:], (3_001, 9_500), strict=True):
        assert 0 <= batch.planned_us / 1e3 - due_ms < PLANT.poll_ms


def test_nothing_is_cut_after_the_time_that_is_given() -> None:
    batches = simulate(ONE, PLANT, even(500, 20), Always(whole(300)), rng(), until_us=5_000_000)
    assert 4_700_000 <= batches[-1].planned_us <= 5_000_000


def test_tasks_beyond_the_slots_wait_for_one_that_is_free() -> None:
    plant = replace(PLANT, source_partitions=5, slots=2, per_record_ms=0, per_chain_ms=0)
    (batch,) = simulate(ONE, plant, even(1_000, 0.5), Always(whole(600)), rng())
    task_ms = 100 * 0.1
    assert (batch.computed_us - batch.submitted_us) / 1e3 == pytest.approx(3 * task_ms)
    starts_ms = np.mean([0, 0, 1, 1, 2]) * task_ms
    assert (batch.started_us - batch.submitted_us) / 1e3 == pytest.approx(starts_ms)
    assert batch.steps["work"].busy_ms == pytest.approx(dict.fromkeys(range(5), task_ms))


TWO = line("a", "b")


def tasks_ms(plant: Plant, chains: tuple[tuple[str, ...], ...], records: int) -> float:
    trace = dues(*np.linspace(1, 90, records))
    (batch,) = simulate(TWO, plant, trace, Always(Plan(100, chains)), rng(), until_us=150_000)
    return (batch.computed_us - batch.submitted_us) / 1e3


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 900), st.integers(1, 200), st.floats(0.01, 1), st.floats(0.01, 1))
def test_split_chains_work_side_by_side_as_a_flow_shop(
    records: int, arrow_records: int, a_ms: float, b_ms: float
) -> None:
    costs = {"a": StepCost(a_ms), "b": StepCost(b_ms)}
    plant = Plant(planning_ms=0, sink_ms=0, steps=costs, slots=2, arrow_records=arrow_records)
    batches = -(-records // arrow_records)
    first_ms = second_ms = 0.0
    for _ in range(batches):
        first_ms += a_ms * records / batches
        second_ms = max(first_ms, second_ms) + b_ms * records / batches
    assert tasks_ms(plant, (("a",), ("b",)), records) == pytest.approx(second_ms, abs=0.01)
    together_ms = (a_ms + b_ms) * records
    assert tasks_ms(plant, (("a", "b"),), records) == pytest.approx(together_ms, abs=0.01)


def test_a_split_gains_nothing_without_a_free_slot_and_costs_a_hand_over() -> None:
    costs = {"a": StepCost(0.1), "b": StepCost(0.1)}
    plant = Plant(planning_ms=0, sink_ms=0, steps=costs, per_chain_ms=7, arrow_records=10)
    split, joined = (("a",), ("b",)), (("a", "b"),)
    for busy in (replace(plant, slots=1), replace(plant, slots=2, source_partitions=2)):
        gain_ms = tasks_ms(busy, joined, 400) - tasks_ms(busy, split, 400)
        assert gain_ms == pytest.approx(-7)
    free = replace(plant, slots=2)
    assert tasks_ms(free, split, 400) < 0.7 * tasks_ms(free, joined, 400)


def test_a_keyed_step_sends_each_key_to_one_partition_and_counts_its_keys() -> None:
    flow = line("a", "b", keyed="b")
    costs = {"a": StepCost(0.01), "b": StepCost(0.2)}
    plant = Plant(planning_ms=10, sink_ms=10, steps=costs, slots=3)
    keys = Frequencies({"hot": 0.7, "warm": 0.2, "cold": 0.1})
    trace = generate(Constant(1_000, 2), keys=keys, seed=1)
    plan = Plan(2_500, (("a",), ("b",)), {"b": 8})
    (batch,) = simulate(flow, plant, trace, Always(plan), rng())
    counts = Counter(trace.key_names[k] for k in trace.key)
    step = batch.steps["b"]
    assert step.keys == dict(counts)
    assert sorted(step.busy_ms.values()) == pytest.approx(sorted(c * 0.2 for c in counts.values()))
    assert not batch.steps["a"].keys
    assert (batch.computed_us - batch.submitted_us) / 1e3 >= counts["hot"] * 0.2


def test_a_step_with_partitions_of_its_own_spreads_its_work_over_them() -> None:
    costs = {"a": StepCost(0.01), "b": StepCost(0.2)}
    plant = Plant(planning_ms=10, sink_ms=10, steps=costs, slots=4)
    plan = Plan(1_000, (("a",), ("b",)), {"b": 4})
    (batch,) = simulate(TWO, plant, even(1_000, 0.8), Always(plan), rng())
    assert batch.steps["b"].busy_ms == pytest.approx(dict.fromkeys(range(4), 40.0))
    assert list(batch.steps["a"].busy_ms) == [0]
    assert (batch.computed_us - batch.submitted_us) / 1e3 == pytest.approx(8 + 40, abs=0.01)


@pytest.mark.parametrize("selectivity", [0.0, 0.3, 1.0, 2.5])
def test_what_leaves_a_step_enters_the_next(selectivity: float) -> None:
    costs = {"a": StepCost(0.01, selectivity=selectivity), "b": StepCost(0.01)}
    plant = Plant(planning_ms=10, sink_ms=10, steps=costs)
    plan = Plan(1_000, (("a", "b"),))
    batches = simulate(TWO, plant, even(2_000, 20), Always(plan), rng())
    out = sum(batch.steps["a"].records_out for batch in batches)
    assert out == sum(batch.steps["b"].records_in for batch in batches)
    assert out == pytest.approx(selectivity * 40_000, rel=0.02)


def test_both_branches_of_a_fork_see_every_record() -> None:
    steps = (Step("a", "x int"), Step("b", "x int"), Step("c", "x int"))
    streams = (
        Stream("source", "a"),
        Stream("a", "b"),
        Stream("a", "c"),
        Stream("b", "sink:b"),
        Stream("c", "sink:c"),
    )
    flow = graph(steps, streams)
    plant = Plant(planning_ms=10, sink_ms=10, steps=dict.fromkeys("abc", StepCost(0.05)))
    plan = Plan(1_000, flow.primary_chains())
    (batch,) = simulate(flow, plant, even(500, 0.8), Always(plan), rng())
    assert [batch.steps[name].records_in for name in "abc"] == [400, 400, 400]
    assert (batch.computed_us - batch.submitted_us) / 1e3 == pytest.approx(3 * 20, abs=0.01)


def test_service_times_have_the_mean_and_the_variation_that_were_asked_for() -> None:
    plant = replace(PLANT, steps={"work": StepCost(0.2, cv=0.8)})
    batches = simulate(ONE, plant, even(2_000, 20), Always(whole(1_000)), rng())
    service = Moments.merged(batch.steps["work"].service_ms for batch in batches)
    assert service.mean == pytest.approx(0.2, rel=0.02)
    assert service.deviation / service.mean == pytest.approx(0.8, rel=0.03)
    busy_ms = sum(sum(batch.steps["work"].busy_ms.values()) for batch in batches)
    assert busy_ms == pytest.approx(service.mean * service.count)


def test_the_noise_of_batches_has_the_variation_that_was_asked_for() -> None:
    noisy = replace(PLANT, noise=0.15)
    batches = simulate(ONE, noisy, even(500, 400), Always(whole(300)), rng())
    ratios = np.array([b.duration_ms / MODEL.duration_ms(b.records) for b in batches])
    assert ratios.mean() == pytest.approx(1, abs=0.02)
    assert ratios.std() == pytest.approx(0.15, rel=0.1)


def test_the_engine_is_slower_in_the_first_batches_and_the_steps_are_not() -> None:
    cold = replace(PLANT, cold=(8.0, 3.0))
    batches = simulate(ONE, cold, even(100, 5), Always(whole(1_000)), rng())
    for batch, factor in zip(batches, (8, 3, 1, 1), strict=False):
        expected_ms = factor * (60 + 0.05 * batch.records) + 0.1 * batch.records
        assert batch.duration_ms == pytest.approx(expected_ms, abs=0.01)


def test_the_engine_is_slower_while_executors_start_on_its_machine() -> None:
    sharing = replace(PLANT, start_ms=2_000, starting=3.0)
    one, two = replace(whole(1_000), executors=1), replace(whole(1_000), executors=2)
    batches = simulate(ONE, sharing, even(100, 6), Always(one, two, two, two, two), rng())
    for batch, factor in zip(batches, (1, 3, 3, 1, 1), strict=False):
        expected_ms = factor * (60 + 0.05 * batch.records) + 0.1 * batch.records
        assert batch.duration_ms == pytest.approx(expected_ms, abs=0.01)
    assert [batch.slots for batch in batches[:5]] == [1, 1, 1, 2, 2]


def test_every_task_beyond_the_first_of_a_stage_takes_its_time_to_launch() -> None:
    wide = replace(whole(1_000), partitions={ONE.names[0]: 3})
    few, many = (
        simulate(ONE, replace(PLANT, per_task_ms=ms, slots=3), even(90, 3), Always(wide), rng())
        for ms in (0.0, 2.5)
    )
    for before, after in zip(few, many, strict=True):
        assert after.duration_ms - before.duration_ms == pytest.approx(2 * 2.5, abs=0.01)


def test_a_change_of_chains_costs_a_restart_and_a_change_of_interval_does_not() -> None:
    plant = Plant(
        planning_ms=30,
        sink_ms=30,
        steps={"a": StepCost(0.1), "b": StepCost(0.1)},
        restart_ms=400,
    )
    joined, split = (("a", "b"),), (("a",), ("b",))
    plans = [Plan(200, joined), Plan(100, joined), Plan(100, split), Plan(100, split)]
    batches = simulate(TWO, plant, even(100, 3), Always(*plans), rng())
    gaps_ms = [(b.planned_us - a.planned_us) / 1e3 for a, b in pairwise(batches)]
    assert gaps_ms[0] == 100
    assert gaps_ms[1] == pytest.approx(batches[1].duration_ms + 400)
    assert gaps_ms[2] == 100


def test_a_step_without_a_cost_is_refused() -> None:
    with pytest.raises(InputError, match="no cost for step 'b'"):
        simulate(TWO, replace(PLANT, steps={"a": StepCost(1)}), dues(0), Always(Plan()), rng())


def test_a_plan_that_leaves_a_step_out_is_refused() -> None:
    with pytest.raises(InputError, match="every step of the flow exactly once"):
        simulate(ONE, PLANT, dues(0), Always(Plan()), rng())


@pytest.mark.parametrize(
    "wrong",
    [{"slots": 0}, {"poll_ms": 0}, {"noise": -1}, {"cold": (-2.0,)}, {"most_records": 0}],
)
def test_a_plant_that_cannot_run_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="plant"):
        replace(PLANT, **wrong)


@pytest.mark.parametrize("wrong", [{"service_ms": -1.0}, {"cv": float("nan")}])
def test_a_step_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="finite numbers from 0 up"):
        replace(StepCost(1.0), **wrong)
