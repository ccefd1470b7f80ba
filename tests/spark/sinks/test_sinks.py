from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from tailrace.errors import EnvironmentUnfit, FlowFailed, InputError
from tailrace.spark import sinks
from tailrace.spark.backends.dead_letters import frame_of
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.spark.flow import Flow
from tailrace.spark.pipeline.step import step
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
by_value(__name__)


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(i, f"t{i}") for i in range(30)], "n bigint, text string")


def published(directory: Path) -> list[str]:
    """What a reader sees: everything that is not hidden."""
    return sorted(path.name for path in directory.iterdir() if path.name[0] not in "._")


def prepared(spark: SparkSession, path: Path, identity: str = "one") -> sinks.Parquet:
    sink = sinks.parquet(path)
    sink.prepare(spark, identity)
    return sink


def logged(directory: Path, offsets: list[str]) -> BatchLog:
    """The log of a checkpoint that has committed batches with these offsets."""
    for log in ("offsets", "commits"):
        (directory / log).mkdir(parents=True, exist_ok=True)
    for batch, offset in enumerate(offsets):
        (directory / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offset}")
        (directory / "commits" / str(batch)).write_text("v1\n{}")
    return BatchLog(directory)


def test_a_parquet_batch_is_invisible_until_it_is_published(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    sink = prepared(spark, tmp_path / "out")
    publish = sink.write(frame, 4)
    assert published(tmp_path / "out") == []
    publish()
    assert published(tmp_path / "out") == ["batch=4"]
    got = spark.read.parquet(str(tmp_path / "out")).orderBy("n").collect()
    assert [(row.n, row.text, row.batch) for row in got] == [(i, f"t{i}", 4) for i in range(30)]


def test_a_parquet_batch_that_comes_again_is_neither_computed_nor_written(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    sink = prepared(spark, tmp_path / "out")
    sink.write(frame, 0)()
    sink.write(frame.selectExpr("raise_error('computed again')"), 0)()
    assert pq.read_table(tmp_path / "out/batch=0").num_rows == 30


def test_a_batch_left_half_written_is_written_anew(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    first = prepared(spark, tmp_path / "out")
    first.write(frame, 0)
    staged = tmp_path / "out/_staging-one"
    assert staged.exists()
    first.release()
    resumed = prepared(spark, tmp_path / "out")
    assert not staged.exists()
    resumed.write(frame.limit(3), 0)()
    assert pq.read_table(tmp_path / "out/batch=0").num_rows == 3


@pytest.mark.parametrize("name", ["batch", "Batch"])
def test_a_column_that_readers_would_take_the_directories_for_is_refused(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    sink = prepared(spark, tmp_path / "out")
    with pytest.raises(InputError, match=f"has a column '{name}', .*: rename the column"):
        sink.write(spark.range(3).toDF(name), 0)
    assert not (tmp_path / "out/batch=0").exists()


def test_dead_letters_can_be_read_as_one_table(spark: SparkSession, tmp_path: Path) -> None:
    sink = prepared(spark, tmp_path / "out")
    for batch in range(2):
        sink.write(frame_of(spark, [(batch, "parse", "{}", "ValueError")]), batch)()
    table = pq.read_table(tmp_path / "out").to_pylist()
    assert [(row["batch_id"], row["batch"]) for row in table] == [(0, 0), (1, 1)]


def test_an_empty_batch_is_published_too(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    prepared(spark, tmp_path / "out").write(frame.where("n < 0"), 0)()
    assert published(tmp_path / "out") == ["batch=0"]


def test_a_failed_batch_leaves_nothing_to_read(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    sink = prepared(spark, tmp_path / "out")
    with pytest.raises(PySparkException):
        sink.write(frame.selectExpr("raise_error('broken')"), 0)
    assert published(tmp_path / "out") == []


def test_a_file_and_a_directory_of_something_else_are_refused(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(InputError, match="a file: name a directory"):
        prepared(spark, file)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty and was not written by this checkpoint"):
        prepared(spark, tmp_path / "full")
    ours = prepared(spark, tmp_path / "out")
    ours.write(frame, 0)()
    ours.release()
    with pytest.raises(InputError, match="is not empty and was not written by this checkpoint"):
        prepared(spark, tmp_path / "out", "another")
    assert file.read_text() == "mine"
    assert published(tmp_path / "full") == ["notes.txt"]
    assert pq.read_table(tmp_path / "out/batch=0").num_rows == 30


def test_a_directory_that_a_flow_runs_on_is_refused_to_another_though_nothing_is_in_it(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    first = prepared(spark, tmp_path / "out")
    with pytest.raises(EnvironmentUnfit, match=r"The output .*/out is in use by process"):
        prepared(spark, tmp_path / "out", "another")
    first.write(frame, 0)()
    assert pq.read_table(tmp_path / "out/batch=0").num_rows == 30


def test_a_directory_to_which_nothing_was_published_is_free_when_its_run_is_over(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    first = prepared(spark, tmp_path / "out")
    first.write(frame, 0)
    first.release()
    other = prepared(spark, tmp_path / "out", "another")
    other.write(frame, 0)()
    other.release()
    with pytest.raises(InputError, match="is not empty"):
        prepared(spark, tmp_path / "out", "one")


def test_where_no_lock_can_be_had_the_mark_of_another_checkpoint_is_enough_to_refuse(
    spark: SparkSession, tmp_path: Path
) -> None:
    at = (tmp_path / "out").as_uri()
    sinks.parquet(at).prepare(spark, "one")
    with pytest.raises(InputError, match="belongs to another checkpoint, which may be running"):
        sinks.parquet(at).prepare(spark, "another")
    sinks.parquet(at).prepare(spark, "one")


@pytest.mark.parametrize("address", [str, lambda path: path.as_uri()], ids=["path", "uri"])
def test_a_flow_whose_output_was_taken_over_publishes_nothing_more(
    spark: SparkSession, frame: DataFrame, tmp_path: Path, address: Callable[[Path], str]
) -> None:
    sink = sinks.parquet(address(tmp_path / "out"))
    sink.prepare(spark, "one")
    sink.write(frame, 0)()
    (tmp_path / "out/_tailrace-one").unlink()
    publish = sink.write(frame, 1)
    with pytest.raises(FlowFailed, match="no longer belongs to this checkpoint: another flow took"):
        publish()
    assert published(tmp_path / "out") == ["batch=0"]


@pytest.mark.parametrize("kind", ["parquet", "uri", "memory"])
def test_a_batch_of_one_id_and_another_range_or_identity_is_refused_and_never_skipped(
    spark: SparkSession, frame: DataFrame, tmp_path: Path, kind: str
) -> None:
    place = tmp_path / "out"
    makers: dict[str, Callable[[], sinks.Parquet | sinks.Memory]] = {
        "parquet": lambda: sinks.parquet(place),
        "uri": lambda: sinks.parquet(place.as_uri()),
        "memory": sinks.memory,
    }
    sink = makers[kind]()
    log = logged(tmp_path / "log", ["a", "b"])
    sink.prepare(spark, "one")
    sink.follow(log, complete=True, after_restore=False)
    sink.write(frame, 0)()
    sink.write(frame, 1)()
    assert sink.holds(1)
    assert sink.follow(log, complete=True, after_restore=False) == ()
    logged(tmp_path / "log", ["a", "c"])
    for ask in (sink.holds, lambda batch: sink.write(frame, batch)):
        with pytest.raises(InputError, match="holds a batch 1 of other records than"):
            ask(1)
    older = r"so the checkpoint is older than the output.*--after-restore"
    with pytest.raises(InputError, match=older):
        sink.follow(log, complete=True, after_restore=False)
    assert sink.published() == [0, 1]


def test_what_a_checkpoint_that_went_back_does_not_know_is_set_aside_when_that_is_asked_for(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    sink = prepared(spark, tmp_path / "out")
    log = logged(tmp_path / "log", ["a", "b", "c", "d"])
    sink.follow(log, complete=True, after_restore=False)
    for batch in range(4):
        sink.write(frame.where(f"n = {batch}"), batch)()
    (tmp_path / "log/offsets/3").unlink()
    (tmp_path / "log/offsets/2").unlink()
    (tmp_path / "log/commits/2").unlink()  # that of 3 outlived its offsets
    with pytest.raises(InputError, match="has lost the offsets of batch 3, which it committed"):
        log.check()
    log.forget_commits()
    assert (log.begun, log.committed) == (1, 1)
    (said,) = sink.follow(log, complete=True, after_restore=True)
    assert "batches 2 to 3, unknown to the checkpoint, set aside" in said
    assert published(tmp_path / "out") == ["batch=0", "batch=1"]
    logged(tmp_path / "log", ["a", "b", "x"])
    sink.write(frame.where("n > 20"), 2)()
    assert sorted(row.n for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [
        0,
        1,
        *range(21, 30),
    ]
    assert pq.read_table(tmp_path / "out/_superseded-2").num_rows == 1


def test_an_output_that_lacks_batches_which_were_committed_is_refused(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    sink = prepared(spark, tmp_path / "out")
    log = logged(tmp_path / "log", ["a", "b", "c"])
    sink.follow(log, complete=True, after_restore=False)
    sink.write(frame, 0)()
    with pytest.raises(InputError, match="lacks batches 1 to 2, which the checkpoint has commit"):
        sink.follow(log, complete=True, after_restore=False)
    assert sink.follow(log, complete=False, after_restore=False) == ()
    (said,) = sink.follow(log, complete=True, after_restore=True)
    assert "lacks batches 1 to 2" in said
    none = logged(tmp_path / "none", ["a", "a", "a"])  # as Spark makes them to spread its state
    assert sink.follow(none, complete=True, after_restore=False) == ()


def test_a_batch_published_before_labels_were_kept_is_trusted_where_it_was_committed(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    sink = prepared(spark, tmp_path / "out")
    log = logged(tmp_path / "log", ["a", "b"])
    sink.follow(log, complete=True, after_restore=False)
    sink.write(frame, 0)()
    sink.write(frame, 1)()
    for label in (tmp_path / "out").glob("batch=*/_batch.json"):
        label.unlink()
    assert sink.follow(log, complete=True, after_restore=False) == ()
    (tmp_path / "log/commits/1").unlink()
    with pytest.raises(InputError, match="holds a batch 1 of other records"):
        sink.follow(log, complete=True, after_restore=False)


def test_a_batch_that_cannot_be_published_says_so(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    publish = prepared(spark, tmp_path / "out").write(frame, 0)
    (tmp_path / "out/_staging-one").rename(tmp_path / "gone")
    with pytest.raises(FlowFailed, match=r"batch=0 could not be published: check that the output"):
        publish()


def test_a_uri_is_a_path_too(spark: SparkSession, frame: DataFrame, tmp_path: Path) -> None:
    sink = sinks.parquet((tmp_path / "out").as_uri())
    sink.prepare(spark, "one")
    sink.write(frame, 0)()
    assert pq.read_table(tmp_path / "out/batch=0").num_rows == 30


def test_memory_keeps_each_batch_once_and_in_order(frame: DataFrame) -> None:
    memory = sinks.memory()
    assert memory.rows() == []
    publish = memory.write(frame.where("n = 2"), 1)
    assert memory.rows() == []
    publish()
    memory.write(frame.where("n = 1"), 0)()
    memory.write(frame.where("n = 2"), 1)()
    assert memory.rows() == [{"n": 1, "text": "t1"}, {"n": 2, "text": "t2"}]


def test_memory_begins_empty_with_another_checkpoint_and_is_of_one_run_at_a_time(
    spark: SparkSession, frame: DataFrame
) -> None:
    memory = sinks.memory()
    memory.prepare(spark, "one")
    memory.write(frame.where("n = 1"), 0)()
    with pytest.raises(InputError, match="cannot share one memory sink"):
        memory.prepare(spark, "another")
    memory.release()
    memory.prepare(spark, "one")
    assert memory.rows() == [{"n": 1, "text": "t1"}]
    memory.release()
    memory.prepare(spark, "another")
    assert memory.rows() == []


def test_the_console_shows_the_first_rows_when_published(
    frame: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = sinks.console(rows=2).write(frame.orderBy("n"), 7)
    assert capsys.readouterr().out == ""
    publish()
    assert capsys.readouterr().out.splitlines() == [
        "batch 7: 30 rows",
        "  {'n': 0, 'text': 't0'}",
        "  {'n': 1, 'text': 't1'}",
    ]


def test_discard_computes_every_record(spark: SparkSession, frame: DataFrame) -> None:
    seen = spark.sparkContext.accumulator(0)

    def count(batches: Any) -> Any:
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch

    sinks.discard().write(frame.mapInArrow(count, "n bigint, text string"), 0)()
    assert seen.value == 30


def test_a_function_is_a_sink_and_other_things_are_not(frame: DataFrame) -> None:
    got: list[tuple[int, int]] = []
    sinks.as_sink(lambda batch, batch_id: got.append((batch_id, batch.count()))).write(frame, 3)
    assert got == [(3, 30)]
    memory = sinks.memory()
    assert sinks.as_sink(memory) is memory
    with pytest.raises(InputError, match="A value of type str is not a sink: use "):
        sinks.as_sink("out/")


class FailsOnce:
    """A sink whose first batch is computed, and whose driver dies as it is to be published."""

    def __init__(self, sink: sinks.Sink) -> None:
        self.sink = sink
        self.failed = False

    def prepare(self, spark: SparkSession, identity: str) -> None:
        self.sink.prepare(spark, identity)

    def write(self, frame: DataFrame, batch_id: int) -> sinks.Publish:
        publish = self.sink.write(frame, batch_id)

        def once() -> None:
            if not self.failed:
                self.failed = True
                raise OSError("killed")
            publish()

        return once


@pytest.mark.parametrize("killed_at", ["results", "dead letters"])
def test_results_and_dead_letters_are_whole_after_a_crash_between_the_two(
    spark: SparkSession, tmp_path: Path, killed_at: str
) -> None:
    def fail_on_odd(row: Any) -> int:
        if row.seq % 2:
            raise ValueError("odd")
        return int(row.seq)

    results: sinks.Sink = sinks.parquet(tmp_path / "out")
    letters: sinks.Sink = sinks.parquet(tmp_path / "dead")
    if killed_at == "results":
        results = FailsOnce(results)
    else:
        letters = FailsOnce(letters)
    flow = Flow(
        "fragile",
        even_trace(400, 2000),
        lambda f: f.transform(step("even", fail_on_odd, "seq bigint", on_error="dead-letter")),
        results,
        dead_letters=letters,
        checkpoint=tmp_path / "checkpoint",
        mode="observe",
    )
    first = flow.start(spark)
    assert first.wait(60)
    with pytest.raises(FlowFailed, match="OSError: killed"):
        first.stop()

    def rows(directory: Path) -> list[dict[str, Any]]:
        batches = [directory / name for name in published(directory)]
        return [row for batch in batches for row in pq.read_table(batch).to_pylist()]

    second = flow.start(spark)
    try:
        until(lambda: len(rows(tmp_path / "out")) >= 200, "all results")
    finally:
        second.stop()
    assert sorted(row["seq"] for row in rows(tmp_path / "out")) == list(range(0, 400, 2))
    dead = [json.loads(row["record"])["seq"] for row in rows(tmp_path / "dead")]
    assert sorted(dead) == list(range(1, 400, 2))
