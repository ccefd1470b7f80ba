"""The secret that gives access to a cluster on this machine, and how sessions get it.

Loopback is open to every user of a machine, and a user who may submit to a cluster runs code as its
owner. So our clusters require a secret (``spark.authenticate``). It is in a file in the user's
cache directory that no other user can read, named by the port of the master, and is on no command
line. Traffic is authenticated, not encrypted: it does not leave the machine.
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
"""The environment variable that Spark's own daemons, and executors, read it from."""


def place(port: int) -> Path:
    """The file with the secret of the cluster whose master listens on a port."""
    return cache.directory() / f"cluster-{port}.secret"


def grant(port: int) -> str:
    """Create a secret, and store it where only this user can read it.

    Raises:
        EnvironmentUnfit: If that is not possible.
    """
    file, secret = place(port), token_hex(32)
    try:
        _require_trust(cache.made(file.parent))
        file.unlink(missing_ok=True)  # left by a cluster that was killed
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(secret)
    except OSError as error:
        raise EnvironmentUnfit(
            f"The secret of the cluster cannot be written ({error.strerror}: {file}): check "
            "that directory, or set XDG_CACHE_HOME to a directory of your own."
        ) from error
    return secret


def revoke(port: int, secret: str) -> None:
    """Remove the secret, unless another cluster has stored its own there meanwhile."""
    with suppress(FileNotFoundError):
        if place(port).read_text(encoding="ascii") == secret:
            place(port).unlink()


def settings(master: str) -> dict[str, str]:
    """The settings that give a session access to the cluster; none if the cluster is not ours."""
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
            f"The secret of a cluster cannot be kept safe, because {why}: remove that permission, "
            "or set XDG_CACHE_HOME to a directory of your own."
        )
