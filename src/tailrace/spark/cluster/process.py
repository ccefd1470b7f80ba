"""Processes that never outlive the Python process that started them, and free ports for them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

from tailrace.errors import EnvironmentUnfit
from tailrace.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

HOST = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Below the ports that systems assign to clients: a client that keeps connecting to a server that
is down could otherwise get the same port as its own, and so connect to itself."""

SCATTER = 6_151
"""A prime near the golden section of the range, so that neighbours end up far apart."""

_LEASH = 'cat > /dev/null; kill -9 "$1" 2> /dev/null'
"""Waits until the pipe from Python is closed, also by Python's death, and then kills."""


class ChildProcess:
    """A process in a session of its own, so that Ctrl-C reaches only us and we end it properly."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; its output is appended to ``log``."""
        self._log = log
        with log.open("ab") as said:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                cwd=directory,
                env=None if environment is None else {**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._leash = subprocess.Popen(  # noqa: S603 - our own command
            ["/bin/sh", "-c", _LEASH, "leash", str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def wait(self, seconds: float) -> bool:
        """Wait up to the given time; returns whether the process has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_words(self) -> str:
        """The last error in its log, or else the last line."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        causes = [line for line in lines if re.search(r"(Exception|Error|ERROR)\b.*:", line)]
        return masked((causes or lines or ["it gave no reason"])[-1].strip().rstrip("."))

    def stop(self, patience_s: float) -> None:
        """Ask it to end, and kill it if it does not."""
        self._process.terminate()
        try:
            self.wait(patience_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        self._process.kill()
        self._process.wait()
        if self._leash.returncode is None:
            os.killpg(self._leash.pid, signal.SIGKILL)  # the shell, and the cat in it
            if self._leash.stdin is not None:
                self._leash.stdin.close()
            self._leash.wait()


def free_ports() -> Iterator[int]:
    """Ports that nothing listens on, starting at a point in the range that depends on the process.

    Processes that start together have neighbouring numbers, and must not take neighbouring ports.
    """
    first = os.getpid() * SCATTER % len(PORTS)
    yield from filter(is_free, (*PORTS[first:], *PORTS[:first]))
    raise EnvironmentUnfit(
        f"No port from {PORTS[0]} to {PORTS[-1]} is free: end the processes that hold them."
    )


def is_free(port: int) -> bool:
    """Whether nothing listens on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
