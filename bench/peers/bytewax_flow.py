"""Three Python steps on Bytewax under a paced load; runs in the environment of that peer.

``python bytewax_flow.py --rate 2000 --seconds 5 --warm-up 2`` prints one line of JSON.

One worker in one process. The records are made before the load begins, so the source only has to
slice off what is due, where a real one would parse. Bytewax calls each step record by record, and
passes the list that the source returned from step to step, as it does by default.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from array import array
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import bytewax.operators as op  # type: ignore[import-not-found]
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
from bytewax.inputs import DynamicSource, StatelessSourcePartition  # type: ignore[import-not-found]
from bytewax.outputs import DynamicSink, StatelessSinkPartition  # type: ignore[import-not-found]
from bytewax.run import cli_main  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Sequence

Record = tuple[int, int, str]
"""Its number, when it is due in microseconds after the start of the load, and a key."""

KEYS = tuple(f"key-{i}" for i in range(1_000))
PAUSE_US = 300_000
"""The pause between the warm-up and the counted part, so that no backlog is carried over."""

GRACE_US = 500_000
"""A source that is this late at the end gives up: the rate is not held."""


def now_us() -> int:
    """The clock for due times and arrivals."""
    return time.time_ns() // 1000


@dataclass
class Load:
    """The records, the time t0 of their due times, and how late each arrived."""

    records: list[Record]
    seconds: float
    began_us: int = 0
    counts: bool = False
    latencies_us: array[int] = field(default_factory=lambda: array("q"))


class Paced(StatelessSourcePartition):  # type: ignore[misc]
    """Emits each record when it is due: first some for an uncounted warm-up, then all of them.

    Late records are emitted at once, and keep their due time.
    """

    def __init__(self, load: Load, warm_up_s: float) -> None:
        """Begin with the warm-up."""
        self._load = load
        self._begin(min(warm_up_s, load.seconds), 0, counts=False)

    def _begin(self, seconds: float, grace_us: int, *, counts: bool) -> None:
        """Set a new t0, after a pause in which records in flight reach the sink."""
        self._counts = counts
        self._next = 0
        self._end = round(len(self._load.records) * seconds / self._load.seconds)
        self._load.began_us = now_us() + PAUSE_US
        self._give_up_us = self._load.began_us + round(seconds * 1e6) + grace_us

    def next_batch(self) -> Sequence[Record]:
        """The records that are due by now and were not emitted yet."""
        load, first, now = self._load, self._next, now_us()
        if now < load.began_us:
            return ()
        if first >= self._end or now > self._give_up_us:
            if self._counts:
                raise StopIteration
            self._begin(load.seconds, GRACE_US, counts=True)
            return ()
        load.counts = self._counts
        due = int((now - load.began_us) * len(load.records) / (load.seconds * 1e6)) + 1
        self._next = max(first, min(self._end, due))
        return load.records[first : self._next]

    def next_awake(self) -> datetime:
        """When the next record is due; without this an empty batch costs a millisecond."""
        records = self._load.records
        offset_us = records[min(self._next, len(records) - 1)][1]
        return datetime.fromtimestamp((self._load.began_us + offset_us) / 1e6, UTC)


@dataclass
class Source(DynamicSource):  # type: ignore[misc]
    """One partition, for the one worker."""

    load: Load
    warm_up_s: float

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Paced:  # noqa: ARG002
        """What Bytewax calls for each worker."""
        return Paced(self.load, self.warm_up_s)


@dataclass
class Noting(StatelessSinkPartition):  # type: ignore[misc]
    """Records now - due for each record."""

    load: Load

    def write_batch(self, items: list[Record]) -> None:
        """All records of a batch arrive at the same time."""
        if self.load.counts:
            now = now_us() - self.load.began_us
            self.load.latencies_us.extend([now - due for _, due, _ in items])


@dataclass
class Sink(DynamicSink):  # type: ignore[misc]
    """One partition, for the one worker."""

    load: Load

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Noting:  # noqa: ARG002
        """What Bytewax calls for each worker."""
        return Noting(self.load)


def pass_on(record: Record) -> Record:
    """A step that does nothing, so that only its surroundings take time."""
    return record


def quantile_ms(latencies_us: Sequence[int], q: float) -> float:
    """A quantile by rank; 0 if there are no values."""
    ordered = sorted(latencies_us) or [0]
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] / 1e3


def main() -> None:
    """Run the load once and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--rate", "--seconds", "--warm-up"):
        parser.add_argument(name, type=float, required=True)
    asked = parser.parse_args()
    sent = round(asked.rate * asked.seconds)
    load = Load(
        [(i, round(i * 1e6 / asked.rate), KEYS[i % len(KEYS)]) for i in range(sent)], asked.seconds
    )
    gc.collect()
    gc.freeze()  # otherwise each collection would traverse all records that are not due yet

    flow = Dataflow("peer")
    records = op.input("source", flow, Source(load, asked.warm_up))
    for name in ("first", "second", "third"):
        records = op.map(name, records, pass_on)
    op.output("sink", records, Sink(load))
    cli_main(flow)

    found = load.latencies_us
    fifth = max(1, len(found) // 5)
    result = {
        "records": len(found),
        "p50_ms": quantile_ms(found, 0.5),
        "p95_ms": quantile_ms(found, 0.95),
        "p99_ms": quantile_ms(found, 0.99),
        "drift_ms": round(quantile_ms(found[-fifth:], 0.5) - quantile_ms(found[:fifth], 0.5), 3),
        "sent": sent,
        "received": len(found),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
