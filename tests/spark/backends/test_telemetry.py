"""The driver's server and the client that reports to it, without Spark."""

from __future__ import annotations

import json
import math
import socket
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace.profile.histogram import LogHistogram
from tailrace.profile.live import ChainReport, SinkReport
from tailrace.profile.stall import Stall
from tailrace.spark.backends.telemetry import TelemetryServer
from tailrace.spark.worker.meter import LONGEST_KEY, Meter
from tailrace.spark.worker.telemetry import EVERY_US, LONGEST, Handed, TelemetryClient
from tests.spark.support import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


UNHEARD = 13
"""The batch whose messages make the one who hears them raise."""


class Local:
    """The part of a SparkContext that the server uses."""

    master = "local[2]"


class Heard:
    """A server, everything it has received, and a speaker to send to it."""

    def __init__(self, directory: Path) -> None:
        self.said: list[Any] = []
        context: Any = Local()
        self.server = TelemetryServer(context, self._hear, directory)
        self._mouth = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def _hear(self, said: SinkReport | ChainReport | Stall) -> None:
        if isinstance(said, SinkReport) and said.batch == UNHEARD:
            raise ZeroDivisionError("nothing to divide by")
        self.said.append(said)

    def say(self, what: bytes | object) -> None:
        said = what if isinstance(what, bytes) else json.dumps(what).encode()
        self._mouth.sendto(said, (self.server.client.host, self.server.client.port))

    def sight(self, number: int, speaker: str = "jvm-1-1", **more: Any) -> None:
        """Say what the end of a flow says: two records, of 1 and of 3 ms."""
        bins = {str(b): 1 for b in LogHistogram.of([1.0, 3.0]).bins}
        whole = {
            "token": self.server.client.token, "speaker": speaker, "number": number, "sink": "sink",
            "batch": 4, "partition": 1, "first_us": 10, "last_us": 20, "count": 2,
            "mean_ms": 2.0, "m2": 2.0, "bins": bins,
        }  # fmt: skip
        self.say(whole | more)

    def hears(self, count: int) -> None:
        until(lambda: len(self.said) >= count, f"{count} messages")

    def close(self) -> None:
        self.server.close()
        self._mouth.close()


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    listening = Heard(tmp_path)
    yield listening
    listening.close()


def servers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tailrace-telemetry"]


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
    b'{"token": "of another driver", "sink": "sink"}',
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
    assert heard.server.lost == 0


def test_the_token_of_another_run_is_not_ours(heard: Heard, tmp_path: Path) -> None:
    other = Heard(tmp_path)
    try:
        heard.sight(0, token=other.server.client.token)
        heard.sight(0)
        heard.hears(1)
    finally:
        other.close()
    assert len(heard.said) == 1
    assert other.said == []


def test_a_sink_report_arrives_as_it_was_said(heard: Heard) -> None:
    heard.sight(0)
    heard.hears(1)
    (said,) = heard.said
    assert isinstance(said, SinkReport)
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
    assert heard.server.lost == 2 + 0 + 2


def test_one_who_goes_on_speaking_is_not_forgotten_among_many(heard: Heard) -> None:
    for number in range(15):
        heard.sight(number, "steady")
        for other in range(100):
            heard.sight(0, f"short-{number}-{other}")
        heard.hears(101 * (number + 1))
    assert heard.server.lost == 0


def test_closing_hears_what_was_said_before_and_leaves_no_thread_and_no_socket(
    tmp_path: Path,
) -> None:
    before = len(servers())
    heard = Heard(tmp_path)
    address = (heard.server.client.host, heard.server.client.port)
    assert address[0] == "127.0.0.1"
    assert len(servers()) == before + 1
    for number in range(50):
        heard.sight(number)
    heard.close()
    assert len(heard.said) == 50
    assert len(servers()) == before
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again:
        again.bind(address)  # the port is free


SIGHT_BAD: list[dict[str, Any]] = [
    {"number": None},
    {"number": -1},
    {"number": 1 << 60},
    {"number": "7"},
    {"speaker": 3},
    {"sink": None},
    {"batch": -1},
    {"batch": 1.5},
    {"partition": "0"},
    {"first_us": None},
    {"last_us": 1 << 62},
    {"count": True},
    {"count": -2},
    {"mean_ms": math.nan},
    {"mean_ms": math.inf},
    {"mean_ms": -1.0},
    {"mean_ms": "2"},
    {"m2": 1e300},
    {"bins": None},
    {"bins": [1, 2]},
    {"bins": {"x": 1}},
    {"bins": {"-3": 1}},
    {"bins": {"100000000": 1}},
    {"bins": {"3": -1}},
    {"bins": {"3": 1 << 70}},
    {"unsent": -1},
    {"unsent": []},
]


