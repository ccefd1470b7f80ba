"""Sinks: where the results of a flow become visible.

A sink computes a batch first and publishes it second, so that publishing is short and all or
nothing. A batch that is replayed after a crash has the same id; every sink here that keeps what
it gets (parquet, memory) keeps each id once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from tailrace.errors import FlowFailed, InputError
from tailrace.spark.step import last_step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Publish = Callable[[], None]


@runtime_checkable
class Sink(Protocol):
    """What a flow asks of the place that its results go to."""

    def prepare(self, spark: SparkSession, identity: str) -> None:
        """Get ready, or refuse. ``identity`` names the run; a resumed run has the same one."""

    def write(self, frame: DataFrame, batch_id: int) -> Publish:
        """Compute a batch; what makes it visible is returned, to be called when all is done."""


@runtime_checkable
class StreamSink(Sink, Protocol):
    """A sink that takes records one by one, as real-time mode brings them."""

    def attach(self, frame: DataFrame) -> DataStreamWriter:
        """What writes the stream to its place, ready to be started."""


def _nothing() -> None:
    pass


def compute(frame: DataFrame) -> None:
    """Compute every record of a batch and keep none.

    A write to nowhere would do, and has Spark analyse, plan and describe a query for each batch.
    """
    inside: Any = frame
    inside._jdf.queryExecution().toRdd().count()


class Discard:
    """Computes every record and keeps none: for benchmarks, and for steps with side effects."""

    def prepare(self, spark: SparkSession, identity: str) -> None:
        """Nothing to get ready."""

    def write(self, frame: DataFrame, batch_id: int) -> Publish:  # noqa: ARG002 - Sink's signature
        """Run the batch."""
        compute(frame)
        return _nothing

    def attach(self, frame: DataFrame) -> DataStreamWriter:
        """Let records go as they come."""
        return frame.writeStream.format("noop")


class Each:
    """Hands every record to a function, in the worker, as the last step of the flow.

    At least once: records of a batch that is repeated after a crash are handed over again.
    """

    def __init__(self, function: Callable[[Any], object]) -> None:
        """``function`` takes a record, readable by attribute."""
        if not callable(function):
            raise InputError(f"The sink was given {function!r}, which cannot be called.")
        self._function = function

    def prepare(self, spark: SparkSession, identity: str) -> None:
        """Nothing to get ready."""

    def write(self, frame: DataFrame, batch_id: int) -> Publish:  # noqa: ARG002 - Sink's signature
        """Run the batch, the function at its end."""
        compute(last_step(self._function)(frame))
        return _nothing

    def attach(self, frame: DataFrame) -> DataStreamWriter:
        """The function has had every record that comes here: it was compiled as the last step."""
        return frame.writeStream.format("noop")

    @property
    def last(self) -> Callable[[DataFrame], DataFrame]:
        """The step that the sink is, to be compiled with the others."""
        return last_step(self._function)


class Memory:
    """Keeps results in the driver's memory, each batch once: for tests and small results."""

    def __init__(self) -> None:
        """Start empty."""
        self.batches: dict[int, pa.Table] = {}

    def prepare(self, spark: SparkSession, identity: str) -> None:
        """Nothing to get ready."""

    def write(self, frame: DataFrame, batch_id: int) -> Publish:
        """Collect the batch."""
        table = frame.toArrow()
        return lambda: self.batches.__setitem__(batch_id, table)

    def table(self) -> pa.Table:
        """Everything that was written, in the order of the batches."""
        return pa.concat_tables([self.batches[key] for key in sorted(self.batches)])

    def rows(self) -> list[dict[str, Any]]:
        """The same as a list of dicts."""
        return self.table().to_pylist() if self.batches else []


class Console:
    """Prints the first rows of every batch."""

    def __init__(self, rows: int = 20) -> None:
        """``rows`` is how many of a batch are shown."""
        self._rows = rows

    def prepare(self, spark: SparkSession, identity: str) -> None:
        """Nothing to get ready."""

    def write(self, frame: DataFrame, batch_id: int) -> Publish:
        """Compute the batch whole, though only its beginning is printed."""
        table = frame.toArrow()
        shown = [f"batch {batch_id}: {table.num_rows} rows"]
        shown += [f"  {row}" for row in table.slice(0, self._rows).to_pylist()]
        return lambda: print("\n".join(shown))


