"""The ledger: predictions that were made, and what became of them, one JSON line each.

A prediction is scored when a profile of the same flow under the same plan, at about the same rate,
has been measured; those that a run makes for its own decisions are scored by the run. The scores
make the intervals of confidence of the predictions to come.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tailrace.errors import InputError
from tailrace.model.score import Accuracy, Score
from tailrace.plan import Backend
from tailrace.state.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tailrace.model.prediction import Prediction
    from tailrace.profile.profile import Profile

SAME_RATE = 0.1
"""A prediction speaks of rates that differ by less than this share from its own."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A prediction as it was written down, and the mean that was measured later, if it was."""

    flow: str
    at_us: int
    plan: dict[str, Any]
    rate_per_s: float
    known: bool
    predicted_ms: float
    measured_ms: float | None = None

    def score(self) -> Score | None:
        """How right it was; None while nobody knows."""
        if self.measured_ms is None:
            return None
        backend = Backend(self.plan["backend"])
        return Score(backend, self.known, self.predicted_ms, self.measured_ms)


@dataclass(frozen=True, slots=True)
class Ledger:
    """A file of predictions; one that does not exist yet is empty."""

    path: Path

    def entries(self) -> list[Entry]:
        """Everything written so far, oldest first."""
        if not self.path.exists():
            return []
        found = []
        for number, line in enumerate(self.path.read_text("utf-8").splitlines(), start=1):
            try:
                found.append(Entry(**json.loads(line)))
            except (ValueError, TypeError) as error:
                raise InputError(
                    f"Line {number} of {self.path} is no prediction: take it out, or name the "
                    "file that 'tailrace predict --log' wrote."
                ) from error
        return found

    def accuracy(self) -> Accuracy:
        """The scores of what has come true or not."""
        scores = (entry.score() for entry in self.entries())
        return Accuracy(tuple(score for score in scores if score is not None))

    def add(self, flow: str, prediction: Prediction, at_us: int) -> None:
        """Write a prediction down; one that says that nothing works has no latency to score."""
        if not prediction.works:
            return
        entry = Entry(
            flow,
            at_us,
            prediction.plan.as_json(),
            prediction.rate_per_s,
            prediction.outcome.known,
            prediction.mean_ms,
        )
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(entry))

    def add_run(self, run: Mapping[str, Any]) -> int:
        """Write down what a run predicted of its own decisions, and what came of them; how many.

        ``run`` is the data of its report. The rate is that of the interval that realised it.
        """
        with self.path.open("a", encoding="utf-8") as file:
            entries = list(_decided(run))
            file.writelines(map(_line, entries))
        return len(entries)

    def settle(self, profile: Profile) -> list[Entry]:
        """Score the predictions that a measured profile decides; those that it did."""
        if profile.latency is None:
            raise InputError(
                f"Profile '{profile.name}' has no measured latency to score by: record it by a "
                "flow, with 'tailrace run --profile'."
            )
        measured_ms, settled = profile.latency.mean_ms, []
        entries = self.entries()
        for number, entry in enumerate(entries):
            if entry.measured_ms is None and _speaks_of(entry, profile):
                entries[number] = replace(entry, measured_ms=measured_ms)
                settled.append(entries[number])
        with replacing(self.path, self.path.with_suffix(".tmp"), flush=True) as file:
            file.write("".join(map(_line, entries)).encode())
        return settled


def _line(entry: Entry) -> str:
    return json.dumps(asdict(entry)) + "\n"


def _decided(run: Mapping[str, Any]) -> Iterator[Entry]:
    """The decisions of a run that were applied, predicted and realised."""
    for made in run["decisions"]:
        predicted_ms, realised_ms, at_us = made["predicted_ms"], made["realised_ms"], made["at_us"]
        after = next((i for i in run["intervals"] if i["start_us"] >= at_us), None)
        if predicted_ms and realised_ms and after is not None:
            rate = after["rate_per_s"]
            yield Entry(run["flow"], at_us, made["after"], rate, True, predicted_ms, realised_ms)


def _speaks_of(entry: Entry, profile: Profile) -> bool:
    same_plan = {**entry.plan, "cores": None} == {**profile.plan.as_json(), "cores": None}
    return (
        entry.flow == profile.name
        and same_plan
        and math.isclose(entry.rate_per_s, profile.rate_per_s, rel_tol=SAME_RATE)
    )
