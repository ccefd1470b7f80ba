"""The process that Python workers are forked from: PySpark's own, made quieter and quicker.

After every task PySpark's daemon makes the worker collect garbage, which walks through everything
that pyarrow, pandas and numpy loaded: about 13 ms, just when the next batch needs the worker. What
is loaded after the first few tasks stays for good, and so does what a later task imports: it is
frozen, so that collections skip it. A worker whose JVM is gone ends quietly instead of with a stack
trace, and a worker whose task was cancelled while its step hung ends too: the watch over its steps
gets the socket to detect that.

What every worker needs is imported once, here, before any is forked. PySpark leaves that to each
worker: most of a second of a core and 85 MB for every Python task of a flow, which is what takes
the longest where many flows are started.

A chain in real-time mode says so in its environment (``HandOver.java``). PySpark would read its
batches in a separate thread, which costs more than it gains if a batch takes microseconds: the two
threads keep waiting for each other. Here the working thread also reads, and a batch is written at
once, not buffer by buffer.

Spark starts this module by name (``spark.python.daemon.module``).
"""

from __future__ import annotations

import gc
import os
import sys
from functools import partialmethod
from importlib import import_module
from typing import TYPE_CHECKING

from pyspark import daemon

from tailrace.spark.worker.watch import WATCH

if TYPE_CHECKING:
    from socket import socket

_run_task = daemon.worker
_GONE = 1

HAND_OVER = "TAILRACE_HAND_OVER"
_BUFFER = 1 << 17

NEEDED = (
    "numpy",
    "pandas",
    "pyarrow.pandas_compat",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "tailrace.spark.worker.chain",
)
"""What a worker imports before its first record, one way or another."""

_ALLOCATOR = "JE_ARROW_MALLOC_CONF"
"""The variable that configures Arrow's jemalloc."""

_FREEZES = 3
"""How many tasks it takes until everything is loaded; the second task still loads some code."""

_MODULES = 0
"""How many modules were loaded when the worker last froze its objects."""


def worker(sock: socket, authenticated: bool) -> int:
    """Run one task like PySpark, then keep what it loaded out of garbage collection."""
    if os.environ.pop(HAND_OVER, None) is not None:  # once for all tasks of the worker
        _read_and_work()
    WATCH.connection = sock
    try:
        code: int = _run_task(sock, authenticated)
    except BrokenPipeError:
        return _GONE
    _freeze()
    return code


def _load() -> None:
    """Import what workers need, so that they have it when they are forked, and share its memory.

    A process that is forked has none of the threads of the one before, and keeps the locks that
    those held. The one thread that an import here would start is jemalloc's, which gives memory
    back: without it, whoever frees memory does. NumPy starts one for each core but the first that
    ``OMP_NUM_THREADS`` allows, 1 unless told, and ends them by itself before a fork.
    """
    os.environ.setdefault(_ALLOCATOR, "background_thread:false")
    for name in NEEDED:
        import_module(name)
    os.register_at_fork(after_in_child=_draw_anew)
    gc.collect()  # what is left is old, and no worker looks at it soon: memory stays shared


def _draw_anew() -> None:
    """Have a worker draw random numbers of its own, as if it had imported NumPy itself."""
    sys.modules["numpy"].random.seed()


def _freeze() -> None:
    """Keep existing objects out of later collections: after the first tasks, and after imports."""
    global _FREEZES, _MODULES  # one worker per process
    if _FREEZES or len(sys.modules) > _MODULES:
        _FREEZES, _MODULES = max(0, _FREEZES - 1), len(sys.modules)
        gc.collect()
        gc.freeze()


def _read_and_work() -> None:
    """Read and work in one thread, and write every batch in one piece as soon as it is ready."""
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer  # noqa: PLC0415 - only here

    os.environ["SPARK_PIPELINED_UDF"] = "0"
    os.environ["SPARK_BUFFER_SIZE"] = str(_BUFFER)
    flushing = partialmethod(ArrowStreamSerializer.__init__, flush_per_batch=True)
    ArrowStreamSerializer.__init__ = flushing  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    _load()
    daemon.worker = worker
    daemon.manager()
