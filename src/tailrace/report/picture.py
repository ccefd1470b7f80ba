"""The report as a picture: latency, rate, batch interval, executors and breakdown over time."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from tailrace.constraint import SINK, SOURCE
from tailrace.report.style import written
from tailrace.report.terminal import label, seconds
from tailrace.units import show_duration

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from tailrace.report.data import Report

    Floats = NDArray[np.float64]

# The palette of Okabe and Ito, which colour-blind people can tell apart.
_ORANGE, _SKY, _GREEN, _YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
_BLUE, _RED, _PURPLE, _BLACK, _GREY = "#0072B2", "#D55E00", "#CC79A7", "#000000", "#999999"

_COLOURS = {
    "source_wait": _GREY,
    "batching": _GREEN,
    "planning": _ORANGE,
    "queueing": _YELLOW,
    "engine": _BLACK,
    "sink": _PURPLE,
}
_STEP = "step:"
_MOST_STEPS = 6
_OTHER_STEPS = "other_steps"
_TITLE_WIDTH = 100
_LOG_ABOVE = 12.0
"""The latency gets a log scale if its largest value is this many times the usual one."""


def draw(report: Report, path: Path, baseline: Report | None = None) -> Path:
    """Draw a report, as PNG or SVG by the suffix of the path; the same report gives the same bytes.

    With a baseline, its mean latency is drawn too, aligned at the start.

    Raises:
        InputError: If the suffix is not .png or .svg, or the file cannot be written.
    """
    return written(path, lambda: _figure(report, baseline))


@dataclass(frozen=True, slots=True)
class _Series:
    """The intervals of a report on an even grid; nan where there were no records."""

    every_s: float
    rows: tuple[dict[str, Any] | None, ...]

    @classmethod
    def of(cls, report: Report) -> _Series:
        """Spread the intervals over the time since the first one began."""
        intervals = report.intervals
        if not intervals:
            return cls(1.0, ())
        every_us, origin_us = report.data["interval_ms"] * 1e3, report.data["origin_us"]
        at = {round((row["start_us"] - origin_us) / every_us): row for row in intervals}
        return cls(every_us / 1e6, tuple(at.get(index) for index in range(max(at) + 1)))

    @property
    def middle_s(self) -> Floats:
        """The middle of each interval."""
        return (np.arange(len(self.rows), dtype=np.float64) + 0.5) * self.every_s

    @property
    def edges_s(self) -> Floats:
        """The start of each interval, and the end of the last."""
        return np.arange(len(self.rows) + 1, dtype=np.float64) * self.every_s

    @property
    def end_s(self) -> float:
        """The end of the last interval."""
        return len(self.rows) * self.every_s

    @property
    def warm_up_s(self) -> float:
        """The end of the last interval of the warm-up."""
        warm = [index for index, row in enumerate(self.rows) if row and row["warm_up"]]
        return (warm[-1] + 1) * self.every_s if warm else 0.0

    def values(self, key: str) -> Floats:
        """One number of each interval."""
        return np.array([row[key] if row else math.nan for row in self.rows], dtype=np.float64)

    def counted(self, key: str) -> Floats:
        """The same after the warm-up."""
        return self.values(key)[round(self.warm_up_s / self.every_s) :]

    def part(self, element: str) -> Floats:
        """The part of one element in the mean latency."""
        return np.array(
            [
                max(0.0, row["breakdown_ms"].get(element, 0.0)) if row else math.nan
                for row in self.rows
            ],
            dtype=np.float64,
        )

    def verdicts(self, constraint: str) -> Floats:
        """What a constraint measured; the worst value if it was judged more than once."""
        found = [
            [v["value_ms"] for v in row["verdicts"] if v["constraint"] == constraint] if row else []
            for row in self.rows
        ]
        return np.array([max(values, default=math.nan) for values in found], dtype=np.float64)


def _figure(report: Report, baseline: Report | None) -> Figure:
    elastic = report.data["scaling"] is not None
    heights = {
        "latency (ms)": 3.2,
        "records/s": 1.2,
        "batch\ninterval (ms)": 1.5,
        **({"executors": 1.2} if elastic else {}),
        "mean latency\nby element (ms)": 2.6,
    }
    figure = Figure(figsize=(10.5, 9.8 if elastic else 8.6), layout="constrained")
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=list(heights.values()))
    latency, rate, interval, *sizes, breakdown = panels
    series = _Series.of(report)
    other = _Series.of(baseline) if baseline else _Series(1.0, ())
    if series.rows:
        _draw_latency(latency, report, series, other)
        _draw_rate(rate, series)
        _draw_interval(interval, report, series)
        for panel in sizes:
            _draw_executors(panel, series)
        _draw_breakdown(breakdown, series)
    else:
        latency.text(
            0.5,
            0.5,
            "no interval yet",
            ha="center",
            va="center",
            color=_GREY,
            transform=latency.transAxes,
        )
    for panel, name in zip(panels, heights, strict=True):
        panel.set_ylabel(name)
        panel.tick_params(length=0)
        if not series.rows:
            panel.set(xticks=[], yticks=[])
        if series.warm_up_s:
            shade = panel.axvspan(0, series.warm_up_s, color="#EDEDED", linewidth=0, zorder=0)
            shade.set_label("warm-up" if panel is latency else "_nolegend_")
    _legend(latency)
    figure.align_ylabels(panels)
    breakdown.set_xlabel("seconds since start")
    breakdown.set_xlim(0, max(series.end_s, other.end_s, 1.0))
    figure.suptitle(_title(report), x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel(_footer(report, baseline), x=0.01, ha="left", fontsize=8, color="#555555")
    return figure


def _title(report: Report) -> str:
    constraints = [constraint["text"] for constraint in report.data["constraints"]]
    whole = f"{report.data['flow']}: {'; '.join(constraints) or 'no constraint'}"
    return textwrap.fill(whole, _TITLE_WIDTH)


def _footer(report: Report, baseline: Report | None) -> str:
    lines = [("this run", report)] + ([("plain Spark", baseline)] if baseline else [])
    said = []
    for name, run in lines:
        share = "nothing to judge"
        if not math.isnan(run.fulfilled_share):
            share = f"bounds kept in {run.fulfilled_share:.1%} of intervals"
        said.append(f"{name}: {share}, {run.data['cpu_seconds']:.1f} CPU seconds")
    warm_up = show_duration(report.data["warm_up_s"] * 1e3)
    return f"{'   |   '.join(said)}   (warm-up of {warm_up} not counted)"


def _legend(panel: Axes, *, reverse: bool = False) -> None:
    handles, labels = panel.get_legend_handles_labels()
    order = slice(None, None, -1 if reverse else 1)
    panel.legend(
        handles[order],
        labels[order],
        loc="upper left",
        bbox_to_anchor=(1.01, 1.02),
        borderaxespad=0,
        handlelength=1.6,
    )


def _draw_latency(panel: Axes, report: Report, series: _Series, other: _Series) -> None:
    """The mean with the tail above it, every bound, and the points where one was broken.

    The height of the panel ignores the warm-up: a cold start may exceed it.
    """
    time_s, mean, p95 = series.middle_s, series.values("mean_ms"), series.values("p95_ms")
    panel.fill_between(
        time_s, p95, series.values("p99_ms"), color=_SKY, alpha=0.25, lw=0, label="p95 to p99"
    )
    panel.fill_between(time_s, mean, p95, color=_SKY, alpha=0.55, lw=0, label="mean to p95")
    if other.rows:
        panel.plot(
            other.middle_s, other.values("mean_ms"), color=_GREY, lw=1.4, label="mean, plain Spark"
        )
    panel.plot(time_s, mean, color=_BLUE, lw=1.8, marker="o", ms=2.5, label="mean")
    tops = (_highest(series, "p99_ms"), _highest(other, "mean_ms"))
    bounds = [constraint["bound_ms"] for constraint in report.data["constraints"]]
    top = max([top for top in tops if math.isfinite(top)], default=panel.dataLim.y1)
    _draw_bounds(panel, report, series, max([top, *bounds]))
    _scale_latency(panel, min([*bounds, float(np.nanmedian(mean))]), max([top, *bounds, 1.0]))


def _highest(series: _Series, key: str) -> float:
    """The largest value after the warm-up; NaN if there is none."""
    counted = series.counted(key)
    return float(np.nanmax(counted)) if np.isfinite(counted).any() else math.nan


def _draw_bounds(panel: Axes, report: Report, series: _Series, top_ms: float) -> None:
    """Draw a dashed line for each bound, and a cross wherever it was broken.

    A constraint on a part of the flow also gets a line for its measured values. A cross above the
    top of the panel is drawn at the top.
    """
    broken = "bound broken"
    for constraint in report.data["constraints"]:
        values, bound = series.verdicts(constraint["text"]), constraint["bound_ms"]
        name = f"{constraint['statistic']} <= {show_duration(bound)}"
        colour = _BLACK
        if constraint["path"] != [SOURCE, SINK]:
            colour, where = _GREEN, " -> ".join(constraint["path"])
            name = f"{name}, {where}"
            panel.plot(
                series.middle_s,
                values,
                color=colour,
                lw=1.0,
                label=f"{constraint['statistic']}, {where}",
            )
        panel.axhline(bound, color=colour, lw=1.0, ls=(0, (5, 3)))
        panel.annotate(
            name,
            (1, bound),
            xycoords=("axes fraction", "data"),
            xytext=(-3, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8,
            color=colour,
            bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.8},
        )
        over = np.where(values > bound, np.minimum(values, top_ms), np.nan)
        if np.isfinite(over).any():
            panel.plot(
                series.middle_s,
                over,
                color=_RED,
                marker="x",
                ms=5,
                mew=1.5,
                ls="none",
                label=broken,
            )
            broken = "_nolegend_"


def _scale_latency(panel: Axes, usual_ms: float, top_ms: float) -> None:
    if top_ms > _LOG_ABOVE * max(usual_ms, 1.0):
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.set_ylim(top=1.3 * top_ms)
    else:
        panel.set_ylim(0, 1.08 * top_ms)


def _draw_rate(panel: Axes, series: _Series) -> None:
    panel.stairs(series.values("rate_per_s"), series.edges_s, color=_BLUE, lw=1.4, baseline=None)
    panel.set_ylim(0, 1.15 * panel.dataLim.y1)
    panel.yaxis.set_major_locator(MaxNLocator(4))


def _draw_interval(panel: Axes, report: Report, series: _Series) -> None:
    """Draw the plan's interval over time, and a tick for every other change of the plan."""
    decisions = [decision for decision in report.data["decisions"] if decision["applied"]]
    first = series.rows[0]["plan"] if series.rows[0] else {}
    before = decisions[0]["before"] if decisions else first
    at_s = [0.0, *(seconds(report, d["at_us"]) for d in decisions)]
    planned = [before["interval_ms"], *(d["after"]["interval_ms"] for d in decisions)]
    panel.step(
        [*at_s, max(series.end_s, at_s[-1])],
        [*planned, planned[-1]],
        where="post",
        color=_BLUE,
        lw=1.6,
    )
    top = max(*planned, 1.0)
    panel.set_ylim(-0.06 * top, 1.7 * top)
    panel.yaxis.set_major_locator(MaxNLocator(4))
    changes: dict[float, str] = {}
    for time_s, decision in zip(at_s[1:], decisions, strict=True):
        said = _change(decision)
        changes[time_s] = f"{changes[time_s]}, {said}" if time_s in changes else said
    _mark(panel, changes, series.end_s)


