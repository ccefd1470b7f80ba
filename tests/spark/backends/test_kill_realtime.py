"""Real-time mode with state under ``kill -9``: of the driver with all its processes, of the driver
alone, and of single Python workers, at seeded moments, many of them where a batch ends.

Three records of what happened are compared: what Spark's log says was read, the state, and the
lines that the sink left, each of which names the attempt and the batch that it is of.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import pytest

from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.state.store import Store
from tests.spark.support import even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.spark

DRIVER = Path(__file__).with_name("killed_realtime.py")
RATE_PER_S = 300
LONGEST_S = 1_800  # far longer than the test, so that there are records to the last kill
KEYS = 40
PARTITIONS = 2
PATIENCE_S = 240.0  # for a machine that does much else

LIVES = (
    ("worker", "worker", "all"),
    ("worker", "worker", "driver"),
    ("worker", "worker", "worker", "all"),
    ("all",),
    ("worker", "worker", "driver"),
    ("all",),
    ("worker", "worker", "worker", "all"),
    ("driver",),
    ("worker",),
)
"""What the kills of each life of the driver hit; the last life continues after its kill."""

Attempt = tuple[int, int]


class Line(NamedTuple):
    """What the sink got: the count ``n`` of a key, reached by the record ``seq``."""

    attempt: Attempt
    batch: int
    worker: int
    key: str
    seq: int
    n: int


class Place:
    """The directory of a flow that is killed, and what can be read there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.checkpoint = directory / "flow" / "checkpoint"
        (directory / "out").mkdir()

    def said(self, what: str) -> list[dict[str, Any]]:
        """What drivers said of their attempts, as far as it is written."""
        place = self.directory / "attempts.jsonl"
        lines = place.read_text().splitlines(keepends=True) if place.exists() else []
        said = [json.loads(line) for line in lines if line.endswith("\n")]
        return [line for line in said if what in line]

    def tries(self) -> bool:
        """Whether an attempt was begun and has not failed."""
        started, failed = self.said("starts"), self.said("failed")
        return not failed or started[-1]["starts"] != failed[-1]["failed"]

    def committed(self) -> int:
        return BatchLog(self.checkpoint).committed

    def written(self) -> int:
        """The newest batch whose state is written, which is just before the batch ends."""
        names = (path.name for path in self.directory.glob("flow/state/count/*/*-*"))
        versions = (int(name.split("-")[0]) for name in names if not name.endswith(".tmp"))
        return max(versions, default=-1)

    def read(self) -> set[int]:
        """The records that were read by the end of the last committed batch, by Spark's log."""
        log = (self.checkpoint / "offsets" / str(self.committed())).read_text()
        taken = json.loads(log.splitlines()[-1])["next"]
        sources = len(taken)
        return {p + sources * i for p, count in enumerate(taken) for i in range(count)}

    def counts(self) -> dict[str, int]:
        """The state as of the last committed batch."""
        found: dict[str, int] = {}
        for partition in range(PARTITIONS):
            store = Store(self.directory / "flow" / "state" / "count" / str(partition))
            store.open(self.committed())
            counts = {str(key): int(state["n"]) for key, state in store.values.items()}
            assert not found.keys() & counts.keys(), "a key in two partitions"
            found |= counts
        return found

    def lines(self) -> Iterator[Line]:
        for path in sorted((self.directory / "out").iterdir()):
            attempt = attempt_of(path.name.split("-")[0])
            for line in path.read_text().splitlines():
                batch, worker, key, seq, n = line.split()
                yield Line(attempt, int(batch), int(worker), key, int(seq), int(n))

    def busy(self) -> set[int]:
        """The workers that left the last lines of every partition of the last attempt."""
        name = self.said("starts")[-1]["starts"]
        texts = [path.read_text() for path in (self.directory / "out").glob(f"{name}-*")]
        return {int(text.splitlines()[-1].split()[1]) for text in texts if text}


def attempt_of(name: str) -> Attempt:
    life, number = name.split(".")
    return int(life), int(number)


