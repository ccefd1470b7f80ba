"""Ratios from counted buckets: exact relations, noisy ones, and those that are none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.keys.ratios import fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]


def test_the_worked_example_of_the_original_gives_169() -> None:
    rng = np.random.default_rng(1)
    inputs = {name: rng.integers(5, 60, 30) for name in "abc"}
    found = fit(inputs, inputs["a"] + 2 * inputs["b"] + 3 * inputs["c"])
    assert [found.of_input[name] for name in "abc"] == pytest.approx([1, 2, 3])
    assert found.output({"a": 12, "b": 26, "c": 35}) == pytest.approx(169)
    assert found.linear
    assert found.separable
    assert found.warnings == ()
    assert found.r_squared == pytest.approx(1)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(0, 20), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
    st.floats(1, 1e6),
)
def test_an_exact_relation_is_found_whatever_the_ratios_and_the_load(
    ratios: list[float], seed: int, load: float
) -> None:
    rng = np.random.default_rng(seed)
    inputs = {str(i): load * rng.random(40) for i in range(len(ratios))}
    outputs = sum((ratio * inputs[str(i)] for i, ratio in enumerate(ratios)), np.zeros(40))
    found = fit(inputs, outputs)
    assert list(found.of_input.values()) == pytest.approx(ratios, abs=1e-6)
    assert found.linear


# --- join-split, the topology on which the original was right, then wrong -----------------------


def joined(
    rng: np.random.Generator, buckets: int, per_s: NDArray[np.float64]
) -> tuple[Counts, ...]:
    """What a join gets in buckets of 4 s: one record for each of the load, and about ten."""
    load = rng.poisson(4 * per_s, buckets)
    copies = [int(np.clip(np.rint(rng.normal(10, 1, n)), 1, 20).sum()) for n in load]
    return load, np.array(copies)


def windows_of(counts: Counts, size: int) -> Counts:
    """The windows that are full by the end of each bucket, one record out for each."""
    full = np.cumsum(counts) // size
    return np.diff(full, prepend=0)


def test_a_count_window_over_two_inputs_is_linear_and_right_within_one_percent() -> None:
    rng = np.random.default_rng(2)
    one, ten = joined(rng, 300, np.full(300, 50.0))
    found = fit({"one": one, "ten": ten}, windows_of(one + ten, 100))
    assert found.linear
    assert found.r_squared > 0.99
    twice = found.output({"one": 400, "ten": 4_000})
    assert twice == pytest.approx(44.0, rel=0.01)


def test_inputs_that_rise_and_fall_together_are_flagged_though_their_sum_is_right() -> None:
    rng = np.random.default_rng(2)
    one, ten = joined(rng, 300, np.full(300, 50.0))
    found = fit({"one": one, "ten": ten}, windows_of(one + ten, 100))
    assert not found.separable
    assert found.condition > 30
    assert "inputs one, ten rise and fall together" in " ".join(found.warnings)


def test_a_count_window_over_inputs_that_vary_apart_has_each_ratio_within_one_percent() -> None:
    rng = np.random.default_rng(3)
    one, ten = rng.integers(0, 4_000, 300), rng.integers(0, 4_000, 300)
    found = fit({"one": one, "ten": ten}, windows_of(one + ten, 100))
    assert found.linear
    assert found.separable
    assert found.warnings == ()
    assert list(found.of_input.values()) == pytest.approx([0.01, 0.01], rel=0.01)


def parity(rng: np.random.Generator, buckets: int, windows: int, low: float, high: float) -> None:
    """Windows of 2 s with one record out, to either stream by the parity of both counts."""
    shape = (buckets, windows)
    per_s = rng.uniform(low, high, (buckets, 1))
    one = rng.poisson(2 * per_s, shape)
    ten = rng.poisson(20 * per_s, shape)
    even = (one % 2) == (ten % 2)
    for chosen in (even, ~even):
        inputs = {"one": one.sum(axis=1), "ten": ten.sum(axis=1)}
        found = fit(inputs, chosen.sum(axis=1))
        assert not found.linear
        assert any("linear" in text or "chance" in text for text in found.warnings)


@pytest.mark.parametrize("seed", range(5))
def test_a_time_window_that_sends_by_parity_is_flagged_in_the_buckets_of_the_original(
    seed: int,
) -> None:
    parity(np.random.default_rng(seed), buckets=300, windows=2, low=50, high=50)


@pytest.mark.parametrize("seed", range(5))
def test_a_time_window_that_sends_by_parity_is_flagged_in_long_buckets_when_the_load_varies(
    seed: int,
) -> None:
    parity(np.random.default_rng(seed), buckets=100, windows=60, low=20, high=80)


# --- other relations that are not proportional ---------------------------------------------------


@pytest.mark.parametrize(
    ("name", "curve"),
    [
        ("saturating", lambda load: 3_000 * load / (3_000 + load)),
        ("quadratic", lambda load: load**2 / 4_000),
        ("by the clock", lambda load: 0 * load + 300),
        ("with an offset", lambda load: 0.5 * load + 400),
        ("above a threshold", lambda load: np.maximum(0, load - 1_500)),
        ("bent around a line", lambda load: load + 900 * ((load - 1_850) / 1_650) ** 2 - 300),
        ("falling", lambda load: 4_000 - load),
    ],
)
def test_output_that_is_not_in_proportion_is_flagged(name: str, curve: object) -> None:
    rng = np.random.default_rng(4)
    load = rng.integers(200, 3_500, 200)
    assert callable(curve)
    found = fit({"in": load}, rng.poisson(curve(load)))
    assert not found.linear, name
    assert any("not linear" in warning for warning in found.warnings)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_a_filter_is_linear_though_it_keeps_records_by_chance(seed: int, kept: float) -> None:
    rng = np.random.default_rng(seed)
    load = rng.integers(500, 3_000, 120)
    found = fit({"in": load}, rng.binomial(load, kept))
    assert found.linear, found.warnings
    assert found.of_input["in"] == pytest.approx(kept, rel=0.02)


def test_an_input_that_adds_nothing_has_the_ratio_zero_and_not_less() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(100, 1_000, 60), rng.integers(100, 1_000, 60)
    found = fit({"a": a, "b": b}, rng.poisson(2.0 * a))
    assert found.of_input["a"] == pytest.approx(2, rel=0.02)
    assert 0 <= found.of_input["b"] < 0.02


def test_an_input_that_takes_away_is_flagged_as_no_ratio_can_be_negative() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.integers(1_000, 2_000, 80), rng.integers(0, 900, 80)
    found = fit({"a": a, "b": b}, a - b)
    assert found.of_input["b"] == 0
    assert not found.linear


def test_few_records_in_a_bucket_are_told_from_a_relation_that_is_not_linear() -> None:
    rng = np.random.default_rng(7)
    load = rng.integers(50, 150, 200)
    found = fit({"in": load}, rng.binomial(load, 0.02))
    assert not found.linear
    assert found.warnings[0].endswith("use longer buckets.")
    longer = load.reshape(2, 100).sum(axis=0) * 50
    assert fit({"in": longer}, rng.binomial(longer, 0.02)).linear


def test_a_load_that_hardly_changes_leaves_open_whether_the_output_would_follow() -> None:
    rng = np.random.default_rng(8)
    load = rng.poisson(10_000, 100)
    found = fit({"in": load}, rng.binomial(load, 0.5))
    assert found.linear
    assert any("hardly changed" in warning for warning in found.warnings)


def test_an_input_without_records_is_named_and_has_the_ratio_zero() -> None:
    found = fit({"a": [1.0, 4.0, 9.0], "b": [0.0] * 3}, [2.0, 8.0, 18.0])
    assert found.of_input == {"a": pytest.approx(2.0), "b": 0.0}
    assert found.separable
    assert any("Nothing came in by b" in warning for warning in found.warnings)


def test_a_step_that_sends_nothing_has_ratios_of_zero() -> None:
    found = fit({"a": [1.0, 4.0, 9.0]}, [0.0] * 3)
    assert found.of_input == {"a": 0.0}
    assert found.linear
    assert found.r_squared == 1


def test_output_without_any_input_is_not_linear() -> None:
    found = fit({"a": [0.0] * 20}, [5.0] * 20)
    assert not found.linear
    assert found.r_squared == 0


def test_fewer_buckets_than_inputs_cannot_tell_them_apart() -> None:
    found = fit({"a": [1.0], "b": [2.0]}, [3.0])
    assert found.condition == math.inf
    assert not found.separable


def test_buckets_that_do_not_match_are_refused() -> None:
    with pytest.raises(InputError, match="which has 2 "):
        fit({"a": [1.0, 2.0, 3.0]}, [1.0, 2.0])
    with pytest.raises(InputError, match="inputs: none"):
        fit({}, [1.0])
    with pytest.raises(InputError, match="which has 0"):
        fit({"a": []}, [])
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="finite numbers from 0 up"):
            fit({"a": [1.0, 2.0]}, [1.0, bad])
    with pytest.raises(InputError, match="No ratio was measured for the input x"):
        fit({"a": [1.0, 2.0]}, [1.0, 2.0]).output({"x": 1.0})
