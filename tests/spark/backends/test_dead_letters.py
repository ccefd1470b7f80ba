"""Dead letters in real-time mode: put aside by tasks, published once when their batch is over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.spark import sinks
from tailrace.spark.backends.dead_letters import SCHEMA, DeadLetters
from tailrace.spark.worker.dead_letters import Letter, put_aside

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def letter(number: int, step: str = "a") -> Letter:
    return step, json.dumps({"seq": number}), f"ValueError: no {number}"


class Rows(list[tuple[Any, ...]]):
    """A frame of rows, which is asked for one task."""

    tasks = 0

    def coalesce(self, tasks: int) -> Rows:
        self.tasks = tasks
        return self


class Tables:
    """A sink and a session that keep what they are given: all that publishing asks of Spark."""

    def __init__(self, *, fail_on: int | None = None) -> None:
        self.written: list[tuple[int, list[tuple[Any, ...]]]] = []
        self.fail_on = fail_on

    def createDataFrame(self, rows: Any, schema: str) -> Any:  # noqa: N802 - Spark's name
        assert schema == SCHEMA
        return Rows(rows)

    def prepare(self, *_: object) -> None:
        pass

    def write(self, frame: Any, batch_id: int) -> Any:
        assert frame.tasks == 1
        if batch_id == self.fail_on:
            raise OSError("the disk is full")
        return lambda: self.written.append((batch_id, frame))


def publish(letters: DeadLetters, tables: Tables, committed: int) -> None:
    spark: Any = tables
    letters.publish(spark, tables, committed)


def held(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def test_letters_are_published_by_batch_in_order_and_once(tmp_path: Path) -> None:
    place = str(tmp_path)
    put_aside(place, 10, "a+b", 0, [letter(4)])
    put_aside(place, 9, "a+b", 1, [letter(3, "b")])
    put_aside(place, 9, "a+b", 0, [letter(1), letter(2)])
    letters, tables = DeadLetters(tmp_path, committed=10), Tables()
    publish(letters, tables, 10)
    publish(letters, tables, 10)
    nine = [(9, *letter(1)), (9, *letter(2)), (9, *letter(3, "b"))]
    assert tables.written == [(9, nine), (10, [(10, *letter(4))])]
    assert held(tmp_path) == []


def test_letters_of_a_batch_that_is_not_committed_wait(tmp_path: Path) -> None:
    letters, tables = DeadLetters(tmp_path, committed=-1), Tables()
    put_aside(str(tmp_path), 0, "a", 0, [letter(1)])
    publish(letters, tables, -1)
    assert tables.written == []
    publish(letters, tables, 0)
    assert tables.written == [(0, [(0, *letter(1))])]


def test_what_a_batch_left_that_was_never_committed_is_forgotten_at_the_start(
    tmp_path: Path,
) -> None:
    for batch in range(4):
        put_aside(str(tmp_path), batch, "a", 0, [letter(batch)])
    (tmp_path / "1-a-0.77.tmp").write_text("half a li")
    letters, tables = DeadLetters(tmp_path, committed=1), Tables()
    assert held(tmp_path) == ["0-a-0.json", "1-a-0.json"]
    publish(letters, tables, 3)
    assert [batch for batch, _ in tables.written] == [0, 1]


def test_a_task_that_runs_again_replaces_what_it_left(tmp_path: Path) -> None:
    put_aside(str(tmp_path), 3, "a", 0, [letter(1), letter(2)])
    put_aside(str(tmp_path), 3, "a", 0, [letter(2)])
    tables = Tables()
    publish(DeadLetters(tmp_path, committed=3), tables, 3)
    assert tables.written == [(3, [(3, *letter(2))])]


def test_letters_that_could_not_be_published_stay_for_the_next_time(tmp_path: Path) -> None:
    for batch in range(3):
        put_aside(str(tmp_path), batch, "a", 0, [letter(batch)])
    letters, tables = DeadLetters(tmp_path, committed=2), Tables(fail_on=1)
    with pytest.raises(OSError, match="the disk is full"):
        publish(letters, tables, 2)
    tables.fail_on = None
    publish(letters, tables, 2)
    assert [batch for batch, _ in tables.written] == [0, 1, 2]


def test_a_chain_may_have_any_name(tmp_path: Path) -> None:
    name = "to/from+my step-2.json+ü%.."
    for partition in (0, 1):
        put_aside(str(tmp_path / "new"), 12, name, partition, [letter(partition)])
    tables = Tables()
    publish(DeadLetters(tmp_path / "new", committed=12), tables, 12)
    assert tables.written == [(12, [(12, *letter(0)), (12, *letter(1))])]
    assert held(tmp_path) == ["new"]


def test_without_a_directory_there_are_no_letters(tmp_path: Path) -> None:
    tables = Tables()
    publish(DeadLetters(tmp_path / "none", committed=5), tables, 5)
    assert tables.written == []
    assert held(tmp_path) == []


@pytest.mark.spark
def test_letters_become_rows_of_the_sink_under_the_id_of_their_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    dead = sinks.memory()
    put_aside(str(tmp_path), 7, "a", 0, [letter(1), letter(2)])
    DeadLetters(tmp_path, committed=7).publish(spark, dead, 7)
    assert list(dead.batches) == [7]
    assert dead.rows() == [
        {"batch_id": 7, "step": step, "record": record, "error": error}
        for step, record, error in (letter(1), letter(2))
    ]
