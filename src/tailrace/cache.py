"""Tailrace's cache directory, and whether it can be trusted.

Its contents are executed or relied on: compiled kernels are unpickled, a class archive is mapped
into executors, a secret gives access to a cluster. So the directory must belong to the user, and no
other user may be able to replace anything in it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def directory() -> Path:
    """Tailrace's part of the user's cache directory.

    Raises:
        RuntimeError: If there is no home directory.
    """
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(chosen) if Path(chosen).is_absolute() else Path.home() / ".cache"
    return base / "tailrace"


def made(place: Path) -> Path:
    """The same directory, created with access for the user only if it was missing."""
    if not place.exists():
        made(place.parent)
        place.mkdir(mode=0o700, exist_ok=True)
    return place


def distrusted(place: Path) -> str | None:
    """Why other users could have changed this file or directory; None if they could not.

    It must belong to the user and not be writable by others. Every directory above it must belong
    to the user, or to the owner of the root directory, and may be writable by others only with the
    sticky bit, so that they cannot rename files of other users.
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
