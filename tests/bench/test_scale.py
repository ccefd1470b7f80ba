"""How elastic runs are compared, on runs that were made up."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.bench import scale


def run(name: str, kept: float, core_seconds: float) -> dict[str, Any]:
    return {
        "name": name,
        "fulfilled_share": kept,
        "reconfigurations": 3,
        "core_seconds": core_seconds,
        "settling_s": 4.0,
        "overshoot": None,
    }


@pytest.mark.parametrize(
    ("share", "best"),
    [(0.95, "6 executors"), (0.98, "7 executors"), (1.0, "8 executors")],
)
def test_the_best_constant_number_is_the_cheapest_that_keeps_as_much(
    share: float, best: str
) -> None:
    constants = [
        run("8 executors", 0.99, 800),
        run("7 executors", 0.98, 700),
        run("6 executors", 0.96, 600),
        run("5 executors", 0.7, 500),
    ]
    assert scale._best(constants, share)["name"] == best


def test_the_table_has_a_row_for_every_run() -> None:
    result = {
        "bound_ms": 1_000.0,
        "policies": [run("predictive", 0.97, 400), run("Th-Rule", 0.5, 300)],
        "constants": [run("8 executors", 0.99, 800)],
    }
    assert scale.table(result).row_count == 3


def test_what_spark_is_told_lets_it_have_as_many_as_every_other() -> None:
    assert scale.OWN["spark.dynamicAllocation.maxExecutors"] == str(scale.MOST)
    assert scale.OWN["spark.cores.max"] == str(scale.MOST)
