"""Latency guarantees for Spark Structured Streaming pipelines.

Declare the latency that a pipeline must keep; Tailrace predicts what that takes, keeps it live at
the least cost, and says so early when it cannot be kept.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace import load
    from tailrace.constraint import Constraint
    from tailrace.errors import TailraceError
    from tailrace.model.capacity import capacity
    from tailrace.model.predict import predict
    from tailrace.model.size import size
    from tailrace.plan import Plan
    from tailrace.policy.scaling.ondemand import OnDemand
    from tailrace.profile.profile import Profile
    from tailrace.rehearsal import rehearse
    from tailrace.report.data import Report
    from tailrace.spark import kafka, sinks
    from tailrace.spark.flow import Flow
    from tailrace.spark.pipeline.step import batch_step, flat_step, keyed_step, step
    from tailrace.spark.run import Run
    from tailrace.spark.session import session
    from tailrace.spark.sources import replay

__all__ = [
    "Constraint",
    "Flow",
    "OnDemand",
    "Plan",
    "Profile",
    "Report",
    "Run",
    "TailraceError",
    "batch_step",
    "capacity",
    "flat_step",
    "kafka",
    "keyed_step",
    "load",
    "predict",
    "rehearse",
    "replay",
    "session",
    "sinks",
    "size",
    "step",
]

__version__ = "0.1.0"

_HOMES = {
    "Constraint": "tailrace.constraint",
    "Flow": "tailrace.spark.flow",
    "OnDemand": "tailrace.policy.scaling.ondemand",
    "Plan": "tailrace.plan",
    "Profile": "tailrace.profile.profile",
    "capacity": "tailrace.model.capacity",
    "predict": "tailrace.model.predict",
    "size": "tailrace.model.size",
    "Report": "tailrace.report.data",
    "Run": "tailrace.spark.run",
    "TailraceError": "tailrace.errors",
    "batch_step": "tailrace.spark.pipeline.step",
    "flat_step": "tailrace.spark.pipeline.step",
    "keyed_step": "tailrace.spark.pipeline.step",
    "load": "tailrace",
    "rehearse": "tailrace.rehearsal",
    "replay": "tailrace.spark.sources",
    "session": "tailrace.spark.session",
    "kafka": "tailrace.spark",
    "sinks": "tailrace.spark",
    "step": "tailrace.spark.pipeline.step",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used.

    Every Python worker imports this package, and needs very little of it.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'tailrace' has no attribute {name!r}")
    home = _HOMES[name]
    if name in ("kafka", "load", "sinks"):
        return importlib.import_module(f"{home}.{name}")
    return getattr(importlib.import_module(home), name)
