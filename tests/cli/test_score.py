from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import USER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said


def test_predictions_are_kept_and_scored(
    asked: Callable[..., Any], orders: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    found = asked("predict", orders, "--log", log)
    data = json.loads(orders.read_text())
    mean_ms = 1.1 * found["mean_ms"]
    latency = {"mean_ms": mean_ms, "p50_ms": mean_ms, "p95_ms": mean_ms, "p99_ms": mean_ms}
    measured = tmp_path / "measured.json"
    measured.write_text(json.dumps(data | {"latency": latency}))
    scored = asked("score", log, measured)
    assert (scored["predictions"], scored["scored"], scored["newly_scored"]) == (1, 1, 1)
    assert scored["median_abs_error"] == pytest.approx(1 - 1 / 1.1, rel=1e-3)


def test_errors_of_scores_are_finite_in_json(asked: Callable[..., Any], tmp_path: Path) -> None:
    plan = {"backend": "microbatch", "interval_ms": 0.0, "chains": [], "partitions": {}}
    line = {"flow": "a", "at_us": 1, "plan": plan, "rate_per_s": 1.0, "known": True}
    pairs = [(1e-6, 1e12), (1e12, 1e-6), (5.0, 5.0)]
    log = tmp_path / "log.jsonl"
    entries = (line | {"predicted_ms": a, "measured_ms": b} for a, b in pairs)
    log.write_text("\n".join(map(json.dumps, entries)))
    assert asked("score", log)["max_abs_error"] == pytest.approx(1e18)


def test_a_log_that_is_not_there_is_named(tailrace: Callable[..., Said]) -> None:
    assert "--log" in tailrace("score", "nowhere.jsonl").sentence(USER)
