"""From what Spark throws to one sentence that says what failed and what to do."""

from __future__ import annotations

import json
import re

from tailrace.errors import FlowFailed, StepFailed, TailraceError
from tailrace.spark.chain import FAILURE

_FACTS = re.compile(re.escape(FAILURE) + r"(\{.*\})")
_CAUSE = re.compile(r"^(?:Caused by: )?[\w.$]*?(\w+(?:Exception|Error)): (.+)$", re.MULTILINE)


def explained(error: BaseException | str) -> TailraceError:
    """The failure of a query in Tailrace's own terms."""
    if isinstance(error, TailraceError):
        return error
    text = str(error)
    facts = _FACTS.search(text)
    if facts:
        return _step_failed(facts[1])
    return FlowFailed(f"The flow failed: {_first_cause(text)}")


def _step_failed(text: str) -> StepFailed:
    facts = json.loads(text)
    return StepFailed(
        f"Step '{facts['step']}' failed in batch {facts['batch']} on the record "
        f"{facts['record']} ({facts['error']}): mend the step, or give it on_error='drop' or "
        "'dead-letter'."
    )


def _first_cause(text: str) -> str:
    causes = _CAUSE.findall(text)
    if causes:
        kind, message = causes[-1]
        return f"{kind}: {message.strip()}"
    return text.strip().splitlines()[0] if text.strip() else "Spark gave no reason"
