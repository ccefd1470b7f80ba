"""Input from outside: how files, JSON and texts are read, with a limit on everything.

Every reader of a file that Tailrace did not write itself starts here: profiles, ledgers, progress
logs and CSV files. Anything beyond a limit is refused with one sentence. Texts such as names and
keys may contain anything; :func:`printable` makes them safe for a terminal.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

MIB: Final = 2**20
MOST_BYTES: Final = 64 * MIB
"""The largest file that is read, unless a reader sets its own limit."""

DEEPEST: Final = 20
"""How deeply lists and objects of JSON may be nested."""

LARGEST: Final = 2**53
"""The largest number in a file: up to this, doubles represent every integer exactly."""

LONGEST: Final = 100_000
"""The most characters of a text in a file, such as a key."""

MOST_TASKS: Final = 10_000
"""The most cores, partitions or executors of a plan."""

MOST_RATE_PER_S: Final = 1e12
MOST_MS: Final = 1e12
"""The highest rate, and the longest time: some thirty years."""

_SHOWN_LENGTH: Final = 40
_SENTENCE: Final = 900
_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor, screen
    r"|(?:\x1b[]P^_X]|[\x9d\x90\x9e\x9f\x98])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links
    r"|\x1b[ -/]*[0-~]?"
)
_HIDDEN: Final = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Categories of characters that control a terminal instead of being shown, or cannot be encoded."""


def is_there(path: Path) -> bool:
    """Whether there is something at a path, even if it may turn out to be unreadable."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def read_text(path: Path, what: str, remedy: str, most_bytes: int = MOST_BYTES) -> str:
    """The text of a file, without a byte order mark.

    Args:
        path: The file.
        what: What it is, such as "profile".
        remedy: What to do if there is none, such as "record one".
        most_bytes: The largest size that is accepted.

    Raises:
        InputError: If it cannot be read, is too large or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise InputError(f"There is no {what} {path}: {remedy}.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory: name the {what} in it.") from None
    except (OSError, ValueError) as error:  # such as a null character in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"The {what} {path} cannot be read ({reason}): check that it is a file you may read."
        ) from None
    if len(data) > most_bytes:
        raise InputError(
            f"The {what} {path} has more than {most_bytes // MIB} MiB: give a smaller one."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(
            f"The {what} {path} is not UTF-8 text in line {line}: save it as UTF-8."
        ) from None


def parse_json(text: str, where: str) -> object:
    """The data of a JSON text without duplicate names; ``where`` names the text in errors.

    Raises:
        InputError: If it is not JSON, or breaks a limit.
    """

    def single(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice = next(name for name, times in counts.items() if times > 1)
            raise InputError(f"{where} has {shown(twice)} twice in one object: keep one of them.")
        return found

    try:
        data = json.loads(text, object_pairs_hook=single)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        if error.pos >= len(text.rstrip()):
            raise InputError(
                f"{where} ends in {at}, before its JSON does: copy it again, or close what is open."
            ) from None
        raise InputError(
            f"{where} is not JSON in {at} ({error.msg.lower()}): correct it there."
        ) from None
    except (RecursionError, ValueError):  # nested too deeply, or a number with thousands of digits
        raise InputError(
            f"{where} is nested too deeply or has a number with too many digits: record it again."
        ) from None
    check_data(data, where)
    return data


def check_data(data: object, where: str) -> None:
    """Refuse data that is nested too deeply, or has numbers or texts that are out of range.

    JSON has only finite numbers, but Python also reads others.
    """
    waiting = [("", 0, data)]
    while waiting:
        place, depth, found = waiting.pop()
        if depth > DEEPEST:
            raise InputError(
                f"{where} is nested too deeply at {place[:_SHOWN_LENGTH]}: record it again."
            )
        if isinstance(found, int | float) and not abs(found) <= LARGEST:
            finite = isinstance(found, int) or math.isfinite(found)
            wanted = f"a number up to {LARGEST:,}" if finite else "a finite number"
            raise InputError(f"{where} has {shown(found)} at {place or 'its top'}: give {wanted}.")
        if isinstance(found, str) and len(found) > LONGEST:
            raise InputError(
                f"{where} has a text of {len(found):,} characters at {place or 'its top'}: give "
                f"one of up to {LONGEST:,}."
            )
        pairs = enumerate(found) if isinstance(found, list) else ()
        for part, inner in found.items() if isinstance(found, dict) else pairs:
            waiting.append((joined(place, part), depth + 1, inner))


def joined(place: str, part: str | int) -> str:
    """The place of a part of JSON data, such as ``steps[0].keys.anna``."""
    if isinstance(part, int):
        return f"{place}[{part}]"
    name = part if part.isprintable() and len(part) <= _SHOWN_LENGTH else shown(part)
    return f"{place}.{name}" if place else name


def shown(value: object) -> str:
    """A value as in a file; if it is long, only its beginning."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # an integer with thousands of digits
        return "a number with too many digits"
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."


def printable(text: str) -> str:
    """The text on one line, as a terminal may show it.

    Removes escape sequences, and characters that hide or reverse their neighbours. A text that is
    too long loses its middle.
    """
    plain = " ".join(_SEQUENCE.sub("", text).split())
    if not plain.isprintable():
        kept = (char for char in plain if unicodedata.category(char) not in _HIDDEN)
        plain = " ".join("".join(kept).split())
    if len(plain) <= _SENTENCE:
        return plain
    half = _SENTENCE // 2
    return f"{plain[:half]} ... {plain[-half:]}"
