"""A cluster on this machine: its settings, that it runs, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import HTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import build_opener

import psutil
import pytest

from tailrace.errors import EnvironmentUnfit, InputError
from tailrace.spark.cluster import access, archive
from tailrace.spark.cluster.local import Cluster
from tailrace.spark.cluster.process import HOST, free_ports
from tests.spark.support import until

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 30.0
"""How long a server of a test waits to be asked."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 0}, "A cluster of 0 workers with 2 cores each runs nothing"),
        ({"cores": 0}, "A cluster of 1 workers with 0 cores each runs nothing"),
        ({"memory": "100 MiB"}, "100 MiB of memory for a core is too little"),
        ({"port": 0}, "0 is not a port: give one from 1 to 65535"),
        ({"port": -1}, "-1 is not a port: give one from 1 to 65535"),
        ({"port": 65_536}, "65536 is not a port: give one from 1 to 65535"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Cluster(**given)


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(EnvironmentUnfit, match=f"The port {port} for the master is in use"),
            Cluster(port=port),
        ):
            pass


@contextmanager
def answering(port: int, answer: bytes) -> Iterator[None]:
    """A server that is asked once meanwhile, and answers with this."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    with HTTPServer((HOST, port), Handler) as server:
        server.timeout = PATIENCE_S
        asked = threading.Thread(target=server.handle_request)
        asked.start()
        yield
        asked.join()


@pytest.fixture
def unstarted() -> Iterator[Cluster]:
    """A cluster of which nothing runs."""
    cluster = Cluster()
    yield cluster
    cluster._directory.cleanup()


@pytest.mark.parametrize("answer", [b"HTTP/1.0 200 OK\r\n\r\n", b"not a word of HTTP\r\n"])
def test_a_master_that_gives_no_answer_yet_is_still_starting(
    unstarted: Cluster, answer: bytes
) -> None:
    with answering(unstarted._ui_port, answer):
        assert unstarted._state() is None
    assert unstarted._state() is None  # nothing answers


def test_a_master_is_asked_past_the_proxy_of_the_user(
    unstarted: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    answer = b'HTTP/1.0 200 OK\r\n\r\n{"status": "ALIVE"}'
    proxy = next(port for port in free_ports() if port != unstarted._ui_port)
    monkeypatch.setenv("http_proxy", f"http://{HOST}:{proxy}")
    with answering(proxy, b"HTTP/1.0 502 Bad Gateway\r\n\r\n"), pytest.raises(HTTPError):
        build_opener().open(f"http://{HOST}:{unstarted._ui_port}/json/")  # others are sent there
    with answering(unstarted._ui_port, answer):
        assert unstarted._state() == {"status": "ALIVE"}


def test_an_interrupt_while_one_part_is_stopped_spares_none_of_the_others(
    unstarted: Cluster,
) -> None:
    stopped: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self._name = name

        def stop(self, _: float) -> None:
            stopped.append(self._name)
            if self._name == "second worker":
                raise KeyboardInterrupt

    parts: Any = [Part("master"), Part("worker"), Part("second worker")]
    unstarted._processes = parts
    with pytest.raises(KeyboardInterrupt):
        unstarted.__exit__()
    assert stopped == ["second worker", "worker", "master"]
    assert not unstarted._place.exists()


@pytest.mark.apart
@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cluster_runs_until_it_is_asked_to_end_and_nothing_is_left_of_it(
    number: signal.Signals, tmp_path: Path
) -> None:
    port = next(free_ports())
    program = str(Path(sys.executable).with_name("tailrace"))
    command = [program, "cluster", "start", "--port", str(port), "--no-archive"]
    local = {**os.environ, "TMPDIR": str(tmp_path)}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=local) as started,
        killed(started),
    ):
        assert started.stdout is not None
        assert started.stdout.readline() == (
            f"1 x 4 cores at spark://{HOST}:{port}; Ctrl-C stops them.\n"
        )
        assert list(tmp_path.glob("tailrace-*"))
        below = psutil.Process(started.pid).children(recursive=True)
        assert sum("java" in process.name() for process in below) == 2
        started.send_signal(number)
        assert started.wait(60) == 0
        _, left = psutil.wait_procs(below, timeout=30)
        assert not left
        assert not list(tmp_path.glob("tailrace-*"))


@contextmanager
def killed(process: subprocess.Popen[str]) -> Iterator[None]:
    """However the block ends, the process is gone."""
    try:
        yield
    finally:
        process.kill()


OWN = """
import sys
from tailrace.spark.session import session

