"""Batches that leave when they are full or when a timer says so: how large, and who waits how long.

Records come as a Poisson process of rate lambda. A batch leaves with its k-th record, or when the
timer of ``delta`` fires. N is the number of records that come in delta, ``x = lambda*delta`` its
mean. Two timers are in use, and the difference is large where delta is about the time to fill a
batch:

- :class:`RestartingFlush`: the timer starts again whenever a batch leaves (Storm's Disruptor as
  Cooper 2020 models it, section 4.12.1);
- :class:`PeriodicFlush`: it fires every delta, whatever has left in between (Storm's periodic
  flush in fact, and the flush thread of Spark's streaming shuffle). Cooper's formulas make a
  batch up to 63 % too large for it.

A window over so many records is a batch without a timer (:func:`count_window`); one over a time is
a :class:`TimeWindow`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special  # it ships no types

from tailrace.errors import InputError
from tailrace.model.queueing.queues import check_quantile, inverse

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_FEW = 1e-9
"""Below so many records a flush interval, every record is alone and waits for the timer."""


@dataclass(frozen=True, slots=True)
class Flush(ABC):
    """A batch that leaves with its ``limit``-th record, or when a timer of ``flush_ms`` fires."""

    rate_per_s: float
    limit: int
    flush_ms: float

    def __post_init__(self) -> None:
        """Refuse what no batch can have; a timer that never fires (infinity) is one."""
        if not 0 <= self.rate_per_s < math.inf:
            raise InputError(
                f"Records cannot come at {self.rate_per_s} records/s: give a rate from 0 up."
            )
        if self.limit < 1 or self.limit != int(self.limit):
            raise InputError(
                f"A batch cannot be limited to {self.limit} records: give a whole number from 1 up."
            )
        if not self.flush_ms >= 0:
            raise InputError(
                f"A batch cannot be flushed every {self.flush_ms} ms: give a time from 0 up."
            )

    @property
    @abstractmethod
    def mean_records(self) -> float:
        """The mean number of records of a batch that is not empty: at least 1."""

    @property
    @abstractmethod
    def mean_wait_ms(self) -> float:
        """How long a record waits for its batch to leave, on average."""

    @property
    def batches_per_s(self) -> float:
        """How many batches leave that are not empty."""
        return self.rate_per_s / self.mean_records

    def wait_exceeds(self, ms: float) -> float:
        """The share of records that wait longer than this."""
        if ms < 0:
            return 1.0
        if ms >= self.flush_ms or self.limit == 1:
            return 0.0
        if self._expected < _FEW:
            return 1 - ms / self.flush_ms if math.isfinite(self.flush_ms) else 1.0
        return min(max(self._exceeding(ms), 0.0), 1.0)

    def wait_quantile_ms(self, quantile: float) -> float:
        """The wait that this share of the records does not exceed."""
        check_quantile(quantile)
        if math.isinf(self.mean_wait_ms):
            return math.inf
        return inverse(self.wait_exceeds, 1 - quantile, self.mean_wait_ms)

    @abstractmethod
    def _exceeding(self, ms: float) -> float:
        """``P(wait > t)`` for t below delta, where batches hold more than a record at times."""

    def _in(self, ms: float) -> float:
        """The mean number of records that come in a time, forever included."""
        return self.rate_per_s * ms / 1_000.0 if self.rate_per_s else 0.0

    @property
    def _expected(self) -> float:
        """``x = lambda*delta``."""
        return self._in(self.flush_ms)

    @property
    def _lonely_ms(self) -> float:
        """The mean wait where records are few: for the timer, unless one fills the batch."""
        return self.flush_ms / 2 if self.limit > 1 else 0.0


@dataclass(frozen=True, slots=True)
class RestartingFlush(Flush):
    """The timer starts again whenever a batch leaves. All of it is exact, in closed form."""

    @property
    def mean_records(self) -> float:
        """``E[min(N, k)] / P(N >= 1)`` (Cooper 2020, eq. 4.25)."""
        expected = self._expected
        if expected < _FEW:
            return 1.0
        return _mean_capped(expected, self.limit) / -math.expm1(-expected)

    @property
    def mean_wait_ms(self) -> float:
        """The waits of all records of a timer's run, over the records of a run.

        If the batch fills at X, the ``k - 1`` records before the last came evenly over X and
        wait ``(k - 1)*X/2`` together, and ``E[X; X <= delta] = k/lambda * P(N > k)``. If not,
        N records wait ``N*delta/2``, and ``E[N; N < k] = x*P(N < k - 1)``. So
        ``W = (k*(k - 1)/(2*lambda)*P(N > k) + x*delta/2*P(N < k - 1)) / E[min(N, k)]``.

        Cooper 2020, eq. 4.35 and 4.36, has ``E[X]/2`` for every record, sums to ``k - 1`` where
        4.20 has k, and does not ask that a record has come at all, so that its wait falls to 0
        with the rate, where it should rise to ``delta/2``. Repaired in these, it still counts
        the last record of a full batch, which waits for nothing, and is long by ``k/(k - 1)``.
        """
        expected, limit = self._expected, self.limit
        if expected < _FEW:
            return self._lonely_ms
        total_ms = limit * (limit - 1) / 2 / self.rate_per_s * 1_000.0 * _more_than(limit, expected)
        if math.isfinite(expected):
            total_ms += expected * self.flush_ms / 2 * (1 - _more_than(limit - 2, expected))
        return total_ms / _mean_capped(expected, limit)

    def _exceeding(self, ms: float) -> float:
        """``(E[min(N, k - 1)] - E[min(M, k - 1)]) / E[min(N, k)]``, M the records that come in t.

        A record that comes at u, t or more before the timer, waits longer than t if fewer than
        ``k - 1`` others come before ``u + t``, for it is one of the batch itself. So in a run
        ``lambda * integral from t to delta of P(Poisson(lambda*v) < k - 1) dv`` of them do.
        """
        expected, others = self._expected, self.limit - 1
        longer = _mean_capped(expected, others) - _mean_capped(self._in(ms), others)
        return longer / _mean_capped(expected, self.limit)


@dataclass(frozen=True, slots=True)
class PeriodicFlush(Flush):
    """The timer fires every delta, whatever has left in between.

    Only N and its remainder by k matter. Both are summed over the distribution of N: exactly for
    up to 100 thousand records a flush interval, and wherever so many batches fill in one that
    the remainder is even (to 1e-10); else with N nearly normal, to 0.1 %.
    """

    @property
    def mean_records(self) -> float:
        """``x/E[ceil(N/k)]``: the records of an interval, over its batches."""
        expected = self._expected
        if expected < _FEW:
            return 1.0
        if math.isinf(expected):
            return float(self.limit)
        whole, rest, chance = _batches(expected, self.limit)
        return expected / float(chance @ (whole + (rest > 0)))

    @property
    def mean_wait_ms(self) -> float:
        """``delta/x**2 * E[m*k*(k - 1)/2 + r*(r - 1)/2]`` with ``m*k + r = N``.

        The N records of an interval lie ``delta/(N + 1)`` apart on average. In a full batch they
        wait for ``k - 1, ..., 1, 0`` such gaps, in the rest of r records for ``r, ..., 1`` until
        the timer. That is ``E[(m*k*(k - 1)/2 + r*(r + 1)/2)/(N + 1)]*delta/x``, and for a Poisson
        N, ``E[f(N)/(N + 1)] = E[f(N - 1); N > 0]/x``.
        """
        expected, limit = self._expected, self.limit
        if expected < _FEW:
            return self._lonely_ms
        if math.isinf(expected):
            return count_window(limit, self.rate_per_s).mean_wait_ms
        whole, rest, chance = _batches(expected, limit)
        gaps = float(chance @ (whole * (limit * (limit - 1) / 2) + rest * (rest - 1) / 2))
        return self.flush_ms / expected**2 * gaps

    def _exceeding(self, ms: float) -> float:
        """``E[m*G(k) + G(r)]/x`` with ``m*k + r`` the records of ``delta - t``.

        A record that finds j others of its interval waits longer than t if it comes t or more
        before the timer, and if fewer than ``k - 1 - j mod k`` others come in t. With M records
        in t, ``G(r) = sum over j < r of P(M < k - 1 - j) = L(k - 1) - L(k - 1 - r)``, where
        ``L(y) = E[max(y - M, 0)]``.
        """
        expected, limit = self._expected, self.limit
        if math.isinf(expected):
            return count_window(limit, self.rate_per_s).wait_exceeds(ms)
        lacking = _shortfall(self._in(ms))
        whole, rest, chance = _batches(self._in(self.flush_ms - ms), limit)
        full = float(lacking(np.array([limit - 1.0]))[0])
        return float(chance @ ((whole + 1) * full - lacking(limit - 1 - rest))) / expected


def count_window(records: int, rate_per_s: float) -> RestartingFlush:
    """A window over so many records: a batch that no timer ever flushes.

    The i-th of C records waits for ``C - i`` more, ``(C - 1)/(2*lambda)`` on average. Cooper 2020
    (section 4.13.1) has ``C/(2*lambda)``, 11 % longer for 10 records. In a window that slides by
    fewer records than it holds, the first result with a record waits as for a window of a slide.
    """
    return RestartingFlush(rate_per_s, records, math.inf)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A window over a time: how long a record waits for a result of its own.

    A tumbling window (no ``slide_ms``) shows its result at its end, which is up to its length
    away. A record is in several sliding windows: the ``first`` ends up to a slide away, the last
    starts less than a slide ago. Every such wait is as likely.
    """

    length_ms: float
    slide_ms: float | None = None
    first: bool = True

    def __post_init__(self) -> None:
        """Refuse windows that miss records, or that cannot be."""
        if not 0 < self.length_ms < math.inf:
            raise InputError(
                f"A window cannot last {self.length_ms} ms: give a finite time above 0."
            )
        if self.slide_ms is not None and not 0 < self.slide_ms <= self.length_ms:
            raise InputError(
                f"A window of {self.length_ms} ms cannot slide by {self.slide_ms} ms: "
                "give a time above 0 and up to its length, so that no record is left out."
            )

    @property
    def mean_wait_ms(self) -> float:
        """``s/2`` until the first result, ``l - s/2`` until the last (tumbling: ``l/2``)."""
        return self.wait_quantile_ms(0.5)

    def wait_quantile_ms(self, quantile: float) -> float:
        """The wait that this share of the records does not exceed."""
        check_quantile(quantile)
        slide_ms = self.length_ms if self.slide_ms is None else self.slide_ms
        return quantile * slide_ms + (0.0 if self.first else self.length_ms - slide_ms)


