"""Where a keyed step keeps its state."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_NAME = 200
"""The most characters of a step's directory name: file systems allow 255 bytes, and some add to
it."""


def state_place(directory: Path, step: str) -> Path:
    """Where a keyed step keeps its state, even if its name is not a valid file name.

    A name of dots alone would lead out of the directory, and file systems do not allow long names:
    so dots are escaped like slashes, and a long name is cut and gets the hash of the whole name.
    """
    written = quote(step, safe=" ")
    if not written.strip("."):
        written = written.replace(".", "%2E")
    if len(written) > LONGEST_NAME:
        digest = sha256(step.encode("utf-8", "surrogatepass")).hexdigest()
        written = f"{written[: LONGEST_NAME - len(digest) - 1]}~{digest}"
    return directory / written
