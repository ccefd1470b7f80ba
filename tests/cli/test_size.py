from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import USER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said


def test_the_best_plan_keeps_the_bound(
    tailrace: Callable[..., Said], asked: Callable[..., Any], orders: Path
) -> None:
    sized = asked("size", orders, "--rate", "2 k/s", "--p99", "1 s")
    assert sized["best"]["works"]
    assert sized["best"]["p99_ms"] <= 1_000
    assert "keep the p99" in " ".join(tailrace("size", orders, "--p99", "1 s").out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["size", "{orders}"], "--mean"),
        (["size", "{orders}", "--p99", "1 s", "--most-cores", "1000000"], "from 1 to 1,000"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tailrace: Callable[..., Said], orders: Path, arguments: list[str], said: str
) -> None:
    assert said in tailrace(*(a.format(orders=orders) for a in arguments)).sentence(USER)
