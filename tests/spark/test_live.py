"""The driver's ear and the beacon that speaks to it, without Spark."""

from __future__ import annotations

import json
import math
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.profile.histogram import LogHistogram
from tailrace.profile.live import Sighting, Stretch
from tailrace.spark.beacon import EVERY_US, Handed
from tailrace.spark.live import Ear
from tailrace.spark.meter import Meter

from .support import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Local:
    """As much of a context of Spark's as the ear looks at."""

    master = "local[2]"


class Heard:
    """An ear, all that it has heard, and a mouth to speak to it with."""

    def __init__(self, directory: Path) -> None:
        self.said: list[Sighting | Stretch] = []
        context: Any = Local()
        self.ear = Ear(context, self.said.append, directory)
        self._mouth = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def say(self, what: bytes | object) -> None:
        said = what if isinstance(what, bytes) else json.dumps(what).encode()
        self._mouth.sendto(said, (self.ear.beacon.host, self.ear.beacon.port))

    def sight(self, number: int, speaker: str = "jvm-1-1", **more: Any) -> None:
        """Say what the end of a flow says: two records, of 1 and of 3 ms."""
        bins = {str(b): 1 for b in LogHistogram.of([1.0, 3.0]).bins}
        whole = {
            "token": self.ear.beacon.token, "speaker": speaker, "number": number, "sink": "sink",
            "batch": 4, "partition": 1, "first_us": 10, "last_us": 20, "count": 2,
            "mean_ms": 2.0, "m2": 2.0, "bins": bins,
        }  # fmt: skip
        self.say(whole | more)

    def hears(self, count: int) -> None:
        until(lambda: len(self.said) >= count, f"{count} messages")

    def close(self) -> None:
        self.ear.close()
        self._mouth.close()


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    listening = Heard(tmp_path)
    yield listening
    listening.close()


def ears() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tailrace-ear"]


GARBAGE = [
    b"",
    b"\x00\xff\xfe",
    b"not json",
    b"{",
    b"[" * 60_000,
    b'{"token":' * 6_000,
    b"null",
    b"3",
    b"[1, 2]",
    b'"token"',
    b"{}",
    b'{"token": null}',
    b'{"token": "of somebody else", "sink": "sink"}',
    b'{"token": ["a", "list"]}',
    b"1" * 60_000,
    b"x" * 65_000,
]


def test_what_does_not_bear_the_token_is_ignored_and_the_rest_is_still_heard(heard: Heard) -> None:
    for number, garbage in enumerate(GARBAGE):
        heard.say(garbage)
        heard.sight(number)
        heard.hears(number + 1)
    assert len(heard.said) == len(GARBAGE)
    assert heard.ear.lost == 0


def test_the_token_of_another_run_is_not_ours(heard: Heard, tmp_path: Path) -> None:
    other = Heard(tmp_path)
    try:
        heard.sight(0, token=other.ear.beacon.token)
        heard.sight(0)
        heard.hears(1)
    finally:
        other.close()
    assert len(heard.said) == 1
    assert other.said == []


def test_a_sighting_arrives_as_it_was_said(heard: Heard) -> None:
    heard.sight(0)
    heard.hears(1)
    (said,) = heard.said
    assert isinstance(said, Sighting)
    assert (said.sink, said.batch, said.partition) == ("sink", 4, 1)
    assert (said.first_us, said.last_us) == (10, 20)
    assert (said.age_ms.count, said.age_ms.mean, said.age_ms.m2) == (2, 2.0, 2.0)
    assert list(said.ages_ms.values_ms) == pytest.approx([1.0, 3.0], rel=0.004)


def test_a_task_outside_of_any_batch_counts_in_the_first(heard: Heard) -> None:
    heard.sight(0, batch=None)
    heard.hears(1)
    assert heard.said[0].batch == 0


def test_numbers_that_were_skipped_are_lost_and_counted_by_speaker(heard: Heard) -> None:
    for speaker, number in [("a", 0), ("b", 0), ("a", 3), ("b", 1), ("a", 4), ("c", 2)]:
        heard.sight(number, speaker)
    heard.hears(6)
    assert heard.ear.lost == 2 + 0 + 2


