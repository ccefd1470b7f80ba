"""A turn: runs the three steps of ``bench floor`` in real-time mode for a while and measures them.

The load begins gently, so that one-time work of a query (compiling code, starting workers) leaves
no backlog, and counting starts a little after the full rate is reached: the peers warm up in the
same way. Record i is due at t0 + i / rate, as for the peers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psutil

from bench.floor import SCHEMA, pass_on
from bench.peers import BOUND_MS
from tailrace import load
from tailrace.errors import FlowFailed
from tailrace.plan import Backend, first_plan
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.moments import Moments
from tailrace.spark import sinks
from tailrace.spark.flow import Flow
from tailrace.spark.health.usage import cpu_seconds
from tailrace.spark.pipeline.step import batch_step, step
from tailrace.spark.sources import replay

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.control import IntervalRecord
    from tailrace.graph import Graph
    from tailrace.plan import Plan

NAMES = ("first", "second", "third")
GENTLE_S = 3.0
"""How long the load is gentle: a warm JVM starts a query and its workers in less time."""

GENTLE_PER_S = 2_000
SETTLE_S = 6.0
"""The start of every turn, which is not counted; its last seconds are at the full rate."""

SPARE_S = 1.0
LEAST_SHARE = 0.95
"""The share of the due records that must arrive: the edges of the counted part are known to a tenth
of a second."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a turn runs: Arrow steps or row steps, in one chain or three, watched or bounded."""

    rate_per_s: float
    seconds: float
    rows: bool = False
    chained: bool = True
    bound_ms: float | None = None
    settle_s: float = SETTLE_S
    interval_s: float = 1.0
    recovery_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Turn:
    """The measurements of the counted part of a turn.

    ``drift_ms`` is how much later the records of its last fifth were than those of its first,
    ``batches`` the number of real-time batches in the whole turn: if it is 1, the figures include
    no gap between batches. ``others_cores`` is how many cores were busy with something else; if
    that is high, the turn means little. ``share_kept`` is the share of intervals whose mean was
    within the bound.
    """

    rate_per_s: float
    records: int
    due: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    drift_ms: float
    batches: int
    cpu_s: float
    others_cores: float = 0.0
    records_per_hand_over: float | None = None
    share_kept: float | None = None

    @property
    def cpu_s_per_million(self) -> float:
        """CPU time of the JVM, its workers and the driver for a million records."""
        return self.cpu_s / max(1, self.records) * 1e6

    def held(self, bound_ms: float = BOUND_MS) -> bool:
        """Whether the flow kept up, by the same rule as for the peers."""
        complete = self.records >= LEAST_SHARE * self.due
        return complete and self.p99_ms < bound_ms and self.drift_ms < bound_ms / 2


def counted(
    history: list[IntervalRecord], origin_us: int, setup: Setup
) -> tuple[IntervalRecord, ...]:
    """The intervals that lie entirely in the counted part of a turn."""
    from_us = origin_us + setup.settle_s * 1e6
    until_us = from_us + setup.seconds * 1e6
    return tuple(
        interval
        for interval in history
        if from_us <= interval.start_us and interval.start_us + interval.every_ms * 1e3 <= until_us
    )


