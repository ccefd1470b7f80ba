"""``tailrace validate``: predictions compared with runs of known topologies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tailrace.cli.app import app
from tailrace.cli.options import AsJson, OutFile, Quick
from tailrace.cli.results import check_file, measure, show
from tailrace.errors import InputError
from tailrace.outside import parse_json, read_text


@app.command()
def validate(
    *,
    quick: Quick = False,
    again: Annotated[
        Path | None, typer.Option(help="Run nothing: judge the runs of this result again.")
    ] = None,
    anew: Annotated[
        list[str] | None, typer.Option(help="With --again: rerun this topology only.")
    ] = None,
    out: OutFile = None,
    as_json: AsJson = False,
) -> None:
    """Run known topologies, predict each run from the others, and say how accurate that was."""
    from tailrace.spark.validation import validate as validation  # noqa: PLC0415 - brings Spark along

    if anew and again is None:
        raise InputError("--anew replaces runs of an earlier result: name it with --again FILE.")
    if again is None:
        measure(validation, quick=quick, out=out, as_json=as_json)
        return
    check_file(out)
    try:
        before: Any = parse_json(read_text(again, "result", "run 'tailrace validate'"), str(again))
        result = validation.again(before)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"There are no runs to judge in {again}: name what 'tailrace validate --out' wrote."
        ) from error
    if anew:
        result = validation.again(before, anew)
    show(validation, result, out=out, as_json=as_json)
