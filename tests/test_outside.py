"""Outside input: what is too large, too deep, out of range or no text is one sentence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.outside import DEEPEST, LARGEST, LONGEST, is_there, parse_json, printable, read_text

if TYPE_CHECKING:
    from pathlib import Path

ESCAPE = "\x1b"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("orders", "orders"),
        (f"{ESCAPE}[31mred{ESCAPE}[0m", "red"),
        (f"{ESCAPE}]0;title\x07x", "x"),
        (f"{ESCAPE}]8;;http://a{ESCAPE}\\\\link{ESCAPE}]8;;{ESCAPE}\\\\", "link"),
        ("\x9b2Jx", "x"),
        (f"a{ESCAPE}cb", "ab"),
        ("a\nb\r\tc", "a b c"),
        ("\x00a\x08b\x7f", "ab"),
        ("\u202egnp.exe", "gnp.exe"),
        ("a\u2028b", "a b"),
        ("\ud800x", "x"),
        ("[bold]b[/]", "[bold]b[/]"),
        ("größe 漢 😀", "größe 漢 😀"),
    ],
)
def test_a_text_for_the_terminal_steers_nothing(text: str, plain: str) -> None:
    assert printable(text.replace("\\\\", "\\")) == plain


@given(st.text(st.characters(), max_size=60))
def test_any_text_is_one_printable_line_that_can_be_encoded(text: str) -> None:
    plain = printable(text)
    plain.encode()
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in plain)
    assert printable(plain) == plain


def test_of_a_long_text_both_ends_are_shown() -> None:
    shown = printable("Start " + "x" * 10_000 + " do this.")
    assert len(shown) < 1_000
    assert shown.startswith("Start ")
    assert shown.endswith(" do this.")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "It ends in line 1, column 1"),
        ('{"a": 1', "ends in line 1, column 8, before its JSON does"),
        ("{'a': 1}", "is not JSON in line 1, column 2"),
        ('{"a": 1, "b": 2, "a": 3}', 'has "a" twice in one object'),
        ('{"a": [NaN]}', r"has NaN at a\[0\]: give a finite number"),
        ("-Infinity", "has -Infinity at its top: give a finite"),
        ('{"a": 1e999}', "has Infinity at a: give a finite"),
        (f'{{"a": {LARGEST + 1}}}', "has 9007199254740993 at a: give a number up to 9,007"),
        ('{"a": 1' + "0" * 5_000 + "}", "has a number with too many digits"),
        ("[" * (DEEPEST + 2) + "]" * (DEEPEST + 2), "is nested too deeply at"),
        ("[" * 100_000, "is nested too deeply"),
        (json.dumps({"a": "x" * (LONGEST + 1)}), "has a text of 100,001 characters at a"),
    ],
)
def test_json_that_breaks_a_limit_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        parse_json(text, "It")
    assert len(str(caught.value)) < 300


def test_json_at_its_limits_is_read() -> None:
    assert parse_json(f"[{LARGEST}, {-LARGEST}, 5e-324]", "It") == [LARGEST, -LARGEST, 5e-324]
    deep = "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1)
    assert json.dumps(parse_json(deep, "It")) == deep


def test_a_file_is_read_up_to_its_limit_and_without_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert read_text(path, "note", "write one", 6) == "abc"
    with pytest.raises(InputError, match=r"The note .*a\.txt has more than 0 MiB"):
        read_text(path, "note", "write one", 5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none", "There is no note .*none: write one."),
        (".", "is a directory: name the note in it."),
        ("a" * 300, r"cannot be read \(File name too long\)"),
        ("a\0b", r"cannot be read \(embedded null byte\)"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_text(tmp_path / name, "note", "write one")


def test_what_has_no_end_is_read_up_to_the_limit(tmp_path: Path) -> None:
    zeros = tmp_path / "zeros"
    zeros.symlink_to("/dev/zero")
    with pytest.raises(InputError, match="has more than 64 MiB"):
        read_text(zeros, "note", "write one")


def test_a_place_where_nothing_can_be_is_told_from_one_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert is_there(tmp_path)
    assert is_there(tmp_path / "file")
    assert is_there(tmp_path / ("a" * 300))
    for name in ("none", "file/inner", "a\0b"):
        assert not is_there(tmp_path / name)
