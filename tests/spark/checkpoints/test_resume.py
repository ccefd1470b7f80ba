"""Runs that resume from a checkpoint that is not quite what the previous run left."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from tailrace.errors import EnvironmentUnfit, FlowFailed, InputError
from tailrace.spark import sinks
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.spark.pipeline.step import keyed_step
from tailrace.spark.sources import replay
from tests.spark.flows import observed
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.report.data import Report
    from tailrace.spark.flow import Flow

pytestmark = pytest.mark.spark
by_value(__name__)

COUNT, KEYS = 400, 5
COUNTED = "key string, seq bigint, n bigint"
NOVEMBER = Path(__file__).with_name("november")


def numbered(_key: Any, rows: list[Any], state: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        state["n"] = state.get("n", 0) + 1
        yield str(row.key), row.seq, state["n"]


def counting(name: str = "count", **how: Any) -> Callable[[DataFrame], DataFrame]:
    how = {"key": "key", "scale": (2, 2), **how}
    return lambda records: records.transform(keyed_step(name, numbered, COUNTED, **how))


def untouched(records: DataFrame) -> DataFrame:
    return records.select("seq")


def totals(records: DataFrame) -> DataFrame:
    return records.groupBy("key").count()


def flow_at(place: Path, pipeline: Any, sink: Any = None, **how: Any) -> Flow:
    source = replay(even_trace(COUNT, 100_000, keys=KEYS), most_records=40)
    out = sinks.parquet(place / "out") if sink is None else sink
    return observed(pipeline, out, source=source, checkpoint=place / "flow", **how)


def batches(place: Path) -> list[Path]:
    found = (place / "out").glob("batch=*")
    return sorted(found, key=lambda path: int(path.name.removeprefix("batch=")))


def rows(place: Path) -> list[dict[str, Any]]:
    return [row for batch in batches(place) for row in pq.read_table(batch).to_pylist()]


def run_until(spark: SparkSession, flow: Flow, condition: Callable[[], bool], **how: Any) -> Report:
    run = flow.start(spark, **how)
    try:
        until(condition, "the results")
    finally:
        report = run.stop()
    return report


def run_to_batch(spark: SparkSession, place: Path, pipeline: Any, batch: int, **how: Any) -> Report:
    done = BatchLog(place / "flow/checkpoint")
    return run_until(spark, flow_at(place, pipeline), lambda: done.committed >= batch, **how)


def run_to_end(spark: SparkSession, place: Path, pipeline: Any, **how: Any) -> Report:
    def all_read() -> bool:
        log = BatchLog(place / "flow/checkpoint")
        if log.committed < 0 or log.committed < log.begun:
            return False
        last = (place / "flow/checkpoint/offsets" / str(log.committed)).read_text().splitlines()[-1]
        return bool(sum(json.loads(last)["next"]) >= COUNT)

    return run_until(spark, flow_at(place, pipeline), all_read, **how)


def places(found: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    return Counter((row["key"], row["n"]) for row in found)


def every_place(count: int = COUNT, keys: int = KEYS) -> Counter[tuple[str, int]]:
    """What ``numbered`` makes of the load, one record after the other."""
    return Counter((f"k{seq % keys}", seq // keys + 1) for seq in range(count))


def exact(place: Path, pipeline: Any) -> bool:
    """Whether the output is what a sequential run makes of the load."""
    found = rows(place)
    if pipeline is untouched:
        return sorted(row["seq"] for row in found) == list(range(COUNT))
    if pipeline is totals:
        last = {row["key"]: row["count"] for row in found}
        return last == {f"k{i}": COUNT // KEYS for i in range(KEYS)}
    return places(found) == every_place()


PIPELINES = [untouched, counting(), totals]
NAMES = ["stateless", "keyed", "aggregation"]


# --- a checkpoint that went back -------------------------------------------------------------


@pytest.mark.parametrize("pipeline", PIPELINES, ids=NAMES)
def test_a_restored_checkpoint_is_refused_and_goes_on_exactly_when_asked_to(
    spark: SparkSession, tmp_path: Path, pipeline: Any
) -> None:
    run_to_batch(spark, tmp_path, pipeline, 1)
    shutil.copytree(tmp_path / "flow", tmp_path / "copy")
    run_to_batch(spark, tmp_path, pipeline, BatchLog(tmp_path / "flow/checkpoint").committed + 2)
    before = [batch.name for batch in batches(tmp_path)]
    shutil.rmtree(tmp_path / "flow")
    (tmp_path / "copy").rename(tmp_path / "flow")
    older = r"the checkpoint is older than the output.*--after-restore"
    with pytest.raises(InputError, match=older):
        flow_at(tmp_path, pipeline).start(spark)
    assert [batch.name for batch in batches(tmp_path)] == before
    report = run_to_end(spark, tmp_path, pipeline, after_restore=True)
    assert any("unknown to the checkpoint, set aside" in note for note in report.data["notes"])
    assert exact(tmp_path, pipeline)


@pytest.mark.parametrize("lost", [("offsets",), ("commits",), ("offsets", "commits")], ids=str)
@pytest.mark.parametrize("pipeline", PIPELINES, ids=NAMES)
def test_last_entries_of_the_log_that_a_power_cut_took_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, pipeline: Any, lost: tuple[str, ...]
) -> None:
    run_to_batch(spark, tmp_path, pipeline, 2)
    log = BatchLog(tmp_path / "flow/checkpoint")
    last = str(log.committed)
    for name in lost:
        (log.directory / name / last).unlink()
        (log.directory / name / f".{last}.crc").unlink(missing_ok=True)
    if lost != ("commits",):  # that batch is known still, and is the same when it comes again
        with pytest.raises(InputError, match="--after-restore"):
            flow_at(tmp_path, pipeline).start(spark)
    run_to_end(spark, tmp_path, pipeline, after_restore=lost != ("commits",))
    assert exact(tmp_path, pipeline)


def test_an_output_that_went_back_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    run_to_batch(spark, tmp_path, untouched, 2)
    shutil.rmtree(batches(tmp_path)[-1])
    with pytest.raises(InputError, match=r"lacks batches .* which the checkpoint has committed"):
        flow_at(tmp_path, untouched).start(spark)


def test_two_flows_with_two_checkpoints_cannot_share_an_output(
    spark: SparkSession, tmp_path: Path
) -> None:
    never = even_trace(1, 1)
    idle = observed(
        untouched,
        sinks.parquet(tmp_path / "out"),
        source=replay(never),
        checkpoint=tmp_path / "idle",
    )
    first = idle.start(spark)
    try:
        with pytest.raises(EnvironmentUnfit, match=r"The output .* is in use by process"):
            flow_at(tmp_path, untouched).start(spark)
    finally:
        first.stop()


class Killed:
    """A sink whose driver dies at a point of its first batch of an id."""

    def __init__(self, sink: sinks.Parquet, point: str, batch: int) -> None:
        self._sink, self._point, self._batch = sink, point, batch
        self._armed = True

    def _die(self, point: str, batch: int) -> None:
        if self._armed and (point, batch) == (self._point, self._batch):
            self._armed = False
            raise OSError("killed")

    def prepare(self, spark: SparkSession, identity: str) -> None:
        self._sink.prepare(spark, identity)

    def follow(self, log: BatchLog, **how: Any) -> tuple[str, ...]:
        return self._sink.follow(log, **how)

    def holds(self, batch_id: int) -> bool:
        return self._sink.holds(batch_id)

    def release(self) -> None:
        self._sink.release()

    def write(self, frame: DataFrame, batch_id: int) -> sinks.Publish:
        self._die("before compute", batch_id)
        publish = self._sink.write(frame, batch_id)
        self._die("before publish", batch_id)

        def act() -> None:
            publish()
            self._die("before commit", batch_id)

        return act


@pytest.mark.parametrize("point", ["before compute", "before publish", "before commit"])
@pytest.mark.parametrize("pipeline", PIPELINES, ids=NAMES)
def test_the_first_restart_works_after_a_crash_at_any_point_of_a_batch(
    spark: SparkSession, tmp_path: Path, pipeline: Any, point: str
) -> None:
    flow = flow_at(tmp_path, pipeline, Killed(sinks.parquet(tmp_path / "out"), point, 2))
    first = flow.start(spark)
    assert first.wait(60)
    with pytest.raises(FlowFailed, match="OSError: killed"):
        first.stop()
    run_to_end(spark, tmp_path, pipeline)
    assert exact(tmp_path, pipeline)


# --- a flow that changed ---------------------------------------------------------------------


def cast_to(kind: str) -> Callable[[DataFrame], DataFrame]:
    def pipeline(records: DataFrame) -> DataFrame:
        numbers = records.selectExpr(f"cast(seq % {KEYS} as {kind}) as key", "seq")
        return numbers.transform(
            keyed_step("count", numbered, "key string, seq bigint, n bigint", key="key")
        )

    return pipeline


def test_a_key_that_became_wider_keeps_its_state(spark: SparkSession, tmp_path: Path) -> None:
    run_to_batch(spark, tmp_path, cast_to("int"), 2)
    report = run_to_end(spark, tmp_path, cast_to("bigint"))
    wanted = Counter((key.removeprefix("k"), n) for key, n in every_place().elements())
    assert places(rows(tmp_path)) == wanted
    assert any("spread anew, since its key has another type" in n for n in report.data["notes"])


def test_a_key_of_another_type_or_column_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    run_to_batch(spark, tmp_path, cast_to("int"), 0)
    with pytest.raises(InputError, match=r"is of type string.* int: cast it to int before the st"):
        flow_at(tmp_path, cast_to("string")).start(spark)
    other = counting(key="seq")
    with pytest.raises(InputError, match="keyed by 'seq', and its state in the checkpoint by 'key"):
        flow_at(tmp_path, other).start(spark)


def totals_of(kind: str) -> Callable[[DataFrame], DataFrame]:
    return lambda records: (
        records.selectExpr(f"cast(seq % {KEYS} as {kind}) as key").groupBy("key").count()
    )


def test_another_type_in_an_aggregation_of_sparks_own_is_said_with_what_to_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    run_to_batch(spark, tmp_path, totals_of("int"), 0)
    before = rows(tmp_path)
    run = flow_at(tmp_path, totals_of("string")).start(spark)
    assert run.wait(60)
    with pytest.raises(FlowFailed, match="restore the types of its keys and values"):
        run.stop()
    assert rows(tmp_path) == before


def test_a_renamed_step_is_refused_until_it_says_so(spark: SparkSession, tmp_path: Path) -> None:
    run_to_batch(spark, tmp_path, counting("counts"), 2)
    with pytest.raises(InputError, match=r"formerly='counts'"):
        flow_at(tmp_path, counting("count")).start(spark)
    run_to_end(spark, tmp_path, counting("count", formerly="counts"))
    assert places(rows(tmp_path)) == every_place()
    assert not (tmp_path / "flow/state/counts").exists()


def test_a_step_that_is_new_begins_empty_and_one_that_is_gone_leaves_the_others_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    def both(records: DataFrame) -> DataFrame:
        again = keyed_step("again", numbered, COUNTED, key="key", scale=(2, 2))
        return counting()(records).transform(again)

    run_to_batch(spark, tmp_path, counting(), 1)
    before = rows(tmp_path)
    assert places(before) < every_place()
    log = BatchLog(tmp_path / "flow/checkpoint")
    run_to_batch(spark, tmp_path, both, log.committed + 2)
    fresh = Counter(places(rows(tmp_path)))
    fresh.subtract(places(before))
    per_key = Counter(key for key, _ in (+fresh).elements())
    assert +fresh == Counter((key, n) for key, most in per_key.items() for n in range(1, most + 1))
    middle = len(rows(tmp_path))
    report = run_to_end(spark, tmp_path, counting())
    assert any("no longer has, was put aside" in note for note in report.data["notes"])
    assert places(rows(tmp_path)[middle:]) == every_place() - every_place(middle)
    assert not (tmp_path / "flow/state/again").exists()


def test_state_that_is_gone_while_the_log_is_there_is_said_to_be_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    run_to_batch(spark, tmp_path, counting(), 1)
    shutil.rmtree(tmp_path / "flow/state")
    with pytest.raises(InputError, match="has lost the state of step 'count'"):
        flow_at(tmp_path, counting()).start(spark)


# --- a checkpoint of an earlier Tailrace -----------------------------------------------------


def november(place: Path, **how: Any) -> Flow:
    """The flow that wrote the checkpoint of November 2026."""
    shutil.copytree(NOVEMBER, place, dirs_exist_ok=True)
    source = replay(even_trace(240, 200, keys=3), most_records=30)
    step = {"key": "key", "scale": (2, 2), **how}

    def pipeline(records: DataFrame) -> DataFrame:
        return records.transform(
            keyed_step("count", numbered_first, "seq bigint, key string, n bigint", **step)
        )

    out = sinks.parquet(place / "out")
    return observed(pipeline, out, source=source, checkpoint=place / "checkpoint")


def numbered_first(key: Any, given: list[Any], state: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    for _, seq, n in numbered(key, given, state):
        yield seq, key, n


def test_a_checkpoint_of_november_2026_goes_on_exactly(spark: SparkSession, tmp_path: Path) -> None:
    flow = november(tmp_path)
    assert 0 < len(rows(tmp_path)) < 240
    run_until(spark, flow, lambda: len(rows(tmp_path)) >= 240)
    assert places(rows(tmp_path)) == every_place(240, 3)
    assert (tmp_path / "checkpoint/tailrace.json").exists()


def test_a_checkpoint_of_november_2026_tells_a_key_of_another_type_by_where_its_keys_lie(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = november(tmp_path, key=("key", "seq"))
    with pytest.raises(InputError, match="is not partitioned by keys of type string, bigint"):
        flow.start(spark)
