"""Rehearsals: the control loop of a flow on its profile, in simulated time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tailrace as tr
from tailrace.errors import InputError, LoadError
from tailrace.load import Burst, Constant, Recorded, Staircase
from tailrace.model.microbatch import BatchModel
from tailrace.plan import Backend, Plan
from tailrace.policy.scaling.sizing import Load, Move
from tailrace.profile.costs import BatchCosts
from tailrace.profile.profile import Profile, StepProfile
from tailrace.testing import Plant, StepCost, simulate

WAITS = Profile(
    "primes",
    (StepProfile("test", 5.0, cv=0.05, cpu_share=0.1),),
    (("source", "test"), ("test", "sink")),
    rate_per_s=400.0,
    plan=Plan(0.0, (("test",),), {"test": 4}),
    cores=4,
    source_partitions=2,
    batch=BatchCosts(60.0, 0.02, noise=0.05),
)
STAIRS = Staircase(100, 800, 7, 60)


@pytest.mark.parametrize(("scaler", "share"), [("predictive", 0.95), ("reactive", 0.85)])
def test_a_scaler_follows_a_staircase_for_less_than_a_constant_number(
    scaler: str, share: float
) -> None:
    elastic = tr.rehearse(WAITS, STAIRS, mean="1 s", scaler=scaler, executors=(1, 8))
    constant = tr.rehearse(WAITS, STAIRS, mean="1 s", executors=8)
    assert elastic.fulfilled_share >= share
    assert constant.fulfilled_share >= 0.95
    assert elastic.data["core_seconds"] <= 0.8 * constant.data["core_seconds"]
    assert constant.data["core_seconds"] == pytest.approx(8 * STAIRS.duration_s, rel=0.05)
    assert {i["executors"] for i in constant.intervals} == {8}
    assert any("in simulated time" in note for note in elastic.notes)


@pytest.mark.parametrize("rate", [100.0, 300.0, 500.0])
def test_a_rehearsal_agrees_with_the_prediction_of_the_plan_that_it_ends_on(rate: float) -> None:
    report = tr.rehearse(WAITS, Constant(rate, "60 s"), mean="900 ms")
    last = report.intervals[-3]
    plan = replace(
        WAITS.plan,
        interval_ms=last["plan"]["interval_ms"],
        partitions=last["plan"]["partitions"] or {},
    )
    said = tr.predict(WAITS, plan=plan, rate=rate)
    assert last["mean_ms"] == pytest.approx(said.mean_ms, rel=0.1)


@pytest.mark.parametrize(("size", "rate"), [(1, 60.0), (2, 200.0), (4, 500.0), (8, 900.0)])
def test_a_constant_load_on_constant_executors_takes_what_the_closed_form_says(
    size: int, rate: float
) -> None:
    """Mean of BatchModel: a record waits for half a cycle, and then for ``a + c*n``."""
    calm = replace(
        WAITS,
        steps=(StepProfile("test", 5.0),),
        batch=BatchCosts(60.0, 0.02, task_ms=2.0, noise=0.0),
    )
    report = tr.rehearse(calm, Constant(rate, "60 s"), mean="900 ms", executors=size)
    model = BatchModel(60.0 + 2.0 * (size - 1), 5.02 / size)
    for interval in report.intervals[4:-1]:
        interval_ms = interval["plan"]["interval_ms"]
        expected_ms = model.latency_ms(interval_ms, interval["rate_per_s"], 5_000.0, None)
        assert interval["mean_ms"] == pytest.approx(expected_ms, rel=0.12)
        assert interval["plan"]["partitions"] == {"test": size}
    means = [interval["mean_ms"] for interval in report.intervals[4:-1]]
    wanted = [
        model.latency_ms(i["plan"]["interval_ms"], rate, 5_000.0, None)
        for i in report.intervals[4:-1]
    ]
    assert np.mean(means) == pytest.approx(np.mean(wanted), rel=0.04)


def test_a_user_s_own_scaler_can_be_rehearsed() -> None:
    class Two:
        name = "two"

        def decide(self, load: Load) -> Move:
            return Move(2, f"Two are enough for {load.rate_per_s:.0f} /s.")

    report = tr.rehearse(WAITS, Constant(150, "60 s"), mean="1 s", scaler=Two(), executors=(1, 8))
    assert report.intervals[-2]["executors"] == 2
    assert any(d["reason"].startswith("Two are enough for 1") for d in report.decisions)


def test_the_same_seed_gives_the_same_rehearsal_and_another_another() -> None:
    def rehearsed(seed: int) -> object:
        burst = Burst(100, 500, "30 s", "20 s", "80 s")
        found = tr.rehearse(WAITS, burst, mean="1 s", executors=(1, 8), seed=seed).data
        return [interval["mean_ms"] for interval in found["intervals"]]

    assert rehearsed(3) == rehearsed(3) != rehearsed(4)


def test_what_cannot_be_rehearsed_is_said() -> None:
    load = Constant(100, "20 s")
    with pytest.raises(InputError, match="no bound to keep"):
        tr.rehearse(WAITS, load)
    live = replace(WAITS, plan=replace(WAITS.plan, backend=Backend.REALTIME))
    with pytest.raises(InputError, match="only micro-batches can be rehearsed"):
        tr.rehearse(live, load, mean="1 s")


def test_a_recorded_load_has_its_rates_one_after_the_other() -> None:
    load = Recorded([100, 0, 300], "10 s")
    assert load.duration_s == 30
    assert load.rate_at(np.array([5.0, 15.0, 25.0])).tolist() == [100, 0, 300]
    assert load.expected(np.array([10.0, 20.0, 30.0])).tolist() == [1_000, 1_000, 4_000]
    trace = tr.load.generate(load, arrivals="even")
    due_s = trace.due_us / 1e6
    assert len(trace) == 4_000
    assert not ((due_s > 10.1) & (due_s < 19.9)).any()
    for wrong in ([], [1.0, -2.0], [float("nan")]):
        with pytest.raises(LoadError, match="must be finite and not below 0"):
            Recorded(wrong, 10)


def test_a_policy_is_tested_with_a_plant_of_one_s_own() -> None:
    plant = Plant(planning_ms=40, sink_ms=20, steps={"score": StepCost(5.0)}, start_ms=4_000)
    load = tr.load.generate(Constant(300, "60 s"), seed=1)
    log = simulate(("score",), plant, load, mean="1 s", scaler="reactive", executors=(1, 8))
    assert log.verdicts[-2].fulfilled
    assert max(record.slots for record in log.history) >= 2
    plain = simulate(("score",), replace(plant, slots=2), load, mean="1 s")
    assert plain.scaling is None
