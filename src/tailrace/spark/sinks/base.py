"""What a flow asks of the place that its results go to."""

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


@runtime_checkable
class OnceSink(Sink, Protocol):
    """A sink that keeps every batch once, and so must know which batch it is that it has."""

    def follow(self, log: BatchLog, *, complete: bool, after_restore: bool) -> tuple[str, ...]:
        """Compare what is published with the log of the checkpoint, and refuse what does not fit.

        With ``complete`` every committed batch must be there. With ``after_restore`` batches that
        the checkpoint does not know are set aside instead, and computed again.

        Returns:
            What a report should say of it.
        """

    def holds(self, batch_id: int) -> bool:
        """Whether this very batch is published; another one of the same id is refused."""

    def release(self) -> None:
        """Let another flow have the place; called when the run is over, however it ended."""


def computes_all(sink: Sink) -> bool:
    """Whether writing computes every record of a batch, as it does unless a sink says otherwise.

    A sink whose ``computes_all`` is False has each batch computed for it where state depends on it.
    """
    return bool(getattr(sink, "computes_all", True))


def ended(sink: Sink, frame: DataFrame) -> DataFrame:
    """The output of a flow, with what the sink adds to its plan if it has a method ``end``."""
    end: Callable[[DataFrame], DataFrame] | None = getattr(sink, "end", None)
    return frame if end is None else end(frame)


def nothing() -> None:
    """What is left to do where writing was all."""


def compute(frame: DataFrame) -> None:
    """Compute every record of a batch and keep none.

    A write to nowhere would do, and has Spark analyse, plan and describe a query for each batch.
    """
    inside: Any = frame
    inside._jdf.queryExecution().toRdd().count()
