"""``tailrace size``: the cheapest plan that keeps a bound."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli import options, screen
from tailrace.cli.app import app, print_json
from tailrace.cli.groups import grouped
from tailrace.cli.plans import plan_text
from tailrace.errors import InputError
from tailrace.units import show_duration


@app.command()
@grouped
def size(
    profile: options.ProfileFile,
    *,
    rate: options.Rate = None,
    bounds: options.Bounds,
    most_cores: Annotated[int, typer.Option(help="The most cores to consider.")] = 16,
    as_json: options.AsJson = False,
) -> None:
    """Find the cheapest plan that keeps a bound at a rate."""
    from tailrace.model.size import MOST_CORES, size_for  # noqa: PLC0415 - scipy
    from tailrace.profile.file import load  # noqa: PLC0415

    bound, known = bounds.constraint(), load(profile)
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
            plan_text(one.plan),
            show_duration(one.mean_ms) if one.works else "-",
            show_duration(one.p99_ms) if one.works else "-",
            f"{one.outcome.cores_used:.2f}",
            candidate.planner,
        )
    screen.show(table)