def summed_up(
    setup: Setup,
    intervals: tuple[IntervalRecord, ...],
    *,
    batches: int,
    cpu_s: float,
    others_cores: float = 0.0,
    records_per_hand_over: float | None = None,
) -> Turn:
    """The summary of the intervals. If they contain no record, the flow is stuck."""
    if not intervals:
        raise FlowFailed(
            f"At {setup.rate_per_s:,.0f} records/s the flow passed none in {setup.seconds:g} s:"
            " run tailrace doctor, and try again when the machine does less."
        )
    latencies = LogHistogram.merged(interval.latencies_ms for interval in intervals)
    moments = Moments.merged(interval.latency_ms for interval in intervals)
    fifth = max(1, len(intervals) // 5)
    kept = [setup.bound_ms is None or i.latency_ms.mean <= setup.bound_ms for i in intervals]
    return Turn(
        setup.rate_per_s,
        int(moments.count),
        setup.rate_per_s * sum(interval.every_ms for interval in intervals) / 1e3,
        moments.mean,
        latencies.quantile_ms(0.5),
        latencies.quantile_ms(0.95),
        latencies.quantile_ms(0.99),
        latencies.max_ms(),
        _median_ms(intervals[-fifth:]) - _median_ms(intervals[:fifth]),
        batches,
        cpu_s,
        others_cores,
        records_per_hand_over,
        None if setup.bound_ms is None else sum(kept) / len(kept),
    )


def _median_ms(intervals: tuple[IntervalRecord, ...]) -> float:
    return LogHistogram.merged(i.latencies_ms for i in intervals).quantile_ms(0.5)


def take_turn(spark: SparkSession, setup: Setup) -> Turn:
    """Run the flow, and measure only the counted part."""
    counting = _Counting(spark, time.time() + setup.settle_s)
    run = _flow(setup, counting).start(spark, plan=None if setup.chained else _apart(setup))
    run.wait(setup.settle_s)
    began_cpu_s, began_busy_s = cpu_seconds(), _busy_s()
    run.wait(setup.seconds)
    cpu_s, busy_s = cpu_seconds() - began_cpu_s, _busy_s() - began_busy_s
    report = run.stop()
    controller = run.controller
    return summed_up(
        setup,
        counted(controller.log.history, controller.log.origin_us, setup),
        batches=report.data["batches"],
        cpu_s=cpu_s,
        others_cores=max(0.0, busy_s - cpu_s) / setup.seconds,
        records_per_hand_over=None if setup.rows else counting.mean(),
    )


def _busy_s() -> float:
    """CPU seconds spent by the whole machine so far, including time stolen by other guests."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


class _Counting:
    """Counts hand-overs and their records in the first step, from a given time on."""

    def __init__(self, spark: SparkSession, from_s: float) -> None:
        self._hand_overs = spark.sparkContext.accumulator(0)
        self._records = spark.sparkContext.accumulator(0)
        self._from_s = from_s

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if time.time() >= self._from_s:
            self._hand_overs += 1
            self._records += batch.num_rows
        return batch

    def mean(self) -> float | None:
        """Records per hand-over; known once the batch has ended."""
        hand_overs = self._hand_overs.value
        return self._records.value / hand_overs if hand_overs else None


def _flow(setup: Setup, counting: _Counting) -> Flow:
    flow = Flow(
        "realtime",
        replay(trace(setup), partitions=1),
        _pipeline(setup, counting),
        sinks.discard(),
        backend="realtime",
        mode="observe" if setup.bound_ms is None else "enforce",
        interval=f"{setup.interval_s} s",
        recovery=f"{setup.recovery_s} s",
        warm_up=f"{setup.settle_s} s",
    )
    if setup.bound_ms is not None:
        flow.keep(mean=setup.bound_ms, every=f"{setup.interval_s} s")
    return flow


def trace(setup: Setup) -> load.Trace:
    """The load of a turn: gentle, then at its rate until after the end."""
    rate_per_s, length_s = setup.rate_per_s, setup.settle_s + setup.seconds + SPARE_S
    gentle = min(rate_per_s, GENTLE_PER_S)
    profile = load.Burst(gentle, rate_per_s, GENTLE_S, length_s - GENTLE_S, length_s)
    return load.generate(profile, arrivals="even", keys=load.Uniform(1_000))


def _pipeline(setup: Setup, counting: _Counting) -> Callable[[DataFrame], DataFrame]:
    def pipeline(records: DataFrame) -> DataFrame:
        records = records.select("seq", "due", "key")
        for place, name in enumerate(NAMES):
            function: Any = pass_on if setup.rows or place else counting
            kind = step if setup.rows else batch_step
            records = records.transform(kind(name, function, SCHEMA))
        return records

    return pipeline


def _apart(setup: Setup) -> Callable[[Graph], Plan]:
    """The plan in which each step has its own hand-over."""

    def plan(graph: Graph) -> Plan:
        first = first_plan(graph, setup.recovery_s * 1e3, slots=1)
        chains = tuple((name,) for name in NAMES)
        return replace(first, chains=chains, backend=Backend.REALTIME)

    return plan
