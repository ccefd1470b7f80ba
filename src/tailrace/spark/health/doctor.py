"""The doctor: what is missing or slow on this machine and in this session, and how to fix it."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import EnvironmentUnfit
from tailrace.masking import masked
from tailrace.spark.health import selftest
from tailrace.spark.jvm.java import JAR, require_java
from tailrace.spark.session import session
from tailrace.spark.settings import EXTENSION, Finding, conf_of, findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession


def machine() -> tuple[Finding, ...]:
    """What can be checked before a session is started."""
    return tuple(_machine())


def _machine() -> Iterator[Finding]:
    try:
        require_java()
    except EnvironmentUnfit as error:
        yield Finding(fatal=True, what=str(error), remedy="")
    pyspark = importlib.metadata.version("pyspark")
    if not pyspark.startswith("4.3."):
        yield Finding(
            fatal=True,
            what=f"PySpark {pyspark} is not supported by this version of Tailrace.",
            remedy="Install pyspark>=4.3,<4.4.",
        )
    pandas = importlib.metadata.version("pandas")
    if int(pandas.split(".")[0]) >= 3:
        yield Finding(
            fatal=False,
            what=f"PySpark 4.3 does not fully support pandas {pandas}.",
            remedy="Install pandas<3.",
        )
    if not JAR.exists():
        yield Finding(
            fatal=True,
            what="Tailrace's Java part is not built.",
            remedy="Run 'make setup', or 'python jvm/build.py'.",
        )
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen and Path(chosen).resolve() != Path(sys.executable).resolve():
        yield Finding(
            fatal=False,
            what=f"PYSPARK_PYTHON is {chosen}, not this interpreter.",
            remedy="tailrace.session() sets it; in a session of your own, unset it or set it to "
            f"{sys.executable}.",
        )


def try_session(*, plain: bool) -> tuple[Finding, ...]:
    """What a new session lacks; if it does not start, that is the finding."""
    try:
        spark = session(plain=plain)
    except EnvironmentUnfit as error:
        return (Finding(fatal=True, what=str(error), remedy=""),)
    try:
        return examine(spark)
    finally:
        spark.stop()


def examine(spark: SparkSession) -> tuple[Finding, ...]:
    """What a session lacks: its settings, its Python workers, and the speed of real-time mode."""
    found = (*findings(spark), *_workers(spark))
    if any(finding.fatal for finding in found) or conf_of(spark, EXTENSION.key) is None:
        return found
    slow = selftest.examine(spark)
    return found if slow is None else (*found, slow)


def _workers(spark: SparkSession) -> Iterator[Finding]:
    def who(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys  # noqa: PLC0415 - it runs in the worker

        import pyarrow as pa  # noqa: PLC0415 - it runs in the worker

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    try:
        workers = spark.range(1).mapInArrow(who, "python string").toArrow()["python"].to_pylist()
    except Exception as error:  # noqa: BLE001 - any error is the finding
        yield Finding(
            fatal=True,
            what=f"Python workers do not work ({_last_line(error)}).",
            remedy=f"Set PYSPARK_PYTHON to {sys.executable} before the session starts.",
        )
        return
    if any(Path(python).resolve() != Path(sys.executable).resolve() for python in workers):
        yield Finding(
            fatal=False,
            what=f"Python workers run {workers[0]}, not this interpreter.",
            remedy=f"Set PYSPARK_PYTHON to {sys.executable} before the session starts.",
        )


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "Error" in line]
    return masked(lines[-1]) if lines else type(error).__name__
