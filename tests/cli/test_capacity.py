from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_bound_breaks_before_the_plan_saturates(asked: Callable[..., Any], orders: Path) -> None:
    found = asked("capacity", orders, "--mean", "500 ms")
    assert 0 < found["bound_per_s"] < 0.95 * found["saturation_per_s"]
