"""Turns what Spark throws into one sentence that says what failed and what to do.

Secrets in it are masked. With ``redact`` nothing is quoted that may contain part of a record: only
what kind of failure it was, and where.
"""

from __future__ import annotations

import json
import re

from pyspark.errors import PySparkException

from tailrace.errors import FlowFailed, InputError, StepFailed, TailraceError
from tailrace.masking import masked
from tailrace.spark.worker.chain import LAST
from tailrace.spark.worker.operator import FAILURE

_FACTS = re.compile(re.escape(FAILURE) + r"(\{.*\})")
_CAUSE = re.compile(r"^(?:Caused by: )?[\w.$]*?(\w+(?:Exception|Error)): (.+)$", re.MULTILINE)

_WORKER_GONE = re.compile(
    r"Python worker exited unexpectedly|(?:Connection reset|Broken pipe)[\s\S]*api\.python\."
)
"""What the other end of a worker's socket reports, depending on what it was doing."""

_OTHER_SCHEMA = re.compile(r"STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE")
"""What Spark reports when an aggregation or the like has changed between two runs."""

_RAISED = {kind.__name__: kind for kind in (StepFailed, FlowFailed, InputError)}
_OWN = re.compile(rf"tailrace\.errors\.({'|'.join(_RAISED)}): (.+)")
"""An error that Tailrace itself raised in a worker, which comes back as text."""


_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\]")
"""The name that Spark gives to a kind of error, as in ``[CAST_INVALID_INPUT]``."""


def explained(error: BaseException | str, *, redact: bool = False) -> TailraceError:
    """The failure of a query in Tailrace's own terms."""
    if isinstance(error, TailraceError):
        return error
    text = str(error)
    facts = _FACTS.search(text)
    if facts:
        return _step_failed(facts[1])
    said = _OWN.search(text)
    if said:
        return _RAISED[said[1]](masked(said[2].strip()))
    other = _OTHER_SCHEMA.search(text)
    if other:
        return FlowFailed(
            "The checkpoint holds state of one of Spark's own operators for columns of other types "
            f"than the flow now has ({other[0]}): restore the types of its keys and values, or "
            "start with a new checkpoint."
        )
    if _WORKER_GONE.search(text):
        return FlowFailed(
            "A Python worker died while it was working, killed or out of memory: check how much "
            "memory the steps use and the machine has, and start again; a checkpoint resumes where "
            "it stopped."
        )
    cause = _kind_only(error) if redact else told(error)
    return FlowFailed(
        f"The flow failed ({cause}): fix the cause and start again; a checkpoint resumes where it "
        "stopped."
    )


def told(error: BaseException | str) -> str:
    """The cause of an error, in one line without secrets."""
    return masked((_first_cause(str(error)) or _named(error)).rstrip(" ."))


def _kind_only(error: BaseException | str) -> str:
    """The kind of an error, without its message, which may contain part of a record."""
    causes = _CAUSE.findall(str(error))
    own = "" if isinstance(error, str) else type(error).__name__
    kind, message = causes[-1] if causes else (own, str(error))
    condition = _CONDITION.match(message.strip())
    return " ".join(part for part in (kind, condition and condition[0]) if part) or "redacted"


def may_quote(error: BaseException) -> bool:
    """Whether Spark's own text, shown next to our sentence, contains a secret."""
    return masked(str(error)) != str(error)


def _step_failed(text: str) -> StepFailed:
    """The failure of a step; the worker has left out the record and the message if redacted."""
    facts = json.loads(text)
    problem = masked(" ".join(facts["error"].split()))
    record = facts.get("record")
    who = f"Step '{facts['step']}'"
    remedy = "fix the step, or give it on_error='drop' or 'dead-letter'"
    if facts["step"] == LAST:
        who, remedy = "The function of the sink", "fix it, or what it writes to"
    return StepFailed(
        f"{who} failed in batch {facts['batch']} on "
        f"{'a record' if record is None else f'the record {record}'} ({problem}): {remedy}."
    )


def _first_cause(text: str) -> str | None:
    """The deepest cause that Spark's text names."""
    causes = _CAUSE.findall(text)
    if not causes:
        return None
    kind, message = causes[-1]
    return f"{kind}: {message.strip()}"


def _named(error: BaseException | str) -> str:
    """The first line of an error, with the class of Python's own, which say little without it."""
    first = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, str | PySparkException):
        return first or "Spark gave no reason"
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
