"""Commands that run flows and checks."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tailrace.cli.app import AsJson, app, directory, print_json
from tailrace.cli.results import OutFile, Quick, check_file, do_all, measure, show
from tailrace.cli.screen import Screen
from tailrace.errors import FlowFailed, InputError, TailraceError, unwritable
from tailrace.masking import MASK, masked
from tailrace.outside import parse_json, read_text
from tailrace.units import duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from tailrace.profile.profile import Profile
    from tailrace.report.data import Report

Seconds = Annotated[float | None, typer.Option(help="How long to run; until Ctrl-C without it.")]
Out = Annotated[Path, typer.Option(help="Directory for the report and its picture.")]
Conf = Annotated[list[str] | None, typer.Option(help="A Spark setting, as key=value.")]
Master = Annotated[str | None, typer.Option(help="Spark master; all cores here without it.")]


@app.command()
def run(
    target: Annotated[str, typer.Argument(metavar="FILE:FLOW", help="Where the flow stands.")],
    *,
    seconds: Seconds = None,
    plain: Annotated[
        bool, typer.Option(help="As plain Spark runs it: stock settings, no chaining, no control.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Directory for report and picture.")] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Write what predictions need of the run to this file.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Append what was predicted and came of it to this file.")
    ] = None,
    redact: Annotated[
        bool,
        typer.Option(help="Leave what records and keys hold out of errors, reports and profiles."),
    ] = False,
    stop_within: Annotated[
        str | None,
        typer.Option(help="How long stopping waits for the batch at hand, as in '30 s'."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    after_restore: Annotated[
        bool,
        typer.Option(
            help="The checkpoint went back: set aside newer batches of the output, compute again."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a flow from a file, show it live, and report."""
    from tailrace.spark import running  # noqa: PLC0415 - commands import what they need

    settings = _settings(conf)
    _check_length(seconds)
    with _kept_off_stdout(as_json):
        flow = running.find_flow(target)
        if stop_within is not None:
            flow.stop_within_ms = duration_ms(stop_within)
        if out is not None:
            directory(out)
        for file in (profile, log):
            if file is not None:
                directory(file.parent)
        how: Any = {
            "plain": plain,
            "master": master,
            "settings": settings,
            "redact": redact,
            "after_restore": after_restore,
        }
        report, failure = _reported(lambda: running.run(flow, seconds, **how))
    more: list[Callable[[], object]] = []
    if profile is not None:
        more.append(lambda: _save_profile(report.profile, profile))
    if log is not None:
        more.append(lambda: _add_to_log(log, report))
    _deliver(report, out, as_json=as_json, more=more, failure=failure)


