"""Queues against closed forms, against simulated ones, and against each other."""

from __future__ import annotations

import heapq
import math
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.queueing.queues import (
    KLB,
    MG1,
    Bounded,
    Correction,
    Kingman,
    MMc,
    Queue,
    network_mean_ms,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CUSTOMERS = 1_500_000


def times(rng: np.random.Generator, mean: float, cv: float, count: int) -> Floats:
    """Gamma distributed, or constant."""
    return rng.gamma(cv**-2, mean * cv**2, count) if cv else np.full(count, mean)


def simulated(
    rate_per_s: float, service_ms: float, arrival_cv: float, service_cv: float, seed: int = 1
) -> tuple[Floats, Floats]:
    """Waits and stays at one server, by Lindley's recursion in its summed form."""
    rng = np.random.default_rng(seed)
    services = times(rng, service_ms, service_cv, CUSTOMERS)
    gaps = times(rng, 1_000 / rate_per_s, arrival_cv, CUSTOMERS)
    walk = np.concatenate(([0.0], np.cumsum(services[:-1] - gaps[1:])))
    waits = walk - np.minimum.accumulate(walk)
    settled = CUSTOMERS // 20
    return waits[settled:], (waits + services)[settled:]


def assert_like(
    queue: Queue, waits: Floats, stays: Floats, rel: float, levels: tuple[float, ...]
) -> None:
    assert queue.mean_wait_ms == pytest.approx(waits.mean(), rel=rel)
    assert queue.mean_ms == pytest.approx(stays.mean(), rel=rel)
    for level in levels:
        assert queue.wait_quantile_ms(level) == pytest.approx(
            np.quantile(waits, level), rel=rel, abs=0.01 * queue.service_ms
        )
        assert queue.quantile_ms(level) == pytest.approx(np.quantile(stays, level), rel=rel)


# --- M/M/c ------------------------------------------------------------------------------------


@given(st.floats(1, 900), st.floats(0, 0.9999))
def test_one_server_is_m_m_1(rate: float, quantile: float) -> None:
    queue, left_ms = MMc(rate, 1.0), 1_000 / (1_000 - rate)
    rho = rate / 1_000
    assert queue.mean_ms == pytest.approx(left_ms)
    assert queue.mean_number == pytest.approx(rho / (1 - rho))
    assert queue.quantile_ms(quantile) == pytest.approx(-math.log1p(-quantile) * left_ms, abs=1e-9)
    expected_ms = max(0.0, math.log(rho / (1 - quantile)) * left_ms)
    assert queue.wait_quantile_ms(quantile) == pytest.approx(expected_ms, abs=1e-9)


def test_the_vector_of_the_simulator_half_busy_with_a_service_of_one_stays_two() -> None:
    assert MMc(0.5, 1_000.0).mean_ms == pytest.approx(2_000)


def test_erlangs_c_has_the_values_of_the_textbooks() -> None:
    assert MMc(1_000, 1.0, 2).waiting_share == pytest.approx(1 / 3)
    assert MMc(2_000, 1.0, 3).waiting_share == pytest.approx(4 / 9)
    factorials = 8**10 / math.factorial(10) / (1 - 0.8)
    below = sum(8**n / math.factorial(n) for n in range(10))
    assert MMc(8_000, 1.0, 10).waiting_share == pytest.approx(factorials / (below + factorials))


def test_erlangs_c_holds_for_a_hundred_thousand_servers() -> None:
    # Halfin and Whitt: with 1 - rho = beta/sqrt(c), C = 1/(1 + sqrt(2 pi) beta Phi(beta) e^(b^2/2))
    beta, servers = 0.5, 100_000
    phi = 0.5 * (1 + math.erf(beta / math.sqrt(2)))
    expected = 1 / (1 + math.sqrt(2 * math.pi) * beta * phi * math.exp(beta**2 / 2))
    rate = servers * (1 - beta / math.sqrt(servers))
    assert MMc(rate, 1_000.0, servers).waiting_share == pytest.approx(expected, rel=5e-3)
    assert MMc(1.0, 1_000.0, servers).waiting_share == 0


def simulated_servers(
    rate_per_s: float, service_ms: float, servers: int, room: int, customers: int
) -> tuple[Floats, Floats, float]:
    """Waits, stays and the time that passed, of a source that pauses while there is no room."""
    rng = np.random.default_rng(3)
    gaps = rng.exponential(1_000 / rate_per_s, customers).tolist()
    services = rng.exponential(service_ms, customers).tolist()
    free = [0.0] * servers
    inside: list[float] = []
    waits, now = np.empty(customers), 0.0
    for number, (gap, service) in enumerate(zip(gaps, services, strict=True)):
        while inside and inside[0] <= now:
            heapq.heappop(inside)
        if len(inside) >= room:
            now = inside[0]
        now += gap
        start = max(now, free[0])
        heapq.heapreplace(free, start + service)
        heapq.heappush(inside, start + service)
        waits[number] = start - now
    return waits, waits + np.array(services), now


@pytest.mark.parametrize(("servers", "load"), [(2, 0.7), (5, 0.8)])
def test_servers_that_share_a_line_are_like_simulated_ones(servers: int, load: float) -> None:
    waits, stays, _ = simulated_servers(servers * load * 100, 10.0, servers, 10**9, 250_000)
    queue = MMc(servers * load * 100, 10.0, servers)
    assert_like(queue, waits, stays, 0.04, (0.5, 0.9, 0.99))
    assert queue.waiting_share == pytest.approx(np.mean(waits > 0), rel=0.02)


@given(st.integers(1, 60), st.floats(0.01, 0.99), st.floats(0.01, 0.999))
def test_a_stay_undoes_its_share_and_outlasts_a_service(
    servers: int, load: float, quantile: float
) -> None:
    queue = MMc(servers * load * 100, 10.0, servers)
    assert queue.exceeds(queue.quantile_ms(quantile)) == pytest.approx(1 - quantile, rel=1e-6)
    alone = math.exp(-queue.quantile_ms(quantile) / 10.0)
    assert alone * (1 - 1e-6) <= 1 - quantile


# --- M/G/1 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.3, 0.8])
@pytest.mark.parametrize("cv", [0.0, 0.01, 0.3, 1.0, 2.0])
def test_one_server_with_any_service_is_like_a_simulated_one(load: float, cv: float) -> None:
    waits, stays = simulated(load * 200, 5.0, 1.0, cv)
    assert_like(MG1(load * 200, 5.0, cv), waits, stays, 0.035, (0.5, 0.9, 0.99, 0.999))


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.9999))
def test_exponential_service_is_m_m_1(load: float, quantile: float) -> None:
    general, exact = MG1(load * 1_000, 1.0, 1.0), MMc(load * 1_000, 1.0)
    assert general.mean_wait_ms == pytest.approx(exact.mean_wait_ms)
    assert general.quantile_ms(quantile) == pytest.approx(exact.quantile_ms(quantile), rel=1e-5)
    assert general.wait_quantile_ms(quantile) == pytest.approx(
        exact.wait_quantile_ms(quantile), rel=1e-5, abs=1e-5 * exact.mean_ms
    )


