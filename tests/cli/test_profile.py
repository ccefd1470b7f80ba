from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cli.conftest import USER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Said

DATA = Path(__file__).parents[1] / "data"


def test_any_query_has_a_profile_in_its_progress_log(
    tailrace: Callable[..., Said], asked: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "query.json"
    assert tailrace("profile", DATA / "progress.jsonl", out).code == 0
    found = asked("predict", out, "--rate", "100 k/s")
    assert found["works"]
    assert found["mean_ms"] > 0


def test_a_progress_log_that_is_not_there_is_named(tailrace: Callable[..., Said]) -> None:
    assert "JSON lines" in tailrace("profile", "nowhere.jsonl", "out.json").sentence(USER)


def test_a_query_without_cores_is_refused(tailrace: Callable[..., Said], orders: Path) -> None:
    said = tailrace("profile", orders, "out.json", "--cores", "0").sentence(USER)
    assert "--cores 0 is out of range" in said
