"""The report on a terminal: a summary at the end of a run, and a live view during it."""

from __future__ import annotations

import math
import textwrap
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tailrace.constraint import SINK, SOURCE
from tailrace.outside import printable
from tailrace.report.blocks import bar, chart
from tailrace.report.data import KEPT
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tailrace.report.blocks import Drawn
    from tailrace.report.data import Report

    Data = Mapping[str, Any]
    Row = tuple[str, Callable[[Report], str]]

DECISIONS = 3
"""How many of the latest decisions are shown."""

ROWS = 9
"""How many elements and steps are listed: the largest and the busiest."""

PROMISES = 3
"""Constraints that the live view has room for."""

PAIRED = 14
"""Columns of a bar where elements are shown in pairs."""

SPAN = 40
"""How many of the latest intervals the live view charts."""

WIDTH = 100
"""Columns of the summary in a notebook."""

_HTML = '<pre style="font-family: monospace; line-height: 1.2; overflow-x: auto">{code}</pre>'
_PROVISIONAL = "This rests on a short run: let it go on for a minute to be sure."
_NOTHING = "-"
_STEP = "step:"


def label(element: str) -> str:
    """The display name of an element of the latency."""
    return element.removeprefix(_STEP) if element.startswith(_STEP) else element.replace("_", " ")


def seconds(report: Report, at_us: int) -> float:
    """The time since the first interval began."""
    return float(at_us - report.data["origin_us"]) / 1e6


def summary(report: Report, baseline: Report | None = None) -> RenderableType:
    """The summary at the end of a run; with a baseline, the numbers of plain Spark beside it.

    Means are over the records that entered after the warm-up, like the verdicts.
    """
    data = report.data
    measured = [interval for interval in report.intervals if not interval["warm_up"]]
    parts: list[RenderableType] = [_header(data), _constraints(report, baseline)]
    parts.extend(_impossible(item) for item in data["impossible"])
    beside = Table.grid(padding=(0, 4))
    breakdown = _breakdown(_mean_breakdown(measured), width=26 if baseline is None else 16)
    beside.add_row(_numbers(report, baseline), breakdown)
    parts.append(beside)
    if measured and measured[-1]["steps"]:
        parts.append(Padding(_steps(measured), (1, 0, 0, 0)))
    if data["decisions"]:
        parts.append(_decisions(report, DECISIONS, full=True))
    parts.append(_cost(data))
    parts.extend(Text(f"Note: {printable(note)}", style="dim") for note in data["notes"])
    return Group(*parts)


def html(report: Report) -> str:
    """The summary as self-contained HTML for a notebook; names are escaped."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print(summary(report))
    return console.export_html(code_format=_HTML, inline_styles=True)


class LiveView:
    """A screen about the current run, redrawn from its report each time it is rendered."""

    def __init__(self, read: Callable[[], Report]) -> None:
        """``read`` returns the report of the run so far."""
        self._read = read

    def __rich__(self) -> RenderableType:
        """The current screen, which fits into 80 columns and 24 lines."""
        report = self._read()
        latest = report.intervals[-SPAN:]
        impossible = report.data["impossible"]
        parts: list[RenderableType] = [_header(report.data), _promises(report)]
        parts.extend(_warning(item) for item in impossible[:PROMISES])
        if not latest:
            parts.append(Text("\nNo interval is complete yet.", style="dim"))
            return Group(*parts)
        parts.append(_charts(report, latest))
        parts.append(_elements_in_pairs(latest[-1]["breakdown_ms"]))
        if report.data["decisions"]:
            parts.append(_decisions(report, max(1, DECISIONS - len(impossible)), full=False))
        return Group(*parts)


def _header(data: Data) -> Text:
    said = f"   {data['mode']}   {data['elapsed_s']:.0f} s   {data['records']:,} records"
    failed = "   failed" if data["failure"] is not None else ""
    return Text.assemble((printable(data["flow"]), "bold"), (said, "dim"), (failed, "bold red"))


def _table(title: str, *columns: str) -> Table:
    """A plain table: its title heads the first column, and numbers are right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, header_style="bold")
    for column in columns:
        table.add_column(column, header_style="dim", justify="right")
    return table


