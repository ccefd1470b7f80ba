"""The picture: written, repeatable, and with everything in it that the report holds."""

from __future__ import annotations

import copy
import re
import warnings
from typing import TYPE_CHECKING

import pytest
from matplotlib.image import imread

from tailrace.report.data import Report
from tailrace.report.picture import draw
from tailrace.report.terminal import label

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def words(report: Report, path: Path, baseline: Report | None = None) -> list[str]:
    """The texts of the picture, which its SVG keeps as comments beside their outlines."""
    svg = draw(report, path / "picture.svg", baseline).read_text(encoding="utf-8")
    texts = re.findall(r"<!-- (.*?) -->", svg, re.DOTALL)
    return [text.replace("&lt;", "<").replace("&gt;", ">") for text in texts]


@pytest.fixture(scope="module")
def texts(controlled: Report, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return words(controlled, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def compared(
    controlled: Report, plain: Report, tmp_path_factory: pytest.TempPathFactory
) -> list[str]:
    return words(controlled, tmp_path_factory.mktemp("compared"), plain)


def cut(report: Report, first: int, last: int) -> Report:
    data = copy.deepcopy(report.data)
    del data["intervals"][first:last]
    return Report(data)


@pytest.mark.parametrize("suffix", [".svg", ".PNG"])
def test_the_same_report_gives_the_same_bytes(
    controlled: Report, plain: Report, tmp_path: Path, suffix: str
) -> None:
    first = draw(controlled, tmp_path / f"first{suffix}", plain)
    second = draw(controlled, tmp_path / "deep" / "er" / f"second{suffix}", plain)
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) > 20_000


def test_a_png_is_an_image_with_the_colours_of_its_lines(
    controlled: Report, tmp_path: Path
) -> None:
    image = imread(draw(controlled, tmp_path / "picture.png"))
    height, width, _ = image.shape
    assert min(height, width) > 1_000
    colours = {tuple((pixel * 255).astype(int)) for pixel in image[::4, ::4, :3].reshape(-1, 3)}
    assert len(colours) > 20


def test_the_title_names_the_flow_and_its_constraints(controlled: Report, texts: list[str]) -> None:
    promised = "; ".join(constraint["text"] for constraint in controlled.data["constraints"])
    assert f"sentiments: {promised}" in texts
    assert {"mean <= 400 ms", "p99 <= 700 ms, parse -> sink"} <= set(texts)


def test_a_long_title_is_broken_and_dollar_signs_are_no_formula(
    controlled: Report, tmp_path: Path
) -> None:
    data = copy.deepcopy(controlled.data)
    data["flow"] = r"$\alpha$ and a very long name " * 4
    title = next(text for text in words(Report(data), tmp_path) if text.startswith(r"$\alpha$"))
    assert max(map(len, title.splitlines())) <= 100


def test_every_element_is_in_the_legend(controlled: Report, texts: list[str]) -> None:
    elements = {label(element) for element in controlled.intervals[0]["breakdown_ms"]}
    assert elements <= set(texts)


def test_executors_have_a_panel_where_their_number_is_decided(
    elastic: Report, texts: list[str], tmp_path: Path
) -> None:
    said = {"executors", "fewest needed"}
    assert said <= set(words(elastic, tmp_path))
    assert not said & set(texts)


def test_the_least_of_many_steps_are_drawn_as_one(controlled: Report, tmp_path: Path) -> None:
    data = copy.deepcopy(controlled.data)
    for interval in data["intervals"]:
        interval["breakdown_ms"] = {f"step:s{i}": float(i + 1) for i in range(12)}
    texts = words(Report(data), tmp_path)
    assert {f"s{i}" for i in range(12)} & set(texts) == {f"s{i}" for i in range(6, 12)}
    assert "other steps" in texts


def test_changes_of_the_plan_that_were_applied_are_named(
    controlled: Report, tmp_path: Path
) -> None:
    whole, apart = [["parse", "enrich", "sentiment"]], [["parse", "enrich"], ["sentiment"]]
    data = copy.deepcopy(controlled.data)
    start_us = data["intervals"][0]["start_us"]
    data["decisions"] = [
        {
            "at_us": start_us + at_s * 1_000_000,
            "policy": policy,
            "applied": applied,
            "before": {"interval_ms": 100.0, "chains": before},
            "after": {"interval_ms": 200.0, "chains": after},
        }
        for at_s, policy, applied, before, after in (
            (20, "enlarging", True, whole, whole),
            (40, "enlarging", True, whole, whole),
            (40, "chaining", True, whole, apart),
            (60, "chaining", True, apart, whole),
            (80, "advising", False, whole, apart),
            (900, "too late", True, whole, whole),
        )
    ]
    texts = words(Report(data), tmp_path)
    assert {"enlarging", "enlarging, split", "join"} <= set(texts)
    assert not {"advising", "split", "too late", "chaining"} & set(texts)


def test_a_broken_bound_is_marked_and_a_kept_one_is_not(
    impossible: Report, advised: Report, tmp_path: Path
) -> None:
    assert "bound broken" in words(impossible, tmp_path)
    data = copy.deepcopy(advised.data)
    for verdict in (v for interval in data["intervals"] for v in interval["verdicts"]):
        verdict["value_ms"] = 1.0
    assert "bound broken" not in words(Report(data), tmp_path)


def test_the_footer_says_what_was_kept_and_what_it_cost(
    controlled: Report, plain: Report, texts: list[str], compared: list[str]
) -> None:
    for found, runs in ((texts, [controlled]), (compared, [controlled, plain])):
        footer = next(text for text in found if text.startswith("this run"))
        for name, run in (("this run", controlled), ("plain Spark", plain)):
            share, cpu_s = run.data["fulfilled_share"], run.data["cpu_seconds"]
            said = f"{name}: bounds kept in {share:.1%} of intervals, {cpu_s:.1f} CPU seconds"
            assert (said in footer) is (run in runs)
        assert "warm-up of 10 s" in footer
        assert ("mean, plain Spark" in found) is (plain in runs)


def test_a_latency_far_beyond_its_bound_goes_on_a_log_scale(
    unbound: Report, tmp_path: Path
) -> None:
    data = copy.deepcopy(unbound.data)
    even = {"mean_ms": 100.0, "p95_ms": 110.0, "p99_ms": 120.0}
    for interval in data["intervals"]:
        interval.update(even)
    assert "5000" not in words(Report(data), tmp_path)
    data["intervals"][2]["p99_ms"] = 9_000.0
    assert {"100", "200", "500", "1000", "2000", "5000"} <= set(words(Report(data), tmp_path))


def test_a_cold_start_does_not_set_the_scale_of_the_latency(
    unbound: Report, tmp_path: Path
) -> None:
    data = copy.deepcopy(unbound.data)
    for interval in data["intervals"]:
        interval.update({"mean_ms": 100.0, "p95_ms": 110.0, "p99_ms": 120.0})
    cold = copy.deepcopy(data)
    cold["intervals"][0] |= {"p95_ms": 8_000.0, "p99_ms": 9_000.0, "warm_up": True}
    assert data["intervals"][0]["warm_up"]
    assert words(Report(cold), tmp_path) == words(Report(data), tmp_path)


def test_the_time_axis_covers_a_baseline_that_took_longer(
    controlled: Report, plain: Report, tmp_path: Path
) -> None:
    short = cut(controlled, 4, 30)
    assert "140" not in words(short, tmp_path)
    assert "140" in words(short, tmp_path, plain)


def test_a_report_without_intervals_is_drawn_empty(
    empty: Report, controlled: Report, tmp_path: Path
) -> None:
    assert "no interval yet" in words(empty, tmp_path, controlled)
    assert "mean, plain Spark" not in words(controlled, tmp_path, empty)


def test_a_flow_without_constraints_is_drawn(unbound: Report, tmp_path: Path) -> None:
    texts = words(unbound, tmp_path)
    assert "sentiments: no constraint" in texts
    assert any(text.startswith("this run: nothing to judge") for text in texts)


def test_intervals_without_records_are_gaps_and_one_alone_is_drawn(
    controlled: Report, tmp_path: Path
) -> None:
    assert "140" in words(cut(controlled, 5, 20), tmp_path)
    assert "sentiment" in words(cut(controlled, 1, 30), tmp_path)
