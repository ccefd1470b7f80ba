"""A keyed step inside a chain: groups a hand-over by key and runs the user's function on each.

The step's chain begins with it, behind an exchange that brings all records of a key to one
partition. Its state is opened when a task begins and written when it ends, under the id of the
batch (``tailrace.state``), in micro-batches and in real-time mode alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from tailrace.errors import TailraceError
from tailrace.spark.link import Passed, failed, rows_of, to_arrow
from tailrace.state.keyed import Keyed
from tailrace.state.partitions import held
from tailrace.state.state import EPOCH, canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    import pyarrow as pa

    from tailrace.spark.link import Link, Row
    from tailrace.spark.meter import Meter

BORN_NOW = -1
"""The origin of a result that came of no record but of a timer."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a keyed step remembers, and where: travels to the workers with the chain."""

    key: tuple[str, ...]
    initial: Any
    on_timer: Callable[..., Any] | None
    event: str | None
    lateness_us: int
    limit_bytes: int
    directory: str


class KeyedRun:
    """One keyed step in one task, from the opening of its state to its writing."""

    def __init__(self, link: Link, memory: Memory) -> None:
        """Open the state as it was when the batch before ended."""
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        self._link, self._memory = link, memory
        self._batch = int(batch or 0)
        store = held(
            Path(memory.directory) / str(partition),
            step=link.name,
            partition=partition,
            limit_bytes=memory.limit_bytes,
        )
        store.limit_bytes = memory.limit_bytes
        store.open(self._batch - 1)
        self._keyed = Keyed(
            link.name,
            link.function,
            store,
            clock=lambda: time.time_ns() // 1_000,
            initial=memory.initial,
            on_timer=memory.on_timer,
            event_time=memory.event is not None,
            lateness_us=memory.lateness_us,
            keep_on_error=link.on_error != "fail",
        )

    def pass_through(self, batch: pa.RecordBatch, meter: Meter) -> Passed:
        """Run the function on every key of a hand-over, then the timers that are due."""
        rows = list(rows_of(batch))
        places: dict[Any, list[int]] = {}
        for place, key in enumerate(self._keys(batch, rows)):
            places.setdefault(key, []).append(place)
        groups = iter(
            [
                (key, [rows[i] for i in found], self._newest_us(rows, found))
                for key, found in places.items()
            ]
        )
        results: list[Any] = []
        origins: list[int] = []
        calls = self._kept_going(lambda: self._keyed.on_rows(groups), rows, places, meter)
        for key, result in calls:
            results.append(result)
            origins.append(places[canonical(key)][-1])
        for result in self._due(meter):
            results.append(result)
            origins.append(BORN_NOW)
        return to_arrow(self._link, rows, results, origins, meter)

    def finish(self, meter: Meter) -> Passed:
        """The timers that are due when the batch ends; then the state is written."""
        results = list(self._due(meter))
        passed = to_arrow(self._link, [], results, [BORN_NOW] * len(results), meter)
        self._keyed.finish(self._batch)
        return passed

    def _due(self, meter: Meter) -> Iterator[Any]:
        for _, result in self._kept_going(self._keyed.due, [], {}, meter):
            yield result

    def _kept_going(
        self,
        run: Callable[[], Iterable[tuple[Any, Any]]],
        rows: list[Row],
        places: dict[Any, list[int]],
        meter: Meter,
    ) -> Iterator[tuple[Any, Any]]:
        """What calls return; one that raises is dealt with as the step asked, and the next run."""
        while True:
            try:
                yield from run()
            except TailraceError:
                raise
            except Exception as error:  # noqa: BLE001 - a user's step may raise anything
                key = self._keyed.current
                found = places.get(key)
                failed(self._link, meter, rows[found[-1]] if found else {"key": key}, error)
            else:
                return

    def _keys(self, batch: pa.RecordBatch, rows: list[Row]) -> Iterable[Any]:
        names = batch.schema.names
        indices = [names.index(name) for name in self._memory.key]
        if len(indices) == 1:
            (index,) = indices
            return (canonical(row[index]) for row in rows)
        return (canonical(tuple(row[index] for index in indices)) for row in rows)

    def _newest_us(self, rows: list[Row], found: list[int]) -> int | None:
        event = self._memory.event
        if event is None:
            return None
        moments = [getattr(rows[i], event) for i in found]
        known = [moment for moment in moments if moment is not None]
        return max((_micros(moment) for moment in known), default=None)


def _micros(moment: datetime) -> int:
    """A timestamp column's value in microseconds since the epoch."""
    difference = moment - EPOCH
    return (difference.days * 86_400 + difference.seconds) * 1_000_000 + difference.microseconds
