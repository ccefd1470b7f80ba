"""Commands that answer what would happen: they need a profile, and no Spark."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli import options, screen
from tailrace.cli.app import AsJson, app, directory, print_json
from tailrace.errors import InputError
from tailrace.outside import MIB, is_there, read_text
from tailrace.plan import Backend
from tailrace.units import finite, show_duration, show_rate

if TYPE_CHECKING:
    from rich.table import Table

    from tailrace.goals import Constraint
    from tailrace.model.forecasting.alarm import Limit
    from tailrace.model.predict import Predictor
    from tailrace.model.prediction import Prediction
    from tailrace.plan import Plan
    from tailrace.profile.profile import Profile

ProfileFile = Annotated[Path, typer.Argument(metavar="PROFILE", help="A profile file.")]
Rate = Annotated[str | None, typer.Option(help="The load, such as '20 k/s'; as measured if not.")]
Interval = Annotated[str | None, typer.Option(help="The batch interval, such as '500 ms'.")]
Cores = Annotated[int | None, typer.Option(help="How many tasks run at once.")]
Partitions = Annotated[list[str] | None, typer.Option(help="Partitions of a step, as step=8.")]
OnBackend = Annotated[str | None, typer.Option("--backend", help="microbatch or realtime.")]
Lifetime = Annotated[str | None, typer.Option(help="Of hand-overs in real-time mode.")]
RowLimit = Annotated[int | None, typer.Option(help="The most records of a micro-batch.")]
Mean = Annotated[str | None, typer.Option(help="A bound on the mean latency.")]
P95 = Annotated[str | None, typer.Option(help="A bound on the 95th percentile.")]
P99 = Annotated[str | None, typer.Option(help="A bound on the 99th percentile.")]
LogFile = Annotated[
    Path | None, typer.Option("--log", help="Where predictions are kept, to be scored later.")
]

MODELLING_MS = 5_000.0
"""How long it takes to think about a plan, with room."""

POINTS = 25

MOST_LOG_BYTES = 256 * MIB
"""Progress logs are larger than other files: drivers log for months."""


@app.command()
def predict(
    profile: ProfileFile,
    *,
    rate: Rate = None,
    interval: Interval = None,
    cores: Cores = None,
    partitions: Partitions = None,
    backend: OnBackend = None,
    lifetime: Lifetime = None,
    row_limit: RowLimit = None,
    mean: Mean = None,
    p95: P95 = None,
    p99: P99 = None,
    sweep: Annotated[str | None, typer.Option(help="Rates to try, as rate=5k/s..80k/s.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A picture of the sweep.")] = None,
    backlog: Annotated[
        float | None, typer.Option(help="Records that wait already: how long until they are gone.")
    ] = None,
    then: Annotated[
        list[Path] | None,
        typer.Option(help="The profile of a query that reads what this one writes; repeatable."),
    ] = None,
    log: LogFile = None,
    as_json: AsJson = False,
) -> None:
    """Say what a flow would do under another plan or load."""
    from tailrace.model.predict import Predictor  # noqa: PLC0415 - scipy takes its time
    from tailrace.profile.file import load  # noqa: PLC0415
    from tailrace.report.ledger import Ledger  # noqa: PLC0415

    known = load(profile)
    ledger = Ledger(log) if log is not None else None
    changes = options.Changes(interval, cores, partitions, backend, lifetime, row_limit)
    plan = changes.on(known)
    ask = Predictor(known, ledger.accuracy()) if ledger else Predictor(known)
    bound = options.bound(mean, p95, p99)
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
    table = _shown(known, found, bound)
    if drain_ms is not None:
        gone = f"after {show_duration(drain_ms)}" if math.isfinite(drain_ms) else "never"
        screen.row(table, f"a backlog of {backlog:,.0f} is gone", gone)
    screen.show(table)


def _in_a_row(profiles: list[Profile], plan: Plan, rate: float | None, *, as_json: bool) -> None:
    """Several queries, each of which reads what the one before writes."""
    from tailrace.model.relay import relay  # noqa: PLC0415 - scipy takes its time

    found = relay(profiles, [plan], rate)
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


@app.command()
def capacity(
    profile: ProfileFile,
    *,
    interval: Interval = None,
    cores: Cores = None,
    partitions: Partitions = None,
    backend: OnBackend = None,
    lifetime: Lifetime = None,
    row_limit: RowLimit = None,
    mean: Mean = None,
    p95: P95 = None,
    p99: P99 = None,
    as_json: AsJson = False,
) -> None:
    """Say which rate a plan can take, and up to which it keeps a bound."""
    from tailrace.model.capacity import capacity_for  # noqa: PLC0415 - scipy
    from tailrace.profile.file import load  # noqa: PLC0415

    known = load(profile)
    plan = options.Changes(interval, cores, partitions, backend, lifetime, row_limit).on(known)
    found = capacity_for(known, plan, options.bound(mean, p95, p99))
    if as_json:
        print_json(found.as_json())
    else:
        screen.show(found.reason)


@app.command()
def size(
    profile: ProfileFile,
    *,
    rate: Rate = None,
    mean: Mean = None,
    p95: P95 = None,
    p99: P99 = None,
    most_cores: Annotated[int, typer.Option(help="The most cores to think of.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Find the cheapest plan that keeps a bound at a rate."""
    from tailrace.model.size import MOST_CORES, size_for  # noqa: PLC0415 - scipy
    from tailrace.profile.file import load  # noqa: PLC0415

    bound, known = options.bound(mean, p95, p99), load(profile)
    if bound is None:
        raise InputError("There is no bound to size for: add --mean '500 ms' or --p99 '1 s'.")
    at = known.rate_per_s if rate is None else options.rate(rate, "--rate")
    found = size_for(known, bound, at, options.count(most_cores, "--most-cores", MOST_CORES))
    if as_json:
        print_json(found.as_json())
        return
    columns = ("cost", "plan", "mean", "p99", "cores busy", "proposed by")
    table = screen.table(found.reason, *columns)
    for candidate in (*((found.best,) if found.best else ()), *found.others):
        one = candidate.prediction
        screen.row(
            table,
            f"{candidate.cost:.2f}",
            _plan_text(one.plan),
            show_duration(one.mean_ms) if one.works else "-",
            show_duration(one.p99_ms) if one.works else "-",
            f"{one.outcome.cores_used:.2f}",
            candidate.planner,
        )
    screen.show(table)


