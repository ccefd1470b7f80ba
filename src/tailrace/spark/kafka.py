"""Kafka as the source and as the sink of a flow, by Spark's own connector.

The connector is not part of PySpark; a session gets it when it is built (``spark.jars.packages``).
What is wrong with it, with the address or with the topic is said before a query starts: Spark
itself would say so a minute later, and at length.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException

from tailrace.errors import EnvironmentUnfit, InputError
from tailrace.spark.sources import Opened

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from tailrace.spark.sinks import Publish

FORMAT = "kafka"
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
CONNECT_S = 3.0
"""How long a server may take to accept a connection."""

ASK_MS = 10_000
"""How long Kafka may take to say where a topic ends, before a query starts."""

COLUMNS = (
    "CAST(key AS STRING) AS key",
    "CAST(value AS STRING) AS value",
    "topic",
    "partition",
    "offset",
    "timestamp",
)
_STARTING = ("latest", "earliest")
_SENDABLE = ("string", "binary")
_OURS = frozenset(
    {"kafka.bootstrap.servers", "subscribe", "subscribepattern", "assign", "topic"}
    | {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}
)
"""Options that the arguments of a source or a sink stand for, as Spark compares them."""

_PROMPT = {"kafka.linger.ms": "0"}
"""A record is sent when it is there, and others only join it while the one before is under way.
That has been the default until Kafka 4, whose clients wait 5 ms for company."""


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """A topic, read from its end (or its beginning) on, and afterwards from the checkpoint.

    The columns are ``key`` and ``value`` (as text), ``topic``, ``partition``, ``offset`` and
    ``timestamp``. A record arrived at its timestamp: when it was sent, or, for a topic with
    ``message.timestamp.type=LogAppendTime``, when the broker had it. ``options`` are further ones
    of the connector's, such as ``kafka.security.protocol``.
    """

    servers: str
    topic: str
    starting: str = "latest"
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        _check(self.servers, self.topic, self.options)
        if self.starting not in _STARTING:
            raise InputError(
                f"A topic cannot be read from its '{self.starting}' on: write 'latest' or "
                "'earliest'."
            )

    def reader_options(self) -> dict[str, str]:
        """The options of ``readStream.format("kafka")``, for both backends."""
        return {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "startingOffsets": self.starting,
            **self.options,
        }

    def open(self, spark: SparkSession, directory: Path) -> Opened:  # noqa: ARG002 - as a source's
        """Make sure that the topic is there, and read from it."""
        require_connector(spark)
        require_reachable(self.servers)
        partitions = _partitions(spark, self)
        reader = spark.readStream.format(FORMAT).options(**self.reader_options())
        return Opened(reader.load().selectExpr(*COLUMNS), "timestamp", partitions or None)


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """A topic that results are sent to: the column ``value`` and, if there is one, ``key``.

    Every record is sent at least once. A batch that is done again after a crash is sent again:
    Kafka has no place where Spark could leave the number of the batch. Whoever reads the topic
    tells a repeated record by what is in it. A topic that is missing may be one that the broker
    creates when it is first sent to, so it is no error at the start; where the broker does not,
    the first batch fails after ``kafka.max.block.ms`` (60 s).
    """

    servers: str
    topic: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be written to."""
        _check(self.servers, self.topic, self.options)

    def prepare(self, spark: SparkSession, identity: str) -> None:  # noqa: ARG002 - Sink's signature
        """Make sure that there is a Kafka to send to."""
        require_connector(spark)
        require_reachable(self.servers)

    def check(self, schema: StructType) -> None:
        """Refuse records that Kafka has no place for; known as soon as the flow is traced."""
        kinds = {column.name: column.dataType.simpleString() for column in schema}
        odd = [f"{name} ({kind})" for name, kind in kinds.items() if not _sendable(name, kind)]
        if odd or "value" not in kinds:
            wrong = "has no column 'value'" if not odd else f"also has {', '.join(odd)}"
            raise InputError(
                f"The output for the Kafka topic '{self.topic}' {wrong}: end the pipeline with "
                "select(...) of 'value' and, if wanted, 'key', both string or binary."
            )

    def write(self, frame: DataFrame, batch_id: int) -> Publish:  # noqa: ARG002 - Sink's signature
        """Compute the batch and send it; a record is visible as soon as it is sent."""
        self.check(frame.schema)
        frame.write.format(FORMAT).options(**self.stream_options()).save()
        return lambda: None

    def stream_options(self) -> dict[str, str]:
        """The options of ``writeStream.format("kafka")``, for real-time mode."""
        servers = {"kafka.bootstrap.servers": self.servers, "topic": self.topic}
        return {**_PROMPT, **servers, **self.options}

    def attach(self, frame: DataFrame) -> DataStreamWriter:
        """A writer of the stream itself, which is what real-time mode needs."""
        self.check(frame.schema)
        return frame.writeStream.format(FORMAT).options(**self.stream_options())


