"""Stela: under every strategy, the six topologies of Xu 2021 gain one machine, and lose four.

It runs in the simulator (``bench.scale_out.dataflow``). Spark gives a free core to any task that is
ready, so it cannot place an instance of an operator on a certain machine, and that is all that
these strategies do. The sizes are those of table 2.1: instances and tasks per component, and
machines; there is one instance per worker process, which gives the number of components. The
original does not give the speeds of its operators, and shows their graphs only as pictures: those
here are our own, each with some congested operators. As in the original, machines have spare CPU,
so that operators are limited by their number of instances. Two additional cases show what ETP does
not see: machines that are short of CPU, and a bottleneck below the threshold of 1.2. Throughput is
what the sinks process.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.scale_out.dataflow import Change, FluidFlow, FluidOperator, FluidRun, run
from bench.scale_out.etp import Dataflow, Operator
from bench.scale_out.interruption import convergence_s, downtime_s
from bench.scale_out.machines import ETP, STRATEGIES, scale_in, scale_out
from bench.scale_out.placement import Placement
from tailrace.report.machine import described
from tailrace.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.scale_out.machines import ScalePlan

KNOWN = "etp, capacities known"
"""ETP with the capacities of operators, derived from how busy they are; the original has none."""

AT_S = 60
PAUSE_S = 10.0
MEASURED_S = 30
"""Rates are averaged over this time before the change, and at the end."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A flow and its size: instances of each operator, their maximum, and the machines."""

    name: str
    flow: FluidFlow
    instances: int
    most: int
    machines: int

    def named(self) -> list[str]:
        """The operator of each instance, operator by operator."""
        return [o.name for o in self.flow.operators for _ in range(self.instances)]

    def homes(self) -> list[str]:
        """The machines."""
        return [f"m{number}" for number in range(1, self.machines + 1)]


def _line(*names: str) -> dict[tuple[str, str], float]:
    return dict.fromkeys(pairwise(names), 1.0)


def _star() -> FluidFlow:
    sinks = ("store", "alert", "show")
    operators = (
        FluidOperator("web", 700, 0.5, offered_per_s=1_100),
        FluidOperator("app", 700, 0.5, offered_per_s=1_100),
        FluidOperator("hub", 500, 0.4),
        *(FluidOperator(name, 450, 0.3) for name in sinks),
    )
    edges = {("web", "hub"): 1.0, ("app", "hub"): 1.0, **{("hub", name): 1 / 3 for name in sinks}}
    return FluidFlow(operators, edges, remote_ms=0.05)


def _linear() -> FluidFlow:
    operators = (
        FluidOperator("read", 600, 0.3, offered_per_s=2_600),
        FluidOperator("parse", 330, 0.3),
        FluidOperator("score", 230, 0.3),
        FluidOperator("write", 450, 0.2),
    )
    return FluidFlow(operators, _line("read", "parse", "score", "write"), remote_ms=0.05)


def _diamond() -> FluidFlow:
    bolts = ("north", "east", "south", "west")
    operators = (
        FluidOperator("read", 400, 0.3, offered_per_s=1_000),
        *(FluidOperator(name, 150, 0.25) for name in bolts),
        FluidOperator("write", 320, 0.4),
    )
    edges = {("read", name): 1.0 for name in bolts} | {(name, "write"): 1.0 for name in bolts}
    return FluidFlow(operators, edges, remote_ms=0.05)


PAGE_LOAD = ("spout", "transform", "filter", "join", "clean", "aggregate", "output")


def _page_load(slower: float = 1.0, offered_per_s: float = 3_000.0, core: float = 1.0) -> FluidFlow:
    speeds = (900, 650, 700, 230, 400, 380, 500)
    cores = (0.25, 0.35, 0.2, 0.3, 0.2, 0.3, 0.2)
    emits = (1.0, 1.0, 0.6, 1.0, 0.9, 1.0, 1.0)
    offered = (offered_per_s, *[0.0] * 6)
    operators = tuple(
        FluidOperator(name, speed / slower, share * core / slower, emit, rate)
        for name, speed, share, emit, rate in zip(
            PAGE_LOAD, speeds, cores, emits, offered, strict=True
        )
    )
    return FluidFlow(operators, _line(*PAGE_LOAD), remote_ms=0.05)


