"""Where results go is checked before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import GOOD, USER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("inside", ["", "deeper"])
def test_an_output_that_is_or_lies_in_a_file_is_refused_before_anything_runs(
    tailrace: Callable[..., Said], job: Callable[[str], Path], tmp_path: Path, inside: str
) -> None:
    (tmp_path / "taken").write_text("mine")
    out = tmp_path / "taken" / inside
    sentence = f"The output {out} is, or is inside, a file: name a directory."
    assert tailrace("run", f"{job(GOOD)}:flow", "--out", out).sentence(USER) == sentence
    assert tailrace("demo", "--out", out).sentence(USER) == sentence
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.usefixtures("nothing_runs")
def test_an_output_that_cannot_be_made_is_refused(
    tailrace: Callable[..., Said], job: Callable[[str], Path]
) -> None:
    said = tailrace("run", f"{job(GOOD)}:flow", "--out", "/proc/none/out").sentence(USER)
    assert said == "The output /proc/none/out cannot be written: name another directory."
