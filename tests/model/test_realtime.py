"""The real-time model against a discrete-event simulation and closed forms."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.distribution import Distribution
from tailrace.model.realtime import (
    Boundary,
    FlowModel,
    HandOver,
    HandOverModel,
    longest_within,
)
from tests.model.lifetimes import longest_lifetime_ms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PLAIN = HandOverModel(0.2, 0.002)
models = st.builds(HandOverModel, st.floats(0.05, 1.0), st.floats(0.0005, 0.5))
statistics = st.one_of(st.none(), st.sampled_from([0.5, 0.9, 0.99]))


def simulated(
    model: HandOverModel, entries_ms: Floats, lifetime_ms: float, free_ms: float = 0.0
) -> tuple[Floats, Floats, float]:
    """One open batch before one bulk server: waits, ends, and records per hand-over.

    A batch goes when it is a lifetime old or full, and never before the server is free.
    """
    ends, waits = np.empty(len(entries_ms)), np.empty(len(entries_ms))
    first = handed_over = 0
    while first < len(entries_ms):
        cut_ms = max(free_ms, entries_ms[first] + lifetime_ms)
        end = int(np.searchsorted(entries_ms, cut_ms, side="right"))
        if end - first >= model.most:
            end = first + model.most
            cut_ms = max(free_ms, entries_ms[end - 1])
        free_ms = cut_ms + model.fixed_ms + model.per_record_ms * (end - first)
        waits[first:end] = cut_ms - entries_ms[first:end]
        ends[first:end] = free_ms
        first, handed_over = end, handed_over + 1
    return waits, ends, len(entries_ms) / handed_over


def poisson(rate_per_s: float, count: int, seed: int = 3) -> Floats:
    gaps = np.random.default_rng(seed).exponential(1_000 / rate_per_s, count)
    arrivals: Floats = np.cumsum(gaps)
    return arrivals


RATES = [200, 2_000, 20_000, 100_000, 400_000]
LIFETIMES = [0.0, 1.0, 10.0]


@pytest.mark.parametrize("lifetime_ms", LIFETIMES)
@pytest.mark.parametrize("rate", RATES)
def test_poisson_arrivals_wait_and_gather_as_in_a_simulation(
    rate: float, lifetime_ms: float
) -> None:
    arrivals = poisson(rate, 60_000)
    waits, ends, records = simulated(PLAIN, arrivals, lifetime_ms)
    latencies = (ends - arrivals)[5_000:]
    found = PLAIN.latency(rate, lifetime_ms)
    assert PLAIN.records(rate, lifetime_ms) == pytest.approx(records, rel=0.06)
    assert PLAIN.wait_ms(rate, lifetime_ms) == pytest.approx(waits.mean(), rel=0.05, abs=0.002)
    assert found.mean_ms == pytest.approx(latencies.mean(), rel=0.03)
    for quantile in (0.5, 0.95, 0.99):
        expected = np.quantile(latencies, quantile)
        assert found.quantile_ms(quantile) == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize(
    ("per_record_ms", "rate"), [(0.1, 1_000), (0.1, 6_000), (0.8, 200), (0.8, 900)]
)
@pytest.mark.parametrize("lifetime_ms", [0.0, 2.0, 20.0])
def test_steps_that_take_long_queue_as_in_a_simulation(
    per_record_ms: float, rate: float, lifetime_ms: float
) -> None:
    model = HandOverModel(0.2, per_record_ms)
    arrivals = poisson(rate, 120_000)
    _, ends, records = simulated(model, arrivals, lifetime_ms)
    latencies, found = ends - arrivals, model.latency(rate, lifetime_ms)
    assert model.records(rate, lifetime_ms) == pytest.approx(records, rel=0.04)
    assert found.mean_ms == pytest.approx(latencies.mean(), rel=0.05)
    assert found.quantile_ms(0.99) == pytest.approx(np.quantile(latencies, 0.99), rel=0.15)


@pytest.mark.parametrize("lifetime_ms", LIFETIMES)
@pytest.mark.parametrize("rate", RATES)
def test_even_arrivals_wait_and_gather_as_in_a_simulation(rate: float, lifetime_ms: float) -> None:
    arrivals = np.arange(1.0, 40_001.0) * 1_000.0 / rate
    waits, ends, records = simulated(PLAIN, arrivals, lifetime_ms)
    latencies = (ends - arrivals)[10_000:]
    found = PLAIN.latency(rate, lifetime_ms, even=True)
    # Whole records and whole hand-overs: the model is off by up to one record.
    spacing_ms = 1_000 / rate
    assert PLAIN.records(rate, lifetime_ms, even=True) == pytest.approx(records, rel=0.07, abs=0.6)
    assert PLAIN.wait_ms(rate, lifetime_ms, even=True) == pytest.approx(
        waits[10_000:].mean(), rel=0.03, abs=0.7 * spacing_ms if rate > 5_000 else 1e-6
    )
    assert found.mean_ms == pytest.approx(latencies.mean(), rel=0.04, abs=0.7 * spacing_ms)
    assert found.quantile_ms(0.9) == pytest.approx(
        np.quantile(latencies, 0.9), rel=0.04, abs=0.7 * spacing_ms
    )


def test_an_idle_server_makes_a_record_wait_all_of_a_lifetime_alone_and_half_in_a_crowd() -> None:
    model = HandOverModel(0.01, 0.0)
    for rate in (1, 100, 2_000, 50_000):
        came = rate * 10 / 1_000
        assert model.wait_ms(rate, 10.0) == pytest.approx(
            10 * (1 + came / 2) / (1 + came), rel=1e-3
        )
        assert model.records(rate, 10.0) == pytest.approx(1 + came, rel=1e-3)


def test_natural_batches_grow_to_what_arrives_while_python_is_busy() -> None:
    assert PLAIN.records(400_000, 0.0) == pytest.approx(400, rel=0.01)
    assert PLAIN.latency(400_000, 0.0).mean_ms == pytest.approx(1.5 * 0.2 / (1 - 0.8), rel=0.02)
    assert PLAIN.records(1, 0.0) == pytest.approx(1, abs=1e-3)
    assert PLAIN.latency(1, 0.0).mean_ms == pytest.approx(0.202, rel=1e-3)


def test_beyond_full_hand_overs_back_to_back_the_backlog_grows_without_end() -> None:
    limit = PLAIN.highest_rate_per_s
    assert limit == pytest.approx(2_000 / 4.2 * 1_000)
    assert PLAIN.stable(0.99 * limit)
    assert not PLAIN.stable(limit)
    assert math.isinf(PLAIN.latency(limit, 0.0).mean_ms)
    assert math.isinf(PLAIN.wait_ms(limit, 0.0))
    assert math.isinf(FlowModel((HandOver(PLAIN, limit),)).latency().quantile_ms(0.5))
    assert longest_lifetime_ms(PLAIN, 1_000.0, limit) is None


@settings(max_examples=40, deadline=None)
@given(models, st.floats(0.01, 0.9), st.floats(0, 50), st.floats(1.05, 3))
def test_a_longer_lifetime_gathers_more_and_costs_less(
    model: HandOverModel, load: float, lifetime_ms: float, factor: float
) -> None:
    rate = load * model.highest_rate_per_s
    shorter, longer = lifetime_ms, lifetime_ms * factor
    before, after = (model.records(rate, ms) for ms in (shorter, longer))
    assert 1 <= before <= after * (1 + 5e-3) <= model.most * (1 + 5e-3)
    cheaper, dearer = (model.cpu_per_record_ms(rate, ms) for ms in (longer, shorter))
    assert model.per_record_ms < cheaper <= dearer * (1 + 5e-3)


@settings(max_examples=25, deadline=None)
@given(models, st.floats(0.05, 0.85), st.floats(1.2, 40), statistics)
def test_the_longest_lifetime_keeps_the_target_and_a_longer_one_does_not(
    model: HandOverModel, load: float, factor: float, quantile: float | None
) -> None:
    rate = load * model.highest_rate_per_s
    target_ms = factor * model.latency(rate, 0.0).statistic_ms(quantile)
    found = longest_lifetime_ms(model, target_ms, rate, quantile)
    assert found is not None
    assert model.latency(rate, found).statistic_ms(quantile) <= target_ms
    # Batches that fill before they are old make longer lifetimes the same.
    assume(rate * found / 1_000 < 0.9 * model.most)
    longer_ms = 1.02 * found + 0.02
    assert model.latency(rate, longer_ms).statistic_ms(quantile) > 0.999 * target_ms


def test_a_target_below_lifetime_zero_has_no_lifetime() -> None:
    assert longest_lifetime_ms(PLAIN, 0.1, 2_000) is None
    assert longest_within(lambda ms: ms, 7.0, 5.0) == 5.0


@settings(max_examples=40, deadline=None)
@given(models, st.floats(0.001, 0.9))
def test_beyond_the_useful_lifetime_the_fixed_cost_is_a_twentieth_of_the_work_or_batches_are_full(
    model: HandOverModel, load: float
) -> None:
    rate = load * model.highest_rate_per_s
    useful_ms = model.useful_lifetime_ms(rate)
    records = model.records(rate, useful_ms)
    saving = model.fixed_ms / records / model.per_record_ms
    assert saving <= 0.05 * 1.02 or records >= 0.99 * model.most
    if useful_ms:
        fewer = model.records(rate, useful_ms / 2)
        assert model.fixed_ms / fewer / model.per_record_ms > 0.05


def test_costs_that_no_hand_over_can_have_are_refused() -> None:
    with pytest.raises(InputError, match="cannot cost -1"):
        HandOverModel(-1, 0)
    with pytest.raises(InputError, match="nan ms a record"):
        HandOverModel(1, math.nan)
    with pytest.raises(InputError, match="at least 1"):
        HandOverModel(1, 1, most=0)


# --- spreads --------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0.01, 1)), min_size=1, max_size=60))
def test_a_spread_keeps_the_mean_of_what_it_was_made_of(pairs: list[tuple[float, float]]) -> None:
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    spread = Distribution.of(values, weights)
    assert spread.mean_ms == pytest.approx(np.average(values, weights=weights), rel=1e-9, abs=1e-9)
    assert all(low <= high + 1e-6 for low, high in pairwise(spread.points))


def test_the_sum_of_two_spreads_is_that_of_independent_samples() -> None:
    rng = np.random.default_rng(5)
    one, other = rng.exponential(3, 200_000), rng.uniform(0, 10, 200_000)
    whole = Distribution.of(one, np.ones(len(one))) + Distribution.even(0, 10)
    assert whole.mean_ms == pytest.approx(8, rel=0.01)
    for quantile in (0.1, 0.5, 0.9, 0.99, 0.999):
        expected = np.quantile(one + other, quantile)
        assert whole.quantile_ms(quantile) == pytest.approx(expected, rel=0.02)


def test_a_constant_added_to_a_spread_moves_it() -> None:
    moved = Distribution.even(0, 10) + Distribution.even(2, 2)
    assert moved.quantile_ms(0.5) == pytest.approx(7, rel=1e-6)
    assert moved.statistic_ms(None) == pytest.approx(7)


# --- batch boundaries ---------------------------------------------------------------------


def entering(arrivals_ms: Floats, boundary: Boundary) -> Floats:
    """When records enter the flow: those of a gap at its end."""
    period_ms = boundary.gap_ms + boundary.length_ms
    since = arrivals_ms % period_ms
    return np.where(since < boundary.gap_ms, arrivals_ms - since + boundary.gap_ms, arrivals_ms)


def across_a_gap(
    model: HandOverModel, rate: float, lifetime_ms: float, boundary: Boundary, every_ms: float
) -> Floats:
    """Latencies of the records of windows that open with a gap, many of them put together."""
    windows = []
    for seed in range(12):
        arrivals = poisson(rate, int(rate * every_ms / 1_000 * 1.2) + 10, seed)
        arrivals = arrivals[arrivals < every_ms]
        _, ends, _ = simulated(model, entering(arrivals, boundary), lifetime_ms)
        windows.append(ends - arrivals)
    return np.concatenate(windows)


@pytest.mark.parametrize(
    ("model", "rate", "lifetime_ms"),
    [
        (PLAIN, 2_000, 0.0),
        (PLAIN, 2_000, 10.0),
        (PLAIN, 50_000, 0.0),
        (HandOverModel(0.2, 0.3), 2_000, 0.0),
        (HandOverModel(0.2, 0.3), 2_000, 5.0),
    ],
)
def test_a_window_with_a_gap_has_the_latency_that_a_simulation_has(
    model: HandOverModel, rate: float, lifetime_ms: float
) -> None:
    boundary, every_ms = Boundary(60.0, 60_000.0), 2_000.0
    latencies = across_a_gap(model, rate, lifetime_ms, boundary, every_ms)
    found = FlowModel((HandOver(model, rate, lifetime_ms),)).latency_across(boundary, every_ms)
    assert found.mean_ms == pytest.approx(latencies.mean(), rel=0.1)
    assert found.quantile_ms(0.5) == pytest.approx(np.quantile(latencies, 0.5), rel=0.12)
    assert found.quantile_ms(0.99) == pytest.approx(np.quantile(latencies, 0.99), rel=0.15)


@given(st.floats(1, 200), st.floats(1_000, 10_000))
def test_with_little_load_a_gap_adds_its_square_over_twice_the_window(
    gap_ms: float, every_ms: float
) -> None:
    excess = Boundary(gap_ms, 60_000.0).excess([HandOver(HandOverModel(1e-4, 0), 10)], every_ms)
    assert excess.mean_ms == pytest.approx(gap_ms**2 / (2 * every_ms), rel=0.01)


@given(st.floats(1, 300), st.floats(500, 60_000), st.floats(500, 60_000))
def test_the_worst_window_holds_as_much_gap_as_a_window_slid_over_them_finds(
    gap_ms: float, length_ms: float, every_ms: float
) -> None:
    boundary, period_ms = Boundary(gap_ms, length_ms), gap_ms + length_ms

    def gap_before(end_ms: float) -> float:
        whole, rest = divmod(end_ms, period_ms)
        return whole * gap_ms + min(rest, gap_ms)

    starts = np.linspace(0, period_ms, 400, endpoint=False)
    slid = [gap_before(float(start) + every_ms) - gap_before(float(start)) for start in starts]
    assert boundary.gaps_in(every_ms) * gap_ms == pytest.approx(max(slid), abs=1e-6)
    touched = np.mean(np.array(slid) > 1e-9)
    assert boundary.share_of_windows(every_ms) == pytest.approx(touched, abs=6e-3)


def test_without_a_gap_a_boundary_changes_nothing() -> None:
    flow = FlowModel((HandOver(PLAIN, 2_000, 5.0),))
    none = Boundary(0.0, 5_000.0)
    across = flow.latency_across(none, 5_000.0)
    assert none.gaps_in(5_000.0) == none.share_of_windows(5_000.0) == 0
    assert across.mean_ms == pytest.approx(flow.latency().mean_ms)


# --- flows ----------------------------------------------------------------------------------


def test_a_flow_is_the_sum_of_its_parts() -> None:
    first, second = HandOver(PLAIN, 2_000, 4.0), HandOver(HandOverModel(0.3, 0.1), 1_000, 2.0)
    flow = FlowModel((first, second), hops=2, flush_ms=6.0, steps_ms=0.5, sink_ms=1.5)
    parts_ms = first.latency().mean_ms + second.latency().mean_ms + 2 * 6.0 / 2 + 0.5 + 1.5
    assert flow.latency().mean_ms == pytest.approx(parts_ms)
    assert flow.statistic_ms(0.99, 5_000) < parts_ms + 4 + 2 + 2 * 6
    assert flow.cores == pytest.approx(
        2 * PLAIN.cpu_per_record_ms(2_000, 4.0) + second.model.cpu_per_record_ms(1_000, 2.0)
    )


def test_a_chain_of_hand_overs_has_the_quantiles_of_simulated_ones_in_a_row() -> None:
    second = HandOverModel(0.3, 0.02)
    arrivals = poisson(2_000, 100_000)
    _, ends, _ = simulated(PLAIN, arrivals, 4.0)
    shuffled = ends + np.random.default_rng(1).uniform(0, 30, len(ends))
    order = np.argsort(shuffled)
    _, final, _ = simulated(second, shuffled[order], 6.0)
    latencies = final - arrivals[order]
    hand_overs = (HandOver(PLAIN, 2_000, 4.0), HandOver(second, 2_000, 6.0))
    found = FlowModel(hand_overs, hops=1, flush_ms=30.0).latency()
    assert found.mean_ms == pytest.approx(latencies.mean(), rel=0.03)
    assert found.quantile_ms(0.99) == pytest.approx(np.quantile(latencies, 0.99), rel=0.05)


@settings(max_examples=15, deadline=None)
@given(st.floats(3, 200), statistics, st.booleans())
def test_the_longest_lifetimes_of_a_flow_use_up_its_target_or_their_use(
    target_ms: float, quantile: float | None, across: bool
) -> None:
    flow = FlowModel(
        (HandOver(HandOverModel(0.2, 0.05), 1_000), HandOver(HandOverModel(0.2, 0.01), 1_000)),
        sink_ms=0.2,
    )
    boundary = Boundary(30.0, 60_000.0) if across else None
    found = flow.longest_lifetimes_ms(target_ms, quantile, 5_000.0, boundary)
    assert found is not None
    value_ms = flow.with_lifetimes(found).statistic_ms(quantile, 5_000.0, boundary)
    useful = flow.useful_lifetimes_ms()
    assert value_ms <= target_ms
    assert all(ms <= most for ms, most in zip(found, useful, strict=True))
    assert value_ms > 0.98 * target_ms - 0.1 or found == pytest.approx(useful)


def test_a_flow_whose_steps_alone_miss_the_target_has_no_lifetimes() -> None:
    flow = FlowModel((HandOver(PLAIN, 2_000),), steps_ms=9.0)
    assert flow.longest_lifetimes_ms(9.0, None, 5_000.0) is None
