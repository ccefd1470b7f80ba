"""Scale: one load, every policy, on a real cluster on this machine.

PrimeTest under its staircase, on a standalone cluster with 1 to 8 executors of one core. The
testing step waits 5 ms for each record, as if for an answer from another machine, so that two cores
are enough for eight executors; everything else is real: processes start and end, queries take up
new executors between two batches, and records wait in the meantime. The first step of the load is
the warm-up, as in the original (Lohrmann 2016, section 5.1.2), and does not count. For comparison,
it also runs Spark's own dynamic allocation, in a separate session, and constant numbers of
executors, to find the fewest that keep the bound as often as ours.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.checkpoint import Kept
from bench.rivals import rivals
from bench.rivals.rules import Constant, Peak
from bench.standstill import moving
from tailrace import load
from tailrace.errors import FlowFailed
from tailrace.policy.scaling.choice import scalers
from tailrace.report.machine import described
from tailrace.report.saso import SizedStep, saso
from tailrace.report.saso import table as saso_table
from tailrace.report.sizes import plot
from tailrace.spark import sinks
from tailrace.spark.backends.base import now_us
from tailrace.spark.cluster import archive
from tailrace.spark.cluster.executors import Executors
from tailrace.spark.cluster.local import Cluster
from tailrace.spark.flow import Flow
from tailrace.spark.from_file import send_by_value
from tailrace.spark.pipeline.step import step
from tailrace.spark.session import few_executors, session
from tailrace.spark.sources import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from rich.table import Table

    from tailrace.policy.scaling.sizing import Scaler
    from tailrace.report.data import Report
    from tailrace.spark.pipeline.trace import Pipeline
    from tailrace.spark.run import Run

    Done = Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]]

MOST = 8
WAIT_MS = 5.0
BOUND_MS = 1_000.0
EVERY_S = 5.0
BATCH = 2_000
"""The limit of records per batch, which users set on their sources (such as
``maxOffsetsPerTrigger`` of Kafka): without it, a run with too few executors would be stuck in one
batch for minutes, and could not be compared. Batches that keep the bound are smaller."""

LOW_PER_S, HIGH_PER_S = 100.0, 800.0
STAIRS = load.Staircase(LOW_PER_S, HIGH_PER_S, steps=7, step_s=60)
"""As in the original, at one hundredth of its rates."""

SHORT = load.Staircase(LOW_PER_S, HIGH_PER_S, steps=2, step_s=12)
"""Hardly longer than executors take to start: a late reaction is late for a whole step."""

SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=128m"
    ),
}
"""Eight executors share two cores here, so they must not spend CPU on compiling code twice, on
parallel garbage collection, or on collections triggered by class loading."""

OWN = few_executors(1, MOST, 1)
"""Spark decides: more executors while tasks wait for a slot, fewer when they idle for a minute."""

POLICIES = ("predictive", "reactive", "Th-Rule", "Lat-Rule", "SPL", "DS2")
QUICK = ("predictive", "Th-Rule")
SPARKS_OWN = "Spark's own"


def measure(*, quick: bool, keep: Path | None = None) -> dict[str, Any]:
    """Run every policy under the same load, and constant numbers of executors beside them.

    Finished runs are kept in the file ``keep``; runs during which the machine stood still are
    repeated.
    """
    stairs = SHORT if quick else STAIRS
    known = scalers() | rivals()
    makers = {name: known[name] for name in (QUICK if quick else POLICIES)}
    kept = Kept(keep, step_s=stairs.step_s)

    def done(name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return kept(name, partial(moving, run))

    with _cluster() as cluster:
        with _warm_session(cluster) as spark:
            runs = [
                done(name, partial(_run, spark, name, make, stairs))
                for name, make in makers.items()
            ]
            constants = _constants(spark, done, runs[0], stairs, quick=quick)
        if not quick:
            runs.append(done(SPARKS_OWN, partial(_run_sparks_own, cluster.master, stairs)))
    return {
        "bound_ms": BOUND_MS,
        "step_s": stairs.step_s,
        "policies": runs,
        "constants": constants,
        "best_constant": _best(constants, runs[0]["fulfilled_share"]),
        "machine": described(),
    }


def _cluster() -> Cluster:
    send_by_value(sys.modules[__name__])  # workers would import every benchmark with it
    archive.ensure()
    return Cluster(workers=1, cores=MOST, memory="512 MiB")


@contextmanager
def elastic_session() -> Iterator[SparkSession]:
    """A session with executors that may come and go, on a cluster of its own."""
    with _cluster() as cluster, _warm_session(cluster) as spark:
        yield spark


@contextmanager
def _warm_session(cluster: Cluster) -> Iterator[SparkSession]:
    """A session with executors that may come and go, after it ran the flow for a while."""
    spark = session("scale", master=cluster.master, settings=SMALL, executors=(1, MOST))
    try:
        _warm_up(spark)
        yield spark
    finally:
        spark.stop()


def _constants(
    spark: SparkSession, done: Done, ours: dict[str, Any], stairs: load.Staircase, *, quick: bool
) -> list[dict[str, Any]]:
    """Constant numbers, largest first, including the fewest that keep as much as ours.

    Starting from the number that our model gives for the highest rate, it goes down as long as the
    share kept is as high, or up until it is; and it includes the maximum, which is what users
    without scaling have. The number that an interval needs is unknown if the run ended within it.
    """
    found: dict[int, dict[str, Any]] = {}

    def keeps(size: int) -> bool:
        name = f"{size} executors"
        found[size] = done(name, partial(_run, spark, name, partial(Constant, size), stairs, size))
        return bool(found[size]["fulfilled_share"] >= ours["fulfilled_share"])

    keeps(MOST)
    if not quick:
        size = max((step["least"] for step in ours["steps"] if step["least"]), default=MOST)
        if keeps(size):
            while size > 1 and keeps(size - 1):
                size -= 1
        else:
            while size < MOST and not keeps(size + 1):
                size += 1
    return [found[size] for size in sorted(found, reverse=True)]


def _best(constants: list[dict[str, Any]], share: float) -> dict[str, Any]:
    """The cheapest run that keeps as much; if there is none, the one that keeps most."""
    enough = [run for run in constants if run["fulfilled_share"] >= share]
    if not enough:
        return max(constants, key=lambda run: float(run["fulfilled_share"]))
    return min(enough, key=lambda run: float(run["core_seconds"]))


def _run(
    spark: SparkSession,
    name: str,
    make: Callable[[], Scaler],
    stairs: load.Staircase,
    size: int = 1,
) -> dict[str, Any]:
    report = elastic_run(spark, name, make(), stairs, size).data
    steps = [_step(interval, report, stairs) for interval in _counted(report)]
    return _outcome(name, report, report["scaling"], steps, stairs)


def elastic_run(
    spark: SparkSession, name: str, scaler: Scaler, stairs: load.Staircase, size: int = 1
) -> Report:
    """The flow under the whole load, from ``size`` executors up."""
    _begin_with(spark, size)
    flow = _flow(pipeline, stairs, executors=(size, MOST), scaler=scaler)
    return _followed(name, flow.start(spark), stairs)


def _run_sparks_own(master: str, stairs: load.Staircase) -> dict[str, Any]:
    """The same under Spark's own allocation, always with the most partitions."""
    sizes = list[tuple[int, int]]()
    spark = session("scale", master=master, settings=SMALL | OWN)
    try:
        fleet: Any = spark.sparkContext

        def count() -> None:
            ready = fleet._jvm.tailrace.cluster.ExecutorPool.ready(fleet._jsc.sc())
            sizes.append((now_us(), len(ready)))

        run = _flow(widest, stairs).start(spark)
        report = _followed(SPARKS_OWN, run, stairs, count).data
    finally:
        spark.stop()
    steps = []
    for interval in _counted(report):
        begun_us = interval["start_us"]
        here = [size for at_us, size in sizes if 0 <= at_us - begun_us < EVERY_S * 1e6]
        steps.append(_step(interval, report, stairs) | {"size": max(here, default=1)})
    return _outcome(SPARKS_OWN, report, saso(_sized(steps)).as_json(), steps, stairs)


