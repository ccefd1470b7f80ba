"""Soak: does anything grow when a flow with state runs for long?

A keyed count in real-time mode under a bound, 5,000 records/s over 10,000 keys, sampled every half
minute: memory, threads, open files, the checkpoint, latency. Figures that are more than a tenth
larger in the last quarter of the run than in the first are reported. Three things would grow
without a leak, and are excluded:

- The beginning, in which code is compiled and every key is seen for the first time, does not
  count. All states exist after a few seconds, so from then on their size is bounded.
- The memory of a process is its resident memory minus mapped files: the load is such a file, and
  more and more of it has been read. The JVM's heap size follows a sawtooth, so the median over a
  quarter is taken, and the heap has a limit that it reaches soon.
- Spark's log keeps the last batches. It is set to keep few, so that it reaches that number soon.

The number of JVM threads does rise in a short run: two pools of Spark's block manager grow to 100
each, and stay there.

    python -m bench.soak --minutes 60
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from tailrace import load
from tailrace.errors import FlowFailed, InputError, TailraceError
from tailrace.profile.histogram import LogHistogram
from tailrace.report.machine import described
from tailrace.spark import sinks
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.spark.flow import Flow
from tailrace.spark.interrupt import ctrl_c
from tailrace.spark.pipeline.step import keyed_step, step
from tailrace.spark.session import session
from tailrace.state.place import state_place
from tailrace.state.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.control import IntervalRecord

RATE_PER_S = 5_000
KEYS = 10_000
PARTITIONS = 2
SAMPLE_S = 30.0
RECOVERY = "5 s"
"""The shortest real-time batch, to have as many batches as possible."""

BOUND = "50 ms"
"""Kept during the whole run, so that the control loop is tested too."""

SETTINGS = {
    "spark.driver.memory": "1g",  # a small heap fills soon, and then shows what cannot be freed
    "spark.sql.streaming.minBatchesToRetain": "10",
}

LEAST_WARM_UP_S = 60.0
WARM_UP_SHARE = 0.1
LEAST_SAMPLES = 8
"""Two per quarter."""

GROWN = 1.1
SPARE_S = 60.0
"""How much longer the load is than the run."""

STEP = "count"


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures at one time; latencies and records are those since the last sample.

    Without records the latencies are 0. ``open_files`` counts the file descriptors of all processes
    together.
    """

    at_s: float
    driver_mib: float
    jvm_mib: float
    workers_mib: float
    workers: int
    driver_threads: int
    jvm_threads: int
    open_files: int
    checkpoint_files: int
    checkpoint_mib: float
    p50_ms: float
    p99_ms: float
    records: int


FIGURES = tuple(field.name for field in fields(Sample) if field.name != "at_s")


def warm_up_s(seconds: float) -> float:
    """How much of the start of a run does not count."""
    return max(LEAST_WARM_UP_S, WARM_UP_SHARE * seconds)


def shortest_s() -> float:
    """The shortest run whose quarters can be compared."""
    return LEAST_WARM_UP_S + LEAST_SAMPLES * SAMPLE_S


def analysed(samples: Sequence[Sample], warm_s: float) -> dict[str, Any]:
    """The medians of the first and the last quarter after the warm-up, and which have grown.

    A figure has grown if its median in the last quarter exceeds the one in the first by more than a
    tenth. If the first is zero there is no ratio, and anything above zero has grown.
    """
    counted = [sample for sample in samples if sample.at_s >= warm_s]
    if len(counted) < LEAST_SAMPLES:
        raise FlowFailed(
            f"Only {len(counted)} samples of the soak are after its warm-up of {warm_s:g} s, and "
            f"{LEAST_SAMPLES} are needed: let it run longer."
        )
    quarter = len(counted) // 4
    figures: dict[str, dict[str, float | None]] = {}
    grows = []
    for name in FIGURES:
        first = median(getattr(sample, name) for sample in counted[:quarter])
        last = median(getattr(sample, name) for sample in counted[-quarter:])
        ratio = round(last / first, 3) if first else None
        figures[name] = {"first": round(first, 2), "last": round(last, 2), "ratio": ratio}
        if last > GROWN * first:
            grows.append(name)
    return {"quarters": figures, "grows": grows, "counted_samples": len(counted)}


# --- taking samples -----------------------------------------------------------------------------


def _sample(checkpoint: Path, at_s: float, news: Sequence[IntervalRecord]) -> Sample:
    driver = psutil.Process()
    jvms: list[psutil.Process] = []
    workers: list[psutil.Process] = []  # including the process that they are forked from
    for process in driver.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            (jvms if process.name() == "java" else workers).append(process)
    files = list(_sizes(checkpoint))
    latencies = LogHistogram.merged(interval.latencies_ms for interval in news)
    return Sample(
        at_s=round(at_s, 1),
        driver_mib=_mib(_summed([driver], _own_bytes)),
        jvm_mib=_mib(_summed(jvms, _own_bytes)),
        workers_mib=_mib(_summed(workers, _own_bytes)),
        workers=len(workers),
        driver_threads=driver.num_threads(),
        jvm_threads=_summed(jvms, lambda process: process.num_threads()),
        open_files=_summed([driver, *jvms, *workers], lambda process: process.num_fds()),
        checkpoint_files=len(files),
        checkpoint_mib=_mib(sum(files)),
        p50_ms=round(latencies.quantile_ms(0.5), 3) if latencies.count else 0.0,
        p99_ms=round(latencies.quantile_ms(0.99), 3) if latencies.count else 0.0,
        records=sum(interval.records for interval in news),
    )


