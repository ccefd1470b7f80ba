"""What can go wrong, as one tree.

::

    TailraceError
    ├── InputError          something that the user wrote is wrong; nothing ran
    │   ├── UnitError       a text that is not a duration, a rate or a size
    │   ├── ConstraintError a latency constraint that makes no sense
    │   ├── TraceError      a pipeline that cannot be traced into a graph
    │   └── LoadError       a load or a trace file that cannot be replayed
    ├── EnvironmentUnfit    this machine or session lacks what is needed (see ``tailrace doctor``)
    ├── StepFailed          a step raised, or returned rows that do not match its schema
    └── FlowFailed          the running query failed for another reason

Every message is one sentence that says what is wrong, where, and what to do. The command line
prints it without a traceback.
"""

from __future__ import annotations

import errno
from typing import Any

FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""The errors of a write that fails for lack of space."""


class TailraceError(Exception):
    """Root of everything that Tailrace raises on purpose.

    If a running flow failed, ``report`` holds what was measured until then (a ``tailrace.Report``).
    """

    report: Any = None


class InputError(TailraceError):
    """Something that the user wrote is wrong; nothing has run."""


class UnitError(InputError):
    """A text that is not a duration, a rate or a size."""


class ConstraintError(InputError):
    """A latency constraint that makes no sense."""


class TraceError(InputError):
    """A pipeline that cannot be traced into a graph of steps."""


class LoadError(InputError):
    """A load or a trace file that cannot be replayed."""


class EnvironmentUnfit(TailraceError):  # noqa: N818 - it names a state, as in "unfit to run"
    """This machine or this session lacks something that Tailrace needs."""


class StepFailed(TailraceError):  # noqa: N818 - it reads as the sentence it starts
    """A step raised on a record, or returned rows that do not match its schema."""


class FlowFailed(TailraceError):  # noqa: N818 - it reads as the sentence it starts
    """The running query failed for a reason outside the steps."""


def unwritable(what: str, error: OSError) -> TailraceError:
    """The error for a failed write: either the disk is full, or the place does not allow it."""
    if error.errno in FULL:
        return EnvironmentUnfit(
            f"{what} cannot be written ({error.strerror}): free some space, or choose another "
            "place."
        )
    return InputError(f"{what} cannot be written ({error.strerror}): choose another place.")