def _draw_executors(panel: Axes, series: _Series) -> None:
    """Draw the number of executors, over the fewest that would have kept every bound."""
    for key, colour, width, name in (
        ("needed", "#BBBBBB", 4.0, "fewest needed"),
        ("executors", _BLUE, 1.6, "executors"),
    ):
        values = series.values(key)
        panel.stairs(values, series.edges_s, color=colour, lw=width, baseline=None, label=name)
    panel.set_ylim(0, 1.15 * max(1.0, float(np.nanmax(series.values("executors")))))
    panel.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    _legend(panel)


def _change(decision: dict[str, Any]) -> str:
    """The change that a decision made to the plan, in a word."""
    before, after = len(decision["before"]["chains"]), len(decision["after"]["chains"])
    if before == after:
        return str(decision["policy"])
    return "split" if after > before else "join"


def _mark(panel: Axes, changes: dict[float, str], end_s: float) -> None:
    """Draw a tick for every change, with a word below it if one of two rows has room for it."""
    free_s = [-math.inf, -math.inf]
    for time_s, said in changes.items():
        if time_s > end_s:
            break
        panel.axvline(time_s, ymin=0.94, color=_RED, lw=1.2)
        line = next((line for line, free in enumerate(free_s) if time_s >= free), None)
        if line is None:
            continue
        word = panel.annotate(
            said,
            (time_s, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-1, -7 - 9 * line),
            textcoords="offset points",
            va="top",
            fontsize=7,
            color=_RED,
        )
        word.set_in_layout(False)  # near the end it may extend into the margin
        free_s[line] = time_s + 0.0085 * end_s * (len(said) + 2)


