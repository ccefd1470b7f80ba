"""How accurate predictions are: measured runs, each predicted from all others of its topology."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from tailrace.model.capacity import capacity
from tailrace.model.predict import Predictor
from tailrace.model.score import summed_up
from tailrace.plan import Backend
from tailrace.profile.file import as_json, from_json
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tailrace.profile.profile import Latency, Profile

HIGHEST = 0.9
"""Figures up to this utilisation count; those above it are shown separately."""


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration that was run, and its results.

    ``utilisation`` is according to its own profile. ``arrivals`` are the records that entered each
    step, per record that entered the flow.
    """

    topology: str
    profile: Profile
    utilisation: float
    arrivals: Mapping[str, float]

    def __str__(self) -> str:
        """Its plan and its utilisation, in short."""
        plan = self.profile.plan
        live = plan.backend is Backend.REALTIME
        wait_ms = max(plan.lifetimes_ms.values(), default=0.0) if live else plan.interval_ms
        tasks = max(plan.partitions.values(), default=1)
        return f"{plan.backend} {wait_ms:g} ms x{tasks} at {self.utilisation:.2f}"


@dataclass(frozen=True, slots=True)
class Overloaded:
    """A plan that got more than it can take: ``measured_per_s`` got through.

    ``profile`` comes from an earlier run under a small load, with the plan of this run.
    """

    topology: str
    profile: Profile
    measured_per_s: float

    def errors(self, cases: Sequence[Case]) -> list[float]:
        """The relative error of the saturation that each profile of the same kind predicts."""
        plan, backend = self.profile.plan, self.profile.backend
        alike = (c.profile for c in cases if c.topology == self.topology)
        known = [self.profile, *(found for found in alike if found.backend is backend)]
        limits = (float(capacity(found, plan).saturation_per_s) for found in known)
        return [limit / self.measured_per_s - 1 for limit in limits]

    def told(self, errors: Sequence[float]) -> str:
        """What got through, and the errors of the predictions, in a line."""
        return (
            f"{self.topology} in {self.profile.backend}: {show_rate(self.measured_per_s)} got "
            f"through, predicted {median(errors):+.1%}, from {min(errors):+.1%} to "
            f"{max(errors):+.1%}"
        )


