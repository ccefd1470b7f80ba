"""Rehearse: how well does ``tailrace rehearse`` predict runs on real executors?

PrimeTest runs under its staircase, as in the benchmark ``scale``, once with each scaler. Then the
same load is rehearsed with the same scaler, from nothing but the profile of that run. The purpose
of a rehearsal is to predict, before anything is deployed, how often the bound will be kept and at
what cost, so these are compared. Each is also rehearsed on the profile of the other run, as for a
user who changes the scaler.
"""

from __future__ import annotations

from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench import scale
from bench.checkpoint import Kept
from bench.standstill import moving
from tailrace.errors import FlowFailed
from tailrace.policy.scaling.choice import scalers
from tailrace.profile.file import as_json, from_json
from tailrace.rehearsal import rehearse
from tailrace.report.machine import described

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.load import Staircase
    from tailrace.report.data import Report

NAMES = ("predictive", "reactive")

SHARE_POINTS = 3.0
CORE_SECONDS_SHARE = 0.1
"""How far off a rehearsal may be: in percentage points of kept intervals, and as a share of
core-seconds."""


def measure(*, quick: bool, keep: Path | None = None) -> dict[str, Any]:
    """Run every scaler on real executors, and rehearse it; finished runs are kept in ``keep``."""
    stairs = scale.SHORT if quick else scale.STAIRS
    kept = Kept(keep, step_s=stairs.step_s)
    if not all(name in kept.runs for name in NAMES):
        with scale.elastic_session() as spark:
            for name in NAMES:
                kept(name, partial(moving, partial(_run, spark, name, stairs)))
    return _compared({name: kept.runs[name] for name in NAMES}, stairs)


def _run(spark: SparkSession, name: str, stairs: Staircase) -> dict[str, Any]:
    """A real run: its figures, and its profile."""
    report = scale.elastic_run(spark, name, scalers()[name](), stairs)
    if report.profile is None:
        raise FlowFailed(f"The run with '{name}' left no profile: see its messages.")
    return {**_figures(report), "profile": as_json(report.profile)}


def _figures(report: Report) -> dict[str, Any]:
    scaling = report.data["scaling"]
    return {
        "fulfilled_share": report.data["fulfilled_share"],
        "core_seconds": scaling["core_seconds"],
        "reconfigurations": scaling["reconfigurations"],
        "mean_executors": scaling["mean_executors"],
        "mean_ms": report.data["latency_ms"]["mean_ms"],
    }


def _compared(runs: dict[str, dict[str, Any]], stairs: Staircase) -> dict[str, Any]:
    """Every run with its rehearsals, on its own profile and on that of the other run."""
    return {
        "bound_ms": scale.BOUND_MS,
        "step_s": stairs.step_s,
        "scalers": [_beside(name, runs[name], runs[name], stairs) for name in runs],
        "on_the_profile_of_another": [
            {"profile_of": other} | _beside(name, runs[name], runs[other], stairs)
            for name, other in permutations(runs, 2)
        ],
        "machine": described(),
    }


def _beside(
    name: str, run: dict[str, Any], known: dict[str, Any], stairs: Staircase
) -> dict[str, Any]:
    """A run with its rehearsal: the difference in points, and as a share of core-seconds."""
    profile = from_json(known["profile"], f"of the run with {name}")
    rehearsed = _figures(
        rehearse(
            profile,
            stairs,
            mean=scale.BOUND_MS,
            every=f"{scale.EVERY_S} s",
            scaler=name,
            executors=(1, scale.MOST),
            warm_up=f"{stairs.step_s} s",
        )
    )
    real = {key: run[key] for key in rehearsed}
    points = 100 * (rehearsed["fulfilled_share"] - real["fulfilled_share"])
    return {
        "name": name,
        "real": real,
        "rehearsed": rehearsed,
        "share_points": round(points, 2),
        "core_seconds_share": round(rehearsed["core_seconds"] / real["core_seconds"] - 1, 4),
        "within": is_within(points, rehearsed["core_seconds"] / real["core_seconds"] - 1),
    }


def is_within(share_points: float, core_seconds_share: float) -> bool:
    """Whether a rehearsal is as accurate as required."""
    return abs(share_points) <= SHARE_POINTS and abs(core_seconds_share) <= CORE_SECONDS_SHARE


def table(result: dict[str, Any]) -> Table:
    """The result as a table."""
    shown = Table(title="PrimeTest's staircase on real executors, and rehearsed")
    columns = (
        "kept",
        "rehearsed",
        "points off",
        "core s",
        "rehearsed",
        "off",
        "moves",
        "rehearsed",
    )
    shown.add_column("scaler")
    for column in columns:
        shown.add_column(column, justify="right")
    for row in (*result["scalers"], *result["on_the_profile_of_another"]):
        real, rehearsed = row["real"], row["rehearsed"]
        other = f", profile of {row['profile_of']}" if "profile_of" in row else ""
        shown.add_row(
            f"{row['name']}{other}",
            f"{real['fulfilled_share']:.1%}",
            f"{rehearsed['fulfilled_share']:.1%}",
            f"{row['share_points']:+.1f}",
            f"{real['core_seconds']:,.0f}",
            f"{rehearsed['core_seconds']:,.0f}",
            f"{row['core_seconds_share']:+.1%}",
            str(real["reconfigurations"]),
            str(rehearsed["reconfigurations"]),
        )
    return shown
