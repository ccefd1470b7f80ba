"""Starts Spark's JVM so that its output is passed on if it starts, and summed up if not.

Java and Spark explain a setting that they cannot start with by pages of stack traces, some of them
on standard output. Here they write into pipes: their output is held back until there is a session,
and from then on goes where it would have gone.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import threading
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from tailrace.errors import EnvironmentUnfit
from tailrace.masking import is_secret, masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LOG = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""How long to wait for the last output of a process that has ended."""

_CHUNK = 1 << 16
_NOISE = re.compile(
    r"\s|\.\.\.|WARNING: |Picked up |:: |Error: (Could not create|A fatal exception)"
    r"|Error occurred during initialization of VM"
)
"""Prefixes of lines that never say why Java ended."""

_CAUSE = re.compile(r'(?:Exception in thread "[^"]*" )?(?:[\w$]+\.)*(\w+(?:Exception|Error): .+)')


class _Relay:
    """Reads what a process writes: held back at first, passed on after ``let_go``."""

    def __init__(self, to: int) -> None:
        """``to`` is the file descriptor that the process would have written to."""
        self._to = _twin(to)
        self._reader, self.writer = os.pipe()
        self._kept: list[bytes] | None = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="tailrace-relay", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """Leave the pipe to the process, so that the pipe closes when the process ends."""
        os.close(self.writer)

    def let_go(self, *, kept: bool) -> None:
        """Pass on all further output, after the output held so far, which may be dropped."""
        with self._lock:
            said, self._kept = self._kept or [], None
            self._pass_on(b"".join(said) if kept else b"")

    def last_words(self) -> str:
        """The output of a process that has ended."""
        self._thread.join(PATIENCE_S)
        return b"".join(self._kept or []).decode("utf-8", "replace")

    def _read(self) -> None:
        while chunk := os.read(self._reader, _CHUNK):
            with self._lock:
                if self._kept is None:
                    self._pass_on(chunk)
                else:
                    self._kept.append(chunk)
        os.close(self._reader)
        os.close(self._to)

    def _pass_on(self, said: bytes) -> None:
        try:
            while said:
                said = said[os.write(self._to, said) :]
        except OSError as error:  # a closed terminal must not stop Spark
            _LOG.debug("What Java said could not be passed on: %s", error)


def _twin(descriptor: int) -> int:
    """Another descriptor for the same file, or for the null device if that one is closed."""
    try:
        return os.dup(descriptor)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


@contextmanager
def launched(settings: Mapping[str, str]) -> Iterator[None]:
    """Start Spark's JVM for the session that the block creates, unless it already runs.

    Settings that are secrets are left out: PySpark would write them on Java's command line, which
    every user of the machine can read. They reach Spark with the session, by PySpark's connection.

    Raises:
        EnvironmentUnfit: If it ends before Spark answers, with the line that says why.
    """
    if SparkContext._gateway is not None:
        yield
        return
    shown = [(key, value) for key, value in settings.items() if not is_secret(key)]
    relays = _Relay(1), _Relay(2)
    try:
        _launch(SparkConf().setAll(shown), *relays)
    except PySparkException as error:
        _close_pipe(error)
        said = "\n".join(relay.last_words() for relay in reversed(relays))
        _LOG.debug("Java said before it ended:\n%s", masked(said))
        raise EnvironmentUnfit(
            f"Java ended before Spark had started ({masked(why_ended(said))}): fix that, or the "
            "settings given to Spark."
        ) from error
    try:
        yield
    except BaseException:
        for relay in relays:
            relay.let_go(kept=False)  # the error says it
        raise
    for relay in relays:
        relay.let_go(kept=True)


def _launch(conf: SparkConf, out: _Relay, err: _Relay) -> None:
    """Have PySpark start its JVM, and use it for all later contexts."""
    try:
        pipes = {"stdout": out.writer, "stderr": err.writer}
        gateway = launch_gateway(conf, pipes)  # type: ignore[no-untyped-call]
    finally:
        out.started()
        err.started()
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _close_pipe(error: PySparkException) -> None:
    """Close the pipe to a JVM that did not start: PySpark forgets it in a local variable."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        process = frame.f_locals.get("proc")
        if isinstance(process, subprocess.Popen) and process.stdin is not None:
            process.stdin.close()
            process.wait()


def why_ended(said: str) -> str:
    """The line of Java's output that explains its end: the deepest cause, or else the first."""
    lines = [line for line in said.splitlines() if line and not _NOISE.match(line)]
    causes = [found[1] for line in lines if (found := _CAUSE.search(line))]
    return (causes or lines or ["it gave no reason"])[-1 if causes else 0].strip().rstrip(".")
