"""The soak without the hour: what its samples come to, and what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import soak
from bench.soak import FIGURES, GROWN, Sample, analysed, warm_up_s
from tailrace.errors import FlowFailed, InputError

LEVEL = Sample(0.0, 150.0, 900.0, 400.0, 6, 9, 280, 450, 52, 0.9, 10.0, 250.0, 150_000)


def samples(count: int, **series: list[Any]) -> list[Sample]:
    """Looks half a minute apart at things that stay as they are but for the series given."""
    return [
        replace(LEVEL, at_s=30.0 * (i + 1), **{name: values[i] for name, values in series.items()})
        for i in range(count)
    ]


def test_what_stays_as_it_is_does_not_grow() -> None:
    result = analysed(samples(20), warm_s=100.0)
    assert result["grows"] == []
    assert result["counted_samples"] == 17
    assert set(result["quarters"]) == set(FIGURES)
    assert result["quarters"]["jvm_mib"] == {"first": 900.0, "last": 900.0, "ratio": 1.0}


def test_a_leak_of_a_percent_a_sample_is_named() -> None:
    leak = [100.0 * 1.01**i for i in range(24)]
    assert analysed(samples(24, driver_mib=leak), 0.0)["grows"] == ["driver_mib"]


def test_teeth_of_a_saw_that_stay_as_long_as_they_were_are_no_growth() -> None:
    saw = [400.0 + 100.0 * (i % 5) for i in range(80)]
    assert analysed(samples(80, jvm_mib=saw), 0.0)["grows"] == []


def test_what_grows_in_the_warm_up_only_does_not_count() -> None:
    filling = [min(1.0 + i, 10.0) for i in range(40)]
    assert analysed(samples(40, checkpoint_files=filling), 0.0)["grows"] == ["checkpoint_files"]
    assert analysed(samples(40, checkpoint_files=filling), 300.0)["grows"] == []


def test_one_outlier_is_no_growth() -> None:
    slow = [90.0] * 39 + [4_000.0]
    assert analysed(samples(40, p99_ms=slow), 0.0)["grows"] == []


def test_growth_from_nothing_is_growth_without_a_ratio_and_can_be_written_as_json() -> None:
    result = analysed(samples(8, checkpoint_files=[0, 0, 0, 0, 1, 1, 1, 1]), 0.0)
    assert result["grows"] == ["checkpoint_files"]
    assert result["quarters"]["checkpoint_files"] == {"first": 0, "last": 1, "ratio": None}
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=8, max_size=60))
def test_growth_is_that_of_the_medians_of_two_quarters(values: list[float]) -> None:
    quarter = len(values) // 4
    first, last = median(values[:quarter]), median(values[-quarter:])
    grows = analysed(samples(len(values), p50_ms=values), 0.0)["grows"]
    assert grows == (["p50_ms"] if last > GROWN * first else [])


def test_too_few_samples_after_the_warm_up_are_refused() -> None:
    with pytest.raises(FlowFailed, match="Only 7 samples of the soak are after its warm-up of 60"):
        analysed(samples(8), warm_s=60.0)


def test_the_warm_up_is_a_tenth_of_a_long_run_and_a_minute_of_a_short_one() -> None:
    assert warm_up_s(3_600.0) == 360.0
    assert warm_up_s(300.0) == 60.0


@pytest.mark.parametrize("minutes", [0.0, -3.0, 4.9, math.nan])
def test_a_soak_that_is_too_short_is_refused_before_anything_starts(minutes: float) -> None:
    with pytest.raises(InputError, match=r"minutes is too short .*: let it run for 5 or more"):
        soak.measure(minutes)