def _processing(core: float, rank_per_s: float) -> FluidFlow:
    operators = (
        FluidOperator("spout", 800, 0.3 * core, offered_per_s=2_800),
        FluidOperator("parse", 650, 0.4 * core),
        FluidOperator("split", 700, 0.2 * core),
        FluidOperator("enrich", 200, 0.4 * core),
        FluidOperator("match", 330, 0.4 * core),
        FluidOperator("merge", 600, 0.3 * core),
        FluidOperator("rank", rank_per_s, 0.3 * core),
        FluidOperator("output", 600, 0.2 * core),
    )
    edges = {
        **_line("spout", "parse", "split"),
        ("split", "enrich"): 0.5,
        ("split", "match"): 0.5,
        ("enrich", "merge"): 1.0,
        **_line("match", "merge", "rank", "output"),
    }
    return FluidFlow(operators, edges, remote_ms=0.05)


def _network() -> FluidFlow:
    operators = (
        FluidOperator("packets", 900, 0.5, offered_per_s=3_000),
        FluidOperator("decode", 800, 0.8),
        FluidOperator("flows", 500, 0.8, emits=0.5),
        FluidOperator("scan", 400, 0.9, emits=0.4),
        FluidOperator("model", 150, 1.0),
        FluidOperator("alarm", 300, 0.5),
        FluidOperator("report", 250, 0.5),
        FluidOperator("archive", 700, 0.6),
    )
    edges = {
        **_line("packets", "decode", "flows", "model", "alarm"),
        ("decode", "scan"): 1.0,
        ("scan", "report"): 1.0,
        ("decode", "archive"): 1.0,
    }
    return FluidFlow(operators, edges, cores=4.0, remote_ms=0.05)


TOPOLOGIES = (
    Topology("Star", _star(), 2, 4, 4),
    Topology("Linear", _linear(), 6, 12, 6),
    Topology("Diamond", _diamond(), 4, 8, 6),
    Topology("PageLoad", _page_load(), 4, 8, 7),
    Topology("Processing", _processing(0.7, 600.0), 4, 8, 8),
    Topology("Network Monitoring", _network(), 4, 8, 8),
    Topology("Processing, CPU short", _processing(1.0, 450.0), 4, 8, 8),
)

SHRINKING = tuple(
    Topology(name, _page_load(15 / 4, 2_000.0, core), 15, 15, 8)
    for name, core in (("PageLoad, 8 to 4", 0.45), ("PageLoad, 8 to 4, CPU short", 0.8))
)
LEAVING = 4


def measure(*, quick: bool) -> dict[str, Any]:
    """Run every topology under every strategy, and remove every choice of four of eight machines.

    If ``quick``, the simulated time is shorter and only every seventh choice is tried.
    """
    after_s = 120 if quick else 240
    outs = {topology.name: _outwards(topology, after_s) for topology in TOPOLOGIES}
    return {
        "scale_out": outs,
        "scale_in": {
            topology.name: _inwards(topology, after_s, every=7 if quick else 1)
            for topology in SHRINKING
        },
        "pause_s": PAUSE_S,
        "machine": described(),
    }


def _outwards(topology: Topology, after_s: int) -> dict[str, Any]:
    placement = Placement.dealt(topology.named(), topology.homes())
    seen = run(topology.flow, placement.instances, AT_S)
    rates = _observed(topology, seen)
    new = [f"m{topology.machines + 1}"]
    known = scale_out(_observed(topology, seen, capacities=True), placement, new)
    others = {name: scale_out(rates, placement, new, name) for name in STRATEGIES}
    plans = {ETP: others.pop(ETP), KNOWN: known, **others}
    return {name: _outcome(topology.flow, plan, after_s) for name, plan in plans.items()}