@dataclass(frozen=True, slots=True)
class Runs:
    """Everything that was measured: cases, the engine's costs in each backend, and overloads."""

    cases: tuple[Case, ...]
    engine: Mapping[Backend, Profile]
    overloads: tuple[Overloaded, ...]
    misplaced_keys: int

    def replaced(
        self, names: Collection[str], cases: Iterable[Case], overloads: Iterable[Overloaded]
    ) -> Runs:
        """The same, with other runs of some topologies."""
        others = (case for case in self.cases if case.topology not in names)
        limits = (found for found in self.overloads if found.topology not in names)
        return replace(self, cases=(*others, *cases), overloads=(*limits, *overloads))

    def as_json(self) -> dict[str, Any]:
        """The runs as plain data."""
        return {
            "cases": [
                {
                    "topology": case.topology,
                    "utilisation": round(case.utilisation, 4),
                    "arrivals": dict(case.arrivals),
                    "profile": as_json(case.profile),
                }
                for case in self.cases
            ],
            "engine": {str(backend): as_json(found) for backend, found in self.engine.items()},
            "overloads": [
                {
                    "topology": found.topology,
                    "measured_per_s": round(found.measured_per_s, 2),
                    "profile": as_json(found.profile),
                }
                for found in self.overloads
            ],
            "misplaced_keys": self.misplaced_keys,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Runs:
        """Read runs from plain data."""
        return cls(
            tuple(
                Case(
                    case["topology"],
                    from_json(case["profile"], f"the profile of '{case['topology']}'"),
                    case["utilisation"],
                    case["arrivals"],
                )
                for case in data["cases"]
            ),
            {
                Backend(backend): from_json(found, f"the engine in {backend}")
                for backend, found in data["engine"].items()
            },
            tuple(
                Overloaded(
                    found["topology"],
                    from_json(found["profile"], f"the overload of '{found['topology']}'"),
                    found["measured_per_s"],
                )
                for found in data["overloads"]
            ),
            data["misplaced_keys"],
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One case predicted from another: the prediction, the measurement, and the errors."""

    origin: Case
    target: Case
    mean_ms: float
    p99_ms: float
    arrivals: tuple[float, ...]

    @property
    def measured(self) -> Latency:
        """The latency that was measured."""
        found = self.target.profile.latency
        assert found is not None  # noqa: S101 - a run always measures it
        return found

    @property
    def same_backend(self) -> bool:
        """Whether the profile was measured in the backend that it predicts."""
        return self.origin.profile.backend is self.target.profile.backend

    @property
    def mean_error(self) -> float:
        """The error of the mean, which is 1 for a plan that was wrongly called impossible."""
        return _error(self.mean_ms, self.measured.mean_ms)

    @property
    def p99_error(self) -> float:
        """The same for the p99."""
        return _error(self.p99_ms, self.measured.p99_ms)

    def __str__(self) -> str:
        """The prediction in a line."""
        mean, p99 = (
            f"{show_duration(said) if math.isfinite(said) else 'never'} of {show_duration(ms)} "
            f"({error:+.0%})"
            for said, ms, error in (
                (self.mean_ms, self.measured.mean_ms, self.mean_error),
                (self.p99_ms, self.measured.p99_ms, self.p99_error),
            )
        )
        return f"{self.origin.topology}: {self.origin} -> {self.target}: mean {mean}, p99 {p99}"


def judged(runs: Runs) -> dict[str, Any]:
    """Every configuration predicted from every other of its topology, with the errors.

    A saturation is predicted by every profile of its topology and backend; the median counts, and
    all of them are shown too.
    """
    made = [
        _attempt(origin, target, runs.engine)
        for origin in runs.cases
        for target in runs.cases
        if origin.topology == target.topology and origin is not target
    ]
    usual = [one for one in made if one.target.utilisation <= HIGHEST]
    beyond = [one for one in made if one.target.utilisation > HIGHEST]
    limits = [(one, one.errors(runs.cases)) for one in runs.overloads]
    same = [one for one in usual if one.same_backend]
    other = [one for one in usual if not one.same_backend]
    return {
        "mean": _summed_up([one.mean_error for one in usual]),
        "p99": _summed_up([one.p99_error for one in usual]),
        "arrivals": _summed_up([error for one in usual for error in one.arrivals]),
        "saturation": {
            **_summed_up([median(errors) for _, errors in limits]),
            "of_every_profile": _summed_up([error for _, errors in limits for error in errors]),
            "made": [one.told(errors) for one, errors in limits],
        },
        "misplaced_keys": runs.misplaced_keys,
        "same_backend": {"mean": _summed_up([one.mean_error for one in same])},
        "other_backend": {"mean": _summed_up([one.mean_error for one in other])},
        "above_nine_tenths": {"mean": _summed_up([one.mean_error for one in beyond])},
        "configurations": len(runs.cases),
        "predictions": len(usual),
        "made": [str(one) for one in made],
    }


def _attempt(origin: Case, target: Case, engine: Mapping[Backend, Profile]) -> Attempt:
    """Predict a case; the costs of a backend that the profile lacks are those of trivial steps."""
    profile, real = origin.profile, target.profile
    other = engine[real.backend]
    profile = replace(
        profile,
        batch=profile.batch or other.batch,
        hand_over=profile.hand_over or other.hand_over,
    )
    ask = Predictor(profile)
    found = ask(real.plan, real.rate_per_s)
    entering = ask.loads(found.plan, 1.0).entering
    arrivals = (
        float(entering[name].sum()) / measured - 1 for name, measured in target.arrivals.items()
    )
    return Attempt(origin, target, found.mean_ms, found.p99_ms, tuple(arrivals))


def _error(said_ms: float, measured_ms: float) -> float:
    return said_ms / measured_ms - 1 if math.isfinite(said_ms) else 1.0


def _summed_up(errors: Sequence[float]) -> dict[str, float | None]:
    """A summary of errors as for scores, None if there are none."""
    if not errors:
        return dict.fromkeys(("median_abs_error", "p90_abs_error", "max_abs_error"))
    return {**summed_up(errors)}
