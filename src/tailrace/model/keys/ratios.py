"""How much a step sends for what it gets: one ratio for each of its inputs.

Over equal buckets of time (on Spark: over batches) the records out are fitted to the records in,
``out = sum(ratio * in)`` (Cooper 2020, eq. 4.9 and sections 4.6 and 4.7). The original uses plain
least squares, which finds negative ratios when inputs move together, and says nothing when the
relation is not linear at all, where it was 30 to 40 % wrong. Here ratios are never negative, and a
fit that should not be relied on says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import fdtrc

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Counts = Sequence[float] | NDArray[Any]

Floats = NDArray[np.float64]

LEAST_R_SQUARED = 0.95
MOST_CONDITION = 30.0
"""Beyond it columns count as dependent on each other (Belsley, Kuh and Welsch 1980)."""

_SURE = 1e-3
_BEND = 0.02
_STEADY = 0.05
_EXACT = 1e-12
_SPARE = 8


@dataclass(frozen=True, slots=True)
class Ratios:
    """The ratios of a step on one of its outputs, and how far to trust them.

    ``r_squared`` is the part of ``sum(out**2)`` that the inputs explain. It is not taken around
    the mean, as the fit has no constant term: a steady load, which has little variance to explain,
    is no fault of the fit. ``condition`` says how nearly the inputs depend on each other: from 1,
    not at all, to infinity. ``linear`` is False when the output does not follow the inputs in
    proportion, or not closely enough to tell, ``separable`` when the inputs cannot be told apart;
    ``warnings`` say it in words.
    """

    of_input: Mapping[str, float]
    r_squared: float
    condition: float
    linear: bool
    separable: bool
    warnings: tuple[str, ...] = ()

    def output(self, inputs: Mapping[str, float]) -> float:
        """What is sent for these inputs: ``sum(ratio * in)`` (eq. 4.9)."""
        unknown = inputs.keys() - self.of_input.keys()
        if unknown:
            raise InputError(
                f"No ratio was measured for the input {', '.join(sorted(unknown))}: name only "
                f"{', '.join(self.of_input)}."
            )
        return math.fsum(self.of_input[name] * value for name, value in inputs.items())


def fit(inputs: Mapping[str, Counts], outputs: Counts) -> Ratios:
    """The ratios that explain the outputs best, each of them 0 or more.

    ``inputs`` hold, by the name of the input, the records of each bucket; ``outputs`` what was
    sent in the same buckets.
    """
    table, sent = _checked(inputs, outputs)
    names = tuple(inputs)
    size = np.linalg.norm(table, axis=0)
    used = size > 0
    scaled = table[:, used] / size[used]
    found = np.zeros(len(names))
    if scaled.shape[1]:
        found[used] = nnls(scaled, sent)[0] / size[used]
    error = float(np.sum((sent - table @ found) ** 2))
    whole = float(np.sum(sent**2))
    r_squared = 1 - error / whole if whole else 1.0
    condition = _condition(scaled)
    bend = _bend(scaled, sent, error)
    warnings = (
        _on_fit(r_squared, error, float(sent.sum())),
        _on_bend(bend),
        _on_steadiness(table @ found),
        _on_condition(condition, tuple(np.array(names)[used])),
        _on_silence(tuple(np.array(names)[~used])),
    )
    return Ratios(
        dict(zip(names, found.tolist(), strict=True)),
        r_squared,
        condition,
        linear=r_squared >= LEAST_R_SQUARED and not bend,
        separable=condition <= MOST_CONDITION,
        warnings=tuple(warning for warning in warnings if warning),
    )


def _checked(inputs: Mapping[str, Counts], outputs: Counts) -> tuple[Floats, Floats]:
    sent = np.array(outputs, np.float64)
    columns = [np.array(column, np.float64) for column in inputs.values()]
    if not columns or not len(sent) or any(column.shape != sent.shape for column in columns):
        sizes = ", ".join(f"{name} {len(column)}" for name, column in inputs.items())
        raise InputError(
            f"Ratios need the same buckets for every input as for the output, which has "
            f"{len(sent)} (inputs: {sizes or 'none'}): count all of them over the same times."
        )
    table = np.stack(columns, axis=1)
    if not all(np.all(np.isfinite(part) & (part >= 0)) for part in (table, sent)):
        raise InputError("The records of a bucket must be finite numbers from 0 up.")
    return table, sent


def _condition(scaled: Floats) -> float:
    """The condition number of the inputs, each scaled to length 1."""
    rows, columns = scaled.shape
    if not columns:
        return 1.0
    singular = np.linalg.svd(scaled, compute_uv=False)
    if rows < columns or singular[-1] <= _EXACT:
        return math.inf
    return float(singular[0] / singular[-1])


def _bend(scaled: Floats, sent: Floats, error: float) -> float:
    """The part of the output that an offset and squares explain and the ratios do not.

    0 unless it is both sure (an F test of the wider model at 1 in 1000) and large enough to
    matter. It is what tells a step that sends by the clock, or less than in proportion, from one
    whose output is merely noisy. Ratios that would have to be negative show here, too.
    """
    rows, columns = scaled.shape
    whole = float(np.sum(sent**2))
    if not columns or error <= _EXACT * whole:
        return 0.0
    pairs = [scaled[:, i] * scaled[:, j] for i in range(columns) for j in range(i, columns)]
    wide = np.column_stack([np.ones(rows), scaled, *pairs])
    wide /= np.linalg.norm(wide, axis=0).clip(_EXACT)
    fitted, _, rank, _ = np.linalg.lstsq(wide, sent, rcond=1e-9)
    left = float(np.sum((sent - wide @ fitted) ** 2))
    more, spare = int(rank) - columns, rows - int(rank)
    if more < 1 or spare < _SPARE:
        return 0.0
    gained = max(0.0, error - left)
    part = math.sqrt(gained / whole)
    ratio = (gained / more) / max(left / spare, _EXACT * whole)
    return part if part > _BEND and fdtrc(more, spare, ratio) < _SURE else 0.0


def _on_fit(r_squared: float, error: float, total: float) -> str:
    if r_squared >= LEAST_R_SQUARED:
        return ""
    if error <= total:  # no more than the chance of counting so few
        why = "so few records are sent in a bucket that a line cannot be told from chance"
        return f"The inputs explain {r_squared:.0%} of the output, as {why}: use longer buckets."
    return (
        f"The relation of input to output is not linear, as the inputs explain only "
        f"{r_squared:.0%} of the output: trust the ratios only near the measured load."
    )


def _on_bend(bend: float) -> str:
    if not bend:
        return ""
    return (
        f"The relation of input to output is not linear, as {bend:.0%} of the output is out of "
        "proportion to the inputs: trust the ratios only near the measured load."
    )


def _on_steadiness(expected: Floats) -> str:
    mean = float(expected.mean())
    if not mean or float(expected.std()) >= _STEADY * mean:
        return ""
    return (
        "The load hardly changed while it was measured, so that nothing shows whether the output "
        "would change with it: measure at several loads."
    )


def _on_condition(condition: float, names: tuple[str, ...]) -> str:
    if condition <= MOST_CONDITION:
        return ""
    return (
        f"The inputs {', '.join(names)} rise and fall together (condition number "
        f"{condition:.0f}), so that their ratios cannot be told apart: trust only what they make "
        "together, at the measured mix."
    )


def _on_silence(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    return (
        f"Nothing came in by {', '.join(names)}, so that the ratio there is not known and taken "
        "as 0: measure while records flow."
    )
