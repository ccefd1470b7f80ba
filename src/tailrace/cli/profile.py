"""``tailrace profile``: a profile of any query, from its progress log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli import options, screen
from tailrace.cli.app import app, print_json
from tailrace.outside import MIB, read_text
from tailrace.units import show_duration, show_rate

MOST_LOG_BYTES = 256 * MIB
"""Progress logs are larger than other input: drivers log for months."""


@app.command()
def profile(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Progress events, as JSON.")],
    out: Annotated[Path, typer.Argument(metavar="PROFILE", help="The profile file to write.")],
    *,
    name: Annotated[
        str | None, typer.Option(help="Name of the query, if the log has several.")
    ] = None,
    cores: Annotated[int, typer.Option(help="How many tasks it could run at once.")] = 1,
    as_json: options.AsJson = False,
) -> None:
    """Make a profile of any Structured Streaming query from its progress log."""
    from tailrace.model.progress import read  # noqa: PLC0415 - scipy takes its time
    from tailrace.profile.file import as_json as plain  # noqa: PLC0415
    from tailrace.profile.file import save  # noqa: PLC0415

    text = read_text(log, "log", "name a file of JSON lines", MOST_LOG_BYTES)
    found = read(text.replace("\r\n", "\n"), name, options.count(cores, "--cores"))
    save(found.profile, out)
    if as_json:
        print_json(plain(found.profile))
        return
    fixed, each = show_duration(found.model.fixed_ms), show_duration(found.model.per_record_ms)
    screen.show(
        f"A batch of {found.profile.name} takes {fixed} and {each} a record; "
        f"{show_rate(found.profile.rate_per_s)} came in. Profile: {out}"
    )
    for note in found.notes:
        screen.show(note)
