"""How long records wait at one server: Kingman's formula, fitted to what is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from tailrace.errors import InputError


@dataclass(frozen=True, slots=True)
class Kingman:
    """How long records wait, on average, at a station with one server: GI/G/1.

    ``W = e * b*rho/(1 - rho) * (ca**2 + cs**2)/2``, with a ``correction`` e (Lohrmann 2016, eq. 4.4
    to 4.6; De Matteis 2016, eq. 6.9 and 6.10). It is exact for Poisson arrivals, and near
    saturation. With arrivals more regular than that it is too long (by 57 % at 60 % load with a cv
    of 0.5 in both, by 8 % at 90 %), with more irregular ones too short (by 20 to 25 % at 60 % load
    and an arrival cv of 2.5). A queue that cannot keep up has an infinite wait; that is an answer,
    not an error.
    """

    rate_per_s: float
    service_ms: float
    arrival_cv: float = 1.0
    service_cv: float = 1.0
    correction: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what no station can have."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < math.inf:
                raise InputError(
                    f"A queue cannot have {field.name}={value}: give a finite number from 0 up."
                )

    @property
    def utilisation(self) -> float:
        """``rho = lambda*b``: the share of time that the server is busy, or would have to be."""
        return self.rate_per_s * self.service_ms / 1_000.0

    @property
    def mean_wait_ms(self) -> float:
        """The formula, times the correction."""
        rho = self.utilisation
        if rho >= 1:
            return math.inf
        variation = (self.arrival_cv**2 + self.service_cv**2) / 2
        return self.correction * rho / (1 - rho) * variation * self.service_ms

    @property
    def uncorrected_wait_ms(self) -> float:
        """The mean wait by the formula alone, which a measured one is compared with."""
        return replace(self, correction=1.0).mean_wait_ms


@dataclass(frozen=True, slots=True)
class Correction:
    """How far measured waits are from the formula's: the factor e of the fitted Kingman.

    Lohrmann 2016 (eq. 4.6) takes the last ratio as it is, and in bursts over-scales. Here, as De
    Matteis does, it is the mean of the last three, and 1 until there are three. A ratio counts as
    ``lowest`` or ``highest`` at most, so that one burst does not rule three intervals.
    """

    ratios: tuple[float, ...] = ()
    span: int = 3
    lowest: float = 0.2
    highest: float = 5.0

    @property
    def factor(self) -> float:
        """What to multiply the formula with."""
        return math.fsum(self.ratios) / self.span if len(self.ratios) == self.span else 1.0

    def after(self, measured_wait_ms: float, predicted: Kingman) -> Correction:
        """The correction after another interval, for which the formula had predicted this queue."""
        return self.learned(measured_wait_ms, predicted.uncorrected_wait_ms)

    def learned(self, measured_ms: float, formula_ms: float) -> Correction:
        """The correction after another interval: what was measured, and what the formula gave.

        Nothing is learned from a queue that was saturated, that the formula gives no wait at all,
        or in which no wait was measured (NaN).
        """
        if not (1e-9 < formula_ms < math.inf and 0 <= measured_ms < math.inf):
            return self
        ratio = min(max(measured_ms / formula_ms, self.lowest), self.highest)
        return replace(self, ratios=(*self.ratios, ratio)[-self.span :])
