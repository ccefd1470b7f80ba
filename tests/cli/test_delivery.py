"""The report arrives, whatever else cannot be written or read, and however the run ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import FlowFailed, TailraceError
from tailrace.spark import running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.report.data import Report
    from tests.conftest import Said

USER, MACHINE = 2, 1
TOO_SHORT = "The run was too short for a profile, or did not measure: let it run for a minute."
PATIENCE_S = 60.0


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[[Report | TailraceError], None]:
    """Makes the next run end with a report, or with an error."""

    def arrange(outcome: Report | TailraceError) -> None:
        def run(*_: object, **__: object) -> Report:
            if isinstance(outcome, TailraceError):
                raise outcome
            return outcome

        monkeypatch.setattr(running, "find_flow", lambda _: None)
        monkeypatch.setattr(running, "run", run)

    return arrange


def failed(report: Report) -> FlowFailed:
    error = FlowFailed("The flow failed (disk on fire): put it out.")
    error.report = replace(report, data={**report.data, "failure": str(error)})
    return error


def sentences(said: Said) -> list[str]:
    return [line for line in said.err.splitlines() if line.startswith("tailrace: ")]


# --- what comes after the report -----------------------------------------------------------


def test_the_report_of_a_run_too_short_for_a_profile_arrives(
    tailrace: Callable[..., Said], ended: Callable[..., None], report: Report, tmp_path: Path
) -> None:
    ended(report)
    profile = tmp_path / "profile.json"
    said = tailrace("run", "job.py:flow", "--json", "--out", tmp_path / "out", "--profile", profile)
    assert said.code == USER
    assert json.loads(said.out) == report.data
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report.data
    assert (tmp_path / "out" / "report.png").read_bytes().startswith(b"\x89PNG")
    assert sentences(said) == [f"tailrace: {TOO_SHORT}"]


def test_a_profile_that_cannot_be_written_keeps_nothing_from_arriving(
    tailrace: Callable[..., Said], ended: Callable[..., None], report: Report, tmp_path: Path
) -> None:
    any_profile: Any = object()
    ended(replace(report, profile=any_profile))
    said = tailrace("run", "job.py:flow", "--json", "--profile", tmp_path)
    assert said.code == USER
    assert json.loads(said.out) == report.data
    (sentence,) = sentences(said)
    assert sentence.endswith("is a directory: name a file in it for the profile.")


def test_a_log_that_cannot_be_written_keeps_nothing_from_arriving(
    tailrace: Callable[..., Said], ended: Callable[..., None], report: Report, tmp_path: Path
) -> None:
    ended(report)
    (tmp_path / "log").mkdir()
    said = tailrace("run", "job.py:flow", "--json", "--log", tmp_path / "log")
    assert said.code == USER
    assert json.loads(said.out) == report.data
    (sentence,) = sentences(said)
    assert sentence.startswith(f"tailrace: The log {tmp_path / 'log'} cannot be written (Is a dir")


# --- a run that failed ---------------------------------------------------------------------


def test_a_flow_that_fails_delivers_what_was_measured_and_then_says_why(
    tailrace: Callable[..., Said], ended: Callable[..., None], report: Report, tmp_path: Path
) -> None:
    error = failed(report)
    ended(error)
    said = tailrace("run", "job.py:flow", "--json", "--out", tmp_path / "out")
    assert said.code == USER
    delivered = json.loads(said.out)
    assert delivered["failure"] == str(error)
    assert delivered["intervals"] == report.intervals
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == delivered
    assert said.err.endswith(f"tailrace: {error}\n")
    assert "   failed" in said.err.splitlines()[0]


def test_a_flow_that_fails_before_anything_was_measured_says_only_why(
    tailrace: Callable[..., Said], ended: Callable[..., None], report: Report
) -> None:
    error = failed(report)
    error.report.data["records"] = 0
    ended(error)
    assert tailrace("run", "job.py:flow").sentence(USER) == str(error)


def test_a_baseline_that_fails_leaves_the_report_of_the_demo(
    tailrace: Callable[..., Said],
    ended: Callable[..., None],
    report: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> Report:
        raise FlowFailed("The plain Spark side failed: no reason given")

    ended(report)
    monkeypatch.setattr(running, "run_plain_apart", fail)
    said = tailrace("demo", "--seconds", "5", "--json", "--out", tmp_path)
    assert said.code == USER
    assert json.loads(said.out) == report.data
    assert json.loads((tmp_path / "report.json").read_text()) == report.data
    assert sentences(said) == ["tailrace: The plain Spark side failed: no reason given"]


# --- streams and disks, in a process of their own ------------------------------------------

COMMAND = """
import json, resource, sys

from tailrace import cli
from tailrace.report.data import Report
from tailrace.spark import running

report, most_bytes = Report(json.loads(sys.argv.pop(1))), int(sys.argv.pop(1))
running.find_flow = lambda _: None
running.run = lambda *_, **__: report
if most_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
cli.main()
"""


@pytest.fixture
def shell(report: Report) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs ``tailrace run`` on a run that ended, under a shell's redirections."""

    def call(
        *arguments: object, line: str = "{command}", most_bytes: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", COMMAND, json.dumps(report.data), most_bytes]
        command += ["run", "job.py:flow", *arguments]
        return subprocess.run(
            ["/bin/sh", "-c", line.format(command='"$@"'), "sh", *map(str, command)],
            capture_output=True,
            check=False,
            env={**os.environ, **environment},
            timeout=PATIENCE_S,
        )

    return call


def test_on_a_full_disk_the_report_before_stays_and_this_one_is_on_standard_output(
    shell: Callable[..., subprocess.CompletedProcess[bytes]], report: Report, tmp_path: Path
) -> None:
    (tmp_path / "report.json").write_text("the one before")
    done = shell("--json", "--out", tmp_path, most_bytes=1_000)
    assert done.returncode == MACHINE
    assert json.loads(done.stdout) == report.data
    *_, sentence = done.stderr.decode().splitlines()
    assert sentence == (
        f"tailrace: The report {tmp_path / 'report.json'} cannot be written (File too large): free "
        "some space, or choose another place."
    )
    assert b"Traceback" not in done.stderr
    assert (tmp_path / "report.json").read_text() == "the one before"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


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