def _constraints(report: Report, baseline: Report | None) -> RenderableType:
    constraints = report.data["constraints"]
    if not constraints:
        return Text("\nNo constraint was set, so nothing had to be kept.\n", style="dim")
    table = _table("what had to be kept", "share", "intervals")
    if baseline is not None:
        table.add_column("plain Spark", header_style="dim", justify="right")
    other = {c["text"]: c for c in baseline.data["constraints"]} if baseline else {}
    for constraint in constraints:
        kept, judged = constraint["fulfilled"], constraint["judged"]
        cells = [_share(constraint), Text(f"{kept} of {judged}" if judged else _NOTHING)]
        if baseline is not None:
            cells.append(_share(other.get(constraint["text"], {"fulfilled_share": None})))
        table.add_row(Text(constraint["text"]), *cells)
    warm_up = show_duration(report.data["warm_up_s"] * 1e3)
    left_out = Text(f"warm-up of {warm_up} left out\n", style="dim")
    return Group("", table, left_out)


def _share(constraint: Data) -> Text:
    share = constraint["fulfilled_share"]
    if share is None:
        return Text(_NOTHING, style="dim")
    return Text(f"{share:.1%}", style="bold green" if share >= KEPT else "bold red")


def _impossible(impossible: Data) -> Panel:
    said = Text(f"{impossible['reason']}\n").append(impossible["remedy"], style="bold")
    if impossible["provisional"]:
        said.append(f"\n{_PROVISIONAL}", style="dim")
    title = Text(f"cannot be kept: {impossible['constraint']}")
    return Panel(said, title=title, title_align="left", border_style="red")


def _numbers(report: Report, baseline: Report | None) -> Table:
    """Latency and usage, one number per line, with those of plain Spark beside them."""
    rows: list[Row] = [
        ("latency, mean", lambda r: _latency(r, "mean_ms")),
        *((key, lambda r, key=key: _latency(r, f"{key}_ms")) for key in ("p50", "p95", "p99")),
        ("max", lambda r: _latency(r, "max_ms")),
        ("CPU seconds", lambda r: f"{r.data['cpu_seconds']:.1f}"),
        ("core-seconds", lambda r: f"{r.data['core_seconds']:.1f}"),
        ("batches", lambda r: f"{r.data['batches']:,}"),
    ]
    if report.data.get("energy_joules") is not None:
        rows.append(("energy", lambda r: f"{r.data['energy_joules'] or 0:,.0f} J"))
    columns = {"this run": report} | ({"plain Spark": baseline} if baseline else {})
    table = _table("in numbers", *columns)
    for name, shown in rows:
        table.add_row(name, *(shown(column) for column in columns.values()))
    return table


def _latency(report: Report, key: str) -> str:
    latency = report.data["latency_ms"]
    return _NOTHING if latency is None else show_duration(latency[key])


def _mean_breakdown(intervals: Iterable[Data]) -> dict[str, float]:
    """The mean latency by element, over all records of the intervals."""
    whole: dict[str, float] = {}
    records = 0
    for interval in intervals:
        records += interval["records"]
        for element, part_ms in interval["breakdown_ms"].items():
            whole[element] = whole.get(element, 0.0) + part_ms * interval["records"]
    return {element: total / records for element, total in whole.items()}


def _largest(parts: Mapping[str, float]) -> dict[str, float]:
    """The elements in the order in which records meet them; the smallest of many as one."""
    least = set(sorted(parts, key=parts.__getitem__, reverse=True)[ROWS:])
    shown = {label(name): part for name, part in parts.items() if name not in least}
    return shown | ({"others": sum(parts[name] for name in least)} if least else {})


def _breakdown(parts: Mapping[str, float], width: int) -> RenderableType:
    if not parts:
        return Text("No record entered after the warm-up.", style="dim")
    table = _table("where the latency goes", "", "mean", "")
    shown, whole = _largest(parts), sum(parts.values())
    top = max(shown.values())
    for name, part in shown.items():
        drawn = bar(top or 1.0, part, width)
        share = f"{part / whole:.0%}" if whole else _NOTHING
        table.add_row(Text(name), drawn, show_duration(part), share)
    return table