def source(
    servers: str,
    topic: str,
    *,
    starting: str = "latest",
    options: Mapping[str, str] | None = None,
) -> KafkaSource:
    """A source that reads a topic, from its ``latest`` or its ``earliest`` record on."""
    return KafkaSource(servers, topic, starting, options or {})


def sink(servers: str, topic: str, *, options: Mapping[str, str] | None = None) -> KafkaSink:
    """A sink that sends the columns ``value`` and ``key`` to a topic, at least once."""
    return KafkaSink(servers, topic, options or {})


def require_connector(spark: SparkSession) -> None:
    """Refuse a session that has not got Spark's Kafka connector."""
    try:
        spark.read.format(FORMAT).options(subscribe="any", **_nowhere()).load()
    except (AnalysisException, Py4JJavaError) as error:
        raise EnvironmentUnfit(
            "This session has no Kafka connector: build it with spark.jars.packages="
            f"{CONNECTOR}:{spark.version}, or the newest earlier version that can be had."
        ) from error


def require_reachable(servers: str) -> None:
    """Refuse an address where nobody listens; one server of several is enough."""
    refusals = []
    for host, port in _addresses(servers):
        try:
            socket.create_connection((host, port), timeout=CONNECT_S).close()
        except OSError as error:
            refusals.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return
    raise EnvironmentUnfit(
        f"Kafka cannot be reached ({'; '.join(refusals)}): start it, or mend the address."
    )


def _partitions(spark: SparkSession, wanted: KafkaSource) -> int:
    """Ask for the partitions of a topic, through Spark and so with all that a query asks with."""
    quick = {
        "kafka.default.api.timeout.ms": str(ASK_MS),
        "kafka.request.timeout.ms": str(ASK_MS // 2),
        "fetchOffset.numRetries": "1",
    }
    options = {**quick, **wanted.reader_options(), "startingOffsets": "earliest"}
    batch = spark.read.format(FORMAT).options(**options).load()
    try:
        return int(batch._jdf.queryExecution().toRdd().getNumPartitions())
    except Py4JJavaError as error:
        reason = _deepest(str(error.java_exception))
        raise EnvironmentUnfit(
            f"Kafka at {wanted.servers} does not give the topic '{wanted.topic}' ({reason}): "
            "create the topic, or mend its name or the address."
        ) from error


def _deepest(said: str) -> str:
    return re.sub(r"^(?:[\w.$]+(?:Exception|Error): )+", "", said).strip().rstrip(".")


def _nowhere() -> dict[str, str]:
    """Loading a topic touches no server until it is read; the connector only wants an address."""
    return {"kafka.bootstrap.servers": "127.0.0.1:9"}


def _check(servers: str, topic: str, options: Mapping[str, str]) -> None:
    _addresses(servers)
    if not re.fullmatch(r"[\w.-]{1,249}", topic, re.ASCII) or topic in {".", ".."}:
        raise InputError(
            f"'{topic}' is not the name of a Kafka topic: use letters, digits, '.', '_' and '-'."
        )
    for name in options:
        if name.lower() in _OURS:
            raise InputError(
                f"The option '{name}' says what the arguments say already: leave it out."
            )


def _addresses(servers: str) -> list[tuple[str, int]]:
    found = []
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 2**16:
            raise InputError(
                f"'{server.strip()}' is not the address of a Kafka server: write host:port, and "
                "commas between several."
            )
        found.append((host.strip("[]"), int(port)))
    return found


def _sendable(name: str, kind: str) -> bool:
    return name in {"key", "value"} and kind in _SENDABLE
