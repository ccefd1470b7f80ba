"""Repeatable randomness: random times, indices and arrivals, all from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.simulation import kernels
from tailrace.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.profile.histogram import LogHistogram

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]


class Purpose(IntEnum):
    """What random numbers are for: under one seed, every purpose has its own stream."""

    ARRIVALS = 0
    SERVICE = 1
    ROUTE = 2
    COPIES = 3
    ONWARD = 4
    NOISE = 5


def seeded(seed: int, *purpose: int) -> np.uint64:
    """The start of a stream of random numbers that no other purpose shares."""
    if seed < 0:
        raise InputError(f"A seed of {seed} is impossible: give a whole number from 0 up.")
    return np.uint64(np.random.SeedSequence([seed, *purpose]).generate_state(1, np.uint64)[0])


def check_shares(shares: Floats) -> None:
    """Refuse shares that cannot be drawn from."""
    if not (len(shares) and np.all(np.isfinite(shares)) and shares.min() >= 0 and shares.sum()):
        raise InputError(
            f"Shares of {shares.tolist()} cannot be drawn from: give numbers from 0 up, "
            "at least one of them above 0."
        )


def picked(shares: Floats, state: np.uint64, count: int) -> Indices:
    """Random indices, each with the probability of its share.

    For the alias method every index with too small a share is filled up from one with too large a
    share: it is kept with probability ``chances[i]``, and otherwise becomes ``others[i]`` (Vose
    1991).
    """
    chances = shares * (len(shares) / shares.sum())
    others = np.arange(len(shares))
    poor, rich = list(np.flatnonzero(chances < 1)), list(np.flatnonzero(chances >= 1))
    while poor and rich:
        small, large = poor.pop(), rich[-1]
        others[small] = large
        chances[large] -= 1 - chances[small]
        if chances[large] < 1:
            poor.append(rich.pop())
    chances[poor + rich] = 1.0  # what is left differs from 1 by rounding only
    out = np.empty(count, np.int64)
    kernels.pick(chances, others, state, out)
    return out


def rounded(value: float, count: int, state: np.uint64) -> Indices:
    """Whole numbers with the mean ``value``, rounded up or down at random."""
    chance = np.empty(count)
    kernels.uniform(state, chance)
    return np.floor(value + chance).astype(np.int64)


def _no_times() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """The distribution of the times between arrivals, or of service times."""

    kind: int
    mean_ms: float
    cv: float = 0.0
    values: Floats = field(default_factory=_no_times)
    counts: Floats = field(default_factory=_no_times)

    def __post_init__(self) -> None:
        """Refuse impossible times."""
        if not (0 <= self.mean_ms < math.inf and 0 <= self.cv < math.inf):
            raise InputError(
                f"Times with a mean of {self.mean_ms} ms and a variation of {self.cv} are "
                "impossible: give two finite numbers from 0 up."
            )

    @classmethod
    def exponential(cls, mean_ms: float) -> Times:
        """Exponential; such gaps make a Poisson process."""
        return cls(kernels.EXPONENTIAL, mean_ms, 1.0)

    @classmethod
    def constant(cls, mean_ms: float) -> Times:
        """Always the same."""
        return cls(kernels.CONSTANT, mean_ms)

    @classmethod
    def gamma(cls, mean_ms: float, cv: float) -> Times:
        """Gamma distributed, with this mean and coefficient of variation."""
        return cls(kernels.GAMMA if cv else kernels.CONSTANT, mean_ms, cv)

    @classmethod
    def lognormal(cls, mean_ms: float, cv: float) -> Times:
        """Lognormal, with this mean and coefficient of variation."""
        return cls(kernels.LOGNORMAL, mean_ms, cv)

    @classmethod
    def empirical(cls, histogram: LogHistogram) -> Times:
        """The measured distribution: the value of each bin, as often as it was counted."""
        values = histogram.values_ms
        counts = histogram.counts.astype(np.float64)
        check_shares(counts)
        mean_ms = histogram.mean_ms()
        spread = float(np.average((values - mean_ms) ** 2, weights=counts))
        return cls(kernels.CONSTANT, mean_ms, math.sqrt(spread) / mean_ms, values, counts)

    def draw(self, count: int, seed: int, *purpose: int) -> Floats:
        """``count`` times; the same for the same seed and purpose."""
        state = seeded(seed, *purpose)
        if len(self.values):
            return self.values[picked(self.counts, state, count)]
        out = np.empty(count)
        kernels.draw(self.kind, float(self.mean_ms), float(self.cv), state, out)
        return out


def arrivals(gaps: Times, records: int, seed: int) -> Floats:
    """The times of ``records`` arrivals, with independent gaps; the first is after 0.

    For arrivals with a changing rate use ``tailrace.load``: ``trace.due_us / 1e3``.
    """
    times = gaps.draw(records, seed, Purpose.ARRIVALS)
    return np.cumsum(times, out=times)


def checked_arrivals(arrivals_ms: Any) -> Floats:
    """The times of arrivals in the form for kernels; refuses invalid ones."""
    times: Floats = np.ascontiguousarray(arrivals_ms, dtype=np.float64)
    if times.ndim != 1 or not len(times):
        raise InputError("There are no arrivals to simulate: give the times of one or more.")
    if not (np.all(np.isfinite(times)) and np.all(times[1:] >= times[:-1])):
        raise InputError("Arrivals must be finite times that never go back: sort them first.")
    return times