def erlangs_series(rho: float, services: float) -> float:
    """``P(W > t)`` of M/D/1 by the alternating series, with 80 digits."""
    with localcontext() as context:
        context.prec = 80
        load, t = Decimal(rho), Decimal(services)
        total = Decimal(0)
        for j in range(math.floor(services) + 1):
            behind = load * (j - t)
            power = behind**j if j else Decimal(1)
            total += power / math.factorial(j) * (-behind).exp()
        return float(1 - (1 - load) * total)


@pytest.mark.parametrize("rho", [0.05, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("services", [0.0, 0.4, 0.999, 1.0, 2.5, 7.3, 25.25, 39.9, 40.1, 55.5])
def test_constant_service_waits_as_erlangs_series_says(rho: float, services: float) -> None:
    found = MG1(rho * 1_000, 1.0, 0.0).wait_exceeds(services)
    expected = erlangs_series(rho, services)
    assert found == pytest.approx(expected, abs=1e-12, rel=1e-9 if expected > 1e-6 else 1e-3)


def test_in_floating_point_erlangs_series_is_lost_where_ours_is_not() -> None:
    rho, services = 0.9, 38.5
    terms = [(rho * (j - services)) ** j / math.factorial(j) for j in range(39)]
    weighed = [term * math.exp(rho * (services - j)) for j, term in enumerate(terms)]
    plain = 1 - (1 - rho) * math.fsum(weighed)
    expected = erlangs_series(rho, services)
    assert abs(plain / expected - 1) > 0.01
    assert MG1(900, 1.0, 0.0).wait_exceeds(services) == pytest.approx(expected, rel=1e-9)


def test_nearly_constant_service_is_nearly_constant_service() -> None:
    for quantile in (0.3, 0.7, 0.9, 0.99, 0.9999):
        constant, nearly = (MG1(600, 1.0, cv) for cv in (0.0, 0.03))
        for name in ("wait_quantile_ms", "quantile_ms"):
            expected = getattr(constant, name)(quantile)
            assert getattr(nearly, name)(quantile) == pytest.approx(expected, rel=0.02)


def test_quantiles_go_on_beyond_what_can_be_inverted() -> None:
    exact = MMc(500, 1.0)
    for nines in (8, 9, 10, 12, 14):
        quantile = 1 - 10.0**-nines
        assert MG1(500, 1.0, 1.0).quantile_ms(quantile) == pytest.approx(
            exact.quantile_ms(quantile), rel=1e-3
        )
    far = [MG1(300, 1.0, 0.0).wait_quantile_ms(1 - 10.0**-nines) for nines in range(6, 15)]
    assert np.diff(far) == pytest.approx(np.diff(far)[0], rel=0.02)


# --- GI/G/1 -----------------------------------------------------------------------------------


@given(st.floats(0.01, 0.99), st.floats(0, 3), st.floats(0.1, 0.999))
def test_with_poisson_arrivals_both_formulas_are_pollaczek_and_khinchines(
    load: float, cv: float, quantile: float
) -> None:
    exact = MG1(load * 1_000, 1.0, cv)
    for queue in (Kingman(load * 1_000, 1.0, 1.0, cv), KLB(load * 1_000, 1.0, 1.0, cv)):
        assert queue.mean_wait_ms == pytest.approx(exact.mean_wait_ms)
    memoryless = KLB(load * 1_000, 1.0, 1.0, 1.0)
    assert memoryless.quantile_ms(quantile) == pytest.approx(
        MMc(load * 1_000, 1.0).quantile_ms(quantile), rel=1e-6
    )


def test_the_formula_of_kraemer_and_langenbach_belz_by_hand() -> None:
    assert KLB(600, 1.0, 0.5, 0.5).mean_wait_ms == pytest.approx(0.375 * math.exp(-0.5))
    assert KLB(500, 1.0, 2.0, 0.5).mean_wait_ms == pytest.approx(2.125 * math.exp(-0.3))


def test_the_formulas_are_as_good_as_they_say() -> None:
    waits, stays = simulated(600, 1.0, 0.5, 0.5)
    kingman, klb = Kingman(600, 1.0, 0.5, 0.5), KLB(600, 1.0, 0.5, 0.5)
    assert kingman.mean_wait_ms == pytest.approx(1.57 * waits.mean(), rel=0.02)
    assert klb.mean_wait_ms == pytest.approx(0.95 * waits.mean(), rel=0.02)
    for level in (0.9, 0.99, 0.999):
        assert klb.quantile_ms(level) == pytest.approx(np.quantile(stays, level), rel=0.04)
    irregular, _ = simulated(600, 1.0, 2.5, 1.0)
    assert Kingman(600, 1.0, 2.5, 1.0).mean_wait_ms / irregular.mean() == pytest.approx(0.77, 0.05)
    assert KLB(600, 1.0, 2.5, 1.0).mean_wait_ms / irregular.mean() == pytest.approx(0.63, 0.05)


@pytest.mark.parametrize("arrival_cv", [0.5, 1.5])
@pytest.mark.parametrize("service_cv", [0.0, 0.5, 1.0, 2.0])
def test_once_fitted_to_the_mean_quantiles_are_those_of_a_simulation(
    arrival_cv: float, service_cv: float
) -> None:
    waits, stays = simulated(750, 1.0, arrival_cv, service_cv)
    plain = Kingman(750, 1.0, arrival_cv, service_cv)
    fitted = Kingman(750, 1.0, arrival_cv, service_cv, waits.mean() / plain.mean_wait_ms)
    assert fitted.mean_wait_ms == pytest.approx(waits.mean())
    unfitted = KLB(750, 1.0, arrival_cv, service_cv)
    for level in (0.5, 0.9, 0.99):
        expected = np.quantile(stays, level)
        assert fitted.quantile_ms(level) == pytest.approx(
            expected, rel=0.05 if level > 0.5 else 0.08
        )
        if level >= 0.9:
            assert unfitted.quantile_ms(level) == pytest.approx(expected, rel=0.12)


@given(st.floats(0.05, 0.95), st.floats(0, 2), st.floats(0, 2), st.floats(0.01, 20))
def test_a_correction_scales_the_mean_and_never_makes_more_wait_than_there_are(
    load: float, arrival_cv: float, service_cv: float, correction: float
) -> None:
    assume(arrival_cv + service_cv > 0.05)
    queue = Kingman(load * 1_000, 1.0, arrival_cv, service_cv, correction)
    assert queue.mean_wait_ms == pytest.approx(correction * queue.uncorrected_wait_ms)
    assert 0 < queue.wait_exceeds(0.0) <= 1
    if queue.wait_exceeds(0.0) == 1:
        assert queue.wait_exceeds(queue.mean_wait_ms) == pytest.approx(math.exp(-1))


def test_arrivals_and_service_without_variation_never_wait() -> None:
    for queue in (Kingman(990, 1.0, 0, 0), KLB(990, 1.0, 0, 0)):
        assert queue.mean_wait_ms == queue.wait_quantile_ms(0.99) == 0
        assert queue.quantile_ms(0.99) == pytest.approx(1)


# --- the fitted formula -----------------------------------------------------------------------

SHARES = [(4.0, 5.0, 1.0, 0.5, 12.0, 10), (10.0, 20.0, 1.2, 0.8, 9.0, 20), (1, 4.0, 1, 1, 0.5, 4)]
MOST = (40, 60, 20)


def fitted(
    service: float, gap: float, arrival_cv: float, service_cv: float, wait: float
) -> Kingman:
    plain = Kingman(1_000 / gap, service, arrival_cv, service_cv)
    once = Correction(span=1, lowest=0.0, highest=math.inf)
    return Kingman(1_000 / gap, service, arrival_cv, service_cv, once.after(wait, plain).factor)


def rebalanced(budget_ms: float) -> tuple[int, ...]:
    """Lohrmann 2016, algorithm 7: one worker more where it helps most, until within budget."""
    queues = [fitted(*row[:5]) for row in SHARES]

    def wait_ms(task: int, workers: int) -> float:
        return queues[task].shared_by(workers, SHARES[task][5]).mean_wait_ms

    counts = [
        math.ceil(q.utilisation * r[5] / 0.9 - 1e-9) for q, r in zip(queues, SHARES, strict=True)
    ]
    while sum(wait_ms(task, count) for task, count in enumerate(counts)) > budget_ms:
        gains = {
            wait_ms(task, count + 1) - wait_ms(task, count): task
            for task, count in enumerate(counts)
            if count < MOST[task]
        }
        if not gains:
            break
        counts[gains[min(gains)]] += 1
    return tuple(counts)


def test_the_correction_makes_the_formula_give_what_was_measured() -> None:
    factors = [fitted(*row[:5]).correction for row in SHARES]
    assert factors == pytest.approx([1.2, 0.8654, 1.5], rel=1e-4)
    for row in SHARES:
        assert fitted(*row[:5]).mean_wait_ms == pytest.approx(row[4])


@pytest.mark.parametrize(
    ("budget_ms", "workers"),
    [(20, (12, 18, 2)), (10, (16, 25, 3)), (5, (23, 40, 5)), (2, (40, 60, 20))],
)
def test_workers_shared_by_the_fitted_formula_are_those_of_the_vectors(
    budget_ms: float, workers: tuple[int, ...]
) -> None:
    assert rebalanced(budget_ms) == workers


def test_the_waits_of_the_first_vector_add_up() -> None:
    counts = (12, 18, 2)
    waits = [
        fitted(*row[:5]).shared_by(count, row[5]).mean_wait_ms
        for row, count in zip(SHARES, counts, strict=True)
    ]
    assert sum(waits) == pytest.approx(18.75, abs=0.005)


@given(st.floats(0.05, 0.95), st.integers(1, 50), st.integers(1, 200))
def test_a_shared_load_waits_a_over_p_minus_b(load: float, before: int, workers: int) -> None:
    queue = Kingman(load * 100, 10.0, 1.3, 0.7, 1.4)
    b = load * before
    assume(abs(workers - b) > 1e-6)
    a = 1.4 * 10.0 * b * (1.3**2 + 0.7**2) / 2
    expected = a / (workers - b) if workers > b else math.inf
    assert queue.shared_by(workers, before).mean_wait_ms == pytest.approx(expected)


def test_the_correction_is_the_mean_of_the_last_three_and_one_until_then() -> None:
    queue = Kingman(500, 1.0)
    correction, seen = Correction(), []
    for measured in (2.0, 1.0, 3.0, 2.0, 0.5):
        correction = correction.after(measured * queue.uncorrected_wait_ms, queue)
        seen.append(correction.factor)
    assert seen == pytest.approx([1, 1, 2, 2, 5.5 / 3])


def test_one_burst_does_not_rule_the_correction_where_it_ruled_the_original() -> None:
    queue, original = Kingman(500, 1.0), Correction(span=1, lowest=0.0, highest=math.inf)
    ours = Correction((1.0, 1.0, 1.0))
    burst_ms = 1_000 * queue.uncorrected_wait_ms
    assert original.after(burst_ms, queue).factor == pytest.approx(1_000)
    assert ours.after(burst_ms, queue).factor == pytest.approx(7 / 3)


@pytest.mark.parametrize(
    ("measured", "queue"),
    [(5.0, Kingman(1_200, 1.0)), (5.0, Kingman(0, 1.0)), (math.nan, Kingman(500, 1.0))],
)
def test_nothing_is_learned_from_saturation_from_no_wait_and_from_no_record(
    measured: float, queue: Kingman
) -> None:
    learned = Correction((2.0, 2.0, 2.0))
    assert learned.after(measured, queue) is learned


def test_a_corrected_prediction_is_compared_with_the_formula_and_not_with_itself() -> None:
    corrected = Kingman(500, 1.0, correction=3.0)
    correction = Correction(span=1).after(corrected.mean_wait_ms, corrected)
    assert correction.factor == pytest.approx(3)


# --- room for so many -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "room", "load"), [(1, 1, 0.7), (1, 6, 1.3), (1, 20, 0.9), (3, 3, 1.5), (3, 12, 1.1)]
)
def test_a_station_with_little_room_is_like_a_simulated_one(
    servers: int, room: int, load: float
) -> None:
    rate = servers * load * 100
    waits, stays, passed_ms = simulated_servers(rate, 10.0, servers, room, 150_000)
    queue = Bounded(rate, 10.0, room, servers)
    assert queue.effective_rate_per_s == pytest.approx(len(waits) / passed_ms * 1_000, rel=0.01)
    assert queue.mean_number == pytest.approx(stays.sum() / passed_ms, rel=0.03)
    assert queue.utilisation == pytest.approx((stays - waits).sum() / passed_ms / servers, rel=0.02)
    assert_like(queue, waits, stays, 0.04, (0.5, 0.9, 0.99))


@given(st.floats(0.1, 3), st.integers(1, 60))
def test_one_server_with_room_has_the_closed_form(load: float, room: int) -> None:
    queue = Bounded(load * 100, 10.0, room)
    weights = [load**n for n in range(room + 1)]
    assert queue.held_share == pytest.approx(weights[-1] / sum(weights))
    assert queue.mean_number == pytest.approx(
        sum(n * weight for n, weight in enumerate(weights)) / sum(weights)
    )


@given(st.integers(1, 8), st.floats(0.05, 0.8), st.floats(0.01, 0.999))
def test_with_room_for_all_it_is_a_queue_without_bound(
    servers: int, load: float, quantile: float
) -> None:
    rate = servers * load * 100
    bounded, free = Bounded(rate, 10.0, 400, servers), MMc(rate, 10.0, servers)
    assert bounded.mean_wait_ms == pytest.approx(free.mean_wait_ms)
    assert bounded.utilisation == pytest.approx(load)
    assert bounded.quantile_ms(quantile) == pytest.approx(free.quantile_ms(quantile), rel=1e-6)


@given(st.integers(1, 5), st.floats(1.2, 1e9), st.integers(0, 2_000))
def test_beyond_its_capacity_the_source_is_slowed_down_to_it(
    servers: int, load: float, more: int
) -> None:
    queue = Bounded(servers * load * 100, 10.0, servers + more, servers)
    assert queue.effective_rate_per_s <= servers * 100 * (1 + 1e-9)
    assert queue.effective_rate_per_s <= queue.rate_per_s
    assert queue.mean_number <= queue.room * (1 + 1e-12)
    assert 0 < queue.held_share <= 1
    if more >= 100:
        assert queue.effective_rate_per_s == pytest.approx(servers * 100)
        assert queue.held_share == pytest.approx(1 - 1 / load, abs=1e-6)
        assert queue.mean_ms * servers * 100 / 1_000 == pytest.approx(queue.mean_number, rel=1e-6)


@given(st.floats(0.1, 2), st.integers(1, 30))
def test_more_room_holds_the_source_less_and_makes_records_wait_longer(
    load: float, room: int
) -> None:
    small, large = (Bounded(load * 100, 10.0, size) for size in (room, room + 1))
    assert small.effective_rate_per_s <= large.effective_rate_per_s * (1 + 1e-12)
    assert small.mean_wait_ms <= large.mean_wait_ms * (1 + 1e-12)
    assert small.held_share > large.held_share


# --- all of them ------------------------------------------------------------------------------

kinds = st.sampled_from(
    [
        lambda rate: MMc(rate, 1.0),
        lambda rate: MMc(rate * 4, 1.0, 4),
        lambda rate: MG1(rate, 1.0, 0.0),
        lambda rate: MG1(rate, 1.0, 0.4),
        lambda rate: MG1(rate, 1.0, 2.0),
        lambda rate: Kingman(rate, 1.0, 0.6, 0.4),
        lambda rate: Kingman(rate, 1.0, 2.0, 0.0, 0.3),
        lambda rate: KLB(rate, 1.0, 0.6, 0.4),
        lambda rate: KLB(rate, 1.0, 1.8, 1.2),
        lambda rate: Bounded(rate, 1.0, 30),
        lambda rate: Bounded(rate * 3, 1.0, 30, 3),
    ]
)


@settings(max_examples=150, deadline=None)
@given(kinds, st.floats(0, 950), st.floats(1, 1.05), st.floats(0.01, 0.999))
def test_records_wait_longer_the_more_come(
    kind: object, rate: float, factor: float, quantile: float
) -> None:
    assert callable(kind)
    less, more = kind(rate), kind(rate * factor)
    assert less.mean_wait_ms <= more.mean_wait_ms * (1 + 1e-9)
    assert less.wait_quantile_ms(quantile) <= more.wait_quantile_ms(quantile) * (1 + 1e-4) + 1e-6
    assert less.quantile_ms(quantile) <= more.quantile_ms(quantile) * (1 + 1e-4) + 1e-6


@settings(max_examples=150, deadline=None)
@given(kinds, st.floats(0, 990), st.floats(0.01, 0.9999), st.floats(0.01, 0.9999))
def test_quantiles_rise_bound_each_other_and_undo_the_shares(
    kind: object, rate: float, one: float, other: float
) -> None:
    assert callable(kind)
    queue, low, high = kind(rate), min(one, other), max(one, other)
    for quantile_ms, exceeds in (
        (queue.wait_quantile_ms, queue.wait_exceeds),
        (queue.quantile_ms, queue.exceeds),
    ):
        assert quantile_ms(low) <= quantile_ms(high) * (1 + 1e-6)
        assert exceeds(quantile_ms(high) * (1 + 1e-6) + 1e-9) <= (1 - high) * (1 + 1e-3) + 1e-6
    assert queue.wait_quantile_ms(high) <= queue.quantile_ms(high) * (1 + 1e-6) + 1e-9
    assert queue.mean_ms == pytest.approx(queue.mean_wait_ms + 1)
    assert queue.exceeds(-1.0) == queue.wait_exceeds(-1.0) == 1


@settings(max_examples=30, deadline=None)
@given(kinds, st.floats(10, 900))
def test_the_tails_have_the_means(kind: object, rate: float) -> None:
    assert callable(kind)
    queue = kind(rate)
    grid = np.concatenate((np.linspace(0, 4, 201), np.geomspace(4.01, 4 + 60 * queue.mean_ms, 160)))
    for exceeds, mean_ms in (
        (queue.wait_exceeds, queue.mean_wait_ms),
        (queue.exceeds, queue.mean_ms),
    ):
        area = np.trapezoid([exceeds(ms) for ms in grid], grid)
        assert area == pytest.approx(mean_ms, rel=5e-3, abs=0.012)


@given(kinds, st.floats(1_000, 1e5), st.floats(0, 0.999))
def test_a_queue_that_cannot_keep_up_has_an_infinite_wait(
    kind: object, rate: float, quantile: float
) -> None:
    assert callable(kind)
    queue = kind(rate)
    assume(not isinstance(queue, Bounded))
    assert queue.utilisation >= 1
    assert math.isinf(queue.mean_ms)
    assert math.isinf(queue.mean_number)
    assert math.isinf(queue.quantile_ms(quantile))
    assert math.isinf(queue.wait_quantile_ms(quantile))
    assert queue.exceeds(1e12) == 1


@given(kinds)
def test_without_load_nobody_waits_and_a_record_stays_for_its_service(kind: object) -> None:
    assert callable(kind)
    idle = kind(0.0)
    assert idle.utilisation == idle.mean_wait_ms == idle.mean_number == 0
    assert idle.wait_quantile_ms(0.999) == 0
    assert idle.mean_ms == 1
    assert 0.5 < idle.quantile_ms(0.999) < 60


@pytest.mark.parametrize("kind", [MMc, MG1, Kingman, KLB, Bounded])
def test_without_service_nobody_stays(kind: type[Queue]) -> None:
    instant = kind(100, 0.0)
    assert instant.utilisation == instant.mean_ms == 0
    assert instant.quantile_ms(0.99) == instant.exceeds(0.0) == 0


def test_the_line_is_shorter_than_the_queue_by_the_load_and_not_by_one() -> None:
    # The original (appendix A.1) counts one in service always, which holds only while it is busy.
    queue = MMc(300, 1.0)
    line = queue.rate_per_s * queue.mean_wait_ms / 1_000
    assert queue.mean_number == pytest.approx(line + 0.3)
    assert queue.mean_number < 1


def test_a_network_of_single_servers_is_jacksons() -> None:
    loads = (0.5, 0.8, 0.25)
    queues = [MMc(load * 1_000, 1.0) for load in loads]
    expected_s = sum(load / (1 - load) for load in loads) / 400
    assert network_mean_ms(queues, 400) == pytest.approx(expected_s * 1_000)
    assert math.isinf(network_mean_ms([*queues, MMc(2_000, 1.0)], 400))


def test_a_line_of_queues_is_the_sum_of_their_stays() -> None:
    queues = [MG1(300, 1.0, 0.5), MMc(300, 5.0, 2)]
    assert network_mean_ms(queues, 300) == pytest.approx(sum(queue.mean_ms for queue in queues))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MMc(-1, 1), "rate_per_s=-1: give a finite number from 0 up"),
        (lambda: MMc(math.nan, 1), "rate_per_s=nan"),
        (lambda: MG1(1, math.inf), "service_ms=inf"),
        (lambda: MG1(1, 1, -0.5), "service_cv=-0.5"),
        (lambda: Kingman(1, 1, arrival_cv=-1), "arrival_cv=-1"),
        (lambda: MMc(1, 1, 0), "servers=0: give a whole number from 1 up"),
        (lambda: MMc(1, 1, 1.5), "servers=1.5"),  # type: ignore[arg-type]
        (lambda: Bounded(1, 1, 2, 3), "room=2 has no use for servers=3"),
        (lambda: MMc(1, 1).quantile_ms(1.0), "1.0 is not a quantile"),
        (lambda: MMc(1, 1).wait_quantile_ms(-0.1), "-0.1 is not a quantile"),
        (lambda: Kingman(1, 1).shared_by(0), "0 workers"),
        (lambda: network_mean_ms([], 0), "entered by 0 records/s"),
    ],
)
def test_what_no_queue_can_have_is_refused_in_a_sentence(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=said) as caught:
        make()
    assert str(caught.value).endswith(".")
