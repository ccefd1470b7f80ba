"""Sinks that need no files: functions, the driver's memory, the terminal, and nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailrace.errors import InputError
from tailrace.spark.pipeline.sending import require_sendable
from tailrace.spark.pipeline.step import last_step
from tailrace.spark.sinks.base import compute, nothing
from tailrace.spark.sinks.once import Label, Once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tailrace.spark.sinks.base import Publish


class Discard:
    """Computes every record and keeps none: for benchmarks, and for steps with side effects."""

    def prepare(self, spark: SparkSession, identity: str) -> None:
        """Nothing to get ready."""

    def write(self, frame: DataFrame, batch_id: int) -> Publish:  # noqa: ARG002 - Sink's signature
        """Run the batch."""
        compute(frame)
        return nothing

    def attach(self, frame: DataFrame) -> DataStreamWriter:
        """Drop records as they come."""
        return frame.writeStream.format("noop")


class Each:
    """Calls a function with every record, in the worker, as the last step of the flow.

    At least once: records of a batch that is repeated after a crash are passed to it again.
    """

    def __init__(self, function: Callable[[Any], object]) -> None:
        """``function`` takes a record, readable by attribute."""
        if not callable(function):
            kind = type(function).__name__
            raise InputError(f"The sink was given a value of type {kind}, which cannot be called.")
        self._function = function

    def prepare(self, spark: SparkSession, identity: str) -> None:  # noqa: ARG002 - Sink's
        """Refuse a function that cannot be sent to workers."""
        require_sendable("The function of the sink", self._function)

    def write(self, frame: DataFrame, batch_id: int) -> Publish:  # noqa: ARG002 - Sink's signature
        """Run the batch, with the function at its end."""
        compute(last_step(self._function)(frame))
        return nothing

    def attach(self, frame: DataFrame) -> DataStreamWriter:
        """Drop records here: the function, compiled as the last step, has already seen them."""
        return frame.writeStream.format("noop")

    def end(self, frame: DataFrame) -> DataFrame:
        """Add the sink as a last step, to be compiled with the others."""
        return last_step(self._function)(frame)


class Memory(Once):
    """Keeps results in the driver's memory, each batch once: for tests and small results.

    It holds the results of one checkpoint: a run with another one starts empty.
    """

    place = "in memory"

    def __init__(self) -> None:
        """Start empty."""
        self.batches: dict[int, pa.Table] = {}
        self._labels: dict[int, Label] = {}
        self._in_use = False

    def prepare(self, spark: SparkSession, identity: str) -> None:  # noqa: ARG002 - Sink's signature
        """Start empty, unless a resumed run left results here."""
        if self._in_use:
            raise InputError(
                "Two running flows cannot share one memory sink: give each a tr.sinks.memory() "
                "of its own."
            )
        if identity != self.identity:
            self.batches, self._labels = {}, {}
        self.identity, self._log, self._in_use = identity, None, True

    def release(self) -> None:
        """Give it up for other runs."""
        self._in_use = False

    def published(self) -> list[int]:
        """The ids of the batches that are there, in order."""
        return sorted(self.batches)

    def has(self, batch_id: int) -> bool:
        """Whether a batch of this id is there."""
        return batch_id in self.batches

    def label_of(self, batch_id: int) -> Label | None:
        """The label of a batch that is there."""
        return self._labels.get(batch_id)

    def set_aside(self, batch_ids: Iterable[int]) -> None:
        """Drop batches: memory has nowhere to set them aside."""
        for batch in batch_ids:
            del self.batches[batch], self._labels[batch]

    def write(self, frame: DataFrame, batch_id: int) -> Publish:
        """Collect the batch, unless it is there already."""
        if self.holds(batch_id):
            return nothing
        table, label = frame.toArrow(), self.label(batch_id)

        def publish() -> None:
            self.batches[batch_id], self._labels[batch_id] = table, label

        return publish

    def table(self) -> pa.Table:
        """Everything that was written, in the order of the batches."""
        return pa.concat_tables([self.batches[key] for key in sorted(self.batches)])

    def rows(self) -> list[dict[str, Any]]:
        """The same as a list of dicts."""
        return self.table().to_pylist() if self.batches else []


class Console:
    """Prints the first rows of every batch."""

    def __init__(self, rows: int = 20) -> None:
        """``rows`` is how many rows of a batch are shown."""
        self._rows = rows

    def prepare(self, spark: SparkSession, identity: str) -> None:
        """Nothing to get ready."""

    def write(self, frame: DataFrame, batch_id: int) -> Publish:
        """Compute the whole batch, though only its first rows are printed."""
        table = frame.toArrow()
        shown = [f"batch {batch_id}: {table.num_rows} rows"]
        shown += [f"  {row}" for row in table.slice(0, self._rows).to_pylist()]
        return lambda: print("\n".join(shown))


class Call:
    """Passes every batch to the user's own function ``(frame, batch_id)``.

    The function sees a batch again after a crash, under the same id.
    """

    computes_all = False  # the user's function may compute only part of a batch

    def __init__(self, function: Callable[[DataFrame, int], object]) -> None:
        """``function`` may do anything with a batch."""
        self._function = function

    def prepare(self, spark: SparkSession, identity: str) -> None:
        """Nothing to get ready."""

    def write(self, frame: DataFrame, batch_id: int) -> Publish:
        """Call the user's function with the batch."""
        self._function(frame, batch_id)
        return nothing