def _inwards(topology: Topology, after_s: int, every: int) -> dict[str, Any]:
    """Remove the machines with the lowest ETPSum, or any other four; redistribution is the same.

    As in the original, each machine starts with instances of at most two operators.
    """
    names, homes = topology.named(), topology.homes()
    cuts = [len(names) * number // len(homes) for number in range(len(homes) + 1)]
    blocks = zip(homes, pairwise(cuts), strict=True)
    placement = Placement({home: tuple(names[first:end]) for home, (first, end) in blocks})
    rates = _observed(topology, run(topology.flow, placement.instances, AT_S))
    ours = _outcome(topology.flow, scale_in(rates, placement, LEAVING), after_s)
    choices = list(combinations(homes, LEAVING))[::every]
    others = [
        _outcome(topology.flow, scale_in(rates, placement, chosen), after_s) for chosen in choices
    ]
    rates_after = [other["after_per_s"] for other in others]
    as_good = sum(rate >= 0.99 * ours["after_per_s"] for rate in rates_after)
    return {
        ETP: ours,
        "choices": len(others),
        "as_good_share": round(as_good / len(others), 3),
        "worst_per_s": min(rates_after),
        "best_per_s": max(rates_after),
        "median": _median(others),
    }


def _median(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure; a run that never became stable counts as the longest."""
    middle = {
        name: statistics.median(outcome[name] for outcome in outcomes)
        for name in ("before_per_s", "after_per_s", "gain", "downtime_s")
    }
    stable = [outcome["convergence_s"] for outcome in outcomes]
    half = statistics.median_high(math.inf if at_s is None else at_s for at_s in stable)
    return {**middle, "convergence_s": half if half < math.inf else None}


def _observed(topology: Topology, seen: FluidRun, *, capacities: bool = False) -> Dataflow:
    """The rates that a scheduler would measure at the end of a run."""
    last = slice(-MEASURED_S, None)
    parts = (seen.input_per_s, seen.processed_per_s, seen.emitted_per_s, seen.busy)
    columns = zip(*(part[last].mean(axis=0).tolist() for part in parts), strict=True)
    operators = tuple(
        Operator(
            operator.name,
            come,
            processed,
            emitted,
            topology.instances,
            topology.most,
            able_per_s=max(processed, processed / busy) if capacities and busy else None,
        )
        for operator, (come, processed, emitted, busy) in zip(
            topology.flow.operators, columns, strict=True
        )
    )
    return Dataflow(operators, topology.flow.edges)


def _outcome(flow: FluidFlow, plan: ScalePlan, after_s: int) -> dict[str, Any]:
    moves = [(each.operator, each.origin, each.machine) for each in plan.assignments]
    seen = run(flow, plan.before.instances, AT_S + after_s, Change(AT_S, PAUSE_S, moves))
    times, rates = seen.times_s[AT_S:], seen.throughput_per_s[AT_S:]
    before = float(seen.throughput_per_s[AT_S - MEASURED_S : AT_S].mean())
    after = float(rates[-MEASURED_S:].mean())
    return {
        "before_per_s": round(before, 1),
        "after_per_s": round(after, 1),
        "gain": round(after / before - 1, 3),
        "convergence_s": convergence_s(times, rates),
        "downtime_s": downtime_s(times, rates),
        "instances": _counted(plan),
    }


def _counted(plan: ScalePlan) -> Mapping[str, int]:
    new = sum(each.origin is None for each in plan.assignments)
    return {"new": new, "moved": len(plan.assignments) - new}


def table(result: dict[str, Any]) -> Table:
    """The result as a table."""
    shown = Table(title="Machines added and removed, in the simulator")
    for column in ("topology", "strategy"):
        shown.add_column(column, justify="left")
    for column in ("before", "after", "gain", "stable after", "nothing for"):
        shown.add_column(column, justify="right")
    for topology, sides in result["scale_out"].items():
        for name, side in sides.items():
            shown.add_row(topology, name, *_cells(side))
        shown.add_section()
    for topology, shrunk in result["scale_in"].items():
        shown.add_row(topology, ETP, *_cells(shrunk[ETP]))
        shown.add_row(topology, f"median of {shrunk['choices']} choices", *_cells(shrunk["median"]))
        shown.add_section()
    return shown


def _cells(side: dict[str, Any]) -> tuple[str, ...]:
    stable = side["convergence_s"]
    return (
        f"{side['before_per_s']:,.0f}/s",
        f"{side['after_per_s']:,.0f}/s",
        f"{side['gain']:+.0%}",
        "never" if stable is None else show_duration(stable * 1e3),
        show_duration(side["downtime_s"] * 1e3),
    )
