"""Keeps finished runs of a long benchmark, so that an interrupted one can resume."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_BEGINNING = '{"name": '
"""How every line begins, to distinguish a truncated line from a foreign file."""


class Kept:
    """Finished runs by name, one line of JSON each in a file; without a file, only in memory."""

    def __init__(self, file: Path | None, **setting: object) -> None:
        """Read the runs that exist already; ``setting`` is what all runs must have in common."""
        self._file = file
        self._setting = setting
        self.runs: dict[str, dict[str, Any]] = {}
        if file is not None and file.exists():
            *lines, torn = file.read_text("utf-8").split("\n")
            for line in lines:
                self._read(line, file)
            if torn:
                _cut_off(torn, file)

    def _read(self, line: str, file: Path) -> None:
        try:
            found = json.loads(line)
            name, setting, run = found["name"], found["setting"], found["run"]
        except (ValueError, KeyError, TypeError) as error:
            raise _foreign(file) from error
        if setting != self._setting:
            raise InputError(
                f"The runs in {file} were made with {setting} and not with {self._setting}: name "
                "a new file."
            )
        self.runs[name] = run

    def __call__(self, name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The run with this name: the kept one, or a new one."""
        if name not in self.runs:
            self.runs[name] = found = run()
            if self._file is not None:
                line = json.dumps({"name": name, "setting": self._setting, "run": found})
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
        return self.runs[name]


def _cut_off(torn: str, file: Path) -> None:
    """Remove an incomplete last line: its process was killed, and that run is repeated."""
    if torn[: len(_BEGINNING)] != _BEGINNING[: len(torn)]:
        raise _foreign(file)
    with file.open("r+b") as whole:
        whole.truncate(file.stat().st_size - len(torn.encode()))


def _foreign(file: Path) -> InputError:
    return InputError(
        f"{file} holds something other than finished runs of a benchmark: name a new file."
    )
