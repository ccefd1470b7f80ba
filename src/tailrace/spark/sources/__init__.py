"""Sources: where the records of a flow come from, and which column says when they arrived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession

from tailrace.errors import InputError
from tailrace.load import Trace

if TYPE_CHECKING:
    from pathlib import Path


LIMITS = ("maxOffsetsPerTrigger", "maxRecordsPerBatch")
"""The options of Kafka, and of a replay, that limit the records of a batch."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A streaming DataFrame and the column that holds the arrival times, if there is one.

    ``partitions`` is the number of tasks that read it, if that is known in advance.
    """

    frame: DataFrame
    arrived: str | None
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """Replays a trace: every record at its due time, the same records in every run.

    The columns are ``seq`` (the index of the record), ``due`` (when it was to arrive, from which
    its latency counts, however late it is read), ``key`` and ``payload``. ``most_records`` limits
    the records of a batch.
    """

    trace: Trace
    partitions: int = 2
    most_records: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        if self.partitions < 1:
            raise InputError(
                f"A replay cannot have {self.partitions} partitions: give it 1 or more."
            )
        if self.most_records is not None and self.most_records < 1:
            raise InputError(
                f"A batch cannot hold at most {self.most_records} records: allow 1 or more."
            )

    def open(self, spark: SparkSession, directory: Path) -> Opened:
        """Save the trace where the JVM can map it, and read from it."""
        path = directory / "load.trace"
        if not path.exists():
            self.trace.save(path)
        elif Trace.load(path) != self.trace:
            raise InputError(
                "The checkpoint belongs to a different load: resume with the same load, or start "
                "with a new checkpoint."
            )
        reader = spark.readStream.format("tailrace-replay").option("trace", str(path))
        reader = reader.option("partitions", str(self.partitions))
        if self.most_records is not None:
            reader = reader.option("maxRecordsPerBatch", str(self.most_records))
        return Opened(reader.load(), "due", self.partitions)


@runtime_checkable
class Openable(Protocol):
    """A source that knows how to open itself: a replay, or Kafka."""

    def open(self, spark: SparkSession, directory: Path) -> Opened:
        """Start reading; ``directory`` belongs to the run."""


Source = Openable | Trace | DataFrame | Callable[[SparkSession], DataFrame]


def open_source(
    source: Source, arrived: str | None, spark: SparkSession, directory: Path
) -> Opened:
    """Open whatever a user gave as a source; ``arrived`` names the column of arrival times."""
    if isinstance(source, Trace):
        source = Replay(source)
    if isinstance(source, Openable):
        return source.open(spark, directory)
    frame = source if isinstance(source, DataFrame) else source(spark)
    if not isinstance(frame, DataFrame) or not frame.isStreaming:
        raise InputError(
            "The source of a flow must be a streaming DataFrame (spark.readStream...), a function "
            "of the session that returns one, or a load to replay."
        )
    if arrived is not None and arrived not in frame.columns:
        raise InputError(
            f"The source has no column '{arrived}' to read arrival times from: it has "
            f"{', '.join(frame.columns)}."
        )
    return Opened(frame, arrived)


def most_records(frame: DataFrame) -> int | None:
    """The most records in a batch of a streaming DataFrame, if it has one source with a limit."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    leaves = plan.collectLeaves()
    if leaves.size() != 1 or leaves.apply(0).getClass().getSimpleName() != "StreamingRelationV2":
        return None
    options = leaves.apply(0).extraOptions()
    told = next((options.get(name) for name in LIMITS if options.containsKey(name)), None)
    return None if told is None else int(told)


def replay(trace: Trace, *, partitions: int = 2, most_records: int | None = None) -> Replay:
    """A source that replays a load at its due times; ``most_records`` limits a batch."""
    return Replay(trace, partitions, most_records)
