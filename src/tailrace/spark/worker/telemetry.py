"""How the tasks of a flow report their measurements to the driver while they run.

Spark delivers what tasks measured when their batch is over, which in real-time mode is a minute
late, and for a step that hangs is never. So chains send datagrams, a few per second: sending one
takes some microseconds and never delays a record. Datagrams may be lost; the numbers in messages
show how many were. A worker that dies loses at most a fifth of a second of measurements.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from tailrace.spark.worker import task
from tailrace.spark.worker.dead_letters import put_aside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.spark.worker.dead_letters import Letter
    from tailrace.spark.worker.meter import Meter

EVERY_US = 200_000
"""How often a chain reports, at most."""

STALL_S = 10.0
"""How long one call of a step may take before it counts as hanging."""

LONGEST = 8_192
"""The longest message in bytes, so that a network splits it into few fragments. UDP itself allows
65,507, which is always enough for one step without its keys."""

_ROOM = LONGEST - 1_024
"""How much of a message is left for the steps."""

_speakers = count()


@dataclass(slots=True)
class Handed:
    """What came to a chain: how many records, in how many hand-overs, and how old they were.

    The ages are sums over records in microseconds since their arrival: when they entered the open
    batch, and when Python had them. If the arrival is unknown they count from the open batch.
    ``first_us`` is when the first record came, 0 before that: a task may wait long for it.
    """

    handovers: int = 0
    records: int = 0
    read_us: int = 0
    entered_us: int = 0
    first_us: int = 0

    def add(self, records: int, read_us: int, arrived_us: int, now_us: int) -> None:
        """Count a hand-over, given the sums of its records' times."""
        if records and not self.first_us:
            self.first_us = now_us
        self.handovers += 1
        self.records += records
        self.read_us += read_us - arrived_us
        self.entered_us += now_us * records - arrived_us


@dataclass(frozen=True, slots=True)
class TelemetryClient:
    """Where to send reports, and where to leave dead letters; sent to workers with the chain.

    ``stall_s`` is how long one call of a step may take before it counts as hanging.
    """

    host: str
    port: int
    token: str
    letters: str = ""
    stall_s: float = STALL_S

    def speaker(self, chain: str, names: tuple[str, ...]) -> Speaker:
        """Start reporting, for one task of a chain with these steps."""
        return Speaker(self, chain, names)

    def voice(self, kind: str) -> Voice:
        """Start reporting about the current task, as a speaker of its own."""
        return Voice(self, kind, {"batch": task.batch(), "partition": task.partition()})


class Voice:
    """Sends the numbered messages of one speaker, and counts those that could not be sent.

    No error in sending may hurt the task: the next message that gets through says how many were not
    sent, and lost messages leave a gap in the numbers.
    """

    def __init__(self, client: TelemetryClient, kind: str, fixed: dict[str, Any]) -> None:
        """``fixed`` is included in every message."""
        who = f"{kind}-{socket.gethostname()}-{os.getpid()}-{next(_speakers)}"
        self._fixed = {"token": client.token, "speaker": who, **fixed}
        self._client = client
        self._number = self._unsent = 0
        self._socket: socket.socket | None = None
        self._to: Any = None

    def say(self, message: dict[str, Any]) -> None:
        """Send a message, or count it among those that were not sent."""
        numbers = {"number": self._number, "unsent": self._unsent}
        self._number += 1
        said = json.dumps(self._fixed | numbers | message).encode()
        try:
            self._open().sendto(said, self._to)
        except OSError:
            self._unsent += 1

    def _open(self) -> socket.socket:
        if self._socket is None:
            family, self._to = resolved(self._client.host, self._client.port)
            self._socket = socket.socket(family, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        return self._socket

    def __del__(self) -> None:
        """Close the socket with the task."""
        if self._socket is not None:
            self._socket.close()


def resolved(host: str, port: int) -> tuple[Any, Any]:
    """The family and the address of a host, given by name or by IPv4 or IPv6 address."""
    family, _, _, _, address = socket.getaddrinfo(
        host.removeprefix("[").removesuffix("]"), port, type=socket.SOCK_DGRAM
    )[0]
    return family, address


class Speaker:
    """Reports for one task of a chain."""

    def __init__(self, client: TelemetryClient, chain: str, names: tuple[str, ...]) -> None:
        """``names`` are the steps of the chain, in order."""
        self._names = names
        self._spoke_us = time.time_ns() // 1_000
        self._cpu_ns = time.process_time_ns()
        self._batch, self._partition = task.batch(), task.partition()
        self._chain, self._letters = chain, client.letters
        fixed = {"chain": chain, "batch": self._batch, "partition": self._partition}
        self._voice = Voice(client, "py", fixed)

    def is_due(self, now_us: int) -> bool:
        """Whether it is time for another report."""
        return now_us - self._spoke_us >= EVERY_US

    def speak(self, handed: Handed, meters: Iterable[Meter]) -> None:
        """Report what was measured since the last time, in several messages if it is long.

        Figures of the whole chain are only in the first of them.
        """
        now_us, cpu_ns = time.time_ns() // 1_000, time.process_time_ns()
        span = {"first_us": handed.first_us or self._spoke_us, "last_us": now_us}
        whole = {
            "handovers": handed.handovers,
            "records": handed.records,
            "read_us": handed.read_us,
            "entered_us": handed.entered_us,
            "cpu_ns": cpu_ns - self._cpu_ns,
        }
        for steps in _parts(zip(self._names, meters, strict=True)):
            self._voice.say({**span, **whole, "steps": steps})
            whole = dict.fromkeys(whole, 0)
        self._spoke_us, self._cpu_ns = now_us, cpu_ns

    def put_aside(self, letters: list[Letter]) -> None:
        """Write the dead letters of the task at the end of its batch."""
        if letters:
            put_aside(self._letters, self._batch, self._chain, self._partition, letters)


def _parts(meters: Iterable[tuple[str, Meter]]) -> Iterator[dict[str, Any]]:
    """The reports on steps, in parts that each fit into a message; at least one part."""
    part: dict[str, Any] = {}
    taken = 0
    for name, meter in meters:
        said, size = _fitting(meter)
        size += len(json.dumps(name))
        if part and taken + size > _ROOM:
            yield part
            part, taken = {}, 0
        part[name] = said
        taken += size
    yield part


def _fitting(meter: Meter) -> tuple[dict[str, Any], int]:
    """The report on a step, and its size; if it is too long, with fewer keys."""
    said = _said(meter)
    size = len(json.dumps(said))
    keys = meter.keys
    while keys and size > _ROOM:
        keys = Counter(dict(keys.most_common(len(keys) // 2)))
        said["keys"] = keys
        size = len(json.dumps(said))
    return said, size


def _said(meter: Meter) -> dict[str, Any]:
    return {
        "in": meter.records_in,
        "out": meter.records_out,
        "errors": meter.errors,
        "busy_ns": meter.busy_ns,
        "cpu_ns": meter.cpu_ns,
        "calls": [meter.calls, meter.grown, meter.grown_records, meter.grown_ns],
        "sampled": [meter.sampled, meter.sampled_sum_ms, meter.sampled_square_ms],
        "age_in_us": meter.age_in_us,
        "age_out_us": meter.age_out_us,
        "residence": meter.residence,
        "keys": meter.keys,
        "key_type": meter.key_type,
    }
