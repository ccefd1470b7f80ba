"""``python -m bench``, called as the shell calls it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from bench import LONG, NAMES
from bench import __main__ as main
from tailrace.cli.program import run_program
from tests.conftest import Said

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

USAGE = 2


@pytest.fixture
def measure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    def call(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run_program(main.app)
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, *capfd.readouterr())

    return call


def test_an_unknown_benchmark_is_named_beside_the_known_ones(
    measure: Callable[..., Said],
) -> None:
    said = measure("speed").sentence(USAGE)
    assert said == f"There is no benchmark 'speed': choose {', '.join(NAMES)}."


def test_the_output_of_a_benchmark_is_checked_before_it_runs(
    measure: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Never:
        def measure(self, *, quick: bool) -> dict[str, Any]:
            pytest.fail(f"it ran, quick={quick}")

        def table(self, result: dict[str, Any]) -> Any:
            pytest.fail(f"it was shown {result}")

    monkeypatch.setattr(main, "benchmark", lambda _: Never())
    (tmp_path / "file").write_text("")
    said = measure("floor", "--out", tmp_path).sentence(USAGE)
    assert said == f"The output {tmp_path} is a directory: name a file in it."
    said = measure("floor", "--out", tmp_path / "file" / "x.json").sentence(USAGE)
    assert "is, or is inside, a file" in said


def test_only_a_long_benchmark_keeps_its_runs(
    measure: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = measure("floor", "--keep", tmp_path / "runs").sentence(USAGE)
    assert said == (
        f"The benchmark 'floor' keeps no runs: leave out --keep, which is for {', '.join(LONG)}."
    )
    got: dict[str, object] = {}

    class Long:
        def measure(self, *, quick: bool, keep: Path | None = None) -> dict[str, Any]:
            got.update(quick=quick, keep=keep)
            return {}

        def table(self, result: dict[str, Any]) -> Any:
            return str(result)

    monkeypatch.setattr(main, "long_benchmark", lambda _: Long())
    measure("scale", "--keep", tmp_path / "new" / "runs")
    assert got == {"quick": False, "keep": tmp_path / "new" / "runs"}
    assert (tmp_path / "new").is_dir()
