"""``tailrace predict``: what a flow would do under another plan or load."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tailrace.cli import options, screen
from tailrace.cli.app import app, print_json
from tailrace.cli.groups import grouped
from tailrace.cli.plans import PlanChanges, plan_text
from tailrace.cli.results import make_directory
from tailrace.errors import InputError
from tailrace.units import finite, show_duration, show_rate

if TYPE_CHECKING:
    from rich.table import Table

    from tailrace.constraint import Constraint
    from tailrace.model.predict import Predictor
    from tailrace.model.prediction import Prediction
    from tailrace.plan import Plan
    from tailrace.profile.profile import Profile

POINTS = 25
_SWEEP: Final = re.compile(r"rate=(?P<low>[^.]+(?:\.\d+)?[^.]*)\.\.(?P<high>.+)")


@app.command()
@grouped
def predict(
    profile: options.ProfileFile,
    *,
    rate: options.Rate = None,
    changes: PlanChanges,
    bounds: options.Bounds,
    sweep: Annotated[str | None, typer.Option(help="Rates to try, as rate=5k/s..80k/s.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A picture of the sweep.")] = None,
    backlog: Annotated[
        float | None, typer.Option(help="Records already waiting; says when they will be gone.")
    ] = None,
    then: Annotated[
        list[Path] | None,
        typer.Option(help="The profile of a query that reads what this one writes; repeatable."),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="File to append predictions to, to be scored later.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Say what a flow would do under another plan or load."""
    from tailrace.model.predict import Predictor  # noqa: PLC0415 - scipy takes its time
    from tailrace.profile.file import load  # noqa: PLC0415
    from tailrace.report.ledger import Ledger  # noqa: PLC0415

    known = load(profile)
    ledger = Ledger(log) if log is not None else None
    plan = changes.on(known)
    ask = Predictor(known, ledger.accuracy()) if ledger else Predictor(known)
    bound = bounds.constraint()
    if sweep is None and plot is not None:
        raise InputError("A picture needs rates to draw: add --sweep rate=5k/s..80k/s.")
    if sweep is not None:
        _sweep(ask, plan, sweep, bound, plot, as_json=as_json)
        return
    at = None if rate is None else options.rate(rate, "--rate")
    if then:
        _in_a_row([known, *map(load, then)], plan, at, as_json=as_json)
        return
    found = ask(plan, at)
    drain_ms = None
    if backlog is not None:
        drain_ms = ask.drain_ms(plan, at, options.records(backlog, "--backlog"))
    if ledger is not None:
        ledger.add(known.name, found, time.time_ns() // 1_000)
    if as_json:
        print_json(
            found.as_json() | ({} if drain_ms is None else {"drain_ms": finite(drain_ms, 3)})
        )
        return
    table = _table(known, found, bound)
    if drain_ms is not None:
        gone = f"after {show_duration(drain_ms)}" if math.isfinite(drain_ms) else "never"
        screen.row(table, f"a backlog of {backlog:,.0f} is gone", gone)
    screen.show(table)


def _table(profile: Profile, found: Prediction, bound: Constraint | None) -> Table:
    title = f"{profile.name} at {show_rate(found.rate_per_s)}: {plan_text(found.plan)}"
    table = screen.table(title)
    if found.obstacle is not None:
        screen.row(table, "cannot work", found.obstacle)
        return table
    screen.row(
        table,
        "mean",
        f"{show_duration(found.mean_ms)} ({show_duration(found.low_ms)} to "
        f"{show_duration(found.high_ms)})",
    )
    for name in ("p50", "p95", "p99"):
        screen.row(table, name, show_duration(getattr(found, f"{name}_ms")))
    if bound is not None:
        value_ms = found.statistic_ms(bound.quantile)
        kept = "kept" if value_ms <= bound.bound_ms else "broken"
        screen.row(table, str(bound), kept)
    highest = found.outcome.highest_per_s
    screen.row(table, "saturates at", show_rate(highest) if math.isfinite(highest) else "no rate")
    screen.row(table, "cores busy", f"{found.outcome.cores_used:.2f} of {found.cores}")
    for name, ms in found.outcome.breakdown_ms.items():
        screen.row(table, f"  {name}", show_duration(ms))
    if found.outcome.window_ms:
        screen.row(table, "  also waiting for windows", show_duration(found.outcome.window_ms))
    for said in found.outcome.assumed:
        screen.row(table, "assumed", said)
    return table


# --- queries in a row ---------------------------------------------------------------------------


def _in_a_row(profiles: list[Profile], plan: Plan, rate: float | None, *, as_json: bool) -> None:
    """Several queries, each reading what the one before writes."""
    from tailrace.model.chained_queries import chain_queries  # noqa: PLC0415 - scipy takes its time

    found = chain_queries(profiles, [plan], rate)
    if as_json:
        print_json(found.as_json())
        return
    table = screen.table("Queries in a row", "query", "rate", "mean", "p99", justify="right")
    for profile, one in zip(profiles, found.predictions, strict=True):
        times = [show_duration(ms) for ms in (one.mean_ms, one.p99_ms)] if one.works else ["-"] * 2
        screen.row(table, profile.name, show_rate(one.rate_per_s), *times)
    if found.works:
        whole = (found.mean_ms, found.p99_ms)
        screen.row(table, "together", "", *(show_duration(ms) for ms in whole))
    screen.show(table)
    for one in found.predictions:
        if one.obstacle is not None:
            screen.show(one.obstacle)


# --- a range of rates ---------------------------------------------------------------------------


def _sweep(
    ask: Predictor,
    plan: Plan,
    text: str,
    bound: Constraint | None,
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    """Predictions over a range of rates, as a table, as data, or as a picture."""
    low, high = _range(text)
    rates = _rates(ask, plan, low, high)
    if bound is not None:
        from tailrace.model.capacity import capacity_for  # noqa: PLC0415 - scipy

        breaks = capacity_for(ask.profile, plan, bound).bound_per_s
        rates += [breaks] if breaks is not None and low < breaks < high else []
    found = [ask(plan, each) for each in sorted(rates)]
    if plot is not None:
        from tailrace.report.curve import draw  # noqa: PLC0415 - matplotlib takes its time

        make_directory(plot.parent)
        draw(found, bound, plot)
    if as_json:
        print_json({"sweep": [each.as_json() for each in found]})
        return
    columns = ("rate", "mean", "p50", "p95", "p99", "cores busy")
    table = screen.table(plan_text(found[0].plan), *columns, justify="right")
    for each in found:
        shown = (each.mean_ms, each.p50_ms, each.p95_ms, each.p99_ms)
        times = [show_duration(ms) for ms in shown] if each.works else ["-"] * 4
        screen.row(table, show_rate(each.rate_per_s), *times, f"{each.outcome.cores_used:.2f}")
    screen.show(table)
    if plot is not None:
        screen.show(f"Picture: {plot}")


def _range(text: str) -> tuple[float, float]:
    """The ends of a range of rates."""
    match = _SWEEP.fullmatch(text.strip())
    if match is None:
        raise InputError(f"'{text}' is not a range of rates: write --sweep rate=5k/s..80k/s.")
    low, high = (options.rate(match[part], "--sweep") for part in ("low", "high"))
    if not 0 < low < high:
        raise InputError(
            f"'{text}' is not a range of rates above 0, from low to high: swap its ends."
        )
    return low, high


def _rates(ask: Predictor, plan: Plan, low: float, high: float) -> list[float]:
    """Even steps, and a few more where the curve rises."""
    even = [low + (high - low) * i / (POINTS - 1) for i in range(POINTS)]
    limit = ask(plan, low).outcome.highest_per_s
    knee = [limit * share for share in (0.9, 0.95, 0.97, 0.985, 0.995)]
    return sorted({*even, *(rate for rate in knee if low < rate < high)})
