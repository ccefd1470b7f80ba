"""The command line.

With ``--json`` a command puts its result, and nothing else, on standard output; progress and
pictures of it go to standard error. What went wrong is one sentence. Exit codes:

- 0: all went well.
- 1: the machine lacks something (Java, a port, room on the disk), or standard output was closed
  before the result was written, which ends without a word.
- 2: what the user wrote is wrong, or the flow failed. The report of what was measured until then is
  delivered all the same.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from tailrace.cli import clusters, planning, running
from tailrace.cli.app import app, complain, discard_stdout, open_streams
from tailrace.errors import FULL, EnvironmentUnfit, TailraceError, unwritable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app", "clusters", "main", "planning", "run", "running"]

MACHINE, USER = 1, 2
"""Whose fault it was, as exit codes."""


def main() -> None:
    """Run a command of ``tailrace``."""
    run(app)


def run(commands: Callable[[], object]) -> NoReturn:
    """Run a command; say in one sentence what went wrong, and exit.

    SIGTERM interrupts it as Ctrl-C does, so that whatever it has opened is closed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    open_streams()
    code = _code_of(commands)
    sys.exit(code if _delivered() or code else MACHINE)


def _code_of(command: Callable[[], object]) -> int | str | None:
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


def _delivered() -> bool:
    """Write what standard output still holds; what cannot be written is let go."""
    try:
        sys.stdout.flush()
    except OSError as error:
        discard_stdout()
        complain(unwritable("The result", error) if error.errno in FULL else error)
        return False
    return True
