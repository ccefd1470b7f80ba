from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import LoadError
from tailrace.load import Frequencies, Keys, Uniform, Zipf

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

DRAWS = 400_000


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_frequencies(keys: Keys, probabilities: NDArray[np.float64]) -> None:
    """Counts within five standard deviations of the binomial, for every key."""
    drawn = keys.draw(DRAWS, rng())
    assert drawn.dtype == np.int32
    counts = np.bincount(drawn, minlength=len(probabilities))
    deviation = np.sqrt(DRAWS * probabilities * (1 - probabilities))
    assert len(counts) == len(probabilities) == len(keys.names)
    assert np.all(np.abs(counts - DRAWS * probabilities) <= 5 * deviation + 1e-9)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("keys", [1, 2, 1000, 50_000])
def test_zipf_frequencies_follow_the_power_law(keys: int, exponent: float) -> None:
    weights = np.arange(1, keys + 1) ** -exponent
    probabilities = weights / weights.sum()
    if keys < 50_000:
        assert_frequencies(Zipf(keys, exponent), probabilities)
    drawn = Zipf(keys, exponent).draw(DRAWS, rng())
    for upto in (1, max(1, keys // 100), max(1, keys // 2)):
        share = probabilities[:upto].sum()
        within = 5 * np.sqrt(share * (1 - share) / DRAWS) + 1e-12
        assert np.mean(drawn < upto) == pytest.approx(share, abs=within)


def test_uniform_keys_are_equally_likely() -> None:
    assert_frequencies(Uniform(64), np.full(64, 1 / 64))


def test_given_frequencies_are_kept_whatever_they_add_up_to() -> None:
    keys = Frequencies({"a": 5, "never": 0, "b": 3, "c": 2, "nor this": 0.0})
    assert keys.names == ("a", "never", "b", "c", "nor this")
    assert_frequencies(keys, np.array([0.5, 0, 0.3, 0.2, 0]))


def test_a_list_of_frequencies_has_numbers_for_names() -> None:
    assert Frequencies([0.9, 0.1]).names == ("0", "1")
    assert_frequencies(Frequencies([0.9, 0.1]), np.array([0.9, 0.1]))


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(0, 2**32))
def test_drawing_is_the_plain_search_of_the_cumulative_distribution(
    weights: list[float], seed: int
) -> None:
    if sum(weights) < 1e-300:
        return
    upper = np.cumsum(weights) / np.cumsum(weights)[-1]
    u = rng(seed).random(1000)
    searched = np.searchsorted(upper, u, side="right")
    np.testing.assert_array_equal(Frequencies(weights).draw(1000, rng(seed)), searched)


def test_the_same_seed_draws_the_same_keys_and_another_does_not() -> None:
    keys = Zipf(1000, 1.0)
    np.testing.assert_array_equal(keys.draw(1000, rng(5)), keys.draw(1000, rng(5)))
    assert not np.array_equal(keys.draw(1000, rng(5)), keys.draw(1000, rng(6)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Uniform(0),
        lambda: Uniform(True),
        lambda: Zipf(-1, 1.0),
        lambda: Zipf(2**31, 1.0),
        lambda: Zipf(10, -0.1),
        lambda: Zipf(10, float("nan")),
        lambda: Frequencies([]),
        lambda: Frequencies({}),
        lambda: Frequencies([0.0, 0.0]),
        lambda: Frequencies([1.0, -1.0]),
        lambda: Frequencies({"a": float("inf")}),
        lambda: Frequencies(cast("list[float]", ["half", "half"])),
    ],
)
def test_keys_that_cannot_be_drawn_are_refused(make: Callable[[], Keys]) -> None:
    with pytest.raises(LoadError, match=r"^[^\n]+\.$"):
        make()
