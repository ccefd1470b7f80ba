"""Who uses a checkpoint or an output: one run, or one repartitioning, and nothing beside it.

The operating system keeps the lock, on a file in the directory, and takes it back when its holder
ends, however that comes about. So a crash leaves nothing that would have to be removed by hand.
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
    """Have a directory to oneself; refused while another has it, be it in this very process.

    ``what`` is how to speak of the directory, ``name`` the file in it that bears the lock.
    """
    with ExitStack() as held:
        try:
            # Not buffered: what a full disk refuses is refused here, and not once more at the end.
            file = held.enter_context((directory / name).open("ab+", buffering=0))
            file.seek(0)
            holder = file.read().decode("utf-8", "replace")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a forked process has it open as well
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        except BlockingIOError as error:
            raise EnvironmentUnfit(
                f"The {what} {directory} is in use by {holder or 'another process'}: stop what "
                "runs there first."
            ) from error
        except OSError as error:
            raise EnvironmentUnfit(
                f"The {what} {directory} cannot be locked ({error.strerror}): see to the disk "
                "and its rights, or name another directory."
            ) from error
        yield
