"""Wrong command lines, and JSON."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from tailrace.cli.app import print_json
from tests.cli.conftest import USER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("run",), "Missing argument"),
        (("run", "job.py:flow", "--seconds", "long"), "Invalid value for '--seconds'"),
        (("run", "job.py:flow", "--secnods", "1"), "No such option"),
        (("walk",), "No such command 'walk'"),
        (("--\x1b[31mwalk",), "No such option"),
        (("score", "log", "--\x1b[31m\u202ewalk"), "No such option"),
    ],
)
def test_what_is_no_command_line_is_explained_without_a_traceback(
    tailrace: Callable[..., Said], arguments: tuple[str, ...], why: str
) -> None:
    said = tailrace(*arguments)
    assert said.code == USER
    assert said.out == ""
    assert why in said.err
    assert "Traceback" not in said.err
    assert not {"\x1b", "\u202e"} & set(said.err)


def test_json_has_null_for_what_has_no_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json({"a": [math.inf, {"b": math.nan}], "c": (1.5, -math.inf), "d": "nan"})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": [None, {"b": None}],
        "c": [1.5, None],
        "d": "nan",
    }
