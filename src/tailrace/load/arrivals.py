"""When the records of a load are due.

An arrival process is defined on a clock that ticks once for each expected record, so its gaps
have a mean of 1. The inverse of the integrated rate takes that clock to real time: if u is a
process of rate 1 then Lambda^-1(u) follows the profile whose integrated rate is Lambda. For
Poisson this is exact, and it is a few array operations for any profile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tailrace.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.load.rates import RateProfile

Floats = NDArray[np.float64]
MOST_RECORDS: Final = 500_000_000
_CHUNK: Final = 1 << 16  # small enough to stay in a core's cache


class Arrivals(Protocol):
    """A process whose gaps have a mean of 1."""

    def ticks(self, until: float, rng: np.random.Generator) -> Floats:
        """The sorted times of all arrivals in [0, until)."""


@dataclass(frozen=True, slots=True)
class Even:
    """One arrival in the middle of each tick: the count is the rounded integral of the rate."""

    def ticks(self, until: float, rng: np.random.Generator) -> Floats:  # noqa: ARG002 - no chance
        """The sorted times of all arrivals in [0, until)."""
        return np.arange(math.floor(until + 0.5), dtype=np.float64) + 0.5


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals: gaps are exponential, their coefficient of variation is 1."""

    def ticks(self, until: float, rng: np.random.Generator) -> Floats:
        """The sorted times of all arrivals in [0, until)."""
        return _renewals(until, rng.standard_exponential)


@dataclass(frozen=True, slots=True)
class Pareto:
    """Bursts and lulls: the gaps are heavy-tailed, P(gap > x) = (1 + x / (shape - 1)) ** -shape.

    This is the Pareto distribution that starts at zero (Lomax), scaled to a mean of 1. Its
    squared coefficient of variation, shape / (shape - 2), is above Poisson's at every shape, and
    infinite up to shape 2. The closer the shape is to 1, the further a count strays from the
    integral of the rate.
    """

    shape: float

    def __post_init__(self) -> None:
        """Check the shape: at 1 or below the gaps have no mean."""
        if not 1 < self.shape < math.inf:
            raise LoadError(
                f"A Pareto shape of {self.shape!r} gives gaps without a mean: "
                "use a number above 1, such as 1.5."
            )

    def ticks(self, until: float, rng: np.random.Generator) -> Floats:
        """The sorted times of all arrivals in [0, until)."""
        return _renewals(until, lambda count: (self.shape - 1) * rng.pareto(self.shape, count))


def due_us(profile: RateProfile, arrivals: Arrivals, rng: np.random.Generator) -> NDArray[np.int64]:
    """The due times of a load, sorted, in whole microseconds since its start.

    Raises:
        LoadError: If the load asks for more records than fit into memory.
    """
    total = float(profile.expected(np.array([profile.duration_s]))[0])
    _check_count(total)
    ticks = arrivals.ticks(total, rng)
    due = np.empty(len(ticks), dtype=np.int64)
    for start in range(0, len(ticks), _CHUNK * 16):
        part = slice(start, start + _CHUNK * 16)
        due[part] = profile.time_of(ticks[part]) * 1e6
    return np.maximum.accumulate(due)


def _renewals(until: float, gaps: Callable[[int], Floats]) -> Floats:
    """Add up gaps until they pass `until`; later arrivals are dropped."""
    parts: list[Floats] = []
    reached, count = 0.0, 0
    while reached < until:
        _check_count(count)
        left = until - reached
        part = gaps(math.ceil(left + 6 * math.sqrt(left) + 16))
        np.cumsum(part, out=part)
        part += reached
        reached = float(part[-1])
        count += len(part)
        parts.append(part)
    ticks = np.concatenate(parts) if len(parts) > 1 else parts[0]
    return ticks[: int(np.searchsorted(ticks, until, side="left"))]


def _check_count(count: float) -> None:
    if count > MOST_RECORDS:
        raise LoadError(
            f"The load asks for more than {MOST_RECORDS:,} records: lower its rate or its duration."
        )
