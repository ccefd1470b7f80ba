"""A profile from the progress log of any Structured Streaming query, with no Tailrace in it.

Spark tells of every batch how many records it held and how long it took
(``StreamingQueryProgress``). Over batches of different sizes that gives ``D(n) = a + c*n``: what a
batch costs, and what a record costs. Three kinds of log are read: one ``progress.json`` a line,
pretty-printed or in a list as well; the log of a driver, in which progress stands between other
lines; and Spark's event log.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, pairwise
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any, Final

from tailrace.constraint import SINK, SOURCE
from tailrace.errors import InputError
from tailrace.model.microbatch import BatchModel, BatchPoint, fit, spread
from tailrace.outside import LARGEST, MOST_MS, MOST_TASKS, shown
from tailrace.plan import Plan
from tailrace.profile.costs import BatchCosts
from tailrace.profile.profile import Origin, Profile, StepProfile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

STEP: Final = "query"
"""The one step of the profile: the log does not look inside the query."""

UNNAMED_KEY: Final = ("key",)
"""State is spread by key, and the log does not say by which columns."""

ENOUGH: Final = 8
"""Batches with records, so that one or two that were disturbed do not decide."""

WARM_UP_US: Final = 20_000_000
"""How long the batches of a new JVM are slower than those that follow, about."""

SHORTEST_REAL_TIME_MS: Final = 5_000.0
"""Spark refuses shorter real-time batches unless told otherwise (``minBatchDuration``)."""

_DECODER: Final = json.JSONDecoder()
_PIECE: Final = 4_096
_INDENT: Final = 1_000
_Offsets = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Event:
    """What counts of the progress of one trigger.

    ``records`` are those that the batch took, where Spark may have ``counted`` some twice.
    ``taken`` is the span of Kafka's offsets that it moved over, and ``latest`` the end of the
    topics when it was cut, both None for other sources.
    """

    name: str
    query_id: str
    run: str
    batch: int
    start_us: int
    records: int
    counted: int
    duration_ms: float | None
    phases_ms: dict[str, float]
    partitions: int | None
    source_partitions: int | None
    taken: int | None
    latest: int | None
    written: int | None

    @property
    def query(self) -> str:
        """What the query is called; its id if it has no name."""
        return self.name or self.query_id or STEP


@dataclass(frozen=True, slots=True)
class LogReading:
    """What a progress log says.

    Beside the profile: ``model`` is ``D(n)``, fitted to ``points``, the batches with records;
    ``phases_ms`` the median of each phase that Spark tells apart; ``notes`` what to know.
    """

    profile: Profile
    model: BatchModel
    points: tuple[BatchPoint, ...]
    phases_ms: dict[str, float]
    notes: tuple[str, ...]


def read(lines: Iterable[str], name: str | None = None, cores: int = 1) -> LogReading:
    """Read a progress log.

    All of the query becomes one step. Its ``service_ms`` is the slope c of ``D(n)`` times the
    tasks that share the work: P partitions on ``cores`` cores take ``ceil(P/cores)`` turns, so
    that is ``c*P/ceil(P/cores)``, and the plan of the profile gives c back. P is known from state
    and from Kafka, and otherwise 1: then no number of cores makes a prediction faster.

    Args:
        lines: The log, line by line.
        name: The name, or the id, of the query; needed where the log holds several.
        cores: How many tasks could run at once, which no log says.

    Raises:
        InputError: If a line is broken, or the log says too little.
    """
    if not 1 <= cores <= MOST_TASKS:
        raise InputError(f"A query cannot run on {cores} cores: give from 1 to {MOST_TASKS:,}.")
    notes: list[str] = []
    text = lines if isinstance(lines, str) else "\n".join(line.rstrip("\r\n") for line in lines)
    runs = _micro_batches(_runs(_chosen(list(_events(text, notes)), name)), notes)
    batches = _batches(runs)
    newest = batches[-1]
    points = tuple(
        BatchPoint(event.records, event.duration_ms, event.start_us)
        for event in batches
        if event.duration_ms is not None
    )
    model = fit(points, math.inf)
    rate_per_s, seconds = _rate(runs)
    partitions = newest.partitions or newest.source_partitions or 1
    step = StepProfile(
        STEP,
        model.per_record_ms * partitions / math.ceil(partitions / cores),
        ratio=_ratio(batches),
        keyed_by=UNNAMED_KEY if newest.partitions else (),
    )
    profile = Profile(
        name=newest.query,
        steps=(step,),
        streams=((SOURCE, STEP), (STEP, SINK)),
        rate_per_s=rate_per_s,
        plan=Plan(
            _interval_ms(runs),
            ((STEP,),),
            {STEP: newest.partitions} if newest.partitions else {},
        ),
        cores=cores,
        source_partitions=newest.source_partitions or 1,
        seconds=seconds,
        records=sum(event.records for event in chain(*runs)),
        batch=BatchCosts(
            model.fixed_ms,
            0.0,
            task_ms=0.0,  # what tasks take is in what every batch pays: the log has them all alike
            noise=spread(points, model, math.inf),
            cpu_record_ms=0.0,
        ),
        origin=Origin.PROGRESS,
    )
    notes += _doubts(runs, points)
    if cores > partitions == 1:
        notes.append(
            "Nothing in the log tells of more than one partition, so more cores are predicted to "
            "be of no use."
        )
    return LogReading(profile, model, points, _phases_ms(batches), tuple(notes))


# --- estimates ------------------------------------------------------------------------------------


def _batches(runs: Sequence[list[Event]]) -> list[Event]:
    """The batches to learn from: those with records, without the cold ones if enough are left.

    A run may have a JVM of its own, which first loads classes and compiles what it finds to be
    hot; its first batch holds, besides, what has piled up.
    """
    with_records = [[e for e in run if e.records and e.duration_ms is not None] for run in runs]
    every = list(chain(*with_records))
    later = [event for run in with_records for event in run[1:]]
    warm = [e for run in with_records for e in run if e.start_us - run[0].start_us >= WARM_UP_US]
    enough = max(ENOUGH, len(every) / 2)
    found = next((part for part in (warm, later) if len(part) >= enough), every)
    if len(found) < ENOUGH:
        raise InputError(
            f"The progress log has {len(found)} finished batches with records of query "
            f"'{runs[-1][-1].query}' and {ENOUGH} are needed to tell what a batch and a record "
            "cost: log a longer time."
        )
    return found


def _neighbours(runs: Sequence[list[Event]]) -> Iterator[tuple[Event, Event]]:
    """Each event of a run with the next one, where no batch between them is missing."""
    for run in runs:
        yield from ((a, b) for a, b in pairwise(run) if b.batch - a.batch in (0, 1))


def _rate(runs: Sequence[list[Event]]) -> tuple[float, float]:
    """Records that arrive each second, and over how many seconds that was seen.

    What a batch takes has arrived since the batch before was cut. A batch with a row limit leaves
    some behind; Kafka then says by how much its topics grew for what the batch took of them.
    """
    pairs = list(_neighbours(runs))
    if not any(after.start_us > before.start_us for before, after in pairs):
        pairs = list(pairwise(sorted(chain(*runs), key=lambda event: event.start_us)))
    seconds = sum(after.start_us - before.start_us for before, after in pairs) / 1e6
    arrived = math.fsum(_arrived(before, after) for before, after in pairs)
    return (arrived / seconds if seconds else 0.0), seconds


def _arrived(before: Event, after: Event) -> float:
    if before.latest is None or after.latest is None or not after.taken:
        return after.records
    return after.records * max(0, after.latest - before.latest) / after.taken


def _interval_ms(runs: Sequence[list[Event]]) -> float:
    """The time that cuts keep between them; 0 if one batch follows the other.

    A batch that is cut later than the one before has ended waited for its time. Two such cuts in
    a row are an interval apart; a late batch between them would be cut at once, at any moment.
    """
    kept: list[float] = []
    seen = 0
    for run in runs:
        waited = False
        for before, after in pairwise(event for event in run if event.records):
            gap_ms = (after.start_us - before.start_us) / 1e3
            next_one = after.batch == before.batch + 1 and before.duration_ms is not None
            slack_ms = gap_ms - (before.duration_ms or 0.0)
            waits = next_one and slack_ms > max(15.0, 0.05 * gap_ms)
            kept += [gap_ms] if waits and waited else []
            waited, seen = waits, seen + 1
    if len(kept) < max(3, 0.1 * seen):
        return 0.0
    usual_ms = median(kept)
    near = [gap_ms for gap_ms in kept if abs(gap_ms - usual_ms) <= 0.05 * usual_ms]
    return float(round(fmean(near))) if 2 * len(near) >= len(kept) else 0.0


def _ratio(batches: Sequence[Event]) -> float:
    """Records written for each one read, where the sink counts them."""
    counted = [event for event in batches if event.written is not None]
    taken = sum(event.records for event in counted)
    return sum(event.written or 0 for event in counted) / taken if taken else 1.0


def _phases_ms(batches: Sequence[Event]) -> dict[str, float]:
    names = dict.fromkeys(chain.from_iterable(event.phases_ms for event in batches))
    return {
        name: median(event.phases_ms[name] for event in batches if name in event.phases_ms)
        for name in names
    }


def _doubts(runs: Sequence[list[Event]], points: Sequence[BatchPoint]) -> Iterator[str]:
    sizes = [point.records for point in points]
    least, *_, most = quantiles(sizes, n=10)
    if most - least < 0.2 * median(sizes):
        yield (
            "The batches hold nearly the same number of records, so what a batch costs and what a "
            "record costs can hardly be told apart: log a time with another rate as well."
        )
    missing = sum(max(0, b.batch - a.batch - 1) for run in runs for a, b in pairwise(run))
    if missing:
        yield f"The log lacks {missing} batches, which the rate leaves out."
    corrected = sum(event.counted > event.records for event in chain(*runs))
    if corrected:
        yield (
            f"Spark counted more records than the offsets of Kafka hold in {corrected} batches, "
            "as it does when tasks are tried again: the offsets were taken."
        )
    partitions = Counter(event.partitions for event in chain(*runs) if event.partitions)
    if len(partitions) > 1:
        yield "The number of state partitions changed: the profile has the newest."


# --- queries and runs -----------------------------------------------------------------------------


def _chosen(events: list[Event], name: str | None) -> list[Event]:
    """The events of one query."""
    if not events:
        raise InputError(
            "The progress log holds no progress of a streaming query: write "
            "query.lastProgress.json to it, one a line."
        )
    known = list(dict.fromkeys(event.query for event in events))
    names = ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")
    if name is None:
        if len(known) > 1:
            raise InputError(
                f"The progress log holds several queries ({names}): choose one by its name or id."
            )
        return events
    found = [event for event in events if name in (event.query, event.query_id)]
    if not found:
        raise InputError(f"The progress log holds no query '{name}': choose one of {names}.")
    return found


def _runs(events: list[Event]) -> list[list[Event]]:
    """The events by run, the newest last, each in the order of time and each trigger once.

    Without the id of the run, batch ids that start again or repeat show that another one began.
    """
    runs: dict[str, list[Event]] = {}
    unique = {(event.run, event.batch, event.start_us): event for event in events}
    restarts, expected = 0, 0
    for event in sorted(unique.values(), key=lambda event: (event.start_us, event.batch)):
        if not event.run:
            restarts += event.batch < expected
            expected = event.batch + (event.records > 0)  # an idle trigger has the id to come
        runs.setdefault(event.run or f"#{restarts}", []).append(event)
    return sorted(runs.values(), key=lambda run: run[-1].start_us)


def _micro_batches(runs: list[list[Event]], notes: list[str]) -> list[list[Event]]:
    """The runs that are not in real-time mode, whose batches have a fixed length."""
    found = [run for run in runs if not _is_real_time(run)]
    if not found:
        raise InputError(
            f"Query '{runs[-1][-1].query}' looks like one in real-time mode, whose batches have "
            "a fixed length and do not show what a record costs: log it in micro-batch "
            "mode."
        )
    if len(found) < len(runs):
        notes.append(
            f"{len(runs) - len(found)} of {len(runs)} runs look like real-time mode, whose batches "
            "say nothing of what a record costs: they are left out."
        )
    return found


def _is_real_time(run: list[Event]) -> bool:
    """Whether batches follow one another and all but last a whole number of seconds.

    Nothing in the progress names the mode. In it the phase ``addBatch`` ends when the time of the
    batch is up, a few milliseconds after; work that takes seconds varies more than that.
    """
    busy = [event.phases_ms.get("addBatch", 0.0) for event in run[1:]]
    if len(busy) < 3 or min(busy) < SHORTEST_REAL_TIME_MS:
        return False
    told_ms = math.floor(min(busy) / 1e3) * 1e3
    gaps_ms = ((b.start_us - a.start_us) / 1e3 - (a.duration_ms or 0.0) for a, b in pairwise(run))
    return max(busy) <= told_ms + max(250.0, 0.02 * told_ms) and median(gaps_ms) < 250.0


# --- one event ------------------------------------------------------------------------------------


def _events(text: str, notes: list[str]) -> Iterator[Event]:
    """Every progress in the log; what stands between log lines may be anything.

    An object is expected to be progress where it stands by itself, which is at the start of a line
    or in a list. Behind other text it is looked at, and left alone if it is something else.
    """
    at = last = 0
    while (at := text.find("{", at)) >= 0:
        before = text[max(last, at - _INDENT) : at]
        alone, indent = _stands_alone(before, first=at - len(before) == last)
        try:
            found, end = _decoded(text, at)
        except RecursionError:
            raise InputError(
                f"Line {_line(text, at)} of the progress log is nested too deeply: delete it."
            ) from None
        except ValueError:
            if alone and re.compile(rf"\n[ \t\[,]{{0,{indent}}}\{{").search(text, at):
                raise InputError(
                    f"Line {_line(text, at)} of the progress log is not whole JSON: delete it, and "
                    "write progress.json to the log and nothing shorter."
                ) from None
            if alone:
                notes.append("The last progress of the log is cut off: it is left out.")
                return
            at += 1
            continue
        progress = found.get("progress") if "Event" in found or len(found) == 1 else found
        if isinstance(progress, dict) and {"batchId", "timestamp"} <= progress.keys():
            try:
                yield _event(progress)
            except InputError as error:
                raise InputError(
                    f"Line {_line(text, at)} of the progress log {error}: write progress.json to "
                    "it as Spark gives it."
                ) from None
        elif alone and "Event" not in found:
            raise InputError(
                f"Line {_line(text, at)} of the progress log is no progress of a streaming query: "
                "delete it, or give the log that holds query.lastProgress.json."
            )
        at = end
        last = end if alone else last


def _stands_alone(before: str, *, first: bool) -> tuple[bool, int]:
    """Whether only blanks, commas and brackets stand before an object on its line; how many.

    ``first`` says that nothing came before that text.
    """
    said = before.rstrip(" \t[,")
    return (first if not said else said.endswith("\n")), len(before) - len(said)


def _decoded(text: str, at: int) -> tuple[dict[str, Any], int]:
    """The object that starts there, and where it ends.

    An error takes as long as the text before it is, so it is looked for in a short piece first: the
    log of a driver is full of braces.
    """
    piece = text[at : at + _PIECE]
    try:
        found, length = _DECODER.raw_decode(piece)
    except json.JSONDecodeError as error:
        if len(piece) < _PIECE or (error.pos < _PIECE - 8 and "Untermin" not in error.msg):
            raise
        found, end = _DECODER.raw_decode(text, at)
        return found, end
    return found, at + length


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _event(progress: dict[str, Any]) -> Event:
    sources = _objects(progress, "sources")
    spans = [_span(source) for source in sources]
    counts = [_count(source, "numInputRows") for source in sources]
    counted = sum(counts) if sources else _count(progress, "numInputRows")
    records = counted
    if sources:
        pairs = zip(counts, spans, strict=True)
        records = sum(n if span is None else min(n, span) for n, span in pairs)
    phases_ms = {
        name: _number(value, f"durationMs.{name}")
        for name, value in _object(progress, "durationMs").items()
    }
    whole_ms = phases_ms.pop("triggerExecution", None)
    if whole_ms is None and progress.get("batchDuration") is not None:
        whole_ms = _number(progress["batchDuration"], "batchDuration")
    if whole_ms is None and phases_ms:
        whole_ms = math.fsum(phases_ms.values())
    operators = _objects(progress, "stateOperators")
    ends = [_offsets(source, "endOffset") for source in sources]
    latest = [_offsets(source, "latestOffset") for source in sources]
    written = _object(progress, "sink").get("numOutputRows")
    return Event(
        name=str(progress.get("name") or ""),
        query_id=str(progress.get("id") or ""),
        run=str(progress.get("runId") or ""),
        batch=_count(progress, "batchId"),
        start_us=_start_us(progress["timestamp"]),
        records=records,
        counted=counted,
        duration_ms=whole_ms,
        phases_ms=phases_ms,
        partitions=max((_count(o, "numShufflePartitions") for o in operators), default=0) or None,
        source_partitions=_total(None if end is None else len(end) for end in ends),
        taken=_total(spans),
        latest=_total(None if end is None else sum(end.values()) for end in latest),
        written=written if isinstance(written, int) and 0 <= written <= LARGEST else None,
    )


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum, if there is something to sum and all of it is known."""
    known = list(counts)
    return None if not known or None in known else sum(filter(None, known))


