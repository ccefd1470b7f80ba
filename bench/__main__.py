"""``python -m bench NAME``: measure Tailrace against plain Spark, others, or itself, in one run."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - Typer reads annotations
from typing import Annotated

import typer

from bench import LONG, NAMES, benchmark, long_benchmark
from tailrace.cli.app import Commands
from tailrace.cli.options import AsJson, OutFile, Quick  # noqa: TC001 - as above
from tailrace.cli.program import run_program
from tailrace.cli.results import check_file, measure, show
from tailrace.errors import InputError

app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False)


@app.command(no_args_is_help=True)
def bench(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMES)}.")],
    *,
    quick: Quick = False,
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep finished runs in this file, and skip those that it already has."),
    ] = None,
    out: OutFile = None,
    as_json: AsJson = False,
) -> None:
    """Measure Tailrace against plain Spark, others, or itself, in one run."""
    if name not in NAMES:
        raise InputError(f"There is no benchmark '{name}': choose {', '.join(NAMES)}.")
    if keep is None:
        measure(benchmark(name), quick=quick, out=out, as_json=as_json)
        return
    if name not in LONG:
        raise InputError(
            f"The benchmark '{name}' keeps no runs: leave out --keep, which is for "
            f"{', '.join(LONG)}."
        )
    for file in (keep, out):
        check_file(file)
    chosen = long_benchmark(name)
    show(chosen, chosen.measure(quick=quick, keep=keep), out=out, as_json=as_json)


if __name__ == "__main__":
    run_program(app)
