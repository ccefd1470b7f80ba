"""The curve of latency over load, with the bound and the knee."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from tailrace.report.style import written
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tailrace.constraint import Constraint
    from tailrace.model.prediction import Prediction

mpl.use("agg")

LINES = (("mean", "C0"), ("p50", "C2"), ("p95", "C1"), ("p99", "C3"))


def draw(found: Sequence[Prediction], bound: Constraint | None, path: Path) -> None:
    """Draw the predictions for one plan over their rates, as PNG or SVG."""
    written(path, lambda: _figure(found, bound))


def _figure(found: Sequence[Prediction], bound: Constraint | None) -> Figure:
    working = [each for each in found if each.works]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    rates = [each.rate_per_s for each in working]
    for name, colour in LINES:
        values = [getattr(each, f"{name}_ms") for each in working]
        axes.plot(rates, values, color=colour, label=name)
    low, high = [e.low_ms for e in working], [e.high_ms for e in working]
    axes.fill_between(rates, low, high, color="C0", alpha=0.15, label="mean, 9 in 10")
    saturation = found[0].outcome.highest_per_s
    if rates and found[0].rate_per_s <= saturation <= found[-1].rate_per_s * 1.2:
        axes.axvline(saturation, color="0.4", linestyle="--")
        label = f"saturates at {show_rate(saturation)}"
        axes.annotate(
            label,
            (saturation, 0.03),
            xycoords=("data", "axes fraction"),
            rotation=90,
            ha="right",
            va="bottom",
            color="0.3",
        )
    if bound is not None:
        axes.axhline(bound.bound_ms, color="k", linewidth=1)
        kept = [e for e in working if e.statistic_ms(bound.quantile) <= bound.bound_ms]
        text = f"{bound.statistic} within {show_duration(bound.bound_ms)}"
        if kept:
            text += f" up to {show_rate(kept[-1].rate_per_s)}"
            axes.plot(
                kept[-1].rate_per_s, kept[-1].statistic_ms(bound.quantile), "ko", markersize=5
            )
        axes.annotate(text, (0.01, bound.bound_ms), xycoords=("axes fraction", "data"), va="bottom")
    axes.set_yscale("log")
    axes.set_xlabel("records per second")
    axes.set_ylabel("latency (ms)")
    axes.xaxis.set_major_formatter(lambda value, _: show_rate(value).removesuffix("/s").strip())
    axes.legend(loc="upper left")
    return figure
