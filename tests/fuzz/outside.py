"""Mutated command lines and files for every command that plans: none may surprise.

A case is made of a seed and a number alone, so that any of them can be repeated::

    python -m tests.fuzz.outside --cases 100000 --seed 1 --jobs 2
    python -m tests.fuzz.outside --seed 1 --only 4711

A case fails by a traceback, by more than five seconds of CPU time, by a number in JSON that is not
finite, or by a control character in what it prints. Each case runs in this process, through the
command line's own ``main``; a process that no longer answers is ended and counts as a hang.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import multiprocessing.connection
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace import cli, rehearsal
from tailrace.model import capacity, chained_queries, progress, size
from tailrace.model.forecasting import alarm
from tailrace.report import comparison, curve, ledger, picture, recorded, series, sizes

from . import mutations, seeds

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 5.0
"""The CPU time that a case may take."""

STALLED_S = 60.0
"""After this time without an answer, by the clock, a process is ended."""

MEMORY_BYTES = 6 << 30
SHOWN = 10

WARM = (
    *(capacity, progress, chained_queries, size, alarm, curve, ledger, series),
    *(comparison, picture, recorded, rehearsal, sizes),
)
"""What commands import when they are called: at once here, so that no case pays for it."""

GOOD = ("answered", "refused", "usage")
BAD = ("tracebacks", "hangs", "nonfinite", "escapes", "sentences")

LONGEST_SENTENCE = 1_000
_NOT_FINITE = re.compile(r"(?<![\w'])-?(nan|inf)(?![\w'])")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Case:
    """A command line, and the files that it names."""

    arguments: tuple[str, ...]
    files: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a case: one of ``GOOD`` or ``BAD``, and what was seen."""

    kind: str
    detail: str = ""


class _TooLong(BaseException):
    """The time of a case is up; no handler of the code under test catches it."""


# --- cases ----------------------------------------------------------------------------------------


def case(seed: int, index: int) -> Case:
    """The case of that number."""
    rng = random.Random(f"{seed}:{index}")
    command = rng.choice(tuple(seeds.COMMANDS))
    files: dict[str, bytes] = {}
    words = [command]
    for kind in seeds.COMMANDS[command].files:
        name = f"{len(files)}.{seeds.SUFFIXES.get(kind, kind)}"
        files[name] = _file(rng, kind)
        words.append(name)
    options, always = seeds.COMMANDS[command].options, seeds.COMMANDS[command].always
    chosen = rng.sample(options, k=_few(rng, min(4, len(options))))
    for option, kind, values in (*always, *chosen):
        words.append(option)
        if kind:
            name = f"{len(files)}.{seeds.SUFFIXES.get(kind, kind)}"
            files[name] = _file(rng, kind)
            words.append(name)
        elif values:
            odd = rng.random() < 0.35
            words.append(rng.choice(mutations.OPTION_VALUES if odd else values))
    words += ["--json"] if rng.random() < 0.5 else []
    if rng.random() < 0.03:
        words.insert(rng.randrange(len(words) + 1), rng.choice(mutations.OPTION_VALUES))
    return Case(tuple(word.replace("\0", "") for word in words), files)


def _few(rng: random.Random, most: int) -> int:
    return min(most, int(rng.expovariate(0.7)))


def _file(rng: random.Random, kind: str) -> bytes:
    """A file of that kind, whole or spoilt: by its values, by its text or by its bytes."""
    whole = rng.random() < 0.3
    if kind == "csv":
        text = seeds.rates(rng)
        if not whole:
            text = "\n".join(_cells(rng, text.split("\n")))
    elif kind == "json":
        data = seeds.profile(rng)
        for _ in range(0 if whole else 1 + _few(rng, 3)):
            data = mutations.spoil_value(rng, data)
        text = mutations.text_of(rng, data)
    else:
        lines = seeds.LINES[kind](rng)
        if not whole:
            at = rng.randrange(len(lines))
            lines[at] = mutations.spoil_value(rng, lines[at])
            if rng.random() < 0.3:  # all of them alike
                lines = [lines[at]] * len(lines)
        text = "".join(mutations.text_of(rng, line) + "\n" for line in lines)
    if not whole and rng.random() < 0.2:
        text = mutations.spoil_text(rng, text)
    made = mutations.encoded(rng, text)
    return mutations.spoil_bytes(rng, made) if not whole and rng.random() < 0.08 else made


