"""Sinks: where the results of a flow become visible.

A sink first computes a batch and then publishes it, so that publishing is short and all or
nothing. A batch that is replayed after a crash has the same id; every sink here that stores its
batches (parquet, memory) stores each batch once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.errors import InputError
from tailrace.spark.sinks.base import OnceSink, Publish, Sink, StreamSink, compute
from tailrace.spark.sinks.parquet import Parquet
from tailrace.spark.sinks.simple import Call, Console, Discard, Each, Memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

__all__ = [
    "Call",
    "Console",
    "Discard",
    "Each",
    "Memory",
    "OnceSink",
    "Parquet",
    "Publish",
    "Sink",
    "StreamSink",
    "as_sink",
    "call",
    "compute",
    "console",
    "discard",
    "each",
    "memory",
    "parquet",
]


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
    """A function called with each record in the worker; the way to write from real-time mode."""
    return Each(function)


def call(function: Callable[[DataFrame, int], object]) -> Call:
    """The user's own function ``(frame, batch_id)``."""
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
        f"A value of type {type(given).__name__} is not a sink: use tailrace.sinks, or a function "
        "(frame, batch_id)."
    )
