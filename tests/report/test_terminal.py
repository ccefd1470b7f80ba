"""The terminal views, by the text that a console of a given size shows."""

from __future__ import annotations

import copy
import re
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rich.console import Console

from tailrace.report.data import Report
from tailrace.report.terminal import LiveView, label, summary
from tailrace.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from tailrace.profile.batch import BatchMeasure


def console(width: int) -> Console:
    return Console(record=True, width=width, file=StringIO(), force_terminal=True)


def shown(view: RenderableType, width: int = 100) -> str:
    screen = console(width)
    screen.print(view)
    return screen.export_text()


def line_with(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if start in line)


def changed(report: Report, change: Callable[[dict[str, Any]], None]) -> Report:
    data = copy.deepcopy(report.data)
    change(data)
    return Report(data)


def after_warm_up(report: Report) -> list[dict[str, Any]]:
    return [interval for interval in report.intervals if not interval["warm_up"]]


def test_the_summary_fits_a_screen_of_a_hundred_columns(controlled: Report, plain: Report) -> None:
    lines = shown(summary(controlled, plain)).splitlines()
    assert len(lines) <= 38
    assert max(map(len, lines)) <= 100
    assert not any("…" in line for line in lines)


def test_no_terminal_obeys_the_name_of_a_flow(controlled: Report) -> None:
    def rename(data: dict[str, Any]) -> None:
        data["flow"] = "\x1b]0;title"
        data["notes"] = ["of '\x1b]0;title'"]

    assert "\x1b]0;" not in shown(summary(changed(controlled, rename)))


def test_every_constraint_stands_with_its_share_and_the_intervals_that_it_rests_on(
    controlled: Report,
) -> None:
    text = shown(summary(controlled))
    judged = len(after_warm_up(controlled))
    for constraint in controlled.data["constraints"]:
        share = constraint["fulfilled_share"]
        line = line_with(text, constraint["text"])
        assert f"{share:.1%}" in line
        assert f"{round(share * judged)} of {judged}" in line
    assert "warm-up of 10 s left out" in text


def test_a_kept_constraint_is_green_and_a_broken_one_is_red(controlled: Report) -> None:
    def judge(data: dict[str, Any]) -> None:
        for constraint, share in zip(data["constraints"], (0.786, 0.993), strict=True):
            constraint["fulfilled_share"] = share

    screen = console(100)
    screen.print(summary(changed(controlled, judge)))
    html = screen.export_html(inline_styles=False)
    classes = dict(re.findall(r"\.(r\d+) \{([^}]*)\}", html))
    spans = re.findall(r'<span class="(r\d+)"> *([\d.]+%) *</span>', html)
    styles = {share: classes[name] for name, share in spans}
    assert "color: #008000" in styles["99.3%"]
    assert "color: #800000" in styles["78.6%"]


def test_the_breakdown_is_the_mean_over_the_records_after_the_warm_up(controlled: Report) -> None:
    text = shown(summary(controlled))
    intervals = after_warm_up(controlled)
    weights = [interval["records"] for interval in intervals]
    for element in intervals[0]["breakdown_ms"]:
        parts = [interval["breakdown_ms"][element] for interval in intervals]
        mean_ms = float(np.average(parts, weights=weights))
        assert re.search(rf" {label(element)} +\S* +{show_duration(mean_ms)} +\d+%", text)


def test_the_number_of_batches_is_close_to_the_batches_that_ran(
    run: tuple[Report, list[BatchMeasure]],
) -> None:
    report, batches = run
    line = line_with(shown(summary(report)), "batches  ")
    assert int(line.split()[1]) == pytest.approx(len(batches), abs=3)


def test_plain_spark_stands_beside_every_number(controlled: Report, plain: Report) -> None:
    text = shown(summary(controlled, plain))
    assert text.count("plain Spark") == 2
    for key in ("mean", "p50", "p95", "p99", "max"):
        line = line_with(text, "latency, mean" if key == "mean" else f"{key}  ")
        ours, theirs = (r.data["latency_ms"][f"{key}_ms"] for r in (controlled, plain))
        assert re.search(f"{show_duration(ours)} +{show_duration(theirs)}", line)
    cpu = [f"{r.data['cpu_seconds']:.1f}" for r in (controlled, plain)]
    assert re.search(" +".join(cpu), line_with(text, "CPU seconds"))
    for ours, theirs in zip(controlled.data["constraints"], plain.data["constraints"], strict=True):
        line = line_with(text, ours["text"])
        assert f"{ours['fulfilled_share']:.1%}" in line
        assert line.rstrip().endswith(f"{theirs['fulfilled_share']:.1%}")


