"""``tailrace forecast``: the load to come, and when a flow will no longer keep up with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import options, screen
from tailrace.cli.app import app, print_json
from tailrace.cli.groups import grouped
from tailrace.errors import InputError
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from tailrace.constraint import Constraint
    from tailrace.model.forecasting.alarm import Limit

MODELLING_MS = 5_000.0
"""How long it takes to choose a plan, with a margin."""


@app.command()
@grouped
def forecast(
    rates: Annotated[Path, typer.Argument(metavar="CSV", help="With columns time and rate.")],
    *,
    horizon: Annotated[str, typer.Option(help="How far ahead, such as '2 h'.")] = "1 h",
    profile: Annotated[
        Path | None, typer.Option(help="Profile of the flow, to say when the load breaks it.")
    ] = None,
    bounds: options.Bounds,
    scaling: Annotated[str, typer.Option(help="How long scaling out takes.")] = "1 min",
    as_json: options.AsJson = False,
) -> None:
    """Forecast the load, and say when a flow will no longer keep up."""
    from tailrace.model.forecasting.alarm import scale_ahead, when_broken  # noqa: PLC0415 - numpy
    from tailrace.model.forecasting.forecast import forecast as ahead  # noqa: PLC0415
    from tailrace.report.series import read_series  # noqa: PLC0415

    series = read_series(rates)
    steps = max(1, round(options.duration(horizon, "--horizon") / series.step_ms))
    found = ahead(series, steps)
    limits = _limits(profile, bounds.constraint())
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