def _steps(intervals: Sequence[Data]) -> Table:
    """The busiest steps. As ratios, since a batch counts fully in each interval that it touches."""
    table = _table("steps", "service time", "busy", "at most", "out per record in", "errors")
    names = dict.fromkeys(name for interval in intervals for name in interval["steps"])
    did = {n: [i["steps"][n] for i in intervals if n in i["steps"]] for n in names}
    busiest = {name: max(step["utilisation"] for step in steps) for name, steps in did.items()}
    listed = sorted(busiest, key=busiest.__getitem__, reverse=True)[:ROWS]
    for name in (name for name in names if name in listed):
        weights = [step["records_in"] for step in did[name]]
        entered = max(1, sum(weights))
        service_ms = _weighted(did[name], "service_mean_ms", weights)
        errors = sum(step["errors"] for step in did[name]) / entered
        table.add_row(
            Text(name),
            show_duration(service_ms),
            f"{_weighted(did[name], 'utilisation', weights):.0%}",
            f"{busiest[name]:.0%}",
            f"{sum(step['records_out'] for step in did[name]) / entered:.3g}",
            Text(f"{errors:.2%}", style="bold red") if errors else Text("none", style="dim"),
        )
    return table


def _weighted(items: Sequence[Data], key: str, weights: Sequence[int]) -> float:
    pairs = zip(items, weights, strict=True)
    return float(sum(item[key] * weight for item, weight in pairs) / max(1, sum(weights)))


def _decisions(report: Report, count: int, *, full: bool) -> RenderableType:
    """The latest decisions; a shortened reason takes two lines at 80 columns."""
    decisions = report.data["decisions"]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True, style="dim")
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for decision in decisions[-count:]:
        reason = decision["reason"] if full else textwrap.shorten(decision["reason"], 112)
        text = Text(reason)
        if full:
            text.append(_outcome(decision), style="dim")
        policy = decision["policy"] if decision["applied"] else f"{decision['policy']}, advised"
        table.add_row(f"{seconds(report, decision['at_us']):.0f} s", Text(policy), text)
    earlier = len(decisions) - count
    title = Text("\ndecisions", style="bold")
    if earlier > 0:
        title.append(f"   after {earlier} earlier", style="not bold dim")
    return Group(title, table)


def _outcome(decision: Data) -> str:
    """The predicted and the actual effect of a decision, as far as they are known."""
    known = {
        "predicted": decision["predicted_ms"],
        "realised": decision["realised_ms"],
    }
    said = [f"{name} {show_duration(ms)}" for name, ms in known.items() if ms is not None]
    return f" ({' -> '.join(said)})" if said else ""


def _executors(scaling: Data | None) -> str:
    """How many executors there were, how often that changed, and how many were not needed."""
    if scaling is None:
        return ""
    moves = scaling["reconfigurations"]
    said = f"It ran on {scaling['mean_executors']:.1f} executors on average, with {moves} moves"
    if moves:
        said += f" that settled in {scaling['settling_s']:g} s"
    if scaling["overshoot"] is not None:
        said += f", {scaling['overshoot']:.1f} more than were needed"
    return f"{said}. "


def _cost(data: Data) -> Text:
    saving, restarts_ms, model = data["saving"], data["restarts_ms"], data["model"]
    said = Text("\n").append(_executors(data["scaling"]))
    if model is not None:
        fixed, each = show_duration(model["fixed_ms"]), show_duration(model["per_record_ms"])
        said.append(f"A batch costs {fixed} + {each} a record. ")
    if saving["batches"]:
        said.append("Against batches back to back, ")
        said.append(f"{saving['batches']:,.0f} batches", style="bold")
        said.append(" and ")
        said.append(f"{saving['cpu_seconds']:.1f} CPU seconds", style="bold")
        said.append(" were saved. ")
    took = f" that took {show_duration(sum(restarts_ms))}" if restarts_ms else ""
    count = len(restarts_ms) or "no"
    return said.append(f"There {'was' if count == 1 else 'were'} {count} ").append(
        f"restart{'' if count == 1 else 's'}{took}."
    )


def _promises(report: Report) -> RenderableType:
    """Each constraint, with its latest value against its bound."""
    constraints = report.data["constraints"]
    if not constraints:
        return Text("No constraint is set.", style="dim")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(width=20)
    table.add_column(justify="right", no_wrap=True)
    cannot = {impossible["constraint"] for impossible in report.data["impossible"]}
    for constraint in constraints[:PROMISES]:
        text, bound = constraint["text"], constraint["bound_ms"]
        values = [value for value in _values(report.intervals, text) if not math.isnan(value)]
        name = Text(text)
        if text in cannot:
            name = Text("impossible ", style="bold red").append(text, style="not bold default")
        if not values:
            table.add_row(name, _NOTHING, ProgressBar(total=bound, width=20), _NOTHING)
            continue
        style = "green" if values[-1] <= bound else "red"
        full = min(values[-1], bound)
        bar = ProgressBar(bound, full, width=20, complete_style=style, finished_style=style)
        used = Text(f"{values[-1] / bound:.0%}", style=style)
        table.add_row(name, show_duration(values[-1]), bar, used)
    return table


