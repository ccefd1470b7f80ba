"""A cut of the fuzz target for outside input, and whether it sees what it looks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer
from rich.console import Console

from tailrace.errors import InputError

from . import outside

if TYPE_CHECKING:
    from pathlib import Path

CASES = 2_000


def test_no_mutated_input_ends_in_a_traceback_a_hang_or_a_control_sequence() -> None:
    tally, failures = outside.many(seed=19, indices=range(CASES), jobs=2)
    assert failures == []
    assert sum(tally.values()) == CASES
    assert min(tally[kind] for kind in outside.GOOD) > CASES // 50, tally


def test_a_case_is_made_of_its_seed_and_number_alone() -> None:
    assert outside.case(3, 14) == outside.case(3, 14)
    assert outside.case(3, 14) != outside.case(3, 15)


def _raise(error: BaseException) -> None:
    raise error


def _spin() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("done", "kind"),
    [
        (lambda: _raise(KeyError("rate_per_s")), "tracebacks"),
        (_spin, "hangs"),
        (lambda: Console().print("\x1b[2J"), "escapes"),
        (lambda: typer.echo('{"mean_ms": NaN}'), "nonfinite"),
        (lambda: typer.echo('{"mean_ms": 1e999}'), "nonfinite"),
        (lambda: _raise(InputError("No stop at the end")), "sentences"),
        (lambda: _raise(InputError("Something is wrong: mend it.")), "refused"),
    ],
)
def test_what_it_looks_for_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, done: object, kind: str
) -> None:
    monkeypatch.setattr("tailrace.cli.program.app", done)
    monkeypatch.setattr(outside, "LIMIT_S", 0.2)
    assert outside.judge(outside.Case(("predict", "--json"), {}), tmp_path).kind == kind
