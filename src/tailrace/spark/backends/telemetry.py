"""The telemetry server, in the driver: receives the reports of tasks while they run.

Chains (``worker/telemetry.py``), the watch over their steps (``worker/watch.py``) and the end of
the flow (``jvm/src/tailrace/probe/SinkProbe.java``) send datagrams. Those without the run's own
token are ignored; those that are lost, malformed or fail to be processed are counted, and the
report says so. Listening ends only with the run: a socket that fails is reopened at the same
address.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from tailrace.profile.histogram import GAMMA, SMALLEST_MS
from tailrace.spark.backends.arrivals import not_known, passing
from tailrace.spark.backends.message import Envelope, envelope, opened, read
from tailrace.spark.worker.chain import TAG
from tailrace.spark.worker.telemetry import STALL_S, TelemetryClient, resolved

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark import SparkContext
    from pyspark.sql import DataFrame

    from tailrace.profile.live import ChainReport, SinkReport
    from tailrace.profile.stall import Stall

_LOG = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
ANYWHERE = "0.0.0.0"  # noqa: S104 - what comes without the token is ignored
DEAF = (
    "The driver could not listen to its tasks for {:.1f} s: its socket failed and had to be "
    "reopened."
)
_LONGEST = 65_536
_BUFFER = 4 << 20
_AGAIN_S = 0.1
_MOST_SPEAKERS = 1_000


class TelemetryServer:
    """Listens until it is closed, and passes on what it receives."""

    def __init__(
        self,
        context: SparkContext,
        heard: Callable[[SinkReport | ChainReport | Stall], None],
        letters: Path,
        stall_s: float = STALL_S,
    ) -> None:
        """Listen on loopback if tasks run on this machine, else where the driver listens.

        That is ``spark.driver.bindAddress``; ``spark.driver.host`` is how others reach it, which
        may be an address that this machine does not have.
        """
        bind, host = _addresses(context)
        self._heard = heard
        self._speakers: dict[str, Envelope] = {}
        self._closing = False
        self._misheard = ""
        self.lost = self.unsent = self.bad = self.failed = 0
        self.heard_s: float | None = None
        self.deaf_s = 0.0
        self._socket = _bound(bind, 0)
        self._address = self._socket.getsockname()
        port = self._address[1]
        self.client = TelemetryClient(host, port, secrets.token_hex(8), str(letters), stall_s)
        self._thread = threading.Thread(target=self._listen, name="tailrace-telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, after everything sent before has been received."""
        self._closing = True
        family, to = resolved(_reached(self._address[0]), self._address[1])
        with socket.socket(family, socket.SOCK_DGRAM) as own:
            while self._thread.is_alive():  # a datagram to a full buffer is lost like any other
                with suppress(OSError):
                    own.sendto(b"", to)
                self._thread.join(_AGAIN_S)
        self._socket.close()

    def notes(self) -> tuple[str, ...]:
        """Notes for the report on what was not received."""
        never = f", {self.unsent} of them before they were sent" if self.unsent else ""
        found = [
            (self.lost, f"{self.lost} measurements were lost on their way to the driver{never}."),
            (self.bad, f"{self.bad} messages from tasks were malformed and left out."),
            (
                self.failed,
                f"{self.failed} messages from tasks could not be processed ({self._misheard}).",
            ),
            (self.deaf_s, DEAF.format(self.deaf_s)),
        ]
        return tuple(note for number, note in found if number)

    def _listen(self) -> None:
        while True:
            try:
                said = self._socket.recv(_LONGEST)
            except OSError as error:
                self._open_anew(error)
                said = b""
            if not said and self._closing:
                return
            message = opened(said, self.client.token)
            if message is not None:
                self.heard_s = time.monotonic()
                self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        """Pass on a message; count it if it is bad or cannot be processed."""
        try:
            self._count(envelope(message))
            said = read(message)
        except (ValueError, OverflowError) as error:
            self.bad += 1
            _LOG.debug("A message of a task was malformed: %s", error)
            return
        if said is None:
            return
        try:
            self._heard(said)
        except Exception as error:  # noqa: BLE001 - the next message may be fine
            self.failed += 1
            if not self._misheard:
                _LOG.warning("A report of a task could not be processed.", exc_info=error)
            self._misheard = f"{type(error).__name__}: {error}"

    def _open_anew(self, error: OSError) -> None:
        """Bind the same port again, which running tasks send to, however long that takes."""
        began_s, before_s = time.monotonic(), self.deaf_s
        _LOG.warning("The socket that listens to tasks failed and is reopened: %s", error)
        self._socket.close()
        while not self._closing:
            self.deaf_s = before_s + time.monotonic() - began_s
            try:
                self._socket = _bound(*self._address[:2])
            except OSError:
                threading.Event().wait(_AGAIN_S)
            else:
                return

    def _count(self, said: Envelope) -> None:
        """Count lost messages: those of one speaker are numbered, so a gap means a loss."""
        before = self._speakers.pop(said.speaker, Envelope(said.speaker, -1, 0))
        self.lost += max(0, said.number - before.number - 1)
        self.unsent += max(0, said.unsent - before.unsent)
        self._speakers[said.speaker] = said  # last, so that silent speakers are dropped first
        if len(self._speakers) > _MOST_SPEAKERS:
            for oldest in list(self._speakers)[: _MOST_SPEAKERS // 2]:
                del self._speakers[oldest]


def _addresses(context: SparkContext) -> tuple[str, str]:
    """The address to listen on, and the address for tasks to send to."""
    if (context.master or "").startswith("local"):
        return LOOPBACK, LOOPBACK
    conf = context.getConf()
    host = conf.get("spark.driver.host", LOOPBACK) or LOOPBACK
    return conf.get("spark.driver.bindAddress", host) or host, host


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens there, or on all addresses if this machine has no such address."""
    try:
        return _bound_at(host, port)
    except OSError as error:
        if port:
            raise
        _LOG.warning("Tasks cannot be listened to at %s (%s): listening anywhere.", host, error)
        return _bound_at(ANYWHERE, port)


def _bound_at(host: str, port: int) -> socket.socket:
    family, address = resolved(host, port)
    made = socket.socket(family, socket.SOCK_DGRAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _reached(host: str) -> str:
    """How this machine reaches an address that it listens on."""
    return {ANYWHERE: LOOPBACK, "::": "::1"}.get(host, host)


def seen(frame: DataFrame, client: TelemetryClient, sink: str) -> DataFrame:
    """The same records without their tag, measured as they pass the end of a flow."""
    session: Any = frame.sparkSession
    watch = session._jvm.tailrace.probe.SinkProbe.filter(
        client.host, client.port, client.token, sink, float(SMALLEST_MS), float(GAMMA)
    )
    tag = sf.col(TAG) if TAG in frame.columns else not_known()
    return passing(frame, watch, tag).drop(TAG)
