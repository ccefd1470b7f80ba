from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from .support import even_trace, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.spark

DRIVER = Path(__file__).with_name("killed_driver.py")
KILLS = 10
LONGEST_LIFE_S = 1.5
COUNT = 24_000
IN_A_BATCH = 60  # so few that no life sees the end


class Life:
    """One life of the driver, in a session of processes of its own."""

    def __init__(self, directory: Path, most_records: int) -> None:
        self._said = (directory / "said.txt").open("a", encoding="utf-8")
        quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a short life pays for no compiler
        self._process = subprocess.Popen(
            [sys.executable, str(DRIVER), str(directory), str(most_records)],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
            env={**os.environ, "JAVA_TOOL_OPTIONS": quick},
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def processes(self) -> list[int]:
        """Whoever is left of it: the driver, its JVM, the workers."""
        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self._process.pid and process.status() != "zombie":
                    found.append(process.pid)
        return found

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._said.close()


@contextmanager
def living(directory: Path, most_records: int) -> Iterator[Life]:
    life = Life(directory, most_records)
    try:
        yield life
    finally:
        life.kill()
        for pid in life.processes():
            with suppress(ProcessLookupError):
                if not _gone_soon(pid):
                    os.kill(pid, signal.SIGKILL)


def _gone_soon(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        psutil.Process(pid).wait(5)
    return not psutil.pid_exists(pid)


def published(directory: Path) -> list[Path]:
    return sorted(directory.glob("batch=*"))


def rows(directory: Path) -> list[dict[str, Any]]:
    return [row for path in published(directory) for row in pq.read_table(path).to_pylist()]


class Counted:
    """Counts published rows, reading every batch once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sizes: dict[str, int] = {}

    def total(self) -> int:
        for path in published(self._directory):
            if path.name not in self._sizes:
                parts = path.glob("*.parquet")
                self._sizes[path.name] = sum(pq.read_metadata(part).num_rows for part in parts)
        return sum(self._sizes.values())


def test_a_driver_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    even_trace(COUNT, COUNT).save(tmp_path / "load.trace")
    out, dead = tmp_path / "out", tmp_path / "dead"
    bad = set(range(0, COUNT, 97))
    moments = np.random.default_rng(20_240_229).uniform(0, LONGEST_LIFE_S, KILLS)
    progress = []

    def grew(life: Life, before: int) -> bool:
        assert life.alive, (tmp_path / "said.txt").read_text()[-2000:]
        return len(published(out)) > before

    for moment in moments:
        before = len(published(out))
        with living(tmp_path, IN_A_BATCH) as life:
            until(lambda life=life, n=before: grew(life, n), "the first batch of a life")  # type: ignore[misc]
            threading.Event().wait(moment)
            life.kill()
            until(lambda life=life: not life.processes(), "the end of every process")  # type: ignore[misc]
        progress.append(len(published(out)) - before)

    counted = Counted(out)
    with living(tmp_path, COUNT) as life:
        until(
            lambda: life.alive and counted.total() >= COUNT - len(bad), "every record", seconds=90
        )
        life.kill()
        until(lambda: not life.processes(), "the end of every process")

    print(f"{KILLS} kills, batches published in each life: {progress}")
    assert all(grown > 0 for grown in progress)
    results = rows(out)
    assert sorted(row["seq"] for row in results) == [s for s in range(COUNT) if s not in bad]
    assert all(row["twice"] == 2 * row["seq"] for row in results)
    letters = [json.loads(row["record"])["seq"] for row in rows(dead)]
    assert sorted(letters) == sorted(bad)
    ids = sorted(int(path.name.removeprefix("batch=")) for path in published(out))
    assert ids == list(range(len(ids)))
