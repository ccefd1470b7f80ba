"""Latency constraints: what a pipeline must keep.

A constraint is (path, statistic, bound, every): over the records that enter the path in any
``every``, the mean (Lohrmann 2016, eq. 4.1) or a quantile of their latency must not exceed the
bound. A mean describes the pipeline as a whole; a quantile describes its unlucky records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import ConstraintError, UnitError
from tailrace.units import positive_duration_ms, show_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = "source"
SINK = "sink"


def is_sink(name: str) -> bool:
    """Whether a name stands for an end of the graph: ``sink``, or ``sink:<output>``."""
    return name == SINK or name.startswith(f"{SINK}:")


_QUANTILE = re.compile(r"p(\d{1,2})(?:[._](\d+))?")


@dataclass(frozen=True, slots=True)
class Constraint:
    """The latency that records entering ``path`` must keep.

    ``path`` names the steps from the first to the last one that count. The words ``source`` and
    ``sink`` stand for a record's arrival and for its result becoming visible; the whole flow is
    ``("source", "sink")``. ``quantile`` is None for the mean.
    """

    bound_ms: float
    every_ms: float = 5_000.0
    quantile: float | None = None
    path: tuple[str, ...] = (SOURCE, SINK)

    @property
    def statistic(self) -> str:
        """``mean``, or the quantile as ``p99`` or ``p99.9``."""
        return "mean" if self.quantile is None else f"p{self.quantile * 100:.10g}"

    @property
    def from_source(self) -> bool:
        """Whether the wait before the first step counts, which is what batching changes."""
        return self.path[0] == SOURCE

    def __str__(self) -> str:
        """The constraint in words."""
        where = "" if self.path == (SOURCE, SINK) else f" on {' -> '.join(self.path)}"
        bound, every = show_duration(self.bound_ms), show_duration(self.every_ms)
        return f"{self.statistic} <= {bound} in every {every}{where}"


def constraint(
    statistic: str,
    bound: str | float,
    *,
    every: str | float = "5 s",
    path: tuple[str, ...] | None = None,
) -> Constraint:
    """Read a constraint as a user writes it: ``constraint("p99", "1 s", every="5 s")``."""
    if isinstance(path, str) or (path is not None and len(path) == 0):
        raise ConstraintError(
            f"The path {path!r} is not a tuple of step names: write path=('first', 'last')."
        )
    try:
        bound_ms = positive_duration_ms(bound, f"the bound on the {statistic}")
        every_ms = positive_duration_ms(every, "the span 'every' of a constraint")
    except UnitError as error:
        raise ConstraintError(str(error)) from error
    return Constraint(bound_ms, every_ms, _quantile(statistic), path or (SOURCE, SINK))


def only_constraint(bounds: Mapping[str, str | float], every: str | float) -> Constraint | None:
    """The single constraint given as ``mean="400 ms"`` or similar; None if there is none."""
    if len(bounds) > 1:
        raise ConstraintError(
            f"Only one bound at a time can be asked about, and there are {', '.join(bounds)}."
        )
    return next((constraint(name, bound, every=every) for name, bound in bounds.items()), None)


def _quantile(statistic: str) -> float | None:
    if statistic == "mean":
        return None
    match = _QUANTILE.fullmatch(statistic)
    quantile = float(f"{match[1]}.{match[2] or 0}") / 100 if match else 0.0
    if not 0.0 < quantile < 1.0:
        raise ConstraintError(
            f"'{statistic}' is not a statistic of latency: write mean, p50, p99, p99_9 or the like."
        )
    return quantile
