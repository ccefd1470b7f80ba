"""The command line: one module per command, and what they share.

With ``--json`` a command writes its result, and nothing else, to standard output; progress and
pictures of it go to standard error. An error is one sentence. Exit codes:

- 0: all went well.
- 1: the machine lacks something (Java, a port, room on the disk), or standard output was closed
  before the result was written; in that case nothing is printed.
- 2: what the user wrote is wrong, or the flow failed. The report of what was measured until then is
  still delivered.
"""

from __future__ import annotations

# The help lists commands in the order in which they are imported.
# isort: off
from tailrace.cli import predict, capacity, size, rehearse, profile, score, forecast
from tailrace.cli import run, repartition, demo, doctor, validate, cluster

# isort: on
from tailrace.cli.program import main

__all__ = [
    "capacity",
    "cluster",
    "demo",
    "doctor",
    "forecast",
    "main",
    "predict",
    "profile",
    "rehearse",
    "repartition",
    "run",
    "score",
    "size",
    "validate",
]
