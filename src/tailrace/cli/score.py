"""``tailrace score``: past predictions compared with what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tailrace.cli import screen
from tailrace.cli.app import app, print_json
from tailrace.cli.options import AsJson
from tailrace.errors import InputError
from tailrace.outside import is_there


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
    """Compare past predictions with what happened."""
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
            f"most {result['p90_abs_error']:.0%}; {result['within_interval']:.0%} were within "
            "their interval, which should hold 90%."
        )
