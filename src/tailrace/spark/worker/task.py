"""The task that this code runs in: its partition and batch. Outside of a task, both are 0."""

from __future__ import annotations

from pyspark import TaskContext


def partition() -> int:
    """The number of the partition."""
    context = TaskContext.get()
    return context.partitionId() if context else 0


def batch() -> int:
    """The id of the batch, as Spark's log counts them."""
    context = TaskContext.get()
    return int((context.getLocalProperty("streaming.sql.batchId") if context else None) or 0)
