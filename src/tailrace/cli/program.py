"""A command as a program: its streams, signals and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, NoReturn

from tailrace.cli.app import app, complain
from tailrace.errors import FULL, EnvironmentUnfit, TailraceError, unwritable

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINE, USER = 1, 2
"""Whose fault an error is, as exit codes."""


def main() -> None:
    """Run a command of ``tailrace``."""
    run_program(app)


def run_program(commands: Callable[[], object]) -> NoReturn:
    """Run a command, print what went wrong in one sentence, and exit.

    SIGTERM interrupts it like Ctrl-C, so that everything it opened is closed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _open_streams()
    code = _exit_code(commands)
    sys.exit(code if _flushed() or code else MACHINE)


def _exit_code(command: Callable[[], object]) -> int | str | None:
    try:
        command()
    except SystemExit as ended:
        return ended.code
    except TailraceError as error:
        complain(error)
        return MACHINE if isinstance(error, EnvironmentUnfit) else USER
    except BrokenPipeError:
        return MACHINE
    except OSError as error:
        if error.errno not in FULL:
            raise
        complain(unwritable("The result", error))
        return MACHINE
    return 0


def _open_streams() -> None:
    """Make sure that standard output exists, and that it and standard error take any text.

    Characters that the encoding lacks are written as escapes. A closed standard output is replaced
    by a pipe without a reader, so that undeliverable results always fail in the same way.
    """
    if sys.stdout is None:
        reader, writer = os.pipe()
        os.close(reader)
        sys.stdout = os.fdopen(writer, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flushed() -> bool:
    """Flush standard output; drop what cannot be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard_stdout()
        complain(unwritable("The result", error) if error.errno in FULL else error)
        return False
    return True


def _discard_stdout() -> None:
    """Drop what could not be written; Python would try again at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
