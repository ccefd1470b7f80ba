"""The report of a run as data: what was promised, what was measured, what was decided and why."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.errors import unwritable
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.moments import Moments
from tailrace.report.saso import saso, sized_steps
from tailrace.state.files import write_text
from tailrace.units import finite, show_duration

if TYPE_CHECKING:
    from pandas import DataFrame

    from tailrace.control import DecisionRecord, IntervalRecord, Log
    from tailrace.control.log import ScalingRecord
    from tailrace.policy.decision import Impossible
    from tailrace.profile.histogram import Quantiles
    from tailrace.profile.interval import Verdict
    from tailrace.profile.profile import Profile
    from tailrace.profile.stall import Stall


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run used: wall time, slots held, and CPU time of all its processes.

    ``core_seconds`` is slots times seconds: what the run would be charged for. ``joules`` is the
    energy of the whole driver machine, including anything else that ran there; None if the machine
    does not measure it.
    """

    elapsed_s: float
    core_seconds: float
    cpu_s: float
    joules: float | None = None


KEPT = 0.95
"""A constraint counts as kept when it held in at least this share of its intervals."""


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """The latency of the records that entered after the warm-up."""

    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What happened in a run: ``data`` for programs, with stable keys, and views of it.

    ``profile`` is what predictions need; None if the run was too short for one.
    """

    data: dict[str, Any] = field(default_factory=dict)
    profile: Profile | None = None

    @property
    def records(self) -> int:
        """The records that entered."""
        return int(self.data["records"])

    @property
    def latency(self) -> LatencySummary | None:
        """The latency after the warm-up; None if no record entered after it."""
        measured = self.data["latency_ms"]
        return None if measured is None else LatencySummary(**measured)

    @property
    def constraints(self) -> list[dict[str, Any]]:
        """The constraints, each with how often it was judged and how often it held."""
        return list(self.data["constraints"])

    @property
    def fulfilled_share(self) -> float:
        """The share of verdicts after the warm-up whose bound was kept; nan if there are none."""
        share = self.data["fulfilled_share"]
        return math.nan if share is None else float(share)

    @property
    def kept(self) -> bool | None:
        """Whether every constraint was kept (see ``KEPT``); None if none was judged."""
        shares = [constraint["fulfilled_share"] for constraint in self.constraints]
        judged = [share for share in shares if share is not None]
        return all(share >= KEPT for share in judged) if judged else None

    @property
    def intervals(self) -> list[dict[str, Any]]:
        """The adjustment intervals."""
        intervals: list[dict[str, Any]] = self.data["intervals"]
        return intervals

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """What was decided, when and why, with the predicted and the actual effect."""
        return list(self.data["decisions"])

    @property
    def impossible(self) -> list[dict[str, Any]]:
        """The constraints that no available plan can keep, each with reason and remedy."""
        return list(self.data["impossible"])

    @property
    def notes(self) -> list[str]:
        """What else a reader should know."""
        return list(self.data["notes"])

    @property
    def failure(self) -> str | None:
        """The error that the flow failed with; None if it ended normally."""
        failure: str | None = self.data["failure"]
        return failure

    def show(self) -> None:
        """Print the summary for people."""
        from rich.console import Console  # noqa: PLC0415 - programs need no terminal

        from tailrace.report.terminal import summary  # noqa: PLC0415

        Console().print(summary(self))

    def to_pandas(self) -> DataFrame:
        """The intervals as a frame, indexed by start time; nested keys are joined with dots.

        Verdicts are left out, as an interval may have several; see ``intervals``.
        """
        import pandas as pd  # noqa: PLC0415 - slow to import

        rows = [{k: v for k, v in row.items() if k != "verdicts"} for row in self.intervals]
        frame = pd.json_normalize(rows)
        starts = pd.to_datetime([row["start_us"] for row in rows], unit="us", utc=True)
        return frame.set_index(pd.DatetimeIndex(starts, name="start"))

    def __repr__(self) -> str:
        """The run in one line."""
        if not self.data:
            return "Report()"
        mean = "-" if self.latency is None else show_duration(self.latency.mean_ms)
        share = "-" if math.isnan(self.fulfilled_share) else f"{self.fulfilled_share:.1%}"
        ended = "" if self.failure is None else ", failed"
        return (
            f"<Report of {self.data['flow']!r}: {self.records:,} records, mean {mean}, "
            f"{share} kept{ended}>"
        )

    def _repr_html_(self) -> str:
        """The summary for a notebook."""
        from tailrace.report.terminal import html  # noqa: PLC0415 - programs need no terminal

        return html(self)

    def beside(self, baseline: Report) -> Report:
        """This report, with that of another run added for comparison."""
        return replace(self, data={**self.data, "baseline": baseline.data})

    def save(self, path: str | Path) -> None:
        """Write it as JSON; a reader sees either all of it or the previous file.

        Raises:
            InputError: If it cannot be written to this place.
            EnvironmentUnfit: If there is no space left.
        """
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_text(Path(path), json.dumps(self.data, indent=2) + "\n")
        except OSError as error:
            raise unwritable(f"The report {path}", error) from error


def report_of(
    flow: str,
    log: Log,
    usage: Usage,
    *,
    warm_up_ms: float,
    profile: Profile | None = None,
    restarts_ms: tuple[float, ...] = (),
    notes: tuple[str, ...] = (),
    failure: Exception | None = None,
    stalls: tuple[Stall, ...] = (),
) -> Report:
    """Put together the report of a run from its log, even if the run failed.

    Verdicts on intervals that began during the warm-up are shown, but not counted.
    """
    warm_us = log.origin_us + warm_up_ms * 1e3
    counted = [v for v in log.verdicts if v.start_us >= warm_us]
    warm = [record for record in log.history if record.start_us >= warm_us]
    return Report(
        {
            "flow": flow,
            "origin_us": log.origin_us,
            "interval_ms": log.interval_ms,
            "mode": str(log.mode),
            "constraints": [
                {
                    "text": str(constraint),
                    "statistic": constraint.statistic,
                    "bound_ms": constraint.bound_ms,
                    "every_ms": constraint.every_ms,
                    "path": list(constraint.path),
                    **_kept([v for v in counted if v.constraint == constraint]),
                }
                for constraint in log.constraints
            ],
            "failure": None if failure is None else str(failure),
            "warm_up_s": warm_up_ms / 1e3,
            "fulfilled_share": _share(counted),
            "records": sum(record.records for record in log.history) + log.unplaced_records,
            "batches": log.batches,
            "latency_ms": _latency(warm, log.older),
            "core_seconds": round(usage.core_seconds, 2),
            "cpu_seconds": round(usage.cpu_s, 2),
            "energy_joules": None if usage.joules is None else round(usage.joules, 1),
            "elapsed_s": round(usage.elapsed_s, 2),
            "saving": {
                "batches": round(log.saving.batches, 1),
                "cpu_seconds": round(log.saving.cpu_ms / 1e3, 2),
            },
            "model": None
            if log.model is None
            else {
                "fixed_ms": round(log.model.fixed_ms, 2),
                "per_record_ms": round(log.model.per_record_ms, 5),
            },
            "scaling": _scaling(warm, log.scaling),
            "restarts_ms": [round(ms, 1) for ms in restarts_ms],
            "impossible": [_impossible(impossible) for impossible in log.impossible],
            "notes": list(notes),
            "stalls": [stall.as_json() for stall in stalls],
            "decisions": [_decision(record) for record in log.decisions],
            "intervals": [_interval(record, warm_us, log.scaling) for record in log.history],
        },
        profile,
    )


def _scaling(history: list[IntervalRecord], scaling: ScalingRecord | None) -> dict[str, Any] | None:
    """How the number of executors was controlled, if Tailrace controlled it."""
    if scaling is None or not history:
        return None
    cores = scaling.cores
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


def _interval(
    record: IntervalRecord, warm_us: float, scaling: ScalingRecord | None
) -> dict[str, Any]:
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
        "executors": None if scaling is None else record.slots // scaling.cores,
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


def _decision(record: DecisionRecord) -> dict[str, Any]:
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
        "provisional": impossible.provisional,
    }
