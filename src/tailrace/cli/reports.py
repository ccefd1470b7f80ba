"""Delivering a report, however the run ended and even if other files cannot be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.cli.app import print_json
from tailrace.cli.results import do_all
from tailrace.cli.screen import Screen
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tailrace.report.data import Report


def reported(work: Callable[[], Report]) -> tuple[Report, TailraceError | None]:
    """The report of a run and its error, if any; raises that if nothing was measured."""
    try:
        return work(), None
    except TailraceError as error:
        if error.report is None or not error.report.records:
            raise
        return error.report, error


def deliver(
    report: Report,
    out: Path | None,
    *,
    baseline: Report | None = None,
    as_json: bool,
    more: Sequence[Callable[[], object]] = (),
    failure: TailraceError | None = None,
) -> None:
    """Deliver the report, to its file and to standard output, and then what else was asked for.

    If one of these cannot be written the others still are, and the errors follow at the end; the
    error of the run itself comes last.
    """
    from tailrace.report.picture import draw  # noqa: PLC0415 - matplotlib takes its time
    from tailrace.report.terminal import summary  # noqa: PLC0415

    whole = report if baseline is None else report.beside(baseline)
    tasks: list[Callable[[], object]] = []

    def save(out: Path) -> None:
        whole.save(out / "report.json")
        tasks.append(lambda: draw(report, out / "report.png", baseline))

    def show() -> None:
        screen = Screen(stderr=as_json)
        screen.print(summary(report, baseline))
        if out is not None:
            where = f"Report and picture: {out}/report.json, {out}/report.png"
            screen.print(where, markup=False, highlight=False, soft_wrap=True)

    if out is not None:
        tasks.append(lambda: save(out))
    tasks.append(show)
    if as_json:
        tasks.append(lambda: print_json(whole.data))
    tasks += more
    do_all(tasks, failure)
