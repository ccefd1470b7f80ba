"""Where keyed steps keep their state: each its own directory, inside of the one for all."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.state.place import state_place

ROOM = Path("/checkpoint/state")
HOSTILE = [
    ".",
    "..",
    "...",
    "/",
    "../..",
    "a/../..",
    "\0",
    "a\nb",
    "\x1b[2J",
    "x" * 5_000,
    "é" * 300,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_leads_out_of_the_room(name: str, tmp_path: Path) -> None:
    place = state_place(tmp_path, name)
    place.mkdir()
    assert place.resolve().parent == tmp_path.resolve()
    assert len(place.name.encode()) <= 255


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_names_have_two_places(one: str, other: str) -> None:
    assert (state_place(ROOM, one) == state_place(ROOM, other)) is (one == other)


def test_long_names_that_begin_alike_have_two_places() -> None:
    assert state_place(ROOM, "x" * 400 + "a") != state_place(ROOM, "x" * 400 + "b")


@pytest.mark.parametrize("name", ["count", "per user", ".hidden", "a.b", "a/b", "süd", "x" * 200])
def test_a_name_that_had_a_place_before_has_the_same_now(name: str) -> None:
    assert state_place(ROOM, name) == ROOM / quote(name, safe=" ")
