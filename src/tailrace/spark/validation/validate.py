"""Are predictions right? Every configuration is predicted from the profile of every other.

Six topologies run on Spark in both backends, each under several plans and at several utilisations.
The profile that each run leaves predicts all other runs of the topology, without looking at them.
The engine's costs in a backend that the profile lacks come from a flow of trivial steps, measured
once at the start.

A saturated run, at one and a half times the limit of the first profile, shows whether overload was
predicted.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import functions as sf
from rich.table import Table

from tailrace import load
from tailrace.constraint import SOURCE
from tailrace.errors import FlowFailed, InputError
from tailrace.model.capacity import capacity
from tailrace.model.keys.murmur import partition_of
from tailrace.model.loads import Router
from tailrace.model.predict import completed
from tailrace.plan import Backend, Plan, chain_name
from tailrace.report.machine import described
from tailrace.spark import sinks
from tailrace.spark.flow import Flow
from tailrace.spark.session import session
from tailrace.spark.sources import replay
from tailrace.spark.validation.cross_validation import Case, Overloaded, Runs, judged
from tailrace.spark.validation.retry_if_noisy import Quiet
from tailrace.spark.validation.topologies import KEYS, TOPOLOGIES, TRIVIAL, Topology

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pyspark.sql import SparkSession

    from tailrace.graph import Graph
    from tailrace.profile.batch import BatchMeasure
    from tailrace.profile.profile import Profile
    from tailrace.report.data import Report

_LOG = logging.getLogger(__name__)

SLOTS = 10
"""More than the machine has: the steps wait most of the time."""

START_S, START_SHARE = 6.0, 0.1
"""Runs start slowly, so that no backlog from the start is left when measuring begins."""

WARM_UP_S = 11.0
MEASURED_S = 18.0
MEASURED = 4_000
LONGEST_S = 40.0
"""How long to measure: until this many records have come, which windows of ten reduce to a few."""

INTERVAL = "2 s"

UTILISATIONS = (0.35, 0.55, 0.7, 0.83, 0.92)
"""How busy runs should be, by the first profile; how busy they were, their own profile says."""

MOST_PARTITIONS = 16
TRIVIAL_PER_S = 500.0
OVERLOAD = 1.5
BATCH_LENGTH_MS = 60_000.0

FULL = 0.95
"""A task that is busy for this share of the time always has work, up to measurement errors."""


def measure(*, quick: bool) -> dict[str, Any]:
    """Run every configuration, predict each from the others, and compare."""
    spark = session("validate", master=f"local[{SLOTS}]")
    try:
        run = _Runner(spark)
        engine = _engine(run)
        topologies = TOPOLOGIES[:2] if quick else TOPOLOGIES
        cases, overloads = _run_topologies(run, topologies, quick=quick)
        misplaced = _misplaced(spark)
    finally:
        spark.stop()
    runs = Runs(tuple(cases), engine, tuple(overloads), misplaced)
    return _result(runs, {**described(), "quiet": run.quiet.as_json()})


def _run_topologies(
    run: _Runner, topologies: Iterable[Topology], *, quick: bool
) -> tuple[list[Case], list[Overloaded]]:
    cases: list[Case] = []
    overloads: list[Overloaded] = []
    for topology in topologies:
        for backend in Backend:
            found, overload = _run_all(run, topology, backend, quick=quick)
            cases += found
            overloads.append(overload)
            _LOG.info("%s", overload.told(overload.errors(found)))
    return cases, overloads


def again(result: dict[str, Any], anew: Collection[str] = ()) -> dict[str, Any]:
    """Judge the runs of a result by the current model, after rerunning some topologies."""
    runs, machine = Runs.from_json(result["runs"]), result["machine"]
    if anew:
        unknown = set(anew) - {topology.name for topology in TOPOLOGIES}
        if unknown:
            known = ", ".join(topology.name for topology in TOPOLOGIES)
            raise InputError(f"There is no topology '{min(unknown)}': choose from {known}.")
        cases, overloads, quiet = _run_anew(anew)
        runs = runs.replaced(anew, cases, overloads)
        machine = {**described(), "quiet": quiet.as_json()}
    return _result(runs, machine)


def _run_anew(names: Collection[str]) -> tuple[list[Case], list[Overloaded], Quiet]:
    """All runs of some topologies, after warm-up runs."""
    spark = session("validate", master=f"local[{SLOTS}]")
    try:
        run = _Runner(spark)
        _engine(run)
        chosen = [topology for topology in TOPOLOGIES if topology.name in names]
        return *_run_topologies(run, chosen, quick=False), run.quiet
    finally:
        spark.stop()


def _result(runs: Runs, machine: dict[str, Any]) -> dict[str, Any]:
    return {**judged(runs), "runs": runs.as_json(), "machine": machine}


def _engine(run: _Runner) -> dict[Backend, Profile]:
    """The engine's costs in each backend, once the JVM is warm."""
    found = {}
    for backend in [*Backend, *Backend]:
        found[backend] = run(TRIVIAL, SHAPES[backend][0], TRIVIAL_PER_S).profile
    return found


