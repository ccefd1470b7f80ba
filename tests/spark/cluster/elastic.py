"""A driver with a cluster of its own, whose executors come, go and are killed while flows run.

Usage: elastic.py MOVES SEED. Two flows share a session, one with state and one without. The number
of executors changes at random, by the flows' own loop, and now and then one is killed. Prints what
came of it as JSON, and ends with 1 if anything was lost or counted twice, or a move not made.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

import psutil

from tailrace.load import Constant, Uniform, generate
from tailrace.policy.scaling.ondemand import OnDemand
from tailrace.spark import sinks
from tailrace.spark.cluster import archive
from tailrace.spark.cluster.executors import PATIENCE_S as REFUSED_AFTER_S
from tailrace.spark.cluster.local import Cluster
from tailrace.spark.flow import Flow
from tailrace.spark.pipeline.step import keyed_step, step
from tailrace.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from tailrace.policy.scaling.sizing import Load, Move
    from tailrace.spark.run import Run

MOST = 3
RATE_PER_S = 200
KEYS = 10

PATIENCE_S = REFUSED_AFTER_S + 60.0
"""A move that the cluster does not make is given up, and another made, only after that time."""


class AtRandom(OnDemand):
    """Asks for another number of executors at every decision, for a given number of moves."""

    def __init__(self, chance: random.Random, moves: int) -> None:
        super().__init__()
        self.moves = moves
        self.made: list[int] = []
        self._chance = chance

    def decide(self, load: Load, /) -> Move:
        super().decide(load)
        if not load.moving and len(self.made) < self.moves:
            least, most = load.limits.least - load.size, load.limits.most - load.size
            move = self.preview(self._chance.choice([n for n in range(least, most + 1) if n]))
            self.apply(move)
            self.made.append(move.size)
        return super().decide(load)


def seen(records: DataFrame) -> DataFrame:
    """Passes records on."""
    return records.transform(step("pass", lambda row: row.seq, "seq long", scale=(1, 64)))


def count(key: str, rows: list[Any], state: Any) -> Iterator[tuple[str, int, int]]:
    """Numbers the records of a key."""
    for row in rows:
        state["n"] = state.get("n", 0) + 1
        yield key, row.seq, state["n"]


def counted(records: DataFrame) -> DataFrame:
    """Counts records by key."""
    return records.transform(keyed_step("count", count, "key string, seq long, n long", key="key"))


def processes() -> list[psutil.Process]:
    """The executors."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "org.apache.spark.executor.CoarseGrainedExecutorBackend"
        in (process.info["cmdline"] or ())
        and any(parent.pid == psutil.Process().pid for parent in process.parents())
    ]


def kill_one(chance: random.Random) -> int | None:
    """Kill an executor; its process, or None if there is none at the moment."""
    found = processes()
    if not found:
        return None
    victim = chance.choice(found)
    victim.kill()
    return victim.pid


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        threading.Event().wait(0.05)


def main(moves: int, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    load = generate(Constant(RATE_PER_S, "20 min"), arrivals="even", keys=Uniform(KEYS), seed=seed)
    scaler = AtRandom(chance, moves - moves // 4)
    kills: list[int] = []
    plain, stateful = sinks.memory(), sinks.memory()
    how: dict[str, Any] = {"interval": "1 s", "warm_up": 0, "start_interval": "300 ms"}
    sizes: list[int] = []
    classes = str(archive.ensure())
    with Cluster(workers=1, cores=MOST, memory="512 MiB") as cluster:
        spark = session(
            "elastic",
            master=cluster.master,
            settings={"spark.executor.memory": "512m"},
            executors=(1, MOST),
        )
        mapped = {part.path for one in processes() for part in one.memory_maps()}
        runs: list[Run] = [
            Flow("seen", load, seen, plain, executors=(1, MOST), scaler=scaler, **how)
            .keep(mean="2 s")
            .start(spark, on_measure=lambda batch: sizes.append(batch.slots)),
            Flow("counted", load, counted, stateful, **how).keep(mean="2 s").start(spark),
        ]
        try:
            while len(scaler.made) < scaler.moves or len(kills) < moves // 4:
                done = len(scaler.made)
                until(lambda done=done: len(scaler.made) > done or done >= scaler.moves, "a move")
                if len(kills) < moves // 4 and (chance.random() < 0.4 or done >= scaler.moves):
                    threading.Event().wait(chance.uniform(0.0, 2.0))
                    victim = kill_one(chance)
                    kills += [] if victim is None else [victim]
                assert not any(run.wait(0) for run in runs), "a flow has ended by itself"
            until(lambda: sizes[-1] == runs[0].controller.plan.executors, "the last move")
            for sink in (plain, stateful):
                batches = len(sink.batches)
                until(lambda b=batches, s=sink: len(s.batches) > b + 2, "batches after the last")
            reports = [run.stop().data for run in runs]
        finally:
            spark.stop()
    numbered = Counter((row["key"], row["n"]) for row in stateful.rows())
    per_key = Counter(key for key, _ in numbered)
    return {
        "archived": classes in mapped,
        "moves": scaler.made,
        "sizes": [size for size, _ in groupby(sizes)],
        "refused": sum("were asked for" in d["reason"] for d in reports[0]["decisions"]),
        "kills": len(kills),
        "seen": dict(Counter(Counter(row["seq"] for row in plain.rows()).values())),
        "seen_all": sorted(row["seq"] for row in plain.rows()) == list(range(len(plain.rows()))),
        "counted": dict(Counter(numbered.values())),
        "counted_all": all(
            (key, n) in numbered for key, most in per_key.items() for n in range(1, most + 1)
        ),
        "counted_records": sorted(r["seq"] for r in stateful.rows())
        == list(range(len(stateful.rows()))),
        "records": [report["records"] for report in reports],
        "restarts_ms": reports[0]["restarts_ms"],
        "notes": [report.get("notes") for report in reports],
    }


def _unmade(moves: list[int], sizes: list[int]) -> int:
    """How many of the moves are not among the sizes, one after the other."""
    unmade = 0
    for size in moves:
        if size in sizes:
            sizes = sizes[sizes.index(size) + 1 :]
        else:
            unmade += 1
    return unmade


def wrong(came: dict[str, Any], moves: int) -> list[str]:
    """What should not have resulted from all these moves and kills."""
    checks = {
        "an executor did not start from the archive of classes": came["archived"],
        "moves or kills are missing": len(came["moves"]) + came["kills"] == moves,
        "no executor was killed": came["kills"] == moves // 4,
        "a move was not made": _unmade(came["moves"], came["sizes"]) <= came["refused"],
        "a record was passed on twice": came["seen"].keys() == {"1"},
        "a record is missing": came["seen_all"],
        "a count was reached twice": came["counted"].keys() == {"1"},
        "a count was left out": came["counted_all"],
        "a record was not counted": came["counted_records"],
    }
    return [what for what, fine in checks.items() if not fine]


if __name__ == "__main__":
    asked = int(sys.argv[1])
    outcome = json.dumps(main(asked, int(sys.argv[2])))
    print(outcome)
    sys.exit("; ".join(wrong(json.loads(outcome), asked)) or 0)
