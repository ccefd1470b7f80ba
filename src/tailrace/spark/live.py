"""The driver's ear: hears what tasks say while a real-time batch runs.

Chains (``beacon.py``) and the end of the flow (``jvm/src/tailrace/Passage.java``) speak in
datagrams. What does not bear the run's own token is ignored, and what is missing is counted.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from tailrace.profile.batch import StepMeasure, service_ms
from tailrace.profile.calls import Calls
from tailrace.profile.histogram import GAMMA, SMALLEST_MS, LogHistogram
from tailrace.profile.live import Sighting, Stretch
from tailrace.profile.moments import Moments
from tailrace.spark.beacon import Beacon
from tailrace.spark.chain import TAG
from tailrace.spark.probe import not_known, passing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark import SparkContext
    from pyspark.sql import DataFrame

LOOPBACK = "127.0.0.1"
_LONGEST = 65_536
_BUFFER = 4 << 20
_AGAIN_S = 0.1


class Ear:
    """Listens until it is closed, and hands on what it hears."""

    def __init__(
        self,
        context: SparkContext,
        heard: Callable[[Sighting | Stretch], None],
        letters: Path,
    ) -> None:
        """Listen on loopback where tasks run in this machine, else on the driver's address."""
        local = (context.master or "").startswith("local")
        host = LOOPBACK if local else context.getConf().get("spark.driver.host", LOOPBACK)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self._socket.bind((host, 0))
        self._heard = heard
        self._numbers: dict[str, int] = {}
        self._closing = False
        self.lost = 0
        port = self._socket.getsockname()[1]
        self.beacon = Beacon(host or LOOPBACK, port, secrets.token_hex(8), str(letters))
        self._thread = threading.Thread(target=self._listen, name="tailrace-ear", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; what was said before is heard."""
        self._closing = True
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            while self._thread.is_alive():  # a datagram to a full buffer is lost like any other
                own.sendto(b"", self._socket.getsockname())
                self._thread.join(_AGAIN_S)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            said = self._socket.recv(_LONGEST)
            if not said and self._closing:
                return
            message = _read(said, self.beacon.token)
            if message is not None:
                self._count(message)
                self._heard(_sighting(message) if "sink" in message else _stretch(message))

    def _count(self, message: dict[str, Any]) -> None:
        """Messages of one speaker are numbered; a number that was skipped was not heard."""
        speaker, number = message["speaker"], message["number"]
        self.lost += max(0, number - self._numbers.pop(speaker, -1) - 1)
        self._numbers[speaker] = number  # last in the dict, so that those who are silent go first
        if len(self._numbers) > 1_000:
            for oldest in list(self._numbers)[:500]:
                del self._numbers[oldest]


def seen(frame: DataFrame, beacon: Beacon, sink: str) -> DataFrame:
    """The same records, seen as they pass the end of a flow; the tag comes off."""
    session: Any = frame.sparkSession
    watch = session._jvm.tailrace.Passage.filter(
        beacon.host, beacon.port, beacon.token, sink, float(SMALLEST_MS), float(GAMMA)
    )
    tag = sf.col(TAG) if TAG in frame.columns else not_known()
    return passing(frame, watch, tag).drop(TAG)


def _read(said: bytes, token: str) -> dict[str, Any] | None:
    """A message of our own tasks; whatever else comes to the port is none."""
    try:
        message = json.loads(said)
    except (ValueError, RecursionError):
        return None
    own = isinstance(message, dict) and message.get("token") == token
    return message if own else None


def _sighting(message: dict[str, Any]) -> Sighting:
    bins = {int(bin_): count for bin_, count in message["bins"].items()}
    return Sighting(
        message["sink"],
        message["batch"] or 0,
        message["partition"],
        message["first_us"],
        message["last_us"],
        Moments(message["count"], message["mean_ms"], message["m2"]),
        LogHistogram.from_bins(bins),
    )


def _stretch(message: dict[str, Any]) -> Stretch:
    records, partition = message["records"], message["partition"]
    return Stretch(
        message["chain"],
        message["batch"],
        partition,
        message["first_us"],
        message["last_us"],
        message["handovers"],
        records,
        message["read_us"] / 1e3 / max(1, records),
        message["entered_us"] / 1e3 / max(1, records),
        message["cpu_ns"] / 1e6,
        {name: _step(said, partition) for name, said in message["steps"].items()},
    )


def _step(said: dict[str, Any], partition: int) -> StepMeasure:
    records, out, busy_ms = said["in"], said["out"], said["busy_ns"] / 1e6
    calls, grown, grown_records, grown_ns = said["calls"]
    return StepMeasure(
        records,
        out,
        said["errors"],
        service_ms(records, busy_ms, *said["sampled"]),
        LogHistogram.from_bins({int(bin_): count for bin_, count in said["residence"].items()}),
        {partition: busy_ms},
        said["age_in_us"] / 1e3 / max(1, records),
        said["age_out_us"] / 1e3 / max(1, out),
        said["keys"],
        said["key_type"],
        said["cpu_ns"] / 1e6,
        Calls(calls, records, busy_ms, grown, grown_records, grown_ns / 1e6),
    )
