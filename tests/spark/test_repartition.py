"""Other partitions for state, between two runs on Spark."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from tailrace.errors import EnvironmentUnfit, InputError
from tailrace.spark import sinks
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.spark.pipeline.step import keyed_step
from tailrace.spark.repartition import (
    PARTITIONS,
    PROVIDER,
    ROCKSDB,
    SPARKS,
    repartition,
)
from tailrace.spark.sources import replay
from tailrace.state.partitions import partitions_of
from tests.spark.collected import Files, plan_on
from tests.spark.flows import Running, observed
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.spark.flow import Flow

pytestmark = pytest.mark.spark
by_value(__name__)

COUNT, KEYS = 1_200, 11


def numbered(_key: Any, rows: list[Any], state: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    """Every record with its place among those of its key: wrong if any came twice or not."""
    for row in rows:
        state["n"] = state.get("n", 0) + 1
        yield row.key, state["n"]


def counting(records: DataFrame) -> DataFrame:
    return records.transform(keyed_step("count", numbered, "key string, n bigint", key="key"))


def flow_of(pipeline: Any, sink: object, checkpoint: Path | None) -> Flow:
    source = replay(even_trace(COUNT, 400, keys=KEYS), partitions=1)
    return observed(pipeline, sink, source=source, checkpoint=checkpoint)


def test_counts_go_on_over_other_partitions(spark: SparkSession, tmp_path: Path) -> None:
    files, checkpoint = Files(tmp_path / "out"), tmp_path / "flow"
    flow = flow_of(counting, files.sink, checkpoint)
    turns = (("microbatch", 2, 200), ("realtime", 3, 500), ("microbatch", 5, COUNT))
    for backend, partitions, until_rows in turns:
        if files.rows():
            assert set(repartition(flow, spark, partitions)) == {"count"}
            assert repartition(flow, spark, partitions) == {}  # it has them already
        with Running(spark, flow, plan=plan_on(backend, None, {"count": partitions})) as running:
            until(files.hold(until_rows), "results of this run")
            running.run.stop()
        assert partitions_of(checkpoint / "state" / "count") == partitions
    expected = Counter((f"k{seq % KEYS}", seq // KEYS + 1) for seq in range(COUNT))
    assert files.counted() == expected


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PROVIDER, ROCKSDB)
    yield
    spark.conf.unset(PROVIDER)


def both(records: DataFrame) -> DataFrame:
    """State of Spark's own, then of a keyed step: how often each sum was seen to change."""
    sums = records.groupBy("key").agg(sf.count("*").alias("total"))
    return sums.transform(keyed_step("last", latest, "key string, most bigint", key="key"))


def latest(key: Any, rows: list[Any], state: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        assert row.total >= state.get("most", 0)
        state["most"] = row.total
        yield key, row.total


@pytest.mark.usefixtures("rocksdb")
@pytest.mark.parametrize(
    ("partitions", "before"),
    [(3, {"last": 2, SPARKS: 4}), (2, {SPARKS: 4})],
    ids=["all-state", "sparks-alone"],
)
def test_the_state_of_sparks_operators_goes_along(
    spark: SparkSession, tmp_path: Path, partitions: int, before: dict[str, int]
) -> None:
    memory = sinks.memory()
    flow = flow_of(both, memory, tmp_path / "flow")
    run_both(spark, flow, memory, 2, until_records=100)
    assert repartition(flow, spark, partitions) == before
    run_both(spark, flow, memory, partitions, until_records=COUNT)
    assert ends(memory) == Counter(f"k{seq % KEYS}" for seq in range(COUNT))


def run_both(
    spark: SparkSession, flow: Flow, memory: sinks.Memory, partitions: int, until_records: int
) -> None:
    """Run the flow with both kinds of state for a while, its step on this many partitions."""
    plan = plan_on("microbatch", None, {"last": partitions})
    with Running(spark, flow, plan=plan) as running:
        until(counted(memory, until_records), "sums")
        running.run.stop()


@pytest.mark.usefixtures("rocksdb")
def test_an_interrupted_spreading_is_finished_before_anything_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    memory = sinks.memory()
    flow = flow_of(both, memory, tmp_path / "flow")
    run_both(spark, flow, memory, 2, until_records=100)
    begin_to_spread(tmp_path / "flow" / "checkpoint", 3)
    for other in (4, 5):  # also what it has so far: Spark would not start either
        with pytest.raises(InputError, match="interrupted: spread it over 3 first"):
            repartition(flow, spark, other)
    assert repartition(flow, spark, 3) == {"last": 2, SPARKS: 4}
    run_both(spark, flow, memory, 3, until_records=COUNT)
    assert ends(memory) == Counter(f"k{seq % KEYS}" for seq in range(COUNT))


def begin_to_spread(log: Path, partitions: int) -> None:
    """Leave what Spark leaves when it is killed right after it started to spread its state."""
    last = BatchLog(log).committed
    version, metadata, *offsets = (log / "offsets" / str(last)).read_text("utf-8").splitlines()
    settings = json.loads(metadata)
    settings["conf"][PARTITIONS] = str(partitions)
    lines = (version, json.dumps(settings, separators=(",", ":")), *offsets)
    (log / "offsets" / str(last + 1)).write_text("\n".join(lines), "utf-8")


@pytest.mark.usefixtures("rocksdb")
def test_nothing_is_spread_after_a_batch_that_did_not_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    memory = sinks.memory()
    flow = flow_of(both, memory, tmp_path / "flow")
    run_both(spark, flow, memory, 2, until_records=200)
    log = tmp_path / "flow" / "checkpoint"
    last = BatchLog(log).committed
    assert last > 0
    (log / "commits" / str(last)).unlink()
    with pytest.raises(InputError, match=f"middle of batch {last}, .*: start the flow once, stop"):
        repartition(flow, spark, 3)
    assert partitions_of(tmp_path / "flow" / "state" / "last") == 2


def test_the_state_of_a_flow_that_runs_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "flow"
    flow = flow_of(counting, sinks.memory(), checkpoint)
    with Running(spark, flow, plan=plan_on("microbatch", None, {"count": 2})) as running:
        until(lambda: BatchLog(checkpoint / "checkpoint").committed >= 0, "a batch")
        with pytest.raises(
            EnvironmentUnfit, match=r"is in use by process .*: stop what runs there"
        ):
            repartition(flow, spark, 3)
        running.run.stop()
    assert repartition(flow, spark, 3) == {"count": 2}


def counted(memory: sinks.Memory, least: int) -> Callable[[], bool]:
    return lambda: sum(ends(memory).values()) >= least


def ends(memory: sinks.Memory) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in memory.rows():
        found[row["key"]] = max(found[row["key"]], row["most"])
    return found


def test_what_cannot_be_spread_is_said(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no checkpoint"):
        repartition(flow_of(counting, sinks.discard(), None), spark, 2)
    fresh = flow_of(counting, sinks.discard(), tmp_path / "fresh")
    with pytest.raises(InputError, match="committed no batch"):
        repartition(fresh, spark, 2)
    with pytest.raises(InputError, match="over 0 partitions"):
        repartition(fresh, spark, 0)
    memory = sinks.memory()
    plain = flow_of(both, memory, tmp_path / "plain")
    with Running(spark, plain, plan=plan_on("microbatch", None, {"last": 1})) as running:
        until(lambda: bool(memory.batches), "a batch")
        running.run.stop()
    with pytest.raises(InputError, match="not kept in RocksDB"):
        repartition(plain, spark, 3)
    assert partitions_of(tmp_path / "plain" / "state" / "last") == 1
