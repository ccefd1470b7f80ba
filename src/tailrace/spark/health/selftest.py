"""The self-test of real-time mode: do records really flow within milliseconds here?

Real-time mode relies on settings and on internals of Spark, and if one of them is wrong, records
still flow, but seconds late. So before the first real-time flow of a session, we run a very short
one of our own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from tailrace import load
from tailrace.constraint import SINK
from tailrace.control import Controller, Mode
from tailrace.control.backend import Steering
from tailrace.errors import EnvironmentUnfit
from tailrace.plan import Backend, Plan
from tailrace.spark.backends.base import Job
from tailrace.spark.backends.realtime import RealTime
from tailrace.spark.pipeline.step import batch_step
from tailrace.spark.pipeline.trace import trace
from tailrace.spark.settings import Finding, findings
from tailrace.spark.sinks import Discard
from tailrace.spark.sources import replay

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BOUND_MS = 100.0
"""More than a busy machine takes, and far less than any unflushed buffer causes."""

RATE_PER_S = 200

FIRST_S = 60.0
"""How long the first record may take: a new session has to load all of its code and workers."""

LONGEST_S = 20.0
"""How long records may take to get fast after the first has come through."""

_passed: set[str] = set()
_testing = Lock()
"""Of flows that start at the same time one tests, and the others wait for what it finds."""


def require_milliseconds(spark: SparkSession) -> None:
    """Refuse a session in which records do not flow fast; tested once per session."""
    application = spark.sparkContext.applicationId or ""
    with _testing:
        if application in _passed:
            return
        found = examine(spark)
        if found is not None:
            raise EnvironmentUnfit(f"{found.what} {found.remedy}")
        _passed.add(application)


def examine(spark: SparkSession) -> Finding | None:
    """What keeps records from flowing within milliseconds, if anything does."""
    median_ms = _median_ms(spark)
    if median_ms is not None and median_ms <= BOUND_MS:
        return None
    lacks = [finding.what for finding in findings(spark)]
    cause = f"due to a setting: {lacks[0]}" if lacks else "the machine is busy, or Spark differs"
    took = "none came through" if median_ms is None else f"half of them took {median_ms:.0f} ms"
    return Finding(
        fatal=True,
        what=f"In real-time mode records do not flow within milliseconds in this session ({took}).",
        remedy=f"Perhaps {cause}; 'tailrace doctor' says more.",
    )


def _median_ms(spark: SparkSession) -> float | None:
    """The median latency of a second of records through a step that does nothing."""

    def pass_on(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def pipeline(records: DataFrame) -> DataFrame:
        return records.transform(
            batch_step("nothing", pass_on, "seq long, due timestamp, key string, payload string")
        )

    trace_ = load.generate(load.Constant(RATE_PER_S, FIRST_S + LONGEST_S), arrivals="even")
    with tempfile.TemporaryDirectory(prefix="tailrace-", ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch)
        opened = replay(trace_, partitions=1).open(spark, directory)
        graph = trace(pipeline, opened.frame)
        plan = Plan((FIRST_S + LONGEST_S) * 1e3, (("nothing",),), backend=Backend.REALTIME)
        controller = Controller(graph, (), mode=Mode.OBSERVE, interval_ms=500.0)
        job = Job(
            "tailrace-self-test", spark, opened.frame, opened.arrived, pipeline,
            {SINK: Discard()}, None, directory, source_partitions=1,
        )  # fmt: skip
        backend = RealTime(job, graph, plan, Steering(controller).tell)
        backend.start()
        try:
            return _settled(backend, controller)
        finally:
            backend.stop()


def _settled(backend: RealTime, controller: Controller) -> float | None:
    """The median of the first half second in which records flow fast, or else of the last one."""
    left_s, step_s = FIRST_S, 0.1
    median_ms = None
    while left_s > 0 and not backend.wait(step_s):
        left_s -= step_s
        if controller.log.history:
            left_s = left_s if median_ms else LONGEST_S
            median_ms = controller.log.history[-1].latencies_ms.quantile_ms(0.5)
            if median_ms <= BOUND_MS:
                break
    if backend.failure is not None:
        raise backend.failure
    return median_ms
