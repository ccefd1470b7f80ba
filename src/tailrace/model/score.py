"""How right predictions were, and what that says of the next one.

A prediction that came true or not is scored by the logarithm of measured over predicted latency:
twice as long and half as long are equally wrong. Past scores of the same kind make the interval
of confidence of the next prediction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.plan import Backend

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
        if not (0 < self.predicted_ms < math.inf and 0 < self.measured_ms < math.inf):
            raise InputError(
                f"A prediction of {self.predicted_ms} ms that came out at {self.measured_ms} ms "
                "cannot be scored: give two finite latencies above 0."
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
        prior = PRIOR_KNOWN if known else PRIOR_GUESSED
        logs = [s.log_ratio for s in self.scores if s.backend == backend and s.known == known]
        weight = len(logs) + PRIOR_SCORES
        mean = math.fsum(logs) / weight
        squares = math.fsum((log - mean) ** 2 for log in logs) + PRIOR_SCORES * (prior**2 + mean**2)
        reach = NINE_IN_TEN * math.sqrt(squares / weight)
        return math.exp(mean - reach), math.exp(mean + reach)

    def within(self) -> float | None:
        """The share of scores that fell into the band that the ones before them made."""
        if not self.scores:
            return None
        held = 0
        for number, score in enumerate(self.scores):
            low, high = Accuracy(self.scores[:number]).band(score.backend, known=score.known)
            held += low <= score.measured_ms / score.predicted_ms <= high
        return held / len(self.scores)


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
