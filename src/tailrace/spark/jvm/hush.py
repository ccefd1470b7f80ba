"""Suppresses what PySpark prints when the JVM dies in the middle of a run.

Its threads and Py4J log what they also raise, a stack trace for each pending call. The run reports
it in one sentence.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def hush(spark: SparkSession) -> None:
    """Quieten a session; repeated calls change nothing."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4j)  # an existing filter is not added again
    inside: Any = spark.sparkContext
    server = inside._accumulatorServer
    if not isinstance(server.handle_error, _WhereNotGone):
        server.handle_error = _WhereNotGone(server.handle_error)


class _WhereNotGone:
    """Handles errors as before, except those of a JVM that is gone."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell

    def __call__(self, request: Any, client: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            self._tell(request, client)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Whether a message to the root logger is not one of Py4J's."""
    return Path(record.pathname).parent.name != "py4j"
