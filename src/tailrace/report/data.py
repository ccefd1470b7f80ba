"""The report of a run as data: what was promised, what was measured, what was decided and why."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.profile.histogram import LogHistogram
from tailrace.profile.moments import Moments
from tailrace.report.saso import saso, sized_steps
from tailrace.units import finite

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.control import Controller, IntervalRecord, Record
    from tailrace.control.scaling import Scaling
    from tailrace.policy.decision import Impossible
    from tailrace.profile.histogram import Quantiles
    from tailrace.profile.interval import Verdict
    from tailrace.profile.profile import Profile


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run used: wall time, the slots that it held, and CPU time of all its processes.

    ``core_seconds`` is slots times seconds: what the run would be charged for. ``joules`` are those
    of the driver's machine, with whatever else ran there; None where it does not show them.
    """

    elapsed_s: float
    core_seconds: float
    cpu_s: float
    joules: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What happened in a run, in a form that machines read. Keys are stable.

    ``profile`` is what predictions need of it, None if the run was too short for one.
    """

    data: dict[str, Any] = field(default_factory=dict)
    profile: Profile | None = None

    @property
    def fulfilled_share(self) -> float:
        """The share of verdicts after the warm-up that found their bound kept; nan if none."""
        share = self.data["fulfilled_share"]
        return math.nan if share is None else float(share)

    @property
    def intervals(self) -> list[dict[str, Any]]:
        """The adjustment intervals."""
        intervals: list[dict[str, Any]] = self.data["intervals"]
        return intervals

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.data, indent=2) + "\n", encoding="utf-8")


def report_of(
    flow: str,
    controller: Controller[Any, Any],
    usage: Usage,
    *,
    warm_up_ms: float,
    restarts_ms: tuple[float, ...] = (),
    notes: tuple[str, ...] = (),
) -> Report:
    """Put together the report of a controller's run.

    Verdicts on intervals that began during the warm-up are shown, but not counted.
    """
    warm_us = controller.origin_us + warm_up_ms * 1e3
    counted = [v for v in controller.log.verdicts if v.start_us >= warm_us]
    warm = [record for record in controller.log.history if record.start_us >= warm_us]
    return Report(
        {
            "flow": flow,
            "origin_us": controller.origin_us,
            "interval_ms": controller.interval_ms,
            "mode": str(controller.mode),
            "constraints": [
                {
                    "text": str(constraint),
                    "statistic": constraint.statistic,
                    "bound_ms": constraint.bound_ms,
                    "every_ms": constraint.every_ms,
                    "path": list(constraint.path),
                    **_kept([v for v in counted if v.constraint == constraint]),
                }
                for constraint in controller.constraints
            ],
            "warm_up_s": warm_up_ms / 1e3,
            "fulfilled_share": _share(counted),
            "records": sum(record.records for record in controller.log.history),
            "batches": controller.log.batches,
            "latency_ms": _latency(warm, controller.log.older),
            "core_seconds": round(usage.core_seconds, 2),
            "cpu_seconds": round(usage.cpu_s, 2),
            "energy_joules": None if usage.joules is None else round(usage.joules, 1),
            "elapsed_s": round(usage.elapsed_s, 2),
            "saving": {
                "batches": round(controller.log.saving.batches, 1),
                "cpu_seconds": round(controller.log.saving.cpu_ms / 1e3, 2),
            },
            "model": None
            if controller.log.model is None
            else {
                "fixed_ms": round(controller.log.model.fixed_ms, 2),
                "per_record_ms": round(controller.log.model.per_record_ms, 5),
            },
            "scaling": _scaling(warm, controller.scaling),
            "restarts_ms": [round(ms, 1) for ms in restarts_ms],
            "impossible": [_impossible(impossible) for impossible in controller.log.impossible],
            "notes": list(notes),
            "decisions": [_decision(record) for record in controller.log.decisions],
            "intervals": [
                _interval(record, warm_us, controller.scaling) for record in controller.log.history
            ],
        },
        controller.recording.profile(flow, warm_us),
    )


def _scaling(history: list[IntervalRecord], scaling: Scaling | None) -> dict[str, Any] | None:
    """How the number of executors was kept, where it was decided here."""
    if scaling is None or not history:
        return None
    cores = scaling.limits.cores
    return {
        **saso(sized_steps(history, cores), cores=cores).as_json(),
        "decision_ms": round(scaling.slowest_ms, 1),
        "forecast_error": finite(scaling.forecast_error, 3),
    }


def _share(verdicts: list[Verdict]) -> float | None:
    if not verdicts:
        return None
    return round(sum(verdict.fulfilled for verdict in verdicts) / len(verdicts), 4)


def _kept(verdicts: list[Verdict]) -> dict[str, float | None]:
    return {
        "judged": len(verdicts),
        "fulfilled": sum(verdict.fulfilled for verdict in verdicts),
        "fulfilled_share": _share(verdicts),
    }


def _latency(intervals: list[IntervalRecord], older: LogHistogram) -> dict[str, float] | None:
    """The latency of all records after the warm-up."""
    if not intervals:
        return None
    mean = Moments.merged(interval.latency_ms for interval in intervals).mean
    whole = LogHistogram.merged((older, *(interval.latencies_ms for interval in intervals)))
    return {"mean_ms": round(mean, 2), **_shown(whole.quantiles())}


def _shown(quantiles: Quantiles) -> dict[str, float]:
    return {name: round(value, 2) for name, value in asdict(quantiles).items()}


def _interval(record: IntervalRecord, warm_us: float, scaling: Scaling | None) -> dict[str, Any]:
    return {
        "start_us": record.start_us,
        "records": record.records,
        "rate_per_s": round(record.rate_per_s, 1),
        "batches": record.batches,
        "mean_ms": round(record.latency_ms.mean, 2),
        **_shown(record.quantiles),
        "fulfilled": all(verdict.fulfilled for verdict in record.verdicts),
        "warm_up": record.start_us < warm_us,
        "verdicts": [_verdict(verdict) for verdict in record.verdicts],
        "breakdown_ms": {name: round(part, 3) for name, part in record.breakdown_ms.items()},
        "steps": {
            name: {
                "records_in": step.records_in,
                "records_out": step.records_out,
                "errors": step.errors,
                "service_mean_ms": round(step.service_ms.mean, 6),
                "service_variance_ms2": round(step.service_ms.variance, 9),
                "selectivity": round(step.records_out / max(1, step.records_in), 4),
                "utilisation": round(step.utilisation, 4),
            }
            for name, step in record.steps.items()
        },
        "plan": record.plan.as_json(),
        "slots": record.slots,
        "executors": None if scaling is None else record.slots // scaling.limits.cores,
        "needed": record.needed,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "constraint": str(verdict.constraint),
        "value_ms": round(verdict.value_ms, 2),
        "fulfilled": verdict.fulfilled,
        "excess_ms": round(verdict.excess_ms, 2),
        "blame": verdict.blame,
    }


def _decision(record: Record) -> dict[str, Any]:
    return {
        "at_us": record.at_us,
        "policy": record.policy,
        "applied": record.applied,
        "reason": record.reason,
        "before": record.before.as_json(),
        "after": record.after.as_json(),
        "predicted_ms": finite(record.predicted_ms, 2),
        "realised_ms": finite(record.realised_ms, 2),
        "alternatives": [
            {"what": a.what, "predicted_ms": finite(a.predicted_ms, 2), "why_not": a.why_not}
            for a in record.alternatives
        ],
    }


def _impossible(impossible: Impossible) -> dict[str, Any]:
    return {
        "constraint": str(impossible.constraint),
        "element": impossible.element,
        "best_ms": finite(impossible.best_ms, 2),
        "reason": impossible.reason,
        "remedy": impossible.remedy,
    }
