"""The application that commands belong to, and what they share."""

from __future__ import annotations

import json
import math
import os
import sys
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tailrace.errors import InputError
from tailrace.outside import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Commands(TyperGroup):
    """The commands; what stands in a wrong command line is shown, and not obeyed by a terminal."""

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Read what stands before the command."""
        with _printable_errors():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Read what stands behind the command, and run it."""
        with _printable_errors():
            return super().invoke(ctx)


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Errors in a command line have a message; their class is Click's, or Typer's copy of it."""
    try:
        yield
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str):
            error.message = printable(message)  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    cls=Commands,
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
    """The result of a command, and nothing else, on standard output.

    JSON has no infinity: what cannot be reached is null.
    """
    sys.stdout.write(json.dumps(_finite(data), allow_nan=False) + "\n")
    sys.stdout.flush()


def complain(error: Exception) -> None:
    """Say in one sentence what went wrong; a reader that went away needs none."""
    if not isinstance(error, BrokenPipeError) and sys.stderr is not None:
        sys.stderr.write(f"tailrace: {printable(str(error))}\n")


def open_streams() -> None:
    """Make standard output and error take any text, and standard output exist.

    What an encoding does not have is written as an escape. A standard output that is closed becomes
    one that nobody reads, so that there is one way in which a result cannot be delivered.
    """
    if sys.stdout is None:
        reader, writer = os.pipe()
        os.close(reader)
        sys.stdout = os.fdopen(writer, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_stdout() -> None:
    """Let go of what could not be written, which Python would try again at its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def _finite(data: Any) -> Any:
    """Data with null in the place of every number that is not finite."""
    if isinstance(data, dict):
        return {name: _finite(inner) for name, inner in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(inner) for inner in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
