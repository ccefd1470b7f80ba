"""``tailrace repartition``: the state of a flow on another number of partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.app import app, keep_stdout_for_json, print_json
from tailrace.cli.options import AsJson, Conf, FlowTarget, Master, settings


@app.command()
def repartition(
    target: FlowTarget,
    *,
    partitions: Annotated[int, typer.Option(help="New number of partitions of its state.")],
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Spread the state of a stopped flow over another number of partitions."""
    from tailrace.spark import from_file  # noqa: PLC0415 - commands import what they need

    given = settings(conf)
    with keep_stdout_for_json(as_json):
        flow = from_file.find_flow(target)
        before = from_file.repartition(flow, partitions, master=master, settings=given)
    if as_json:
        print_json({"partitions": partitions, "before": before})
        return
    for name, number in before.items():
        print(f"{name}: {number} partitions before, {partitions} now")
    if not before:
        print(f"All state already has {partitions} partitions.")
