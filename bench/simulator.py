"""Simulator: how many customers per second does our simulation take through a queue?

The same M/M/1 queue, and the same three of them in series, in our simulation, SimPy and Ciw, in
turns. Ours is compiled before the clock starts, but its time includes drawing the random numbers
and computing quantiles with their confidence intervals. The others only compute the mean.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.simulation.simulate import Station, Times, arrivals, network
from tailrace.errors import EnvironmentUnfit
from tailrace.report.machine import described

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

GAP_MS = 1.0
SERVICE_MS = 0.7
STAGES = {"single_queue": 1, "three_stages": 3}
OURS = 1_000_000
THEIRS = 30_000


@dataclass(frozen=True, slots=True)
class _Run:
    customers_per_s: float
    mean_ms: float


def measure(*, quick: bool) -> dict[str, Any]:
    """Run each side in turn, several times; the median of each."""
    for name, module in (("SimPy", "simpy"), ("Ciw", "ciw")):
        if importlib.util.find_spec(module) is None:
            raise EnvironmentUnfit(
                f"The benchmark compares with {name}, which is not installed: "
                f"install it with 'pip install {module}'."
            )
    _ours(3, 1_000, 0)
    sides = {"tailrace": (_ours, OURS), "simpy": (_simpy, THEIRS), "ciw": (_ciw, THEIRS)}
    found: dict[tuple[str, str], list[_Run]] = {}
    for turn in range(3 if quick else 9):
        for load, stages in STAGES.items():
            for name, (run, customers) in sides.items():
                timed = _timed(run, stages, customers, turn)
                found.setdefault((load, name), []).append(timed)
    rates = {
        key: round(statistics.median(r.customers_per_s for r in runs))
        for key, runs in found.items()
    }
    means = {key: statistics.mean(r.mean_ms for r in runs) for key, runs in found.items()}
    return {
        "single_queue": rates["single_queue", "tailrace"],
        "three_stages": rates["three_stages", "tailrace"],
        "simpy": rates["single_queue", "simpy"],
        "ciw": rates["single_queue", "ciw"],
        "simpy_three_stages": rates["three_stages", "simpy"],
        "ciw_three_stages": rates["three_stages", "ciw"],
        "mean_ms": {
            load: {"exact": stages * _exact_ms(), **{name: means[load, name] for name in sides}}
            for load, stages in STAGES.items()
        },
        "versions": {module: version(module) for module in ("numba", "simpy", "ciw")},
        "machine": described(),
    }


def _exact_ms() -> float:
    """The mean time in an M/M/1 queue, ``1/(mu - lambda)``; in series each is one (Burke 1956)."""
    return 1 / (1 / SERVICE_MS - 1 / GAP_MS)


def _timed(run: Callable[[int, int, int], float], stages: int, customers: int, seed: int) -> _Run:
    began = time.perf_counter()
    mean_ms = run(stages, customers, seed)
    return _Run(customers / (time.perf_counter() - began), mean_ms)


def _ours(stages: int, customers: int, seed: int) -> float:
    row = [Station(name=str(n), service=Times.exponential(SERVICE_MS)) for n in range(stages)]
    found = network(arrivals(Times.exponential(GAP_MS), customers, seed), row, seed=seed)
    for quantile in (None, 0.5, 0.95, 0.99):
        found.interval_ms(quantile)
    return found.mean_ms


def _simpy(stages: int, customers: int, seed: int) -> float:
    import simpy  # noqa: PLC0415 - only this benchmark needs it

    rng = random.Random(seed)  # noqa: S311 - for chance, not secrecy
    environment = simpy.Environment()
    row = [simpy.Resource(environment) for _ in range(stages)]
    latencies: list[float] = []

    def customer() -> Generator[simpy.Event, None, None]:
        came = environment.now
        for station in row:
            with station.request() as turn:
                yield turn
                yield environment.timeout(rng.expovariate(1 / SERVICE_MS))
        latencies.append(environment.now - came)

    def source() -> Generator[simpy.Event, None, None]:
        for _ in range(customers):
            yield environment.timeout(rng.expovariate(1 / GAP_MS))
            environment.process(customer())

    environment.process(source())
    environment.run()
    return statistics.fmean(latencies)


def _ciw(stages: int, customers: int, seed: int) -> float:
    import ciw  # noqa: PLC0415 - as above

    ciw.seed(seed)
    service = [ciw.dists.Exponential(1 / SERVICE_MS) for _ in range(stages)]
    gaps = [ciw.dists.Exponential(1 / GAP_MS), *[None] * (stages - 1)]
    routing = [[float(target == n + 1) for target in range(stages)] for n in range(stages)]
    row = ciw.create_network(
        arrival_distributions=gaps,
        service_distributions=service,
        number_of_servers=[1] * stages,
        routing=routing,
    )
    simulation = ciw.Simulation(row)
    simulation.simulate_until_max_customers(customers, method="Finish")
    visits = simulation.get_all_records()
    left = sum(visit.exit_date for visit in visits)
    return float(left - sum(visit.arrival_date for visit in visits)) / customers


def table(result: dict[str, Any]) -> Table:
    """The result as a table."""
    shown = Table(title="Simulated customers per second, one core")
    for column in ("", "one queue", "three in a row"):
        shown.add_column(column, justify="right")
    shown.add_row("Tailrace", f"{result['single_queue']:,}", f"{result['three_stages']:,}")
    for name, key in (("SimPy", "simpy"), ("Ciw", "ciw")):
        shown.add_row(name, f"{result[key]:,}", f"{result[key + '_three_stages']:,}")
    return shown
