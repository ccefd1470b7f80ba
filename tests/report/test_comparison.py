"""Runs side by side: the figures of each are those of its own report."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InputError
from tailrace.report.comparison import as_json, counted_steps, figures
from tailrace.report.data import Report

if TYPE_CHECKING:
    from typing import Any


def test_steps_are_the_intervals_after_the_warm_up(elastic: Report) -> None:
    counted = [interval for interval in elastic.intervals if not interval["warm_up"]]
    steps = counted_steps(elastic)
    assert [step.size for step in steps] == [interval["executors"] for interval in counted]
    assert [step.rate_per_s for step in steps] == [each["rate_per_s"] for each in counted]
    assert [step.violated for step in steps] == [not each["fulfilled"] for each in counted]
    ends_us = [step.at_us for step in steps]
    assert ends_us[:-1] == [interval["start_us"] for interval in counted[1:]]
    for step, interval in zip(steps, counted, strict=True):
        assert step.held == max(step.size, interval["plan"]["executors"])


def test_the_figures_of_each_run_are_those_that_its_report_has(elastic: Report) -> None:
    (found,) = figures({"ours": elastic}, 1).values()
    scaling = elastic.data["scaling"]
    assert found.reconfigurations == scaling["reconfigurations"] > 0
    assert found.violations == scaling["violations"]
    assert found.mean_size == pytest.approx(scaling["mean_executors"], abs=0.01)
    assert found.overshoot_mean == pytest.approx(scaling["overshoot"], abs=0.01)
    twice = figures({"ours": elastic}, 2)["ours"]
    assert twice.core_seconds == pytest.approx(2 * found.core_seconds)


def test_a_comparison_as_data_has_the_words_of_reports(elastic: Report, unbound: Report) -> None:
    rows: list[dict[str, Any]] = as_json({"ours": elastic, "constant": unbound})
    assert [row["name"] for row in rows] == ["ours", "constant"]
    assert elastic.latency is not None
    assert rows[0]["mean_ms"] == elastic.latency.mean_ms
    assert rows[0]["overshoot"] == elastic.data["scaling"]["overshoot"]
    assert "overshoot" not in rows[1]


def test_a_run_that_ended_in_its_warm_up_is_refused(elastic: Report) -> None:
    data = copy.deepcopy(elastic.data)
    for interval in data["intervals"]:
        interval["warm_up"] = True
    with pytest.raises(InputError, match="after the warm-up: give a longer load, or a shorter"):
        counted_steps(Report(data))
