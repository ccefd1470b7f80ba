"""The usual costs, against the benchmarks that they are said to come from."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace.errors import InputError
from tailrace.profile.costs import USUAL_BATCH, USUAL_HAND_OVER, BatchCosts, HandOverCosts

RESULTS = Path(__file__).parents[2] / "bench" / "results"

AGREES = 0.25
"""Benchmarks are run again now and then: a usual cost need not follow every run."""


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def test_the_usual_batch_is_the_one_that_was_measured_back_to_back() -> None:
    found = result("batching")
    back_to_back = found["back_to_back"]
    cycle_ms = 1e3 / back_to_back["batches_per_s"]
    records = found["rate_per_s"] * cycle_ms / 1e3
    usual_ms = USUAL_BATCH.fixed_ms + USUAL_BATCH.per_record_ms * records
    assert usual_ms == pytest.approx(cycle_ms, rel=AGREES)
    assert 1.5 * usual_ms == pytest.approx(back_to_back["mean_ms"], rel=AGREES)


def test_the_usual_cpu_time_is_the_line_through_what_batching_measured() -> None:
    found = result("batching")
    rows = [*found["bounds"], found["back_to_back"]]
    batches = np.array([row["batches_per_s"] for row in rows])
    spent_ms = np.array([row["cpu_s_per_million"] for row in rows]) * found["rate_per_s"] / 1e3
    batch_ms, rest_ms = np.polyfit(batches, spent_ms, 1)
    assert batch_ms == pytest.approx(USUAL_BATCH.cpu_ms, rel=AGREES)
    assert rest_ms / found["rate_per_s"] == pytest.approx(USUAL_BATCH.cpu_record_ms, rel=AGREES)


def test_the_usual_hand_over_is_that_of_trivial_steps() -> None:
    measured = result("validate")["runs"]["engine"]["realtime"]["hand_over"]
    assert measured["fixed_ms"] == pytest.approx(USUAL_HAND_OVER.fixed_ms, rel=AGREES)
    row_by_row_ms = 1e3 / result("realtime")["max_rate_row_steps_per_s"]
    assert USUAL_HAND_OVER.per_record_ms < row_by_row_ms


def test_stages_add_their_exchange_and_their_further_tasks() -> None:
    costs = BatchCosts(10.0, 0.01, stage_ms=15.0, task_ms=2.5, shuffle_ms=7.0)
    assert costs.stages_ms([1]) == 0
    assert costs.stages_ms([4]) == 3 * 2.5
    assert costs.stages_ms([1, 4, 2]) == 2 * 15 + 4 * 2.5 + 7


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_costs_that_cannot_be_are_refused(cost: float) -> None:
    with pytest.raises(InputError, match=r"fixed_ms of a batch cannot be"):
        BatchCosts(cost, 0.0)
    with pytest.raises(InputError, match=r"gap_ms of a hand-over cannot be"):
        HandOverCosts(0.2, 0.0, gap_ms=cost)


@pytest.mark.parametrize("wrong", [-1e-9, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("costs", "what"), [(USUAL_BATCH, "a batch"), (USUAL_HAND_OVER, "a hand-over")]
)
def test_every_cost_must_be_finite_and_not_below_zero(costs: Any, what: str, wrong: float) -> None:
    for item in fields(costs):
        with pytest.raises(InputError, match=f"The {item.name} of {what} cannot be {wrong}: give"):
            replace(costs, **{item.name: wrong})
