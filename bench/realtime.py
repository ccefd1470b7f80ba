"""Real-time: how fast are Python steps in real-time mode, and how many records can they handle?

The three steps of ``bench floor`` at four rates, as Arrow steps; at one of these rates also as row
steps and unchained; the highest rate that is held; and what a looser bound saves. PyFlink and
Bytewax run the same steps under the same load, in turns with ours, so that other activity on the
machine affects all alike. Our session stays open the whole time and is idle when the others run.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from itertools import zip_longest
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.max_rate import Climber, climb
from bench.peers import install, peers
from bench.realtime_run import Setup, take_turn
from tailrace.errors import TailraceError
from tailrace.report.machine import described
from tailrace.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from bench.peers import Peer, Result
    from bench.realtime_run import Turn

RATES_PER_S = (200, 2_000, 20_000, 100_000)
COMPARED_PER_S = 2_000
"""The rate at which kinds of steps, chains and peers are compared."""

BOUNDS_MS = (5.0, 20.0, 100.0)
STARTS_PER_S = {"arrow": 400_000.0, "row": 50_000.0}
"""The rate at which the search for the highest rate starts."""


class Rival:
    """A peer and the results of its turns; after a failure it takes no more turns."""

    def __init__(self, peer: Peer) -> None:
        """No turn taken yet."""
        self.peer = peer
        self.results: list[Result] = []
        self.missing: str | None = None

    def install(self) -> None:
        """Install its environment before anything is measured."""
        try:
            install(self.peer.environment)
        except TailraceError as error:
            self.missing = str(error)

    def turn(self, rate_per_s: float, seconds: float) -> Result | None:
        """Take a turn, or record why there is none."""
        if self.missing is not None:
            return None
        _say(f"{self.peer.name} at {rate_per_s:,.0f}/s")
        try:
            return self.peer.measure(rate_per_s, seconds)
        except TailraceError as error:
            self.missing = str(error)
            return None

    def compared(self, seconds: float) -> None:
        """Take a turn at the rate at which all are compared."""
        result = self.turn(COMPARED_PER_S, seconds)
        if result is not None:
            self.results.append(result)


def measure(*, quick: bool) -> dict[str, Any]:
    """Let all sides take turns, after a first one of ours that only warms up the JVM."""
    rounds, seconds, climb_s, tolerance = (1, 6.0, 3.0, 1.0) if quick else (3, 8.0, 5.0, 0.1)
    bounded_s = 6.0 if quick else 16.0
    rivals = [Rival(peer) for peer in peers()]
    for rival in rivals:
        rival.install()
    load_average = os.getloadavg()[0]
    spark = session("realtime", master="local[4]")
    try:
        _turn(spark, Setup(20_000, 5.0, settle_s=15.0))
        turns = _rounds(spark, rivals, rounds, seconds)
        highest = climb(_climbers(spark, rivals, climb_s), tolerance)
        bounds = [
            _turn(spark, Setup(2_000, bounded_s, bound_ms=bound, settle_s=10.0, interval_s=2.0))
            for bound in BOUNDS_MS
        ]
        crossing = None if quick else _turn(spark, Setup(COMPARED_PER_S, 65.0))
    finally:
        spark.stop()
    return {
        "rates": [at_rate(turns[f"{rate}/s"]) for rate in RATES_PER_S],
        "max_rate_per_s": round(highest["arrow"]),
        "row_steps": at_rate(turns["row"]),
        "max_rate_row_steps_per_s": round(highest["row"]),
        "chaining": chaining(turns[f"{COMPARED_PER_S}/s"], turns["apart"]),
        "bounds": [_bounded(turn, bound) for turn, bound in zip(bounds, BOUNDS_MS, strict=True)],
        "with_gaps": None if crossing is None else _with_gaps(crossing),
        "peers": [
            against(rival, turns[f"{COMPARED_PER_S}/s"], turns["row"], highest) for rival in rivals
        ],
        "compared_at_per_s": COMPARED_PER_S,
        "rounds": rounds,
        "counted_s": seconds,
        "load_average_before": round(load_average, 2),
        "machine": described(),
    }


def _rounds(
    spark: SparkSession, rivals: list[Rival], rounds: int, seconds: float
) -> dict[str, list[Turn]]:
    """In every round each of our settings and each peer takes a turn, ours between the peers'."""
    setups = {f"{rate}/s": Setup(rate, seconds) for rate in RATES_PER_S}
    setups["row"] = Setup(COMPARED_PER_S, seconds, rows=True)
    setups["apart"] = Setup(COMPARED_PER_S, seconds, chained=False)
    turns: dict[str, list[Turn]] = {name: [] for name in setups}
    for _ in range(rounds):
        waiting = list(rivals)
        for place, (name, setup) in enumerate(setups.items()):
            turns[name].append(_turn(spark, setup))
            if place % 2 and waiting:
                waiting.pop(0).compared(seconds)
        for rival in waiting:
            rival.compared(seconds)
    return turns


def _climbers(spark: SparkSession, rivals: list[Rival], seconds: float) -> dict[str, Climber]:
    """All sides in the order of their turns, ours between the peers'."""
    ours = {
        kind: Climber(start, partial(_try, spark, seconds, kind == "row"))
        for kind, start in STARTS_PER_S.items()
    }
    theirs = {
        rival.peer.name: Climber(rival.peer.start_per_s, partial(rival.turn, seconds=seconds))
        for rival in rivals
        if rival.missing is None
    }
    names = [name for pair in zip_longest(theirs, ours) for name in pair if name is not None]
    return {name: (ours | theirs)[name] for name in names}