@app.command()
def repartition(
    target: Annotated[str, typer.Argument(metavar="FILE:FLOW", help="Where the flow stands.")],
    *,
    partitions: Annotated[int, typer.Option(help="How many partitions its state shall have.")],
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Spread the state of a flow that is stopped over another number of partitions."""
    from tailrace.spark import running  # noqa: PLC0415 - commands import what they need

    settings = _settings(conf)
    with _kept_off_stdout(as_json):
        flow = running.find_flow(target)
        before = running.repartition(flow, partitions, master=master, settings=settings)
    if as_json:
        print_json({"partitions": partitions, "before": before})
        return
    for name, number in before.items():
        print(f"{name}: {number} partitions before, {partitions} now")
    if not before:
        print(f"All state has {partitions} partitions already.")


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="How long each side runs.")] = 50.0,
    baseline: Annotated[bool, typer.Option(help="Run plain Spark beside it.")] = True,
    out: Out = Path("out/demo"),
    as_json: AsJson = False,
) -> None:
    """Keep a latency under a changing load, beside plain Spark."""
    from tailrace.spark import running  # noqa: PLC0415 - commands import what they need

    _check_length(seconds)
    directory(out)
    flow = running.find_flow(f"{running.example('primes.py')}:flow")
    report, failure = _reported(lambda: running.run(flow, seconds))
    other = None
    if baseline and failure is None:
        try:
            other = running.run_plain_apart(running.example("primes.py"), seconds)
        except FlowFailed as error:
            failure = error
    _deliver(report, out, baseline=other, as_json=as_json, failure=failure)


@app.command()
def doctor(
    plain: Annotated[
        bool, typer.Option(help="Examine the session that Spark gives by default.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what is missing or slow here, and how to mend it."""
    from tailrace.spark import doctor as examining  # noqa: PLC0415 - commands import what they need

    found = list(examining.machine())
    if not any(finding.fatal for finding in found):
        found += examining.try_session(plain=plain)
    fatal = any(finding.fatal for finding in found)
    if as_json:
        facts = [{"fatal": f.fatal, "what": f.what, "remedy": f.remedy} for f in found]
        print_json({"fit": not fatal, "findings": facts})
    else:
        console = Screen(highlight=False)
        for finding in found:
            mark = "[red]will not work[/]" if finding.fatal else "[yellow]slow[/]"
            console.print(f"{mark}  {escape(f'{finding.what} {finding.remedy}'.rstrip())}")
        if not found:
            console.print("[green]fit[/]  Nothing is missing and nothing is slow.")
    raise typer.Exit(1 if fatal else 0)


@app.command()
def validate(
    *,
    quick: Quick = False,
    again: Annotated[
        Path | None, typer.Option(help="Run nothing: judge the runs of this result once more.")
    ] = None,
    anew: Annotated[
        list[str] | None, typer.Option(help="With --again: run this topology anew, though.")
    ] = None,
    out: OutFile = None,
    as_json: AsJson = False,
) -> None:
    """Run known topologies, predict each run from the others, and say how right that was."""
    from tailrace.spark.validation import validate as validation  # noqa: PLC0415 - brings Spark along

    if anew and again is None:
        raise InputError("--anew replaces runs of a result: name that with --again FILE.")
    if again is None:
        measure(validation, quick=quick, out=out, as_json=as_json)
        return
    check_file(out)
    try:
        before: Any = parse_json(read_text(again, "result", "run 'tailrace validate'"), str(again))
        result = validation.again(before)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"There are no runs to judge in {again}: name what 'tailrace validate --out' wrote."
        ) from error
    if anew:
        result = validation.again(before, anew)
    show(validation, result, out=out, as_json=as_json)


def _check_length(seconds: float | None) -> None:
    if seconds is not None and not 0 < seconds < math.inf:
        raise InputError(f"A run of {seconds:g} seconds cannot be: give a number above 0.")


def _kept_off_stdout(as_json: bool) -> AbstractContextManager[object]:
    """Send what a user's code prints to standard error where standard output is for JSON."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def _settings(pairs: list[str] | None) -> dict[str, str]:
    settings = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            shown = f"{masked(key)}{equals and f'={MASK}'}"
            raise InputError(f"'{shown}' is not a Spark setting: write --conf key=value.")
        settings[key] = value
    return settings


def _reported(work: Callable[[], Report]) -> tuple[Report, TailraceError | None]:
    """The report of a run, and what it failed with; raised if nothing was measured until then."""
    try:
        return work(), None
    except TailraceError as error:
        if error.report is None or not error.report.records:
            raise
        return error.report, error


def _save_profile(profile: Profile | None, path: Path) -> None:
    from tailrace.profile.file import save  # noqa: PLC0415 - commands import what they need

    if profile is None:
        raise FlowFailed(
            "The run was too short for a profile, or did not measure: let it run for a minute."
        )
    save(profile, path)


def _add_to_log(log: Path, report: Report) -> None:
    from tailrace.report.ledger import Ledger  # noqa: PLC0415 - commands import what they need

    try:
        Ledger(log).add_run(report.data)
    except OSError as error:
        raise unwritable(f"The log {log}", error) from error


def _deliver(
    report: Report,
    out: Path | None,
    *,
    baseline: Report | None = None,
    as_json: bool,
    more: Sequence[Callable[[], object]] = (),
    failure: TailraceError | None = None,
) -> None:
    """The report first, to its file and to standard output, and then what else was asked for.

    Whatever cannot be written keeps nothing else from being written, and is said at the end; what
    the run itself failed with is said last.
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
