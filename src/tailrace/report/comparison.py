"""Runs of several scalers under one load, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.errors import InputError
from tailrace.report.saso import SizedStep, saso

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.report.data import Report
    from tailrace.report.saso import Saso


def counted_steps(report: Report) -> list[SizedStep]:
    """The intervals of a report after its warm-up as control steps; the units are executors.

    Raises:
        InputError: If there are none.
    """
    counted = [interval for interval in report.intervals if not interval["warm_up"]]
    if not counted:
        raise InputError(
            "No interval is left to compare after the warm-up: give a longer load, or a shorter "
            "--warm-up."
        )
    return [_step(interval, report.data["interval_ms"]) for interval in counted]


def figures(reports: Mapping[str, Report], cores: int) -> dict[str, Saso]:
    """The figures for ``report.saso.table``; each executor has ``cores`` cores."""
    return {name: saso(counted_steps(report), cores=cores) for name, report in reports.items()}


def as_json(reports: Mapping[str, Report]) -> list[dict[str, Any]]:
    """The same as plain data, with the names that reports use."""
    return [
        {
            "name": name,
            "fulfilled_share": report.data["fulfilled_share"],
            "mean_ms": None if report.latency is None else report.latency.mean_ms,
            **(report.data["scaling"] or {}),
        }
        for name, report in reports.items()
    ]


def _step(interval: dict[str, Any], every_ms: float) -> SizedStep:
    verdicts = interval["verdicts"]
    size, wanted = interval["executors"], interval["plan"].get("executors")
    return SizedStep(
        at_us=interval["start_us"] + round(every_ms * 1e3),
        step_ms=every_ms,
        size=size,
        rate_per_s=interval["rate_per_s"],
        latency_ms=verdicts[0]["value_ms"] if verdicts else interval["mean_ms"],
        violated=not interval["fulfilled"],
        least_size=interval["needed"],
        starting=max(0, (wanted or 0) - size),
    )
