from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said

HOSTILE = "\x1b[31m[red]or[/]ders\u202e\x9b2J[/nothing]\n:boom:"


def test_names_steer_neither_the_terminal_nor_the_table(
    tailrace: Callable[..., Said], orders: Path
) -> None:
    data = json.loads(orders.read_text())
    data["name"] = HOSTILE
    data["steps"][0]["name"] = HOSTILE
    orders.write_text(json.dumps(data))
    for arguments in (
        ("predict", orders),
        ("predict", orders, "--then", orders),
        ("predict", orders, "--rate", "1 M/s"),
        ("predict", orders, "--sweep", "rate=100/s..3k/s"),
        ("size", orders, "--p99", "1 s"),
        ("capacity", orders, "--p99", "1 s"),
    ):
        said = tailrace(*arguments)
        assert said.code == 0, said.err
        assert not {"\x1b", "\u202e", "\x9b"} & set(said.out)
        assert "Traceback" not in said.err
    assert "[red]or[/]ders" in tailrace("predict", orders).out.replace("\n", "")
