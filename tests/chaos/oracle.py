"""What must be true of the outputs of a flow that was stopped between two batches.

Spark's log says which records were read; the load says what they were. Everything else follows.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from tailrace.errors import TailraceError
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.state.partitions import home_of, partitions_of
from tailrace.state.place import state_place
from tailrace.state.store import Store

from .feed import read_topic
from .flows import BAD, PUBLISHED, How, Place, load

if TYPE_CHECKING:
    from collections.abc import Iterable

SHOWN = 5


def problems(flow: str, place: Place, how: How) -> list[str]:
    """What is wrong with the outputs of a flow; nothing if all is well."""
    check = {
        "stateless": _stateless,
        "keyed": _keyed,
        "aggregation": _aggregation,
        "outputs": _outputs,
        "kafka": _kafka,
        "realtime": _realtime,
    }[flow]
    return check(place, how)


def committed(place: Place) -> int:
    """The last batch that Spark has committed; -1 before the first."""
    return BatchLog(place.spark).committed


def published(flow: str, place: Place) -> dict[str, int]:
    """Every file that a reader of the outputs would see, with its size."""
    while True:
        with suppress(FileNotFoundError):  # a batch was set aside meanwhile: look again
            return {
                str(path.relative_to(place.directory)): path.stat().st_size
                for name in PUBLISHED[flow]
                for path in _visible(place.directory / name)
            }


def _visible(directory: Path) -> list[Path]:
    """The parquet files that do not lie under a hidden name."""
    return sorted(directory.glob("[!._]*/[!._]*.parquet"))


def _offsets(place: Place) -> dict[str, Any]:
    """How far the last committed batch has read."""
    log = (place.spark / "offsets" / str(committed(place))).read_text()
    found: dict[str, Any] = json.loads(log.splitlines()[-1])
    return found


def _read(place: Place) -> list[int]:
    """The records that were read by the end of the last committed batch."""
    if committed(place) < 0:
        return []
    taken = _offsets(place)["next"]
    sources = len(taken)
    return sorted(p + sources * i for p, many in enumerate(taken) for i in range(many))


def _user(seq: int) -> str:
    trace = load()
    return str(trace.key_names[trace.key[seq]])


def _rows(directory: Path) -> list[dict[str, Any]]:
    """What a reader of the directory sees, each row with the batch that it is of."""
    found = []
    for path in _visible(directory):
        batch = int(path.parent.name.removeprefix("batch="))
        found += [row | {"batch": batch} for row in pq.ParquetFile(path).read().to_pylist()]
    return found


def _each_once(what: str, found: Iterable[int], expected: Iterable[int]) -> list[str]:
    """Compare numbers that must be the same, each of them once."""
    counts, wanted = Counter(found), set(expected)
    missing = sorted(wanted - counts.keys())
    foreign = sorted(counts.keys() - wanted)
    repeated = sorted(number for number, times in counts.items() if times > 1)
    kinds = {"missing": missing, "not read": foreign, "repeated": repeated}
    total = len(wanted)
    return [
        f"{what}: {len(numbers)} of {total} {kind} ({_some(numbers)})"
        for kind, numbers in kinds.items()
        if numbers
    ]


def _some(numbers: list[Any]) -> str:
    shown = ", ".join(map(str, numbers[:SHOWN]))
    return shown + (", ..." if len(numbers) > SHOWN else "")


def _stateless(place: Place, how: How) -> list[str]:  # noqa: ARG001 - as every check
    read, rows = _read(place), _rows(place.directory / "out")
    letters = [json.loads(r["record"])["seq"] for r in _rows(place.directory / "dead")]
    found = _each_once("records", (r["seq"] for r in rows), (s for s in read if s % BAD))
    found += _each_once("dead letters", letters, (s for s in read if s % BAD == 0))
    return found + _doubled(rows)


def _doubled(rows: list[dict[str, Any]]) -> list[str]:
    odd = [row["seq"] for row in rows if row["twice"] != 2 * row["seq"]]
    return [f"records with another content: {_some(odd)}"] if odd else []


def _outputs(place: Place, how: How) -> list[str]:  # noqa: ARG001 - as every check
    read = _read(place)
    whole, even = (_rows(place.directory / name) for name in ("all", "even"))
    found = _each_once("output all", (r["seq"] for r in whole), read)
    found += _each_once("output even", (r["seq"] for r in even), (s for s in read if s % 2 == 0))
    return found + _doubled(whole) + _doubled(even)


def _keyed(place: Place, how: How) -> list[str]:
    read, rows = _read(place), _rows(place.directory / "out")
    found = _each_once("records", (r["seq"] for r in rows), read)
    odd = [r["seq"] for r in rows if r["user"] != _user(r["seq"])]
    found += [f"records of another key: {_some(odd)}"] if odd else []
    reached: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        reached[row["user"]].append(row["n"])
    for user, times in sorted(Counter(map(_user, read)).items()):
        found += _each_once(f"counts of key {user}", reached[user], range(1, times + 1))
    return found + _state(place, how, read)


def _state(place: Place, how: How, read: list[int]) -> list[str]:
    """Compare what the keyed step remembers, as of the last committed batch."""
    kept: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as copied:  # a store that is opened writes down that it is
        shutil.copytree(place.checkpoint / "state", copied, dirs_exist_ok=True)
        step = state_place(Path(copied), how.step)
        for partition in range(partitions_of(step) or 0):
            store = Store(home_of(step) / str(partition))
            try:
                store.open(committed(place))
            except TailraceError as error:
                return [f"the state cannot be opened: {error}"]
            kept.update({str(key): int(state["n"]) for key, state in store.values.items()})
    expected = Counter(map(_user, read))
    odd = sorted(user for user in kept | expected if kept[user] != expected[user])
    return [f"state of key {u}: {kept[u]}, not {expected[u]}" for u in odd[:SHOWN]]


def _aggregation(place: Place, how: How) -> list[str]:  # noqa: ARG001 - as every check
    read, rows = _read(place), _rows(place.directory / "out")
    records, total = Counter(map(_user, read)), Counter[str]()
    for seq in read:
        total[_user(seq)] += seq
    by_user: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: int(row["batch"])):
        by_user[row["user"]].append(row)
    found = []
    for user in sorted(records.keys() | by_user.keys()):
        last = by_user[user][-1] if by_user[user] else {"records": 0, "total": 0}
        if (last["records"], last["total"]) != (records[user], total[user]):
            found.append(
                f"key {user} ends with {last['records']} records, sum {last['total']}, and had "
                f"{records[user]}, sum {total[user]}"
            )
        counts = [row["records"] for row in by_user[user]]
        if counts != sorted(set(counts)):
            found.append(f"the count of key {user} goes back or stays: {_some(counts[-9:])}")
    return found


def _kafka(place: Place, how: How) -> list[str]:  # noqa: ARG001 - as every check
    if committed(place) < 0:
        return []
    (ends,) = _offsets(place).values()
    read = [r for r in read_topic(place, "in") if r.offset < ends.get(str(r.partition), 0)]
    offered = {record.seq for record in read_topic(place, "in")}
    sent = read_topic(place, "out")
    missing = sorted({r.seq for r in read} - {r.seq for r in sent})
    foreign = sorted({r.seq for r in sent} - offered)
    odd = [r.seq for r in sent if r.twice != 2 * r.seq]
    named = {"missing": missing, "foreign": foreign, "with another content": odd}
    return [
        f"{len(numbers)} of {len(read)} records {kind} ({_some(numbers)})"
        for kind, numbers in named.items()
        if numbers
    ]


def _realtime(place: Place, how: How) -> list[str]:
    read = _read(place)
    lines = []
    for path in sorted((place.directory / "seen").iterdir()):
        lines += [line.split() for line in path.read_text().splitlines()]
    found = []
    missing = sorted(set(read) - {int(seq) for _, seq, _ in lines})
    if missing:
        found.append(f"{len(missing)} of {len(read)} records missing ({_some(missing)})")
    odd = [seq for user, seq, _ in lines if user != _user(int(seq))]
    found += [f"records of another key: {_some(odd)}"] if odd else []
    reached = {(user, int(n)) for user, _, n in lines}
    for user, times in sorted(Counter(map(_user, read)).items()):
        unreached = [n for n in range(1, times + 1) if (user, n) not in reached]
        if unreached:
            found.append(f"counts of key {user} never reached: {_some(unreached)}")
    return found + _state(place, how, read)
