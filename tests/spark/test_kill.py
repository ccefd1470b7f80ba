from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from .support import even_trace, until

pytestmark = pytest.mark.spark

DRIVER = Path(__file__).with_name("killed_driver.py")
KILLS = 10
LONGEST_LIFE_S = 1.5
COUNT = 24_000
IN_A_BATCH = 60  # so few that no life sees the end


class Life:
    """One life of the driver, in a session of processes of its own; its flow waits to be told."""

    def __init__(self, directory: Path, number: int, most_records: int) -> None:
        quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a short life pays for no compiler
        self._said = directory / f"said-{number}.txt"
        with self._said.open("w", encoding="utf-8") as said:
            self._process = subprocess.Popen(
                [sys.executable, str(DRIVER), str(directory), str(most_records)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                start_new_session=True,
                env={**os.environ, "JAVA_TOOL_OPTIONS": quick},
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        return self._said.read_text()[-2000:]

    def tell(self) -> None:
        """Let the flow start; that a driver is dead is seen by whoever waits for what it does."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()

    def processes(self) -> list[psutil.Process]:
        """Whoever is left of it: the driver, its JVM, the workers."""
        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self._process.pid and process.status() != "zombie":
                    found.append(process)
        return found

    def kill(self) -> None:
        """Kill the driver and its JVM, unless it is done; workers are to see to it themselves."""
        if self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def bury(self) -> None:
        """Whatever happened, nothing is left."""
        self.kill()
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()


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
        assert life.alive, life.last_words()
        return len(published(out)) > before

    with ExitStack() as stack:

        def born(number: int) -> Life:
            life = Life(tmp_path, number, IN_A_BATCH if number < KILLS else COUNT)
            stack.callback(life.bury)
            return life

        life = born(0)
        for number, moment in enumerate(moments, start=1):
            before = len(published(out))
            life.tell()
            # The JVM of the next life starts beside this one and waits, which saves much time.
            following = born(number)
            until(lambda life=life, n=before: grew(life, n), "the first batch of a life")  # type: ignore[misc]
            threading.Event().wait(moment)
            life.kill()
            until(lambda life=life: not life.processes(), "the end of every process")  # type: ignore[misc]
            progress.append(len(published(out)) - before)
            life = following

        counted = Counted(out)
        life.tell()
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
