"""The ledger: predictions are kept, scored by what was measured, and sharpen the next ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import InputError
from tailrace.model.predict import Predictor
from tailrace.plan import Backend, Plan
from tailrace.profile.costs import BatchCosts
from tailrace.profile.profile import Latency, Profile, StepProfile
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


PLAN = {"backend": "microbatch", "interval_ms": 0.0, "chains": [["work"]], "partitions": {}}
LINE: dict[str, Any] = {
    "flow": "orders",
    "at_us": 1_763_000_000_000_000,
    "plan": PLAN,
    "rate_per_s": 1_000.0,
    "known": True,
    "predicted_ms": 200.0,
    "measured_ms": 210.0,
}


_CHANGES: tuple[dict[str, Any], ...] = (
    {"plan": {}},
    {"plan": []},
    {"plan": None},
    {"plan": PLAN | {"backend": "storm"}},
    {"plan": PLAN | {"backend": ["microbatch"]}},
    {"flow": 3},
    {"at_us": "now"},
    {"at_us": True},
    {"rate_per_s": -1},
    {"rate_per_s": math.nan},
    {"known": 1},
    {"predicted_ms": 0},
    {"predicted_ms": None},
    {"predicted_ms": 1e300},
    {"predicted_ms": math.inf},
    {"measured_ms": 5e-324},
    {"measured_ms": "210"},
    {"measured_ms": True},
    {"more": 1},
)


def test_a_line_with_every_field_in_its_range_is_read(ledger: Ledger) -> None:
    unscored = {name: value for name, value in LINE.items() if name != "measured_ms"}
    ledger.path.write_text(f"\ufeff{json.dumps(LINE)}\r\n\n{json.dumps(unscored)}")
    assert [entry.measured_ms for entry in ledger.entries()] == [210.0, None]
    assert len(ledger.accuracy().scores) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b"7",
        b'{"flow": "x"}',
        b"caf\xe9",
        b"[" * 100_000,
        json.dumps(LINE)[:-9].encode(),
        b'{"flow": "a", "flow": "b"}',
        *(json.dumps(LINE | changed).encode() for changed in _CHANGES),
    ],
)
def test_a_line_that_is_no_prediction_is_named(ledger: Ledger, line: bytes) -> None:
    ledger.path.write_bytes(json.dumps(LINE).encode() + b"\n" + line + b"\n")
    with pytest.raises(InputError, match=r"(?i)line 2\b[^\n]*: [^\n]+\.$"):
        ledger.accuracy()


def test_a_latency_that_says_nothing_neither_scores_nor_is_kept(ledger: Ledger) -> None:
    ledger.path.write_text(json.dumps(LINE | {"measured_ms": None}))
    with pytest.raises(InputError, match="no measured latency"):
        ledger.settle(measured(0.0))
    slow = replace(FLOW, batch=BatchCosts(1e12, 0.0))
    ledger.add("orders", Predictor(slow)(), 1)
    assert len(ledger.entries()) == 1


def test_a_prediction_gets_a_line_of_its_own(ledger: Ledger) -> None:
    ledger.path.write_text(json.dumps(LINE))
    ledger.add("orders", Predictor(FLOW)(), 7)
    ledger.add("orders", Predictor(FLOW)(), 8)
    assert [entry.at_us for entry in ledger.entries()] == [LINE["at_us"], 7, 8]


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "x.jsonl", tmp_path / ("a" * 300)):
        with pytest.raises(InputError, match=r"cannot be written \(.*\): name another file"):
            Ledger(path).add("orders", Predictor(FLOW)(), 1)


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
