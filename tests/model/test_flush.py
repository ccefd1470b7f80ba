"""Batches with a limit and a timer: golden vectors, simulation, and what the originals got wrong.

The unit of time is the millisecond; with the defaults of Storm, 100 records and 1 ms.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special  # it ships no types

from tailrace.errors import InputError
from tailrace.model.queueing.flush import (
    Flush,
    PeriodicFlush,
    RestartingFlush,
    TimeWindow,
    count_window,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

STORM = (100, 1.0)


def poisson(rate_per_s: float, count: int, seed: int = 2) -> Floats:
    return np.random.default_rng(seed).exponential(1_000 / rate_per_s, count).cumsum()


def restarting(arrivals_ms: Floats, limit: int, flush_ms: float) -> tuple[Floats, float]:
    """Waits, and the mean size of a batch, under a timer that restarts at each delivery."""
    arrivals = arrivals_ms.tolist()
    waits, batches, first, start = np.empty(len(arrivals)), 0, 0, 0.0
    while first < len(arrivals):
        start += flush_ms * math.floor((arrivals[first] - start) / flush_ms)
        end = min(bisect_left(arrivals, start + flush_ms, first + 1), first + limit)
        full = end == first + limit
        start = arrivals[end - 1] if full else start + flush_ms
        waits[first:end] = start - arrivals_ms[first:end]
        first, batches = end, batches + 1
    return waits, len(arrivals) / batches


def periodic(arrivals_ms: Floats, limit: int, flush_ms: float) -> tuple[Floats, float]:
    """The same, under a timer that fires every so often."""
    interval = np.floor(arrivals_ms / flush_ms)
    _, opens, counts = np.unique(interval, return_index=True, return_counts=True)
    position = np.arange(len(arrivals_ms)) - np.repeat(opens, counts)
    last = np.arange(len(arrivals_ms)) - position % limit + limit - 1
    fills = last < np.repeat(opens + counts, counts)
    leaves = np.where(
        fills, arrivals_ms[np.minimum(last, len(last) - 1)], (interval + 1) * flush_ms
    )
    return leaves - arrivals_ms, len(arrivals_ms) / float(np.ceil(counts / limit).sum())


def chances(expected: float, limit: int) -> tuple[float, float]:
    """``P(N > k)`` and ``P(0 < N < k)``."""
    none = math.exp(-expected)
    return float(special.pdtrc(limit, expected)), float(special.pdtr(limit - 1, expected)) - none


# --- golden vectors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "records"),
    [
        (10, 1.005),
        (1e2, 1.051),
        (1e3, 1.582),
        (1e4, 10.000),
        (9e4, 89.250),
        (1e5, 96.014),
        (2e5, 100.000),
    ],
)
def test_the_mean_batch_of_a_restarting_timer_is_that_of_the_vectors(
    rate: float, records: float
) -> None:
    assert RestartingFlush(rate, *STORM).mean_records == pytest.approx(records, abs=6e-4)


@pytest.mark.parametrize(
    ("rate", "records", "wait_ms"),
    [
        (1e4, 10.000, 0.500),
        (9e4, 79.30, 0.491),
        (1e5, 67.87, 0.460),
        (1.2e5, 61.06, 0.360),
        (2e5, 80.61, 0.236),
        (1e6, 95.31, 0.0487),
    ],
)
def test_the_mean_batch_and_wait_of_a_periodic_timer_are_those_of_the_vectors(
    rate: float, records: float, wait_ms: float
) -> None:
    flush = PeriodicFlush(rate, *STORM)
    assert flush.mean_records == pytest.approx(records, abs=6e-3)
    assert flush.mean_wait_ms == pytest.approx(wait_ms, abs=6e-4)


def half_the_run(rate: float, limit: int, flush_ms: float) -> float:
    """Cooper's 4.35 and 4.36 with its sum and its condition repaired: half of a run's length."""
    expected = rate * flush_ms / 1_000
    full, flushed = chances(expected, limit)
    both = limit / rate * 1_000 * full + flush_ms * flushed
    return both / 2 / -math.expm1(-expected)


@pytest.mark.parametrize(("rate", "wait_ms"), [(10, 0.5), (5e4, 0.5), (1e5, 0.480), (2e5, 0.250)])
def test_the_mean_wait_of_a_restarting_timer_is_that_of_the_vectors_but_for_the_last_record(
    rate: float, wait_ms: float
) -> None:
    assert half_the_run(rate, *STORM) == pytest.approx(wait_ms, abs=6e-4)
    assert RestartingFlush(rate, *STORM).mean_wait_ms == pytest.approx(wait_ms, rel=0.011)


# --- simulation -------------------------------------------------------------------------------

CASES = [(1, 0.5), (1, 3.0), (2, 0.05), (10, 0.3), (10, 8.0), (10, 12.0), (10, 60.0), (100, 110.0)]


def assert_like(flush: Flush, waits: Floats, records: float) -> None:
    assert flush.mean_records == pytest.approx(records, rel=0.01)
    assert flush.mean_wait_ms == pytest.approx(waits.mean(), rel=0.01, abs=1e-9)
    assert flush.batches_per_s == pytest.approx(flush.rate_per_s / records, rel=0.01)
    for level in (0.1, 0.5, 0.9, 0.99):
        assert flush.wait_quantile_ms(level) == pytest.approx(
            np.quantile(waits, level), rel=0.015, abs=0.004 * flush.flush_ms
        )
    for ms in (0.0, 0.2 * flush.flush_ms, 0.7 * flush.flush_ms):
        assert flush.wait_exceeds(ms) == pytest.approx(np.mean(waits > ms), abs=0.006)


@pytest.mark.parametrize(("limit", "expected"), CASES)
def test_a_restarting_timer_is_like_a_simulated_one(limit: int, expected: float) -> None:
    flush = RestartingFlush(expected / 20 * 1_000, limit, 20.0)
    assert_like(flush, *restarting(poisson(flush.rate_per_s, 200_000), limit, 20.0))


@pytest.mark.parametrize(("limit", "expected"), CASES)
def test_a_periodic_timer_is_like_a_simulated_one(limit: int, expected: float) -> None:
    flush = PeriodicFlush(expected / 20 * 1_000, limit, 20.0)
    assert_like(flush, *periodic(poisson(flush.rate_per_s, 400_000), limit, 20.0))


@pytest.mark.parametrize("limit", [2, 7, 300, 4_000])
@pytest.mark.parametrize("expected", [0.5, 20, 4_000, 100_000])
def test_a_periodic_timer_waits_as_the_sum_over_every_number_of_records_says(
    limit: int, expected: float
) -> None:
    numbers = np.arange(int(expected + 12 * math.sqrt(expected)) + 30.0)
    logs = special.xlogy(numbers, expected) - expected - special.gammaln(numbers + 1)
    whole, rest = np.divmod(numbers, limit)
    gaps = whole * limit * (limit - 1) / 2 + rest * (rest + 1) / 2
    wait_ms = float(np.exp(logs) @ (gaps / (numbers + 1))) * 50.0 / expected
    batches = float(np.exp(logs) @ np.ceil(numbers / limit))
    flush = PeriodicFlush(expected / 50 * 1_000, limit, 50.0)
    assert flush.mean_wait_ms == pytest.approx(wait_ms, rel=1e-7)
    assert flush.mean_records == pytest.approx(expected / batches, rel=1e-7)


@pytest.mark.parametrize("rate", [3e6, 2e7, 1e9])
@pytest.mark.parametrize("share", [0.4, 1.0, 1.01, 7.3, 2_000.0])
def test_millions_of_records_an_interval_wait_as_in_a_sample_of_intervals(
    rate: float, share: float
) -> None:
    limit = round(rate / share)
    numbers = np.random.default_rng(4).poisson(rate, 40_000).astype(np.float64)
    whole, rest = np.divmod(numbers, limit)
    gaps = whole * limit * (limit - 1) / 2 + rest * (rest + 1) / 2
    flush = PeriodicFlush(rate, limit, 1_000.0)
    assert flush.mean_records == pytest.approx(rate / np.ceil(numbers / limit).mean(), rel=0.01)
    wait_ms = float((gaps / (numbers + 1)).mean()) / rate * 1_000
    assert flush.mean_wait_ms == pytest.approx(wait_ms, rel=0.01)
    even = count_window(limit, rate).mean_wait_ms
    longest_ms = min(1_000.0, 2.2 * even)
    grid = np.linspace(0, longest_ms, 300)
    area = float(np.trapezoid([flush.wait_exceeds(ms) for ms in grid], grid))
    assert area == pytest.approx(flush.mean_wait_ms, rel=5e-3)


# --- what the originals got wrong -------------------------------------------------------------


def as_printed(rate: float, limit: int, flush_ms: float) -> float:
    """Cooper 2020, eq. 4.35 and 4.36 to the letter."""
    expected = rate * flush_ms / 1_000
    _, flushed = chances(expected, limit)
    full = float(special.pdtrc(limit - 1, expected))
    return (limit / rate * 1_000 * full + flush_ms * flushed) / 2


def test_at_low_rates_a_record_waits_half_the_timer_where_the_printed_formula_has_nothing() -> None:
    waits, _ = restarting(poisson(10, 50_000), *STORM)
    assert waits.mean() == pytest.approx(0.5, rel=0.01)
    assert as_printed(10, *STORM) == pytest.approx(0.005, rel=0.01)
    assert RestartingFlush(10, *STORM).mean_wait_ms == pytest.approx(0.5)


def test_the_time_to_fill_a_batch_sums_to_its_limit_where_4_35_stops_one_short() -> None:
    rng, limit, rate = np.random.default_rng(6), 10, 10_000
    filled = rng.gamma(limit, 1_000 / rate, 1_000_000)
    simulated = float(np.where(filled <= 1.0, filled, 0).mean())
    upto_limit, upto_one_less = (limit / rate * 1e3 * special.pdtrc(k, 10) for k in (10, 9))
    assert upto_limit == pytest.approx(simulated, rel=0.005)
    assert upto_one_less > 1.25 * simulated


def test_the_last_record_of_a_full_batch_waits_for_nothing_where_half_the_run_counts_it() -> None:
    for limit in (1, 2, 10):
        flush = RestartingFlush(50_000, limit, 20.0)
        waits, _ = restarting(poisson(50_000, 100_000), limit, 20.0)
        assert flush.mean_wait_ms == pytest.approx(waits.mean(), rel=0.01, abs=1e-12)
        assert half_the_run(50_000, limit, 20.0) == pytest.approx(limit / 100, rel=1e-3)
        assert flush.mean_wait_ms == pytest.approx((limit - 1) / 100)


@pytest.mark.parametrize(("times", "too_large"), [(0.8, 0.015), (1.2, 0.63), (2, 0.25), (10, 0.05)])
def test_a_periodic_timer_makes_smaller_batches_than_the_formula_of_a_restarting_one(
    times: float, too_large: float
) -> None:
    rate = times * 100_000
    _, records = periodic(poisson(rate, 1_000_000), *STORM)
    original = RestartingFlush(rate, *STORM).mean_records
    assert original / records - 1 == pytest.approx(too_large, abs=0.015)
    assert PeriodicFlush(rate, *STORM).mean_records == pytest.approx(records, rel=0.01)


def test_near_the_time_to_fill_a_batch_half_the_run_is_a_fifth_too_long_for_a_periodic_timer() -> (
    None
):
    waits, _ = periodic(poisson(140_000, 1_000_000), *STORM)
    assert half_the_run(140_000, *STORM) > 1.15 * waits.mean()
    assert PeriodicFlush(140_000, *STORM).mean_wait_ms == pytest.approx(waits.mean(), rel=0.01)


def test_a_count_window_of_ten_waits_a_ninth_less_than_half_its_duration() -> None:
    arrivals = poisson(1_000, 500_000).reshape(-1, 10)
    waits = arrivals[:, -1:] - arrivals
    window = count_window(10, 1_000)
    assert window.mean_wait_ms == pytest.approx(4.5)
    assert window.mean_wait_ms == pytest.approx(waits.mean(), rel=0.01)
    assert (10 / 2) / waits.mean() == pytest.approx(10 / 9, rel=0.01)
    assert window.mean_records == 10
    for level in (0.05, 0.3, 0.9, 0.99):
        expected = np.quantile(waits, level)
        assert window.wait_quantile_ms(level) == pytest.approx(expected, rel=0.02, abs=1e-9)


# --- limits and properties --------------------------------------------------------------------

timers = st.sampled_from([RestartingFlush, PeriodicFlush])


@settings(max_examples=200, deadline=None)
@given(
    timers,
    st.integers(1, 2_000),
    st.floats(-6, 5),
    st.floats(0.1, 100),
    st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
)
def test_batches_and_waits_stay_within_their_bounds(
    timer: type[Flush], limit: int, power: float, flush_ms: float, levels: tuple[float, float]
) -> None:
    expected = 10.0**power
    flush = timer(expected / flush_ms * 1_000, limit, flush_ms)
    assert 1 - 1e-9 <= flush.mean_records <= min(limit, expected + 1) * (1 + 1e-9)
    assert 0 <= flush.mean_wait_ms <= flush_ms / 2 * (1 + 1e-6)
    # Nobody waits longer than for a batch that no timer flushes, on average.
    assert flush.mean_wait_ms <= (limit - 1) / 2 / flush.rate_per_s * 1_000 * (1 + 1e-6)
    low, high = sorted(levels)
    assert 0 <= flush.wait_quantile_ms(low) <= flush.wait_quantile_ms(high) * (1 + 1e-6)
    longest_ms = flush.wait_quantile_ms(high)
    assert longest_ms <= flush_ms
    if longest_ms:
        assert flush.wait_exceeds(longest_ms) == pytest.approx(1 - high, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(timers, st.integers(2, 300), st.floats(-3, 3.5))
def test_the_share_that_waits_longer_adds_up_to_the_mean_wait(
    timer: type[Flush], limit: int, power: float
) -> None:
    flush = timer(10.0**power * 100, limit, 10.0)
    longest_ms = min(10.0, flush.wait_quantile_ms(0.999_999) * 1.05)
    grid = np.linspace(0, longest_ms, 301)
    area = np.trapezoid([flush.wait_exceeds(ms) for ms in grid], grid)
    assert area == pytest.approx(flush.mean_wait_ms, rel=2e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 500), st.floats(-3, 4.5), st.floats(1, 2))
def test_with_a_restarting_timer_more_records_make_larger_batches_and_shorter_waits(
    limit: int, power: float, factor: float
) -> None:
    slow, fast = (RestartingFlush(10.0**power * by, limit, 50.0) for by in (1, factor))
    assert slow.mean_records <= fast.mean_records * (1 + 1e-9)
    assert slow.mean_wait_ms >= fast.mean_wait_ms * (1 - 1e-6)
    longer = RestartingFlush(slow.rate_per_s, limit, 50.0 * factor)
    assert slow.mean_wait_ms <= longer.mean_wait_ms * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 500), st.floats(-3, 4.5), st.floats(1, 3))
def test_a_periodic_timer_never_makes_larger_batches_or_longer_waits_than_a_restarting_one(
    limit: int, power: float, factor: float
) -> None:
    rate = 10.0**power * factor
    often, seldom = PeriodicFlush(rate, limit, 50.0), RestartingFlush(rate, limit, 50.0)
    assert often.mean_records <= seldom.mean_records * (1 + 1e-9)
    assert often.mean_wait_ms <= seldom.mean_wait_ms * (1 + 1e-6)


def test_without_a_limit_in_reach_every_wait_up_to_the_timer_is_as_likely() -> None:
    for timer in (RestartingFlush, PeriodicFlush):
        for rate in (0.0, 1e-12, 1.0, 1_000.0):
            flush = timer(rate, 10**6, 50.0)
            assert flush.mean_wait_ms == pytest.approx(25.0)
            assert flush.wait_quantile_ms(0.99) == pytest.approx(49.5)


def test_a_batch_of_one_never_waits_and_a_timer_of_zero_never_makes_one_wait() -> None:
    for timer in (RestartingFlush, PeriodicFlush):
        for flush in (timer(500, 1, 50.0), timer(500, 10, 0.0), timer(0, 1, math.inf)):
            assert flush.mean_records == pytest.approx(1)
            assert flush.mean_wait_ms == flush.wait_quantile_ms(0.999) == 0
            assert flush.wait_exceeds(0.0) == 0


def test_a_timer_that_never_fires_leaves_a_count_window_of_either_kind() -> None:
    for timer in (RestartingFlush, PeriodicFlush):
        flush = timer(1_000, 20, math.inf)
        assert flush.mean_records == 20
        assert flush.mean_wait_ms == pytest.approx(9.5)
        far = timer(1_000, 20, 1e6)
        assert flush.wait_quantile_ms(0.99) == pytest.approx(far.wait_quantile_ms(0.99), rel=1e-3)
        never = timer(0.0, 20, math.inf)
        assert math.isinf(never.mean_wait_ms)
        assert math.isinf(never.wait_quantile_ms(0.5))


@pytest.mark.parametrize("limit", [320, 30_000, 50_000, 99_000, 100_000, 100_400, 250_000])
def test_the_asymptotic_sum_agrees_with_the_exact_one(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = PeriodicFlush(100_000, limit, 1_000.0)
    levels = (0.1, 0.5, 0.9, 0.99)

    def found() -> list[float]:
        quantiles = [flush.wait_quantile_ms(level) for level in levels]
        return [flush.mean_records, flush.mean_wait_ms, *quantiles]

    exact = found()
    monkeypatch.setattr("tailrace.model.queueing.flush._MOST_COUNTS", -30)
    asymptotic = found()
    assert exact != asymptotic
    assert asymptotic == pytest.approx(exact, rel=1e-3)


# --- windows over a time ----------------------------------------------------------------------


@given(st.floats(1, 1e4), st.floats(0.01, 1), st.integers(0, 10**6))
def test_time_windows_wait_as_their_definition_says(
    length_ms: float, share: float, seed: int
) -> None:
    slide_ms = share * length_ms
    at = np.random.default_rng(seed).uniform(0, 1e3 * length_ms, 4_000)
    newest = np.floor(at / slide_ms) * slide_ms
    until_last = newest + length_ms - at
    # The oldest window that still holds the record: steps back while its end is ahead.
    steps = np.ceil((until_last - slide_ms) / slide_ms)
    until_first = until_last - steps * slide_ms
    first = TimeWindow(length_ms, slide_ms)
    last = TimeWindow(length_ms, slide_ms, first=False)
    assert first.mean_wait_ms == pytest.approx(until_first.mean(), rel=0.06)
    assert last.mean_wait_ms == pytest.approx(until_last.mean(), rel=0.06)
    assert until_first.max() <= first.wait_quantile_ms(0.999_999_9) * (1 + 1e-6)
    assert until_last.min() >= last.wait_quantile_ms(0.0) * (1 - 1e-6)


def test_a_tumbling_window_is_one_that_slides_by_its_length() -> None:
    tumbling = TimeWindow(200.0)
    assert tumbling.mean_wait_ms == 100
    assert tumbling.wait_quantile_ms(0.95) == pytest.approx(190)
    for first in (True, False):
        assert TimeWindow(200.0, 200.0, first=first).mean_wait_ms == 100
    assert TimeWindow(200.0, 50.0).mean_wait_ms == 25
    assert TimeWindow(200.0, 50.0, first=False).mean_wait_ms == 175


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RestartingFlush(-1, 10, 1), "at -1 records/s"),
        (lambda: PeriodicFlush(math.nan, 10, 1), "at nan records/s"),
        (lambda: PeriodicFlush(1, 0, 1), "limited to 0 records"),
        (lambda: PeriodicFlush(1, 2.5, 1), "limited to 2.5 records"),  # type: ignore[arg-type]
        (lambda: RestartingFlush(1, 10, -5), "every -5 ms"),
        (lambda: RestartingFlush(1, 10, math.nan), "every nan ms"),
        (lambda: PeriodicFlush(1, 10, 5).wait_quantile_ms(1), "1 is not a quantile"),
        (lambda: TimeWindow(0.0), "last 0.0 ms"),
        (lambda: TimeWindow(10.0, 20.0), "slide by 20.0 ms"),
        (lambda: TimeWindow(10.0).wait_quantile_ms(2), "2 is not a quantile"),
    ],
)
def test_what_no_batch_or_window_can_have_is_refused_in_a_sentence(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=said) as caught:
        make()
    assert str(caught.value).endswith(".")
