from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "ends in line 1, column 1, before its JSON does"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"runs": 1e999}', "runs"),
        ("[]", "There are no runs to judge in"),
        ('{"runs": []', "ends in line 1, column 12, before its JSON does"),
        ('{"other": 1}', "There are no runs to judge in"),
    ],
)
def test_a_result_that_cannot_be_judged_again_is_refused_in_one_sentence(
    text: str, said: str, tailrace: Callable[..., Said], tmp_path: Path
) -> None:
    result = tmp_path / "result.json"
    result.write_text(text)
    assert said in tailrace("validate", "--again", result).sentence(2)


def test_a_result_that_is_not_there_is_said(tailrace: Callable[..., Said], tmp_path: Path) -> None:
    missing = tmp_path / "result.json"
    said = tailrace("validate", "--again", missing).sentence(2)
    assert said == f"There is no result {missing}: run 'tailrace validate'."
