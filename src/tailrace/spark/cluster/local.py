"""A real standalone cluster of Spark on this machine: a master and workers from the pip package.

For development, and for tests of what needs executors: here they are separate processes, as on any
cluster. Everything listens on loopback, and nothing outlives the Python process that started it.
Other users of the machine reach loopback too, so access needs the cluster's secret
(``tailrace.spark.cluster.access``).
"""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pyspark

from tailrace.errors import EnvironmentUnfit, InputError
from tailrace.spark.cluster import access
from tailrace.spark.cluster.process import HOST, ChildProcess, free_ports, is_free
from tailrace.spark.jvm.java import find_java, require_java
from tailrace.units import size_bytes

PATIENCE_S = 60.0
"""How long the cluster may take to start, or a process of it to end by itself."""

LOOK_S = 0.05
LEAST_BYTES = 512 << 20
"""About the least memory that Spark needs for an executor."""

_HOME = Path(pyspark.__file__).parent
_LAST_PORT = 65_535
_GUARDED = (
    "-Dspark.authenticate=true -Dspark.master.rest.enabled=false -Dspark.ui.killEnabled=false"
)
"""Access to a master: with the secret; not by REST, which does not check it; not by its page."""

_DIRECTLY = build_opener(ProxyHandler({}))
"""Connects directly: the user's proxy would look for the master on its own machine."""


class Cluster:
    """A master and workers that run as long as the block.

    ::

        with Cluster(workers=2, cores=4) as cluster:
            spark = tailrace.session(master=cluster.master, executors=(1, 8))

    A worker offers ``cores`` cores, which may be more than the machine has, and ``memory`` for
    each of them. ``port`` is the port of the master, by default any free one.
    """

    def __init__(
        self,
        workers: int = 1,
        cores: int = 2,
        *,
        memory: str | int = "1 GiB",
        port: int | None = None,
    ) -> None:
        """Check what was asked for; nothing runs yet."""
        if workers < 1 or cores < 1:
            raise InputError(
                f"A cluster of {workers} workers with {cores} cores each runs nothing: give at "
                "least 1 of both."
            )
        each = size_bytes(memory)
        if each < LEAST_BYTES:
            raise InputError(
                f"{memory} of memory for a core is too little for an executor: give at least "
                "512 MiB."
            )
        if port is not None and not 1 <= port <= _LAST_PORT:
            raise InputError(f"{port} is not a port: give one from 1 to {_LAST_PORT}.")
        require_java()
        self._workers, self._cores, self._mib = workers, cores, cores * (each >> 20)
        free = free_ports()
        self._port = next(free) if port is None else port
        self._ui_port = next(other for other in free if other != self._port)
        self._directory = tempfile.TemporaryDirectory(prefix="tailrace-cluster-")
        self._processes: list[ChildProcess] = []
        self._secret: str | None = None

    @property
    def master(self) -> str:
        """The address of the master, for ``tailrace.session(master=...)``."""
        return f"spark://{HOST}:{self._port}"

    def __enter__(self) -> Cluster:
        """Start it, and wait until every worker has registered."""
        if not is_free(self._port):
            self._directory.cleanup()
            raise EnvironmentUnfit(
                f"The port {self._port} for the master is in use: end the process that holds it, "
                "or give another port."
            )
        deadline = time.monotonic() + PATIENCE_S
        try:
            self._secret = access.grant(self._port)
            ports = ("--port", str(self._port), "--webui-port", str(self._ui_port))
            self._launch("master.Master", "master", *ports)
            while self._state() is None:
                self._still_alive(deadline)
            for number in range(self._workers):
                self._launch_worker(number)
            while (self._state() or {}).get("aliveworkers", 0) < self._workers:
                self._still_alive(deadline)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop workers, then the master, and clean up, even if that is interrupted."""
        with ExitStack() as ending:  # last in, first out
            ending.callback(self._directory.cleanup)
            if self._secret is not None:
                ending.callback(access.revoke, self._port, self._secret)
            for process in self._processes:
                ending.callback(process.stop, PATIENCE_S)
            self._processes = []

    def watch(self, seconds: float) -> None:
        """Wait for the given time; raise an error if a part of the cluster ends meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._still_alive(float("inf"))

    # --- how -------------------------------------------------------------------------------

    def _launch_worker(self, number: int) -> None:
        place = self._place / f"worker-{number}"
        place.mkdir()
        offers = ("--cores", str(self._cores), "--memory", f"{self._mib}m")
        self._launch(
            "worker.Worker",
            place.name,
            *("--webui-port", "0", "--work-dir", str(place), *offers, self.master),
        )

    def _launch(self, part: str, name: str, *arguments: str) -> None:
        environment = {
            "SPARK_HOME": str(_HOME),
            "JAVA_HOME": str(find_java().resolve().parents[1]),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"-XX:+UseSerialGC {_GUARDED}",
            access.VARIABLE: self._secret or "",  # not an argument, which others could read
        }
        command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{part}"]
        self._processes.append(
            ChildProcess(
                [*command, "--host", HOST, *arguments],
                self._log(name),
                directory=self._place,
                environment=environment,
            )
        )

    @property
    def _place(self) -> Path:
        return Path(self._directory.name)

    def _log(self, name: str) -> Path:
        return self._place / f"{name}.log"

    def _state(self) -> dict[str, Any] | None:
        """The state that the master reports; None while it does not answer."""
        try:
            address = f"http://{HOST}:{self._ui_port}/json/"
            with _DIRECTLY.open(address, timeout=5) as answer:
                state: dict[str, Any] = json.load(answer)
        except (OSError, HTTPException, ValueError):
            return None  # a master that is starting may answer with an empty page
        return state if state.get("status") == "ALIVE" else None

    def _still_alive(self, deadline: float) -> None:
        """Wait a moment; raise an error if a process is gone or time is up."""
        time.sleep(LOOK_S)
        for number, process in enumerate(self._processes):
            if process.wait(0):
                name = "master" if number == 0 else f"worker-{number - 1}"
                raise EnvironmentUnfit(
                    f"The {name} of the cluster ended by itself ({process.last_words()}): fix "
                    "that, and start it again."
                )
        if time.monotonic() > deadline:
            raise EnvironmentUnfit(
                f"The cluster was not ready in {PATIENCE_S:.0f} s: free the machine of other work, "
                "or ask for fewer workers."
            )
