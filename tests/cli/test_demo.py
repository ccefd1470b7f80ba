from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tailrace.errors import FlowFailed
from tailrace.spark import from_file
from tests.cli.conftest import USER, sentences

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tailrace.report.data import Report
    from tests.conftest import Said


def test_a_baseline_that_fails_leaves_the_report_of_the_demo(
    tailrace: Callable[..., Said],
    ended: Callable[..., None],
    report: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> Report:
        raise FlowFailed("The plain Spark side failed: no reason given")

    ended(report)
    monkeypatch.setattr(from_file, "run_plain_apart", fail)
    said = tailrace("demo", "--seconds", "5", "--json", "--out", tmp_path)
    assert said.code == USER
    assert json.loads(said.out) == report.data
    assert json.loads((tmp_path / "report.json").read_text()) == report.data
    assert sentences(said) == ["tailrace: The plain Spark side failed: no reason given"]