# --- the number of records of a time -----------------------------------------------------------


def _more_than(count: int, mean: float) -> float:
    """``P(N > count)`` of a Poisson N; where the mean is infinite, surely."""
    if count < 0 or math.isinf(mean):
        return 1.0
    return float(special.pdtrc(count, mean))


def _mean_capped(mean: float, cap: int) -> float:
    """``E[min(N, cap)] = cap*P(N > cap) + mean*P(N < cap)`` of a Poisson N."""
    if cap == 0 or math.isinf(mean):
        return float(cap)
    return cap * _more_than(cap, mean) + mean * float(special.pdtr(cap - 1, mean))


_DEVIATIONS = 12
_MOST_COUNTS = 8_000
_NORMAL: Floats = np.linspace(-8.0, 8.0, _MOST_COUNTS + 1)
_NORMAL_CHANCES: Floats = np.exp(-(_NORMAL**2) / 2) / np.exp(-(_NORMAL**2) / 2).sum()


def _counts(mean: float) -> tuple[Floats, Floats]:
    """What a Poisson number can be, rising, and how likely that is.

    All numbers up to 12 standard deviations from the mean. Where these are too many, those at
    even steps of a normal variable.
    """
    deviation = math.sqrt(mean)
    low = max(0, math.floor(mean - _DEVIATIONS * deviation))
    high = math.ceil(mean + _DEVIATIONS * deviation + 30)
    if high - low > _MOST_COUNTS + 30:
        return np.asarray(np.rint(mean + deviation * _NORMAL)), _NORMAL_CHANCES
    counts = np.arange(low, high + 1, dtype=np.float64)
    chances = np.exp(special.xlogy(counts, mean) - mean - special.gammaln(counts + 1))
    return counts, np.asarray(chances / chances.sum())