class Call:
    """Hands every batch to a function ``(frame, batch_id)`` of the user's.

    The function sees a batch again after a crash, under the same id.
    """

    def __init__(self, function: Callable[[DataFrame, int], object]) -> None:
        """``function`` does with a batch whatever it likes."""
        self._function = function

    def prepare(self, spark: SparkSession, identity: str) -> None:
        """Nothing to get ready."""

    def write(self, frame: DataFrame, batch_id: int) -> Publish:
        """Let the user's function have the batch."""
        self._function(frame, batch_id)
        return _nothing


class Parquet:
    """A directory of parquet files, every batch exactly once.

    A batch is written to a hidden directory and becomes visible by one rename, as
    ``path/batch=<id>``. A batch that is there already is not written again: after a crash the
    replay of a published batch changes nothing, and one that was not published leaves no trace.
    Renames are atomic on local disks and on HDFS, not on object stores.
    """

    _MARK = "_tailrace"

    def __init__(self, path: str | Path) -> None:
        """``path`` is new, empty, or what an earlier run with the same checkpoint wrote."""
        self._path = str(path)

    def prepare(self, spark: SparkSession, identity: str) -> None:
        """Make the directory; refuse one that holds something else, or another run's output."""
        local = "://" not in self._path and not self._path.startswith("file:")
        here = Path(self._path)
        if local and any(place.is_file() for place in (here, *here.parents)):
            raise InputError(
                f"The output {self._path} is, or lies in, a file: name a directory to write to."
            )
        jvm: Any = spark.sparkContext._jvm
        self._make = jvm.org.apache.hadoop.fs.Path
        root = self._make(str(Path(self._path).resolve()) if local else self._path)
        self._files = root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self._root = root.toString()
        self._files.mkdirs(root)
        held = {status.getPath().getName() for status in self._files.listStatus(root)}
        mark = f"{self._MARK}-{identity}"
        if mark not in held:
            self._refuse_the_work_of_others(held)
            self._files.create(self._make(self._root, mark)).close()
        self._files.delete(self._staged(), True)

    def _refuse_the_work_of_others(self, held: set[str]) -> None:
        """A directory is free while nothing was published to it, whoever had meant to."""
        marks = {name for name in held if name.startswith(f"{self._MARK}-")}
        if held - marks - {"_staging"}:
            raise InputError(
                f"The output directory {self._path} is not empty and was not written by this "
                "checkpoint: choose an empty one, or resume with the checkpoint that wrote it."
            )
        for name in marks:
            self._files.delete(self._make(self._root, name), False)

    def _staged(self, batch_id: int | None = None) -> Any:
        inside = "_staging" if batch_id is None else f"_staging/batch={batch_id}"
        return self._make(self._root, inside)

    def write(self, frame: DataFrame, batch_id: int) -> Publish:
        """Write the batch where no reader looks, unless it is published already."""
        final, staged = self._make(self._root, f"batch={batch_id}"), self._staged(batch_id)
        if self._files.exists(final):
            return _nothing
        (
            frame.write.mode("overwrite")
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .option("mapreduce.fileoutputcommitter.algorithm.version", "2")
            .parquet(staged.toString())
        )
        return lambda: self._publish(staged, final)

    def _publish(self, staged: Any, final: Any) -> None:
        try:
            moved = self._files.rename(staged, final)
        except Py4JJavaError:
            moved = False
        if not moved:
            raise FlowFailed(
                f"The batch {final.toString()} could not be published: check that the output "
                "directory is writable and that no other run writes to it."
            )


def parquet(path: str | Path) -> Parquet:
    """A directory of parquet files, every batch exactly once."""
    return Parquet(path)


def memory() -> Memory:
    """The driver's memory: ``sink.table()`` and ``sink.rows()`` give what was written."""
    return Memory()


def console(rows: int = 20) -> Console:
    """The terminal."""
    return Console(rows)


def each(function: Callable[[Any], object]) -> Each:
    """A function of a record, called in the worker; the way to write from real-time mode."""
    return Each(function)


def call(function: Callable[[DataFrame, int], object]) -> Call:
    """A function ``(frame, batch_id)`` of the user's."""
    return Call(function)


def discard() -> Discard:
    """Nowhere: records are computed and dropped."""
    return Discard()


def as_sink(given: object) -> Sink:
    """A sink from what a user passes: one of these, or a function of a batch and its id."""
    if isinstance(given, Sink):
        return given
    if callable(given):
        return Call(given)
    raise InputError(
        f"{given!r} is not a sink: use tailrace.sinks, or a function (frame, batch_id)."
    )
