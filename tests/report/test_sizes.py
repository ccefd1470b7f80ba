"""Pictures of several runs of scalers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import matplotlib as mpl
import pytest

from tailrace.errors import InputError
from tailrace.report.sizes import plot
from tests.report.conftest import steps_of

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.report.saso import SizedStep


@pytest.fixture
def runs() -> dict[str, list[SizedStep]]:
    rates = [100.0] * 10 + [300.0] * 20
    slow = steps_of([2] * 15 + [4] * 15, rates, range(10, 16), [2] * 10 + [4] * 20)
    slow[11] = replace(slow[11], latency_ms=None)
    slow[12] = replace(slow[12], latency_ms=9_000.0)
    return {"slow": slow, "peak": steps_of([8] * 30, rates)}


def words(path: Path) -> list[str]:
    return re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"), re.DOTALL)


def test_the_picture_names_every_policy_and_the_bound(
    runs: dict[str, list[SizedStep]], tmp_path: Path
) -> None:
    texts = words(plot(tmp_path / "saso.svg", runs, 200.0))
    assert {"slow", "peak", "fewest needed", "executors", "records/s"} <= set(texts)
    assert any("bound 200 ms" in text for text in texts)
    assert "seconds since start" in texts
    assert "30" in texts


@pytest.mark.parametrize("suffix", [".svg", ".PNG"])
def test_the_same_runs_give_the_same_bytes_and_settings_stay(
    runs: dict[str, list[SizedStep]], tmp_path: Path, suffix: str
) -> None:
    before = dict(mpl.rcParams)
    first = plot(tmp_path / f"first{suffix}", runs, 200.0)
    second = plot(tmp_path / "deep" / f"second{suffix}", runs, 200.0)
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) > 10_000
    assert dict(mpl.rcParams) == before


def test_a_missed_step_is_marked(runs: dict[str, list[SizedStep]], tmp_path: Path) -> None:
    kept = {name: [replace(s, violated=False) for s in steps] for name, steps in runs.items()}
    marked = plot(tmp_path / "marked.svg", runs, 200.0).read_text(encoding="utf-8")
    clean = plot(tmp_path / "clean.svg", kept, 200.0).read_text(encoding="utf-8")
    assert marked.count("<use ") > clean.count("<use ")


def test_what_cannot_be_drawn_is_refused(runs: dict[str, list[SizedStep]], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"end it in \.png or \.svg"):
        plot(tmp_path / "saso.pdf", runs, 200.0)
    empty: list[dict[str, list[SizedStep]]] = [{}, {"none": []}]
    for nothing in empty:
        with pytest.raises(InputError, match="at least one run"):
            plot(tmp_path / "saso.svg", nothing, 200.0)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        plot(tmp_path / "file" / "saso.svg", runs, 200.0)