def _warning(impossible: Data) -> Text:
    """Why a constraint cannot be kept, in two lines at 80 columns."""
    sure = "So far: " if impossible["provisional"] else ""
    said = f"{sure}{impossible['reason']} {impossible['remedy']}"
    return Text(textwrap.shorten(said, 150), style="red")


def _values(intervals: Sequence[Data], constraint: str) -> list[float]:
    """What a constraint measured in each interval; the worst if it was judged more than once."""
    return [
        max(
            (v["value_ms"] for v in interval["verdicts"] if v["constraint"] == constraint),
            default=math.nan,
        )
        for interval in intervals
    ]


def _charts(report: Report, latest: Sequence[Data]) -> RenderableType:
    """Interval by interval: mean latency against its bound, rate, batch interval, executors."""
    means = [interval["mean_ms"] for interval in latest]
    rates = [interval["rate_per_s"] for interval in latest]
    planned = [interval["plan"]["interval_ms"] for interval in latest]
    bounds = [
        constraint["bound_ms"]
        for constraint in report.data["constraints"]
        if constraint["statistic"] == "mean" and constraint["path"] == [SOURCE, SINK]
    ]
    bound = min(bounds, default=None)
    broken = [not interval["fulfilled"] for interval in latest]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(width=SPAN, no_wrap=True)
    table.add_column(no_wrap=True)
    now = show_duration(means[-1])
    said = now if bound is None else f"{now} of {show_duration(bound)}"
    table.add_row("mean latency", _latency_chart(means, broken, bound), Text(f"\n\n{said}"))
    flat = [False] * len(latest)
    table.add_row("rate", chart(rates, flat, max(rates), 1, None), show_rate(rates[-1]))
    cut = "back to back" if planned[-1] == 0 else f"every {show_duration(planned[-1])}"
    table.add_row("batch interval", chart(planned, flat, max(planned), 1, None), cut)
    if latest[-1]["executors"] is not None:
        sizes = [interval["executors"] for interval in latest]
        table.add_row("executors", chart(sizes, flat, max(sizes), 1, None), _size(latest[-1]))
    if report.data["scaling"] is not None:
        table.add_row("", *_followed(report.data["scaling"]))
    return Padding(table, (1, 0, 0, 0))


def _size(interval: Data) -> str:
    """How many executors there are, and how many are requested or would be enough."""
    size, wanted, needed = interval["executors"], interval["plan"]["executors"], interval["needed"]
    if wanted not in {None, size}:
        return f"{size}, {wanted} wanted"
    return f"{size}" if needed is None else f"{size}, {needed} needed"


def _followed(scaling: Data) -> tuple[Text, Text]:
    """Stability, accuracy and settling time so far; and overshoot."""
    moves, missed, over = (scaling[key] for key in ("reconfigurations", "violations", "overshoot"))
    settling = f", {scaling['settling_s']:g} s to settle" if moves else ""
    said = Text(f"{moves} moves, {missed} missed{settling}", style="dim")
    return said, Text("" if over is None else f"{over:.1f} more than needed", style="dim")


def _latency_chart(means: Sequence[float], broken: Sequence[bool], bound: float | None) -> Drawn:
    """Three lines high; values above twice the bound fill them, so that the bound stays visible."""
    top = max(means) if bound is None else min(max(*means, 1.2 * bound), 2 * bound)
    return chart(means, broken, top, 3, bound)


def _elements_in_pairs(parts: Mapping[str, float]) -> RenderableType:
    """The latest breakdown, two elements per line."""
    shown = _largest(parts)
    top = max(shown.values()) or 1.0
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for _ in range(2):
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        table.add_column(width=PAIRED)
        table.add_column(width=8, justify="right", no_wrap=True)
    cells = [
        (Text(name), bar(top, part, PAIRED), show_duration(part)) for name, part in shown.items()
    ]
    half = (len(cells) + 1) // 2
    for row, left in enumerate(cells[:half]):
        right = cells[half + row] if half + row < len(cells) else ()
        table.add_row(*left, *right)
    return Padding(table, (1, 0, 0, 0))
