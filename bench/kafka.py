"""Kafka to Kafka: two Python steps and a keyed count in real-time mode, by Kafka's own timestamps.

A producer sends at a constant rate to a topic whose broker timestamps every record on arrival; the
flow parses it, counts by key and sends the count to another such topic. The latency of a record is
the difference of the two timestamps, which the flow cannot influence. With batches of 5 s it
includes the gaps between them; records that arrived in a gap, or right after one, are recognised by
the pause in the output.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from bench.broker import Broker
from tailrace.errors import EnvironmentUnfit
from tailrace.report.machine import described
from tailrace.spark import kafka
from tailrace.spark.flow import Flow
from tailrace.spark.pipeline.step import keyed_step, step
from tailrace.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.state.state import State

RATE_PER_S = 2_000
KEYS = 100
WARM_UP_S = 12.0
GAP_MS = 20.0
"""At this rate, a longer pause in the output is a gap between two batches."""


def parse(row: Any) -> tuple[str, int]:
    """A record as it was sent."""
    said = json.loads(row.value)
    return said["key"], said["seq"]


def count(key: str, rows: list[Any], state: State) -> Iterator[tuple[str, int, int]]:
    """How often the key has appeared so far, for every record."""
    for row in rows:
        state["n"] += 1
        yield key, row.seq, state["n"]


def show(row: Any) -> tuple[str, str]:
    """The count, as it is sent."""
    return row.key, json.dumps({"seq": row.seq, "n": row.n})


def pipeline(records: DataFrame) -> DataFrame:
    """Parse, count by key, show."""
    return (
        records.transform(step("parse", parse, "key string, seq long"))
        .transform(
            keyed_step("count", count, "key string, seq long, n long", key="key", state={"n": 0})
        )
        .transform(step("show", show, "key string, value string"))
    )


def measure(*, quick: bool) -> dict[str, Any]:
    """Run both batch lengths in one session, one after the other."""
    seconds = 20.0 if quick else 60.0
    spark = session("bench-kafka", master="local[4]", kafka=True)
    try:
        with Broker() as broker:
            batches = [_turn(spark, broker, recovery_s, seconds) for recovery_s in (5, 60)]
    finally:
        spark.stop()
    return {"rate_per_s": RATE_PER_S, "batches": batches, "machine": described()}


def _turn(spark: SparkSession, broker: Broker, recovery_s: int, seconds: float) -> dict[str, Any]:
    names = [f"{way}-{recovery_s}" for way in ("in", "out")]
    for name in names:
        broker.create_topic(name, 1, message_timestamp_type="LogAppendTime")
    flow = Flow(
        f"kafka-{recovery_s}",
        kafka.source(broker.servers, names[0], starting="earliest"),
        pipeline,
        kafka.sink(broker.servers, names[1]),
        backend="realtime",
        recovery=f"{recovery_s} s",
        mode="observe",
        warm_up=f"{WARM_UP_S} s",
    )
    run = flow.start(spark)
    try:
        sent = _send(broker.servers, names[0], seconds + WARM_UP_S)
        run.wait(1.0)
    finally:
        report = run.stop()
    came, went = (_stamps(broker.servers, name, sent) for name in names)
    latencies, in_gap = latencies_ms(came, went, WARM_UP_S)
    return {
        "batch_s": recovery_s,
        "sent": sent,
        "received": len(went),
        **_quantiles(latencies),
        "without_gaps": _quantiles(latencies[~in_gap]),
        "records_in_gaps": int(in_gap.sum()),
        "gaps": [i["breakdown_ms"].get("gap", 0.0) for i in report.intervals],
    }


def latencies_ms(
    came: dict[int, int], went: dict[int, int], warm_up_s: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The latency of each record after the warm-up, and whether a gap affected it.

    A gap is a period without output; the records that came in before its end and went out after it
    waited for it.
    """
    known = sorted(seq for seq in came if seq in went)
    arrived = np.array([came[seq] for seq in known], dtype=np.float64)
    left = np.array([went[seq] for seq in known], dtype=np.float64)
    warm = arrived >= arrived[0] + warm_up_s * 1e3 if known else np.zeros(0, dtype=bool)
    arrived, left = arrived[warm], left[warm]
    moments = np.unique(left)
    ends = moments[1:][np.diff(moments) > GAP_MS]
    waited = np.zeros(len(left), dtype=bool)
    for end in ends:
        waited |= (arrived < end) & (left >= end)
    return left - arrived, waited


def _quantiles(latencies: NDArray[np.float64]) -> dict[str, float | int]:
    if not len(latencies):
        return {"records": 0}
    p50, p95, p99 = np.percentile(latencies, [50, 95, 99])
    return {"p50_ms": float(p50), "p95_ms": float(p95), "p99_ms": float(p99),
            "records": len(latencies)}  # fmt: skip


def _send(servers: str, topic: str, seconds: float) -> int:
    """Send at a constant rate; returns the number of records sent."""
    producer = _client("Producer")({"bootstrap.servers": servers, "linger.ms": 0})
    pause, began = threading.Event(), time.monotonic()
    total = int(RATE_PER_S * seconds)
    for seq in range(total):
        key = f"k{seq % KEYS}"
        producer.produce(topic, json.dumps({"seq": seq, "key": key}), key=key)
        producer.poll(0)
        early = began + seq / RATE_PER_S - time.monotonic()
        if early > 0.0005:
            pause.wait(early)
    producer.flush(60)
    return total


def _stamps(servers: str, topic: str, expected: int) -> dict[int, int]:
    """The time at which each record of a topic first reached the broker, in milliseconds."""
    consumer = _client("Consumer")(
        {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: dict[int, int] = {}
    deadline = time.monotonic() + 30
    while len(found) < expected and time.monotonic() < deadline:
        for message in consumer.consume(5_000, timeout=1.0):
            if message.error() is None:
                found.setdefault(json.loads(message.value())["seq"], message.timestamp()[1])
    consumer.close()
    return found


def _client(name: str) -> Any:
    try:
        import confluent_kafka  # noqa: PLC0415 - only this benchmark needs it
    except ImportError as error:
        raise EnvironmentUnfit(
            "This benchmark sends and reads with confluent-kafka: install it (pip install "
            "confluent-kafka)."
        ) from error
    return getattr(confluent_kafka, name)


def table(result: dict[str, Any]) -> Table:
    """The result as a table."""
    shown = Table(title=f"Kafka to Kafka at {RATE_PER_S} records/s, timestamp to timestamp, ms")
    for column in ("batches of", "p50", "p99", "p99 without gaps", "records"):
        shown.add_column(column, justify="right")
    for row in result["batches"]:
        shown.add_row(
            f"{row['batch_s']} s",
            f"{row['p50_ms']:g}",
            f"{row['p99_ms']:g}",
            f"{row['without_gaps']['p99_ms']:g}",
            str(row["records"]),
        )
    return shown
