from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from base64 import urlsafe_b64decode
from itertools import combinations
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench import broker as module
from bench import jars
from bench.broker import Broker
from bench.jars import broker_jars
from tailrace.errors import EnvironmentUnfit, InputError
from tailrace.spark.cluster.process import free_ports
from tests.spark.support import until

if TYPE_CHECKING:
    from pathlib import Path

FAKE_MAVEN = """\
#!{python}
import sys
print("[\\x1b[1mERROR\\x1b[m] Failed to execute: Could not find it -> [Help 1]")
sys.exit(1)
"""


def maven_that_has_nothing(path: Path, patch: pytest.MonkeyPatch) -> None:
    """Put a Maven on the PATH whose repository is empty."""
    fake = path / "bin" / "mvn"
    fake.parent.mkdir()
    fake.write_text(FAKE_MAVEN.format(python=sys.executable), encoding="utf-8")
    fake.chmod(0o755)
    patch.setenv("PATH", str(fake.parent))


def a_broker(directory: Path | None = None, port: int | None = None) -> Broker:
    """A broker that is not started; the test is skipped where none can be had."""
    try:
        return Broker(directory, port=port)
    except EnvironmentUnfit as unfit:
        pytest.skip(str(unfit))


def send(servers: str, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def received(servers: str, topic: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [(m.value() or b"").decode() for m in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()


def listens(servers: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(servers.split(":")[1]))) == 0


def test_a_broker_keeps_what_it_is_sent(broker: Broker) -> None:
    broker.create_topic("kept", 1)
    send(broker.servers, "kept", ["a", "b", "c"])
    assert received(broker.servers, "kept", 3) == ["a", "b", "c"]


def test_a_killed_broker_comes_back_at_the_same_address_with_all_it_acknowledged(
    broker: Broker,
) -> None:
    broker.create_topic("survives", 1)
    values = [str(i) for i in range(500)]
    send(broker.servers, "survives", values)
    address = broker.servers
    broker.kill()
    assert not listens(address)
    broker.start()
    assert broker.servers == address
    assert received(address, "survives", 500) == values


def test_a_topic_that_exists_is_not_created_again(broker: Broker) -> None:
    broker.create_topic("once", 2, message_timestamp_type="LogAppendTime")
    with pytest.raises(InputError, match=r"does not create the topic 'once' .*already exists"):
        broker.create_topic("once")


def test_a_running_broker_is_not_started_again(broker: Broker) -> None:
    with pytest.raises(InputError, match="is already running: stop it first"):
        broker.start()


def test_a_stopped_broker_leaves_no_process_no_port_and_no_directory() -> None:
    me = psutil.Process()
    before = {child.pid for child in me.children(recursive=True)}
    with a_broker() as running:
        started = [c for c in me.children(recursive=True) if c.pid not in before]
        assert running.pid in {process.pid for process in started}
        directory = running._directory
        assert directory.exists()
    until(lambda: not any(process.is_running() for process in started), "every process is gone")
    assert not listens(running.servers)
    assert not directory.exists()


def test_a_broker_whose_port_is_taken_says_so_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = a_broker(tmp_path, taken.getsockname()[1])
        with pytest.raises(EnvironmentUnfit, match=rf"The port {refused._port} .* is in use: "):
            refused.start()
    assert refused.pid is None


def test_a_second_broker_is_kept_off_the_data_of_the_first(broker: Broker) -> None:
    second = a_broker(broker._directory)
    with pytest.raises(EnvironmentUnfit, match=r"Another broker has its data in .*: stop it, or"):
        second.start()
    assert second.pid is None
    assert listens(broker.servers)


def test_a_broker_that_ends_by_itself_gives_its_reason(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("version=garbage\n", encoding="utf-8")
    broken = a_broker(tmp_path)
    with pytest.raises(
        EnvironmentUnfit, match=r"Kafka ended by itself \(.*meta.properties.*\): correct"
    ):
        broken.start()
    assert broken.pid is None


def by_itself(directory: Path) -> subprocess.Popen[str]:
    """``python -m bench.broker``, as far as the line that says where it listens."""
    a_broker()  # or skip
    command = [sys.executable, "-m", "bench.broker", "--directory", str(directory)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert started.stdout is not None
    assert "listens on 127.0.0.1:" in started.stdout.readline()
    return started


def java_of(process: subprocess.Popen[str]) -> psutil.Process:
    (java,) = [c for c in psutil.Process(process.pid).children() if "java" in c.name()]
    return java


def test_ctrl_c_ends_the_broker_of_the_command_line_and_nothing_is_left(tmp_path: Path) -> None:
    with by_itself(tmp_path) as started:
        java = java_of(started)
        os.killpg(started.pid, signal.SIGINT)
        assert started.wait(60) == 0
    assert not java.is_running()


def test_a_broker_does_not_outlive_a_python_that_was_killed(tmp_path: Path) -> None:
    with by_itself(tmp_path) as started:
        java = java_of(started)
        started.kill()
        started.wait()
    until(lambda: not java.is_running(), "the broker is gone with its Python")


def test_without_maven_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentUnfit, match=r"There is no mvn on the PATH .*: install Maven"):
        broker_jars(tmp_path / "lib")


def test_a_broker_that_maven_has_not_got_is_one_sentence_and_leaves_no_half_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven_that_has_nothing(tmp_path, monkeypatch)
    with pytest.raises(EnvironmentUnfit) as refused:
        broker_jars(tmp_path / "lib")
    assert str(refused.value) == (
        f"Kafka {jars.KAFKA} cannot be fetched from Maven (Could not find it): check the network, "
        "or Maven's settings."
    )
    assert list((tmp_path / "lib").iterdir()) == []


def test_processes_that_start_together_take_ports_far_from_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first(pid: int) -> int:
        monkeypatch.setattr("tailrace.spark.cluster.process.is_free", lambda _: True)
        monkeypatch.setattr("tailrace.spark.cluster.process.os.getpid", lambda: pid)
        return next(free_ports())

    ports = [first(pid) for pid in range(4_711, 4_721)]
    assert min(abs(one - other) for one, other in combinations(ports, 2)) > 100


def test_ports_that_are_taken_are_passed_over() -> None:
    found = free_ports()
    first = next(found)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as whoever takes it would
        taken.bind(("127.0.0.1", first))
        taken.listen()
        assert first not in {next(free_ports()) for _ in range(3)}


def test_no_cluster_id_looks_like_an_option_and_all_differ() -> None:
    made = [module._cluster_id() for _ in range(500)]
    assert not [one for one in made if one.startswith("-")]
    assert {len(urlsafe_b64decode(one + "==")) for one in made} == {16}
    assert len(set(made)) == len(made)
