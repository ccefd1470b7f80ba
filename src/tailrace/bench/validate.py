"""Are predictions right? Every configuration is predicted from the profile of every other.

Six topologies run on Spark in both backends, each under several plans and at several utilisations.
The profile that each run leaves predicts all other runs of the topology: what the run under that
plan would be, before it is looked at. What the engine takes in a backend that the profile never
saw comes from a flow of trivial steps, measured once at the beginning.

A run that saturates, at half again the rate that the first profile calls the limit, shows whether
overload was called before it happened.
"""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from rich.table import Table

from tailrace import load
from tailrace.bench.machine import described
from tailrace.bench.topologies import KEYS, TOPOLOGIES, TRIVIAL, Topology
from tailrace.errors import FlowFailed
from tailrace.model.capacity import capacity
from tailrace.model.keys.murmur import partition_of
from tailrace.model.loads import Router
from tailrace.model.predict import Predictor
from tailrace.plan import Backend, Plan, chain_name
from tailrace.profile.file import as_json
from tailrace.spark import sinks
from tailrace.spark.flow import Flow
from tailrace.spark.settings import session
from tailrace.spark.sources import replay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from tailrace.flow import Graph
    from tailrace.profile.batch import BatchMeasure
    from tailrace.profile.profile import Profile
    from tailrace.report.data import Report

_LOG = logging.getLogger(__name__)

SLOTS = 10
"""More than the machine has: the steps wait most of the time."""

START_S, START_SHARE = 6.0, 0.1
"""It begins slowly, so that no backlog of the start is still there when it counts."""

WARM_UP_S = 11.0
MEASURED_S = 14.0
INTERVAL = "2 s"

UTILISATIONS = (0.35, 0.55, 0.7, 0.83, 0.92)
HIGHEST = 0.9
"""Up to this utilisation the figures that count are taken; above it they are shown beside. A run is
as busy as its own profile says, since the first one, by which its rate is set, is not exact."""

MOST_PARTITIONS = 16
TRIVIAL_PER_S = 500.0
OVERLOAD = 1.5
BATCH_LENGTH_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration that was run, and what it left behind.

    ``arrivals`` are the records that entered each step, for each one that entered the flow.
    """

    topology: str
    profile: Profile
    utilisation: float
    arrivals: Mapping[str, float]


def measure(*, quick: bool) -> dict[str, Any]:
    """Run every configuration, predict each from the others, and compare."""
    spark = session("validate", master=f"local[{SLOTS}]")
    cases: list[Case] = []
    saturations: list[dict[str, Any]] = []
    try:
        engine = _engine(spark)
        for topology in TOPOLOGIES[:2] if quick else TOPOLOGIES:
            for backend in Backend:
                found, saturation = _run_all(spark, topology, backend, quick=quick)
                cases += found
                saturations.append(saturation)
                _LOG.info("%s in %s: %s", topology.name, backend, saturation)
        misplaced = _misplaced(spark)
    finally:
        spark.stop()
    return {**judged(cases, engine, saturations), "misplaced_keys": misplaced}


def _engine(spark: SparkSession) -> dict[Backend, Profile]:
    """What the engine takes in each backend, once the JVM is warm."""
    found = {}
    for backend in [*Backend, *Backend]:
        found[backend] = _run(spark, TRIVIAL, SHAPES[backend][0], TRIVIAL_PER_S).profile
    return found


# --- running ------------------------------------------------------------------------------------


def _run_all(
    spark: SparkSession, topology: Topology, backend: Backend, *, quick: bool
) -> tuple[list[Case], dict[str, Any]]:
    """The configurations of a topology in a backend: one to learn from, then by utilisation."""
    shapes = SHAPES[backend][: 2 if quick else None]
    stages = max(1, len(topology.own)) if backend is Backend.MICROBATCH else 1
    first = _run(spark, topology, shapes[0], 0.3 * topology.per_s / stages).profile
    cases = []
    for shape, share in zip(shapes, UTILISATIONS, strict=False):  # fewer shapes if quick
        saturation = capacity(first, shape.plan(topology)).saturation_per_s
        done = _run(spark, topology, shape, share * saturation)
        busy = done.profile.rate_per_s / capacity(done.profile).saturation_per_s
        cases.append(Case(topology.name, done.profile, busy, done.arrivals))
    return cases, _saturated(spark, topology, shapes[1], first)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is varied: the wait of batches or hand-overs, and the partitions of wide steps."""

    backend: Backend
    wait_ms: float
    partitions: int

    def plan(self, topology: Topology) -> Plan:
        """The plan, but for chains, which are the longest that can be."""
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
    """A run: its profile, what entered its steps, and how many records a second got through."""

    profile: Profile
    arrivals: Mapping[str, float]
    done_per_s: float


def _run(spark: SparkSession, topology: Topology, shape: Shape, rate: float) -> Done:
    """Run a topology in one shape at one rate."""
    seconds = WARM_UP_S + MEASURED_S
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
    return Done(profile, _arrivals(report), _done_per_s(report, batches))


def _arrivals(report: Report) -> dict[str, float]:
    """The records that entered each step, for each one that entered the flow."""
    warm = [i for i in report.intervals if not i["warm_up"]]
    whole = sum(i["records"] for i in warm)
    names = {name for i in warm for name in i["steps"]}
    return {
        name: sum(i["steps"][name]["records_in"] for i in warm if name in i["steps"]) / whole
        for name in sorted(names)
    }


