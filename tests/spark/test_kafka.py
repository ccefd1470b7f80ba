from __future__ import annotations

import importlib
import socket
import threading
from collections import Counter
from contextlib import contextmanager
from itertools import count, product
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructType

from bench import broker as brokers
from tailrace.errors import EnvironmentUnfit, InputError
from tailrace.spark import kafka, sinks
from tailrace.spark.flow import Flow
from tailrace.spark.pipeline.step import step
from tailrace.spark.session import session
from tailrace.spark.sources import connector, most_records, replay
from tests.spark.flows import Running, observed
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from bench.broker import Broker

needs_spark = pytest.mark.spark
by_value(__name__)

admin: Any = importlib.import_module("confluent_kafka.admin")  # its types leave most of it out
SOMEWHERE = "127.0.0.1:9092"
RECORDS = 400


@pytest.fixture(autouse=True)
def _connected(request: pytest.FixtureRequest) -> None:
    """Skip tests that need the connector if it is not available."""
    if "spark" in request.fixturenames:
        try:
            connector.require_connector(request.getfixturevalue("spark"))
        except EnvironmentUnfit as unfit:
            pytest.skip(str(unfit))


_numbers = count()


@pytest.fixture
def topics(broker: Broker) -> tuple[str, str]:
    """A topic to read from and one to write to, for one test, two partitions each."""
    number = next(_numbers)
    names = f"from-{number}", f"to-{number}"
    for name in names:
        broker.create_topic(name, 2, message_timestamp_type="LogAppendTime")
    return names


def send(broker: Broker, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 0})
    for number in numbers:
        producer.produce(topic, str(number), key=f"k{number % 7}")
        producer.poll(0)
    assert producer.flush(60) == 0


