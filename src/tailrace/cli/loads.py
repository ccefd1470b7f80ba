"""Loads on the command line: rates in a file, those of an earlier run, or a few words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.load import RateProfile

FORMS: Final = {
    "constant": ("RATE", "DURATION"),
    "staircase": ("LOW", "HIGH", "STEPS", "STEP"),
    "burst": ("BASE", "PEAK", "AT", "LENGTH", "DURATION"),
    "sine": ("MEAN", "AMPLITUDE", "PERIOD", "DURATION"),
}
"""The parts of each kind of load: the parameters of the profile of that name in ``load``."""

_WORDS: Final = re.compile(rf"\s*({'|'.join(FORMS)})\s*:(.*)", re.DOTALL)
_WHOLE: Final = re.compile(r"[0-9]{1,9}")


def load_of(text: str) -> RateProfile:
    """The load that a text describes.

    A name that ends in ``.json`` is the report of a run; ``constant:400/s,10min`` and the like are
    loads in words; a name that ends in ``.csv`` is a file with the columns time and rate.

    Raises:
        InputError: If it is not a load.
    """
    from tailrace.report.recorded import read_recorded  # noqa: PLC0415 - numpy takes its time
    from tailrace.report.series import read_load  # noqa: PLC0415

    match = _WORDS.fullmatch(text)
    if match is not None:
        return _in_words(match[1], [part.strip() for part in match[2].split(",")])
    if text.endswith(".json"):
        return read_recorded(Path(text))
    if text.endswith(".csv"):
        return read_load(Path(text))
    raise InputError(
        f"'{text}' is not a load: name a CSV file of rates (.csv), the report.json of a run, "
        f"or write {', '.join(map(form, FORMS))}."
    )


def form(kind: str) -> str:
    """How a load of that kind is written."""
    return f"{kind}:{','.join(FORMS[kind])}"


def _in_words(kind: str, parts: list[str]) -> RateProfile:
    from tailrace.load import Burst, Constant, Sine, Staircase  # noqa: PLC0415 - numpy

    makers: dict[str, Callable[..., RateProfile]] = {
        "constant": Constant,
        "staircase": Staircase,
        "burst": Burst,
        "sine": Sine,
    }
    names = FORMS[kind]
    if len(parts) != len(names):
        raise InputError(
            f"A load '{kind}' has {len(names)} parts, and this one has {len(parts)}: write "
            f"{form(kind)}."
        )
    return makers[kind](*map(_part, names, parts))


def _part(name: str, text: str) -> Any:
    """A part of a load: a whole number of steps, or a text that the load parses itself."""
    if name != "STEPS":
        return text
    if not _WHOLE.fullmatch(text):
        raise InputError(f"A staircase cannot have '{text}' steps: write a whole number.")
    return int(text)
