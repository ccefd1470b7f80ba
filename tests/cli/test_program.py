"""A command in a process of its own: signals, closed and full streams, encodings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import MACHINE, PATIENCE_S, USER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.report.data import Report


# --- signals -------------------------------------------------------------------------------

ENDLESS = """
import pathlib, tempfile, threading

with tempfile.TemporaryDirectory() as place:
    pathlib.Path("place").write_text(place)
    print("open", flush=True)
    threading.Event().wait(60)
"""


def test_what_is_open_is_closed_when_a_command_is_ended_before_its_flow_runs(
    tmp_path: Path,
) -> None:
    """By SIGTERM; a command started by a process that ignores Ctrl-C ignores it too."""
    (tmp_path / "endless.py").write_text(ENDLESS, encoding="utf-8")
    command = [sys.executable, "-m", "tailrace.cli", "run", "endless.py:flow"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "open\n"
            started.send_signal(signal.SIGTERM)
            assert started.wait(30) > 0  # it says so itself, and was not killed
        finally:
            started.kill()
    assert not Path((tmp_path / "place").read_text(encoding="utf-8")).exists()


# --- standard output -----------------------------------------------------------------------


@pytest.mark.parametrize("flags", [["--json"], []])
@pytest.mark.parametrize(
    "line", ["{command} >&-; {status}", "{{ {command}; {status}; }} | exec true"]
)
def test_a_standard_output_that_is_closed_ends_without_a_word(
    shell: Callable[..., subprocess.CompletedProcess[bytes]],
    report: Report,
    tmp_path: Path,
    line: str,
    flags: list[str],
) -> None:
    status, out = tmp_path / "status", tmp_path / "out"
    done = shell(*flags, "--out", out, line=line.replace("{status}", f"echo $? > {status}"))
    assert b"Traceback" not in done.stderr
    assert b"Error" not in done.stderr
    assert b"tailrace:" not in done.stderr
    assert json.loads((out / "report.json").read_text()) == report.data
    assert (out / "report.png").exists()
    assert status.read_text() == f"{MACHINE}\n"


@pytest.mark.parametrize("flags", [["--json"], []])
def test_a_standard_output_without_room_is_one_sentence(
    shell: Callable[..., subprocess.CompletedProcess[bytes]],
    report: Report,
    tmp_path: Path,
    flags: list[str],
) -> None:
    done = shell(*flags, "--out", tmp_path, line="{command} > /dev/full")
    assert done.returncode == MACHINE
    assert b"Traceback" not in done.stderr
    said = [line for line in done.stderr.decode().splitlines() if line.startswith("tailrace: ")]
    (sentence,) = said
    assert sentence.startswith("tailrace: The result cannot be written (No space left on device)")
    assert json.loads((tmp_path / "report.json").read_text()) == report.data


# --- encodings -----------------------------------------------------------------------------

ASCII = [
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""},
]


@pytest.mark.parametrize("flags", [["--json"], []])
@pytest.mark.parametrize("environment", ASCII)
def test_a_report_can_be_written_in_ascii(
    shell: Callable[..., subprocess.CompletedProcess[bytes]],
    report: Report,
    flags: list[str],
    environment: dict[str, str],
) -> None:
    done = shell(*flags, **environment)
    assert done.returncode == 0, done.stderr
    shown = (done.stderr if flags else done.stdout).decode("ascii")
    assert "flu\\xdf" in shown
    assert "####" in shown  # the bars
    assert "\\u" not in shown
    if flags:
        assert json.loads(done.stdout) == report.data


@pytest.mark.parametrize("environment", ASCII)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["run", "--help"], 0),
        (["run", "süd.py:flow"], USER),
        (["forecast", "süd.csv"], USER),
        (["bench", "über"], USER),
    ],
)
def test_every_command_can_speak_in_ascii(
    environment: dict[str, str], arguments: list[str], code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, **environment},
        timeout=PATIENCE_S,
    )
    assert done.returncode == code, done.stderr
    assert (done.stdout + done.stderr).isascii()
    assert b"Traceback" not in done.stderr