@app.command()
def profile(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Progress events, as JSON.")],
    out: Annotated[Path, typer.Argument(metavar="PROFILE", help="The profile file to write.")],
    *,
    name: Annotated[str | None, typer.Option(help="The query, if the log has several.")] = None,
    cores: Annotated[int, typer.Option(help="How many tasks it could run at once.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Make a profile of any Structured Streaming query from its progress log."""
    from tailrace.model.progress import read  # noqa: PLC0415 - scipy takes its time
    from tailrace.profile.file import as_json as plain  # noqa: PLC0415
    from tailrace.profile.file import save  # noqa: PLC0415

    text = read_text(log, "log", "name a file of JSON lines", MOST_LOG_BYTES)
    found = read(text.replace("\r\n", "\n"), name, options.count(cores, "--cores"))
    save(found.profile, out)
    if as_json:
        print_json(plain(found.profile))
        return
    fixed, each = show_duration(found.model.fixed_ms), show_duration(found.model.per_record_ms)
    screen.show(
        f"A batch of {found.profile.name} takes {fixed} and {each} a record; "
        f"{show_rate(found.profile.rate_per_s)} came in. Profile: {out}"
    )
    for note in found.notes:
        screen.show(note)


@app.command()
def score(
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="What 'predict --log' or 'run --log' wrote.")
    ],
    measured: Annotated[
        list[Path] | None, typer.Argument(metavar="PROFILE", help="Profiles measured since.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold past predictions against what happened."""
    from tailrace.model.score import summed_up  # noqa: PLC0415 - commands import what they need
    from tailrace.profile.file import load  # noqa: PLC0415
    from tailrace.report.ledger import Ledger  # noqa: PLC0415

    if not is_there(log):
        raise InputError(f"There is no {log}: predict with --log {log} first.")
    ledger = Ledger(log)
    settled = [entry for path in measured or () for entry in ledger.settle(load(path))]
    accuracy = ledger.accuracy()
    result: dict[str, Any] = {
        "predictions": len(ledger.entries()),
        "scored": len(accuracy.scores),
        "newly_scored": len(settled),
        "within_interval": accuracy.within(),
        **(summed_up([s.error for s in accuracy.scores]) if accuracy.scores else {}),
    }
    if as_json:
        print_json(result)
        return
    screen.show(f"{result['scored']} of {result['predictions']} predictions are scored.")
    if accuracy.scores:
        screen.show(
            f"Half of them were off by at most {result['median_abs_error']:.0%}, nine in ten by at "
            f"most {result['p90_abs_error']:.0%}; {result['within_interval']:.0%} fell into their "
            "interval, which is made for 90%."
        )


@app.command()
def forecast(
    rates: Annotated[Path, typer.Argument(metavar="CSV", help="With columns time and rate.")],
    *,
    horizon: Annotated[str, typer.Option(help="How far ahead, such as '2 h'.")] = "1 h",
    profile: Annotated[
        Path | None, typer.Option(help="The flow that has to take it, for when it breaks.")
    ] = None,
    mean: Mean = None,
    p95: P95 = None,
    p99: P99 = None,
    scaling: Annotated[str, typer.Option(help="How long scaling out takes.")] = "1 min",
    as_json: AsJson = False,
) -> None:
    """Forecast the load, and say when a flow will no longer keep up."""
    from tailrace.model.forecasting.alarm import scale_ahead, when_broken  # noqa: PLC0415 - numpy
    from tailrace.model.forecasting.forecast import forecast as ahead  # noqa: PLC0415
    from tailrace.report.series import read_series  # noqa: PLC0415

    series = read_series(rates)
    steps = max(1, round(options.duration(horizon, "--horizon") / series.step_ms))
    found = ahead(series, steps)
    limits = _limits(profile, options.bound(mean, p95, p99))
    alarm = when_broken(found, limits) if limits else None
    advice = None
    if alarm is not None:
        advice = scale_ahead(alarm, MODELLING_MS, options.duration(scaling, "--scaling"))
    bands = found.band(0.8)
    if as_json:
        print_json(
            {
                "method": str(found.method),
                "season_steps": found.season,
                "reason": found.reason,
                "start_us": found.start_us,
                "step_ms": found.step_ms,
                "mean_per_s": list(found.mean_per_s),
                "band_per_s": [list(band) for band in bands],
                "alarm": None if alarm is None else alarm.sentence,
                "advice": None if advice is None else advice.reason,
            }
        )
        return
    table = screen.table(found.reason, "in", "rate", "8 chances in 10", justify="right")
    for step in sorted({round(i * (steps - 1) / 11) for i in range(12)}):
        low, high = bands[step]
        screen.row(
            table,
            show_duration((step + 1) * found.step_ms),
            show_rate(found.mean_per_s[step]),
            f"{show_rate(low)} to {show_rate(high)}",
        )
    screen.show(table)
    if alarm is not None and advice is not None:
        screen.show(f"{alarm.sentence} {advice.reason}")


def _limits(path: Path | None, bound: Constraint | None) -> list[Limit]:
    """The rates at which a flow saturates, and at which it breaks a bound."""
    from tailrace.model.capacity import capacity_for  # noqa: PLC0415
    from tailrace.model.forecasting.alarm import Limit  # noqa: PLC0415 - commands import what they need
    from tailrace.profile.file import load  # noqa: PLC0415

    if path is None:
        if bound is not None:
            raise InputError("A bound needs the flow that is to keep it: add --profile FILE.")
        return []
    known = load(path)
    found = capacity_for(known, None, bound)
    limits = [Limit(f"flow {known.name}", found.saturation_per_s)]
    if found.bound_per_s is not None:
        limits.append(Limit(f"flow {known.name}", found.bound_per_s, str(bound)))
    return limits


# --- what the commands share --------------------------------------------------------------------


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
    low, high = options.sweep(text)
    rates = _rates(ask, plan, low, high)
    if bound is not None:
        from tailrace.model.capacity import capacity_for  # noqa: PLC0415 - scipy

        breaks = capacity_for(ask.profile, plan, bound).bound_per_s
        rates += [breaks] if breaks is not None and low < breaks < high else []
    found = [ask(plan, each) for each in sorted(rates)]
    if plot is not None:
        from tailrace.report.curve import draw  # noqa: PLC0415 - matplotlib takes its time

        directory(plot.parent)
        draw(found, bound, plot)
    if as_json:
        print_json({"sweep": [each.as_json() for each in found]})
        return
    columns = ("rate", "mean", "p50", "p95", "p99", "cores busy")
    table = screen.table(_plan_text(found[0].plan), *columns, justify="right")
    for each in found:
        shown = (each.mean_ms, each.p50_ms, each.p95_ms, each.p99_ms)
        times = [show_duration(ms) for ms in shown] if each.works else ["-"] * 4
        screen.row(table, show_rate(each.rate_per_s), *times, f"{each.outcome.cores_used:.2f}")
    screen.show(table)
    if plot is not None:
        screen.show(f"Picture: {plot}")


def _rates(ask: Predictor, plan: Plan, low: float, high: float) -> list[float]:
    """Even steps, and a few more where the curve goes up."""
    even = [low + (high - low) * i / (POINTS - 1) for i in range(POINTS)]
    limit = ask(plan, low).outcome.highest_per_s
    knee = [limit * share for share in (0.9, 0.95, 0.97, 0.985, 0.995)]
    return sorted({*even, *(rate for rate in knee if low < rate < high)})


def _shown(profile: Profile, found: Prediction, bound: Constraint | None) -> Table:
    title = f"{profile.name} at {show_rate(found.rate_per_s)}: {_plan_text(found.plan)}"
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
        screen.row(table, "  waiting for windows, beside", show_duration(found.outcome.window_ms))
    for said in found.outcome.assumed:
        screen.row(table, "assumed", said)
    return table


def _plan_text(plan: Plan) -> str:
    pace = show_duration(plan.interval_ms) if plan.interval_ms else "back to back"
    parts = [f"micro-batches {pace if not plan.interval_ms else 'every ' + pace}"]
    if plan.backend is Backend.REALTIME:
        longest = max(plan.lifetimes_ms.values(), default=0.0)
        parts = [f"real-time, lifetimes {show_duration(longest)}"]
    if plan.cores is not None:
        parts.append("1 core" if plan.cores == 1 else f"{plan.cores} cores")
    if len(plan.chains) > 1:
        parts.append(f"{len(plan.chains)} chains")
    parts += [f"{name} on {count}" for name, count in plan.partitions.items()]
    if plan.row_limit is not None:
        parts.append(f"at most {plan.row_limit} rows")
    return ", ".join(parts)
