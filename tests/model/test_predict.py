"""Predictions: from the profile of one simulated run to the outcome of another, and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulation.batchruns import hand_overs
from tailrace.control.recording import Recording
from tailrace.errors import InputError
from tailrace.graph import Step, Stream, graph
from tailrace.load import Constant, generate
from tailrace.load.keys import Frequencies
from tailrace.model.loads import Router
from tailrace.model.microbatch import BatchModel
from tailrace.model.outcome_microbatch import Cycle
from tailrace.model.predict import predict
from tailrace.model.realtime import FlowModel, HandOver, HandOverModel
from tailrace.model.score import (
    LEAST_MS,
    NINE_IN_TEN,
    PRIOR_GUESSED,
    PRIOR_KNOWN,
    PRIOR_SCORES,
    Accuracy,
    Score,
)
from tailrace.model.simulator import Plant, StepCost
from tailrace.outside import MOST_MS
from tailrace.plan import Backend, Plan
from tailrace.profile.costs import BatchCosts, HandOverCosts
from tailrace.profile.interval import Intervals
from tailrace.profile.profile import Profile, StepProfile
from tests.simulated import simulate

if TYPE_CHECKING:
    from tailrace.graph import Graph
    from tailrace.profile.batch import BatchMeasure

LINE = graph(
    (Step("parse", "x int"), Step("score", "x int", scale=(1, 16))),
    (Stream("source", "parse"), Stream("parse", "score"), Stream("score", "sink")),
)
COSTS = {"parse": StepCost(0.02), "score": StepCost(0.15, cv=0.5)}
APART = (("parse",), ("score",))


@dataclass(frozen=True)
class Under:
    """Runs every batch under the same plan."""

    plan: Plan

    def on_batch(self, _batch: BatchMeasure) -> Plan:
        return self.plan


def simulated(
    plan: Plan, rate: float, slots: int = 4, flow: Graph = LINE, seed: int = 1
) -> tuple[list[BatchMeasure], float]:
    """The batches of a minute under a plan, and the mean latency of their records."""
    plant = Plant(
        planning_ms=40.0,
        sink_ms=10.0,
        steps=COSTS,
        per_record_ms=0.01,
        per_chain_ms=5.0,
        per_task_ms=2.5,
        slots=slots,
        arrow_records=10_000,
        noise=0.05,
    )
    trace = generate(Constant(rate, 60), keys=Frequencies([5, 3, 1, 1]), seed=seed)
    batches = simulate(flow, plant, trace, Under(plan), np.random.default_rng(seed))
    warm = [batch for batch in batches if batch.planned_us > 5e6]
    records = sum(batch.records for batch in warm)
    total = sum(
        (batch.age_ms.mean + (batch.ended_us - batch.handed_us) / 1e3) * batch.records
        for batch in warm
    )
    return batches, total / records


def profiled(plan: Plan, rate: float, slots: int = 4) -> Profile:
    """The profile that a run under that plan leaves behind."""
    batches, _ = simulated(plan, rate, slots)
    recording, intervals = Recording(LINE), Intervals(5_000.0, 0)
    for batch in batches:
        recording.add_batch(batch)
        for interval in intervals.add(batch):
            recording.add_interval(interval, plan, interval.latencies_ms())
    profile = recording.profile("line")
    assert profile is not None
    return profile


def test_the_rate_is_what_reaches_the_first_step_behind_operators_of_spark() -> None:
    plan, rate = PLANS[1]
    batches, _ = simulated(plan, rate)
    recording, intervals = Recording(LINE), Intervals(5_000.0, 0)
    for batch in batches:
        steps = {n: replace(m, records_in=2 * m.records_in) for n, m in batch.steps.items()}
        for interval in intervals.add(replace(batch, steps=steps)):  # as after an explode
            recording.add_interval(interval, plan, interval.latencies_ms())
    profile = recording.profile("line")
    assert profile is not None
    assert profile.rate_per_s == pytest.approx(2 * rate, rel=0.02)


def test_what_a_filter_of_spark_drops_does_not_reach_the_next_step() -> None:
    plan, rate = PLANS[1]
    batches, _ = simulated(plan, rate)
    streams = (Stream("source", "parse"), Stream("parse", "score", ("Filter",)))
    filtered = graph(LINE.steps, (*streams, Stream("score", "sink")))
    for flow, ratio in ((filtered, 0.25), (LINE, 1.0)):
        recording, intervals = Recording(flow), Intervals(5_000.0, 0)
        for batch in batches:
            few = replace(batch.steps["score"], records_in=batch.steps["score"].records_in // 4)
            for interval in intervals.add(replace(batch, steps={**batch.steps, "score": few})):
                recording.add_interval(interval, plan, interval.latencies_ms())
        profile = recording.profile("line")
        assert profile is not None
        assert profile.step("parse").ratio == pytest.approx(ratio, rel=0.02)


def test_the_interval_in_which_a_run_ended_does_not_count_as_a_whole_one() -> None:
    plan, rate = PLANS[1]
    batches, _ = simulated(plan, rate)
    ended = [batch for batch in batches if batch.planned_us < 21e6]  # a second of the fifth
    recording, intervals = Recording(LINE), Intervals(5_000.0, 0)
    for batch in ended:
        for interval in intervals.add(batch):
            recording.add_interval(interval, plan, interval.latencies_ms())
    for interval in intervals.flush():
        recording.add_interval(interval, plan, interval.latencies_ms(), whole=False)
    profile = recording.profile("line")
    assert profile is not None
    assert profile.seconds == 20.0
    assert profile.rate_per_s == pytest.approx(rate, rel=0.02)
    last = recording.profile("line", since_us=20e6)
    assert last is not None  # better than nothing
    assert last.rate_per_s < 0.5 * rate


PLANS = (
    (Plan(0.0, APART, {"score": 1}), 1_500.0),
    (Plan(300.0, APART, {"score": 2}), 4_000.0),
    (Plan(800.0, APART, {"score": 4}), 9_000.0),
)


@pytest.mark.parametrize("seen", PLANS)
def test_what_one_run_showed_predicts_every_other(seen: tuple[Plan, float]) -> None:
    """Other intervals, partitions and rates, at utilisations from a fifth to nine tenths."""
    profile = profiled(*seen)
    for number, (plan, rate) in enumerate(PLANS):
        _, mean_ms = simulated(plan, rate, seed=10 + number)
        assert predict(profile, plan, rate).mean_ms == pytest.approx(mean_ms, rel=0.1)


def hand_made(**changes: object) -> Profile:
    return replace(
        Profile(
            "line",
            (StepProfile("parse", 0.02), StepProfile("score", 0.15)),
            (("source", "parse"), ("parse", "score"), ("score", "sink")),
            1_000.0,
            Plan(200.0, (("parse", "score"),)),
            cores=4,
            batch=BatchCosts(40.0, 0.01, noise=0.0),
            hand_over=HandOverCosts(0.2, 0.002, gap_ms=0.0),
        ),
        **changes,  # type: ignore[arg-type]
    )


@given(
    rate=st.floats(1, 5_000),
    interval=st.floats(0, 2_000),
    fixed=st.floats(1, 200),
    service=st.floats(0.001, 0.15),
)
@settings(max_examples=60, deadline=None)
def test_one_task_and_no_noise_is_the_batch_model(
    rate: float, interval: float, fixed: float, service: float
) -> None:
    flow = hand_made(
        steps=(StepProfile("parse", 0.0), StepProfile("score", service)),
        batch=BatchCosts(fixed, 0.01, noise=0.0),
    )
    model = BatchModel(fixed, service + 0.01)
    found = predict(flow, replace(flow.plan, interval_ms=interval), rate)
    cycle_ms = model.cycle_ms(interval, rate)
    if math.isinf(cycle_ms):
        assert not found.works
    else:
        expected = cycle_ms / 2 + model.duration_ms(rate * cycle_ms / 1e3)
        assert found.mean_ms == pytest.approx(expected, rel=0.005)
        assert sum(found.outcome.breakdown_ms.values()) == pytest.approx(found.mean_ms, rel=0.005)
        assert found.p50_ms <= found.p95_ms <= found.p99_ms


def test_one_chain_in_real_time_mode_is_its_hand_over() -> None:
    flow = hand_made()
    plan = replace(flow.plan, backend=Backend.REALTIME, lifetimes_ms={"parse+score": 4.0})
    found = predict(flow, plan, 3_000)
    hand_over = HandOver(HandOverModel(0.2, 0.002 + 0.17), 3_000.0, 4.0)
    expected = FlowModel((hand_over,), sink_ms=0.1 + 0.3).latency()
    assert found.mean_ms == pytest.approx(expected.mean_ms)
    assert found.p99_ms == pytest.approx(expected.quantile_ms(0.99), rel=1e-6)
    assert sum(found.outcome.breakdown_ms.values()) == pytest.approx(found.mean_ms)


def test_noise_makes_back_to_back_batches_wait_longer_than_half_a_cycle() -> None:
    """The mean wait is E[C^2]/(2 E[C]), a half of ``1 + cv^2`` cycles."""
    flow = hand_made(
        batch=BatchCosts(100.0, 0.0, noise=0.5),
        steps=(StepProfile("only", 0.0),),
        streams=(("source", "only"), ("only", "sink")),
        plan=Plan(0.0, (("only",),)),
    )
    loads = Router(flow).loads(flow.plan, 100.0)
    wait, batch = Cycle(loads, flow.batch or BatchCosts(0, 0), 0.0).latency(100.0)
    assert batch.mean_ms == pytest.approx(100.0, rel=0.02)
    assert wait.mean_ms == pytest.approx(50.0 * 1.25, rel=0.03)


def test_a_plan_that_cannot_keep_up_names_the_step_and_what_to_do() -> None:
    flow = hand_made()
    for backend in Backend:
        found = predict(flow, replace(flow.plan, backend=backend), "9 k/s")
        assert not found.works
        assert found.obstacle is not None
        assert "'score'" in found.obstacle
        assert math.isinf(found.mean_ms)
        assert found.throughput_per_s < 9_000
        just_below = predict(
            flow, replace(flow.plan, backend=backend), 0.99 * found.throughput_per_s
        )
        assert just_below.works


def test_real_time_mode_needs_a_slot_for_every_task() -> None:
    flow = hand_made()
    plan = Plan(60_000.0, APART, {"score": 4}, Backend.REALTIME, cores=4)
    obstacle = predict(flow, plan).obstacle
    assert obstacle is not None
    assert "5 tasks" in obstacle
    assert predict(flow, replace(plan, cores=5)).works


def test_a_row_limit_caps_the_rate_and_is_named() -> None:
    flow = hand_made()
    limited = replace(flow.plan, row_limit=100)
    assert predict(flow, limited, 400).works
    obstacle = predict(flow, limited, 600).obstacle
    assert obstacle is not None
    assert "row limit" in obstacle


def test_a_hot_key_makes_the_partition_that_it_falls_on_the_bottleneck() -> None:
    keys = {"hot": 0.5, **{f"k{i}": 0.05 for i in range(10)}}
    keyed = StepProfile("score", 0.15, keyed_by=("k",), keys=keys, distinct=11)
    flow = hand_made(steps=(StepProfile("parse", 0.02), keyed), plan=Plan(0.0, APART, {"score": 8}))
    busy = predict(flow, cores_of(flow, 8), 1_000).outcome.utilisation["score"]
    assert max(busy) >= 0.5 * 0.15
    assert sum(busy) == pytest.approx(0.15)
    even = hand_made(plan=Plan(0.0, APART, {"score": 8}))
    rivals = predict(even, cores_of(even, 8)), predict(flow, cores_of(flow, 8))
    assert rivals[0].outcome.highest_per_s > 1.5 * rivals[1].outcome.highest_per_s


def cores_of(flow: Profile, cores: int) -> Plan:
    return replace(flow.plan, cores=cores)


def test_what_was_never_measured_is_said() -> None:
    flow = hand_made(hand_over=None)
    plan = replace(flow.plan, backend=Backend.REALTIME, interval_ms=60_000.0)
    guessed, known = predict(flow, plan), predict(flow)
    assert "never measured" in guessed.outcome.assumed[0]
    assert not known.outcome.assumed
    assert guessed.high_ms / guessed.mean_ms > 1.5 * known.high_ms / known.mean_ms


def test_a_count_window_is_waited_for_by_all_but_its_last_record() -> None:
    step = StepProfile("score", 0.1, window=10, ratio=0.1)
    flow = hand_made(steps=(StepProfile("parse", 0.02), step))
    assert predict(flow, rate=100).outcome.window_ms == pytest.approx((10 - 1) / (2 * 100) * 1e3)
    keyed = replace(step, keyed_by=("k",), keys={"a": 0.75, "b": 0.25}, distinct=2)
    flow = hand_made(steps=(StepProfile("parse", 0.02), keyed), plan=Plan(0.0, APART, {"score": 2}))
    by_hand = 0.75 * 9 / (2 * 75) + 0.25 * 9 / (2 * 25)
    assert predict(flow, rate=100).outcome.window_ms == pytest.approx(by_hand * 1e3)


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(InputError):
        predict(hand_made(), rate=rate)


def test_without_cores_no_plan_can_be_made() -> None:
    with pytest.raises(InputError, match="at least 1"):
        Plan(cores=0)


def test_scores_move_and_narrow_the_band() -> None:
    wide = Accuracy().band(Backend.MICROBATCH, known=True)
    good = tuple(Score(Backend.MICROBATCH, True, 100.0, 100.0) for _ in range(90))
    low, high = Accuracy(good).band(Backend.MICROBATCH, known=True)
    assert wide[0] < low < 1 < high < wide[1]
    late = tuple(Score(Backend.MICROBATCH, True, 100.0, 150.0) for _ in range(90))
    assert Accuracy(late).band(Backend.MICROBATCH, known=True)[0] > 1
    assert Accuracy(late).band(Backend.REALTIME, known=True) == wide


@pytest.mark.parametrize(
    ("predicted_ms", "measured_ms"),
    [(0.0, 1.0), (1.0, 0.0), (1e300, 1.0), (1.0, 5e-324), (math.nan, 1.0), (1.0, math.inf)],
)
def test_latencies_that_are_off_without_end_are_not_scored(
    predicted_ms: float, measured_ms: float
) -> None:
    with pytest.raises(InputError, match="cannot be scored: give two latencies"):
        Score(Backend.MICROBATCH, True, predicted_ms, measured_ms)


def test_the_worst_scores_have_finite_errors_and_bands() -> None:
    pairs = ((LEAST_MS, MOST_MS), (MOST_MS, LEAST_MS)) * 50
    scores = tuple(Score(Backend.MICROBATCH, True, *pair) for pair in pairs)
    assert all(math.isfinite(score.error) for score in scores)
    assert all(map(math.isfinite, Accuracy(scores).band(Backend.MICROBATCH, known=True)))


def test_a_band_is_that_of_all_scores_of_its_kind_before() -> None:
    rng = np.random.default_rng(4)
    kinds = [(backend, known) for backend in Backend for known in (True, False)]
    scores = tuple(
        Score(*kinds[rng.integers(4)], 1.0, float(np.exp(rng.normal()))) for _ in range(60)
    )
    held = 0
    for number, score in enumerate(scores):
        prior = PRIOR_KNOWN if score.known else PRIOR_GUESSED
        kind = (score.backend, score.known)
        logs = [s.log_ratio for s in scores[:number] if (s.backend, s.known) == kind]
        weight = len(logs) + PRIOR_SCORES
        mean = sum(logs) / weight
        squares = sum((log - mean) ** 2 for log in logs)
        squares += PRIOR_SCORES * (prior**2 + mean**2)
        reach = NINE_IN_TEN * math.sqrt(squares / weight)
        low, high = Accuracy(scores[:number]).band(score.backend, known=score.known)
        assert (math.log(low), math.log(high)) == pytest.approx((mean - reach, mean + reach))
        held += low <= score.measured_ms <= high
    assert Accuracy(scores).within() == held / len(scores)


@pytest.mark.parametrize("backend", Backend)
def test_a_flow_that_costs_nothing_has_a_prediction(backend: Backend) -> None:
    free = Profile(
        "free",
        (StepProfile("work", 0.0),),
        (("source", "work"), ("work", "sink")),
        1_000.0,
        Plan(0.0, (("work",),), backend=backend),
        cores=1,
        batch=BatchCosts(0.0, 0.0, cpu_ms=0.0, cpu_record_ms=0.0),
        hand_over=HandOverCosts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    )
    found = predict(free)
    assert found.works
    assert 0 <= found.mean_ms < 2.0
    assert 0 <= found.p99_ms < 2.0


def test_nine_of_ten_lognormal_outcomes_fall_into_the_band() -> None:
    rng = np.random.default_rng(3)
    ratios = np.exp(rng.normal(0.1, 0.25, 600))
    scores = tuple(Score(Backend.REALTIME, True, 1.0, float(ratio)) for ratio in ratios)
    held = Accuracy(scores).within()
    assert held is not None
    assert 0.85 < held < 0.95


@pytest.mark.parametrize(("copies", "rate"), [(1.0, 300.0), (10.0, 30.0), (10.0, 60.0)])
def test_what_becomes_of_one_record_arrives_at_once(copies: float, rate: float) -> None:
    """Against simulated hand-overs of records that come in tens."""
    flow = hand_made(
        steps=(StepProfile("parse", 0.02, ratio=copies), StepProfile("score", 1.0)),
        plan=Plan(60_000.0, APART, {"score": 1}, Backend.REALTIME),
    )
    rng = np.random.default_rng(3)
    groups = np.cumsum(rng.exponential(1e3 / rate, 40_000))
    model = HandOverModel(0.2, 0.002 + 1.0)
    seen = hand_overs(np.repeat(groups, int(copies)), model, 0.0, seed=1)
    predicted = predict(flow, flow.plan, rate).outcome.parts[2]
    assert predicted.mean_ms == pytest.approx(seen.mean_ms, rel=0.06)
    assert predicted.quantile_ms(0.99) == pytest.approx(seen.quantile_ms(0.99), rel=0.1)
