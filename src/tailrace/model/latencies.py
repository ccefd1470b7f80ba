"""What can be asked of any distribution of latencies that has a mean and quantiles."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Latencies(ABC):
    """Latencies with a mean and quantiles: the usual ones by name, and those of constraints."""

    __slots__ = ()

    @property
    @abstractmethod
    def mean_ms(self) -> float:
        """The mean latency."""

    @abstractmethod
    def quantile_ms(self, quantile: float) -> float:
        """The latency that this share of the records does not exceed."""

    @property
    def p50_ms(self) -> float:
        """The median latency."""
        return self.quantile_ms(0.5)

    @property
    def p95_ms(self) -> float:
        """The latency that 1 record in 20 exceeds."""
        return self.quantile_ms(0.95)

    @property
    def p99_ms(self) -> float:
        """The latency that 1 record in 100 exceeds."""
        return self.quantile_ms(0.99)

    def statistic_ms(self, quantile: float | None) -> float:
        """What a constraint asks for: a quantile, or None for the mean."""
        return self.mean_ms if quantile is None else self.quantile_ms(quantile)
