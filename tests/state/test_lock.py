"""A checkpoint has one user at a time, and none whose process is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import EnvironmentUnfit
from tailrace.state.lock import sole_user

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLDER = """
import pathlib, sys
from tailrace.state.lock import sole_user

with sole_user(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that uses the directory, until it is killed or the block ends."""
    command = [sys.executable, "-c", HOLDER, str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def refused(directory: Path) -> str:
    with pytest.raises(EnvironmentUnfit) as said, sole_user(directory):
        pass
    return str(said.value)


def test_a_checkpoint_has_one_user_at_a_time(tmp_path: Path) -> None:
    with sole_user(tmp_path):
        for _ in range(2):  # to be refused does not take it from whoever has it
            assert refused(tmp_path).startswith(
                f"The checkpoint {tmp_path} is in use by process {os.getpid()} on "
            )
    with sole_user(tmp_path):
        pass


def test_one_whose_work_fails_does_not_keep_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), sole_user(tmp_path):
        _ = 1 / 0
    with sole_user(tmp_path):
        pass


def test_another_process_is_named_and_keeps_nothing_when_it_is_killed(tmp_path: Path) -> None:
    with another(tmp_path) as process:
        assert f"in use by process {process.pid} on " in refused(tmp_path)
        process.kill()
        process.wait()
        with sole_user(tmp_path):
            assert f"in use by process {os.getpid()} on " in refused(tmp_path)


def test_what_cannot_be_locked_is_said_in_one_sentence(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    assert refused(missing).startswith(
        f"The checkpoint {missing} cannot be locked (No such file or directory): check"
    )
