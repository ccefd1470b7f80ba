"""Kafka as the source and as the sink of a flow, through Spark's own connector.

The connector is not part of PySpark; ``connector.py`` finds it, and a session gets it when it is
built. A wrong address or topic is reported before a query starts: Spark itself would report it a
minute later, and at length.
"""

from __future__ import annotations

import re
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from tailrace.errors import EnvironmentUnfit, InputError
from tailrace.masking import masked
from tailrace.spark.sources import Opened
from tailrace.spark.sources.connector import FORMAT, require_connector

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from tailrace.spark.sinks import Publish

CONNECT_S = 3.0
"""How long a server may take to accept a connection."""

ANSWER_S = 5.0
"""How long a server may take to answer the first request."""

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
"""Options that the arguments of a source or a sink set, in lower case as Spark compares them."""

_PROTOCOL = "kafka.security.protocol"
_PRODUCER = "org.apache.kafka.clients.producer.KafkaProducer"
_API_VERSIONS = 18
_NUMBER = 7261
"""An arbitrary correlation id, which Kafka repeats in its answer."""

_PROMPT = {"kafka.linger.ms": "0"}
"""Send a record at once; records are batched only while the previous request is under way. That
was the default before Kafka 4, whose clients wait 5 ms for more records."""


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """A topic, first read from its end (or its beginning), later from the checkpoint.

    The columns are ``key`` and ``value`` (as text), ``topic``, ``partition``, ``offset`` and
    ``timestamp``. A record counts as arrived at its timestamp: when it was sent, or, for a topic
    with ``message.timestamp.type=LogAppendTime``, when the broker received it. ``options`` are
    further options of the connector, such as ``kafka.security.protocol``; they are never shown,
    since some are passwords.
    """

    servers: str
    topic: str
    starting: str = "latest"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        _check(self.servers, self.topic, self.options)
        if self.starting not in _STARTING:
            raise InputError(
                f"A topic cannot be read starting at '{self.starting}': write 'latest' or "
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
        require_reachable(self.servers, self.options)
        partitions = _partitions(spark, self.servers, self.topic, self.options)
        reader = spark.readStream.format(FORMAT).options(**self.reader_options())
        return Opened(reader.load().selectExpr(*COLUMNS), "timestamp", partitions or None)


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """A topic that results are sent to: the column ``value`` and, if there is one, ``key``.

    Every record is sent at least once. A batch that is repeated after a crash is sent again: Kafka
    has no place where Spark could store the number of the batch. Readers of the topic recognise a
    repeated record by its contents. A missing topic is created if the broker creates topics on
    first use, and otherwise refused at the start.
    """

    servers: str
    topic: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be written to."""
        _check(self.servers, self.topic, self.options)

    def prepare(self, spark: SparkSession, identity: str) -> None:  # noqa: ARG002 - Sink's signature
        """Make sure that Kafka can be reached and that the topic exists."""
        require_connector(spark)
        require_reachable(self.servers, self.options)
        try:
            _partitions(spark, self.servers, self.topic, self.options)
        except _Missing:
            _require_created(spark, self)

    def check(self, schema: StructType) -> None:
        """Refuse columns that Kafka cannot take; known as soon as the flow is traced."""
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
        """A writer for the stream itself, which real-time mode needs."""
        self.check(frame.schema)
        return frame.writeStream.format(FORMAT).options(**self.stream_options())


def source(
    servers: str,
    topic: str,
    *,
    starting: str = "latest",
    options: Mapping[str, str] | None = None,
) -> KafkaSource:
    """A source that reads a topic, starting at its ``latest`` or its ``earliest`` record."""
    return KafkaSource(servers, topic, starting, options or {})


def sink(servers: str, topic: str, *, options: Mapping[str, str] | None = None) -> KafkaSink:
    """A sink that sends the columns ``value`` and ``key`` to a topic, at least once."""
    return KafkaSink(servers, topic, options or {})


def uses_kafka(*parts: object) -> bool:
    """Whether any of these sources and sinks is Kafka, so that a session needs the connector."""
    return any(isinstance(part, KafkaSource | KafkaSink) for part in parts)


def require_reachable(servers: str, options: Mapping[str, str] | None = None) -> None:
    """Refuse an address where no Kafka answers; one server of several is enough."""
    protocol = {name.lower(): value for name, value in (options or {}).items()}.get(_PROTOCOL, "")
    refusals = []
    for host, port in _addresses(servers):
        try:
            with socket.create_connection((host, port), timeout=CONNECT_S) as connection:
                if "SSL" in protocol.upper() or _answers(connection):
                    return
            refusals.append(f"{host}:{port}: the server there does not answer like Kafka")
        except OSError as error:
            refusals.append(f"{host}:{port}: {error.strerror or error}")
    raise EnvironmentUnfit(
        f"Kafka cannot be reached ({'; '.join(refusals)}): start it, or fix the address."
    )


def _answers(connection: socket.socket) -> bool:
    """Ask which requests the other side supports, which Kafka answers before anything else."""
    connection.settimeout(ANSWER_S)
    try:
        connection.sendall(struct.pack(">ihhih", 10, _API_VERSIONS, 0, _NUMBER, -1))
        with connection.makefile("rb") as answer:
            return answer.read(8)[4:] == struct.pack(">i", _NUMBER)
    except OSError:
        return False


def _partitions(spark: SparkSession, servers: str, topic: str, options: Mapping[str, str]) -> int:
    """Ask for the partitions of a topic, through Spark and so with all options of a query."""
    quick = {
        "kafka.default.api.timeout.ms": str(ASK_MS),
        "kafka.request.timeout.ms": str(ASK_MS // 2),
        "fetchOffset.numRetries": "1",
    }
    place = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    batch = spark.read.format(FORMAT).options(**{**quick, **options, **place}).load()
    try:
        return int(batch._jdf.queryExecution().toRdd().getNumPartitions())
    except Py4JJavaError as error:
        raise _refusal(servers, topic, str(error.java_exception)) from error


class _Missing(EnvironmentUnfit):
    """There is no such topic."""


def _refusal(servers: str, topic: str, said: str) -> EnvironmentUnfit:
    """Why Kafka does not give access to a topic, by the exception that its client names."""
    if "UnknownTopicOrPartition" in said:
        return _Missing(
            f"Kafka at {servers} has no topic '{topic}': create the topic, or fix its name."
        )
    if "AuthorizationException" in said:
        return EnvironmentUnfit(
            f"Kafka at {servers} denies this user the topic '{topic}': ask for access to it, or "
            "fix the credentials in the options."
        )
    if "AuthenticationException" in said:
        return EnvironmentUnfit(
            f"Kafka at {servers} refuses the credentials ({_deepest(said)}): fix them in the "
            "options."
        )
    return EnvironmentUnfit(
        f"Kafka at {servers} cannot read the topic '{topic}' ({_deepest(said)}): fix that, or "
        "the options."
    )


def _deepest(said: str) -> str:
    first = said.strip().partition("\n")[0]
    return masked(re.sub(r"^(?:[\w.$]+(?:Exception|Error): )+", "", first).strip().rstrip("."))


def _require_created(spark: SparkSession, sink: KafkaSink) -> None:
    """Have the broker create the topic, or refuse if it does not create topics on first use.

    A producer asks for a topic in the way that creates it. Asking here takes seconds; the first
    batch would ask for a minute (``kafka.max.block.ms``) and fail with pages of errors.
    """
    settings = {**sink.stream_options(), "kafka.max.block.ms": str(ASK_MS // 2)}
    producer = _producer(spark, settings)
    try:
        producer.partitionsFor(sink.topic)
    except Py4JJavaError as error:
        said = str(error.java_exception)
        if "TimeoutException" not in said:
            raise _refusal(sink.servers, sink.topic, said) from error
        raise EnvironmentUnfit(
            f"Kafka at {sink.servers} has no topic '{sink.topic}' and does not create it: create "
            "the topic, or fix its name."
        ) from error
    finally:
        producer.close()


def _producer(spark: SparkSession, options: Mapping[str, str]) -> Any:
    """A producer of Kafka's Java client, wherever the session loads it from."""
    context: Any = spark.sparkContext
    jvm = context._jvm
    settings = {
        name.removeprefix("kafka."): value
        for name, value in options.items()
        if name.startswith("kafka.")
    }
    serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
    settings |= {"key.serializer": serializer, "value.serializer": serializer}
    kind = jvm.org.apache.spark.util.Utils.classForName(_PRODUCER, True, False)
    types = context._gateway.new_array(jvm.java.lang.Class, 1)
    types[0] = jvm.java.lang.Class.forName("java.util.Map")
    values = context._gateway.new_array(jvm.java.lang.Object, 1)
    values[0] = jvm.java.util.HashMap(settings)
    return kind.getConstructor(types).newInstance(values)


def _check(servers: str, topic: str, options: Mapping[str, str]) -> None:
    _addresses(servers)
    if not re.fullmatch(r"[\w.-]{1,249}", topic, re.ASCII) or topic in {".", ".."}:
        raise InputError(
            f"'{topic}' is not the name of a Kafka topic: use letters, digits, '.', '_' and '-'."
        )
    for name in options:
        if name.lower() in _OURS:
            raise InputError(f"The option '{name}' is already set by an argument: leave it out.")


def _addresses(servers: str) -> list[tuple[str, int]]:
    found = []
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 2**16:
            raise InputError(
                f"'{server.strip()}' is not the address of a Kafka server: write host:port, or "
                "several separated by commas."
            )
        found.append((host.strip("[]"), int(port)))
    return found


def _sendable(name: str, kind: str) -> bool:
    return name in {"key", "value"} and kind in _SENDABLE