@pytest.mark.parametrize("wrong", SIGHT_BAD, ids=str)
def test_a_malformed_message_is_counted_and_the_next_is_heard(
    heard: Heard, wrong: dict[str, Any]
) -> None:
    heard.sight(**({"number": 0} | wrong))
    heard.sight(0, "another")
    heard.hears(1)
    assert [said.batch for said in heard.said] == [4]
    assert heard.server.bad == 1
    assert heard.server.notes() == ("1 messages from tasks were malformed and left out.",)


STEP = {
    "in": 1, "out": 1, "errors": 0, "busy_ns": 5, "cpu_ns": 5, "calls": [1, 0, 0, 0],
    "sampled": [0, 0.0, 0.0], "age_in_us": 3, "age_out_us": 3, "residence": {}, "keys": {},
    "key_type": "",
}  # fmt: skip
STEP_BAD = [
    *({key: None} for key in STEP),
    *({key: {"a": "b"}} for key in STEP),
    {"in": -1},
    {"calls": [1, 2]},
    {"calls": [1, 0, 0, 1 << 200]},
    {"sampled": [1, math.nan, 0.0]},
    {"keys": {"k": 0.5}},
]


@pytest.mark.parametrize("wrong", STEP_BAD, ids=str)
def test_a_step_of_which_anything_is_wrong_makes_a_message_bad(
    heard: Heard, wrong: dict[str, Any]
) -> None:
    token = heard.server.client.token
    whole = {
        "token": token, "speaker": "py", "chain": "a", "batch": 1, "partition": 0,
        "first_us": 1, "last_us": 2, "handovers": 1, "records": 1, "read_us": 1, "entered_us": 1,
        "cpu_ns": 1,
    }  # fmt: skip
    heard.say(whole | {"number": 0, "steps": {"a": STEP | wrong}})
    heard.say(whole | {"number": 1, "steps": {"a": STEP}})
    heard.hears(1)
    assert len(heard.said) == 1
    assert (heard.server.bad, heard.server.lost) == (1, 0)


def test_one_who_raises_on_a_message_hears_the_next_and_the_report_says_so(heard: Heard) -> None:
    heard.sight(0, batch=UNHEARD)
    heard.sight(1, batch=UNHEARD)
    heard.sight(2)
    heard.hears(1)
    (note,) = heard.server.notes()
    assert note.startswith(
        "2 messages from tasks could not be processed (ZeroDivisionError: nothing"
    )


class Broken:
    """A socket that fails for good."""

    def recv(self, _size: int) -> bytes:
        raise OSError(9, "Bad file descriptor")

    def close(self) -> None:
        pass


def test_a_socket_that_fails_is_opened_anew_at_the_same_address(heard: Heard) -> None:
    before: Any = heard.server._socket
    heard.server._socket = Broken()  # type: ignore[assignment]
    heard.sight(0)  # what wakes the listener, and is still heard by the socket before
    heard.hears(1)
    before.close()
    number = iter(range(1, 1_000_000))

    def heard_again() -> bool:
        heard.sight(next(number))
        return len(heard.said) >= 3

    until(heard_again, "messages to the same port are heard again")
    assert heard.server._socket.getsockname() == before_address(heard)
    (note,) = [note for note in heard.server.notes() if "could not listen" in note]
    assert note.endswith("its socket failed and had to be reopened.")


def before_address(heard: Heard) -> tuple[str, int]:
    return heard.server.client.host, heard.server.client.port


class Far:
    """A context of Spark's on a cluster, with the settings that a driver behind NAT has."""

    master = "spark://master:7077"

    def __init__(self, **settings: str) -> None:
        self._settings = {f"spark.driver.{key}": value for key, value in settings.items()}

    def getConf(self) -> Far:  # noqa: N802 - PySpark's name
        return self

    def get(self, key: str, default: str | None = None) -> str | None:
        return self._settings.get(key, default)


@pytest.mark.parametrize("bind", [{"bindAddress": "127.0.0.1"}, {}], ids=["told", "not told"])
def test_behind_nat_the_server_listens_where_it_can_and_gives_tasks_the_address_of_the_driver(
    tmp_path: Path, bind: dict[str, str]
) -> None:
    """192.0.2.1 is an address that no machine has."""
    context: Any = Far(host="192.0.2.1", **bind)
    said: list[Any] = []
    server = TelemetryServer(context, said.append, tmp_path)
    try:
        assert server.client.host == "192.0.2.1"
        here = TelemetryClient("127.0.0.1", server.client.port, server.client.token)
        here.speaker("a", ("a",)).speak(Handed(), [Meter()])
        until(lambda: said, "what comes through the NAT is heard")
    finally:
        server.close()


