"""Where a keyed step keeps its state."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_NAME = 200
"""Characters in the name of a step's directory: file systems take 255 bytes, and some add to it."""


def state_place(directory: Path, step: str) -> Path:
    """Where a keyed step keeps its state; its name may hold what a file's name may not.

    A name of dots alone would lead out of the directory, and a long one is more than file systems
    take: the dots are written as a slash is, and of a long name a part with the hash of it all.
    """
    written = quote(step, safe=" ")
    if not written.strip("."):
        written = written.replace(".", "%2E")
    if len(written) > LONGEST_NAME:
        digest = sha256(step.encode("utf-8", "surrogatepass")).hexdigest()
        written = f"{written[: LONGEST_NAME - len(digest) - 1]}~{digest}"
    return directory / written
