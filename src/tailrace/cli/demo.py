"""``tailrace demo``: a latency kept under a changing load, beside plain Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.app import app
from tailrace.cli.options import AsJson, check_length
from tailrace.cli.reports import deliver, reported
from tailrace.cli.results import make_directory
from tailrace.errors import FlowFailed


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="How long each side runs.")] = 50.0,
    baseline: Annotated[bool, typer.Option(help="Run plain Spark beside it.")] = True,
    out: Annotated[Path, typer.Option(help="Directory for the report and its picture.")] = Path(
        "out/demo"
    ),
    as_json: AsJson = False,
) -> None:
    """Keep a latency under a changing load, beside plain Spark."""
    from tailrace.spark import from_file  # noqa: PLC0415 - commands import what they need

    check_length(seconds)
    make_directory(out)
    flow = from_file.find_flow(f"{from_file.example('primes.py')}:flow")
    report, failure = reported(lambda: from_file.run(flow, seconds))
    other = None
    if baseline and failure is None:
        try:
            other = from_file.run_plain_apart(from_file.example("primes.py"), seconds)
        except FlowFailed as error:
            failure = error
    deliver(report, out, baseline=other, as_json=as_json, failure=failure)
