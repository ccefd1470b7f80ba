"""Where Tailrace keeps what it need not make again, and whether that can be trusted.

What is there is run: compiled kernels are unpickled, a class archive is mapped into executors, a
secret lets into a cluster. So the directory must be the user's own, and no other user may be able
to put something else in its place.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def directory() -> Path:
    """Tailrace's part of the user's cache directory.

    Raises:
        RuntimeError: If there is no home to have one in.
    """
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(chosen) if Path(chosen).is_absolute() else Path.home() / ".cache"
    return base / "tailrace"


def made(place: Path) -> Path:
    """The same directory, made for the user alone where it was missing."""
    if not place.exists():
        made(place.parent)
        place.mkdir(mode=0o700, exist_ok=True)
    return place


def distrusted(place: Path) -> str | None:
    """Why something in this directory, or this file, may be the work of others; None if not.

    It must be the user's own and closed to writing by others. Above it everything must belong to
    the user, or to who owns the root of all, and let others write only where they cannot rename
    what is not theirs.
    """
    place = place.resolve()
    trusted = {os.getuid(), 0, Path(place.anchor).stat().st_uid}
    found = place.stat()
    if found.st_uid != os.getuid():
        return f"{place} belongs to another user"
    if found.st_mode & _OTHERS_WRITE:
        return f"{place} can be written by others"
    for above in place.parents:
        found = above.stat()
        if found.st_uid not in trusted:
            return f"{above} belongs to another user"
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return f"{above} can be written by others"
    return None