class Topic:
    """What is in a topic, read as it grows."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.held: Counter[tuple[str, str]] = Counter()
        self._consumer = Consumer(
            {"bootstrap.servers": broker.servers, "group.id": name, "enable.auto.commit": False}
        )
        self._consumer.assign([TopicPartition(name, part, 0) for part in range(2)])

    def __enter__(self) -> Topic:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def holds(self, records: int) -> Callable[[], bool]:
        """Whether this many different records have come."""

        def look() -> bool:
            for message in self._consumer.consume(1000, timeout=0.1):
                key, value = message.key(), message.value()
                if message.error() is None:
                    self.held[(key or b"").decode(), (value or b"").decode()] += 1
            return len(self.held) >= records

        return look


def doubled(numbers: range) -> Counter[tuple[str, str]]:
    return Counter((f"k{n % 7}", str(2 * n)) for n in numbers)


def double(records: DataFrame) -> DataFrame:
    function = step(
        "double", lambda row: (row.key, str(2 * int(row.value))), "key string, value string"
    )
    return records.transform(function)


def natively_doubled(records: DataFrame) -> DataFrame:
    return records.selectExpr("key", "CAST(2 * CAST(value AS BIGINT) AS STRING) AS value")


def opened(spark: SparkSession, broker: Broker, topic: str, path: Path) -> DataFrame:
    return kafka.source(broker.servers, topic, starting="earliest").open(spark, path).frame


@needs_spark
def test_a_flow_carries_every_record_from_topic_to_topic_and_takes_kafkas_time_as_arrival(
    spark: SparkSession, broker: Broker, topics: tuple[str, str], tmp_path: Path
) -> None:
    send(broker, topics[0], range(RECORDS))
    flow = observed(
        double,
        kafka.sink(broker.servers, topics[1]),
        source=lambda session: opened(session, broker, topics[0], tmp_path),
        arrived="timestamp",
    )
    with Topic(broker, topics[1]) as results, Running(spark, flow) as running:
        until(results.holds(RECORDS), "every record came")
        send(broker, topics[0], range(RECORDS, 2 * RECORDS))
        until(results.holds(2 * RECORDS), "the later records came")
        assert results.held == doubled(range(2 * RECORDS))
        until(lambda: sum(m.records for m in running.measures) == 2 * RECORDS, "all were measured")
        assert all(measure.age_ms.mean >= 0 for measure in running.measures)


@needs_spark
def test_a_source_gives_text_and_where_and_when_a_record_came(
    spark: SparkSession, broker: Broker, topics: tuple[str, str], tmp_path: Path
) -> None:
    source = kafka.source(broker.servers, topics[0]).open(spark, tmp_path)
    assert source.arrived == "timestamp"
    assert dict(source.frame.dtypes) == {
        "key": "string",
        "value": "string",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
    }


@needs_spark
def test_what_a_topic_gives_a_batch_at_most_is_known(
    spark: SparkSession, broker: Broker, topics: tuple[str, str], tmp_path: Path
) -> None:
    limit = {"maxOffsetsPerTrigger": "500"}
    limited = kafka.source(broker.servers, topics[0], options=limit).open(spark, tmp_path)
    assert most_records(limited.frame) == 500
    assert most_records(opened(spark, broker, topics[0], tmp_path)) is None


@needs_spark
def test_real_time_mode_carries_every_record_once(
    spark: SparkSession, broker: Broker, topics: tuple[str, str], tmp_path: Path
) -> None:
    with in_real_time(spark, broker, topics, tmp_path), Topic(broker, topics[1]) as results:
        send(broker, topics[0], range(RECORDS))
        until(results.holds(RECORDS), "every record came")
        send(broker, topics[0], range(RECORDS, 2 * RECORDS))
        until(results.holds(2 * RECORDS), "the later records came")
        assert results.held == doubled(range(2 * RECORDS))


@needs_spark
def test_real_time_mode_goes_on_by_itself_when_the_broker_is_killed_and_comes_back(
    spark: SparkSession, broker: Broker, topics: tuple[str, str], tmp_path: Path
) -> None:
    with in_real_time(spark, broker, topics, tmp_path) as query:
        with Topic(broker, topics[1]) as results:
            send(broker, topics[0], range(RECORDS))
            until(results.holds(RECORDS), "every record came before the fall")
        broker.kill()
        broker.start()
        send(broker, topics[0], range(RECORDS, 2 * RECORDS))
        with Topic(broker, topics[1]) as results:
            until(results.holds(2 * RECORDS), "every record came after the fall")
            assert set(results.held) == set(doubled(range(2 * RECORDS)))
        assert query.isActive


@needs_spark
def test_a_stop_while_a_topic_is_silent_ends_its_batch_and_nothing_comes_twice(
    spark: SparkSession, broker: Broker, topics: tuple[str, str], tmp_path: Path
) -> None:
    flow = observed(
        double,
        kafka.sink(broker.servers, topics[1]),
        source=kafka.source(broker.servers, topics[0], starting="earliest"),
        backend="realtime",
        checkpoint=tmp_path / "flow",
    )
    with Topic(broker, topics[1]) as results:
        for numbers in (range(RECORDS), range(RECORDS, 2 * RECORDS)):
            send(broker, topics[0], numbers)
            with Running(spark, flow) as running:
                until(results.holds(numbers.stop), "every record came")
                notes = running.run.stop().data["notes"]
                assert not any("given up" in note for note in notes)
        assert results.held == doubled(range(2 * RECORDS))


class in_real_time:  # noqa: N801 - read as "with in_real_time(...)"
    """A query in real-time mode that runs while the block does."""

    def __init__(
        self, spark: SparkSession, broker: Broker, topics: tuple[str, str], path: Path
    ) -> None:
        sink = kafka.sink(broker.servers, topics[1])
        sink.prepare(spark, "one")
        frame = natively_doubled(opened(spark, broker, topics[0], path))
        writer = sink.attach(frame).outputMode("update")
        writer = writer.trigger(realTime="5 seconds")  # type: ignore[call-overload] # not in stubs
        self.query = writer.option("checkpointLocation", str(path / "checkpoint")).start()

    def __enter__(self) -> Any:
        return self.query

    def __exit__(self, *_: object) -> None:
        self.query.stop()


@needs_spark
def test_a_batch_that_is_written_again_is_sent_again(
    spark: SparkSession, broker: Broker, topics: tuple[str, str]
) -> None:
    sink = kafka.sink(broker.servers, topics[1])
    frame = spark.createDataFrame([("k", str(n)) for n in range(5)], "key string, value string")
    for _ in range(2):
        sink.write(frame, 3)()
    with Topic(broker, topics[1]) as results:
        until(lambda: results.holds(5)() and results.held.total() == 10, "each came twice")
    assert set(results.held.values()) == {2}


@needs_spark
def test_a_topic_to_read_that_is_not_there_is_said_before_a_query_starts(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentUnfit) as refused:
        opened(spark, broker, "misspelt", tmp_path)
    assert str(refused.value) == (
        f"Kafka at {broker.servers} has no topic 'misspelt': create the topic, or fix its name."
    )


@needs_spark
def test_a_topic_to_send_to_that_is_neither_there_nor_created_is_said_before_a_query_starts(
    spark: SparkSession, broker: Broker
) -> None:
    with pytest.raises(EnvironmentUnfit) as refused:
        kafka.sink(broker.servers, "misspelt").prepare(spark, "one")
    assert str(refused.value) == (
        f"Kafka at {broker.servers} has no topic 'misspelt' and does not create it: create the "
        "topic, or fix its name."
    )


@pytest.fixture(scope="module")
def generous_and_strict() -> Iterator[Broker]:
    """A broker that creates the topics that are sent to, and denies those that are forbidden."""
    usual = brokers._properties
    more = {
        "auto.create.topics.enable": "true",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    lines = "".join(f"{name}={value}\n" for name, value in more.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(brokers, "_properties", lambda *given: usual(*given) + lines)
        try:
            started = brokers.Broker()
        except EnvironmentUnfit as unfit:
            pytest.skip(str(unfit))
        with started:
            yield started


@needs_spark
def test_a_broker_that_creates_topics_creates_the_one_of_a_sink(
    spark: SparkSession, generous_and_strict: Broker
) -> None:
    kafka.sink(generous_and_strict.servers, "new").prepare(spark, "one")
    client = admin.AdminClient({"bootstrap.servers": generous_and_strict.servers})
    until(lambda: "new" in client.list_topics(timeout=10).topics, "the topic is there")


@needs_spark
@pytest.mark.parametrize("way", ["source", "sink"])
def test_a_topic_that_this_user_is_denied_is_named(
    way: str, spark: SparkSession, generous_and_strict: Broker, tmp_path: Path
) -> None:
    servers, topic = generous_and_strict.servers, f"denied-{way}"
    generous_and_strict.create_topic(topic)
    forbid(servers, topic)
    with pytest.raises(EnvironmentUnfit) as refused:
        use(way, servers, topic, spark, tmp_path)
    assert str(refused.value) == (
        f"Kafka at {servers} denies this user the topic '{topic}': ask for access to it, "
        "or fix the credentials in the options."
    )


def use(way: str, servers: str, topic: str, spark: SparkSession, path: Path) -> None:
    """What a flow does with its source, or with its sink, before it starts."""
    if way == "source":
        kafka.source(servers, topic).open(spark, path)
    else:
        kafka.sink(servers, topic).prepare(spark, "one")


def forbid(servers: str, topic: str) -> None:
    """Deny everyone everything about a topic, and wait until that holds."""
    client = admin.AdminClient({"bootstrap.servers": servers})
    rule = admin.AclBinding(
        admin.ResourceType.TOPIC,
        topic,
        admin.ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        admin.AclOperation.ALL,
        admin.AclPermissionType.DENY,
    )
    for done in client.create_acls([rule]).values():
        done.result(60)
    until(lambda: topic not in client.list_topics(timeout=10).topics, f"{topic} is hidden")


@needs_spark
def test_a_session_without_the_connector_hears_how_to_get_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "FORMAT", "kafka-of-no-one")
    with pytest.raises(EnvironmentUnfit, match=r"begin with tailrace.session\(kafka=True\)"):
        kafka.sink(SOMEWHERE, "results").prepare(spark, "one")
    with pytest.raises(EnvironmentUnfit, match=r"begin with tailrace.session\(kafka=True\)"):
        session(kafka=True)


def test_a_flow_knows_whether_a_session_for_it_needs_the_connector() -> None:
    reads, sends = kafka.source(SOMEWHERE, "in"), kafka.sink(SOMEWHERE, "out")
    load, nothing = replay(even_trace(1, 1.0)), sinks.discard()
    assert Flow("f", reads, double, nothing).uses_kafka
    assert Flow("f", load, double, sends).uses_kafka
    assert Flow("f", load, double, {"a": nothing, "b": sends}).uses_kafka
    assert Flow("f", load, double, nothing, dead_letters=sends).uses_kafka
    assert not Flow("f", load, double, nothing).uses_kafka


# --- addresses ---------------------------------------------------------------------------------


def unused_address() -> str:
    """An address where nothing listens, just given back."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        return f"127.0.0.1:{gone.getsockname()[1]}"


