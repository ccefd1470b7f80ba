"""The application that commands belong to, and what they share."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Latency guarantees for Spark Structured Streaming pipelines.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and only that.")]


def directory(path: Path) -> None:
    """Make a directory for results, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"The output {path} is, or lies in, a file: name a directory.") from error
    except OSError as error:
        raise InputError(f"The output {path} cannot be written: name another directory.") from error


def print_json(data: dict[str, Any]) -> None:
    """The result of a command, and nothing else, on standard output."""
    sys.stdout.write(json.dumps(data) + "\n")
