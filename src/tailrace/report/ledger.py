"""The ledger: past predictions and how they turned out, one JSON line each.

A prediction is scored once a profile of the same flow has been measured under the same plan, at
about the same rate; those that a run makes for its own decisions are scored by the run. The
confidence intervals of future predictions are computed from the scores.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import InputError
from tailrace.model.score import LEAST_MS, Accuracy, Score
from tailrace.outside import MOST_MS, is_there, parse_json, read_text, shown
from tailrace.plan import Backend
from tailrace.state.files import replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tailrace.model.prediction import Prediction
    from tailrace.profile.profile import Profile

SAME_RATE = 0.1
"""A prediction applies to rates that differ by less than this share from its own."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded prediction, and the mean that was measured later, if any."""

    flow: str
    at_us: int
    plan: dict[str, Any]
    rate_per_s: float
    known: bool
    predicted_ms: float
    measured_ms: float | None = None

    def score(self) -> Score | None:
        """How accurate it was; None if not measured yet."""
        if self.measured_ms is None:
            return None
        return Score(Backend(self.plan["backend"]), self.known, self.predicted_ms, self.measured_ms)


@dataclass(frozen=True, slots=True)
class Ledger:
    """A file of predictions; one that does not exist yet is empty."""

    path: Path

    def entries(self) -> list[Entry]:
        """All entries so far, oldest first."""
        if not is_there(self.path):
            return []
        text = read_text(self.path, "log", "predict with --log")
        return [_entry(line, f"Line {at} of {self.path}") for at, line in _lines(text)]

    def accuracy(self) -> Accuracy:
        """The scores of all predictions that have been measured."""
        scores = (entry.score() for entry in self.entries())
        return Accuracy(tuple(score for score in scores if score is not None))

    def add(self, flow: str, prediction: Prediction, at_us: int) -> None:
        """Record a prediction, unless it has no latency to score, as for an impossible plan."""
        if not (prediction.works and LEAST_MS <= prediction.mean_ms <= MOST_MS):
            return
        entry = Entry(
            flow,
            at_us,
            prediction.plan.as_json(),
            prediction.rate_per_s,
            prediction.outcome.known,
            prediction.mean_ms,
        )
        self._append([entry])

    def add_run(self, run: Mapping[str, Any]) -> int:
        """Record the predicted and measured effects of a run's decisions; returns their number.

        ``run`` is the data of its report. The rate is that of the interval in which the effect was
        measured.
        """
        entries = list(_decided(run))
        self._append(entries)
        return len(entries)

    def _append(self, entries: Sequence[Entry]) -> None:
        """Append entries to the file, each on its own line."""
        try:
            with self.path.open("ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    whole = file.read(1) == b"\n"
                    file.write(b"" if whole else b"\n")
                file.writelines(_line(entry).encode() for entry in entries)
        except (OSError, ValueError) as error:  # such as a null character in the path
            raise self._unwritable(error) from None

    def settle(self, profile: Profile) -> list[Entry]:
        """Score the predictions that a measured profile settles, and return them."""
        if profile.latency is None or not _latency(profile.latency.mean_ms):
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
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        try:
            with replacing(self.path, temporary, flush=True) as file:
                file.write("".join(map(_line, entries)).encode())
        except OSError as error:
            raise self._unwritable(error) from None
        return settled

    def _unwritable(self, error: OSError | ValueError) -> InputError:
        reason = error.strerror if isinstance(error, OSError) else error
        return InputError(f"The log {self.path} cannot be written ({reason}): name another file.")


def _line(entry: Entry) -> str:
    return json.dumps(asdict(entry), allow_nan=False) + "\n"


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers; only a line feed ends a line."""
    return ((at, line) for at, line in enumerate(text.split("\n"), start=1) if line.strip())


def _entry(line: str, where: str) -> Entry:
    """The prediction on a line, after checking the type and range of every field."""
    data = parse_json(line, where)
    found = data if isinstance(data, dict) else {}
    unfit = (name for name, fits in _FIELDS.items() if not fits(found.get(name)))
    unknown = (name for name in found if name not in _FIELDS)
    for name in (*unfit, *unknown):
        raise InputError(
            f"{where} is not a prediction, by its {shown(name)}: remove it, or name the file that "
            "'tailrace predict --log' wrote."
        )
    return Entry(**found)


def _amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _latency(value: object) -> bool:
    """A usable latency: relative errors of one close to zero would be unbounded."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return LEAST_MS <= value <= MOST_MS


def _planned(value: object) -> bool:
    return isinstance(value, dict) and value.get("backend") in list(Backend)


_FIELDS: Final[Mapping[str, Callable[[object], bool]]] = {
    "flow": lambda value: isinstance(value, str),
    "at_us": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "plan": _planned,
    "rate_per_s": _amount,
    "known": lambda value: isinstance(value, bool),
    "predicted_ms": _latency,
    "measured_ms": lambda value: value is None or _latency(value),
}
"""The check for each field of a prediction; the last field may be missing."""


def _decided(run: Mapping[str, Any]) -> Iterator[Entry]:
    """The decisions of a run that were applied, with a predicted and a measured effect."""
    for made in run["decisions"]:
        predicted_ms, realised_ms, at_us = made["predicted_ms"], made["realised_ms"], made["at_us"]
        after = next((i for i in run["intervals"] if i["start_us"] >= at_us), None)
        if _latency(predicted_ms) and _latency(realised_ms) and after is not None:
            rate = after["rate_per_s"]
            yield Entry(run["flow"], at_us, made["after"], rate, True, predicted_ms, realised_ms)


def _speaks_of(entry: Entry, profile: Profile) -> bool:
    same_plan = {**entry.plan, "cores": None} == {**profile.plan.as_json(), "cores": None}
    return (
        entry.flow == profile.name
        and same_plan
        and math.isclose(entry.rate_per_s, profile.rate_per_s, rel_tol=SAME_RATE)
    )
