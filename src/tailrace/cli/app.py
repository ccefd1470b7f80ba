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
    """The commands; an error shows what a wrong command line holds, and no terminal obeys it."""

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


def complain(error: Exception) -> None:
    """Say in one sentence what went wrong; a reader that went away needs none."""
    if not isinstance(error, BrokenPipeError) and sys.stderr is not None:
        sys.stderr.write(f"tailrace: {printable(str(error))}\n")


def print_json(data: dict[str, Any]) -> None:
    """The result of a command, and nothing else, on standard output.

    JSON has no infinity: what cannot be reached is null.
    """
    sys.stdout.write(json.dumps(_finite(data), allow_nan=False) + "\n")
    sys.stdout.flush()


def keep_stdout_for_json(as_json: bool) -> AbstractContextManager[object]:
    """With ``--json``, send what a user's code prints to standard error."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def _finite(data: Any) -> Any:
    """Data with null in the place of every number that is not finite."""
    if isinstance(data, dict):
        return {name: _finite(inner) for name, inner in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(inner) for inner in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