@contextmanager
def answering(answer: Callable[[bytes], bytes | None]) -> Iterator[str]:
    """A server that answers the first bytes of a connection; None keeps it waiting."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                said = answer(connection.recv(64))
                if said is None:
                    over.wait(60)
                else:
                    connection.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


def as_kafka(asked: bytes) -> bytes:
    """The head of Kafka's answer: a length, and the number that the question bears."""
    return b"\0\0\0\x06" + asked[8:12] + b"\0\0"


def test_a_kafka_that_is_down_is_named_with_its_address() -> None:
    address = unused_address()
    with pytest.raises(EnvironmentUnfit) as refused:
        kafka.require_reachable(address)
    assert str(refused.value) == (
        f"Kafka cannot be reached ({address}: Connection refused): start it, or fix the address."
    )


def test_a_host_that_has_no_address_is_named() -> None:
    with pytest.raises(
        EnvironmentUnfit,
        match=r"^Kafka cannot be reached \(no.such.invalid:9092: .+\): start it, or",
    ):
        kafka.require_reachable("no.such.invalid:9092")


@pytest.mark.parametrize("said", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_that_accepts_and_does_not_answer_as_kafka_is_named(
    said: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "ANSWER_S", 0.5)
    with answering(lambda _: said) as address, pytest.raises(EnvironmentUnfit) as refused:
        kafka.require_reachable(address)
    assert str(refused.value) == (
        f"Kafka cannot be reached ({address}: the server there does not answer like Kafka): "
        "start it, or fix the address."
    )


def test_one_server_of_several_is_enough() -> None:
    with answering(as_kafka) as up:
        kafka.require_reachable(f"{unused_address()}, {up}")


def test_a_server_behind_tls_is_not_asked_in_clear() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        kafka.require_reachable(address, {"kafka.security.protocol": "SASL_SSL"})


@needs_spark
@pytest.mark.parametrize("way", ["source", "sink"])
def test_a_flow_asks_before_it_starts_whether_kafka_is_there(
    way: str, spark: SparkSession, tmp_path: Path
) -> None:
    address = unused_address()
    with pytest.raises(EnvironmentUnfit, match=rf"Kafka cannot be reached \({address}: "):
        use(way, address, "any", spark, tmp_path)


def test_what_an_option_says_is_never_shown() -> None:
    secret = {"kafka.sasl.jaas.config": 'username="u" password="hunter2";'}
    for made in (
        kafka.source(SOMEWHERE, "topic", options=secret),
        kafka.sink(SOMEWHERE, "topic", options=secret),
    ):
        assert "hunter2" not in repr(made)
        assert f"{SOMEWHERE}" in repr(made)


@pytest.mark.parametrize("servers", ["", "host", "host:", ":9092", "host:0", "host:70000", "a:1,"])
def test_an_address_that_is_none_is_refused(servers: str) -> None:
    with pytest.raises(InputError, match=r"is not the address of a Kafka server: write host:port"):
        kafka.source(servers, "topic")


@given(st.text(max_size=8))
def test_a_topic_is_refused_exactly_when_kafka_would_refuse_its_name(name: str) -> None:
    letters = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    if name and set(name) <= letters and name not in {".", ".."}:
        assert kafka.sink(SOMEWHERE, name).topic == name
    else:
        with pytest.raises(InputError, match=r"is not the name of a Kafka topic"):
            kafka.sink(SOMEWHERE, name)


@pytest.mark.parametrize("option", ["subscribe", "startingOffsets", "kafka.bootstrap.servers"])
def test_an_option_that_contradicts_the_arguments_is_refused(option: str) -> None:
    with pytest.raises(InputError, match=f"'{option}' is already set by an argument"):
        kafka.source(SOMEWHERE, "topic", options={option: "other"})


def test_a_source_starts_at_one_of_two_ends() -> None:
    with pytest.raises(InputError, match="write 'latest' or 'earliest'"):
        kafka.source(SOMEWHERE, "topic", starting="yesterday")


def test_options_of_the_user_win_over_ours() -> None:
    sink = kafka.sink(SOMEWHERE, "topic", options={"kafka.linger.ms": "7"})
    assert sink.stream_options()["kafka.linger.ms"] == "7"


TEXT, BYTES, NUMBER = StringType(), BinaryType(), LongType()
KINDS = (None, TEXT, BYTES, NUMBER)


@pytest.mark.parametrize(("key", "value", "other"), [*product(KINDS, KINDS, (None, TEXT))])
def test_only_a_value_and_perhaps_a_key_of_text_or_bytes_can_be_sent(
    key: DataType | None, value: DataType | None, other: DataType | None
) -> None:
    schema = StructType()
    for name, kind in (("key", key), ("value", value), ("extra", other)):
        if kind is not None:
            schema = schema.add(name, kind)
    sink = kafka.sink(SOMEWHERE, "results")
    if value in (TEXT, BYTES) and key in (None, TEXT, BYTES) and other is None:
        sink.check(schema)
    else:
        with pytest.raises(InputError, match=r"The output for the Kafka topic 'results' "):
            sink.check(schema)