def test_every_step_stands_with_its_service_time_its_load_and_what_leaves_it(
    controlled: Report,
) -> None:
    text = shown(summary(controlled))
    steps = text[text.index("service time") :]
    for name in ("parse", "enrich", "sentiment"):
        did = [interval["steps"][name] for interval in after_warm_up(controlled)]
        entered = [step["records_in"] for step in did]
        cells = line_with(steps, name).split()
        service_ms = np.average([step["service_mean_ms"] for step in did], weights=entered)
        assert " ".join(cells[1:3]) == show_duration(float(service_ms))
        assert cells[4] == f"{max(step['utilisation'] for step in did):.0%}"
        left = sum(step["records_out"] for step in did)
        assert float(cells[5]) == pytest.approx(left / sum(entered), rel=0.01)
        assert cells[6] == "none"


def test_errors_in_a_step_are_shown_as_a_share_of_its_records(controlled: Report) -> None:
    def fail(data: dict[str, Any]) -> None:
        for interval in data["intervals"]:
            interval["steps"]["enrich"]["errors"] = interval["steps"]["enrich"]["records_in"] // 4

    assert re.search(r"enrich .* (24\.9\d|25\.00)%", shown(summary(changed(controlled, fail))))


def test_the_last_decisions_say_when_why_and_what_came_of_them(controlled: Report) -> None:
    def decide(data: dict[str, Any]) -> None:
        first = data["decisions"][0] | {"predicted_ms": 368.0, "realised_ms": 360.0}
        start_us = data["intervals"][0]["start_us"]
        data["decisions"] = [
            first
            | {"at_us": start_us + i * 7_000_000, "policy": f"policy{i}", "reason": f"why {i}"}
            for i in range(5)
        ]
        data["decisions"][3] |= {"predicted_ms": None, "realised_ms": None}
        data["decisions"][4] |= {"realised_ms": None}

    text = " ".join(shown(summary(changed(controlled, decide))).split())
    assert "decisions after 2 earlier 14 s policy2 why 2 (predicted 368 ms -> realised" in text
    assert "-> realised 360 ms) 21 s policy3 why 3 28 s policy4 why 4 (predicted 368 ms)" in text


def test_a_decision_that_was_not_applied_is_called_advice(advised: Report) -> None:
    assert "batching, advised" in shown(summary(advised))


def test_savings_restarts_and_notes_are_said(controlled: Report) -> None:
    saving = {"batches": 1354.2, "cpu_seconds": 30.3}
    report = changed(controlled, lambda data: data.update(saving=saving))
    text = " ".join(shown(summary(report)).split())
    assert "1,354 batches and 30.3 CPU seconds were saved." in text
    assert "There were 2 restarts that took 600 ms." in text
    assert "The clock of the source is ahead by [3 ms]." in text


def test_one_restart_is_said_in_the_singular(unbound: Report) -> None:
    assert "There were no restarts." in shown(summary(unbound))
    once = changed(unbound, lambda data: data.update(restarts_ms=[250.0]))
    assert "There was 1 restart that took 250 ms." in shown(summary(once))


def test_an_impossible_constraint_stands_in_a_panel_with_reason_and_remedy(
    impossible: Report,
) -> None:
    text = " ".join(shown(summary(impossible)).replace("│", " ").split())
    found = impossible.data["impossible"][0]
    assert f"cannot be kept: {found['constraint']}" in text
    assert f"{found['reason']} {found['remedy']}" in text


def test_a_provisional_finding_is_said_to_be_one(impossible: Report) -> None:
    def doubt(data: dict[str, Any]) -> None:
        data["impossible"][0]["provisional"] = True

    said = "This rests on a short run"
    assert said not in shown(summary(impossible))
    assert said in shown(summary(changed(impossible, doubt)))
    reason = impossible.data["impossible"][0]["reason"]
    live = " ".join(shown(LiveView(lambda: changed(impossible, doubt)), 80).split())
    assert f"So far: {reason}" in live


def test_a_flow_without_constraints_is_summed_up_all_the_same(unbound: Report) -> None:
    text = shown(summary(unbound))
    assert "No constraint was set" in text
    assert show_duration(unbound.data["latency_ms"]["mean_ms"]) in text


def test_an_empty_report_and_an_empty_baseline_are_shown_without_numbers(
    empty: Report, controlled: Report
) -> None:
    text = shown(summary(empty, empty))
    assert "No record entered after the warm-up." in text
    assert "nan" not in text
    mean = show_duration(controlled.data["latency_ms"]["mean_ms"])
    assert re.search(rf"latency, mean +{mean} +-", shown(summary(controlled, empty)))


