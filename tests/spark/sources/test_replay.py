from __future__ import annotations

import json
import shutil
import threading
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.errors import IllegalArgumentException, StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tailrace.errors import InputError
from tailrace.load import Texts, Trace
from tailrace.spark import sources
from tests.spark.support import PAST_US, PATIENCE_S, a_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

FILLER = "abcdefghijklmnopqrstuvwxyz0123456789"

Row = tuple[int, int, str, str]


def rows_of(trace: Trace, start_us: int) -> list[Row]:
    """What Spark should see, in the order of the record index."""
    texts = (
        [(FILLER * (size // 36 + 1))[:size] for size in trace.size.tolist()]
        if trace.payloads is None
        else trace.payloads.arrow().to_pylist()
    )
    keys = [trace.key_names[key] for key in trace.key.tolist()]
    dues = (start_us + trace.due_us).tolist()
    return list(zip(range(len(trace)), dues, keys, texts, strict=True))


def written(trace: Trace, directory: Path) -> Path:
    path = directory / "load.trace"
    trace.save(path)
    return path


def replay(spark: SparkSession, trace: Path, **options: int) -> DataFrame:
    reader = spark.readStream.format("tailrace-replay").option("trace", str(trace))
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


class Batches:
    """A sink that keeps the rows of each batch under its id, so that a batch run again replaces."""

    def __init__(self, wanted: int = 0) -> None:
        self.rows: dict[int, list[Row]] = {}
        self.early_us: list[int] = []
        self.complete = threading.Event()
        self._wanted = wanted

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        got = batch.select("seq", F.unix_micros("due"), "key", "payload").collect()
        now_us = time.time_ns() // 1000
        self.rows[batch_id] = [(row[0], row[1], row[2], row[3]) for row in got]
        self.early_us += [row[1] - now_us for row in got if row[1] > now_us]
        if sum(map(len, self.rows.values())) >= self._wanted:
            self.complete.set()

    @property
    def all(self) -> list[Row]:
        return sorted(row for rows in self.rows.values() for row in rows)


def drain(frame: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(PATIENCE_S))


def run_until_complete(frame: DataFrame, batches: Batches, checkpoint: Path) -> None:
    query = (
        frame.writeStream.foreachBatch(batches)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        assert batches.complete.wait(PATIENCE_S)
    finally:
        query.stop()


def logged_offset(checkpoint: Path, batch_id: int) -> dict[str, Any]:
    last_line = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1]
    offset: dict[str, Any] = json.loads(last_line)
    return offset


def numbered(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.name.isdigit()]


def forget_commit(checkpoint: Path, batch_id: int) -> None:
    """Leaves the checkpoint as a driver does that was killed before it committed the batch."""
    for path in (checkpoint / "commits").glob(f"*{batch_id}*"):
        path.unlink()


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("stored", [False, True])
def test_every_record_arrives_once_and_as_the_trace_says(
    spark: SparkSession, tmp_path: Path, partitions: int, stored: bool
) -> None:
    recorded = a_trace(1000, stored=stored)
    batches = Batches()
    frame = replay(
        spark,
        written(recorded, tmp_path),
        partitions=partitions,
        startUs=PAST_US,
        maxRecordsPerBatch=270,
    )
    drain(frame, batches, tmp_path / "checkpoint")
    assert batches.all == rows_of(recorded, PAST_US)
    assert [len(batches.rows[i]) for i in sorted(batches.rows)] == [270, 270, 270, 190]


def test_a_partition_holds_every_pth_record_in_order(spark: SparkSession, tmp_path: Path) -> None:
    trace = written(a_trace(100), tmp_path)
    seen: dict[int, list[int]] = {}

    def keep(batch: DataFrame, _batch_id: int) -> None:
        for row in batch.select(F.spark_partition_id(), "seq").collect():
            seen.setdefault(row[0], []).append(row[1])

    drain(replay(spark, trace, partitions=3, startUs=PAST_US), keep, tmp_path / "checkpoint")
    assert seen == {p: list(range(p, 100, 3)) for p in range(3)}


def test_a_query_gets_the_columns_it_uses_and_no_payload_is_made_for_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    impossible = replace(a_trace(10), size=np.full(10, 2**31 - 1, np.int32))
    frame = replay(spark, written(impossible, tmp_path), partitions=2, startUs=PAST_US)
    seen: list[int] = []
    counts: list[int] = []

    def keep(batch: DataFrame, _batch_id: int) -> None:
        counts.append(batch.count())
        seen.extend(row["seq"] for row in batch.collect())

    drain(frame.select("key", "seq"), keep, tmp_path / "checkpoint")
    assert frame.schema.simpleString() == (
        "struct<seq:bigint,due:timestamp,key:string,payload:string>"
    )
    assert counts == [10]
    assert sorted(seen) == list(range(10))


@pytest.mark.parametrize("partitions", [1, 3])
def test_no_record_appears_before_it_is_due_and_none_is_missing_live(
    spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    recorded = a_trace(400, span_us=1_500_000)
    batches = Batches(wanted=400)
    frame = replay(spark, written(recorded, tmp_path), partitions=partitions)
    run_until_complete(frame, batches, tmp_path / "checkpoint")
    start_us = logged_offset(tmp_path / "checkpoint", 0)["startUs"]
    assert batches.all == rows_of(recorded, start_us)
    assert len(batches.rows) > 1
    assert batches.early_us == []


def test_available_now_stops_at_what_is_due_and_leaves_the_rest(
    spark: SparkSession, tmp_path: Path
) -> None:
    an_hour_us = 3_600_000_000
    recorded = a_trace(300, span_us=2 * an_hour_us)
    start_us = time.time_ns() // 1000 - an_hour_us
    batches = Batches()
    before_us = time.time_ns() // 1000
    frame = replay(spark, written(recorded, tmp_path), startUs=start_us, partitions=2)
    drain(frame, batches, tmp_path / "checkpoint")
    after_us = time.time_ns() // 1000
    fewest = int(np.sum(start_us + recorded.due_us <= before_us))
    most = int(np.sum(start_us + recorded.due_us <= after_us))
    assert fewest <= len(batches.all) <= most
    assert batches.all == rows_of(recorded, start_us)[: len(batches.all)]
    assert 0 < len(batches.all) < 300


def test_a_restart_keeps_the_start_and_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    recorded = a_trace(600, span_us=2_000_000)
    trace, checkpoint = written(recorded, tmp_path), tmp_path / "checkpoint"
    first_half = Batches(wanted=200)
    run_until_complete(replay(spark, trace, partitions=3), first_half, checkpoint)
    start_us = logged_offset(checkpoint, 0)["startUs"]
    second_half = Batches(wanted=600)
    second_half.rows.update(first_half.rows)
    run_until_complete(replay(spark, trace, partitions=3), second_half, checkpoint)
    assert len(first_half.all) < 600
    assert second_half.all == rows_of(recorded, start_us)
    assert logged_offset(checkpoint, max(second_half.rows)) == {
        "startUs": start_us,
        "next": [200, 200, 200],
    }


@pytest.mark.parametrize("most", [100, 40])
def test_a_batch_that_was_not_committed_comes_again_with_the_same_rows(
    spark: SparkSession, tmp_path: Path, most: int
) -> None:
    trace, checkpoint = written(a_trace(100), tmp_path), tmp_path / "checkpoint"
    before, after = Batches(), Batches()
    drain(replay(spark, trace, maxRecordsPerBatch=most), before, checkpoint)
    last = max(before.rows)
    forget_commit(checkpoint, last)
    drain(replay(spark, trace, maxRecordsPerBatch=most), after, checkpoint)
    assert len(before.all) == 100
    assert after.rows == {last: before.rows[last]}


def test_a_checkpoint_fixes_the_start_against_the_option(
    spark: SparkSession, tmp_path: Path
) -> None:
    recorded = a_trace(100, span_us=0)
    trace, checkpoint = written(recorded, tmp_path), tmp_path / "checkpoint"
    batches = Batches()
    drain(replay(spark, trace, startUs=PAST_US, maxRecordsPerBatch=60), batches, checkpoint)
    forget_commit(checkpoint, 1)
    drain(replay(spark, trace, startUs=PAST_US + 1, maxRecordsPerBatch=60), batches, checkpoint)
    assert batches.all == rows_of(recorded, PAST_US)


def test_the_backlog_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    trace = written(a_trace(100), tmp_path)
    query = (
        replay(spark, trace, partitions=2, startUs=PAST_US, maxRecordsPerBatch=30)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(PATIENCE_S))
    source = json.loads(query.recentProgress[0].json)["sources"][0]
    assert source["endOffset"] == {"startUs": PAST_US, "next": [15, 15]}
    assert source["latestOffset"] == {"startUs": PAST_US, "next": [50, 50]}


def fold() -> Column:
    """Folds every column of every row into one number, whatever the order."""
    return F.bit_xor(F.xxhash64("seq", F.unix_micros("due"), "key", "payload")).alias("fold")


def start_real_time(frame: DataFrame, checkpoint: Path) -> StreamingQuery:
    """A query in real-time mode whose progress tells what passed, and how early at the worst."""
    clock_us = F.expr("cast(reflect('java.lang.System', 'currentTimeMillis') as bigint) * 1000")
    query: StreamingQuery = (
        frame.withColumn("age_us", clock_us - F.unix_micros("due"))
        .observe(
            "seen",
            F.count(F.lit(1)).alias("n"),
            fold(),
            F.min("age_us").alias("least_age_us"),
        )
        .writeStream.format("console")
        .option("numRows", 1)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("update")
        .trigger(realTime="1 seconds")  # type: ignore[call-overload]  # not in PySpark's overloads
        .start()
    )
    return query


def observed_until(query: StreamingQuery, finished: Callable[[list[int]], bool]) -> list[Any]:
    """The observations of each batch, read until the source's offsets say that it is finished."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert not query.awaitTermination(1)
        progress = [json.loads(entry.json) for entry in query.recentProgress]
        if progress and finished(progress[-1]["sources"][0]["endOffset"]["next"]):
            return [entry["observedMetrics"]["seen"] for entry in progress]
    raise AssertionError("the replay did not end in time")


@pytest.fixture
def short_real_time_batches(spark: SparkSession) -> Iterator[None]:
    prefix = "spark.sql.streaming.realTimeMode."
    settings = {"minBatchDuration": "500", "asyncProgressTrackingByDefault.enabled": "false"}
    for name, value in settings.items():
        spark.conf.set(prefix + name, value)
    yield
    for name in settings:
        spark.conf.unset(prefix + name)


@pytest.mark.usefixtures("short_real_time_batches")
@pytest.mark.parametrize("partitions", [1, 2])
def test_real_time_mode_hands_out_every_record_once_and_never_early(
    spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    recorded = a_trace(501, span_us=2_500_000)
    checkpoint = tmp_path / "checkpoint"
    start_us = time.time_ns() // 1000
    frame = replay(spark, written(recorded, tmp_path), partitions=partitions, startUs=start_us)
    query = start_real_time(frame, checkpoint)
    try:
        seen = observed_until(query, lambda ends: sum(ends) == 501)
    finally:
        query.stop()
    columns = "seq bigint, due_us bigint, key string, payload string"
    expected = spark.createDataFrame(rows_of(recorded, start_us), columns)
    wanted = expected.withColumn("due", F.timestamp_micros("due_us")).agg(fold()).first()
    assert wanted is not None
    assert len(seen) > 1
    assert sum(entry["n"] for entry in seen) == 501
    assert np.bitwise_xor.reduce([entry["fold"] or 0 for entry in seen]) == wanted["fold"]
    # The clock of the query counts whole milliseconds, so it may lag by one.
    assert all(entry["least_age_us"] > -1000 for entry in seen if entry["n"])


@pytest.mark.usefixtures("short_real_time_batches")
def test_micro_batches_take_up_where_real_time_mode_was_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    recorded = a_trace(700, span_us=7_000_000)
    trace, checkpoint = written(recorded, tmp_path), tmp_path / "checkpoint"
    query = start_real_time(replay(spark, trace, partitions=2), checkpoint)
    try:
        observed_until(query, lambda ends: sum(ends) > 100)
    finally:
        query.stop()
    reached = logged_offset(checkpoint, max(int(p.name) for p in numbered(checkpoint / "commits")))
    rest = [
        row
        for row in rows_of(recorded, reached["startUs"])
        if row[0] // 2 >= reached["next"][row[0] % 2]
    ]
    batches = Batches(wanted=len(rest))
    frame = replay(spark, trace, partitions=2, maxRecordsPerBatch=150)
    run_until_complete(frame, batches, checkpoint)
    assert 0 < len(rest) < 700
    assert batches.all == rest
    assert max(map(len, batches.rows.values())) <= 150


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"partitions": 0}, 'option partitions is "0"; give a whole number, at least 1'),
        ({"maxRecordsPerBatch": 0}, 'option maxRecordsPerBatch is "0"'),
        ({"startUs": -5}, 'option startUs is "-5"'),
    ],
)
def test_an_option_out_of_range_is_refused(
    spark: SparkSession, tmp_path: Path, options: dict[str, int], sentence: str
) -> None:
    with pytest.raises(IllegalArgumentException, match=sentence):
        replay(spark, written(a_trace(3), tmp_path), **options)


def test_a_missing_option_and_a_missing_file_are_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(IllegalArgumentException, match="needs a trace"):
        spark.readStream.format("tailrace-replay").load()
    with pytest.raises(IllegalArgumentException, match=r"absent\.trace does not exist here"):
        replay(spark, tmp_path / "absent.trace")


def test_a_file_that_is_not_a_trace_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for content in (b"", b"TRTR", b"PAR1" + bytes(100)):
        path = tmp_path / "other.bin"
        path.write_bytes(content)
        with pytest.raises(IllegalArgumentException, match="is not a Tailrace trace"):
            replay(spark, path)


def test_a_trace_cut_off_anywhere_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    whole = written(a_trace(20, stored=True), tmp_path).read_bytes()
    for length in [8, 39, 40, *range(48, len(whole), 16), len(whole) - 1]:
        path = tmp_path / f"{length}.trace"
        path.write_bytes(whole[:length])
        with pytest.raises(IllegalArgumentException, match="is cut off in its"):
            replay(spark, path)


def test_a_trace_with_a_byte_changed_anywhere_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    whole = written(a_trace(2, stored=True), tmp_path).read_bytes()
    for position in range(0, len(whole), 3):
        raw = bytearray(whole)
        raw[position] ^= 1 << position % 8
        path = tmp_path / f"{position}.trace"
        path.write_bytes(raw)
        with pytest.raises(IllegalArgumentException, match=f"The trace file {path} "):
            replay(spark, path)


def test_a_trace_that_is_damaged_or_goes_on_says_so(spark: SparkSession, tmp_path: Path) -> None:
    whole = written(a_trace(4, span_us=90), tmp_path).read_bytes()
    late = np.int64(10**6).tobytes()  # sorted still
    for name, raw, says in [
        ("damaged", whole[:64] + late + whole[72:], r"is damaged \(its checksum is wrong\)"),
        ("longer", whole + b"\0", "goes on after its end"),
        ("taken for version 1", b"TRTRACE1" + whole[8:], "goes on after its end"),
    ]:
        path = tmp_path / name
        path.write_bytes(raw)
        with pytest.raises(IllegalArgumentException, match=says):
            replay(spark, path)


@pytest.mark.parametrize("name", ["format1.trace", "format1-filler.trace"])
def test_a_checkpoint_with_a_trace_of_version_1_is_gone_on_with(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    old = Path(__file__).parents[2] / "load" / name
    shutil.copy(old, tmp_path / "load.trace")
    load, batches = Trace.load(old), Batches()
    sources.replay(load).open(spark, tmp_path)
    frame = replay(spark, tmp_path / "load.trace", startUs=PAST_US)
    drain(frame, batches, tmp_path / "checkpoint")
    assert batches.all == rows_of(load, PAST_US)


@pytest.mark.parametrize(
    ("place", "value", "record"),
    [(40 + 8 * 2, np.int64(-1), 2), (40 + 8 * 3, np.int32(4), 0), (40 + 8 * 5, np.int32(-1), 0)],
    ids=["falling due times", "unknown key", "negative size"],
)
def test_a_trace_with_a_wrong_record_is_refused(
    spark: SparkSession, tmp_path: Path, place: int, value: np.integer[Any], record: int
) -> None:
    path = written(a_trace(3), tmp_path)
    raw = bytearray(path.read_bytes())
    raw[place : place + value.nbytes] = value.tobytes()
    raw[-8:] = np.int64(zlib.crc32(raw[:-8])).tobytes()
    path.write_bytes(raw)
    with pytest.raises(IllegalArgumentException, match=f"is wrong at record {record} "):
        replay(spark, path)


def failure_of(frame: DataFrame, checkpoint: Path) -> str:
    with pytest.raises(StreamingQueryException) as failure:
        drain(frame, Batches(), checkpoint)
    return str(failure.value)


def test_a_checkpoint_of_another_shape_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    trace, checkpoint = written(a_trace(60), tmp_path), tmp_path / "checkpoint"
    drain(replay(spark, trace, partitions=2, startUs=PAST_US), Batches(), checkpoint)
    message = failure_of(replay(spark, trace, partitions=3, startUs=PAST_US), checkpoint)
    assert "written with 2 replay partitions and the option says 3" in message
    a_trace(50).save(trace)
    message = failure_of(replay(spark, trace, partitions=2, startUs=PAST_US), checkpoint)
    assert "has fewer records than the checkpoint has read" in message


def other_texts(trace: Trace) -> Trace:
    """The same records with payloads of the same lengths."""
    assert trace.payloads is not None
    return replace(trace, payloads=Texts.of([text.upper() for text in trace.payloads]))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (a_trace(100), a_trace(100, seed=8)),
        (a_trace(100, stored=True), other_texts(a_trace(100, stored=True))),
    ],
    ids=["other records", "other texts"],
)
def test_a_trace_that_changes_under_a_stream_stops_it(
    spark: SparkSession, tmp_path: Path, before: Trace, after: Trace
) -> None:
    trace = written(before, tmp_path)

    def swap(_batch: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            after.save(trace)
        else:
            _batch.collect()

    frame = replay(spark, trace, startUs=PAST_US, maxRecordsPerBatch=50)
    with pytest.raises(StreamingQueryException, match="not the one that the stream was started"):
        drain(frame, swap, tmp_path / "checkpoint")


def test_a_checkpoint_is_resumed_with_its_own_load_and_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    sources.replay(a_trace(100)).open(spark, tmp_path)
    sources.replay(a_trace(100)).open(spark, tmp_path)
    with pytest.raises(InputError, match="belongs to a different load"):
        sources.replay(a_trace(100, seed=8)).open(spark, tmp_path)
