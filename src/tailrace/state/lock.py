"""Locks a checkpoint or an output for one run or one repartitioning at a time.

The operating system holds the lock, on a file in the directory, and releases it when the process
ends, for whatever reason. So a crash leaves nothing to be removed by hand.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tailrace.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def sole_user(directory: Path, what: str = "checkpoint", name: str = "lock") -> Iterator[None]:
    """Lock a directory for exclusive use; refused while it is locked, even by this process.

    ``what`` is the word for the directory in messages, ``name`` the file in it that is locked.
    """
    with ExitStack() as held:
        try:
            # Not buffered: a full disk then fails here, and not a second time on close.
            file = held.enter_context((directory / name).open("ab+", buffering=0))
            file.seek(0)
            holder = file.read().decode("utf-8", "replace")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a forked process may have it open too
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        except BlockingIOError as error:
            raise EnvironmentUnfit(
                f"The {what} {directory} is in use by {holder or 'another process'}: stop what "
                "runs there first."
            ) from error
        except OSError as error:
            raise EnvironmentUnfit(
                f"The {what} {directory} cannot be locked ({error.strerror}): check the disk "
                "and its permissions, or name another directory."
            ) from error
        yield
