"""``python -m tests.chaos``: put the flows to faults, and say what came of it."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from .faults import CLUSTER, LOCAL
from .flows import FLOWS
from .harness import Wanted, run, summary
from .round import BAD, Outcome

if TYPE_CHECKING:
    from typing import Any

KINDS = ("exact", "refused", "skipped", *BAD)


def main() -> int:
    """Run, print, and end with 1 if anything was as it must not be."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=300, help="how many, a flow counting as one")
    parser.add_argument("--seed", type=int, default=1, help="what the sequence follows from")
    parser.add_argument("--keep", type=Path, help="a line for every fault; a run goes on from it")
    parser.add_argument("--only", choices=FLOWS, help="one flow")
    parser.add_argument("--fault", choices=sorted({*LOCAL, *CLUSTER}), help="one fault")
    parser.add_argument("--round", type=int, help="one round of the sequence, on a new scene")
    parser.add_argument("--json", action="store_true", help="the summary on standard output")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wanted = Wanted(given.faults, given.seed, given.keep, given.only, given.fault, given.round)
    console = Console(stderr=True, highlight=False, markup=False)
    found = summary(run(wanted, lambda one: console.print(line(one))))
    console.print(table(found))
    if given.json:
        print(json.dumps(found))
    return 1 if found["bad"] else 0


def line(one: Outcome) -> str:
    """An outcome as it comes."""
    said = "; ".join([*one.problems, *one.sentences])[:600]
    return (
        f"{one.round:3} {one.fault:12} {one.flow:12} {one.outcome:8} {one.seconds:5.1f} s  "
        f"{one.moment}; {one.note}  {said}"
    )


def table(found: dict[str, Any]) -> Table:
    """Faults by outcome."""
    shown = Table(title=f"{found['faults']} faults in {found['rounds']} rounds")
    for name in ("fault", "flow", *KINDS):
        shown.add_column(name)
    cells = {(c["fault"], c["flow"], c["outcome"]): c["runs"] for c in found["cells"]}
    for fault, flow in sorted({(fault, flow) for fault, flow, _ in cells}):
        shown.add_row(fault, flow, *(str(cells.get((fault, flow, k), "")) for k in KINDS))
    return shown


if __name__ == "__main__":
    sys.exit(main())
