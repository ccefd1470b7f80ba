"""The longest lifetime of a hand-over by itself, for tests to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.model.realtime import longest_within

if TYPE_CHECKING:
    from tailrace.model.realtime import HandOverModel


def longest_lifetime_ms(
    model: HandOverModel, target_ms: float, rate_per_s: float, quantile: float | None = None
) -> float | None:
    """The longest whose latency stays within the target, to 0.5 %; None when even 0 misses it.

    A record that opens a batch waits all of its lifetime, half of it the mean in dense traffic, so
    that none above twice the target, or the target over q, can keep it.
    """

    def latency_ms(lifetime_ms: float) -> float:
        return model.latency(rate_per_s, lifetime_ms).statistic_ms(quantile)

    return longest_within(latency_ms, target_ms, target_ms / min(0.5, quantile or 0.5))
