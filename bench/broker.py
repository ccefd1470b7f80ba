"""A real Kafka broker for tests and benchmarks: one node, reachable from this machine only.

Maven fetches it once (``jars.py``). A broker is its own controller (KRaft), listens on 127.0.0.1 on
a free port and never outlives the Python process that started it. After being killed it can be
started again on the same port and data.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import IO, Any

from bench.jars import HOME, KAFKA, broker_jars
from tailrace.errors import EnvironmentUnfit, InputError, TailraceError
from tailrace.spark.cluster.process import HOST, ChildProcess, free_ports, is_free
from tailrace.spark.interrupt import ctrl_c
from tailrace.spark.jvm.java import find_java, require_java

PATIENCE_S = 60.0
"""How long a broker may take to start, or to stop by itself."""

LOOK_S = 0.05
"""How often that is checked."""


class Broker:
    """A broker that runs for the duration of a ``with`` block.

    ::

        with Broker() as broker:
            broker.create_topic("tweets", partitions=2)
            ...  # broker.servers is where it listens

    ``directory`` holds its data, its settings and its log (``broker.log``); without one, they go to
    a temporary directory that is removed at the end. ``port`` is any free port unless given.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        library: Path = HOME / "lib",
        port: int | None = None,
        heap_mb: int = 256,
    ) -> None:
        """Fetch the jars; nothing runs yet."""
        require_java()
        self._client = _client()
        self._jars = broker_jars(library)
        self._heap_mb = heap_mb
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._chosen = None if directory is None else directory.resolve()
        free = free_ports()
        self._port = next(free) if port is None else port
        self._control_port = next(other for other in free if other != self._port)
        self._process: ChildProcess | None = None
        self._lock: IO[bytes] | None = None

    @property
    def servers(self) -> str:
        """Its address, in the form that Kafka's clients expect."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """The process id, while it runs."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Broker:
        """Start, unless it runs already."""
        if self._process is None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and leave nothing behind."""
        self.stop()
        self._clean_up()

    def start(self) -> None:
        """Start it, on any existing data, and wait until it answers."""
        if self._process is not None:
            raise InputError(f"The broker at {self.servers} is already running: stop it first.")
        if not is_free(self._port):
            raise EnvironmentUnfit(
                f"The port {self._port} that the broker should listen on is in use: stop what uses "
                "it, or give another port."
            )
        self._hold()
        try:
            self._format()
            self._launch()
            self._await_answer(time.monotonic() + PATIENCE_S)
        except BaseException:
            self.kill()
            self._clean_up()
            raise

    def stop(self) -> None:
        """Stop it as an administrator would, so that it writes everything to disk."""
        if self._process is None:
            return
        try:
            self._process.stop(PATIENCE_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill it at once, like a power cut."""
        if self._process is not None:
            self._process.kill()
            self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def wait(self, seconds: float) -> bool:
        """Wait for at most this time; returns whether the broker has ended, unexpectedly."""
        return self._process is None or self._process.wait(seconds)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Create a topic and wait until it can be used.

        Settings are written with underscores: ``message_timestamp_type="LogAppendTime"``.
        """
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = self._client.admin.NewTopic(name, partitions, 1, config=settings)
        admin = self._admin()
        try:
            admin.create_topics([topic], operation_timeout=PATIENCE_S)[name].result(PATIENCE_S)
        except self._client.KafkaException as error:
            raise InputError(
                f"Kafka does not create the topic '{name}' ({error.args[0].str()}): choose another "
                "name, or mend its settings."
            ) from error
        deadline = time.monotonic() + PATIENCE_S
        while not self._has_leaders(admin, name, partitions):
            self._still_alive(deadline)

    def _clean_up(self) -> None:
        """Remove the temporary directory, if there is one."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    # --- how -------------------------------------------------------------------------------

    @property
    def _directory(self) -> Path:
        """Where it keeps everything; a temporary directory is made when it is first needed."""
        if self._chosen is not None:
            return self._chosen
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tailrace-kafka-")
        return Path(self._temporary.name).resolve()

    @property
    def _log(self) -> Path:
        return self._directory / "broker.log"

    @property
    def _settings(self) -> Path:
        return self._directory / "server.properties"

    def _java(self, program: str, *arguments: str) -> list[str]:
        jars = os.pathsep.join(map(str, self._jars))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        small = (f"-Xmx{self._heap_mb}m", "-XX:+UseSerialGC")
        return [str(find_java()), *small, quiet, "-cp", jars, program, *arguments]

    def _hold(self) -> None:
        """Lock the data directory: Kafka itself notices a second broker too late.

        It locks the directory only after its controller has begun to write there, and then both
        brokers fail.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = (self._directory / "lock").open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            self._lock = None
            raise EnvironmentUnfit(
                f"Another broker has its data in {self._directory}: stop it, or name another "
                "directory."
            ) from error

    def _launch(self) -> None:
        command = self._java("kafka.Kafka", str(self._settings))
        self._process = ChildProcess(command, self._log, directory=self._directory)

    def _format(self) -> None:
        """Write the settings and, unless done before, format the directory for a broker."""
        data = self._directory / "data"
        settings = _properties(data, self._port, self._control_port)
        self._settings.write_text(settings, encoding="utf-8")
        if (data / "meta.properties").exists():
            return
        arguments = ("format", "--cluster-id", _cluster_id(), "--config", str(self._settings))
        said = subprocess.run(  # noqa: S603 - our own command
            self._java("kafka.tools.StorageTool", *arguments),
            capture_output=True,
            text=True,
            check=False,
        )
        if said.returncode:
            last = (said.stderr.strip() or said.stdout.strip() or "no reason given").splitlines()
            raise EnvironmentUnfit(
                f"Kafka cannot prepare {self._directory} ({last[-1]}): name a directory that is "
                "writable and empty."
            )

    def _await_answer(self, deadline: float) -> None:
        """Poll until it answers: an open port does not mean that the broker is ready."""
        while not _is_open(self._port):
            self._still_alive(deadline)
        admin = self._admin()
        while not self._knows_itself(admin):
            self._still_alive(deadline)

    def _still_alive(self, deadline: float) -> None:
        """Wait a moment; raise if the broker has ended or time is up."""
        if self._process is None or self.wait(LOOK_S):
            said = "it was stopped" if self._process is None else self._process.last_words()
            raise EnvironmentUnfit(f"Kafka ended by itself ({said}): correct that.")
        if time.monotonic() > deadline:
            raise EnvironmentUnfit(
                f"Kafka was not ready within {PATIENCE_S:.0f} s: see {self._log}, or try "
                "again when the machine is less busy."
            )

    def _admin(self) -> Any:
        settings = {"bootstrap.servers": self.servers, "log_level": 0}
        return self._client.admin.AdminClient(settings)

    def _knows_itself(self, admin: Any) -> bool:
        try:
            return len(admin.list_topics(timeout=1).brokers) == 1
        except self._client.KafkaException:
            return False

    def _has_leaders(self, admin: Any, name: str, partitions: int) -> bool:
        topic = admin.list_topics(name, timeout=PATIENCE_S).topics[name]
        leaders = [part.leader for part in topic.partitions.values() if part.leader >= 0]
        return topic.error is None and len(leaders) == partitions


def _properties(data: Path, port: int, control_port: int) -> str:
    """The settings of a small single node."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{control_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{HOST}:{control_port}",
        "log.dirs": data,
        "auto.create.topics.enable": "false",  # a misspelt topic is an error, not a topic
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.dedupe.buffer.size": 4 << 20,  # half of the heap by default
        # A restarted node is admitted once its old session has timed out: 9 s by default.
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 500,
        "num.network.threads": 2,
        "num.io.threads": 2,
    }
    for log in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        settings |= {f"{log}.replication.factor": 1, f"{log}.num.partitions": 1}
    for log in ("transaction.state.log", "share.coordinator.state.topic"):
        settings |= {f"{log}.min.isr": 1}
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _cluster_id() -> str:
    """Sixteen bytes in Kafka's notation; its tool would take a leading '-' for an option."""
    return urlsafe_b64encode(b"tail" + uuid.uuid4().bytes[4:]).decode().rstrip("=")


def _client() -> Any:
    """Kafka's Python client, which only tests and benchmarks need."""
    try:
        importlib.import_module("confluent_kafka.admin")
        return importlib.import_module("confluent_kafka")
    except ImportError as error:
        raise EnvironmentUnfit(
            "There is no Kafka client to reach the broker with: pip install confluent-kafka."
        ) from error


def main() -> int:
    """Run a broker until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.broker", description="Run a Kafka broker until Ctrl-C."
    )
    parser.add_argument("--directory", type=Path, default=HOME / "data", help="where its data is")
    parser.add_argument("--port", type=int, help="where it listens; any free port unless given")
    given = parser.parse_args()
    try:
        with ctrl_c() as asked_to_end, Broker(given.directory, port=given.port) as broker:
            print(f"Kafka {KAFKA} listens on {broker.servers}; Ctrl-C stops it.", flush=True)
            while not asked_to_end.is_set():
                broker._still_alive(float("inf"))
    except TailraceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _is_open(port: int) -> bool:
    """Whether a server listens on a port of this machine."""
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
