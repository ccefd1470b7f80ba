"""The micro-batch model: what a batch interval does to latency, and what it saves.

A batch of n records takes ``D(n) = a + c*n``: ``a`` is paid by every batch (planning, launching,
committing), ``c`` by every record. At ``lambda`` records a millisecond the work alone keeps the
flow busy for ``rho = c*lambda`` of the time. A batch is cut every ``C`` ms, holds ``lambda*C``
records, and shows its results ``D`` later. A record therefore waits for its batch to be cut, and
then for the batch: a bulk server in place of the queue of Lohrmann 2016, section 4.6.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_TOLERANCE_MS = 0.1
_NORMAL = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """One finished batch: its records, and the time from its planning to its visible results."""

    records: int
    duration_ms: float
    at_us: int


@dataclass(frozen=True, slots=True)
class BatchModel:
    """The duration of a batch, ``D(n) = a + c*n``, and what follows from it.

    Every ``quantile`` is None for the mean. Every ``every_ms`` is the span of a constraint: the
    statistic is taken over the records that enter in a window of that length, and the answer is
    the one of the worst window.
    """

    fixed_ms: float
    per_record_ms: float

    def __post_init__(self) -> None:
        """Refuse costs that no batch can have."""
        if not (0 <= self.fixed_ms < math.inf and 0 <= self.per_record_ms < math.inf):
            raise InputError(
                f"A batch cannot cost {self.fixed_ms} ms and {self.per_record_ms} ms a record: "
                "give two finite costs that are not negative."
            )

    def duration_ms(self, records: float) -> float:
        """``D(n) = a + c*n``."""
        return self.fixed_ms + self.per_record_ms * records

    def utilisation(self, rate_per_s: float) -> float:
        """``rho = c*lambda``: the share of time that the records keep busy, without ``a``."""
        return self.per_record_ms * rate_per_s / 1_000.0

    def cycle_ms(self, interval_ms: float, rate_per_s: float) -> float:
        """The time between two cuts: the fixed point of ``C = max(T, D(lambda*C))``.

        A batch that outlasts the interval delays the next one, which then holds more records.
        ``C = a + rho*C`` gives ``C = a/(1 - rho)``, so that ``C = max(T, a/(1 - rho))``. With
        ``rho >= 1`` every batch is longer than the one before: infinity.
        """
        rho = self.utilisation(rate_per_s)
        return math.inf if rho >= 1 else max(interval_ms, self.fixed_ms / (1 - rho))

    def wait_ms(self, cycle_ms: float, every_ms: float, quantile: float | None) -> float:
        """How long records wait for their batch to be cut, in the worst window of ``every_ms``.

        Arrivals are even, so a record that enters t after a cut waits ``C - t``. A window of
        ``E = m*C + r`` holds m whole cycles and r of another. It is worst when it opens right
        after a cut, for the rest then holds the longest waits, those from ``C - r`` to ``C``; no
        other place gives a longer mean or a longer quantile. The mean is
        ``(m*C*C/2 + r*(C - r/2)) / E``. The waits up to w weigh ``m*w + max(0, w - (C - r))``;
        setting that to ``q*E`` gives the quantile, ``q*E/m`` or ``(q*E + C - r)/(m + 1)``. With
        E far above C these are ``C/2`` and ``q*C``; with E below C, ``C - E/2`` and
        ``C - (1 - q)*E``.
        """
        if cycle_ms == 0 or math.isinf(cycle_ms):
            return cycle_ms
        whole, rest = divmod(every_ms, cycle_ms)
        if quantile is None:
            return (whole * cycle_ms**2 / 2 + rest * (cycle_ms - rest / 2)) / every_ms
        weight = quantile * every_ms
        if weight <= whole * (cycle_ms - rest):
            return weight / whole
        return (weight + cycle_ms - rest) / (whole + 1)

    def latency_ms(
        self, interval_ms: float, rate_per_s: float, every_ms: float, quantile: float | None
    ) -> float:
        """From a record's arrival to its visible result: ``wait(C) + D(lambda*C)``."""
        cycle_ms = self.cycle_ms(interval_ms, rate_per_s)
        if math.isinf(cycle_ms):
            return math.inf
        records = rate_per_s * cycle_ms / 1_000.0
        return self.wait_ms(cycle_ms, every_ms, quantile) + self.duration_ms(records)

    def floor_ms(self, rate_per_s: float, every_ms: float, quantile: float | None) -> float:
        """The latency back to back, which no interval beats.

        For the mean over a long window it is ``1.5*a/(1 - rho)``; with ``rho >= 1``, infinity.
        """
        return self.latency_ms(0.0, rate_per_s, every_ms, quantile)

    def longest_interval_ms(
        self, target_ms: float, rate_per_s: float, every_ms: float, quantile: float | None
    ) -> float | None:
        """The longest interval whose latency stays within the target, to 0.1 ms.

        None when even back to back misses it; 0.0 when only back to back keeps it. For the mean
        over a long window it is ``(target - a)/(1/2 + rho)``. In general the latency never falls
        as the interval grows, and no wait is below ``C - E``, so a bisection up to
        ``target + E`` finds it.
        """

        def latency_ms(interval_ms: float) -> float:
            return self.latency_ms(interval_ms, rate_per_s, every_ms, quantile)

        shortest_ms = self.cycle_ms(0.0, rate_per_s)
        if latency_ms(0.0) > target_ms:
            return None
        longest_ms = _largest(latency_ms, target_ms, shortest_ms, target_ms + every_ms)
        return longest_ms if longest_ms > shortest_ms else 0.0

    def highest_rate_per_s(
        self, target_ms: float, every_ms: float, quantile: float | None
    ) -> float:
        """The highest rate at which back to back stays within the target; 0.0 when none does.

        Back to back the batch lasts as long as the cycle, so the longest cycle C with
        ``wait(C) + C <= target`` gives ``rho = 1 - a/C``.
        """

        def latency_ms(cycle_ms: float) -> float:
            return self.wait_ms(cycle_ms, every_ms, quantile) + cycle_ms

        if latency_ms(self.fixed_ms) > target_ms:
            return 0.0
        if self.per_record_ms == 0:
            return math.inf
        cycle_ms = _largest(latency_ms, target_ms, self.fixed_ms, target_ms)
        rho = 1 - self.fixed_ms / cycle_ms if cycle_ms else 0.0
        return rho / self.per_record_ms * 1_000.0


