"""The elastic plant against closed forms: latency, capacity, and what a move takes."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulation.batchruns import micro_batches
from bench.simulation.elastic import (
    Elastic,
    ElasticPlant,
    Estimate,
    Measured,
    learn,
)
from tailrace.errors import InputError
from tailrace.model.kingman import Kingman
from tailrace.model.microbatch import BatchModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORDS = ElasticPlant(service_ms=10.0, cv_arrivals=0.0, start_ms=5_000.0)
BATCHES = ElasticPlant(
    service_ms=2.0, fixed_ms=200.0, interval_ms=0.0, cv_arrivals=0.0, cv_service=0.0
)


def start(plant: ElasticPlant, rates: NDArray[np.float64], size: int, step_ms: float) -> Elastic:
    return plant.start(rates, size, step_ms, np.random.default_rng(1))


def last(
    plant: ElasticPlant, rate: float, size: int, seconds: int = 200, step_ms: float = 20_000.0
) -> Measured:
    running = start(plant, np.full(seconds, float(rate)), size, step_ms)
    return [running.step() for _ in range(running.steps)][-1]


# --- a constant load ------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "size"), [(100, 1), (400, 1), (1_600, 4), (450, 1)])
def test_batches_back_to_back_have_the_latency_of_the_batch_model(rate: float, size: int) -> None:
    model = BatchModel(200.0, 2.0 / size)
    seen = last(BATCHES, rate, size)
    wanted = 1.5 * 200 / (1 - model.utilisation(rate))
    assert seen.latency_ms == pytest.approx(wanted, rel=0.02)
    assert seen.busy == pytest.approx(model.utilisation(rate), rel=0.05)
    assert BATCHES.truth.latency_ms(size, rate) == pytest.approx(wanted)
    assert model.latency_ms(0.0, rate, 1e9, None) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(("interval", "rate"), [(1_000.0, 200), (500.0, 250), (300.0, 450)])
def test_batches_with_an_interval_have_the_latency_of_the_batch_model(
    interval: float, rate: float
) -> None:
    """The last one overruns its interval, and is blocked for that part of the time."""
    plant = ElasticPlant(
        service_ms=2.0, fixed_ms=200.0, interval_ms=interval, cv_arrivals=0.0, cv_service=0.0
    )
    seen = last(plant, rate, 1)
    cycle = BatchModel(200.0, 2.0).cycle_ms(interval, rate)
    assert seen.latency_ms == pytest.approx(cycle / 2 + 200 + 2 * rate * cycle / 1e3, rel=0.02)
    assert seen.latency_ms == pytest.approx(plant.truth.latency_ms(1, rate), rel=0.02)
    assert seen.blocked == pytest.approx(max(0.0, 1 - interval / cycle), abs=0.03)


@pytest.mark.parametrize("interval", [0.0, 700.0])
def test_a_changing_load_goes_through_batches_as_in_the_simulation_of_single_records(
    interval: float,
) -> None:
    """An oracle that knows records one by one; the load is too much for a while."""
    rates = np.repeat([100.0, 400.0, 700.0, 50.0], 60)
    arrivals_ms = np.concatenate(
        [1e3 * (second + (np.arange(n) + 0.5) / n) for second, n in enumerate(rates.astype(int))]
    )
    oracle = micro_batches(arrivals_ms, BatchModel(200.0, 2.0), interval, warm_up=0.0)
    plant = ElasticPlant(
        service_ms=2.0, fixed_ms=200.0, interval_ms=interval, cv_arrivals=0.0, cv_service=0.0
    )
    running = start(plant, rates, 1, 5_000.0)
    steps = [running.step() for _ in range(running.steps)]
    waited = sum(s.latency_ms * s.done_per_s for s in steps if s.latency_ms is not None)
    done = sum(s.done_per_s for s in steps)
    assert done * 5 == pytest.approx(len(arrivals_ms), rel=0.01)
    assert waited / done == pytest.approx(oracle.mean_ms, rel=0.02)


def test_noise_leaves_the_mean_latency_where_it_was() -> None:
    plant = ElasticPlant(service_ms=2.0, fixed_ms=200.0, interval_ms=1_000.0, noise=0.1)
    running = start(plant, np.full(4_000, 200.0), 1, 10_000.0)
    found = [running.step().latency_ms for _ in range(running.steps)]
    values = [value for value in found if value is not None]
    assert np.mean(values[1:]) == pytest.approx(plant.truth.latency_ms(1, 200), rel=0.02)
    assert np.std(values[1:]) > 0


@pytest.mark.parametrize("busy", [0.1, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("size", [1, 6])
def test_records_one_at_a_time_have_the_latency_of_kingmans_formula(busy: float, size: int) -> None:
    rate = busy * 100 * size
    seen = last(ElasticPlant(service_ms=10.0, cv_service=0.5, cv_arrivals=0.0), rate, size)
    wait = Kingman(rate, 10.0 / size, 0.0, 0.5).mean_wait_ms
    assert seen.latency_ms == pytest.approx(wait + 10.0, rel=0.005)
    assert seen.busy == pytest.approx(busy, rel=0.001)


def test_a_single_unit_under_poisson_arrivals_is_mg1() -> None:
    plant = ElasticPlant(service_ms=10.0, cv_service=0.7)
    pollaczek_khinchine_ms = 0.8 * 10.0 * (1 + 0.7**2) / (2 * (1 - 0.8))
    assert plant.truth.latency_ms(1, 80) == pytest.approx(pollaczek_khinchine_ms + 10.0)


@pytest.mark.parametrize("plant", [RECORDS, BATCHES])
def test_no_more_is_done_than_the_units_can_and_the_rest_waits(plant: ElasticPlant) -> None:
    capacity = 3 * 1e3 / plant.service_ms
    running = start(plant, np.full(100, 1.25 * capacity), 3, 10_000.0)
    steps = [running.step() for _ in range(running.steps)]
    done = sum(step.done_per_s * 10 for step in steps)
    assert done <= 100 * capacity
    assert done == pytest.approx(100 * capacity, rel=0.3 if plant is BATCHES else 0.01)
    assert done + steps[-1].backlog == pytest.approx(125 * capacity)
    assert steps[-1].blocked > 0.1
    if plant is RECORDS:
        assert steps[-1].busy == pytest.approx(1, abs=0.01)
        assert steps[-1].backlog == pytest.approx(25 * capacity, rel=0.01)
        assert steps[-1].latency_ms == pytest.approx(1e3 * 95 * 0.25 + 10, rel=0.02)


# --- moves ----------------------------------------------------------------------------------------


def test_more_units_work_only_when_they_have_started() -> None:
    running = start(RECORDS, np.full(30, 150.0), 1, 1_000.0)
    running.step()
    running.move(2)
    seen = [running.step() for _ in range(8)]
    assert [step.size for step in seen] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert [step.wanted for step in seen] == [2] * 8
    assert [step.done_per_s for step in seen[:5]] == pytest.approx([100] * 5, rel=0.02)
    assert seen[5].done_per_s == pytest.approx(200, rel=0.01)
    assert [step.since_move for step in seen[4:]] == [0, 1, 2, 3]


def test_units_that_start_within_a_step_work_for_the_rest_of_it() -> None:
    plant = ElasticPlant(service_ms=10.0, cv_arrivals=0.0, start_ms=2_500.0)
    running = start(plant, np.full(30, 1_000.0), 1, 5_000.0)
    running.move(3)
    assert running.step().done_per_s == pytest.approx((100 + 300) / 2, rel=0.01)


def test_cold_units_do_less_at_first() -> None:
    plant = ElasticPlant(service_ms=10.0, cv_arrivals=0.0, start_ms=0.0, cold=4.0, cold_ms=2_000.0)
    running = start(plant, np.full(30, 1_000.0), 1, 1_000.0)
    running.move(3)
    assert running.size == 3
    done = [running.step().done_per_s for _ in range(4)]
    assert done == pytest.approx([150, 150, 300, 300], rel=0.01)


def test_fewer_units_are_fewer_at_once() -> None:
    running = start(RECORDS, np.full(30, 1_000.0), 3, 1_000.0)
    running.step()
    running.move(1)
    assert not running.moving
    assert running.step().done_per_s == pytest.approx(100, rel=0.01)


def test_units_that_join_work_on_the_batch_that_is_under_way() -> None:
    """1,800 records came in the first second; 3.6 s of work, 1.2 s of it with 2 units, then 3."""
    plant = ElasticPlant(
        service_ms=2.0, interval_ms=1_000.0, cv_arrivals=0.0, cv_service=0.0, start_ms=500.0
    )
    running = start(plant, np.array([1_800.0] + [0.0] * 9), 2, 1_700.0)
    running.step()
    running.move(3)
    seen = running.step()
    assert seen.latency_ms == pytest.approx(500 + 700 + 500 + (3_600 - 2 * 1_200) / 3)
    assert seen.busy == pytest.approx((500 + 400) / 1_700)


def test_a_batch_that_began_on_too_few_units_blocks_for_its_share() -> None:
    running = start(BATCHES, np.full(60, 450.0), 1, 10_000.0)
    before = running.step()
    running.move(3)
    running.step()
    after = running.step()
    assert before.fixed_ms == after.fixed_ms == pytest.approx(200)
    assert before.blocked > after.blocked == pytest.approx(0, abs=0.01)
    assert after.latency_ms == pytest.approx(300 / (1 - 0.3), rel=0.05)


def test_a_move_cannot_overtake_another() -> None:
    running = start(RECORDS, np.full(30, 10.0), 1, 1_000.0)
    running.move(2)
    with pytest.raises(InputError, match="wait until 2 units work"):
        running.move(3)


def test_a_backlog_is_worked_off_by_more_units() -> None:
    running = start(RECORDS, np.full(60, 150.0), 1, 10_000.0)
    running.step()
    running.move(2)
    backlogs = [running.step().backlog for _ in range(5)]
    assert backlogs[0] == pytest.approx(500 + 250 - 250, rel=0.02)
    assert backlogs[-1] == pytest.approx(
        Kingman(150.0, 5.0, 0.0, 1.0).mean_wait_ms * 0.15, rel=0.01
    )


# --- what is measured, and what is made of it -----------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 2_000), min_size=20, max_size=60),
    st.sampled_from([RECORDS, BATCHES]),
    st.sampled_from([500.0, 1_000.0, 3_300.0]),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
)
def test_nothing_is_lost_and_shares_are_shares(
    rates: list[float], plant: ElasticPlant, step_ms: float, moves: list[int]
) -> None:
    running = start(plant, np.array(rates), 2, step_ms)
    came = done = 0.0
    for number in range(running.steps):
        seen = running.step()
        came += seen.rate_per_s * step_ms / 1e3
        done += seen.done_per_s * step_ms / 1e3
        assert came == pytest.approx(done + seen.backlog, rel=1e-6, abs=1e-6)
        assert -1e-9 <= seen.busy <= 1 + 1e-9
        assert -1e-9 <= seen.blocked <= 1 + 1e-9
        assert seen.latency_ms is None or seen.latency_ms >= 0
        assert (seen.latency_ms is None) == (seen.service_ms is None)
        if not running.moving:
            running.move(moves[number % len(moves)])


def test_the_same_generator_gives_the_same_run_and_another_seed_another() -> None:
    plant = ElasticPlant(service_ms=2.0, fixed_ms=50.0, interval_ms=0.0, noise=0.2)

    def run(seed: int) -> list[Measured]:
        running = plant.start(np.full(60, 700.0), 2, 1_000.0, np.random.default_rng(seed))
        return [running.step() for _ in range(running.steps)]

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_what_is_learned_comes_near_the_truth_and_is_not_the_truth() -> None:
    plant = ElasticPlant(service_ms=2.0, fixed_ms=200.0, interval_ms=0.0, noise=0.1)
    running = start(plant, np.full(120, 700.0), 2, 5_000.0)
    known: Estimate | None = None
    for _ in range(running.steps):
        known = learn(known, running.step(), plant.interval_ms)
    assert known is not None
    assert known != plant.truth
    assert known.service_ms == pytest.approx(2.0, rel=0.05)
    assert known.fixed_ms == pytest.approx(200.0, rel=0.1)
    assert known.utilisation(2, 700) == pytest.approx(0.7, rel=0.05)
    assert known.latency_ms(2, 700) == pytest.approx(plant.truth.latency_ms(2, 700), rel=0.25)


def test_nothing_is_learned_where_nothing_was_finished() -> None:
    running = start(BATCHES, np.zeros(20), 1, 1_000.0)
    seen = running.step()
    assert (seen.latency_ms, seen.service_ms, seen.backlog) == (None, None, 0.0)
    assert learn(None, seen, 0.0) is None
    before = Estimate(3.0, 20.0, 0.0)
    assert learn(before, seen, 0.0) is before


def test_the_least_size_is_the_first_that_keeps_the_bound() -> None:
    truth = BATCHES.truth
    for rate in (100.0, 700.0, 2_000.0):
        kept = [n for n in range(2, 9) if truth.latency_ms(n, rate) <= 500]
        assert truth.least_size(rate, 500, 2, 8) == (kept[0] if kept else None)
    assert truth.least_size(100_000.0, 500, 2, 8) is None
    assert truth.latency_ms(1, 500.0) == math.inf


@pytest.mark.parametrize("plant", [RECORDS, BATCHES])
def test_twenty_minutes_are_simulated_many_thousand_times_faster_than_they_last(
    plant: ElasticPlant,
) -> None:
    start(plant, np.full(10, 100.0), 1, 1_000.0).step()  # compile
    running = start(plant, np.full(1_200, 400.0), 4, 5_000.0)
    began = time.process_time()
    for _ in range(running.steps):
        running.step()
    assert time.process_time() - began < 1_200 / 2_000


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ElasticPlant(service_ms=0.0),
        lambda: ElasticPlant(service_ms=1.0, cold=0.5),
        lambda: ElasticPlant(service_ms=1.0, noise=-1.0),
        lambda: ElasticPlant(service_ms=1.0, fixed_ms=1.0),
        lambda: start(RECORDS, np.array([]), 1, 1_000.0),
        lambda: start(RECORDS, np.array([1.0, -1.0]), 1, 1_000.0),
        lambda: start(RECORDS, np.array([1.0]), 0, 1_000.0),
        lambda: start(RECORDS, np.array([1.0]), 1, 1_001.0),
        lambda: start(RECORDS, np.array([1.0]), 1, 1_000.0).move(0),
    ],
)
def test_what_cannot_run_is_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(InputError):
        wrong()
