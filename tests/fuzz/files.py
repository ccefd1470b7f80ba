"""Damages the files that Tailrace keeps, and reads them: the same data, or a sentence.

``python -m tests.fuzz.files --cases 100000 --seed 1``. Every bit, byte and cut of small state
files, claims and traces comes first, as far as there are cases for it; then blocks are changed,
zeroed, doubled, lost, inserted, swapped and spliced at random, and files of whole state
directories taken for each other. It is a failure if reading gives other data, raises anything but
a ``TailraceError`` of one sentence, takes seconds or hundreds of megabytes, or if a state
directory that was refused is not left as it was.

Bytes that no checksum protects (values by themselves, traces of version 1, files whose checksum
was made to fit) may be read as something else; nothing else is allowed of them.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from tailrace.errors import TailraceError
from tailrace.load import Texts, Trace
from tailrace.state.files import read_claim, read_link, read_records
from tailrace.state.plain import NotPlain, dumps, loads
from tailrace.state.state import State
from tailrace.state.store import Store

from . import damage
from .damage import Damaged, Images

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_S = 10.0
MOST_GROWTH_KIB = 300_000
SHOWN = 20
FORMAT_1 = Path(__file__).parents[1] / "state" / "format1" / "count"
TRACES_1 = Path(__file__).parents[1] / "load"


class Hung(BaseException):
    """A case took too long; no reader may catch it."""


@dataclass(frozen=True)
class Target:
    """Files that are damaged, and how they are read.

    ``read`` gets the directory; its result is compared with that of the whole files. ``protected``
    says that other data is a failure, ``sealed`` makes a checksum fit again after the damage.
    """

    name: str
    images: Images
    read: Callable[[Path], Any]
    protected: bool = True
    may_lose: bool = True
    may_turn: bool = False
    sealed: Callable[[bytes], bytes] | None = None


@dataclass
class Summary:
    """What came of the cases."""

    cases: int = 0
    refused: int = 0
    same: int = 0
    unprotected: int = 0
    silently_wrong: int = 0
    other_exceptions: int = 0
    too_slow_or_large: int = 0
    by_target: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """How many cases are failures."""
        return self.silently_wrong + self.other_exceptions + self.too_slow_or_large

    def count(self, target: Target, how: str, outcome: str, detail: str = "") -> None:
        """Add a case."""
        self.cases += 1
        setattr(self, outcome, getattr(self, outcome) + 1)
        self.by_target[f"{target.name}: {outcome}"] += 1
        if detail and len(self.failures) < SHOWN:
            self.failures.append(f"{target.name}: {how}: {outcome}: {detail}")


# --- what is damaged ----------------------------------------------------------------------------


def _value(draw: random.Random, batch: int) -> dict[str, Any]:
    return {"n": batch, "text": "zürich" * draw.randrange(9), "seen": [batch, 1.5, None, {batch}]}


def _write(directory: Path, draw: random.Random, first: int, last: int) -> None:
    """Batches of a partition: a snapshot, deltas, and at times another snapshot."""
    store = Store(directory, most_deltas=3)
    for batch in range(first, last + 1):
        store.open(batch - 1)
        for key in draw.sample(range(12), 4):
            store.touch(key)
            if draw.random() < 0.2:
                store.forget(key)
            else:
                store.put(key, State(_value(draw, batch), draw.choice((None, 10**15 + batch))))
        store.newest_event_us = 10**15 + batch
        store.write(batch)


def _read_store(directory: Path, version: int) -> Any:
    """The states of both partitions."""
    return [_read_partition(directory / partition, version) for partition in ("0", "1")]


def _read_first(directory: Path) -> Any:
    """The states of one partition after its first batch."""
    return _read_partition(directory / "0", 0)


def _read_partition(directory: Path, version: int) -> Any:
    """The states of a partition; if it is refused it must be left as it was."""
    store, before = Store(directory), _images(directory)
    try:
        store.open(version)
    except TailraceError:
        if _images(directory) != before:
            raise AssertionError("a store that was refused was changed") from None
        raise
    states = {key: (dict(state), state.timer_us) for key, state in store.values.items()}
    return states, store.newest_event_us, store.size_bytes


def _read_file(directory: Path, name: str) -> Any:
    version, _, rest = name.partition("-")
    link = read_link(directory / "0", int(version), rest.partition(".")[0])
    return link, list(read_records(directory / "0", link))


def _read_claim(directory: Path) -> Any:
    found = read_claim(directory / "0")
    if found is None:
        raise TailraceError("There is no claim.")
    return found


def _read_value(directory: Path) -> Any:
    try:
        return loads((directory / "value").read_bytes())
    except NotPlain as error:
        raise TailraceError(f"{error!r}.") from error


def _images(directory: Path) -> Images:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def _stores(place: Path, draw: random.Random) -> Iterator[Target]:
    """Whole directories of two partitions, in which a version is opened."""
    for name, first, may_turn in (("format 2", 0, True), ("format 1", 6, False), ("both", 6, True)):
        root = place / name
        if first:
            shutil.copytree(FORMAT_1, root)
            (root / "partitions").unlink()
        last = 5 if name == "format 1" else first + 4
        for partition in ("0", "1"):
            _write(root / partition, draw, first, last if last >= first else -1)
        read = _reader(_read_store, last)
        yield Target(f"store of {name}", _images(root), read, may_turn=may_turn)
        for partition in ("0", "1"):
            Store(root / partition).open(last)
        yield Target(f"store of {name}, opened", _images(root), read, may_turn=may_turn)
    root = place / "contested"
    for partition in ("0", "1"):
        _write(root / partition, draw, 0, 2)
        late = Store(root / partition)
        late.open(2)
        late.touch("late")
        late.put("late", State({"n": 666}))
        _write(root / partition, draw, 3, 3)
        late.write(3)
    read = _reader(_read_store, 3)
    yield Target("contested store", _images(root), read, may_lose=False, may_turn=True)


def _reader(read: Callable[..., Any], *arguments: Any) -> Callable[[Path], Any]:
    return lambda directory: read(directory, *arguments)


def _resealed(raw: bytes) -> bytes:
    """A state file of format 2 whose checksums fit again: header, and all."""
    header = raw[:57]
    seal = struct.pack(">I", zlib.crc32(header, zlib.crc32(b"0")))
    whole = header + seal + raw[61:-4]
    return whole + struct.pack(">I", zlib.crc32(whole))


def _resummed(raw: bytes) -> bytes:
    return raw[:-8] + struct.pack("<q", zlib.crc32(raw[:-8]))


def _single_files(place: Path, draw: random.Random) -> Iterator[Target]:
    """Single state files and claims, of both formats."""
    _write(place / "single" / "0", draw, 0, 2)
    shutil.copytree(FORMAT_1 / "0", place / "old" / "0")
    for name, root in (("format 2", place / "single"), ("format 1", place / "old")):
        images = _images(root)
        for kind in ("snapshot", "delta"):
            path = max(path for path in images if path.endswith(kind))
            read = _reader(_read_file, path.removeprefix("0/"))
            yield Target(f"{kind} of {name}", {path: images[path]}, read)
    images = _images(place / "single")
    path = min(path for path in images if path.endswith("snapshot"))
    alone = {path: images[path]}
    yield Target("resealed store", alone, _read_first, protected=False, sealed=_resealed)
    yield Target("claim", {"0/claim": (place / "single" / "0" / "claim").read_bytes()}, _read_claim)


def _traces(place: Path) -> Iterator[Target]:
    due, key = np.array([0, 5, 5, 90], np.int64), np.array([1, 0, 1, 1], np.int32)
    filler = Trace(due, key, np.array([9, 0, 3, 1], np.int32), ("", "Zürich"))
    texts = Texts.of(["é", "", "abc", "x"])
    stored = Trace(due, key, texts.sizes().astype(np.int32), ("", "Zürich"), texts)
    for name, trace in (("filler", filler), ("texts", stored)):
        trace.save(place / "a.trace")
        images = {"a.trace": (place / "a.trace").read_bytes()}
        yield Target(f"trace of {name}", images, _read_trace)
        yield Target(
            f"resummed trace of {name}", images, _read_trace, protected=False, sealed=_resummed
        )
    old = {"a.trace": (TRACES_1 / "format1.trace").read_bytes()}
    yield Target("trace of version 1", old, _read_trace, protected=False)


def _read_trace(directory: Path) -> Any:
    return Trace.load(directory / "a.trace")


def _values() -> Iterator[Target]:
    for number, value in enumerate(
        (
            (("key", 7), {"n": 1, "text": "x" * 40, "ratio": 0.5, "all": {1, 2}}, 10**15),
            [10**30, b"bytes" * 60, bytearray(9), Counter(a=3), ((1,), [True, None]) * 3],
        )
    ):
        yield Target(f"value {number}", {"value": dumps(value)}, _read_value, protected=False)


# --- the run ------------------------------------------------------------------------------------


@contextmanager
def _limited() -> Iterator[None]:
    """Ends a case that takes too long."""

    def ring(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, MOST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _lay_out(directory: Path, images: Images) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    for folder in {"0", "1", *(name.rpartition("/")[0] for name in images)}:
        (directory / folder).mkdir(parents=True, exist_ok=True)
    for name, raw in images.items():
        (directory / name).write_bytes(raw)


def _judge(target: Target, directory: Path, expected: Any) -> tuple[str, str]:
    """The outcome of reading what was laid out, and what to say if it is a failure."""
    before_kib = _peak_kib()
    try:
        with _limited():
            found = target.read(directory)
    except TailraceError as error:
        text = str(error)
        if "\n" in text or not text.endswith("."):
            return "other_exceptions", f"not a sentence: {text!r}"
        outcome = "refused", ""
    except Hung:
        return "too_slow_or_large", f"more than {MOST_S} s"
    except Exception as error:  # noqa: BLE001 - that there is none is what is tested
        return "other_exceptions", repr(error)
    else:
        same = not target.protected or bool(found == expected)
        outcome = "same" if same else "silently_wrong", "" if same else repr(found)[:200]
        if not target.protected:
            outcome = "unprotected", ""
    if _peak_kib() - before_kib > MOST_GROWTH_KIB:
        return "too_slow_or_large", f"took {_peak_kib() - before_kib:,} KiB"
    return outcome


def _systematic(targets: list[Target], draw: random.Random) -> Iterator[tuple[Target, Damaged]]:
    for target in targets:
        if len(target.images) == 1:
            ((name, raw),) = target.images.items()
            for changed, how in damage.everywhere(raw, draw):
                yield target, Damaged({name: changed}, how)


def _at_random(targets: list[Target], draw: random.Random) -> Iterator[tuple[Target, Damaged]]:
    """Cases without end; a claim or a trace is also spliced with other files of all kinds."""
    while True:
        target = draw.choice(targets)
        if len(target.images) == 1:
            ((name, raw),) = target.images.items()
            other = draw.choice(list(draw.choice(targets).images.values()))
            changed, how = damage.anywhere(raw, draw, other)
            yield target, Damaged({name: changed}, how)
        elif target.may_turn and draw.random() < 0.01:
            yield target, damage.turned(target.images)
        else:
            yield target, damage.among(target.images, draw, may_lose=target.may_lose)


def _chosen(
    targets: list[Target], draw: random.Random, cases: int
) -> Iterator[tuple[Target, Damaged]]:
    """All of what is systematic if it is up to two thirds of the cases, else a part of it."""
    planned = list(_systematic(targets, draw))
    most = cases * 2 // 3
    if len(planned) > most:
        planned = draw.sample(planned, most)
    yield from planned
    for case, _ in zip(_at_random(targets, draw), range(cases - len(planned)), strict=False):
        yield case


def fuzz(cases: int, seed: int) -> Summary:
    """Damage and read as often as told; the same seed does the same."""
    draw, summary = random.Random(seed), Summary()
    with (
        tempfile.TemporaryDirectory() as place,
        mock.patch("os.urandom", draw.randbytes),
        mock.patch("os.fsync", return_value=None),
    ):
        made = Path(place) / "made"
        made.mkdir()
        targets = [*_single_files(made, draw), *_stores(made, draw), *_traces(made), *_values()]
        directory = Path(place) / "damaged"
        expected = {}
        for target in targets:
            _lay_out(directory, target.images)
            expected[target.name] = target.read(directory)
        for target, damaged in _chosen(targets, draw, cases):
            images = damaged.images
            if target.sealed:
                images = {name: target.sealed(raw) for name, raw in images.items()}
            _lay_out(directory, images)
            outcome, detail = _judge(target, directory, expected[target.name])
            summary.count(target, damaged.how, outcome, detail)
    return summary


def main() -> int:
    """Run, print the summary as JSON; 1 if anything failed."""
    parser = argparse.ArgumentParser(description="Damage files and read them.")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    started_s = time.monotonic()
    summary = fuzz(asked.cases, asked.seed)
    told = {**vars(summary), "by_target": dict(sorted(summary.by_target.items()))}
    told["seconds"] = round(time.monotonic() - started_s, 1)
    print(json.dumps(told, indent=2, ensure_ascii=False))
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