def _cells(rng: random.Random, lines: list[str]) -> list[str]:
    """Rows of a CSV file with cells replaced, and rows moved, doubled or left out."""
    for _ in range(1 + _few(rng, 3)):
        at = rng.randrange(len(lines))
        cells = lines[at].split(",")
        kind = rng.random()
        if kind < 0.6:
            cells[rng.randrange(len(cells))] = rng.choice(mutations.CELLS)
            lines[at] = ",".join(cells)
        elif kind < 0.7:
            lines.insert(at, lines[rng.randrange(len(lines))])
        elif kind < 0.8 and len(lines) > 1:
            del lines[at]
        elif kind < 0.9:
            lines[at] += rng.choice((",", ",1", ";", "\r"))
        else:
            rng.shuffle(lines)
    return lines


# --- one case -------------------------------------------------------------------------------------


def judge(it: Case, room: Path) -> Verdict:
    """Run a case in an empty directory, and say what came of it."""
    for old in room.iterdir():
        if old.is_file():
            old.unlink()
    for name, data in it.files.items():
        (room / name).write_bytes(data)
    out, err = _stream(), _stream()
    try:
        with _place(room), _argv(it.arguments), _limit(), _caught(out, err):
            try:
                cli.main()
                code: object = 0
            except SystemExit as ended:
                code = ended.code
    except _TooLong:
        return Verdict("hangs", f"more than {LIMIT_S:g} s")
    except Exception as error:  # noqa: BLE001 - whatever comes is a finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "tailrace" in f.filename]
        at = " <- ".join(f"{Path(f.filename).name}:{f.lineno}" for f in (last, *ours[::-1][:3]))
        return Verdict("tracebacks", f"{type(error).__name__}: {error!s:.120} at {at}")
    return _read(code, _written(out), _written(err), as_json="--json" in it.arguments)


def _stream() -> io.TextIOWrapper:
    """Standard output as a program has it, which cannot encode everything."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def _read(code: object, out: str, err: str, *, as_json: bool) -> Verdict:
    """Judge what a command said by its code, its output and its errors."""
    if found := _CONTROL.search(out + err):
        return Verdict("escapes", repr((out + err)[max(0, found.start() - 40) :][:120]))
    if code == 0:
        return _answer(out, as_json=as_json)
    if code == 2 and "Usage:" in err:
        return Verdict("usage")
    one = err.startswith("tailrace: ") and err.endswith(".\n") and err.count("\n") == 1
    if code != 2 or out or not one or len(err) > LONGEST_SENTENCE:
        return Verdict("sentences", f"{code} {len(err)} {out[:50]!r} {err[:300]!r}")
    return Verdict("refused")


def _answer(out: str, *, as_json: bool) -> Verdict:
    """Judge an answer: its numbers are finite, in JSON and on the terminal alike."""
    finite = not as_json or _finite(json.loads(out, parse_constant=float))
    if not finite or _NOT_FINITE.search(out):
        return Verdict("nonfinite", out[:300])
    return Verdict("answered")


def _finite(data: Any) -> bool:
    if isinstance(data, dict):
        return all(map(_finite, data.values()))
    if isinstance(data, list):
        return all(map(_finite, data))
    return not isinstance(data, float) or math.isfinite(data)


@contextlib.contextmanager
def _place(room: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(room)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _argv(arguments: tuple[str, ...]) -> Iterator[None]:
    before, on_term = sys.argv, signal.getsignal(signal.SIGTERM)
    sys.argv = ["tailrace", *arguments]
    try:
        yield
    finally:
        sys.argv = before
        signal.signal(signal.SIGTERM, on_term)


@contextlib.contextmanager
def _caught(out: io.TextIOWrapper, err: io.TextIOWrapper) -> Iterator[None]:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    """Interrupt what takes too long; CPU time, as other work on the machine is not its fault."""

    def up(_number: int, _frame: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGPROF, up)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# --- many cases -----------------------------------------------------------------------------------


def many(
    seed: int, indices: range, jobs: int, seconds: float = math.inf
) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Judge cases in that number of processes, for no longer than that.

    Returns how many came to what, and the failures.
    """
    end = time.monotonic() + seconds
    context = multiprocessing.get_context("fork")
    tally: Counter[str] = Counter(dict.fromkeys((*GOOD, *BAD), 0))
    failures: list[dict[str, Any]] = []
    workers = [_Worker(context, seed, indices[job::jobs]) for job in range(jobs)]
    while any(worker.left for worker in workers) and time.monotonic() < end:
        multiprocessing.connection.wait(
            [worker.answers for worker in workers if worker.left], timeout=1.0
        )
        for worker in workers:
            for index, verdict in worker.take():
                tally[verdict.kind] += 1
                if verdict.kind in BAD:
                    failures.append({"index": index, "kind": verdict.kind, "saw": verdict.detail})
    for worker in workers:
        worker.process.kill()
    return tally, sorted(failures, key=lambda failure: int(failure["index"]))


