"""What the loop promises, on the simulated backend."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.constraint import Constraint
from tailrace.control import Controller, Mode
from tailrace.control.events import BatchFinished, Ended
from tailrace.graph import Graph, Step, Stream, graph
from tailrace.load import Burst, Constant, Frequencies, Keys, Staircase, Uniform, generate
from tailrace.model.microbatch import BatchModel
from tailrace.model.simulator import Plant, StepCost
from tailrace.plan import Plan, first_plan
from tests.simulated import plan_after, simulate, started

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.load import RateProfile
    from tailrace.policy.decision import Impossible
    from tailrace.profile.batch import BatchMeasure
    from tailrace.profile.interval import Verdict


def line(*steps: Step, keyed: str = "") -> Graph:
    """A pipeline without branches, one step of which may be spread by key."""
    ends = ("source", *(step.name for step in steps), "sink")
    streams = tuple(
        Stream(a, b, ("exchange",), ("key",)) if b == keyed else Stream(a, b)
        for a, b in pairwise(ends)
    )
    return graph(steps, streams)


PARSE, SCORE = Step("parse", "x int"), Step("score", "x int")
FLOW = line(PARSE, SCORE)
PLANT = Plant(
    planning_ms=40,
    sink_ms=20,
    steps={"parse": StepCost(0.02), "score": StepCost(0.06, cv=0.5)},
    per_record_ms=0.02,
    per_chain_ms=5,
    noise=0.05,
    restart_ms=300,
)
MODEL = BatchModel(65, 0.1)
"""What the plant does to a batch."""


@dataclass
class Run:
    """A run under control, and what was called impossible as each interval closed."""

    controller: Controller
    impossible: list[tuple[int, tuple[Impossible, ...]]] = field(default_factory=list)
    batches: list[BatchMeasure] = field(default_factory=list)

    @property
    def plan(self) -> Plan:
        return self.controller.plan

    def on_batch(self, batch: BatchMeasure, /) -> Plan:
        self.batches.append(batch)
        seen = len(self.controller.log.history)
        plan = plan_after(self.controller, BatchFinished(batch))
        if len(self.controller.log.history) > seen:
            start_us = self.controller.log.history[-1].start_us
            self.impossible.append((start_us // 5_000_000, self.controller.log.impossible))
        return plan

    @property
    def alarms(self) -> list[tuple[int, Impossible]]:
        """The number of the interval and what was said of it."""
        return [(at, said) for at, every in self.impossible for said in every]

    def verdicts(self, goal: Constraint, until_s: float) -> list[Verdict]:
        """The verdicts on intervals that lie within the load, in order."""
        last_us = until_s * 1e6 - goal.every_ms * 1e3
        mine = (v for v in self.controller.log.verdicts if v.constraint == goal)
        return [verdict for verdict in mine if verdict.start_us <= last_us]

    def shares(self, goal: Constraint, until_s: float) -> NDArray[np.float64]:
        """What was measured over the bound, interval by interval."""
        return np.array([v.value_ms for v in self.verdicts(goal, until_s)]) / goal.bound_ms

    def intervals_ms(self) -> list[float]:
        """The batch interval that each adjustment interval was closed under."""
        return [record.plan.interval_ms for record in self.controller.log.history]

    def chains(self) -> list[tuple[int, int]]:
        """When the chains changed, by number of the interval, and how many there were then."""
        changed = (r for r in self.controller.log.decisions if r.policy == "chaining")
        return [(r.at_us // 5_000_000, len(r.after.chains)) for r in changed]


def run(
    rate: RateProfile,
    *goals: Constraint,
    flow: Graph = FLOW,
    plant: Plant = PLANT,
    start_ms: float = 0.0,
    seed: int = 1,
    keys: Keys = Uniform(1),  # noqa: B008 - a frozen value
    mode: Mode = Mode.ENFORCE,
    most_records: int | None = None,
) -> Run:
    plan = first_plan(flow, start_ms, plant.slots)
    result = Run(started(Controller(flow, goals, mode=mode, most_records=most_records), plan))
    trace = generate(rate, keys=keys, seed=seed)
    simulate(flow, plant, trace, result, np.random.default_rng(seed))
    result.controller.handle(Ended())
    return result


# --- batching --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("bound_ms", [250, 500, 1_500])
@pytest.mark.parametrize("start_ms", [0.0, 520.0, 10_000.0])
def test_five_intervals_are_enough_from_any_start_and_then_the_mean_stays_in_its_band(
    start_ms: float, bound_ms: float, seed: int
) -> None:
    goal = Constraint(bound_ms)
    result = run(Constant(2_000, 180), goal, start_ms=start_ms, seed=seed)
    share = result.shares(goal, 180)[5:]
    assert len(share) == 31
    assert np.mean((share >= 0.7) & (share <= 1.0)) >= 0.95


@pytest.mark.parametrize("most", [300, 600, 1_000])
@pytest.mark.parametrize("told", [True, False])
def test_batches_never_last_so_long_that_a_limited_source_holds_records_back(
    most: int, told: bool
) -> None:
    """The bound alone would allow batches of 2,000 records: the rest waited longer and longer.

    Where nobody says what the source gives, that is found out by what it holds back.
    """
    goal, plant = Constraint(3_000.0), replace(PLANT, most_records=most)
    result = run(Constant(400, 120), goal, plant=plant, most_records=most if told else None)
    share = result.shares(goal, 120)
    assert max(share[0 if told else 8 :]) < 0.5
    settled = result.intervals_ms()[10:-1]
    assert min(settled) == pytest.approx(0.8 * most / 400 * 1e3, rel=0.1)
    changed = [r for r in result.controller.log.decisions if r.at_us > 60e6]
    assert len(changed) <= 1
    *_, last = result.controller.log.decisions
    assert last.reason.startswith(f"The source gives a batch at most {most:,} records, so at ")


@dataclass
class Late(Run):
    """A run of a flow whose records are so old when they reach its source."""

    late_ms: float = 0.0

    def on_batch(self, batch: BatchMeasure, /) -> Plan:
        ages_ms, age_ms = batch.ages_ms.shifted(self.late_ms), batch.age_ms.shifted(self.late_ms)
        return super().on_batch(replace(batch, ages_ms=ages_ms, age_ms=age_ms))


@pytest.mark.parametrize(("late_ms", "bound_ms"), [(3_000, 5_000), (3_000, 1_000)])
def test_records_that_are_late_already_leave_the_flow_the_rest_of_a_bound(
    late_ms: float, bound_ms: float
) -> None:
    """Of a bound that they have used up before, as much as if they had come in time."""
    goal, plan = Constraint(bound_ms), first_plan(FLOW, 0.0, PLANT.slots)
    result = Late(started(Controller(FLOW, (goal,)), plan), late_ms=late_ms)
    trace = generate(Constant(400, 150), seed=1)
    simulate(FLOW, PLANT, trace, result, np.random.default_rng(1))
    settled = [v.value_ms for v in result.verdicts(goal, 150)][12:]
    added_ms, rest_ms = np.mean(settled) - late_ms, bound_ms - min(late_ms, bound_ms)
    assert 0.6 * (rest_ms or bound_ms) < added_ms < (rest_ms or bound_ms)
    assert result.controller.plan.interval_ms > 500
    if rest_ms:
        assert result.alarms == []
        assert max(settled) <= bound_ms
    else:
        (_, said), *_ = result.alarms
        assert said.element == "source"
        assert re.match(r"Records are (2\.9.|3) s old when they reach the source", said.reason)


def test_the_very_first_batch_may_end_an_interval() -> None:
    """As it does on a machine that takes its time to start a query."""
    slow = replace(PLANT, cold=(200.0,))
    result = run(Constant(50, 30), Constraint(20_000.0), plant=slow, start_ms=6_000.0)
    assert result.batches[0].planned_us > 5e6
    assert result.controller.log.history[0].batches == 1


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    fixed_ms=st.floats(20, 150),
    busy=st.floats(0.05, 0.6),
    rate=st.floats(200, 3_000),
    looseness=st.floats(1.4, 12),
    start_ms=st.sampled_from([0.0, 300.0, 10_000.0]),
    seed=st.integers(0, 10**6),
)
def test_whatever_the_plant_the_mean_comes_into_its_band_and_stays(
    *, fixed_ms: float, busy: float, rate: float, looseness: float, start_ms: float, seed: int
) -> None:
    service_ms = busy * 1_000 / rate
    plant = Plant(
        planning_ms=fixed_ms * 0.6,
        sink_ms=fixed_ms * 0.4,
        steps={"parse": StepCost(service_ms * 0.3, cv=0.5), "score": StepCost(service_ms * 0.7)},
        noise=0.05,
    )
    bound_ms = looseness * BatchModel(fixed_ms, service_ms).floor_ms(rate, 5_000, None)
    assume(bound_ms <= 1_500)
    goal = Constraint(bound_ms)
    result = run(Constant(rate, 120), goal, plant=plant, start_ms=start_ms, seed=seed)
    share = result.shares(goal, 120)[6:]
    assert np.mean((share >= 0.7) & (share <= 1.0)) >= 0.94


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("low", "high"), [(1_000, 3_000), (2_000, 6_000)])
def test_a_step_in_the_rate_is_followed_within_three_intervals(
    low: float, high: float, seed: int
) -> None:
    goal = Constraint(600)
    result = run(Burst(low, high, 60, 60, 180), goal, seed=seed)
    share = result.shares(goal, 180)
    for begin in (12, 24):
        settled = share[begin + 3 : begin + 12]
        assert np.all((settled >= 0.7) & (settled <= 1.0))
    expected = [MODEL.longest_interval_ms(0.92 * 600, r, 5_000, None) for r in (high, low)]
    for number, best_ms in zip((20, 32), expected, strict=True):
        assert result.intervals_ms()[number] == pytest.approx(best_ms, rel=0.15)


def test_a_staircase_up_and_down_is_followed_step_by_step() -> None:
    goal = Constraint(500)
    result = run(Staircase(1_000, 7_000, 6, 30), goal)
    share = result.shares(goal, 390)
    for step in range(13):
        settled = share[6 * step + 3 : 6 * step + 6]
        assert np.all((settled >= 0.7) & (settled <= 1.0))
    up, down = (np.array(result.intervals_ms()[first::6][:6]) for first in (5, 41))
    assert np.all(np.diff(up) < 0)
    assert np.all(np.diff(down) >= 0)  # one step may be too little to be worth a change
    assert down[-1] > 1.5 * down[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("at_s", [60, 61, 63])
def test_a_rise_of_the_rate_is_answered_before_its_interval_is_over(at_s: int, seed: int) -> None:
    goal = Constraint(500)
    result = run(Burst(3_000, 5_500, at_s, 60, 150), goal, seed=seed)
    assert np.all(result.shares(goal, 150)[5:] <= 1.0)
    decisions = result.controller.log.decisions
    answers = [r for r in decisions if at_s * 1e6 < r.at_us < (at_s + 2) * 1e6]
    assert answers
    assert answers[0].after.interval_ms < answers[0].before.interval_ms


@pytest.mark.parametrize("seed", range(3))
def test_a_small_rise_is_answered_as_soon_as_it_is_no_chance(seed: int) -> None:
    """A sixth more of few records is what chance may make of one batch, but not of three."""
    plant = Plant(planning_ms=60, sink_ms=40, steps={"parse": StepCost(0.5), "score": StepCost(1)})
    result = run(Burst(400, 470, 60, 60, 150), Constraint(1_000), plant=plant, seed=seed)
    decisions = result.controller.log.decisions
    answers = [r for r in decisions if 60e6 < r.at_us < 65e6]
    assert answers
    assert answers[0].after.interval_ms < answers[0].before.interval_ms


def test_every_interval_has_its_own_verdict_also_where_one_batch_ends_many() -> None:
    """All of them were given to the first, and the others looked as if they had kept the bound."""
    result = run(Burst(3_000, 30_000, 40, 20, 150), Constraint(1_000))
    history = result.controller.log.history
    ended = Counter(
        sum(batch.planned_us >= record.start_us + 5_000_000 for batch in result.batches)
        for record in history
    )
    assert max(ended.values()) > 3  # as many have been ended by the same batch
    assert all(len(record.verdicts) == 1 for record in history)
    assert all(record.verdicts[0].start_us == record.start_us for record in history)


def test_a_rise_is_answered_within_its_interval_also_where_batches_take_seconds() -> None:
    result = run(Burst(3_000, 6_000, 61, 60, 150), Constraint(2_000, every_ms=20_000))
    assert result.intervals_ms()[11] > 2_000
    answers = [r for r in result.controller.log.decisions if 61e6 < r.at_us < 65e6]
    assert answers
    assert answers[0].after.interval_ms < answers[0].before.interval_ms


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("bound_ms", [250, 1_000])
def test_on_a_constant_load_the_interval_does_not_oscillate(bound_ms: float, seed: int) -> None:
    result = run(Constant(2_000, 280), Constraint(bound_ms), seed=seed)
    chosen = result.intervals_ms()[5:55]
    assert len(chosen) == 50
    moves = [after - before for before, after in pairwise(chosen) if after != before]
    assert len(moves) <= 2
    assert not any(one * other < 0 for one, other in pairwise(moves))


def test_of_two_constraints_the_tighter_one_sets_the_interval() -> None:
    loose, tight = Constraint(1_500), Constraint(400)
    both = run(Constant(2_000, 100), loose, tight)
    alone = run(Constant(2_000, 100), tight)
    assert both.intervals_ms()[-1] == pytest.approx(alone.intervals_ms()[-1], rel=0.05)
    for goal in (loose, tight):
        assert np.all(both.shares(goal, 100)[5:] <= 1.0)


@pytest.mark.parametrize("quantile", [0.95, 0.99])
@pytest.mark.parametrize("bound_ms", [350, 900])
def test_a_quantile_is_kept_and_its_room_is_used(bound_ms: float, quantile: float) -> None:
    goal = Constraint(bound_ms, quantile=quantile)
    share = run(Constant(2_000, 150), goal).shares(goal, 150)[5:]
    assert np.mean(share <= 1.0) >= 0.95
    assert np.mean(share >= 0.7) >= 0.95


def test_a_span_shorter_than_the_cycle_is_honoured() -> None:
    goal = Constraint(800, every_ms=300)
    result = run(Constant(2_000, 60), goal)
    share = result.shares(goal, 60)[100:]
    assert np.all(share <= 1.0)
    wider = run(Constant(2_000, 60), replace(goal, every_ms=5_000))
    assert 0 < result.intervals_ms()[-1] <= 300 < wider.intervals_ms()[-1]


def test_without_a_constraint_batches_run_back_to_back() -> None:
    result = run(Constant(2_000, 40), start_ms=700)
    assert result.plan.interval_ms == 0
    for before, after in pairwise(result.batches[-20:]):
        assert after.planned_us - before.ended_us <= PLANT.poll_ms * 1e3


def test_the_saving_is_that_of_the_batches_that_were_not_run() -> None:
    goal = Constraint(500)
    saved = run(Constant(2_000, 120), goal).controller.log.saving
    cycle_ms = MODEL.longest_interval_ms(0.92 * 500, 2_000, 5_000, None)
    assert cycle_ms is not None
    batches = 120_000 / MODEL.cycle_ms(0, 2_000) - 120_000 / cycle_ms
    assert saved.batches == pytest.approx(batches, rel=0.25)
    assert saved.cpu_ms == pytest.approx(saved.batches * 65, rel=0.25)
    assert run(Constant(2_000, 40)).controller.log.saving.batches == 0


# --- chaining --------------------------------------------------------------------------------

HEAVY = Plant(
    planning_ms=30,
    sink_ms=20,
    steps={"parse": StepCost(0.1, cv=0.3), "score": StepCost(0.1, cv=0.3)},
    per_record_ms=0.005,
    per_chain_ms=4,
    noise=0.05,
    restart_ms=300,
)
"""One core carries both of its steps up to 4.9 k/s, and is 90 % busy at 4.5 k/s."""


@pytest.mark.parametrize("seed", range(2))
def test_a_chain_is_split_when_one_core_cannot_carry_it_and_joined_when_it_can(seed: int) -> None:
    goal = Constraint(800)
    result = run(Burst(2_000, 5_200, 60, 60, 180), goal, plant=HEAVY, seed=seed)
    (split_at, split_into), (joined_at, joined_into) = result.chains()
    assert (split_into, joined_into) == (2, 1)
    assert 12 <= split_at <= 14
    assert 24 <= joined_at <= 27
    share = result.shares(goal, 180)
    assert np.all(share[17:24] <= 1.0)
    assert np.all(share[28:] <= 1.0)


def test_chains_are_not_joined_before_they_have_stood_three_intervals() -> None:
    result = run(Burst(2_000, 5_200, 30, 8, 90), Constraint(800), plant=HEAVY)
    (split_at, _), (joined_at, into) = result.chains()
    assert into == 1
    assert joined_at - split_at >= 3


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rate", [4_100, 4_450, 4_600])
def test_near_the_limit_chains_do_not_flap(rate: float, seed: int) -> None:
    result = run(Constant(rate, 200), Constraint(1_500), plant=HEAVY, seed=seed)
    assert len(result.chains()) <= 1


def test_a_chain_without_a_free_slot_stays_whole() -> None:
    result = run(Constant(4_700, 60), Constraint(1_500), plant=replace(HEAVY, slots=1))
    assert not result.chains()
    assert result.plan.chains == (("parse", "score"),)


def test_steps_that_are_equally_busy_are_chained() -> None:
    flow = line(*(Step(name, "x int") for name in "abcd"))
    plant = replace(HEAVY, steps=dict.fromkeys("abcd", StepCost(0.05)), slots=4)
    plan = Plan(0.0, (("a",), ("b",), ("c",), ("d",)))
    controller = started(Controller(flow, (Constraint(800),)), plan)
    trace = generate(Constant(2_000, 60), seed=1)
    simulate(flow, plant, trace, controller, np.random.default_rng(1))
    assert controller.plan.chains == (("a", "b", "c", "d"),)


def test_a_step_that_must_not_be_chained_never_is() -> None:
    flow = line(PARSE, replace(SCORE, chain=False))
    result = run(Burst(1_000, 5_200, 30, 30, 120), Constraint(800), flow=flow, plant=HEAVY)
    assert {record.plan.chains for record in result.controller.log.history} == {
        (("parse",), ("score",))
    }


# --- impossibility ---------------------------------------------------------------------------


def test_a_batch_that_costs_more_than_the_bound_is_said_at_once() -> None:
    for start_ms in (0.0, 500.0):
        result = run(Constant(2_000, 25), Constraint(80), start_ms=start_ms)
        at, said = result.alarms[0]
        assert at <= 2
        assert said.element == "batch"
        assert said.best_ms == pytest.approx(MODEL.floor_ms(2_000, 5_000, None), rel=0.1)
        assert "real-time mode" in said.remedy


APART = line(PARSE, replace(SCORE, chain=False))
SLOW_SCORE = replace(HEAVY, steps={"parse": StepCost(0.02), "score": StepCost(0.3)})


@pytest.mark.parametrize("seed", range(2))
def test_a_step_that_is_saturated_by_itself_is_named_within_three_intervals(seed: int) -> None:
    rate = Burst(2_000, 4_500, 60, 30, 90)
    result = run(rate, Constraint(800), flow=APART, plant=SLOW_SCORE, seed=seed)
    at, said = result.alarms[0]
    assert 12 <= at <= 14
    assert said.element == "score"
    assert said.best_ms == math.inf
    assert "step 'score'" in said.remedy


KEYED = line(PARSE, Step("count", "x int"), keyed="count")
HOT = replace(HEAVY, steps={"parse": StepCost(0.01), "count": StepCost(0.3)}, slots=4)
KEYS = Frequencies({"hot": 0.7, **{f"k{i}": 0.3 / 50 for i in range(50)}})


def test_a_key_that_is_too_much_for_its_partition_is_named_within_three_intervals() -> None:
    rate = Burst(2_000, 6_000, 60, 30, 90)
    for seed in range(3):
        result = run(rate, Constraint(800), flow=KEYED, plant=HOT, keys=KEYS, seed=seed)
        at, said = result.alarms[0]
        assert 12 <= at <= 14
        assert said.element == "key 'hot' of step 'count'"
        assert said.best_ms == math.inf
        assert "cannot split one key" in said.remedy


def test_while_batches_grow_the_same_element_stays_named() -> None:
    for flow, plant, rate in ((APART, SLOW_SCORE, 4_500), (KEYED, HOT, 6_000)):
        load = Burst(2_000, rate, 60, 60, 120)
        result = run(load, Constraint(800), flow=flow, plant=plant, keys=KEYS)
        assert {said.element for _, said in result.alarms} == {result.alarms[0][1].element}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("cold", [(), (8.0, 4.0, 2.0, 1.5), (10.0, 6.0, 4.0, 3.0, 2.0, 1.5)])
@pytest.mark.parametrize("start_ms", [0.0, 10_000.0])
def test_a_constraint_that_can_be_kept_is_never_called_impossible(
    start_ms: float, cold: tuple[float, ...], seed: int
) -> None:
    plant = replace(PLANT, cold=cold)
    for bound_ms in (200, 600):
        goal = Constraint(bound_ms)
        result = run(Constant(2_000, 45), goal, plant=plant, start_ms=start_ms, seed=seed)
        assert not result.alarms


SLOW = replace(PLANT, planning_ms=4_000, noise=0.02)
"""Whose batches take four seconds, however few records they hold."""


@pytest.mark.parametrize("cold", [(), (1.5,)])
@pytest.mark.parametrize("seconds", [10, 15, 20])
def test_a_bound_that_a_short_run_misses_by_far_throughout_is_named(
    seconds: float, cold: tuple[float, ...]
) -> None:
    goal = Constraint(100)
    result = run(Constant(100, seconds), goal, plant=replace(SLOW, cold=cold))
    assert len(result.batches) <= 6
    assert all(v.value_ms > 20 * goal.bound_ms for v in result.controller.log.verdicts)
    (said,) = result.controller.log.impossible
    assert said.constraint == goal
    assert said.element == "batch"
    assert said.provisional == (seconds < 20)  # after that it was found twice in a row


def test_a_load_beyond_all_cores_is_named_in_a_short_run_too() -> None:
    plant = replace(PLANT, steps={"parse": StepCost(0.02), "score": StepCost(20.0)})
    result = run(Constant(300, 20), Constraint(500), plant=plant)
    (said,) = result.controller.log.impossible
    assert said.element == "score"


def test_what_a_longer_run_shows_is_sure() -> None:
    (said,) = run(Constant(100, 120), Constraint(100), plant=SLOW).controller.log.impossible
    assert not said.provisional


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("cold", [(40.0,), (60.0, 5.0, 2.0), (80.0, 30.0, 10.0, 4.0, 2.0)])
@pytest.mark.parametrize("seconds", [5, 10, 15, 30])
@pytest.mark.parametrize("rate", [100, 6_000])
def test_a_cold_start_that_misses_by_far_and_recovers_is_never_called_impossible(
    rate: float, seconds: float, cold: tuple[float, ...], seed: int
) -> None:
    result = run(
        Constant(rate, seconds), Constraint(400), plant=replace(PLANT, cold=cold), seed=seed
    )
    assert not result.alarms
    assert result.controller.log.impossible == ()


def test_a_load_that_a_split_can_carry_is_not_called_impossible() -> None:
    result = run(Burst(2_000, 5_200, 60, 60, 150), Constraint(800), plant=HEAVY)
    assert result.chains()
    assert not result.alarms


# --- modes -----------------------------------------------------------------------------------


def test_advice_is_logged_and_changes_nothing() -> None:
    result = run(Constant(2_000, 60), Constraint(500), mode=Mode.ADVISE)
    assert result.controller.log.decisions
    assert not any(record.applied for record in result.controller.log.decisions)
    assert all(record.realised_ms is None for record in result.controller.log.decisions)
    first = first_plan(FLOW, 0.0, PLANT.slots)
    assert all(record.plan == first for record in result.controller.log.history)


def test_the_same_advice_is_not_given_again_every_interval() -> None:
    result = run(Constant(2_000, 120), Constraint(500), mode=Mode.ADVISE)
    assert len(result.controller.log.history) > 20
    assert len(result.controller.log.decisions) <= 5


def test_an_observer_decides_nothing_and_still_judges() -> None:
    goal = Constraint(80)
    result = run(Constant(2_000, 60), goal, mode=Mode.OBSERVE, start_ms=300)
    assert not result.controller.log.decisions
    assert result.plan.interval_ms == 300
    assert len(result.verdicts(goal, 60)) == 12
    assert result.alarms


# --- the record ------------------------------------------------------------------------------


@pytest.mark.parametrize("goal", [Constraint(500), Constraint(900, quantile=0.99)])
@pytest.mark.parametrize("seed", range(2))
def test_what_a_decision_brought_is_near_to_what_it_predicted(goal: Constraint, seed: int) -> None:
    result = run(Burst(1_000, 3_000, 60, 60, 180), goal, seed=seed)
    scored = [r for r in result.controller.log.decisions if r.realised_ms is not None]
    assert len(scored) >= 3
    for record in scored:
        assert record.constraint == goal
        assert record.realised_ms == pytest.approx(record.predicted_ms, rel=0.2)


def test_a_decision_that_did_not_last_an_interval_is_not_scored() -> None:
    result = run(Constant(2_000, 60), Constraint(500))
    first, second = result.controller.log.decisions
    assert first.realised_ms is None
    assert second.at_us - first.at_us < 6_000_000
    assert second.realised_ms == pytest.approx(460, rel=0.1)


def test_every_reason_is_one_sentence() -> None:
    split = run(Burst(2_000, 5_200, 60, 30, 150), Constraint(800), plant=HEAVY)
    hopeless = run(Constant(2_000, 30), Constraint(80), start_ms=500)
    records = (*split.controller.log.decisions, *hopeless.controller.log.decisions)
    assert {record.policy for record in records} == {"batching", "chaining"}
    for reason in (record.reason for record in records):
        assert reason.endswith(".")
        assert ". " not in reason
        assert "\n" not in reason
        assert reason[0].isupper()


@pytest.mark.parametrize("plant", [PLANT, replace(HEAVY, source_partitions=3)])
def test_the_breakdown_of_every_interval_adds_up_to_its_mean(plant: Plant) -> None:
    result = run(Burst(1_000, 3_000, 20, 20, 60), Constraint(500), plant=plant)
    assert len(result.controller.log.history) >= 12
    for record in result.controller.log.history:
        parts = record.breakdown_ms
        mean_ms = record.latency_ms.mean
        assert sum(parts.values()) == pytest.approx(mean_ms, rel=0.01)
        assert min(parts.values()) >= -0.01 * mean_ms


def test_every_verdict_is_in_the_history_once() -> None:
    goals = (Constraint(500), Constraint(900, every_ms=2_000, quantile=0.99))
    result = run(Constant(1_000, 60), *goals)
    listed = [verdict for record in result.controller.log.history for verdict in record.verdicts]
    assert listed == result.controller.log.verdicts
