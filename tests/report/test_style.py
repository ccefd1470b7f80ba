"""How pictures are written, and where they cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
import pytest

from tailrace.errors import InputError
from tailrace.report.picture import draw

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.report.data import Report


def test_settings_of_matplotlib_stay_as_they_were(controlled: Report, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    draw(controlled, tmp_path / "picture.svg")
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("name", ["picture.pdf", "picture", ".png"])
def test_another_suffix_is_refused(controlled: Report, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"end it in \.png or \.svg"):
        draw(controlled, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_a_file_is_refused(controlled: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        draw(controlled, tmp_path / "file" / "picture.png")


def test_a_file_that_is_a_directory_is_refused(controlled: Report, tmp_path: Path) -> None:
    (tmp_path / "picture.svg").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        draw(controlled, tmp_path / "picture.svg")
