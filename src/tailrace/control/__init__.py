"""The loop: observe, decide, act, and keep a record of why."""

from __future__ import annotations

from tailrace.control.batches import BatchController
from tailrace.control.live import LiveController
from tailrace.control.loop import Controller, IntervalRecord, Log, Mode, Record, Saving, StepRecord

__all__ = [
    "BatchController",
    "Controller",
    "IntervalRecord",
    "LiveController",
    "Log",
    "Mode",
    "Record",
    "Saving",
    "StepRecord",
]
