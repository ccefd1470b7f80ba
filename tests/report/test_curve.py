"""The curve of latency over load, by the words that the picture holds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tailrace.constraint import Constraint
from tailrace.model.predict import predict
from tailrace.profile.file import from_json
from tailrace.report.curve import draw
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.model.prediction import Prediction

RATES = [100.0, 200.0, 400.0, 600.0, 800.0, 1_200.0]


@pytest.fixture(scope="module")
def found() -> list[Prediction]:
    """One step of 2 ms on two cores, which saturates between the rates."""
    step = {"name": "wait", "service_ms": 2.0}
    profile = from_json(
        {"name": "one", "steps": [step], "rate_per_s": 500.0, "cores": 2, "source_partitions": 2},
        "one",
    )
    return [predict(profile, rate=rate) for rate in RATES]


def words(found: list[Prediction], bound: Constraint | None, path: Path) -> list[str]:
    draw(found, bound, path / "curve.svg")
    svg = (path / "curve.svg").read_text(encoding="utf-8")
    return re.findall(r"<!-- (.*?) -->", svg, re.DOTALL)


def test_the_curve_names_its_lines_and_where_the_flow_saturates(
    found: list[Prediction], tmp_path: Path
) -> None:
    assert found[0].works
    assert not found[-1].works
    shown = words(found, None, tmp_path)
    assert {"mean", "p50", "p95", "p99", "mean, 9 in 10"} <= set(shown)
    assert f"saturates at {show_rate(found[0].outcome.highest_per_s)}" in shown
    assert not any("within" in text for text in shown)


@pytest.mark.parametrize("quantile", [None, 0.99])
def test_a_bound_is_named_with_the_highest_rate_that_keeps_it(
    found: list[Prediction], tmp_path: Path, quantile: float | None
) -> None:
    bound_ms = found[2].statistic_ms(quantile)
    bound = Constraint(bound_ms, quantile=quantile)
    highest = max(each.rate_per_s for each in found if each.statistic_ms(quantile) <= bound_ms)
    said = f"{bound.statistic} within {show_duration(bound_ms)} up to {show_rate(highest)}"
    assert said in words(found, bound, tmp_path)


def test_a_bound_that_no_rate_keeps_has_no_highest_rate(
    found: list[Prediction], tmp_path: Path
) -> None:
    assert f"mean within {show_duration(0.001)}" in words(found, Constraint(0.001), tmp_path)


def test_a_saturation_far_beyond_the_rates_is_not_drawn(
    found: list[Prediction], tmp_path: Path
) -> None:
    assert not any("saturates" in text for text in words(found[:2], None, tmp_path))
