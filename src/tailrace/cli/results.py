"""Delivering a result as JSON, as a table and in a file, even if one of these fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.cli.app import complain, print_json
from tailrace.cli.screen import Screen
from tailrace.errors import FULL, InputError, TailraceError, unwritable
from tailrace.state.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from rich.table import Table


class Measurement(Protocol):
    """A module with these two functions."""

    def measure(self, *, quick: bool) -> dict[str, Any]:
        """Run it; returns the result as plain data."""

    def table(self, result: dict[str, Any]) -> Table:
        """The result as a table for people."""


def measure(what: Measurement, *, quick: bool, out: Path | None, as_json: bool) -> None:
    """Run a measurement and deliver its result."""
    check_file(out)
    show(what, what.measure(quick=quick), out=out, as_json=as_json)


def check_file(out: Path | None) -> None:
    """Refuse a file that could not be written, before anything slow runs."""
    if out is not None:
        make_directory(out.parent)
        if out.is_dir():
            raise InputError(f"The output {out} is a directory: name a file in it.")


def make_directory(path: Path) -> None:
    """Make a directory for results, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(
            f"The output {path} is, or is inside, a file: name a directory."
        ) from error
    except OSError as error:
        raise InputError(f"The output {path} cannot be written: name another directory.") from error


def show(what: Measurement, result: dict[str, Any], *, out: Path | None, as_json: bool) -> None:
    """Deliver a result to its file and to standard output."""
    tasks: list[Callable[[], object]] = []
    if out is not None:
        tasks.append(lambda: _save(result, out))
    if as_json:
        tasks.append(lambda: print_json(result))
    else:
        tasks.append(lambda: Screen().print(what.table(result)))
    do_all(tasks)


def _save(result: dict[str, Any], out: Path) -> None:
    try:
        write_text(out, json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise unwritable(f"The result {out}", error) from error


def do_all(tasks: Iterable[Callable[[], object]], failure: Exception | None = None) -> None:
    """Do all tasks, even if some fail; then say what failed, an earlier ``failure`` last."""
    failures: list[Exception] = []
    for task in tasks:
        try:
            task()
        except (TailraceError, BrokenPipeError) as error:
            failures.append(error)
        except OSError as error:
            if error.errno not in FULL:
                raise
            failures.append(unwritable("The result", error))
    if failure is not None:
        failures.append(failure)
    for earlier in failures[:-1]:
        complain(earlier)
    if failures:
        raise failures[-1]
