"""A keyed step inside a chain: groups a hand-over by key and runs the user's function on each.

It is the first step of its chain, after an exchange that brings all records of a key to one
partition. Its state is opened when a task starts and written when it ends, under the id of the
batch (``tailrace.state``), in micro-batches and in real-time mode alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailrace.errors import InputError, TailraceError
from tailrace.spark.worker import task
from tailrace.spark.worker.operator import Operator, Passed, failed, to_arrow
from tailrace.spark.worker.records import rows_of
from tailrace.spark.worker.watch import WATCH
from tailrace.state.keyed import Keyed
from tailrace.state.partitions import held
from tailrace.state.state import EPOCH, canonical, hidden, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from tailrace.spark.worker.meter import Meter
    from tailrace.spark.worker.records import Row

BORN_NOW = -1
"""The origin of a result that came from a timer instead of a record."""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """What a keyed step remembers, and where; sent to the workers with the chain.

    Only in a flow does it have a directory.
    """

    key: tuple[str, ...]
    initial: Any
    on_timer: Callable[..., Any] | None
    event: str | None
    lateness_us: int
    limit_bytes: int
    directory: str = ""


@dataclass(frozen=True, slots=True)
class KeyedOperator(Operator):
    """The records of a key and its state in, any number of records out."""

    kind = "keyed"

    memory: StateSpec | None = None

    def open(self) -> KeyedRun:
        """Open the state of this task's partition."""
        if self.memory is None or not self.memory.directory:
            raise InputError(
                f"Step '{self.name}' keeps state for every key, and only a flow can store that: "
                "run it in a tr.Flow."
            )
        return KeyedRun(self, self.memory)

    def run(self, batch: pa.RecordBatch, meter: Meter) -> Passed:
        """Open the state and process a batch."""
        return self.open().run(batch, meter)


class KeyedRun:
    """One keyed step in one task, from opening its state to writing it."""

    def __init__(self, operator: Operator, memory: StateSpec) -> None:
        """Open the state as it was at the end of the previous batch."""
        partition = task.partition()
        self._operator, self._memory = operator, memory
        self._batch = task.batch()
        store = held(
            Path(memory.directory) / str(partition),
            step=operator.name,
            partition=partition,
            limit_bytes=memory.limit_bytes,
        )
        store.limit_bytes = memory.limit_bytes
        store.shown = hidden if operator.redact else shown
        store.open(self._batch - 1)
        self._keyed = Keyed(
            operator.name,
            operator.function,
            store,
            clock=lambda: time.time_ns() // 1_000,
            initial=memory.initial,
            on_timer=memory.on_timer,
            event_time=memory.event is not None,
            lateness_us=memory.lateness_us,
            keep_on_error=operator.on_error != "fail",
        )

    def run(self, batch: pa.RecordBatch, meter: Meter) -> Passed:
        """Run the function on every key of a hand-over, then run the timers that are due."""
        rows = list(rows_of(batch))
        places: dict[Any, list[int]] = {}
        for place, key in enumerate(self._keys(batch, rows)):
            places.setdefault(key, []).append(place)
        results: list[Any] = []
        origins: list[int] = []
        WATCH.left = going = iter(places.items())
        for key, found in going:
            for result, origin in self._called(key, rows, found, meter):
                results.append(result)
                origins.append(origin)
        passed = to_arrow(self._operator, rows, results, origins, meter)
        return _joined(passed, self._due(meter))

    def finish(self, meter: Meter) -> Passed:
        """Run the timers that are due when the batch ends, then write the state."""
        passed = self._due(meter)
        self._keyed.finish(self._batch)
        return passed

    def _called(
        self, key: Any, rows: list[Row], found: list[int], meter: Meter
    ) -> Iterator[tuple[Any, int]]:
        """The function's results for some records of a key, each with the last of these records.

        Which records come together is chance, so a record on which the function raises must not
        take the others along: the state is reset, and they are passed one by one.
        """
        group = key, [rows[place] for place in found], self._newest_us(rows, found)
        try:
            made = list(self._keyed.on_rows([group]))
        except TailraceError:
            raise
        except Exception as error:  # noqa: BLE001 - a user's step may raise anything
            if len(found) > 1 and self._operator.on_error != "fail":
                for place in found:
                    yield from self._called(key, rows, [place], meter)
            else:
                failed(self._operator, meter, rows[found[-1]], error)
        else:
            for _, result in made:
                yield result, found[-1]

    def _due(self, meter: Meter) -> Passed:
        """The results of the timers that are due; errors are handled as the step asked."""
        owners: list[dict[str, Any]] = []
        results: list[Any] = []
        origins: list[int] = []
        going = True
        while going:
            try:
                for key, result in self._keyed.due():
                    owners.append({"key": key})
                    results.append(result)
                    origins.append(len(owners) - 1)
                going = False
            except TailraceError:
                raise
            except Exception as error:  # noqa: BLE001 - a user's step may raise anything
                failed(self._operator, meter, {"key": self._keyed.current}, error)
        batch = to_arrow(self._operator, owners, results, origins, meter).batch
        return Passed(batch, [BORN_NOW] * batch.num_rows)

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


def _joined(first: Passed, second: Passed) -> Passed:
    """The results of records, followed by those of timers."""
    if not second.batch.num_rows:
        return first
    batch = pa.concat_batches([first.batch, second.batch])
    return Passed(batch, [*(first.origins or ()), *(second.origins or ())])


def _micros(moment: datetime) -> int:
    """A timestamp in microseconds since the epoch."""
    difference = moment - EPOCH
    return (difference.days * 86_400 + difference.seconds) * 1_000_000 + difference.microseconds
