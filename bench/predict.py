"""How long a prediction takes, and the search for the cheapest plan.

A flow with three keyed steps in both backends, and every plan on up to 16 cores.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tailrace.constraint import Constraint
from tailrace.model.predict import predict
from tailrace.model.size import size_for
from tailrace.plan import Backend, Plan
from tailrace.profile.costs import USUAL_BATCH, USUAL_HAND_OVER
from tailrace.profile.profile import Profile, StepProfile
from tailrace.report.machine import described

if TYPE_CHECKING:
    from collections.abc import Callable

_KEYS = {f"key-{number}": 0.2 / (number + 1) for number in range(16)}
FLOW = Profile(
    "orders",
    (
        StepProfile("parse", 0.05),
        StepProfile("score", 0.3, keyed_by=("user",), keys=_KEYS, distinct=100_000),
        StepProfile("count", 0.1, keyed_by=("item",), keys=_KEYS, distinct=1_000),
    ),
    (("source", "parse"), ("parse", "score"), ("score", "count"), ("count", "sink")),
    4_000.0,
    Plan(200.0, (("parse",), ("score",), ("count",)), {"score": 4, "count": 2}, cores=8),
    cores=8,
    batch=USUAL_BATCH,
    hand_over=USUAL_HAND_OVER,
)
LIVE = replace(FLOW.plan, backend=Backend.REALTIME, interval_ms=60_000.0)
MOST_CORES = 16
GOALS = {"micro-batch": Constraint(500.0), "real-time": Constraint(30.0, quantile=0.99)}


def measure(*, quick: bool) -> dict[str, Any]:
    """The median time of each, in one process, after an uncounted first call."""
    rounds = 5 if quick else 25
    times = {
        "predict_microbatch_ms": _ms(lambda: predict(FLOW, FLOW.plan).p99_ms, 10 * rounds),
        "predict_realtime_ms": _ms(lambda: predict(FLOW, LIVE).p99_ms, 10 * rounds),
    }
    sized: dict[str, dict[str, float]] = {}
    for name, goal in GOALS.items():
        tried = size_for(FLOW, goal, FLOW.rate_per_s, MOST_CORES).tried
        took_ms = _ms(lambda g=goal: size_for(FLOW, g, FLOW.rate_per_s, MOST_CORES), rounds // 2)  # type: ignore[misc]
        sized[name] = {"plans": tried, "ms": took_ms}
    return {**times, "size": sized, "machine": described()}


def _ms(call: Callable[[], object], times: int) -> float:
    call()
    took = []
    for _ in range(max(1, times)):
        began = time.perf_counter()
        call()
        took.append((time.perf_counter() - began) * 1e3)
    return round(median(took), 2)


def table(result: dict[str, Any]) -> Table:
    """The result as a table."""
    shown = Table(title="How long predictions take")
    shown.add_column("what", justify="left")
    shown.add_column("ms", justify="right")
    shown.add_row("a prediction, micro-batch", f"{result['predict_microbatch_ms']:g}")
    shown.add_row("a prediction, real-time", f"{result['predict_realtime_ms']:g}")
    for name, found in result["size"].items():
        shown.add_row(f"the cheapest of {found['plans']:,} plans, {name}", f"{found['ms']:g}")
    return shown
