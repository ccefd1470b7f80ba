"""How right predictions were, and what that says of the next one.

A prediction that came true or not is scored by the logarithm of measured over predicted latency:
twice as long and half as long are equally wrong. Past scores of the same kind make the interval
of confidence of the next prediction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from tailrace.errors import InputError
from tailrace.outside import MOST_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.plan import Backend

LEAST_MS = 1e-6
"""A latency below this, a nanosecond, is none: any other would be off from it without end."""

NINE_IN_TEN = 1.645
"""Standard deviations of a normal distribution that hold nine chances in ten."""

PRIOR_SCORES = 10
PRIOR_KNOWN = 0.12
PRIOR_GUESSED = 0.6
"""What is believed before anything was scored, worth ten scores: the standard deviation of the
logarithm, where the engine's costs were measured in the flow itself and where they were not."""


@dataclass(frozen=True, slots=True)
class Score:
    """One prediction and what happened; ``known`` if the engine's costs were measured."""

    backend: Backend
    known: bool
    predicted_ms: float
    measured_ms: float

    def __post_init__(self) -> None:
        """Refuse latencies that say nothing."""
        if not all(LEAST_MS <= ms <= MOST_MS for ms in (self.predicted_ms, self.measured_ms)):
            raise InputError(
                f"A prediction of {self.predicted_ms} ms that came out at {self.measured_ms} ms "
                f"cannot be scored: give two latencies from {LEAST_MS:g} to {MOST_MS:g} ms."
            )

    @property
    def log_ratio(self) -> float:
        """``ln(measured/predicted)``: above 0 it took longer than predicted."""
        return math.log(self.measured_ms / self.predicted_ms)

    @property
    def error(self) -> float:
        """``(predicted - measured)/measured`` (Cooper 2020, eq. 5.1)."""
        return self.predicted_ms / self.measured_ms - 1


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The scores of past predictions."""

    scores: tuple[Score, ...] = ()

    def band(self, backend: Backend, *, known: bool) -> tuple[float, float]:
        """The factors between which a latency comes out in nine cases of ten.

        The logarithms of the scores are taken as normal, with the prior belief as if it were ten
        further scores that were right on average. So the band begins wide, and narrows, widens
        or moves as predictions are scored.
        """
        sums = _Sums()
        for score in self.scores:
            if score.backend == backend and score.known == known:
                sums.add(score.log_ratio)
        return sums.band(known=known)

    def within(self) -> float | None:
        """The share of scores that fell into the band that the ones before them made."""
        if not self.scores:
            return None
        held = 0
        kinds: defaultdict[tuple[Backend, bool], _Sums] = defaultdict(_Sums)
        for score in self.scores:
            sums = kinds[score.backend, score.known]
            low, high = sums.band(known=score.known)
            held += low <= score.measured_ms / score.predicted_ms <= high
            sums.add(score.log_ratio)
        return held / len(self.scores)


@dataclass(slots=True)
class _Sums:
    """The scores of one kind, as far as their band needs them."""

    count: int = 0
    logs: float = 0.0
    squares: float = 0.0

    def add(self, log: float) -> None:
        self.count += 1
        self.logs += log
        self.squares += log * log

    def band(self, *, known: bool) -> tuple[float, float]:
        """As of :meth:`Accuracy.band`; the squares are those around the mean."""
        prior = PRIOR_KNOWN if known else PRIOR_GUESSED
        weight = self.count + PRIOR_SCORES
        mean = self.logs / weight
        squares = self.squares + PRIOR_SCORES * prior**2 - weight * mean**2
        reach = NINE_IN_TEN * math.sqrt(max(0.0, squares) / weight)
        return math.exp(mean - reach), math.exp(mean + reach)


UNTRIED = Accuracy()


def summed_up(errors: Sequence[float]) -> dict[str, float]:
    """Errors without their signs: their median, their 90th percentile and the largest."""
    if not errors:
        raise InputError("There is nothing to score yet: predict something and let it happen.")
    off = sorted(map(abs, errors))
    return {
        "median_abs_error": round(median(off), 4),
        "p90_abs_error": round(off[math.ceil(0.9 * len(off)) - 1], 4),
        "max_abs_error": round(off[-1], 4),
    }