def test_of_many_steps_the_largest_are_listed_and_the_rest_summed_up(controlled: Report) -> None:
    def widen(data: dict[str, Any]) -> None:
        for interval in data["intervals"]:
            parts = {f"step:s{i}": float(i) for i in range(30)}
            interval["breakdown_ms"] = {"batching": 100.0, **parts, "sink": 50.0}

    text = shown(summary(changed(controlled, widen)))
    assert f"others {' ' * 15}" in text
    assert show_duration(float(sum(range(23)))) in line_with(text, "others")
    assert len(text.splitlines()) <= 39


def test_the_live_view_fits_eighty_columns_and_twenty_four_lines(
    controlled: Report, plain: Report, impossible: Report, unbound: Report, elastic: Report
) -> None:
    views = [
        LiveView(lambda: controlled),
        LiveView(lambda: plain),
        LiveView(lambda: impossible),
        LiveView(lambda: unbound),
        LiveView(lambda: elastic),
    ]
    for view in views:
        lines = shown(view, 80).splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80


def test_the_live_view_reads_the_report_anew_each_time(controlled: Report, empty: Report) -> None:
    reports = iter((empty, controlled))
    view = LiveView(lambda: next(reports))
    assert "No interval is complete yet." in shown(view, 80)
    assert "No interval is complete yet." not in shown(view, 80)


def test_the_live_view_holds_the_latest_value_against_its_bound(controlled: Report) -> None:
    text = shown(LiveView(lambda: controlled), 80)
    for verdict, bound in zip(controlled.intervals[-1]["verdicts"], (400.0, 700.0), strict=True):
        line = line_with(text, verdict["constraint"])
        assert show_duration(verdict["value_ms"]) in line
        assert f"{verdict['value_ms'] / bound:.0%}" in line


def test_the_live_view_shows_every_element_of_the_latest_interval(controlled: Report) -> None:
    text = shown(LiveView(lambda: controlled), 80)
    for element, part_ms in controlled.intervals[-1]["breakdown_ms"].items():
        assert re.search(rf"{label(element)} +\S* +{show_duration(part_ms)}", text)


def test_the_live_charts_are_as_high_as_the_values_that_they_show(controlled: Report) -> None:
    blocks = " ▁▂▃▄▅▆▇█"
    text = shown(LiveView(lambda: controlled), 80)
    chart = line_with(text, "rate ")[16:]
    rates = [interval["rate_per_s"] for interval in controlled.intervals]
    for block, rate in zip(chart, rates, strict=False):
        assert blocks.index(block) == pytest.approx(8 * rate / max(rates), abs=0.51)
    assert "┄" in text


def test_the_live_view_shows_executors_and_how_well_they_followed(
    elastic: Report, controlled: Report
) -> None:
    text, scaling = shown(LiveView(lambda: elastic), 80), elastic.data["scaling"]
    last = elastic.intervals[-1]
    said = f" {last['executors']}, {last['needed']} needed"
    assert line_with(text, "executors ").rstrip().endswith(said)
    assert scaling["reconfigurations"] >= 2
    counted = f"{scaling['reconfigurations']} moves, {scaling['violations']} missed"
    line = line_with(text, f"{counted}, {scaling['settling_s']:g} s to settle")
    assert line.rstrip().endswith(f"{scaling['overshoot']:.1f} more than needed")
    assert "executors" not in shown(LiveView(lambda: controlled), 80)


def test_executors_that_are_on_their_way_are_said_to_be_wanted(elastic: Report) -> None:
    def moving(data: dict[str, Any]) -> None:
        data["intervals"][-1]["plan"]["executors"] = 4

    line = line_with(shown(LiveView(lambda: changed(elastic, moving)), 80), "executors ")
    assert line.rstrip().endswith(f" {elastic.intervals[-1]['executors']}, 4 wanted")


def test_the_live_view_charts_the_latest_intervals_only(controlled: Report) -> None:
    def lengthen(data: dict[str, Any]) -> None:
        data["intervals"] = data["intervals"][:1] * 50

    chart = line_with(shown(LiveView(lambda: changed(controlled, lengthen)), 80), "rate ")
    assert chart.count("█") == 40


def test_the_live_view_warns_of_what_cannot_be_kept(impossible: Report) -> None:
    text = " ".join(shown(LiveView(lambda: impossible), 80).split())
    assert impossible.data["impossible"][0]["reason"] in text


def test_a_constraint_that_was_not_judged_yet_has_no_value(controlled: Report) -> None:
    def forget(data: dict[str, Any]) -> None:
        for interval in data["intervals"]:
            interval["verdicts"] = []

    line = line_with(shown(LiveView(lambda: changed(controlled, forget)), 80), "mean <= 400 ms")
    assert line.split()[-1] == "-"
