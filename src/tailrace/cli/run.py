"""``tailrace run``: a flow from a file, live, and its report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.app import app, keep_stdout_for_json
from tailrace.cli.options import AsJson, Conf, FlowTarget, Master, check_length, settings
from tailrace.cli.reports import deliver, reported
from tailrace.cli.results import make_directory
from tailrace.errors import FlowFailed, unwritable
from tailrace.units import duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.profile.profile import Profile
    from tailrace.report.data import Report


@app.command()
def run(
    target: FlowTarget,
    *,
    seconds: Annotated[
        float | None, typer.Option(help="How long to run; default: until Ctrl-C.")
    ] = None,
    plain: Annotated[
        bool, typer.Option(help="Run as plain Spark would: stock settings, no chains, no control.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Directory for report and picture.")] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Write a profile of the run, for predictions, to this file.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Append predictions and their outcomes to this file.")
    ] = None,
    redact: Annotated[
        bool,
        typer.Option(help="Keep contents of records and keys out of errors, reports and profiles."),
    ] = False,
    stop_within: Annotated[
        str | None,
        typer.Option(help="How long stopping waits for the current batch, such as '30 s'."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    after_restore: Annotated[
        bool,
        typer.Option(
            help="The checkpoint was restored from a copy: set newer output aside, recompute it."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a flow from a file, show it live, and report."""
    from tailrace.spark import from_file  # noqa: PLC0415 - commands import what they need

    how: Any = {
        "plain": plain,
        "master": master,
        "settings": settings(conf),
        "redact": redact,
        "after_restore": after_restore,
    }
    check_length(seconds)
    with keep_stdout_for_json(as_json):
        flow = from_file.find_flow(target)
        if stop_within is not None:
            flow.stop_within_ms = duration_ms(stop_within)
        if out is not None:
            make_directory(out)
        for file in (profile, log):
            if file is not None:
                make_directory(file.parent)
        report, failure = reported(lambda: from_file.run(flow, seconds, **how))
    more: list[Callable[[], object]] = []
    if profile is not None:
        more.append(lambda: _save_profile(report.profile, profile))
    if log is not None:
        more.append(lambda: _add_to_log(log, report))
    deliver(report, out, as_json=as_json, more=more, failure=failure)


def _save_profile(profile: Profile | None, path: Path) -> None:
    from tailrace.profile.file import save  # noqa: PLC0415 - commands import what they need

    if profile is None:
        raise FlowFailed(
            "The run was too short for a profile, or measured nothing: let it run for a minute."
        )
    save(profile, path)


def _add_to_log(log: Path, report: Report) -> None:
    from tailrace.report.ledger import Ledger  # noqa: PLC0415 - commands import what they need

    try:
        Ledger(log).add_run(report.data)
    except OSError as error:
        raise unwritable(f"The log {log}", error) from error
