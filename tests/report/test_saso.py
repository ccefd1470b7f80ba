"""SASO on runs that can be counted by hand, and what is shown of it."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tailrace.errors import InputError
from tailrace.report.saso import Saso, saso, table
from tests.report.conftest import steps_of

if TYPE_CHECKING:
    from tailrace.report.data import Report


def test_stability_counts_the_steps_whose_size_changed() -> None:
    assert saso(steps_of([2, 2, 3, 3, 5, 4, 4])).reconfigurations == 3
    assert saso(steps_of([2, 2, 2])).reconfigurations == 0


def test_accuracy_counts_the_steps_that_missed_their_goal() -> None:
    found = saso(steps_of([2] * 8, violated=[1, 5]))
    assert (found.violations, found.violation_share) == (2, 0.25)


def test_amplitude_is_the_mean_over_the_steps_that_did_reconfigure() -> None:
    assert saso(steps_of([2, 2, 3, 3, 6, 4, 4])).amplitude == pytest.approx((1 + 3 + 2) / 3)
    assert saso(steps_of([2, 2])).amplitude == 0


def test_overshoot_is_what_lies_above_the_least_size_that_would_have_done() -> None:
    found = saso(steps_of([2, 4, 6, 3], least=[2, 2, 3, 5]))
    assert found.overshoot_mean == pytest.approx((0 + 2 + 3 + 0) / 4)
    assert found.overshoot_max == 3
    known = saso(steps_of([2, 4, 6, 3], least=[None, 2, None, None]))
    assert (known.overshoot_mean, known.overshoot_max) == (2, 2)
    unknown = saso(steps_of([2, 4]))
    assert (unknown.overshoot_mean, unknown.overshoot_max) == (None, None)


def test_core_seconds_hold_the_cores_of_units_that_still_start() -> None:
    steps = steps_of([2, 2, 4], step_ms=5_000.0)
    steps[1] = replace(steps[1], starting=2)
    assert saso(steps, cores=3).core_seconds == (2 + 4 + 4) * 5 * 3
    assert saso(steps).mean_size == pytest.approx(8 / 3)


def test_settling_is_the_time_from_a_change_of_load_to_the_last_move_that_follows() -> None:
    """The load changes with the third step and is answered at the end of it and of the fifth."""
    rates = [100, 100, 200, 200, 200, 200, 200]
    assert saso(steps_of([2, 2, 3, 3, 4, 4, 4], rates)).settling_s == 3
    assert saso(steps_of([2, 2, 4, 4, 4, 4, 4], rates)).settling_s == 1


def test_settling_is_the_mean_over_changes_that_a_move_follows() -> None:
    rates = [100] * 2 + [200] * 4 + [100] * 4 + [200] * 2
    sizes = [2, 2, 2, 3, 3, 3, 3, 3, 3, 2, 2, 2]
    assert saso(steps_of(sizes, rates)).settling_s == pytest.approx((2 + 4) / 2)


def test_moves_before_any_change_of_load_are_no_settling() -> None:
    assert saso(steps_of([1, 2, 3, 3])).settling_s == 0
    assert saso(steps_of([1, 2, 3, 3], [100, 101, 109, 95])).settling_s == 0


def test_a_slow_drift_of_the_load_is_a_change_when_it_has_come_far_enough() -> None:
    rates = [100, 104, 108, 112, 112, 112]
    assert saso(steps_of([2, 2, 2, 2, 2, 3], rates)).settling_s == 3


def test_a_load_that_starts_from_nothing_has_changed() -> None:
    assert saso(steps_of([1, 1, 2], [0, 50, 50])).settling_s == 2


def test_without_a_step_there_is_nothing_to_sum_up() -> None:
    with pytest.raises(InputError, match="wait until the first one is over"):
        saso([])


@given(
    st.lists(
        st.tuples(
            st.integers(1, 9), st.floats(0, 1e6), st.booleans(), st.none() | st.integers(1, 9)
        ),
        min_size=1,
        max_size=40,
    )
)
def test_the_figures_of_any_run_are_within_what_they_can_be(
    rows: list[tuple[int, float, bool, int | None]],
) -> None:
    sizes, rates, missed, least = zip(*rows, strict=True)
    steps = steps_of(sizes, rates, [n for n, bad in enumerate(missed) if bad], least)
    found = saso(steps)
    assert found.violations == sum(missed)
    assert 0 <= found.reconfigurations < len(rows)
    assert found.reconfigurations == sum(a != b for a, b in pairwise(sizes))
    assert 0 <= found.settling_s <= len(rows)
    assert (found.amplitude >= 1) == (found.reconfigurations > 0)
    assert found.core_seconds == pytest.approx(sum(sizes))
    if found.overshoot_mean is not None and found.overshoot_max is not None:
        assert 0 <= found.overshoot_mean <= found.overshoot_max <= 8


def printed(named: dict[str, Saso]) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(table(named))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_a_row_for_every_policy_with_its_figures() -> None:
    """Promise 35 of De Matteis 2016: the summary at the end of a run."""
    named = {
        "ours": Saso(180, 11, 3, 4.2, 1.25, 0.5, 2, 6.7, 1_206.0),
        "peak": Saso(180, 0, 0, 0.0, 0.0, None, None, 12.0, 2_160.0),
    }
    lines = printed(named).splitlines()
    ours = next(line for line in lines if "ours" in line)
    cells = [cell.strip() for cell in re.split("[│┃|]", ours) if cell.strip()]
    assert cells == ["ours", "11", "3", "1.7%", "4.2 s", "1.25", "0.50", "2", "6.70", "1,206"]
    peak = next(line for line in lines if "peak" in line)
    cells = [cell.strip() for cell in re.split("[│┃|]", peak) if cell.strip()]
    assert cells == ["peak", "0", "0", "0.0%", "-", "-", "-", "-", "12.00", "2,160"]


def test_promise_35_a_report_has_the_figures_of_what_its_intervals_show(elastic: Report) -> None:
    """Promise 35 of De Matteis 2016, on the report of a run, which is made at any time."""
    scaling = elastic.data["scaling"]
    counted = [interval for interval in elastic.intervals if not interval["warm_up"]]
    sizes = [interval["executors"] for interval in counted]
    assert scaling["reconfigurations"] == sum(a != b for a, b in pairwise(sizes)) > 0
    assert scaling["violations"] == sum(not interval["fulfilled"] for interval in counted)
    assert scaling["mean_executors"] == pytest.approx(sum(sizes) / len(sizes), abs=0.01)
    over = [max(0, i["executors"] - i["needed"]) for i in counted if i["needed"]]
    assert scaling["overshoot"] == pytest.approx(sum(over) / len(over), abs=0.01)
    assert scaling["overshoot_max"] == max(over)
    assert scaling["decision_ms"] > 0
    assert 0 < scaling["forecast_error"] < 1