class Life:
    """One life of the driver, in a session of processes of its own."""

    def __init__(self, place: Place, number: int) -> None:
        quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a short life pays for no compiler
        self._place = place
        self._said = place.directory / f"said-{number}.txt"
        with self._said.open("w", encoding="utf-8") as said:
            self._process = subprocess.Popen(
                [sys.executable, str(DRIVER), str(place.directory), str(number)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                start_new_session=True,
                env={**os.environ, "JAVA_TOOL_OPTIONS": quick},
            )

    def tell(self) -> None:
        """Let the flow start; or, called a second time, end."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for what can only come true while the driver lives."""

        def holds() -> bool:
            came = bool(condition())
            assert came or self._process.poll() is None, self._said.read_text()[-2_000:]
            return came

        until(holds, what, PATIENCE_S)

    def ended(self) -> bool:
        return self._process.poll() == 0

    def processes(self) -> list[psutil.Process]:
        """What is left of it: the driver, its JVM, the workers."""
        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self._process.pid and process.status() != "zombie":
                    found.append(process)
        return found

    def workers(self) -> list[psutil.Process]:
        """The Python workers, which are the children of the daemon that they are forked from."""
        parents: dict[psutil.Process, int] = {}
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                if "tailrace.spark.worker.daemon" in process.cmdline():
                    parents[process] = process.ppid()
        family = {process.pid for process in parents}
        return [process for process, parent in parents.items() if parent in family]

    def kill(self, *, alone: bool = False) -> None:
        """Kill the driver, and all that it started unless they are to see to it themselves."""
        others = [] if alone else [process.pid for process in self.processes()]
        for pid in (self._process.pid, *others):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        until(lambda: not self.processes(), "the end of every process", PATIENCE_S)

    def bury(self) -> None:
        """Whatever happened, nothing is left."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()


def await_moment(life: Life, place: Place, draw: random.Random, victim: str) -> str:
    """Wait for a moment to kill at: where a batch ends, in the midst of one, or early.

    Drivers are killed mostly where a batch has written its state and is not yet committed.
    """
    ends = ("end",) * (1 if victim == "worker" else 4)
    kind = draw.choice((*ends, "midst", "early"))
    if kind != "early":
        before = place.written() if kind == "end" else place.committed()
        found = place.written if kind == "end" else place.committed
        life.until(lambda: found() > before, f"another batch, to be killed at its {kind}")
    life.until(life.workers, "a worker")
    wait_s = draw.uniform(0, {"end": 0.1, "midst": 0.6, "early": 0.6}[kind])
    threading.Event().wait(wait_s)
    return kind


def kill_worker(life: Life, place: Place, draw: random.Random) -> None:
    """Kill a worker, mostly one that counts, and wait until the flow has got over it."""
    failures, committed = len(place.said("failed")), place.committed()
    wanted_busy = draw.random() < 0.7

    def struck() -> bool:
        workers = sorted(life.workers(), key=lambda worker: worker.pid)
        busy = [worker for worker in workers if worker.pid in place.busy()]
        if workers:
            with suppress(psutil.NoSuchProcess):
                draw.choice(busy if busy and wanted_busy else workers).kill()
                return True
        return False  # it ended by itself, or an attempt is between its workers

    life.until(struck, "a worker to kill")
    life.until(
        lambda: len(place.said("failed")) > failures or place.committed() > committed + 1,
        "a flow that fails of a killed worker, or goes on without it",
    )
    life.until(place.tries, "another attempt")


@pytest.mark.nightly
def test_state_in_real_time_mode_stays_exact_however_often_processes_are_killed(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    trace = even_trace(RATE_PER_S * LONGEST_S, RATE_PER_S, keys=KEYS)
    trace.save(tmp_path / "load.trace")
    draw = random.Random(20_240_229)
    kills: Counter[str] = Counter()
    torn = 0  # kills of a driver whose batch had written state and was not committed
    with ExitStack() as stack:

        def born(number: int) -> Life:
            life = Life(place, number)
            stack.callback(life.bury)
            return life

        life = born(0)
        for number, victims in enumerate(LIVES):
            life.tell()
            # The JVM of the next life starts beside this one and waits, which saves much time.
            following = born(number + 1) if number + 1 < len(LIVES) else None
            life.until(
                lambda name=f"{number}.0": any(s["starts"] == name for s in place.said("starts")),  # type: ignore[misc]
                "the start of a flow",
            )
            for victim in victims:
                moment = await_moment(life, place, draw, victim)
                kills[f"{victim}, {moment}"] += 1
                if victim == "worker":
                    kill_worker(life, place, draw)
                else:
                    life.kill(alone=victim == "driver")
                    torn += place.written() > place.committed()
            if following is not None:
                life = following
        before = place.committed()
        life.until(lambda: place.committed() > before + 2, "batches after the last kill")
        life.tell()
        life.until(life.ended, "the end of the last life")

    print(f"{kills.total()} kills, {torn} between the state of a batch and its commit")
    assert kills.total() >= 20
    check(place, kills)


def check(place: Place, kills: Counter[str]) -> None:
    """Compare the three records of what happened."""
    read = place.read()
    expected = Counter(f"k{seq % KEYS}" for seq in read)
    starts, failed = place.said("starts"), place.said("failed")
    begun_again = {start["committed"] + 1 for start in starts[1:]}
    lines = list(place.lines())
    kept, surplus = parted(lines, starts)
    workers = sum(n for kind, n in kills.items() if kind.startswith("worker"))

    print(dict(sorted(kills.items())))
    print(f"{len(failed)} of {workers} killed workers made an attempt fail, of {len(starts)}")
    print(f"{place.committed() + 1} batches, of which begun again: {sorted(begun_again)}")
    print(f"{len(read)} records; {len(surplus)} results came out once more than they should")

    assert len(failed) <= workers
    assert place.counts() == expected
    assert sorted(line.seq for line in kept) == sorted(read)
    assert sorted((line.key, line.n) for line in kept) == sorted(
        (key, n + 1) for key, count in expected.items() for n in range(count)
    )
    assert all(line.key == f"k{line.seq % KEYS}" for line in lines)
    assert {line.batch for line in surplus} <= begun_again
    assert len({(line.attempt, line.batch, line.seq) for line in lines}) == len(lines)


def parted(lines: list[Line], starts: list[dict[str, Any]]) -> tuple[list[Line], list[Line]]:
    """The lines of the attempts that committed their batch, and those of all others.

    Attempts run batches in order, from the one after the last that was committed when they
    began. So the last attempt that began with a batch, or with one before it, committed it.
    """
    by: dict[int, Attempt] = {}
    for batch in {line.batch for line in lines}:
        by[batch] = attempt_of([s["starts"] for s in starts if s["committed"] < batch][-1])
    kept = [line for line in lines if line.attempt == by[line.batch]]
    return kept, [line for line in lines if line.attempt != by[line.batch]]
