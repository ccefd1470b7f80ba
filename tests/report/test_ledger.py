"""The ledger: predictions are kept, scored by what was measured, and sharpen the next ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import InputError
from tailrace.model.predict import Predictor
from tailrace.plan import Backend, Plan
from tailrace.profile.profile import BatchCosts, Latency, Profile, StepProfile
from tailrace.report.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path

FLOW = Profile(
    "orders",
    (StepProfile("work", 0.1),),
    (("source", "work"), ("work", "sink")),
    1_000.0,
    Plan(500.0, (("work",),)),
    cores=2,
    batch=BatchCosts(40.0, 0.01),
)


def measured(mean_ms: float, rate: float = 1_000.0) -> Profile:
    return replace(FLOW, latency=Latency(mean_ms, mean_ms, mean_ms, mean_ms), rate_per_s=rate)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "predictions.jsonl")


def test_a_prediction_is_scored_by_a_run_under_its_plan_at_its_rate(ledger: Ledger) -> None:
    found = Predictor(FLOW)()
    ledger.add("orders", found, 1)
    ledger.add("orders", Predictor(FLOW)(replace(FLOW.plan, interval_ms=900.0)), 2)
    ledger.add("others", found, 3)
    assert not ledger.accuracy().scores
    (settled,) = ledger.settle(measured(1.2 * found.mean_ms, rate=1_050.0))
    assert settled.at_us == 1
    (score,) = ledger.accuracy().scores
    assert score.error == pytest.approx(1 / 1.2 - 1)
    assert score.backend is Backend.MICROBATCH
    assert ledger.settle(measured(99.0)) == []
    assert len(ledger.entries()) == 3


def test_a_run_at_another_rate_decides_nothing(ledger: Ledger) -> None:
    ledger.add("orders", Predictor(FLOW)(), 1)
    assert ledger.settle(measured(500.0, rate=2_000.0)) == []


def test_scores_make_the_interval_of_the_next_prediction(ledger: Ledger) -> None:
    found = Predictor(FLOW)()
    for at in range(40):
        ledger.add("orders", found, at)
    ledger.settle(measured(1.3 * found.mean_ms))
    after = Predictor(FLOW, ledger.accuracy())()
    assert after.low_ms > found.mean_ms
    assert after.low_ms < 1.3 * found.mean_ms < after.high_ms


def test_a_plan_that_cannot_work_leaves_nothing_to_score(ledger: Ledger) -> None:
    ledger.add("orders", Predictor(FLOW)(None, 1e6), 1)
    assert ledger.entries() == []


def test_a_profile_without_latency_cannot_score(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="no measured latency"):
        ledger.settle(FLOW)


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"flow": "x"}'])
def test_a_line_that_is_no_prediction_is_named(ledger: Ledger, line: str) -> None:
    ledger.path.write_text(f"{line}\n")
    with pytest.raises(InputError, match="Line 1 of"):
        ledger.entries()


def test_what_a_run_predicted_of_its_decisions_is_written_with_what_came_of_it(
    ledger: Ledger,
) -> None:
    def decided(at_us: int, predicted: float | None, realised: float | None) -> dict[str, Any]:
        after = Plan(500.0, (("parse",),)).as_json()
        return {"at_us": at_us, "after": after, "predicted_ms": predicted, "realised_ms": realised}

    run = {
        "flow": "orders",
        "decisions": [decided(5, 300.0, 330.0), decided(15, 300.0, None), decided(15, None, 9.0)],
        "intervals": [{"start_us": 0, "rate_per_s": 1.0}, {"start_us": 10, "rate_per_s": 7.0}],
    }
    assert ledger.add_run(run) == 1
    (entry,) = ledger.entries()
    assert (entry.flow, entry.rate_per_s) == ("orders", 7.0)
    (score,) = ledger.accuracy().scores
    assert score.error == pytest.approx(300 / 330 - 1)
