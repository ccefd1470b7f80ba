"""Many flows of a session, started at once: each is what it would be alone, or is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .many_flows import lifetime_ms, story

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]

NOTHING = {
    "threads": [],
    "jvm threads": [],
    "directories": [],
    "registries": {"handover.Lifetime": 0, "handover.FlushInterval": 0},
    "queries": 0,
    "slots": 0,
}


def in_a_process(directory: Path, flows: int, slots: int) -> dict[str, Any]:
    """The same story in a session with that many slots."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.many_flows", str(directory), str(flows), str(slots)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for name in ("lifetimes_ms", "refused", "exact"):  # the keys of JSON are texts
        told[name] = {int(number): value for number, value in told[name].items()}
    return told


def each_was_itself_and_nothing_is_left(told: dict[str, Any], running: int) -> None:
    assert told["lifetimes_ms"] == {number: lifetime_ms(number) for number in told["exact"]}
    assert all(told["exact"].values()), told["exact"]
    assert len(told["notes"]) == running
    assert not [note for notes in told["notes"] for note in notes if "given up" in note]
    during = told["during"]
    assert set(during["registries"].values()) == {running}
    assert during["queries"] == during["slots"] == running
    assert len(during["directories"]) == running
    assert during["ports"] == told["before"]["ports"] + running
    assert {name: told["before"][name] for name in NOTHING} == NOTHING  # and so it was afterwards


def each_refusal_says_the_numbers(told: dict[str, Any], refused: int, slots: int) -> None:
    assert len(told["refused"]) == refused
    assert not set(told["refused"]) & set(told["exact"])
    others = f" and {slots - 5} others" if slots > 6 else " and 1 other" if slots == 6 else ""
    said = re.compile(
        rf"In real-time mode the flow holds 1 slot and the session has {slots}, of which {slots} "
        rf"are held by (.*): stop one of those, .* \(local\[{slots + 1}\] .*\)\."
    )
    for why in told["refused"].values():
        match = said.fullmatch(why)
        assert match is not None, why
        named = [int(number) for number in re.findall(r"'flow (\d+)' \(1\)", match[1])]
        assert len(named) == min(slots, 5)
        assert set(named) <= set(told["exact"])  # of those that run
        assert match[1].endswith(others)


def test_of_flows_that_are_started_at_once_on_too_few_slots_some_run_as_if_alone(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The short cut of both drills below: as many as there are slots run, two are refused."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    slots = spark.sparkContext.defaultParallelism
    told = story(spark, tmp_path / "results", slots + 2)
    each_was_itself_and_nothing_is_left(told, slots)
    each_refusal_says_the_numbers(told, 2, slots)


@pytest.mark.nightly
def test_sixteen_flows_with_the_same_steps_are_started_at_once(tmp_path: Path) -> None:
    told = in_a_process(tmp_path, flows=16, slots=40)
    each_was_itself_and_nothing_is_left(told, 16)
    assert told["refused"] == {}


@pytest.mark.nightly
def test_of_forty_flows_on_twenty_four_slots_sixteen_are_refused_and_the_others_run(
    tmp_path: Path,
) -> None:
    told = in_a_process(tmp_path, flows=40, slots=24)
    each_was_itself_and_nothing_is_left(told, 24)
    each_refusal_says_the_numbers(told, 16, 24)
