"""``tailrace capacity``: the rate that a plan can take."""

from __future__ import annotations

from tailrace.cli import screen
from tailrace.cli.app import app, print_json
from tailrace.cli.groups import grouped
from tailrace.cli.options import AsJson, Bounds, ProfileFile
from tailrace.cli.plans import PlanChanges


@app.command()
@grouped
def capacity(
    profile: ProfileFile, *, changes: PlanChanges, bounds: Bounds, as_json: AsJson = False
) -> None:
    """Say what rate a plan can take, and up to what rate it keeps a bound."""
    from tailrace.model.capacity import capacity_for  # noqa: PLC0415 - scipy
    from tailrace.profile.file import load  # noqa: PLC0415

    known = load(profile)
    found = capacity_for(known, changes.on(known), bounds.constraint())
    if as_json:
        print_json(found.as_json())
    else:
        screen.show(found.reason)
