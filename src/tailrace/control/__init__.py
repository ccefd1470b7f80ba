"""The loop: events in, actions out, and a log of why."""

from __future__ import annotations

from tailrace.control.controller import Controller
from tailrace.control.log import DecisionRecord, IntervalRecord, Log, Mode, Saving, StepRecord

__all__ = [
    "Controller",
    "DecisionRecord",
    "IntervalRecord",
    "Log",
    "Mode",
    "Saving",
    "StepRecord",
]