def test_one_who_goes_on_speaking_is_not_forgotten_among_many(heard: Heard) -> None:
    for number in range(15):
        heard.sight(number, "steady")
        for other in range(100):
            heard.sight(0, f"short-{number}-{other}")
        heard.hears(101 * (number + 1))
    assert heard.ear.lost == 0


def test_closing_hears_what_was_said_before_and_leaves_no_thread_and_no_socket(
    tmp_path: Path,
) -> None:
    before = len(ears())
    heard = Heard(tmp_path)
    address = (heard.ear.beacon.host, heard.ear.beacon.port)
    assert address[0] == "127.0.0.1"
    assert len(ears()) == before + 1
    for number in range(50):
        heard.sight(number)
    heard.close()
    assert len(heard.said) == 50
    assert len(ears()) == before
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again:
        again.bind(address)  # the port is free


# --- the beacon ------------------------------------------------------------------------------


def test_what_a_chain_says_is_what_it_measured(heard: Heard) -> None:
    speaker = heard.ear.beacon.speaker("a+b", ("a", "b"))
    handed = Handed()
    handed.add(3, read_us=3_000 + 3_000, arrived_us=3_000, now_us=3_000)
    handed.add(1, read_us=9_000, arrived_us=1_000, now_us=9_500)
    first, second = Meter(), Meter()
    first.passed(4, 2, began_ns=1_000_000, ended_ns=9_000_000)
    first.age_in_us, first.age_out_us, first.errors = 8_000, 10_000, 1
    first.sample(2_000_000)
    first.sample(4_000_000)
    first.keys["k"] = 4
    speaker.speak(handed, [first, second])
    heard.hears(1)
    (said,) = heard.said
    assert isinstance(said, Stretch)
    assert (said.chain, said.batch, said.partition) == ("a+b", 0, 0)
    assert (said.handovers, said.records) == (2, 4)
    assert said.read_ms == pytest.approx((3_000 + 8_000) / 4 / 1e3)
    assert said.entered_ms == pytest.approx((3 * 3_000 - 3_000 + 8_500) / 4 / 1e3)
    assert said.first_us <= said.last_us
    assert said.cpu_ms >= 0.0
    a, b = said.steps["a"], said.steps["b"]
    assert (a.records_in, a.records_out, a.errors) == (4, 2, 1)
    assert (a.entered_ms, a.left_ms) == (2.0, 5.0)
    assert a.service_ms.mean == pytest.approx(8.0 / 4)
    assert a.service_ms.variance == pytest.approx(1.0)
    assert a.residence_ms.count == 4
    assert a.busy_ms == {0: 8.0}
    assert a.keys == {"k": 4}
    assert (b.records_in, b.records_out, b.left_ms) == (0, 0, 0.0)
    assert not math.isnan(b.service_ms.mean)


def test_a_speaker_numbers_what_it_says_so_that_nothing_is_missed_unseen(heard: Heard) -> None:
    one, two = (heard.ear.beacon.speaker("a", ("a",)) for _ in range(2))
    for _ in range(3):
        one.speak(Handed(), [Meter()])
        two.speak(Handed(), [Meter()])
    heard.hears(6)
    assert heard.ear.lost == 0


def test_a_speaker_is_due_again_only_after_a_while(heard: Heard) -> None:
    speaker = heard.ear.beacon.speaker("a", ("a",))
    speaker.speak(Handed(), [Meter()])
    heard.hears(1)
    spoke_us = heard.said[0].last_us
    assert not speaker.is_due(spoke_us + EVERY_US - 1)
    assert speaker.is_due(spoke_us + EVERY_US)


def test_a_task_whose_driver_has_gone_goes_on(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    speaker = heard.ear.beacon.speaker("a", ("a",))
    heard.close()
    for _ in range(3):
        speaker.speak(Handed(), [Meter()])