def _largest(rising: Callable[[float], float], limit: float, low: float, high: float) -> float:
    """The largest x from ``low`` to ``high`` with ``rising(x) <= limit``, which holds at low."""
    while high - low > _TOLERANCE_MS / 2:
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) <= limit else (low, middle)
    return low


def fit(points: Sequence[BatchPoint], half_life: float) -> BatchModel:
    """Fit ``D(n) = a + c*n`` to finished batches, the newest counting most.

    Least squares, in which a batch loses half its weight for every ``half_life`` batches after
    it. Batches far from the line (a pause of the virtual machine, a cold start) first lose
    influence (Huber) and then all of it (Tukey's biweight), measured by the median deviation.

    Batches of nearly one size say what a batch costs, but not how that splits into ``a`` and
    ``c``. The slope can then be anything from 0 to ``D/n``; it is given that range as a prior,
    with mean ``D/(2n)`` and standard deviation ``0.29*D/n`` (a uniform one's), and moves away
    from it as far as the spread of sizes outweighs the noise. At the size that was seen the
    prediction does not depend on the split. Both costs are kept from falling below zero.
    """
    records, durations, ages = _columns(points, half_life)
    typical_ms = _weighted_median(durations, ages)
    size = _weighted_median(records, ages)
    prior = _Prior(0.5 * typical_ms / size, 0.29 * typical_ms / size) if size else None
    slope = prior.slope if prior else 0.0
    line = (typical_ms - slope * size, slope)
    for influence in (_huber,) * 6 + (_tukey,) * 4:
        residuals = durations - line[0] - line[1] * records
        scale = _NORMAL * _weighted_median(np.abs(residuals), ages)
        scale = max(scale, 0.005 * typical_ms)
        line = _line(records, durations, ages * influence(residuals / scale), prior, scale)
    return BatchModel(*line)


def spread(points: Sequence[BatchPoint], model: BatchModel, half_life: float) -> float:
    """The relative standard deviation of durations around the model, blind to outliers.

    1.4826 times the weighted median of ``|d - D(n)| / D(n)``, with the weights of :func:`fit`.
    """
    records, durations, ages = _columns(points, half_life)
    expected = np.maximum(model.fixed_ms + model.per_record_ms * records, 1e-9)
    return _NORMAL * _weighted_median(np.abs(durations / expected - 1), ages)


@dataclass(frozen=True, slots=True)
class _Prior:
    slope: float
    deviation: float


def _columns(points: Sequence[BatchPoint], half_life: float) -> tuple[Floats, Floats, Floats]:
    """Sizes, durations and weights by age, oldest first."""
    if not points:
        raise InputError("There is no finished batch to fit a model to: wait for the first one.")
    if half_life <= 0:
        raise InputError(f"A half-life of {half_life} batches cannot be: give a number above 0.")
    ordered = sorted(points, key=lambda point: point.at_us)
    table = np.array([(p.records, p.duration_ms) for p in ordered], dtype=np.float64)
    ages = np.arange(len(ordered) - 1, -1, -1, dtype=np.float64)
    # No duration is below the microsecond that clocks resolve, and no weight falls to zero.
    return table[:, 0], np.maximum(table[:, 1], 1e-3), np.exp2(-np.minimum(ages / half_life, 500.0))


def _line(
    records: Floats, durations: Floats, weights: Floats, prior: _Prior | None, scale: float
) -> tuple[float, float]:
    """Weighted least squares for (a, c) with the prior on c, neither below zero."""
    total = float(weights.sum())
    size, typical_ms = float(weights @ records) / total, float(weights @ durations) / total
    offsets = records - size
    if prior is None or size == 0:
        return typical_ms, 0.0
    pull = (scale / prior.deviation) ** 2
    cross = float(weights @ (offsets * durations))
    slope = (cross + pull * prior.slope) / (float(weights @ offsets**2) + pull)
    if slope < 0:
        return typical_ms, 0.0
    fixed_ms = typical_ms - slope * size
    if fixed_ms < 0:
        return 0.0, float(weights @ (records * durations)) / float(weights @ records**2)
    return fixed_ms, slope


def _huber(deviations: Floats) -> Floats:
    return 1.345 / np.maximum(np.abs(deviations), 1.345)


def _tukey(deviations: Floats) -> Floats:
    influence: Floats = (1 - np.minimum(np.abs(deviations) / 4.685, 1) ** 2) ** 2
    return influence


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(reached, reached[-1] / 2)]])
