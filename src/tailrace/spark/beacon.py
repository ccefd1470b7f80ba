"""How a chain tells the driver, while a real-time batch runs, what it has measured.

Spark brings what tasks measured when their batch is over, which in real-time mode is a minute
late. So chains speak in datagrams, a few a second: sending one takes some microseconds and never
holds a record up. What is not heard is lost; the numbers that messages bear show how much. A
worker that dies takes at most a fifth of a second of measurements with it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from tailrace.spark import task
from tailrace.spark.letters import put_aside

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.spark.letters import Letter
    from tailrace.spark.meter import Meter

EVERY_US = 200_000
"""How often a chain speaks, at most."""

_speakers = count()


@dataclass(slots=True)
class Handed:
    """What came to a chain: how many records, in how many hand-overs, and how old they were.

    The ages are sums over records in microseconds since their arrival: when they entered the open
    batch, and when Python had them. Where the arrival is not known they count from the open batch.
    ``first_us`` is when the first of them came, 0 before: a task may wait long for it.
    """

    handovers: int = 0
    records: int = 0
    read_us: int = 0
    entered_us: int = 0
    first_us: int = 0

    def add(self, records: int, read_us: int, arrived_us: int, now_us: int) -> None:
        """Count a hand-over, given the sums of its records' moments."""
        if records and not self.first_us:
            self.first_us = now_us
        self.handovers += 1
        self.records += records
        self.read_us += read_us - arrived_us
        self.entered_us += now_us * records - arrived_us


@dataclass(frozen=True, slots=True)
class Beacon:
    """Where to speak to, and where to leave dead letters; travels to workers with the chain."""

    host: str
    port: int
    token: str
    letters: str = ""

    def speaker(self, chain: str, names: tuple[str, ...]) -> Speaker:
        """Begin to speak, for one task of a chain with these steps."""
        return Speaker(self, chain, names)


class Speaker:
    """Speaks for one task."""

    def __init__(self, beacon: Beacon, chain: str, names: tuple[str, ...]) -> None:
        """``names`` are the steps of the chain, in order."""
        self._names = names
        self._to = (beacon.host, beacon.port)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._number = 0
        self._spoke_us = time.time_ns() // 1_000
        self._cpu_ns = time.process_time_ns()
        self._batch, self._partition = task.batch(), task.partition()
        self._chain, self._letters = chain, beacon.letters
        self._fixed: dict[str, Any] = {
            "token": beacon.token,
            "speaker": f"py-{os.getpid()}-{next(_speakers)}",
            "chain": chain,
            "batch": self._batch,
            "partition": self._partition,
        }

    def is_due(self, now_us: int) -> bool:
        """Whether it is time to speak again."""
        return now_us - self._spoke_us >= EVERY_US

    def speak(self, handed: Handed, meters: Iterable[Meter]) -> None:
        """Say what was measured since the last time."""
        now_us, cpu_ns = time.time_ns() // 1_000, time.process_time_ns()
        message = self._fixed | {
            "number": self._number,
            "first_us": handed.first_us or self._spoke_us,
            "last_us": now_us,
            "handovers": handed.handovers,
            "records": handed.records,
            "read_us": handed.read_us,
            "entered_us": handed.entered_us,
            "cpu_ns": cpu_ns - self._cpu_ns,
            "steps": {name: _said(meter) for name, meter in zip(self._names, meters, strict=True)},
        }
        self._number += 1
        self._spoke_us, self._cpu_ns = now_us, cpu_ns
        try:
            self._socket.sendto(json.dumps(message).encode(), self._to)
        except OSError:
            return  # the next number will show that one is missing

    def put_aside(self, letters: list[Letter]) -> None:
        """Leave the dead letters of the task, when its batch is over."""
        if letters:
            put_aside(self._letters, self._batch, self._chain, self._partition, letters)

    def __del__(self) -> None:
        """Let go of the socket with the task."""
        self._socket.close()


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
