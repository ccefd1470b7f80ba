"""The report arrives however the run ended, and even if other files cannot be written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrace.errors import FlowFailed
from tests.cli.conftest import MACHINE, USER, sentences

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.report.data import Report
    from tests.conftest import Said

TOO_SHORT = "The run was too short for a profile, or measured nothing: let it run for a minute."


def failed(report: Report) -> FlowFailed:
    error = FlowFailed("The flow failed (disk on fire): put it out.")
    error.report = replace(report, data={**report.data, "failure": str(error)})
    return error


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


# --- a disk that is full, in a process of its own ------------------------------------------


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
