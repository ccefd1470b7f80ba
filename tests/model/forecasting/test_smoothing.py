"""Exponential smoothing: the recursion against the textbook, the weights against a fine search."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.model.forecasting.forecast import forecast
from tailrace.model.forecasting.smoothing import Method, Smoothed, smooth
from tests.model.forecasting.conftest import series, textbook

weights = st.floats(0, 1)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.floats(50, 150), st.just(math.nan)), min_size=1, max_size=30),
    st.lists(st.tuples(weights, weights, weights, weights), min_size=1, max_size=4),
    st.lists(st.floats(0.5, 1.5), min_size=1, max_size=5),
    st.booleans(),
)
def test_the_recursion_is_that_of_the_textbook_for_every_candidate(
    rates: list[float],
    candidates: list[tuple[float, float, float, float]],
    season: list[float],
    divide: bool,
) -> None:
    count = len(candidates)
    start = Smoothed(
        np.full(count, 100.0), np.full(count, 0.5), np.tile(np.array(season)[:, None], count)
    )
    found = smooth(np.array(rates), np.array(candidates).T, start, divide=divide)
    steps = [tuple(part.copy() for part in state) for state in found]
    for n, candidate in enumerate(candidates):
        expected = textbook(rates, candidate, (100.0, 0.5, season), divide=divide)
        assert [[part[n] for part in step] for step in steps] == pytest.approx(
            np.array(expected), rel=1e-6, abs=1e-6
        )
    assert start.level.tolist() == [100.0] * count
    assert start.season[:, 0].tolist() == season


@pytest.mark.parametrize("method", [Method.SMOOTHING, Method.HOLT, Method.DAMPED_HOLT])
def test_the_weights_are_about_as_good_as_any_that_a_fine_search_finds(method: Method) -> None:
    rng = np.random.default_rng(3)
    level, rates = 1_000.0, []
    for _ in range(160):
        surprise = 20 * rng.standard_normal()
        rates.append(level + surprise)
        level += 0.3 * surprise + 2
    found = forecast(series(rates), 1, method=method).scores[0].weights
    # The scores are of weights fitted to the earlier half.
    half = rates[:80]
    slope, height = np.polyfit(range(10), half[:10], 1)
    start = (height - slope, slope, [0.0])
    if method is Method.SMOOTHING:
        start = (float(np.mean(half[:10])), 0.0, [0.0])

    def squares(a: float, b: float, phi: float) -> float:
        states = textbook(half, (a, b, 0.0, phi), start, divide=False)
        return sum((y - state[0]) ** 2 for y, state in zip(half, states, strict=True))

    trends = [0.0] if method is Method.SMOOTHING else [n / 20 for n in range(21)]
    best = min(squares(n / 20, b, found.damping) for n in range(21) for b in trends)
    assert squares(found.level, found.trend, found.damping) <= 1.02 * best
