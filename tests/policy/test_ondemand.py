"""Executors on demand, with loads that were made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.policy.scaling.ondemand import OnDemand
from tailrace.policy.scaling.sizing import Limits, Load


class Halving:
    """A latency that falls with the size."""

    def latency_ms(self, size: int, rate_per_s: float) -> float:
        return rate_per_s / size

    def utilisation(self, size: int, rate_per_s: float) -> float:
        return rate_per_s / size / 1e3


SEEN = Load(
    at_us=0,
    step_ms=5_000.0,
    size=2,
    limits=Limits(1, 8),
    bound_ms=500.0,
    rate_per_s=600.0,
    done_per_s=600.0,
    service_ms=1.0,
    busy=0.3,
    latency_ms=300.0,
    backlog=0.0,
    model=Halving(),
)


@pytest.fixture
def scaler() -> OnDemand:
    made = OnDemand()
    assert made.decide(SEEN).size == 2
    return made


def test_what_is_asked_for_next_counts_from_what_was_asked_for_last(scaler: OnDemand) -> None:
    scaler.apply(scaler.preview(+2))
    assert scaler.preview(+1).size == 5
    assert scaler.decide(SEEN).size == 4
    assert scaler.decide(replace(SEEN, wanted=4)).size == 4
    assert scaler.preview(+1).size == 5


def test_the_last_of_several_is_aborted_and_not_all_of_them(scaler: OnDemand) -> None:
    scaler.apply(scaler.preview(+2))
    scaler.apply(scaler.preview(+3))
    scaler.abort()
    assert scaler.decide(SEEN).size == 4


def test_what_the_cluster_has_refused_is_not_asked_for_again(scaler: OnDemand) -> None:
    scaler.apply(scaler.preview(+4))
    assert scaler.decide(SEEN).size == 6
    assert scaler.decide(replace(SEEN, wanted=6)).size == 6
    settled = replace(SEEN, size=3, wanted=3)
    assert scaler.decide(settled).size == 3
    assert scaler.preview(+1).size == 4
