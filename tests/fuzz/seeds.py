"""Input that is right, in its many forms: what mutations start from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    Option = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Command:
    """The kinds of files that a command takes in order, and its options.

    An option has a name, and the kind of file or the values that follow it. Those that are
    ``always`` there stand before the others, which may say the same again.
    """

    files: tuple[str, ...]
    options: tuple[Option, ...]
    always: tuple[Option, ...] = ()


_RATES = ("100/s", "2 k/s", "1", "50 k/s")
_TIMES = ("100 ms", "1 s", "5 s", "2 min")
_LOADS = (
    "constant:50/s,10s",
    "staircase:20/s,80/s,2,1s",
    "burst:20/s,90/s,1s,1s,5s",
    "sine:50/s,20/s,3s,10s",
)
_BOUNDS: tuple[Option, ...] = tuple((name, "", _TIMES) for name in ("--mean", "--p95", "--p99"))
_PLAN: tuple[Option, ...] = (
    ("--interval", "", ("0", "500 ms", "2 s")),
    ("--cores", "", ("1", "4", "16", "200")),
    ("--partitions", "", ("score=4", "score=32", "parse=2")),
    ("--backend", "", ("microbatch", "realtime")),
    ("--lifetime", "", ("0", "5 ms", "100 ms")),
    ("--row-limit", "", ("1", "1000", "1000000")),
)

COMMANDS = {
    "predict": Command(
        ("json",),
        (
            *_PLAN,
            *_BOUNDS,
            ("--rate", "", _RATES),
            ("--sweep", "", ("rate=100/s..3k/s", "rate=1/s..1M/s")),
            ("--backlog", "", ("0", "1000", "1e6")),
            ("--then", "json", ()),
            ("--log", "ledger", ()),
        ),
    ),
    "capacity": Command(("json",), (*_PLAN, *_BOUNDS)),
    "size": Command(
        ("json",),
        (
            *_BOUNDS,
            ("--p99", "", _TIMES),
            ("--mean", "", _TIMES),
            ("--rate", "", _RATES),
            ("--most-cores", "", ("1", "2", "4", "8")),
        ),
    ),
    "rehearse": Command(
        ("json",),
        (
            ("--scaler", "", ("predictive", "reactive")),
            ("--executors", "", ("1:4", "2", "1:8", "3:3")),
            ("--executor-cores", "", ("1", "2")),
            ("--compare", "", ("predictive,2", "1,reactive", "2")),
            ("--coming", "", ("0 s", "1 s", "1 min")),
            ("--warm-up", "", ("0 s", "1 s")),
            ("--seed", "", ("0", "1", "7")),
            ("--load", "csv", ()),
            ("--load", "report", ()),
            ("--load", "", _LOADS),
            ("--mean", "", _TIMES),
        ),
        always=(
            ("--seconds", "", ("4",)),
            ("--load", "", _LOADS),
            ("--mean", "", ("1 s",)),
        ),
    ),
    "profile": Command(
        ("progress", "made"),
        (("--name", "", ("orders", "other")), ("--cores", "", ("1", "2", "8"))),
    ),
    "score": Command(("ledger", "json"), ()),
    "forecast": Command(
        ("csv",),
        (
            *_BOUNDS,
            ("--horizon", "", ("10 min", "1 h", "5 s")),
            ("--scaling", "", ("1 s", "1 min")),
            ("--profile", "json", ()),
        ),
    ),
}


def profile(rng: random.Random) -> dict[str, Any]:
    """A profile of one to three steps, some keyed, with any of the fields that it may have."""
    steps: list[dict[str, Any]] = [
        {"name": "parse", "service_ms": 0.05},
        {
            "name": "score",
            "service_ms": 0.4,
            "cv": 0.5,
            "call_ms": 0.1,
            "ratio": 0.5,
            "keyed_by": ["user"],
            "keys": {"anna": 0.3, "ben": 0.1},
            "distinct": 500,
        },
        {"name": "write", "service_ms": 0.1, "window": 10, "cpu_share": 0.5},
    ][: rng.choice((1, 2, 2, 3))]
    found: dict[str, Any] = {"name": "orders", "rate_per_s": 1000.0, "steps": steps}
    if len(steps) > 1 and rng.random() < 0.2:
        keys = {"1": 0.3, "2": 0.1}
        kind = rng.choice(("int", "bigint", "double", "decimal(9,2)", "string"))
        steps[1] |= {"key_type": kind, "keys": keys}
    last = steps[-1]["name"]
    more = {
        "cores": rng.choice((1, 2, 4)),
        "source_partitions": rng.choice((1, 2, 4)),
        "seconds": 60.0,
        "records": 60_000,
        "origin": "flow",
        "latency": {"mean_ms": 300.0, "p50_ms": 280.0, "p95_ms": 500.0, "p99_ms": 600.0},
        "batch": {"fixed_ms": 40.0, "per_record_ms": 0.01, "noise": 0.1},
        "hand_over": {"fixed_ms": 0.2, "per_record_ms": 0.002, "gap_ms": 60.0},
        "plan": rng.choice(
            (
                {"interval_ms": 500.0, "cores": 2},
                {"backend": "realtime", "interval_ms": 60_000.0, "partitions": {last: 2}},
                {"partitions": {last: 4}, "row_limit": 5000},
            )
        ),
    }
    chosen = rng.sample(sorted(more), k=rng.randrange(len(more) + 1))
    return found | {name: more[name] for name in chosen}


def ledger(rng: random.Random) -> list[dict[str, Any]]:
    """Predictions as they are kept, scored or not, of a plan that profiles have."""
    plan = {"backend": "microbatch", "interval_ms": 0.0, "chains": [["parse"]], "partitions": {}}
    return [
        {
            "flow": "orders",
            "at_us": 1_700_000_000_000_000 + number,
            "plan": plan,
            "rate_per_s": 1000.0,
            "known": rng.random() < 0.5,
            "predicted_ms": rng.uniform(100, 400),
            "measured_ms": rng.choice((None, rng.uniform(100, 400))),
        }
        for number in range(rng.choice((1, 2, 12)))
    ]


def progress(rng: random.Random) -> list[dict[str, Any]]:
    """The progress of a query, from Kafka or not, a batch a line."""
    kafka = rng.random() < 0.4
    found = []
    for batch in range(rng.choice((9, 12, 24))):
        rows = rng.randrange(100, 2_000)
        source: dict[str, Any] = {"description": "FileStreamSource[x]", "numInputRows": rows}
        if kafka:
            source = {
                "description": "KafkaV2[Subscribe[t]]",
                "startOffset": {"t": {"0": 2_000 * batch}},
                "endOffset": {"t": {"0": 2_000 * batch + rows}},
                "latestOffset": {"t": {"0": 2_000 * (batch + 1)}},
                "numInputRows": rows,
            }
        found.append(
            {
                "id": "545f6546",
                "runId": "0ee548fe",
                "name": "orders",
                "timestamp": f"2026-11-16T03:{batch // 20:02}:{3 * (batch % 20):02}.712Z",
                "batchId": batch,
                "numInputRows": rows,
                "durationMs": {"addBatch": 100 + rows, "triggerExecution": 150 + rows},
                "stateOperators": [{"numShufflePartitions": 2}] if kafka else [],
                "sources": [source],
                "sink": {"description": "x", "numOutputRows": rows // 2},
            }
        )
    return found


def rates(rng: random.Random) -> str:
    """Rates in equal steps, of seconds or as dates, flat, rising or with a season."""
    rows, step_s = rng.choice((6, 20, 60)), rng.choice((1, 60, 60, 3600, 0.001))
    start = rng.choice((0, 1_767_225_600))
    rise, swing = rng.choice((0, 3)), rng.choice((0, 100))
    if rng.random() < 0.3:
        times = [f"2026-01-{1 + n // 24:02}T{n % 24:02}:00:00" for n in range(rows)]
    else:
        times = [f"{start + n * step_s:.10g}" for n in range(rows)]
    values = [500 + rise * n + swing * math.sin(n) + rng.random() for n in range(rows)]
    gap = rng.randrange(rows) if rng.random() < 0.3 else None
    cells = [f"{time},{'' if n == gap else f'{values[n]:.3f}'}" for n, time in enumerate(times)]
    return "\n".join(["time,rate", *cells])


def report(rng: random.Random) -> list[dict[str, Any]]:
    """What a rehearsal needs of the report of a run, all of it in one line."""
    start_us = rng.choice((0, 1_790_000_000_000_000))
    intervals = [
        {"start_us": start_us + 5_000_000 * number, "records": rng.randrange(500)}
        for number in range(rng.choice((1, 2, 12)))
    ]
    return [{"flow": "orders", "interval_ms": 5_000.0, "intervals": intervals}]


def _made(_rng: random.Random) -> list[dict[str, Any]]:
    """What stands where a command writes its result."""
    return [{"name": "before"}]


SUFFIXES = {"report": "json"}
"""How files are named whose kind is not what their name ends in."""

LINES: dict[str, Callable[[random.Random], list[dict[str, Any]]]] = {
    "ledger": ledger,
    "progress": progress,
    "report": report,
    "made": _made,
}
