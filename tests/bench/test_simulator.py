"""The benchmark of the simulator: all sides simulate the same, and what is missing is said."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from rich.console import Console

from bench import simulator
from tailrace.errors import EnvironmentUnfit


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(simulator, "OURS", 100_000)
    monkeypatch.setattr(simulator, "THEIRS", 4_000)
    return simulator.measure(quick=True)


def test_every_side_is_measured_and_all_find_the_same_mean(result: dict[str, Any]) -> None:
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    for key in ("single_queue", "three_stages", "simpy", "ciw"):
        assert result[key] > 0
    assert result["mean_ms"]["three_stages"]["exact"] == pytest.approx(7.0)
    for means in result["mean_ms"].values():
        assert means["tailrace"] == pytest.approx(means["exact"], rel=0.05)
        for name in ("simpy", "ciw"):
            assert means[name] == pytest.approx(means["exact"], rel=0.2)
    console = Console(width=80, record=True, file=None, quiet=False)
    with console.capture() as shown:
        console.print(simulator.table(result))
    for name in ("Tailrace", "SimPy", "Ciw"):
        assert name in shown.get()


@pytest.mark.parametrize(("module", "name"), [("simpy", "SimPy"), ("ciw", "Ciw")])
def test_a_missing_peer_is_named(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == module else found(n))
    with pytest.raises(EnvironmentUnfit, match=f"compares with {name}, .* 'pip install {module}'"):
        simulator.measure(quick=True)
