"""The application that commands belong to: its errors and its JSON."""

from __future__ import annotations

import json
import math
import sys
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from tailrace.outside import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


class Commands(TyperGroup):
    """The commands; control characters in a wrong command line are escaped in its error."""

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Parse what comes before the command."""
        with _printable_errors():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Parse what comes after the command, and run it."""
        with _printable_errors():
            return super().invoke(ctx)


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Escape messages of command-line errors, whose class is Click's or Typer's copy of it."""
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


def complain(error: Exception) -> None:
    """Print what went wrong in one sentence; print nothing if the reader went away."""
    if not isinstance(error, BrokenPipeError) and sys.stderr is not None:
        sys.stderr.write(f"tailrace: {printable(str(error))}\n")


def print_json(data: dict[str, Any]) -> None:
    """Write the result of a command, and nothing else, to standard output.

    JSON has no infinity: a value that is not finite becomes null.
    """
    sys.stdout.write(json.dumps(_finite(data), allow_nan=False) + "\n")
    sys.stdout.flush()


def keep_stdout_for_json(as_json: bool) -> AbstractContextManager[object]:
    """With ``--json``, send what the user's code prints to standard error."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def _finite(data: Any) -> Any:
    """The data, with null for every number that is not finite."""
    if isinstance(data, dict):
        return {name: _finite(inner) for name, inner in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(inner) for inner in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