# --- running ------------------------------------------------------------------------------------


def _run_all(
    run: _Runner, topology: Topology, backend: Backend, *, quick: bool
) -> tuple[list[Case], Overloaded]:
    """The configurations of a topology in a backend: one to learn from, then by utilisation."""
    shapes = SHAPES[backend][: 2 if quick else None]
    stages = max(1, len(topology.own)) if backend is Backend.MICROBATCH else 1
    first = run(topology, shapes[0], 0.3 * topology.per_s / stages).profile
    cases = []
    for shape, share in zip(shapes, UTILISATIONS, strict=False):  # fewer shapes if quick
        saturation = capacity(first, shape.plan(topology)).saturation_per_s
        done = run(topology, shape, share * saturation)
        busy = done.profile.rate_per_s / capacity(done.profile).saturation_per_s
        cases.append(Case(topology.name, done.profile, busy, done.arrivals))
    return cases, _overloaded(run, topology, shapes[1], first)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is varied: the wait of batches or hand-overs, and the partitions of wide steps."""

    backend: Backend
    wait_ms: float
    partitions: int

    def plan(self, topology: Topology) -> Plan:
        """The plan without its chains, which will be the longest possible."""
        live = self.backend is Backend.REALTIME
        interval_ms = BATCH_LENGTH_MS if live else self.wait_ms
        own = dict.fromkeys(topology.own, self.partitions)
        return Plan(interval_ms, (), own, self.backend)

    def on(self, topology: Topology, graph: Graph) -> Plan:
        """The plan with chains, and the lifetimes of their hand-overs."""
        chains = graph.primary_chains()
        waits = self.backend is Backend.REALTIME and self.wait_ms > 0
        lifetimes = {chain_name(chain): self.wait_ms for chain in chains} if waits else {}
        return replace(self.plan(topology), chains=chains, lifetimes_ms=lifetimes)


SHAPES = {
    Backend.MICROBATCH: [
        Shape(Backend.MICROBATCH, wait_ms, partitions)
        for wait_ms, partitions in ((0.0, 1), (400.0, 2), (800.0, 4), (0.0, 2), (600.0, 2))
    ],
    Backend.REALTIME: [
        Shape(Backend.REALTIME, wait_ms, partitions)
        for wait_ms, partitions in ((0.0, 1), (5.0, 2), (10.0, 4), (20.0, 2), (0.0, 2))
    ],
}


@dataclass(frozen=True, slots=True)
class Done:
    """A run: its profile, arrivals at its steps, its report, its batches if any, its length."""

    profile: Profile
    arrivals: Mapping[str, float]
    report: Report
    batches: list[BatchMeasure]
    seconds: float


class _Runner:
    """Runs topologies, and repeats runs if other processes slowed down the machine."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.quiet = Quiet()

    def __call__(self, topology: Topology, shape: Shape, rate: float) -> Done:
        return self.quiet(lambda: _run(self._spark, topology, shape, rate))


def _run(spark: SparkSession, topology: Topology, shape: Shape, rate: float) -> Done:
    """Run a topology in one shape at one rate."""
    seconds = WARM_UP_S + min(max(MEASURED_S, MEASURED / rate), LONGEST_S)
    whole = load.Burst(START_SHARE * rate, rate, START_S, seconds - START_S + 5, seconds + 5)
    trace = load.generate(whole, keys=topology.keys, seed=7)
    flow = Flow(
        topology.name,
        replay(trace, partitions=topology.sources),
        topology.pipeline,
        sinks.discard(),
        mode="observe",
        backend=str(shape.backend),
        interval=INTERVAL,
        recovery=BATCH_LENGTH_MS,
        warm_up=WARM_UP_S * 1e3,
    )
    batches: list[BatchMeasure] = []
    run = flow.start(spark, plan=lambda graph: shape.on(topology, graph), on_measure=batches.append)
    for _ in run.looks(seconds, threading.Event()):
        pass
    report = run.stop()
    if report.profile is None:
        raise FlowFailed(f"A run of '{topology.name}' left no profile: let it run longer.")
    windows = topology.windows
    steps = tuple(replace(s, window=windows.get(s.name, 1)) for s in report.profile.steps)
    profile = replace(report.profile, steps=steps)
    first = profile.graph.streams_from(SOURCE)[0].target
    return Done(profile, _arrivals(report, first), report, batches, seconds)


