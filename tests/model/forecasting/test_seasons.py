"""Seasons: found under noise, trend and gaps."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.forecasting.conftest import find_season, series


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 40), st.floats(0, 0.2), st.floats(-2, 2), st.integers(0, 2**31))
def test_a_season_is_found_under_noise_trend_and_gaps(
    season: int, noise: float, slope: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    t = np.arange(8 * season)
    shape = np.sin(2 * np.pi * np.arange(season) / season) + 0.5 * (np.arange(season) == 1)
    rates = 1_000 + 300 * np.tile(shape, 8) + slope * t + 300 * noise * rng.standard_normal(len(t))
    rates[rng.random(len(t)) < 0.05] = math.nan
    found = find_season(series(rates))
    assert found is not None
    assert abs(found - season) <= (0 if season <= 20 else 1)


def test_a_series_without_a_season_shows_none() -> None:
    assert find_season(series([5.0] * 30)) is None
    assert find_season(series(range(40))) is None
    found = [
        find_season(series(np.random.default_rng(seed).normal(100, 5, 120))) for seed in range(50)
    ]
    assert found.count(None) >= 45