def _draw_breakdown(panel: Axes, series: _Series) -> None:
    parts = _parts(series)
    steps = [name for name in parts if name.startswith(_STEP) or name == _OTHER_STEPS]
    colours = _COLOURS | dict(zip(steps, _shades(len(steps)), strict=True))
    panel.stackplot(
        series.edges_s,
        [np.append(part, part[-1]) for part in parts.values()],
        labels=[label(name) for name in parts],
        colors=[colours[name] for name in parts],
        step="post",
        edgecolor="white",
        linewidth=0.3,
    )
    # A cold start may exceed the panel; the interesting part comes after it.
    top = _highest(series, "mean_ms")
    panel.set_ylim(0, 1.15 * top if math.isfinite(top) else None)
    _legend(panel, reverse=True)


def _parts(series: _Series) -> dict[str, Floats]:
    """The elements in the order in which records meet them; the smallest of many steps as one."""
    names = dict.fromkeys(name for row in series.rows if row for name in row["breakdown_ms"])
    parts = {name: series.part(name) for name in names}
    steps = sorted(
        (name for name in parts if name.startswith(_STEP)),
        key=lambda name: float(np.nansum(parts[name])),
        reverse=True,
    )
    least = steps[_MOST_STEPS:]
    shown: dict[str, Floats] = {}
    for name, part in parts.items():
        key = _OTHER_STEPS if name in least else name
        shown[key] = shown[key] + part if key in shown else part
    return shown


def _shades(count: int) -> list[tuple[float, float, float]]:
    """Blues from dark to light, one for each step."""
    dark, light = np.array(to_rgb("#004B7A")), np.array(to_rgb("#9CCBE8"))
    return [
        (float(red), float(green), float(blue))
        for red, green, blue in (
            dark + (light - dark) * i / max(1, count - 1) for i in range(count)
        )
    ]