class _Worker:
    """A process that judges cases one by one, begun anew where one of them ends it."""

    def __init__(self, context: Any, seed: int, indices: range) -> None:
        self.context, self.seed, self.left = context, seed, list(indices)
        self._begin()

    def _begin(self) -> None:
        self.answers, theirs = self.context.Pipe(duplex=False)
        self.process = self.context.Process(
            target=_work, args=(theirs, self.seed, self.left), daemon=True
        )
        self.process.start()
        theirs.close()
        self.heard = time.monotonic()

    def take(self) -> Iterator[tuple[int, Verdict]]:
        """Answers that have come; a process that ended or stalled costs the case it was at."""
        while self.left:
            try:
                if not self.answers.poll():
                    break
                index, verdict = self.answers.recv()
            except EOFError:
                self.process.join()
                yield self.left.pop(0), Verdict("hangs", f"process ended: {self.process.exitcode}")
                self._begin()
                break
            self.heard = time.monotonic()
            self.left.remove(index)
            yield index, verdict
        if self.left and time.monotonic() - self.heard > STALLED_S:
            self.process.kill()
            self.process.join()
            yield self.left.pop(0), Verdict("hangs", f"no answer in {STALLED_S:g} s")
            self._begin()


def _work(answers: Any, seed: int, indices: list[int]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as room:
        for index in indices:
            answers.send((index, judge(case(seed, index), Path(room))))
    answers.close()


def summary(seed: int, tally: Counter[str], failures: list[dict[str, Any]]) -> dict[str, Any]:
    """The result as data; every failure names the command that repeats it."""
    again = f"python -m tests.fuzz.outside --seed {seed} --only"
    places = Counter(f"{f['kind']}: {f['saw']}" for f in failures if f["kind"] == "tracebacks")
    return {
        "cases": sum(tally.values()),
        "seed": seed,
        **tally,
        "places": len({place.rpartition(" at ")[2] for place in places}),
        "failures": [
            failure | {"again": f"{again} {failure['index']}"} for failure in failures[:SHOWN]
        ],
    }


def main() -> None:
    """Run many cases, or one of them, and fail if any does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--only", type=int, help="run this case alone, and show it")
    asked = parser.parse_args()
    indices = range(asked.cases) if asked.only is None else range(asked.only, asked.only + 1)
    if asked.only is not None:
        shown = case(asked.seed, asked.only)
        sys.stderr.write(f"{shown.arguments!r}\n")
        for name, data in shown.files.items():
            sys.stderr.write(f"{name}: {data!r:.3000}\n")
    tally, failures = many(asked.seed, indices, asked.jobs, asked.seconds)
    sys.stdout.write(json.dumps(summary(asked.seed, tally, failures), indent=2) + "\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
