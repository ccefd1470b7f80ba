"""The cache directory: the user's own, or not trusted."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numba
import pytest

from bench.simulation import kernels
from tailrace import cache


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory that only the user can write to, as are those above it."""
    place = tmp_path / "home"
    place.mkdir(mode=0o700)
    assert cache.distrusted(place) is None
    return place


def test_it_lies_where_the_user_says_or_at_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", "/home/any")
    for unset in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache.directory() == Path("/home/any/.cache/tailrace")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.directory() == tmp_path / "tailrace"


def test_what_is_made_is_for_the_user_alone_whatever_the_umask(home: Path) -> None:
    before = os.umask(0)
    try:
        made = cache.made(home / "a" / "b")
    finally:
        os.umask(before)
    assert [place.stat().st_mode & 0o777 for place in (made, made.parent)] == [0o700, 0o700]
    assert cache.made(made) == made
    assert cache.distrusted(made) is None


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_one_that_others_can_write_to_is_not_trusted(home: Path, mode: int) -> None:
    place = cache.made(home / "tailrace")
    place.chmod(mode)
    assert cache.distrusted(place) == f"{place} can be written by others"


def test_neither_is_a_file_that_they_can(home: Path) -> None:
    file = home / "archive"
    file.touch()
    file.chmod(0o666)
    assert cache.distrusted(file) == f"{file} can be written by others"


def test_neither_is_one_below_a_directory_in_which_they_can_rename_it(home: Path) -> None:
    place = cache.made(home / "open" / "tailrace")
    place.parent.chmod(0o777)
    assert cache.distrusted(place) == f"{place.parent} can be written by others"
    place.parent.chmod(0o1777)  # as /tmp: nobody renames what is not theirs
    assert cache.distrusted(place) is None


def test_neither_is_one_of_another_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = cache.made(home / "tailrace")
    monkeypatch.setattr(os, "getuid", lambda: place.stat().st_uid + 1)
    assert cache.distrusted(place) == f"{place} belongs to another user"


def test_a_link_counts_as_what_it_leads_to(home: Path) -> None:
    real = cache.made(home / "real")
    link = home / "link"
    link.symlink_to(real)
    assert cache.distrusted(link) is None
    real.chmod(0o777)
    assert cache.distrusted(link) == f"{real} can be written by others"


@pytest.mark.parametrize(("mode", "kept"), [(0o700, True), (0o777, False)])
def test_kernels_are_kept_only_where_others_cannot_write(
    home: Path, mode: int, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    place = cache.made(home / "kernels")
    place.chmod(mode)
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(place)
    try:
        with caplog.at_level(logging.WARNING):
            compiled: Any = kernels.kernel(_twice)
        assert compiled(4) == 8
    finally:
        settings.CACHE_DIR = before
    assert bool(list(place.rglob("*.nbi"))) is kept
    said = " ".join(record.message for record in caplog.records)
    why = f"Compiled kernels are not kept, because {place} can be written by others: remove"
    assert said.startswith(why) is not kept


def _twice(number: int) -> int:
    return 2 * number