def _batches(mean: float, limit: int) -> tuple[Floats, Floats, Floats]:
    """Full batches, records of the rest, and how likely: ``N = whole*limit + rest``.

    The remainder of a Poisson number is even but for ``exp(-mean*(1 - cos(2*pi/limit)))``, the
    size of its characteristic function there. Where that is below 1e-10, or nothing can remain,
    the number of full batches is its mean, since it only ever adds up.
    """
    if limit == 1 or mean * (1 - math.cos(2 * math.pi / limit)) > 23:
        rest = np.arange(limit, dtype=np.float64)
        whole = np.full(limit, (mean - (limit - 1) / 2) / limit)
        return whole, rest, np.full(limit, 1 / limit)
    counts, chances = _counts(mean)
    whole = np.floor(counts / limit)
    return whole, counts - whole * limit, chances


def _shortfall(mean: float) -> Callable[[Floats], Floats]:
    """``y -> E[max(y - M, 0)]`` of a Poisson M: ``y*P(M < y) - E[M; M < y]``."""
    counts, chances = _counts(mean)
    below = np.concatenate(([0.0], np.cumsum(chances)))
    sums = np.concatenate(([0.0], np.cumsum(chances * counts)))

    def lacking(values: Floats) -> Floats:
        place = np.searchsorted(counts, values)
        return np.asarray(values * below[place] - sums[place])

    return lacking
