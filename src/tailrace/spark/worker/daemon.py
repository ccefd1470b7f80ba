"""The process that Python workers are forked from: PySpark's own, made quieter and quicker.

After every task PySpark's daemon makes the worker collect its garbage, which walks through all
that pyarrow, pandas and numpy brought along: about 13 ms, just when the next batch wants the
worker. What is there after the first few tasks stays for good, and so does what a later one
imports: it is frozen out of the collection. A worker whose JVM has gone away ends quietly instead
of with a stack trace, and one whose task was cancelled while its step hung ends at all: the watch
over its steps is given the socket to see it by.

A chain in real-time mode says so in its environment (``HandOver.java``). PySpark would read its
batches in a thread of their own, which costs more than it gains where a batch takes microseconds:
the two threads wait for each other at every turn. Here the thread that works also reads; and a
batch is written at once, not buffer by buffer.

Spark starts this module by name (``spark.python.daemon.module``).
"""

from __future__ import annotations

import gc
import os
import sys
from functools import partialmethod
from typing import TYPE_CHECKING

from pyspark import daemon

from tailrace.spark.worker.watch import WATCH

if TYPE_CHECKING:
    from socket import socket

_run_task = daemon.worker
_GONE = 1

HAND_OVER = "TAILRACE_HAND_OVER"
_BUFFER = 1 << 17

_FREEZES = 3
"""After so many tasks what they load is there; the second still brings what it needs to go on."""

_MODULES = 0
"""How many modules were there when the worker froze what it had."""


def worker(sock: socket, authenticated: bool) -> int:
    """Run one task as PySpark does, then keep what it loaded out of garbage collection."""
    if os.environ.pop(HAND_OVER, None) is not None:  # once for all tasks of the worker
        _read_and_work()
    WATCH.connection = sock
    try:
        code: int = _run_task(sock, authenticated)
    except BrokenPipeError:
        return _GONE
    _freeze()
    return code


def _freeze() -> None:
    """Keep what is there now out of all later collections: after the first tasks, and imports."""
    global _FREEZES, _MODULES  # a worker is a process, and this is its memory of itself
    if _FREEZES or len(sys.modules) > _MODULES:
        _FREEZES, _MODULES = max(0, _FREEZES - 1), len(sys.modules)
        gc.collect()
        gc.freeze()


def _read_and_work() -> None:
    """Have one thread do both, and every batch written in one piece as soon as it is there."""
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer  # noqa: PLC0415 - not before a fork

    os.environ["SPARK_PIPELINED_UDF"] = "0"
    os.environ["SPARK_BUFFER_SIZE"] = str(_BUFFER)
    flushing = partialmethod(ArrowStreamSerializer.__init__, flush_per_batch=True)
    ArrowStreamSerializer.__init__ = flushing  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
