"""Rehearsals: the control loop of a flow on its profile, under any load, in simulated time.

The controller, the policies and the report are those of a real run; only the backend is simulated.
An hour of a flow takes seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tailrace.constraint import SOURCE, only_constraint
from tailrace.control import Controller
from tailrace.control.backend import Steering
from tailrace.control.scaling import Scaling
from tailrace.control.simulated import SimulatedBackend
from tailrace.errors import InputError
from tailrace.load import generate
from tailrace.load.keys import Frequencies, Uniform
from tailrace.model.plant import plant_of
from tailrace.plan import Backend, first_plan
from tailrace.policy.batching import first_interval_ms
from tailrace.policy.scaling.choice import DEFAULT, scaler_of
from tailrace.policy.scaling.sizing import Limits
from tailrace.report.data import Usage, report_of
from tailrace.report.saso import saso, sized_steps
from tailrace.units import duration_ms

if TYPE_CHECKING:
    from tailrace.constraint import Constraint
    from tailrace.control import Log
    from tailrace.graph import Graph
    from tailrace.load import RateProfile
    from tailrace.load.keys import Keys
    from tailrace.load.trace import Trace
    from tailrace.model.simulator import Plant
    from tailrace.plan import Plan
    from tailrace.policy.scaling.sizing import Scaler
    from tailrace.profile.profile import Profile
    from tailrace.report.data import Report

COMING = "10 s"
"""How long executors take to start and warm up, by default."""

WARM_UP = "10 s"

MOST_RECORDS = 20_000_000
"""A million takes seconds and 100 MiB."""

MOST_S = 7 * 86_400.0
"""A week; every hour of it takes some 15 s."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """Executors that come and go: what decides, and within which limits."""

    scaler: str | Scaler
    limits: Limits


def run(
    graph: Graph,
    plant: Plant,
    load: Trace,
    plan: Plan,
    constraints: tuple[Constraint, ...],
    *,
    elastic: Elastic | None = None,
    interval_ms: float = 5_000.0,
    seed: int = 1,
) -> Controller:
    """Run a load through a plant under control; returns the controller afterwards."""
    scaling = None
    if elastic is not None:
        scaling = Scaling(graph, scaler_of(elastic.scaler), elastic.limits)
        plan = replace(plan, executors=elastic.limits.least)
    controller = Controller(
        graph,
        constraints,
        interval_ms=interval_ms,
        scaling=scaling,
        most_records=plant.most_records,
    )
    steering = Steering(controller)
    rng = np.random.default_rng(seed)
    steering.backend = backend = SimulatedBackend(graph, plant, load, plan, steering.tell, rng=rng)
    backend.start()
    backend.run()
    backend.stop()
    return controller


def rehearse(
    profile: Profile,
    load: RateProfile,
    *,
    mean: str | float | None = None,
    p95: str | float | None = None,
    p99: str | float | None = None,
    every: str | float = "5 s",
    scaler: str | Scaler | None = None,
    executors: tuple[int, int] | int | None = None,
    cores: int = 1,
    coming: str | float | None = None,
    warm_up: str | float = WARM_UP,
    seed: int = 1,
) -> Report:
    """What a flow would do under a load: the report of a run, without the cluster or the wait.

    Args:
        profile: What was measured (``tailrace run --profile``), or is known, about the flow.
        load: The rates over time: any of ``tailrace.load``.
        mean: A bound on the mean latency, such as "500 ms"; or ``p95``, or ``p99``.
        p95: A bound on the 95th percentile.
        p99: A bound on the 99th percentile.
        every: The span over which the bound is judged.
        scaler: What decides on executors: a name, or an object with ``decide``.
        executors: How many there may be, as (least, most), or a fixed number; without it the flow
            has the slots that the profile was measured on.
        cores: The cores of an executor.
        coming: How long executors take to start; by default as measured, else 10 s.
        warm_up: The time at the start that verdicts leave out.
        seed: The seed of the random numbers.
    """
    given = {"mean": mean, "p95": p95, "p99": p99}
    bound = only_constraint({k: str(v) for k, v in given.items() if v is not None}, str(every))
    if bound is None:
        raise InputError("There is no bound to keep: give mean='500 ms', or p95, or p99.")
    if scaler is not None and executors is None:
        raise InputError("A scaler decides on executors: say how many, as executors=(1, 8).")
    if profile.backend is not Backend.MICROBATCH:
        raise InputError(
            "The profile is from real-time mode, and only micro-batches can be rehearsed: run the "
            "flow with backend='microbatch' and --profile."
        )
    _check_size(load, profile)
    limits = _limits(executors, cores)
    graph = _scaled(profile.graph, limits)
    plan = first_plan(graph, first_interval_ms((bound,), 5_000.0), profile.cores)
    plan = replace(plan, row_limit=profile.plan.row_limit)
    known_ms = duration_ms(COMING) if profile.executors is None else profile.executors.start_ms
    start_ms = known_ms if coming is None else duration_ms(coming)
    plant = plant_of(profile, plan, cores=cores, start_ms=start_ms)
    trace = generate(load, keys=_keys(profile), seed=seed)
    elastic = None if limits is None else Elastic(scaler or DEFAULT, limits)
    controller = run(graph, plant, trace, plan, (bound,), elastic=elastic, seed=seed)
    log, warm_up_ms = controller.log, duration_ms(warm_up)
    return report_of(
        profile.name,
        log,
        _usage(profile, log, int(trace.due_us[-1]) / 1e6),
        warm_up_ms=warm_up_ms,
        notes=(f"A rehearsal in simulated time, on the profile of '{profile.name}'.",),
    )


def _check_size(load: RateProfile, profile: Profile) -> None:
    """Refuse a load that would take too long, or not fit into memory."""
    records = float(load.expected(np.array([load.duration_s]))[0]) * _fullest(profile)
    if not records <= MOST_RECORDS or load.duration_s > MOST_S:
        raise InputError(
            f"A load of {load.duration_s:,.0f} s with {records:,.0f} records for a step "
            f"is too long for a rehearsal: give at most {MOST_S:,.0f} s and {MOST_RECORDS:,} "
            "records, for example only its start (--seconds)."
        )


def _fullest(profile: Profile) -> float:
    """The records of the step that has most, in or out, for each that enters the flow."""
    graph = profile.graph
    out = {SOURCE: 1.0}
    for name in graph.names:
        out[name] = profile.step(name).ratio * math.fsum(
            out[stream.origin] for stream in graph.streams_to(name)
        )
    return max(out.values())


def _limits(executors: tuple[int, int] | int | None, cores: int) -> Limits | None:
    if executors is None:
        return None
    least, most = (executors, executors) if isinstance(executors, int) else executors
    return Limits(least, most, cores)


def _scaled(graph: Graph, limits: Limits | None) -> Graph:
    """The graph, with every step allowed a task for each slot of the largest cluster.

    A profile knows how many partitions steps had, not how many they may have.
    """
    if limits is None:
        return graph
    most = limits.most * limits.cores
    steps = tuple(
        step if step.keyed_by else replace(step, scale=(1, max(most, (step.scale or (1, 1))[1])))
        for step in graph.steps
    )
    return replace(graph, steps=steps)


def _keys(profile: Profile) -> Keys:
    """The keys that records carry: those of the first keyed step."""
    keyed = next((step for step in profile.steps if step.keyed_by), None)
    if keyed is None:
        return Uniform(1)
    known = dict(keyed.keys)
    rest, others = 1 - math.fsum(known.values()), keyed.distinct - len(known)
    if rest > 0 and others > 0:
        known |= {f"other-{number}": rest / others for number in range(others)}
    return Frequencies(known) if known else Uniform(max(1, keyed.distinct))


def _usage(profile: Profile, log: Log, elapsed_s: float) -> Usage:
    """What the run would have been charged for, and its CPU time according to the profile."""
    core_s = profile.cores * elapsed_s
    if log.scaling is not None and log.history:
        cores = log.scaling.cores
        core_s = saso(sized_steps(log.history, cores), cores=cores).core_seconds
    records = sum(record.records for record in log.history)
    cpu_ms = sum(step.service_ms * step.cpu_share for step in profile.steps) * records
    if profile.batch is not None:
        cpu_ms += log.batches * profile.batch.cpu_ms + records * profile.batch.cpu_record_ms
    return Usage(elapsed_s, core_s, cpu_ms / 1e3)