def _span(source: dict[str, Any]) -> int | None:
    """The offsets of Kafka that a batch moved over: no fewer than its records, and often as many.

    Spark counts a record again when a task is tried again, or a plan reads it twice.
    """
    start, end = _offsets(source, "startOffset"), _offsets(source, "endOffset")
    if start is None or end is None:
        return None
    return sum(max(0, offset - start.get(where, 0)) for where, offset in end.items())


def _offsets(source: dict[str, Any], name: str) -> _Offsets | None:
    """Kafka's ``{"topic": {"partition": offset}}``; None for what other sources write."""
    found = source.get(name)
    if "kafka" not in str(source.get("description")).lower():
        return None
    if isinstance(found, str):  # so in the event log
        try:
            found = json.loads(found)
        except ValueError:
            return None
    if not isinstance(found, dict) or not all(isinstance(part, dict) for part in found.values()):
        return None
    flat = {(t, p): offset for t, part in found.items() for p, offset in part.items()}
    known = all(isinstance(offset, int) and 0 <= offset <= LARGEST for offset in flat.values())
    return flat if known else None


def _object(found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    if not isinstance(value, dict | None):
        raise InputError(f"has {shown(value)} as {name}, which is not an object")
    return value or {}


def _objects(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = found.get(name) or []
    if not isinstance(value, list) or not all(isinstance(inner, dict) for inner in value):
        raise InputError(f"has {shown(value)} as {name}, which is not a list of objects")
    return value


def _count(found: dict[str, Any], name: str) -> int:
    value = found.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise InputError(f"has {shown(value)} as {name}, which is not a count")
    return value


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_MS:
        raise InputError(f"has {shown(value)} as {name:.60}, which is not a time in milliseconds")
    return float(value)


def _start_us(value: object) -> int:
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        raise InputError(f"has {shown(value)} as timestamp, which is not a time") from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1e6)
