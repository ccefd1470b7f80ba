from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tests.cli.conftest import USER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said


def test_a_forecast_says_when_the_bound_breaks(
    asked: Callable[..., Any], orders: Path, tmp_path: Path
) -> None:
    rates = tmp_path / "rates.csv"
    lines = [f"{60 * i},{500 + 8 * i + 3 * math.sin(i)}" for i in range(120)]
    rates.write_text("\n".join(["time,rate", *lines]))
    found = asked("forecast", rates, "--horizon", "4 h", "--profile", orders, "--mean", "300 ms")
    assert found["mean_per_s"][-1] > found["mean_per_s"][0]
    assert "breaks" in found["alarm"]
    assert found["advice"]


def test_a_forecast_over_milliseconds_is_refused_and_not_begun(
    tailrace: Callable[..., Said], tmp_path: Path
) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text("\n".join(["time,rate", *(f"{n / 1e3:.3f},{n}" for n in range(60))]))
    said = tailrace("forecast", rates, "--horizon", "1 h").sentence(2)
    assert "3,600,000 steps of 1 ms is too long" in said


def test_rates_that_are_not_there_are_named(tailrace: Callable[..., Said]) -> None:
    assert "CSV" in tailrace("forecast", "nowhere.csv").sentence(USER)