def _try(spark: SparkSession, seconds: float, rows: bool, rate_per_s: float) -> Turn:
    return _turn(spark, Setup(rate_per_s, seconds, rows=rows))


def _turn(spark: SparkSession, setup: Setup) -> Turn:
    bound = "" if setup.bound_ms is None else f", within {setup.bound_ms:g} ms"
    kind = ("row" if setup.rows else "Arrow") + ("" if setup.chained else ", unchained")
    _say(f"tailrace at {setup.rate_per_s:,.0f}/s ({kind}{bound})")
    return take_turn(spark, setup)


def _say(what: str) -> None:
    sys.stderr.write(what + "\n")
    sys.stderr.flush()


def at_rate(turns: Sequence[Turn]) -> dict[str, Any]:
    """Turns at one rate as plain data: the median over the turns.

    ``within_batch`` says whether no turn contained a gap between two real-time batches,
    ``others_cores`` how many cores were busy with something else in the worst turn.
    """
    shown = {
        "rate_per_s": turns[0].rate_per_s,
        "p50_ms": round(median(turn.p50_ms for turn in turns), 2),
        "p95_ms": round(median(turn.p95_ms for turn in turns), 2),
        "p99_ms": round(median(turn.p99_ms for turn in turns), 2),
        "cpu_s_per_million": round(median(turn.cpu_s_per_million for turn in turns), 2),
        "records": sum(turn.records for turn in turns),
        "others_cores": round(max(turn.others_cores for turn in turns), 2),
        "within_batch": all(turn.batches == 1 for turn in turns),
    }
    sizes = [t.records_per_hand_over for t in turns if t.records_per_hand_over is not None]
    if sizes:
        shown["records_per_hand_over"] = shown["k"] = round(median(sizes), 1)
    return shown


def chaining(chained: Sequence[Turn], apart: Sequence[Turn]) -> dict[str, float]:
    """The gain from sharing one hand-over; the ratio is the median over the rounds."""
    return {
        "chained_p50_ms": round(median(turn.p50_ms for turn in chained), 2),
        "unchained_p50_ms": round(median(turn.p50_ms for turn in apart), 2),
        "ratio_p50": round(
            median(b.p50_ms / a.p50_ms for a, b in zip(chained, apart, strict=True)), 2
        ),
    }


def _bounded(turn: Turn, bound_ms: float) -> dict[str, Any]:
    return {
        "bound_ms": bound_ms,
        "mean_ms": round(turn.mean_ms, 2),
        "share_kept": turn.share_kept,
        "cpu_s_per_million": round(turn.cpu_s_per_million, 2),
        "others_cores": round(turn.others_cores, 2),
        "records_per_hand_over": round(turn.records_per_hand_over or 0.0, 1),
    }


def _with_gaps(turn: Turn) -> dict[str, Any]:
    """A turn longer than a real-time batch: its slowest record waited for the next batch."""
    return {
        "batches": turn.batches,
        "p50_ms": round(turn.p50_ms, 2),
        "p99_ms": round(turn.p99_ms, 2),
        "max_ms": round(turn.max_ms, 2),
    }


def against(
    rival: Rival, arrow: Sequence[Turn], row: Sequence[Turn], rates_per_s: dict[str, float]
) -> dict[str, Any]:
    """A peer compared with our Arrow and row steps; ratios above 1 are in our favour."""
    peer = rival.peer
    named = {"name": peer.name, "version": peer.version}
    if rival.missing is not None:
        return {**named, "missing": rival.missing}
    p50, p99 = (median(getattr(r, key) for r in rival.results) for key in ("p50_ms", "p99_ms"))
    theirs_per_s = rates_per_s[peer.name]
    ratios = {
        kind: {
            "p50": round(p50 / median(turn.p50_ms for turn in turns), 2),
            "p99": round(p99 / median(turn.p99_ms for turn in turns), 2),
            "rate": _over(rates_per_s[kind], theirs_per_s),
        }
        for kind, turns in (("arrow", arrow), ("row", row))
    }
    return {
        **named,
        "settings": " ".join(peer.arguments),
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "max_rate_per_s": round(theirs_per_s),
        "ratios": ratios,
    }


def _over(ours: float, theirs: float) -> float | None:
    return round(ours / theirs, 2) if theirs else None


def table(result: dict[str, Any]) -> Table:
    """The result as a table."""
    shown = Table(title="Three Python steps in real-time mode, latency in ms within a batch")
    for column in ("", "records/s", "p50", "p95", "p99", "highest rate"):
        shown.add_column(column, justify="left" if not column else "right")
    compared = result["compared_at_per_s"]
    for row in result["rates"]:
        top = f"{result['max_rate_per_s']:,}" if row["rate_per_s"] == compared else ""
        shown.add_row("Arrow steps", *_cells(row), top)
    row_steps = result["row_steps"]
    shown.add_row("row steps", *_cells(row_steps), f"{result['max_rate_row_steps_per_s']:,}")
    for peer in result["peers"]:
        if "missing" in peer:
            shown.add_row(peer["name"], "missing")
            continue
        figures = f"{compared:,}", f"{peer['p50_ms']:g}", "", f"{peer['p99_ms']:g}"
        shown.add_row(peer["name"], *figures, f"{peer['max_rate_per_s']:,}")
    costs = ", ".join(
        f"{b['cpu_s_per_million']:g} at {b['bound_ms']:g} ms" for b in result["bounds"]
    )
    shown.caption = (
        f"Chained, p50 is {result['chaining']['ratio_p50']} times lower. "
        f"CPU seconds per million records by bound: {costs}."
    )
    return shown


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (f"{row['rate_per_s']:,}", *(f"{row[key]:g}" for key in ("p50_ms", "p95_ms", "p99_ms")))
