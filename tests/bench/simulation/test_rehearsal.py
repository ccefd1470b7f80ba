"""Rehearsals: what a scaler is asked and told, and that no move overtakes another."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.rivals import rivals
from bench.rivals.rules import Constant, LatencyRule, Peak
from bench.simulation.elastic import ElasticPlant
from bench.simulation.rehearsal import behind, compare, late, rehearse
from tailrace.policy.scaling.calibration import Goal
from tailrace.policy.scaling.sizing import Limits, Load, Move
from tailrace.report.saso import SizedStep, saso

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.simulation.rehearsal import Rehearsal
    from tailrace.policy.scaling.sizing import Scaler

PLANT = ElasticPlant(service_ms=10.0, start_ms=3_000.0)
LIMITS = Limits(1, 8)
RATES = np.repeat([150.0, 450.0, 150.0], 60)


@dataclass
class Script:
    """Says what it was told to, and keeps what it saw."""

    wants: list[int]
    name: str = "script"
    seen: list[Load] = field(default_factory=list)

    def decide(self, load: Load) -> Move:
        self.seen.append(load)
        return Move(self.wants[(len(self.seen) - 1) % len(self.wants)], "As written.", 7.0)


def run(scaler: Scaler, rates: NDArray[np.float64] = RATES, size: int | None = None) -> Rehearsal:
    rng = np.random.default_rng(1)
    return rehearse(
        scaler, PLANT, rates, LIMITS, bound_ms=50.0, step_ms=1_000.0, rng=rng, size=size
    )


def judged(**other: float | None) -> Load:
    values = {"rate_per_s": 10.0, "done_per_s": 10.0, "latency_ms": 1.0, "backlog": 0.0} | other
    return Load(
        at_us=0,
        step_ms=1_000.0,
        size=1,
        limits=LIMITS,
        bound_ms=1.0,
        service_ms=1.0,
        busy=0.5,
        model=PLANT.truth,
        **values,  # type: ignore[arg-type]
    )


def test_a_move_is_never_overtaken_by_another() -> None:
    """Promise 34 of De Matteis 2016: the next move waits until the last is acknowledged."""
    scaler = Script([3, 8, 8, 2])
    steps = run(scaler, RATES[:8], size=1).steps
    assert [step.wanted for step in steps] == [3, 3, 3, 2, 3, 3, 3, 2]
    assert [step.size for step in steps] == [1, 1, 1, 3, 2, 2, 2, 3]
    assert [load.moving for load in scaler.seen] == [False, True, True, False] * 2
    assert len(scaler.seen) == 8


def test_units_that_start_are_held_and_do_not_work() -> None:
    steps = run(Script([4]), RATES[:5], size=2).steps
    assert [step.held for step in steps] == [4] * 5
    assert [step.size for step in steps] == [2, 2, 2, 4, 4]


def test_a_scaler_sees_what_was_measured_and_a_model_that_was_learned() -> None:
    scaler = Script([3])
    steps = run(scaler, np.full(30, 150.0), size=3).steps
    load = scaler.seen[-1]
    assert load.bound_ms == 50
    assert load.limits is LIMITS
    assert (load.rate_per_s, load.latency_ms) == (steps[-1].rate_per_s, steps[-1].latency_ms)
    assert load.service_ms == pytest.approx(10, rel=1e-6)
    assert load.model.latency_ms(3, 150) == pytest.approx(PLANT.truth.latency_ms(3, 150), rel=1e-3)
    assert [step.reason for step in steps] == ["As written."] * 30
    assert steps[-1].predicted_ms == 7.0


def test_no_question_is_asked_before_something_was_measured() -> None:
    scaler = Script([8])
    steps = run(scaler, np.r_[np.zeros(3), np.full(3, 100.0)], size=2).steps
    assert [step.reason for step in steps[:4]] == ["Nothing has been measured yet."] * 3 + [
        "As written."
    ]
    assert len(scaler.seen) == 3


def test_it_starts_with_the_right_size_unless_told() -> None:
    steps = run(Script([1]), RATES[:3]).steps
    assert steps[0].size == PLANT.truth.least_size(150.0, 50.0, 1, 8) == 2
    assert run(Script([1]), RATES[:3], size=99).steps[0].size == 8


def test_a_size_outside_the_limits_is_brought_within_them() -> None:
    steps = run(Script([100, -3]), RATES[:6], size=2).steps
    assert {step.wanted for step in steps} == {1, 8}


def test_the_least_size_is_the_fewest_that_keep_the_bound_at_the_rate_of_the_step() -> None:
    steps = run(Script([4]), size=4).steps
    for step in steps[::10]:
        assert step.least_size is not None
        assert PLANT.truth.latency_ms(step.least_size, step.rate_per_s) <= 50
        assert PLANT.truth.latency_ms(step.least_size - 1, step.rate_per_s) > 50
    too_much = run(Script([4]), np.full(3, 9_000.0), size=4).steps
    assert {step.least_size for step in too_much} == {None}


def test_both_published_violations_are_counted() -> None:
    """Section 7.2.3: the mean latency above the bound, or less than 95 % of what came done."""
    rates = np.full(20, 205.0)
    ask = partial(
        compare,
        {"two": partial(Constant, 2)},
        PLANT,
        rates,
        LIMITS,
        bound_ms=50.0,
        step_ms=1_000.0,
        seed=1,
        size=2,
    )
    two, by_rate = ask()["two"], ask(goal=Goal.THROUGHPUT)["two"]
    assert [step.violated for step in two.steps] == [
        step.latency_ms is not None and step.latency_ms > 50 for step in two.steps
    ]
    assert [step.violated for step in by_rate.steps] == [
        step.done_per_s < 0.95 * step.rate_per_s for step in by_rate.steps
    ]
    assert sum(step.violated for step in two.steps) > sum(step.violated for step in by_rate.steps)


def test_a_step_without_a_finished_record_is_judged_by_what_waits() -> None:
    finished = judged(latency_ms=100.0)
    assert late(finished, 99.0)
    assert not late(finished, 100.0)
    unfinished = judged(latency_ms=None, done_per_s=0.0, backlog=5.0)
    assert late(unfinished, 999.0)
    assert not late(unfinished, 1_001.0)
    assert not late(judged(latency_ms=None, backlog=0.0), 1.0)
    assert behind(unfinished)
    assert not behind(judged(rate_per_s=100.0, done_per_s=95.0))
    assert behind(judged(rate_per_s=100.0, done_per_s=94.9))
    assert not behind(judged(rate_per_s=0.0, done_per_s=0.0))


def test_every_scaler_of_a_comparison_meets_the_same_load() -> None:
    found = compare(rivals(), PLANT, RATES, LIMITS, bound_ms=50.0, step_ms=1_000.0, seed=3)
    rates = [[step.rate_per_s for step in each.steps] for each in found.values()]
    assert all(each == rates[0] for each in rates)
    assert [each.name for each in found.values()] == list(rivals())
    again = compare(rivals(), PLANT, RATES, LIMITS, bound_ms=50.0, step_ms=1_000.0, seed=3)
    assert found == again
    other = compare(rivals(), PLANT, RATES, LIMITS, bound_ms=50.0, step_ms=1_000.0, seed=4)
    assert other != found


def test_every_rival_gets_through_a_step_in_the_load() -> None:
    """Three times the load and back; who knows how far to go is there sooner than who steps."""
    limits, rates = Limits(1, 32), 4 * RATES
    found = compare(rivals(120), PLANT, rates, limits, bound_ms=50.0, step_ms=1_000.0, seed=3)
    figures = {name: saso(each.steps) for name, each in found.items()}
    assert figures["peak"].violations == 0
    assert figures["peak"].core_seconds >= max(each.core_seconds for each in figures.values())
    for name in ("Th-Rule", "Lat-Rule", "SPL", "DS2", "Flink"):
        assert figures[name].reconfigurations > 0
        assert figures[name].violations > 0
        assert figures[name].core_seconds < figures["peak"].core_seconds
    for name in ("Th-Rule", "Lat-Rule", "SPL"):
        assert figures["DS2"].violations < figures[name].violations / 2
    assert found["Spark"].steps[-1].size >= 18, "it gives nothing back"


@pytest.mark.parametrize("interval", [0.0, 400.0])
def test_a_constant_load_is_kept_by_the_right_constant_size(interval: float) -> None:
    plant = ElasticPlant(service_ms=2.0, fixed_ms=100.0, interval_ms=interval, noise=0.05)
    bound = 1.1 * plant.truth.latency_ms(4, 1_000)
    right = plant.truth.least_size(1_000, bound, 1, 8)
    assert right is not None
    rates = np.full(120, 1_000.0)
    named = {"right": partial(Constant, right), "less": partial(Constant, max(1, right - 1))}
    found = compare(named, plant, rates, LIMITS, bound_ms=bound, step_ms=5_000.0, seed=1)
    assert saso(found["right"].steps).violation_share < 0.1
    assert saso(found["less"].steps).violation_share > 0.8
    assert saso(found["right"].steps).overshoot_max in {0, 1}


def test_a_rehearsal_can_be_summed_up_at_any_time() -> None:
    """Promise 35 of De Matteis 2016: SASO at the end of each run, and live."""
    steps = run(LatencyRule()).steps
    live = [saso(steps[: n + 1]) for n in range(len(steps))]
    assert live[-1].reconfigurations > 2
    for before, after in pairwise(live):
        assert after.steps == before.steps + 1
        assert after.reconfigurations - before.reconfigurations in {0, 1}
        assert after.violations - before.violations in {0, 1}
        assert after.core_seconds > before.core_seconds
    copies = [
        SizedStep(
            step.at_us,
            step.step_ms,
            step.size,
            step.rate_per_s,
            step.latency_ms,
            step.violated,
            step.least_size,
            step.held - step.size,
        )
        for step in steps
    ]
    assert saso(copies) == live[-1], "a real run is summed up as a rehearsal is"


def test_peak_holds_the_most_from_its_first_answer() -> None:
    peak = run(Peak(), RATES[:30])
    assert {step.held for step in peak.steps} == {8}
    assert peak.name == "peak"
    assert peak.bound_ms == 50
