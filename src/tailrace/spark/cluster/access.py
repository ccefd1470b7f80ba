"""The secret that lets into a cluster on this machine, and how sessions get it.

Loopback is open to every user of a machine, and whoever may submit to a cluster runs code as its
owner. So a cluster of ours asks for a secret (``spark.authenticate``). It stands in a file in the
user's cache directory that nobody else can read, named by the port of the master, and is on no
command line. Traffic is authenticated, not encrypted: it does not leave the machine.
"""

from __future__ import annotations

import os
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tailrace import cache
from tailrace.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "_SPARK_AUTH_SECRET"
"""The variable that Spark's own daemons, and executors, read it from."""


def place(port: int) -> Path:
    """Where the secret of the cluster whose master listens on a port stands, if there is one."""
    return cache.directory() / f"cluster-{port}.secret"


def grant(port: int) -> str:
    """Make a secret, and leave it where only this user finds it.

    Raises:
        EnvironmentUnfit: If there is no such place.
    """
    file, secret = place(port), token_hex(32)
    try:
        _require_trust(cache.made(file.parent))
        file.unlink(missing_ok=True)  # left by a cluster that was killed
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(secret)
    except OSError as error:
        raise EnvironmentUnfit(
            f"The secret of the cluster cannot be written ({error.strerror}: {file}): make that "
            "possible, or set XDG_CACHE_HOME to a directory of your own."
        ) from error
    return secret


def revoke(port: int, secret: str) -> None:
    """Remove the secret, unless another cluster has left its own there by now."""
    with suppress(FileNotFoundError):
        if place(port).read_text(encoding="ascii") == secret:
            place(port).unlink()


def settings(master: str) -> dict[str, str]:
    """What lets a session into the cluster of this master; nothing where none of ours is known."""
    port = urlsplit(master).port
    if port is None or not place(port).exists():
        return {}
    _require_trust(place(port).parent)
    _require_trust(place(port))
    secret = place(port).read_text(encoding="ascii")
    return {"spark.authenticate": "true", "spark.authenticate.secret": secret}


def _require_trust(where: Path) -> None:
    why = cache.distrusted(where)
    if why is not None:
        raise EnvironmentUnfit(
            f"The secret of a cluster cannot be kept safe, because {why}: take away that right, or "
            "set XDG_CACHE_HOME to a directory of your own."
        )
