"""Runs of several scalers under one load, as a picture: rate, sizes, latencies and their bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tailrace.errors import InputError
from tailrace.report.style import written
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from tailrace.report.saso import Sized

    Floats = NDArray[np.float64]

_SIZE, _LATENCY, _LEAST, _MISSED = "#0072B2", "#555555", "#BBBBBB", "#D55E00"
"""From the palette of Okabe and Ito, which colour-blind people can tell apart."""

_TOP = 3.0
"""Latencies are drawn up to this many times the bound."""


def plot(path: Path, named_runs: Mapping[str, Sequence[Sized]], bound_ms: float) -> Path:
    """Draw runs under the same load: its rate, the size of each, and latencies with their bound.

    Each run has its own row, with its size beside its latency. Written as PNG or SVG, by the suffix
    of the path. Latencies above three times the bound are cut off; a cross marks every step that
    missed its goal.

    Raises:
        InputError: If the suffix is unknown, there is no step, or the file cannot be written.
    """
    if not named_runs or not all(named_runs.values()):
        raise InputError("There is no control step to draw: give at least one run with steps.")
    return written(path, lambda: _figure(named_runs, bound_ms))


def _figure(runs: Mapping[str, Sequence[Sized]], bound_ms: float) -> Figure:
    figure = Figure(figsize=(10.5, 1.4 + 1.15 * len(runs)), layout="constrained")
    rows = figure.subplots(1 + len(runs), 2, sharex=True, squeeze=False)
    (rate, key), *panels = rows
    _draw_rate(rate, next(iter(runs.values())))
    most = max(step.size for steps in runs.values() for step in steps)
    for (size, latency), (name, steps) in zip(panels, runs.items(), strict=True):
        _draw_sizes(size, name, steps, most)
        _draw_latencies(latency, steps, bound_ms)
    for panel in rows.flat:
        panel.tick_params(length=0)
    size.set_xlabel("seconds since start")
    latency.set_xlabel("seconds since start")
    size.set_xlim(0, max(float(_edges_s(steps)[-1]) for steps in runs.values()))
    shown = [*size.get_legend_handles_labels(), *latency.get_legend_handles_labels()]
    key.axis("off")
    key.legend(shown[0] + shown[2], shown[1] + shown[3], loc="center", ncols=2)
    figure.align_ylabels(rows[:, 0])
    return figure


def _draw_rate(panel: Axes, steps: Sequence[Sized]) -> None:
    rates = [step.rate_per_s for step in steps]
    panel.stairs(rates, _edges_s(steps), baseline=None, color="#000000", lw=1.4)
    panel.set_ylim(0, 1.15 * max(rates) or 1.0)
    panel.set_ylabel("records/s")
    panel.yaxis.set_major_locator(MaxNLocator(4))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show_rate(value)))


def _draw_sizes(panel: Axes, name: str, steps: Sequence[Sized], most: int) -> None:
    edges_s, sizes = _edges_s(steps), [step.size for step in steps]
    least = [np.nan if step.least_size is None else step.least_size for step in steps]
    panel.stairs(least, edges_s, baseline=None, color=_LEAST, lw=4, label="fewest needed")
    panel.stairs(sizes, edges_s, baseline=None, color=_SIZE, lw=1.5, label="executors")
    panel.set_ylim(0, 1.1 * most)
    panel.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    panel.set_ylabel(name)


def _draw_latencies(panel: Axes, steps: Sequence[Sized], bound_ms: float) -> None:
    edges_s, values = _edges_s(steps), _latencies(steps)
    middle_s = (edges_s[1:] + edges_s[:-1]) / 2
    missed = np.array([step.violated for step in steps])
    crosses = np.where(missed, np.fmin(values, 0.96 * _TOP * bound_ms), np.nan)
    bound = f"bound {show_duration(bound_ms)}"
    panel.axhline(bound_ms, color="#000000", lw=1.0, ls=(0, (5, 3)), label=bound)
    panel.plot(middle_s, values, lw=1.2, color=_LATENCY, label="latency (ms)")
    marks = panel.plot(middle_s, crosses, "x", ms=4, mew=1.2, color=_MISSED)
    marks[0].set_label("bound missed")
    panel.set_ylim(0, _TOP * bound_ms)
    panel.yaxis.set_major_locator(MaxNLocator(3))


def _edges_s(steps: Sequence[Sized]) -> Floats:
    """The start of each step, and the end of the last, relative to the start of the first."""
    begun_us = steps[0].at_us - steps[0].step_ms * 1e3
    return np.array([0.0, *((step.at_us - begun_us) / 1e6 for step in steps)])


def _latencies(steps: Sequence[Sized]) -> Floats:
    """The latency of each step; NaN if no record was finished."""
    return np.array([np.nan if s.latency_ms is None else s.latency_ms for s in steps])