def _summed(processes: Sequence[psutil.Process], figure: Callable[[psutil.Process], int]) -> int:
    """The sum of a figure over the processes that are still running."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += figure(process)
    return total


def _own_bytes(process: psutil.Process) -> int:
    """The resident memory of a process, without mapped files."""
    memory = process.memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def _mib(size: int) -> float:
    return round(size / 2**20, 3)


def _sizes(directory: Path) -> Iterator[int]:
    """The sizes of all files below a directory, while files come and go."""
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                yield path.stat().st_size


# --- the run ------------------------------------------------------------------------------------


def measure(minutes: float) -> dict[str, Any]:
    """Run the flow for this time, or until Ctrl-C; returns the samples and their analysis."""
    seconds = minutes * 60.0
    if not seconds >= shortest_s():
        raise InputError(
            f"A soak of {minutes:g} minutes is too short to compare its quarters: let it run for "
            f"{shortest_s() / 60:g} or more."
        )
    with tempfile.TemporaryDirectory(prefix="tailrace-soak-") as directory:
        place = Path(directory)
        _make_load(place / "load.trace", seconds + SPARE_S)
        spark = session("soak", master=f"local[{2 * PARTITIONS}]", settings=SETTINGS)
        try:
            samples = _soak(spark, place, seconds)
        finally:
            spark.stop()
        read, counted = _read(place / "flow"), _counted(place / "flow")
    warm_s = warm_up_s(seconds)
    return {
        **analysed(samples, warm_s),
        "records_read": read,
        "records_counted": counted,
        "rate_per_s": RATE_PER_S,
        "keys": KEYS,
        "seconds": seconds,
        "warm_up_s": warm_s,
        "memory": "resident minus mapped files; medians of quarters after the warm-up",
        "samples": [asdict(sample) for sample in samples],
        "machine": described(),
    }


def _make_load(path: Path, seconds: float) -> None:
    """Make and save a constant load, without keeping it in memory: an hour is 300 MB."""
    profile = load.Constant(RATE_PER_S, seconds)
    load.generate(profile, arrivals="even", keys=load.Uniform(KEYS)).save(path)


def _soak(spark: SparkSession, place: Path, seconds: float) -> list[Sample]:
    flow = Flow(
        "soak",
        lambda spark: _replayed(spark, place / "load.trace"),
        _counts,
        sinks.discard(),
        arrived="due",
        checkpoint=place / "flow",
        backend="realtime",
        recovery=RECOVERY,
    )
    run = flow.keep(mean=BOUND).start(spark)
    history = run.controller.log.history
    samples: list[Sample] = []
    began_s, seen = time.monotonic(), 0
    with ctrl_c() as asked_to_end:
        for _ in run.looks(seconds, asked_to_end):
            at_s = time.monotonic() - began_s
            if at_s >= SAMPLE_S * (len(samples) + 1):
                until = len(history)
                samples.append(_sample(place / "flow", at_s, history[seen:until]))
                seen = until
                sys.stderr.write(f"{json.dumps(asdict(samples[-1]))}\n")
                sys.stderr.flush()
    run.stop()
    return samples


def _replayed(spark: SparkSession, path: Path) -> DataFrame:
    reader = spark.readStream.format("tailrace-replay").option("trace", str(path))
    return reader.option("partitions", str(PARTITIONS)).load()


def _counts(records: DataFrame) -> DataFrame:
    def count(key: str, rows: list[Any], state: Any) -> Iterator[tuple[str, int]]:
        state["n"] = state.get("n", 0) + len(rows)
        yield key, state["n"]

    read = records.transform(step("read", lambda row: (row.key,), "key string"))
    scale = PARTITIONS, PARTITIONS
    return read.transform(keyed_step(STEP, count, "key string, n long", key="key", scale=scale))


def _read(flow: Path) -> int:
    """How many records have been read according to Spark's log."""
    log = flow / "checkpoint"
    entry = (log / "offsets" / str(BatchLog(log).committed)).read_text(encoding="utf-8")
    return sum(json.loads(entry.splitlines()[-1])["next"])


def _counted(flow: Path) -> int:
    """The sum of the counts of all keys."""
    total = 0
    for partition in range(PARTITIONS):
        store = Store(state_place(flow / "state", STEP) / str(partition))
        store.open(BatchLog(flow / "checkpoint").committed)
        total += sum(state["n"] for state in store.values.values())
    return total


def main() -> None:
    """The command line of the module; the result is JSON on standard output, or in a file."""
    parser = argparse.ArgumentParser(description="Let a flow with state run, and see what grows.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, help="a file for the result")
    asked = parser.parse_args()
    try:
        result = json.dumps(measure(asked.minutes), indent=2)
    except TailraceError as error:
        sys.exit(str(error))
    if asked.out is None:
        sys.stdout.write(result + "\n")
    else:
        asked.out.write_text(result + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
