"""The process that Python workers are forked from: PySpark's own, made quieter and quicker.

After every task PySpark's daemon makes the worker collect its garbage, which walks through all
that pyarrow, pandas and numpy brought along: about 13 ms, just when the next batch
wants the worker. What is there after the first task stays for good, so it is frozen out of the
collection. And a worker whose JVM has gone away ends quietly instead of with a stack trace.

Spark starts this module by name (``spark.python.daemon.module``).
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from pyspark import daemon

if TYPE_CHECKING:
    from socket import socket

_run_task = daemon.worker
_GONE = 1


def worker(sock: socket, authenticated: bool) -> int:
    """Run one task as PySpark does, then keep what it loaded out of garbage collection."""
    try:
        code: int = _run_task(sock, authenticated)
    except BrokenPipeError:
        return _GONE
    if gc.get_freeze_count() == 0:
        gc.freeze()
    return code


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
