"""The micro-batch model against simulation, closed forms and numpy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.microbatch import BatchModel, BatchPoint, fit, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONG_MS = 1e9
statistics = st.one_of(st.none(), st.floats(0.02, 0.98))
models = st.builds(BatchModel, st.floats(1, 300), st.floats(0, 0.5))


def worst_window_by_force(cycle_ms: float, every_ms: float, quantile: float | None) -> float:
    """Slide a window over even arrivals and take the worst statistic of the waits."""
    worst = 0.0
    even = (np.arange(4_000) + 0.5) / 4_000 * every_ms
    for start in np.linspace(0, cycle_ms, 101):
        waits = cycle_ms - (start + even) % cycle_ms
        value = waits.mean() if quantile is None else np.quantile(waits, quantile)
        worst = max(worst, float(value))
    return worst


def batches(
    sizes: NDArray[np.int64], model: BatchModel, rng: np.random.Generator, noise: float = 0.0
) -> list[BatchPoint]:
    durations = (model.fixed_ms + model.per_record_ms * sizes) * (
        1 + noise * rng.standard_normal(len(sizes))
    )
    pairs = zip(sizes, durations, strict=True)
    return [BatchPoint(int(n), float(d), at_us) for at_us, (n, d) in enumerate(pairs)]


@settings(max_examples=60, deadline=None)
@given(st.floats(1, 3_000), st.floats(50, 5_000), statistics)
def test_the_wait_is_the_one_of_the_worst_window_that_a_simulation_finds(
    cycle_ms: float, every_ms: float, quantile: float | None
) -> None:
    found = worst_window_by_force(cycle_ms, every_ms, quantile)
    expected = BatchModel(0, 0).wait_ms(cycle_ms, every_ms, quantile)
    assert found == pytest.approx(expected, abs=0.012 * cycle_ms + 2e-3 * every_ms)


def test_in_a_long_window_records_wait_half_a_cycle_and_a_quantile_its_share_of_one() -> None:
    model = BatchModel(10, 0)
    assert model.wait_ms(800, LONG_MS, None) == pytest.approx(400, rel=1e-5)
    assert model.wait_ms(800, LONG_MS, 0.95) == pytest.approx(760, rel=1e-5)


def test_in_a_window_shorter_than_the_cycle_the_worst_records_are_the_first_after_a_cut() -> None:
    model = BatchModel(10, 0)
    assert model.wait_ms(800, 200, None) == pytest.approx(700)
    assert model.wait_ms(800, 200, 0.9) == pytest.approx(780)


def test_a_window_of_whole_cycles_is_the_same_wherever_it_lies() -> None:
    assert BatchModel(10, 0).wait_ms(500, 2_000, None) == pytest.approx(250)
    assert BatchModel(10, 0).wait_ms(500, 2_000, 0.5) == pytest.approx(250)


@settings(max_examples=40, deadline=None)
@given(models, st.floats(0, 3_000), st.floats(0, 2_000))
def test_the_cycle_is_where_the_batches_of_a_running_query_settle(
    model: BatchModel, rate: float, interval_ms: float
) -> None:
    assume(model.utilisation(rate) < 0.9)
    cycle_ms = 0.0
    for _ in range(400):
        cycle_ms = max(interval_ms, model.duration_ms(rate * cycle_ms / 1_000))
    assert model.cycle_ms(interval_ms, rate) == pytest.approx(cycle_ms, rel=1e-6)


def test_batches_without_end_have_no_cycle_and_no_latency() -> None:
    model = BatchModel(50, 0.5)
    assert model.cycle_ms(10_000, 2_000) == math.inf
    assert model.latency_ms(10_000, 2_000, 5_000, None) == math.inf
    assert model.floor_ms(2_500, 5_000, 0.99) == math.inf
    assert model.longest_interval_ms(1e6, 2_000, 5_000, None) is None


def test_back_to_back_the_mean_is_one_and_a_half_batches() -> None:
    model = BatchModel(60, 0.2)
    assert model.floor_ms(2_000, LONG_MS, None) == pytest.approx(1.5 * 60 / (1 - 0.4), rel=1e-4)


def test_the_longest_interval_for_the_mean_over_a_long_window_has_a_closed_form() -> None:
    model = BatchModel(60, 0.2)
    found = model.longest_interval_ms(500, 2_000, LONG_MS, None)
    assert found == pytest.approx((500 - 60) / (0.5 + 0.4), abs=0.1)


@settings(max_examples=80, deadline=None)
@given(models, st.floats(1, 3_000), st.floats(20, 3_000), st.floats(200, 10_000), statistics)
def test_the_longest_interval_keeps_the_target_and_a_longer_one_does_not(
    model: BatchModel, rate: float, target_ms: float, every_ms: float, quantile: float | None
) -> None:
    longest_ms = model.longest_interval_ms(target_ms, rate, every_ms, quantile)
    floor_ms = model.floor_ms(rate, every_ms, quantile)
    if longest_ms is None:
        assert floor_ms > target_ms
        return
    assert model.latency_ms(longest_ms, rate, every_ms, quantile) <= target_ms
    longer_ms = max(longest_ms, model.cycle_ms(0, rate)) + 0.1
    assert model.latency_ms(longer_ms, rate, every_ms, quantile) > target_ms


@settings(max_examples=80, deadline=None)
@given(models, st.floats(0, 2_000), st.floats(200, 10_000), statistics, st.floats(0, 4_000))
def test_a_longer_interval_never_lowers_the_latency(
    model: BatchModel, rate: float, every_ms: float, quantile: float | None, interval_ms: float
) -> None:
    here = model.latency_ms(interval_ms, rate, every_ms, quantile)
    assert model.latency_ms(interval_ms * 1.01 + 1, rate, every_ms, quantile) >= here * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(BatchModel, st.floats(5, 300), st.floats(0.01, 0.5)),
    st.floats(300, 3_000),
    statistics,
)
def test_the_highest_rate_is_the_one_whose_floor_meets_the_target(
    model: BatchModel, target_ms: float, quantile: float | None
) -> None:
    highest = model.highest_rate_per_s(target_ms, 5_000, quantile)
    if highest == 0:
        assert model.floor_ms(1e-6, 5_000, quantile) >= target_ms * (1 - 1e-6)
        return
    assert model.floor_ms(highest, 5_000, quantile) <= target_ms * (1 + 1e-9)
    near_saturation = 1_000 / model.per_record_ms
    higher = highest + 0.01 * (near_saturation - highest)
    assert model.floor_ms(higher, 5_000, quantile) > target_ms - 0.2


def test_a_model_with_a_negative_or_endless_cost_is_refused() -> None:
    with pytest.raises(InputError, match="cannot cost"):
        BatchModel(-1, 0.1)
    with pytest.raises(InputError, match="cannot cost"):
        BatchModel(1, math.inf)


def test_on_exact_batches_the_fit_is_the_one_of_numpy() -> None:
    rng = np.random.default_rng(1)
    points = batches(rng.integers(100, 5_000, 60), BatchModel(55, 0.03), rng)
    slope, fixed = np.polyfit([p.records for p in points], [p.duration_ms for p in points], 1)
    model = fit(points, 20)
    assert model.fixed_ms == pytest.approx(fixed, rel=5e-3)
    assert model.per_record_ms == pytest.approx(slope, rel=5e-3)


def with_pauses(points: list[BatchPoint], rng: np.random.Generator) -> list[BatchPoint]:
    """A cold start, and then a fifth of all batches three to ten times as slow."""
    slow = np.where(rng.random(len(points)) < 0.2, rng.uniform(3, 10, len(points)), 1.0)
    slow[:3] = 6.0
    return [
        BatchPoint(p.records, p.duration_ms * float(s), p.at_us)
        for p, s in zip(points, slow, strict=True)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_noisy_batches_with_pauses_and_a_cold_start_give_the_costs_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = BatchModel(rng.uniform(20, 200), rng.uniform(0.01, 0.2))
    points = with_pauses(batches(rng.integers(100, 4_000, 120), truth, rng, noise=0.05), rng)
    model = fit(points, 40)
    for size in (1_000, 2_000, 4_000):
        assert model.duration_ms(size) == pytest.approx(truth.duration_ms(size), rel=0.08)
    assert 0.03 < spread(points, model, 40) < 0.12


@pytest.mark.parametrize("seed", range(20))
def test_a_few_batches_of_a_new_size_are_learnt_from_and_not_taken_for_outliers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = BatchModel(rng.uniform(20, 200), rng.uniform(0.01, 0.2))
    sizes = np.where(np.arange(120) < 105, 200, 3_000)
    model = fit(batches(sizes, truth, rng, noise=0.05), 40)
    for size in (200, 3_000, 4_000):
        assert model.duration_ms(size) == pytest.approx(truth.duration_ms(size), rel=0.1)


def test_batches_of_one_size_keep_their_duration_and_split_it_in_half() -> None:
    points = [BatchPoint(1_000, 80.0, at_us) for at_us in range(50)]
    model = fit(points, 20)
    assert model.duration_ms(1_000) == pytest.approx(80)
    assert model.fixed_ms == pytest.approx(40)


def test_one_batch_is_enough_for_a_model() -> None:
    assert fit([BatchPoint(10, 70.0, 0)], 20).duration_ms(10) == pytest.approx(70)
    assert fit([BatchPoint(0, 70.0, 0)], 20) == BatchModel(70, 0)
    assert fit([BatchPoint(10, 0.0, 0)], 20).duration_ms(10) == pytest.approx(0, abs=1e-3)


def test_when_costs_change_the_old_ones_are_forgotten_whatever_the_order_of_points() -> None:
    rng = np.random.default_rng(2)
    before = batches(rng.integers(100, 2_000, 100), BatchModel(50, 0.02), rng, 0.02)
    after = batches(rng.integers(100, 2_000, 60), BatchModel(120, 0.06), rng, 0.02)
    after = [BatchPoint(p.records, p.duration_ms, p.at_us + 1_000) for p in after]
    model = fit([*after, *before], 15)
    assert model.fixed_ms == pytest.approx(120, rel=0.1)
    assert model.per_record_ms == pytest.approx(0.06, rel=0.1)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e6)), min_size=1, max_size=40),
    st.floats(0.5, 100),
)
def test_whatever_was_measured_the_costs_are_finite_and_not_negative(
    rows: list[tuple[int, float]], half_life: float
) -> None:
    points = [BatchPoint(n, d, at_us) for at_us, (n, d) in enumerate(rows)]
    model = fit(points, half_life)
    assert 0 <= model.fixed_ms < math.inf
    assert 0 <= model.per_record_ms < math.inf
    assert spread(points, model, half_life) >= 0


def test_the_spread_is_the_relative_deviation_that_was_put_in() -> None:
    rng = np.random.default_rng(3)
    truth = BatchModel(50, 0.05)
    points = batches(rng.integers(10, 3_000, 4_000), truth, rng, noise=0.08)
    assert spread(points, truth, 10_000) == pytest.approx(0.08, rel=0.1)


def test_a_fit_to_nothing_and_a_half_life_of_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="no finished batch"):
        fit([], 10)
    with pytest.raises(InputError, match="half-life"):
        fit([BatchPoint(1, 1.0, 0)], 0)
