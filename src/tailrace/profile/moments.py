"""Count, mean and variance that merge exactly over partitions, batches and intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True)
class Moments:
    """The first two moments of a set of values.

    ``m2`` is the sum of squared deviations from the mean. Kept that way, and merged by the update
    of Chan, Golub and LeVeque (1979), the variance stays exact up to floating-point precision
    however large the values are compared with their spread; with sums of squares it would not.
    """

    count: float = 0.0
    mean: float = 0.0
    m2: float = 0.0

    @classmethod
    def of(cls, values: ArrayLike) -> Moments:
        """The moments of an array."""
        array = np.asarray(values, dtype=np.float64)
        if array.size == 0:
            return cls()
        mean = float(array.mean())
        return cls(float(array.size), mean, float(np.square(array - mean).sum()))

    @classmethod
    def merged(cls, parts: Iterable[Moments]) -> Moments:
        """The moments of the union of disjoint sets."""
        whole = cls()
        for part in parts:
            whole = whole + part
        return whole

    def __add__(self, other: Moments) -> Moments:
        """The moments of both sets together."""
        if other.count == 0:
            return self
        if self.count == 0:
            return other
        count = self.count + other.count
        delta = other.mean - self.mean
        return Moments(
            count,
            self.mean + delta * other.count / count,
            self.m2 + other.m2 + delta * delta * self.count * other.count / count,
        )

    def shifted(self, by: float) -> Moments:
        """The moments after ``by`` is added to every value."""
        return Moments(self.count, self.mean + by, self.m2) if self.count else self

    def scaled_to(self, count: float) -> Moments:
        """The same mean and variance, as if taken over ``count`` values."""
        return Moments(count, self.mean, self.m2 * count / self.count) if self.count else self

    @property
    def variance(self) -> float:
        """The population variance; 0 for fewer than two values."""
        return self.m2 / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.variance)
