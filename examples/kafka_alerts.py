"""Alerts from a Kafka topic to a Kafka topic within 50 ms. The guide to it is docs/kafka.md.

    tailrace run examples/kafka_alerts.py:flow --master "local[4]" --seconds 60

Readings of machines are joined with the limit of their kind; those above it are numbered for each
machine, in the order in which they came.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

import tailrace as tr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

SERVERS = os.environ.get("KAFKA", "127.0.0.1:9092")
LIMITS = [("boiler", 90.0), ("pump", 60.0)]


def parse(row: Any) -> tuple[str, str, float]:
    """The machine, its kind, and how hot it is."""
    reading = json.loads(row.value)
    return row.key, reading["kind"], reading["degrees"]


def number(machine: str, rows: list[Any], state: Any) -> Iterator[tuple[str, str]]:
    """An alert, with its number among those of the machine."""
    for row in rows:
        state["n"] += 1
        yield machine, json.dumps({"n": state["n"], "degrees": row.degrees, "limit": row.limit})


def pipeline(readings: DataFrame) -> DataFrame:
    """Parse, join with the limits, keep what is above, number it."""
    limits = readings.sparkSession.createDataFrame(LIMITS, "kind string, limit double")
    parsed = readings.transform(
        tr.step("parse", parse, "machine string, kind string, degrees double")
    )
    hot = parsed.join(sf.broadcast(limits), "kind").where("degrees > limit")
    return hot.transform(
        tr.keyed_step("number", number, "key string, value string", key="machine", state={"n": 0})
    )


flow = tr.Flow(
    "alerts",
    source=tr.kafka.source(SERVERS, "readings", starting="earliest"),
    pipeline=pipeline,
    sink=tr.kafka.sink(SERVERS, "alerts"),
    backend="realtime",
    checkpoint="out/alerts",
)
flow.keep(p99="50 ms")
