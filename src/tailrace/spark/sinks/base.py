"""What a flow requires of a sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tailrace.spark.checkpoints.batch_log import BatchLog

Publish = Callable[[], None]


@runtime_checkable
class Sink(Protocol):
    """Where the results of a flow go."""

    def prepare(self, spark: SparkSession, identity: str) -> None:
        """Get ready, or refuse. ``identity`` names the run; a resumed run has the same one."""

    def write(self, frame: DataFrame, batch_id: int) -> Publish:
        """Compute a batch; returns the function that makes it visible, to be called at the end."""


@runtime_checkable
class StreamSink(Sink, Protocol):
    """A sink that takes records one by one, as real-time mode delivers them."""

    def attach(self, frame: DataFrame) -> DataStreamWriter:
        """A writer that sends the stream to the sink, ready to be started."""


@runtime_checkable
class OnceSink(Sink, Protocol):
    """A sink that keeps every batch once, and so must know exactly which batches it has."""

    def follow(self, log: BatchLog, *, complete: bool, after_restore: bool) -> tuple[str, ...]:
        """Compare what is published with the log of the checkpoint, and refuse what does not fit.

        With ``complete`` every committed batch must be there. With ``after_restore`` batches that
        the checkpoint does not know are set aside instead, and computed again.

        Returns:
            Notes for the report.
        """

    def holds(self, batch_id: int) -> bool:
        """Whether this very batch is published; another one of the same id is refused."""

    def release(self) -> None:
        """Give up the output for other flows; called after a run, however it ended."""


def computes_all(sink: Sink) -> bool:
    """Whether writing computes every record of a batch, which is the default.

    If a sink's ``computes_all`` is False, each batch is computed for it where state depends on it.
    """
    return bool(getattr(sink, "computes_all", True))


def ended(sink: Sink, frame: DataFrame) -> DataFrame:
    """The output of a flow, plus what the sink adds to its plan if it has a method ``end``."""
    end: Callable[[DataFrame], DataFrame] | None = getattr(sink, "end", None)
    return frame if end is None else end(frame)


def nothing() -> None:
    """Publish nothing: writing has done everything."""


def compute(frame: DataFrame) -> None:
    """Compute every record of a batch and keep none.

    A write to nowhere would do too, but then Spark analyses, plans and describes a query per batch.
    """
    inside: Any = frame
    inside._jdf.queryExecution().toRdd().count()