spark = session(master=sys.argv[1])
print(spark.range(100).repartition(2).count(), flush=True)
spark.stop()
"""
FOREIGN = """
import sys
from pyspark.sql import SparkSession

SparkSession.builder.master(sys.argv[1]).config("spark.driver.host", "127.0.0.1").getOrCreate()
"""


@pytest.mark.apart
@pytest.mark.spark
def test_a_cluster_lets_in_who_has_its_secret_and_never_shows_it(tmp_path: Path) -> None:
    with Cluster(workers=1, cores=1) as cluster:
        secret = access.place(cluster._port).read_text()
        foreign = subprocess.Popen(
            [sys.executable, "-c", FOREIGN, cluster.master],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            log = cluster._log("master")
            until(lambda: "SASL" in log.read_text(), "the session without the secret is refused")
            commands = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
            assert not [command for command in commands if secret in command]
            assert (cluster._state() or {})["activeapps"] == []
        finally:
            for process in psutil.Process(foreign.pid).children(recursive=True):
                process.kill()
            foreign.kill()
            foreign.wait()
        own = subprocess.run(
            [sys.executable, "-c", OWN, cluster.master], capture_output=True, text=True, check=True
        )
        assert own.stdout.split() == ["100"]
    assert not access.place(cluster._port).exists()


def test_executors_start_from_the_archive_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert archive.options({}) == {}
    archive.path().parent.mkdir(parents=True)
    archive.path().touch()
    told = f"-XX:SharedArchiveFile={archive.path()}"
    assert archive.options({}) == {archive.OPTIONS: told}
    own = {archive.OPTIONS: "-XX:+UseSerialGC"}
    assert archive.options(own) == {archive.OPTIONS: f"-XX:+UseSerialGC {told}"}


def test_an_archive_that_others_may_have_written_is_neither_used_nor_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = archive.path()
    place.parent.mkdir(parents=True)
    place.touch()
    place.chmod(0o666)
    assert archive.options({}) == {}
    place.chmod(0o644)
    assert archive.options({}) != {}
    place.parent.chmod(0o777)
    assert archive.options({}) == {}
    assert caplog.messages == [
        f"Executors start without the class archive, because {which} can be written by others."
        for which in (place, place.parent)
    ]
    with pytest.raises(
        EnvironmentUnfit,
        match=r"can be written by others\): .*\(--no-archive .*\)\.$",
    ):
        archive.ensure()


def test_a_folder_of_settings_that_keeps_java_from_making_an_archive_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor would silently end without writing it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").touch()
    with pytest.raises(
        EnvironmentUnfit,
        match=r"SPARK_CONF_DIR names .*\): .*\(--no-archive .*\)\.$",
    ):
        archive.ensure()


@pytest.mark.parametrize("own", ["-Xshare:off", "-XX:SharedArchiveFile=/mine.jsa"])
def test_what_the_user_says_of_archives_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive.path().parent.mkdir(parents=True)
    archive.path().touch()
    assert archive.options({archive.OPTIONS: own}) == {}


def test_an_archive_that_cannot_be_made_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvironmentUnfit, match=r"^No class archive for executors could be made"):
        archive.ensure()


def test_a_cache_that_cannot_be_written_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        EnvironmentUnfit,
        match=r"\(Not a directory: .*\): .*\(--no-archive .*\)\.$",
    ):
        archive.ensure()


INTERRUPTED = f"""#!{sys.executable}
import os, pathlib, signal, sys

signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})
work = pathlib.Path(sys.argv[-1]).with_suffix(".tmp")
work.touch()
os.kill(os.getppid(), signal.SIGINT)
signal.sigwait({{signal.SIGINT}})
work.unlink()
"""
"""Stands in for Python: has us interrupted, and cleans up when it is interrupted itself."""


def test_ctrl_c_lets_the_making_of_an_archive_clean_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text(INTERRUPTED, encoding="utf-8")
    stand_in.chmod(0o700)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(stand_in))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark may have its own
    try:
        with pytest.raises(KeyboardInterrupt):
            archive.ensure()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not list(archive.path().parent.iterdir())
