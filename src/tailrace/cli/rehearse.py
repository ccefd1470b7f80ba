"""``tailrace rehearse``: the control loop on a profile and any load, in simulated time."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tailrace.cli import options, screen
from tailrace.cli.app import app, keep_stdout_for_json, print_json
from tailrace.cli.groups import grouped
from tailrace.cli.loads import load_of
from tailrace.cli.reports import deliver
from tailrace.cli.results import do_all, make_directory
from tailrace.errors import InputError
from tailrace.outside import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tailrace.load import RateProfile
    from tailrace.policy.scaling.sizing import Scaler
    from tailrace.profile.profile import Profile
    from tailrace.report.data import Report

MOST_COMPARED: Final = 20
_RANGE: Final = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class How:
    """What a rehearsal needs besides a profile, a load and a bound."""

    executors: Annotated[
        str | None, typer.Option(help="Range of executors, as 1:8, or a fixed number, as 6.")
    ] = None
    executor_cores: Annotated[int, typer.Option(help="Cores of an executor.")] = 1
    coming: Annotated[
        str | None, typer.Option(help="How long executors take to start; default: as measured.")
    ] = None
    warm_up: Annotated[str, typer.Option(help="Time at the start that verdicts leave out.")] = (
        "10 s"
    )
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 1


@app.command()
@grouped
def rehearse(
    profile: options.ProfileFile,
    *,
    load: Annotated[
        str,
        typer.Option(help="A CSV of rates, the report.json of a run, or as constant:400/s,10min."),
    ],
    bounds: options.Bounds,
    scaler: Annotated[
        str | None, typer.Option(help="What decides on executors: a name, or FILE:SCALER.")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(help="Scalers and fixed numbers of executors, as predictive,reactive,6."),
    ] = None,
    how: How,
    seconds: Annotated[
        float | None, typer.Option(help="Use only this much of the load, from its start.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for report and picture.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Rehearse a flow on its profile, under any load, in simulated time."""
    from tailrace.load import First  # noqa: PLC0415 - numpy takes its time
    from tailrace.profile.file import load as load_profile  # noqa: PLC0415

    known = load_profile(profile)
    bounds.constraint()
    options.check_length(seconds)
    rates = load_of(load)
    rates = rates if seconds is None else First(rates, seconds)
    if out is not None:
        make_directory(out)
    with keep_stdout_for_json(as_json):
        rehearsals = _Rehearsals(known, rates, bounds, how)
        if compare is None:
            report = rehearsals.run(scaler, rehearsals.elastic)
        elif scaler is not None:
            raise InputError("--scaler and --compare cannot be combined: leave out one of them.")
        else:
            reports = _compared(compare, rehearsals)
    if compare is None:
        deliver(report, out, as_json=as_json)
    else:
        _deliver(reports, load, out, how.executor_cores, as_json=as_json)


class _Rehearsals:
    """Rehearsals of one flow under one load, which differ in what decides on executors."""

    def __init__(
        self, profile: Profile, load: RateProfile, bounds: options.Bounds, how: How
    ) -> None:
        coming = how.coming
        self._profile = profile
        self._load = load
        self.elastic = _executors(how.executors)
        self._how: dict[str, Any] = {
            "mean": bounds.mean,
            "p95": bounds.p95,
            "p99": bounds.p99,
            "cores": options.count(how.executor_cores, "--executor-cores"),
            "coming": None if coming is None else options.duration(coming, "--coming", zero=True),
            "warm_up": options.duration(how.warm_up, "--warm-up", zero=True),
            "seed": how.seed,
        }

    def run(self, scaler: str | None, executors: tuple[int, int] | int | None) -> Report:
        """One rehearsal; an error in the user's own scaler names its line."""
        from tailrace.rehearsal import rehearse as rehearsed  # noqa: PLC0415 - scipy

        found, located = _scaler(scaler)
        with located:
            return rehearsed(
                self._profile, self._load, scaler=found, executors=executors, **self._how
            )


def _scaler(given: str | None) -> tuple[str | Scaler | None, AbstractContextManager[None]]:
    """A scaler by its name, or the user's own, with a context that locates errors in it."""
    if given is None or ":" not in given:
        return given, nullcontext()
    from tailrace.spark import from_file  # noqa: PLC0415 - pyspark takes its time

    return from_file.find_scaler(given), from_file.naming_the_line(given)


def _executors(text: str | None) -> tuple[int, int] | int | None:
    """How many executors there may be: ``1:8``, or ``6`` for a fixed number."""
    if text is None:
        return None
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"--executors {text} is not a number of executors: write 6, or 1:8 for a range."
        )
    least = options.count(int(match[1]), "--executors")
    return least if match[2] is None else (least, options.count(int(match[2]), "--executors"))


# --- several side by side -------------------------------------------------------------------------


def _compared(text: str, rehearsals: _Rehearsals) -> dict[str, Report]:
    """A report for every scaler, and for every fixed number of executors, by its name."""
    from tailrace.policy.scaling.choice import scaler_of  # noqa: PLC0415 - numpy

    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names or len(set(names)) < len(names) or len(names) > MOST_COMPARED:
        raise InputError(
            f"--compare {text} is not a valid list: name up to {MOST_COMPARED} scalers or numbers "
            "of executors, each once, as in predictive,reactive,6."
        )
    chosen: dict[str, tuple[str | None, tuple[int, int] | int | None]] = {}
    for name in names:
        if name.isdecimal():
            chosen[f"{name} executors"] = None, _executors(name)
            continue
        if not isinstance(rehearsals.elastic, tuple):
            raise InputError(f"'{name}' has no executors to decide on: add --executors 1:8.")
        if ":" not in name:
            scaler_of(name)  # refuses an unknown name before anything slow runs
        chosen[printable(name)] = name, rehearsals.elastic
    return {name: rehearsals.run(*what) for name, what in chosen.items()}


def _deliver(
    reports: dict[str, Report], load: str, out: Path | None, cores: int, *, as_json: bool
) -> None:
    """Deliver a table, a picture and every report, even if one of them fails."""
    from tailrace.report import comparison, saso, sizes  # noqa: PLC0415 - matplotlib

    steps = {name: comparison.counted_steps(report) for name, report in reports.items()}
    bound = next(iter(reports.values())).constraints[0]
    result = {"load": load, "constraint": bound["text"], "runs": comparison.as_json(reports)}
    shown = saso.table(comparison.figures(reports, cores))
    shown.title = f"Rehearsed under {printable(load)}, {bound['text']}"
    tasks: list[Callable[[], object]] = []
    if out is not None:
        for number, report in enumerate(reports.values(), start=1):
            tasks.append(partial(report.save, out / f"report-{number}.json"))
        tasks.append(lambda: sizes.plot(out / "comparison.png", steps, bound["bound_ms"]))
    tasks.append(lambda: print_json(result) if as_json else screen.show(shown))
    do_all(tasks)