def test_a_stall_is_heard_and_a_task_that_only_lives_is_noted(heard: Heard) -> None:
    voice = heard.server.client.voice("watch")
    assert heard.server.heard_s is None
    voice.say({"alive": True})
    until(lambda: heard.server.heard_s is not None, "the task is heard of")
    assert heard.said == []
    voice.say({"stalled": "a", "seconds": 12.5, "stack": ["f.py:3 in f"], "over": False})
    heard.hears(1)
    assert heard.said == [Stall("step", 0, 12.5, "a", 0, stack=("f.py:3 in f",))]
    assert heard.server.lost == 0


# --- the client ------------------------------------------------------------------------------


def test_what_a_chain_says_is_what_it_measured(heard: Heard) -> None:
    speaker = heard.server.client.speaker("a+b", ("a", "b"))
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
    assert isinstance(said, ChainReport)
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
    one, two = (heard.server.client.speaker("a", ("a",)) for _ in range(2))
    for _ in range(3):
        one.speak(Handed(), [Meter()])
        two.speak(Handed(), [Meter()])
    heard.hears(6)
    assert heard.server.lost == 0


def test_a_speaker_is_due_again_only_after_a_while(heard: Heard) -> None:
    speaker = heard.server.client.speaker("a", ("a",))
    speaker.speak(Handed(), [Meter()])
    heard.hears(1)
    spoke_us = heard.said[0].last_us
    assert not speaker.is_due(spoke_us + EVERY_US - 1)
    assert speaker.is_due(spoke_us + EVERY_US)


def test_a_task_whose_driver_is_gone_continues(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    speaker = heard.server.client.speaker("a", ("a",))
    heard.close()
    for _ in range(3):
        speaker.speak(Handed(), [Meter()])


def keyed(meter: Meter, keys: int, length: int) -> Meter:
    meter.count_keys([pa.array([f"{i}" + "é" * length for i in range(keys)])])
    meter.passed(keys, keys, began_ns=0, ended_ns=1_000_000)
    return meter


class Sent:
    """A socket that keeps what is sent, in the place of a speaker's own."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def sendto(self, said: bytes, _to: object) -> None:
        self.sizes.append(len(said))

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("steps", "keys", "length"), [(1, 60, 70_000), (40, 60, 300), (40, 3, 3)])
def test_every_message_fits_however_long_the_keys_and_however_many_the_steps(
    heard: Heard, steps: int, keys: int, length: int
) -> None:
    names = tuple(f"step-{i}" for i in range(steps))
    speaker = heard.server.client.speaker("+".join(names), names)
    handed = Handed()
    handed.add(keys, read_us=5_000, arrived_us=1_000, now_us=3_000)
    meters = [keyed(Meter(), keys, length) for _ in names]
    sent: Any = Sent()
    speaker._voice._socket = sent
    speaker.speak(handed, meters)
    assert max(sent.sizes) <= LONGEST
    speaker._voice._socket = None
    speaker.speak(handed, meters)
    heard.hears(len(sent.sizes))
    assert sum(said.records for said in heard.said) == keys
    assert sum(said.handovers for said in heard.said) == 1
    found = {name: step for said in heard.said for name, step in said.steps.items()}
    assert set(found) == set(names)
    assert all(step.records_in == keys for step in found.values())
    assert all(len(key) <= LONGEST_KEY for step in found.values() for key in step.keys)
    assert all(step.keys for step in found.values())


class Full:
    """A socket that accepts no message."""

    def sendto(self, _said: bytes, _to: object) -> None:
        raise OSError(90, "Message too long")

    def close(self) -> None:
        pass


def test_what_could_not_be_sent_is_counted_and_reported_with_the_next(heard: Heard) -> None:
    speaker = heard.server.client.speaker("a", ("a",))
    speaker.speak(Handed(), [Meter()])
    heard.hears(1)
    working = speaker._voice._socket
    speaker._voice._socket = Full()  # type: ignore[assignment]
    for _ in range(2):
        speaker.speak(Handed(), [Meter()])
    speaker._voice._socket = working
    speaker.speak(Handed(), [Meter()])
    heard.hears(2)
    assert (heard.server.lost, heard.server.unsent) == (2, 2)
    assert heard.server.notes() == (
        "2 measurements were lost on their way to the driver, 2 of them before they were sent.",
    )


def test_a_driver_with_an_unknown_name_hurts_no_task() -> None:
    speaker = TelemetryClient("no.such.host.invalid", 9, "token").speaker("a", ("a",))
    speaker.speak(Handed(), [Meter()])
    assert speaker._voice._unsent == 1
