"""Something to try a Kafka flow with: topics, a producer and a consumer.

    python examples/kafka_try.py create             # the topics of examples/kafka_alerts.py
    python examples/kafka_try.py send --seconds 20  # readings of machines, 100 a second
    python examples/kafka_try.py read               # the alerts that are there

It needs ``pip install confluent-kafka``. The variable KAFKA says where Kafka listens.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # NewTopic is not in its types
    AdminClient,
    NewTopic,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVERS = os.environ.get("KAFKA", "127.0.0.1:9092")
TOPICS = ("readings", "alerts")
PARTITIONS = 2
RATE_PER_S = 100
WAIT_S = 30.0
"""How long Kafka may take for anything."""


def readings(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Readings of ten machines, the same ones each time; one of kind 'valve' has no limit."""
    generator = np.random.default_rng(1)
    for _ in range(count):
        number = int(generator.integers(10))
        kind = ("boiler", "pump", "valve")[number % 3]
        degrees = round(float(generator.normal(75.0, 15.0)), 1)
        yield f"machine-{number}", {"kind": kind, "degrees": degrees}


def create() -> None:
    """Create the topics that are not there."""
    admin = AdminClient({"bootstrap.servers": SERVERS, "log_level": 0})
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in TOPICS])
    for topic, done in made.items():
        try:
            done.result(WAIT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        print(f"The topic {topic} is there.")


def send(seconds: float) -> None:
    """Send readings at an even pace."""
    producer = Producer({"bootstrap.servers": SERVERS, "linger.ms": 0, "log_level": 0})
    count = round(seconds * RATE_PER_S)
    began_s = time.monotonic()
    for index, (machine, reading) in enumerate(readings(count)):
        producer.produce(TOPICS[0], json.dumps(reading), key=machine)
        producer.poll(max(0.0, began_s + index / RATE_PER_S - time.monotonic()))
    left = producer.flush(WAIT_S)
    print(f"{count - left} readings are sent.")


def read() -> None:
    """Print the alerts that are there, those that were sent more than once but once.

    A flow sends every result to Kafka at least once. An alert bears its number, by which a reader
    tells one that is sent again from a new one.
    """
    settings = {"group.id": "kafka_try", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": SERVERS, **settings})
    alerts: Counter[str] = Counter()
    try:
        for part in consumer.list_topics(TOPICS[1], timeout=WAIT_S).topics[TOPICS[1]].partitions:
            _, end = consumer.get_watermark_offsets(TopicPartition(TOPICS[1], part), WAIT_S)
            consumer.assign([TopicPartition(TOPICS[1], part, 0)])
            for message in consumer.consume(end, timeout=WAIT_S):
                alerts[
                    f"{(message.key() or b'').decode()} {(message.value() or b'').decode()}"
                ] += 1
    finally:
        consumer.close()
    for alert in alerts:
        print(alert)
    again = alerts.total() - len(alerts)
    if again:
        print(f"{again} of them were sent again.", file=sys.stderr)


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description="Try a Kafka flow.")
    parser.add_argument("what", choices=["create", "send", "read"])
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to send")
    given = parser.parse_args()
    try:
        if given.what == "create":
            create()
        elif given.what == "send":
            send(given.seconds)
        else:
            read()
    except KafkaException as error:
        print(f"Kafka at {SERVERS}: {error.args[0].str()}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
