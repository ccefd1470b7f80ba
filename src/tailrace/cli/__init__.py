"""The command line.

With ``--json`` a command puts its result, and nothing else, on standard output; progress and
pictures of it go to standard error. What a user did wrong is one sentence and exit code 2, what
the machine lacks is exit code 1.
"""

from __future__ import annotations

import signal
import sys

import typer

from tailrace.cli import clusters, planning, running
from tailrace.cli.app import app
from tailrace.errors import EnvironmentUnfit, TailraceError

__all__ = ["app", "clusters", "main", "planning", "running"]


def main() -> None:
    """Run a command; say in one sentence what went wrong.

    SIGTERM interrupts it as Ctrl-C does, so that whatever it has opened is closed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except TailraceError as error:
        typer.echo(f"tailrace: {error}", err=True)
        sys.exit(1 if isinstance(error, EnvironmentUnfit) else 2)