def _flow(steps: Pipeline, stairs: load.Staircase, **elastic: Any) -> Flow:
    return Flow(
        "primes",
        replay(load.generate(stairs, seed=1), most_records=BATCH),
        steps,
        sinks.discard(),
        warm_up=f"{stairs.step_s} s",
        interval=f"{EVERY_S} s",
        **elastic,
    ).keep(mean=BOUND_MS, every=f"{EVERY_S} s")


def _followed(
    name: str, run: Run, stairs: load.Staircase, look: Callable[[], None] = lambda: None
) -> Report:
    """Run a flow through the whole load, and check on it from time to time."""
    for _ in run.looks(stairs.duration_s, threading.Event()):
        look()
    if run.wait(0):
        run.stop()
        raise FlowFailed(f"The flow under '{name}' ended by itself: see its messages.")
    return run.stop()


def _counted(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [interval for interval in report["intervals"] if not interval["warm_up"]]


def _step(
    interval: dict[str, Any], report: dict[str, Any], stairs: load.Staircase
) -> dict[str, Any]:
    return {
        "at_s": round((interval["start_us"] - report["origin_us"]) / 1e6 - stairs.step_s, 1),
        "rate_per_s": interval["rate_per_s"],
        "size": interval["slots"],
        "least": interval["needed"],
        "latency_ms": interval["mean_ms"],
    }


def _sized(steps: list[dict[str, Any]]) -> list[SizedStep]:
    """The control steps of a run, in the form for reports and pictures."""
    return [
        SizedStep(
            round((step["at_s"] + EVERY_S) * 1e6),
            EVERY_S * 1e3,
            step["size"],
            step["rate_per_s"],
            step["latency_ms"],
            violated=step["latency_ms"] > BOUND_MS,
            least_size=step["least"],
        )
        for step in steps
    ]


def _most_moves(steps: list[dict[str, Any]], step_s: float) -> int:
    """The most moves during any one step of the load's staircase."""
    moves = Counter(
        now["at_s"] // step_s for before, now in pairwise(steps) if now["size"] != before["size"]
    )
    return max(moves.values(), default=0)


def _outcome(
    name: str,
    report: dict[str, Any],
    figures: dict[str, Any],
    steps: list[dict[str, Any]],
    stairs: load.Staircase,
) -> dict[str, Any]:
    return {
        "name": name,
        "fulfilled_share": report["fulfilled_share"],
        **figures,
        "most_moves": _most_moves(steps, stairs.step_s),
        "intervals": len(steps),
        "mean_ms": report["latency_ms"]["mean_ms"],
        "steps": steps,
        "decisions": [d for d in report["decisions"] if d["policy"] == "scaling"],
    }


def pipeline(records: DataFrame) -> DataFrame:
    """The flow's step, on as many partitions as there are executors."""
    return records.transform(step("test", answer, "seq long", scale=(1, 4 * MOST)))


def widest(records: DataFrame) -> DataFrame:
    """The same, on as many partitions as the maximum of executors."""
    return records.transform(step("test", answer, "seq long", scale=(MOST, MOST)))


def answer(row: Any) -> int:
    """Wait, as if for an answer from another machine."""
    time.sleep(WAIT_MS / 1e3)
    return int(row.seq)


def _warm_up(spark: SparkSession) -> None:
    """Run the flow for a while, so that no policy pays for a cold JVM."""
    _begin_with(spark, 2)
    gentle = load.generate(load.Constant(LOW_PER_S, "30 s"), seed=2)
    flow = Flow("warm-up", gentle, pipeline, sinks.discard(), executors=(2, 2), scaler=Peak())
    flow.keep(mean=BOUND_MS).run(30.0, spark)


def _begin_with(spark: SparkSession, size: int) -> None:
    """Set the session's number of executors, and wait until they are there."""
    executors = Executors(spark)
    executors.ask_for(size)
    deadline = time.monotonic() + 120
    while len(executors.ready()) != size:
        executors.end_surplus()
        if time.monotonic() > deadline:
            raise FlowFailed(executors.missing() or f"No {size} executors in two minutes.")
        time.sleep(0.2)


def draw(result: dict[str, Any], path: Path) -> Path:
    """Draw the result: every policy, and the best constant number."""
    shown = (*result["policies"], result["best_constant"])
    return plot(path, {run["name"]: _sized(run["steps"]) for run in shown}, result["bound_ms"])


def table(result: dict[str, Any]) -> Table:
    """The result as a table."""
    runs = (*result["policies"], *result["constants"])
    figures = {run["name"]: saso(_sized(run["steps"])) for run in runs}
    # Only the run itself knows what was starting.
    held = {run["name"]: run["core_seconds"] for run in runs}
    shown = saso_table({n: replace(found, core_seconds=held[n]) for n, found in figures.items()})
    shown.title = f"PrimeTest's staircase, mean of {result['bound_ms']:g} ms, on real executors"
    return shown
