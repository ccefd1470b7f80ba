"""Kingman's formula against simulated queues and closed forms, and how it is fitted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.kingman import Correction, Kingman
from tests.model.shared import shared

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CUSTOMERS = 1_500_000


def times(rng: np.random.Generator, mean: float, cv: float, count: int) -> Floats:
    """Gamma distributed, or constant."""
    return rng.gamma(cv**-2, mean * cv**2, count) if cv else np.full(count, mean)


def simulated(
    rate_per_s: float, service_ms: float, arrival_cv: float, service_cv: float, seed: int = 1
) -> Floats:
    """Waits at one server, by Lindley's recursion in its summed form."""
    rng = np.random.default_rng(seed)
    services = times(rng, service_ms, service_cv, CUSTOMERS)
    gaps = times(rng, 1_000 / rate_per_s, arrival_cv, CUSTOMERS)
    walk = np.concatenate(([0.0], np.cumsum(services[:-1] - gaps[1:])))
    waits = walk - np.minimum.accumulate(walk)
    settled = CUSTOMERS // 20
    return waits[settled:]


# --- the formula ------------------------------------------------------------------------------


@given(st.floats(0.01, 0.99), st.floats(0, 3))
def test_with_poisson_arrivals_the_formula_is_pollaczek_and_khinchines(
    load: float, cv: float
) -> None:
    exact_ms = load * (1 + cv**2) / (2 * (1 - load))
    assert Kingman(load * 1_000, 1.0, 1.0, cv).mean_wait_ms == pytest.approx(exact_ms)


def test_the_formula_is_as_good_as_it_says() -> None:
    regular = simulated(600, 1.0, 0.5, 0.5).mean()
    assert Kingman(600, 1.0, 0.5, 0.5).mean_wait_ms == pytest.approx(1.57 * regular, rel=0.02)
    irregular = simulated(600, 1.0, 2.5, 1.0).mean()
    assert Kingman(600, 1.0, 2.5, 1.0).mean_wait_ms / irregular == pytest.approx(0.77, 0.05)


@pytest.mark.parametrize("arrival_cv", [0.5, 1.5])
@pytest.mark.parametrize("service_cv", [0.0, 0.5, 1.0, 2.0])
def test_fitted_to_the_mean_it_has_the_mean_of_a_simulation(
    arrival_cv: float, service_cv: float
) -> None:
    measured_ms = simulated(750, 1.0, arrival_cv, service_cv).mean()
    plain = Kingman(750, 1.0, arrival_cv, service_cv)
    fitted = Kingman(750, 1.0, arrival_cv, service_cv, measured_ms / plain.mean_wait_ms)
    assert fitted.mean_wait_ms == pytest.approx(measured_ms)


@given(st.floats(0.05, 0.95), st.floats(0, 2), st.floats(0, 2), st.floats(0.01, 20))
def test_a_correction_scales_the_mean(
    load: float, arrival_cv: float, service_cv: float, correction: float
) -> None:
    assume(arrival_cv + service_cv > 0.05)
    queue = Kingman(load * 1_000, 1.0, arrival_cv, service_cv, correction)
    assert queue.mean_wait_ms == pytest.approx(correction * queue.uncorrected_wait_ms)


def test_arrivals_and_service_without_variation_never_wait() -> None:
    assert Kingman(990, 1.0, 0, 0).mean_wait_ms == 0


@pytest.mark.parametrize(("arrival_cv", "service_cv"), [(0.6, 0.4), (2.0, 0.0)])
@given(rate=st.floats(0, 950), factor=st.floats(1, 1.05))
def test_records_wait_longer_the_more_come(
    arrival_cv: float, service_cv: float, rate: float, factor: float
) -> None:
    less, more = (Kingman(r, 1.0, arrival_cv, service_cv) for r in (rate, rate * factor))
    assert less.mean_wait_ms <= more.mean_wait_ms * (1 + 1e-9)


@given(st.floats(1_000, 1e5))
def test_a_queue_that_cannot_keep_up_has_an_infinite_wait(rate: float) -> None:
    queue = Kingman(rate, 1.0, 0.6, 0.4)
    assert queue.utilisation >= 1
    assert math.isinf(queue.mean_wait_ms)


def test_without_load_or_service_no_record_waits() -> None:
    for queue in (Kingman(0.0, 1.0, 0.6, 0.4), Kingman(100, 0.0)):
        assert queue.utilisation == queue.mean_wait_ms == 0


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
        return shared(queues[task], workers, SHARES[task][5]).mean_wait_ms

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
        shared(fitted(*row[:5]), count, row[5]).mean_wait_ms
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
    assert shared(queue, workers, before).mean_wait_ms == pytest.approx(expected)


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


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Kingman(-1, 1), "rate_per_s=-1: give a finite number from 0 up"),
        (lambda: Kingman(math.nan, 1), "rate_per_s=nan"),
        (lambda: Kingman(1, math.inf), "service_ms=inf"),
        (lambda: Kingman(1, 1, service_cv=-0.5), "service_cv=-0.5"),
        (lambda: Kingman(1, 1, arrival_cv=-1), "arrival_cv=-1"),
    ],
)
def test_what_no_queue_can_have_is_refused_in_a_sentence(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=said) as caught:
        make()
    assert str(caught.value).endswith(".")
