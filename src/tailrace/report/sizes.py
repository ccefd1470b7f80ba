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

    from numpy.typing import NDArray

    from tailrace.report.saso import Sized

    Floats = NDArray[np.float64]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito's, which the colour-blind can tell apart."""

_DASHES = ("-", "--", ":")
"""Once all colours are taken."""

_TOP = 3.0
"""Latencies are drawn up to so many times the bound."""


def plot(path: Path, named_runs: Mapping[str, Sequence[Sized]], bound_ms: float) -> Path:
    """Draw runs under the same load: its rate, the size of each, and latencies with their bound.

    As PNG or SVG, by the suffix of the path. A latency above three times the bound leaves the
    picture; a cross marks every step that missed its goal.

    Raises:
        InputError: If the suffix is another one, there is no step, or the file cannot be written.
    """
    if not named_runs or not all(named_runs.values()):
        raise InputError("There is no control step to draw: give at least one run with steps.")
    return written(path, lambda: _figure(named_runs, bound_ms))


def _figure(runs: Mapping[str, Sequence[Sized]], bound_ms: float) -> Figure:
    figure = Figure(figsize=(10.5, 7.2), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(1.2, 2.2, 2.6))
    rate, size, latency = panels
    first = next(iter(runs.values()))
    rates, begun_s = [step.rate_per_s for step in first], _edges_s(first)
    rate.stairs(rates, begun_s, baseline=None, color="#555555", lw=1.4)
    rate.set_ylim(0, 1.15 * max(rates) or 1.0)
    least = [np.nan if step.least_size is None else step.least_size for step in first]
    size.stairs(least, begun_s, baseline=None, color="#BBBBBB", lw=4, label="least that would do")
    for number, (name, steps) in enumerate(runs.items()):
        again, at = divmod(number, len(_COLOURS))
        colour, dashes = _COLOURS[at], _DASHES[again % len(_DASHES)]
        sizes, edges_s, values = [step.size for step in steps], _edges_s(steps), _latencies(steps)
        size.stairs(sizes, edges_s, baseline=None, lw=1.5, color=colour, ls=dashes, label=name)
        middle_s = (edges_s[1:] + edges_s[:-1]) / 2
        latency.plot(middle_s, values, lw=1.2, color=colour, ls=dashes)
        missed = np.array([step.violated for step in steps])
        crosses = np.where(missed, np.fmin(values, 0.98 * _TOP * bound_ms), np.nan)
        latency.plot(middle_s, crosses, color=colour, marker="x", ms=4, mew=1.2, ls="none")
    size.set_ylim(0, None)
    size.yaxis.set_major_locator(MaxNLocator(integer=True))
    latency.axhline(bound_ms, color="#000000", lw=1.0, ls=(0, (5, 3)))
    latency.set_ylim(0, _TOP * bound_ms)
    names = ("records/s", "units", f"latency (ms)\nbound {show_duration(bound_ms)}")
    for panel, name in zip(panels, names, strict=True):
        panel.set_ylabel(name)
        panel.tick_params(length=0)
    rate.yaxis.set_major_locator(MaxNLocator(4))
    rate.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show_rate(value)))
    size.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), borderaxespad=0, handlelength=1.6)
    latency.set_xlabel("seconds since start")
    latency.set_xlim(0, max(float(_edges_s(steps)[-1]) for steps in runs.values()))
    figure.align_ylabels(panels)
    return figure


def _edges_s(steps: Sequence[Sized]) -> Floats:
    """Where steps begin, and the last one ends, from the start of the first."""
    begun_us = steps[0].at_us - steps[0].step_ms * 1e3
    return np.array([0.0, *((step.at_us - begun_us) / 1e6 for step in steps)])


def _latencies(steps: Sequence[Sized]) -> Floats:
    """The latency of each step; not a number where no record was finished."""
    return np.array([np.nan if s.latency_ms is None else s.latency_ms for s in steps])
