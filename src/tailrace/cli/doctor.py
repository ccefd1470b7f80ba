"""``tailrace doctor``: what is missing or slow on this machine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from tailrace.cli.app import app, print_json
from tailrace.cli.options import AsJson
from tailrace.cli.screen import Screen


@app.command()
def doctor(
    plain: Annotated[
        bool, typer.Option(help="Check the session that Spark creates by default.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what is missing or slow here, and how to fix it."""
    from tailrace.spark.health import doctor as examining  # noqa: PLC0415 - commands import what they need

    found = list(examining.machine())
    if not any(finding.fatal for finding in found):
        found += examining.try_session(plain=plain)
    fatal = any(finding.fatal for finding in found)
    if as_json:
        facts = [{"fatal": f.fatal, "what": f.what, "remedy": f.remedy} for f in found]
        print_json({"fit": not fatal, "findings": facts})
    else:
        console = Screen(highlight=False)
        for finding in found:
            mark = "[red]will not work[/]" if finding.fatal else "[yellow]slow[/]"
            console.print(f"{mark}  {escape(f'{finding.what} {finding.remedy}'.rstrip())}")
        if not found:
            console.print("[green]fit[/]  Nothing is missing and nothing is slow.")
    raise typer.Exit(1 if fatal else 0)