def _arrivals(report: Report, first: str) -> dict[str, float]:
    """The records that entered each step, per record that entered the first."""
    warm = [i for i in report.intervals if not i["warm_up"]]
    names = {name for i in warm for name in i["steps"]}
    into = {name: _into(name, warm) for name in sorted(names)}
    return {name: records / into[first] for name, records in into.items()}


def _through_per_s(done: Done, known: Profile) -> float:
    """Source records per second that got through an overloaded plan.

    A batch waits for its last task, so late batches show the rate. In real-time mode each task runs
    at its own pace until, long after the run, the buffers of the slowest are full and hold back the
    others: so only chains with a task that always has work show it. How long such a task works per
    source record follows from what its steps take now, and from its share of all records, as known
    before some of them were held up; the slowest holds up the flow.
    """
    if done.batches:
        late = done.batches[len(done.batches) // 2 :]
        return sum(b.records for b in late) / sum(b.duration_ms for b in late) * 1e3
    report = done.report
    every_s = float(report.data["interval_ms"]) / 1e3
    end_us = report.data["origin_us"] + (done.seconds - every_s) * 1e6
    warm = [i for i in report.intervals if not i["warm_up"] and i["start_us"] <= end_us]
    each = Router(known).loads(known.plan, 1.0).entering

    def mean(name: str, what: str) -> float:
        return fmean(i["steps"][name][what] for i in warm if name in i["steps"])

    busy = {chain: sum(mean(name, "utilisation") for name in chain) for chain in known.plan.chains}
    full = [chain for chain in busy if busy[chain] >= min(FULL, max(busy.values()))]
    work_ms = [sum(each[name] * mean(name, "service_mean_ms") for name in chain) for chain in full]
    return 1e3 / max(float(np.max(task)) for task in work_ms)


def _into(name: str, intervals: list[dict[str, Any]]) -> int:
    """The records that entered a step in these intervals."""
    return sum(i["steps"][name]["records_in"] for i in intervals if name in i["steps"])


def _overloaded(run: _Runner, topology: Topology, shape: Shape, first: Profile) -> Overloaded:
    """Give a plan more than it can take according to the first profile."""
    known = replace(first, plan=completed(shape.plan(topology), first))
    rate = OVERLOAD * capacity(known).saturation_per_s
    through_per_s = _through_per_s(run(topology, shape, rate), known)
    return Overloaded(topology.name, known, through_per_s)


def _misplaced(spark: SparkSession) -> int:
    """How many keys Spark puts elsewhere than predicted, over all numbers of partitions."""
    keys = KEYS.names
    frame = spark.createDataFrame([(key,) for key in keys], "key string")
    wrong = 0
    for partitions in range(1, MOST_PARTITIONS + 1):
        row = sf.spark_partition_id().alias("partition")
        placed = frame.repartition(partitions, "key").select("key", row).collect()
        said = dict(zip(keys, partition_of(keys, partitions, "string"), strict=True))
        wrong += sum(1 for key, partition in placed if said[key] != partition)
    return wrong


def table(result: dict[str, Any]) -> Table:
    """The result as a table for people."""
    shown = Table(title=f"{result['predictions']} predictions of {result['configurations']} runs")
    for column in ("what", "median error", "90th percentile"):
        shown.add_column(column, justify="right")
    rows = {
        "mean": result["mean"],
        "mean, same backend": result["same_backend"]["mean"],
        "mean, other backend": result["other_backend"]["mean"],
        "p99": result["p99"],
    }
    for what, found in rows.items():
        values = (found["median_abs_error"], found["p90_abs_error"])
        shown.add_row(what, *(f"{v:.1%}" if v is not None else "-" for v in values))
    for what in ("arrivals", "saturation"):
        worst = result[what]["max_abs_error"]
        shown.add_row(f"{what}, at most", f"{worst:.1%}" if worst is not None else "-", "")
    shown.add_row("keys in another partition", str(result["misplaced_keys"]), "")
    return shown
