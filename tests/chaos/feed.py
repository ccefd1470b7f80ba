"""Kafka as the harness sees it: a topic that is filled all the time, and topics that are read."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition

from .flows import KEYS
from .process import Stuck

if TYPE_CHECKING:
    from .flows import Place

PARTITIONS = 2
PAUSE_S = 0.05
PER_PAUSE = 5
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic."""

    partition: int
    offset: int
    seq: int
    twice: int | None


class Feed:
    """Sends numbered records to a topic until closed, across whatever happens to the broker."""

    def __init__(self, place: Place) -> None:
        """Begin to send."""
        self._topic = place.topic("in")
        settings: dict[str, Any] = {"bootstrap.servers": place.servers, "log_level": 0}
        self._producer = Producer(settings | {"enable.idempotence": True})
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send no more; what is under way is given up."""
        self._closing.set()
        self._thread.join()
        self._producer.purge()

    def _send(self) -> None:
        seq = 0
        while not self._closing.wait(PAUSE_S):
            for _ in range(PER_PAUSE):
                self._producer.produce(self._topic, json.dumps({"seq": seq}), key=f"k{seq % KEYS}")
                seq += 1
            self._producer.poll(0)


def _record(message: Any) -> Record:
    said = json.loads(message.value())
    return Record(message.partition(), message.offset(), said["seq"], said.get("twice"))


def read_topic(place: Place, way: str) -> list[Record]:
    """All that a topic holds now."""
    consumer = Consumer(
        {
            "bootstrap.servers": place.servers,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    topic = place.topic(way)
    parts = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    try:
        ends = {p.partition: consumer.get_watermark_offsets(p, PATIENCE_S)[1] for p in parts}
        consumer.assign(parts)
        left = sum(ends.values())
        found: list[Record] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < left:
            messages = consumer.consume(1_000, 1.0)
            if time.monotonic() > deadline:
                raise Stuck(f"the topic {topic} gives {len(found)} of {left} records")
            records = [_record(message) for message in messages if message.error() is None]
            found += [record for record in records if record.offset < ends[record.partition]]
        return found
    finally:
        consumer.close()