def _done_per_s(report: Report, batches: list[BatchMeasure]) -> float:
    """Records that got through: those of late batches over their time, or of the slowest step."""
    if batches:
        late = batches[len(batches) // 2 :]
        return sum(b.records for b in late) / sum(b.duration_ms for b in late) * 1e3
    warm = [i for i in report.intervals if not i["warm_up"]]
    every_s = report.data["interval_ms"] / 1e3
    into: dict[str, float] = {}
    whole = 1.0
    for name, step in warm[-1]["steps"].items():
        counts = [i["steps"][name]["records_in"] for i in warm if name in i["steps"]]
        into[name] = median(counts) / whole / every_s
        whole *= step["selectivity"] or 1.0
    return min(into.values())


def _saturated(
    spark: SparkSession, topology: Topology, shape: Shape, first: Profile
) -> dict[str, Any]:
    """The rate that a plan takes when it gets more, beside the one that was predicted."""
    predicted = capacity(first, shape.plan(topology)).saturation_per_s
    measured = _run(spark, topology, shape, OVERLOAD * predicted).done_per_s
    return {
        "topology": topology.name,
        "backend": str(shape.backend),
        "predicted_per_s": round(float(predicted), 1),
        "measured_per_s": round(measured, 1),
        "error": round(float(predicted) / measured - 1, 4),
    }


def _misplaced(spark: SparkSession) -> int:
    """How many keys Spark puts elsewhere than predicted, over all sorts of partitionings."""
    keys = KEYS.names
    frame = spark.createDataFrame([(key,) for key in keys], "key string")
    wrong = 0
    for partitions in range(1, MOST_PARTITIONS + 1):
        row = sf.spark_partition_id().alias("partition")
        placed = frame.repartition(partitions, "key").select("key", row).collect()
        said = dict(zip(keys, partition_of(keys, partitions, "string"), strict=True))
        wrong += sum(1 for key, partition in placed if said[key] != partition)
    return wrong


# --- judging ------------------------------------------------------------------------------------


def judged(
    cases: Sequence[Case], engine: dict[Backend, Profile], saturations: list[dict[str, Any]]
) -> dict[str, Any]:
    """Every configuration predicted from every other of its topology, and how right that was."""
    made = [
        _predicted(origin, target, engine)
        for origin in cases
        for target in cases
        if origin.topology == target.topology and origin is not target
    ]
    usual = [one for one in made if one["utilisation"] <= HIGHEST]
    return {
        "mean": _errors(usual, "mean"),
        "p99": _errors(usual, "p99"),
        "arrivals": {
            "max_abs_error": max((abs(e) for o in usual for e in o["arrivals"]), default=None)
        },
        "same_backend": {"mean": _errors([o for o in usual if o["same_backend"]], "mean")},
        "other_backend": {"mean": _errors([o for o in usual if not o["same_backend"]], "mean")},
        "above_nine_tenths": {
            "mean": _errors([o for o in made if o["utilisation"] > HIGHEST], "mean")
        },
        "saturation": {
            "max_abs_error": max((abs(s["error"]) for s in saturations), default=None),
            "runs": saturations,
        },
        "configurations": len(cases),
        "predictions": len(usual),
        "cases": [_shown(case) for case in cases],
        "made": made,
        "machine": described(),
    }


def _predicted(origin: Case, target: Case, engine: dict[Backend, Profile]) -> dict[str, Any]:
    profile, real = origin.profile, target.profile
    known = profile.backend is real.backend
    if not known:
        other = engine[real.backend]
        profile = replace(
            profile,
            batch=profile.batch or other.batch,
            hand_over=profile.hand_over or other.hand_over,
        )
    found = Predictor(profile)(real.plan, real.rate_per_s)
    latency = real.latency
    assert latency is not None  # noqa: S101 - a flow always measures it
    entering = Router(profile).loads(found.plan, 1.0).entering
    return {
        "topology": origin.topology,
        "from": _place(origin),
        "to": _place(target),
        "same_backend": known,
        "utilisation": target.utilisation,
        "mean": [round(found.mean_ms, 3), round(latency.mean_ms, 3)],
        "p99": [round(found.p99_ms, 3), round(latency.p99_ms, 3)],
        "arrivals": [
            round(float(entering[name].sum()) / measured - 1, 4)
            for name, measured in target.arrivals.items()
        ],
    }


def _place(case: Case) -> str:
    plan = case.profile.plan
    wait = max(plan.lifetimes_ms.values(), default=0.0)
    wait_ms = wait if plan.backend is Backend.REALTIME else plan.interval_ms
    tasks = max(plan.partitions.values(), default=1)
    return f"{plan.backend} {wait_ms:g} ms x{tasks} at {case.utilisation:.2f}"


def _errors(made: list[dict[str, Any]], name: str) -> dict[str, float | None]:
    """The absolute errors; a plan that was wrongly called impossible is off by all of it."""
    off = sorted(
        abs(one[name][0] / one[name][1] - 1) if math.isfinite(one[name][0]) else 1.0 for one in made
    )
    if not off:
        return {"median_abs_error": None, "p90_abs_error": None}
    return {
        "median_abs_error": round(median(off), 4),
        "p90_abs_error": round(off[min(len(off) - 1, math.ceil(0.9 * len(off)) - 1)], 4),
    }


def _shown(case: Case) -> dict[str, Any]:
    return {
        "topology": case.topology,
        "plan": case.profile.plan.as_json(),
        "utilisation": case.utilisation,
        "profile": as_json(case.profile),
    }


def table(result: dict[str, Any]) -> Table:
    """The result for a person."""
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
