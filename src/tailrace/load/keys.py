"""Which key each record of a load has.

A distribution of keys draws indices into its list of names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tailrace.errors import LoadError

Indices = NDArray[np.int32]
_MOST_KEYS: Final = 100_000_000
_LEAST_CELLS: Final = 1 << 16
_MOST_CELLS: Final = 1 << 22
_CHUNK: Final = 1 << 16  # small enough to stay in a core's cache


class Keys(Protocol):
    """A distribution of keys."""

    @property
    def names(self) -> tuple[str, ...]:
        """The keys, in the order of their indices."""

    def draw(self, n: int, rng: np.random.Generator) -> Indices:
        """The indices of the keys of `n` records."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """A number of equally likely keys, named "0", "1" and so on."""

    keys: int

    def __post_init__(self) -> None:
        """Check the number of keys."""
        _check_keys(self.keys)

    @property
    def names(self) -> tuple[str, ...]:
        """The keys, in the order of their indices."""
        return _numbered(self.keys)

    def draw(self, n: int, rng: np.random.Generator) -> Indices:
        """The indices of the keys of `n` records."""
        return rng.integers(self.keys, size=n, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Zipf:
    """A few hot keys and many cold ones: P(i-th key) ~ i ** -exponent.

    The hottest is "0". An exponent of 0 is uniform, 1 is the classic law; anything from 0 up works,
    as the number of keys is finite.
    """

    keys: int
    exponent: float

    def __post_init__(self) -> None:
        """Check the number of keys and the exponent."""
        _check_keys(self.keys)
        if not 0 <= self.exponent < math.inf:
            raise LoadError(
                f"A Zipf exponent of {self.exponent!r} is not a number from 0 up: "
                "use one such as 1.0."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The keys, in the order of their indices."""
        return _numbered(self.keys)

    def draw(self, n: int, rng: np.random.Generator) -> Indices:
        """The indices of the keys of `n` records."""
        ranks = np.arange(1, self.keys + 1, dtype=np.float64)
        return _draw(ranks**-self.exponent, n, rng)


@dataclass(frozen=True, slots=True, init=False)
class Frequencies:
    """Keys with the given frequencies, which need not add up to 1."""

    names: tuple[str, ...]
    weights: tuple[float, ...]

    def __init__(self, weights: Mapping[str, float] | Sequence[float]) -> None:
        """Take a mapping of names to frequencies, or a list of them (keys "0", "1" and so on)."""
        named = (
            weights
            if isinstance(weights, Mapping)
            else {str(i): weight for i, weight in enumerate(weights)}
        )
        values = tuple(named.values())
        object.__setattr__(self, "names", tuple(named))
        object.__setattr__(self, "weights", values)
        numbers = all(isinstance(w, Real) and 0 <= w < math.inf for w in values)
        if not numbers or not 0 < sum(values) < math.inf:
            raise LoadError(
                "The frequencies of keys must be numbers from 0 up, and at least one above 0."
            )

    def draw(self, n: int, rng: np.random.Generator) -> Indices:
        """The indices of the keys of `n` records."""
        return _draw(np.array(self.weights, np.float64), n, rng)


def _draw(weights: NDArray[np.float64], n: int, rng: np.random.Generator) -> Indices:
    """Draw by inverting the cumulative distribution, with a guide table before the search.

    The unit interval is cut into equal cells, a power of two of them so that the cell of a draw is
    exact. If a whole cell belongs to one key, the table gives the answer; only draws in cells
    shared by several keys need a search.
    """
    upper = np.cumsum(weights)
    upper /= upper[-1]
    cells = min(max(1 << (4 * len(weights)).bit_length(), _LEAST_CELLS), _MOST_CELLS)
    bounds = np.searchsorted(upper, np.arange(cells + 1) / cells, side="right")
    first = bounds[:-1].astype(np.int32)
    shared = bounds[1:] != bounds[:-1]
    drawn = np.empty(n, dtype=np.int32)
    for start in range(0, n, _CHUNK):
        u = rng.random(min(_CHUNK, n - start))
        cell = (u * cells).astype(np.int32)
        part = first[cell]
        unsure = np.flatnonzero(shared[cell])
        part[unsure] = np.searchsorted(upper, u[unsure], side="right")
        drawn[start : start + len(part)] = part
    return drawn


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _check_keys(keys: int) -> None:
    if isinstance(keys, bool) or not isinstance(keys, int) or not 1 <= keys <= _MOST_KEYS:
        raise LoadError(
            f"{keys!r} keys cannot be drawn: use a whole number from 1 to {_MOST_KEYS:,}."
        )
