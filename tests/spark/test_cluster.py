"""A cluster of one's own: what it is given, that it runs, and that nothing is left of it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from tailrace.errors import EnvironmentUnfit, InputError
from tailrace.spark import archive
from tailrace.spark.cluster import Cluster
from tailrace.spark.leash import HOST, free_ports


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 0}, "A cluster of 0 workers with 2 cores each runs nothing"),
        ({"cores": 0}, "A cluster of 1 workers with 0 cores each runs nothing"),
        ({"memory": "100 MiB"}, "100 MiB of memory for a core is too little"),
    ],
)
def test_a_cluster_that_runs_nothing_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Cluster(**given)


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(EnvironmentUnfit, match=f"The port {port} that the master is to listen"),
            Cluster(port=port),
        ):
            pass


def test_a_master_that_answers_with_an_empty_page_is_still_starting() -> None:
    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    cluster = Cluster()
    with HTTPServer((HOST, cluster._ui_port), Empty) as master:
        answering = threading.Thread(target=master.handle_request)
        answering.start()
        assert cluster._state() is None
        answering.join()
    assert cluster._state() is None  # nobody answers
    cluster._directory.cleanup()


@pytest.mark.spark
def test_a_cluster_runs_until_ctrl_c_and_nothing_is_left_of_it() -> None:
    port = next(free_ports())
    program = str(Path(sys.executable).with_name("tailrace"))
    command = [program, "cluster", "start", "--port", str(port), "--no-archive"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == (
            f"1 x 4 cores at spark://{HOST}:{port}; Ctrl-C stops them.\n"
        )
        below = psutil.Process(started.pid).children(recursive=True)
        assert sum("java" in process.name() for process in below) == 2
        started.send_signal(signal.SIGINT)
        assert started.wait(60) == 0
        _, left = psutil.wait_procs(below, timeout=30)
        assert not left
    finally:
        started.kill()
        started.wait()


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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvironmentUnfit, match=r"^No class archive for executors could be made"):
        archive.ensure()
