"""Three Python steps on PyFlink under a paced load; runs in the environment of that peer.

``python flink_job.py --mode thread --rate 2000 --seconds 5 --warm-up 5`` prints one line of JSON.

The DataStream API with one task slot; source and sink are those of ``PacedLoad.java``. The settings
are those that a user who needs low latency would choose:

- The steps declare their type, a tuple, which is cheaper than rows and much cheaper than pickle.
- In process mode records go to Python in bundles, and each bundle costs some milliseconds whatever
  its size, so the bundle time matters (the default is a second). Shorter is not better: at 1 to
  3 ms the cost of bundles takes most of the time and the tail grows; it is shortest at 5 ms. At
  high rates 10 ms handles more, well within the bound. The size keeps its default: a bundle that
  may grow without limit after a pause makes the next one late, and so on.
- Thread mode calls Python in the JVM's own process, record by record.
- Objects are reused, buffers are flushed after a millisecond, and Python keeps no metrics.

Flink fuses the three steps into one operator, as it does by default.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Types  # type: ignore[import-not-found]
from pyflink.datastream import (  # type: ignore[import-not-found]
    DataStream,
    StreamExecutionEnvironment,
)
from pyflink.java_gateway import get_gateway  # type: ignore[import-not-found]

FEW_PER_S = 5_000
BUNDLE_MS = {"few": 5, "many": 10}


def settings(mode: str, rate_per_s: float, scratch: str) -> dict[str, str]:
    """The settings of the job."""
    bundle_ms = BUNDLE_MS["few" if rate_per_s <= FEW_PER_S else "many"]
    return {
        "parallelism.default": "1",
        "pipeline.object-reuse": "true",
        "execution.buffer-timeout.interval": "1 ms",
        "python.execution-mode": mode,
        "python.fn-execution.bundle.time": str(bundle_ms),
        "python.fn-execution.bundle.size": "1000",
        "python.metric.enabled": "false",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "rest.bind-address": "127.0.0.1",
        "io.tmp.dirs": scratch,
    }


def pass_on(record: Any) -> Any:
    """A step that does nothing, so that only its surroundings take time."""
    return record


def run(mode: str, rate_per_s: float, seconds: float, warm_up_s: float, scratch: str) -> str:
    """Run the job to its end; returns what the sink wrote."""
    configuration = Configuration()
    for name, value in settings(mode, rate_per_s, scratch).items():
        configuration.set_string(name, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    ends = get_gateway().jvm.PacedLoad
    record = Types.TUPLE([Types.LONG(), Types.LONG(), Types.STRING()])
    source = ends.Source(rate_per_s, warm_up_s, seconds)
    java_environment = environment._j_stream_execution_environment
    records = DataStream(java_environment.addSource(source, "load", record.get_java_type_info()))
    for _ in range(3):
        records = records.map(pass_on, record)
    found = Path(scratch, "latencies.json")
    records._j_data_stream.addSink(ends.Sink(str(found), rate_per_s, seconds))
    environment.execute("peer")
    return found.read_text()


def main() -> None:
    """Run the load once and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("process", "thread"), required=True)
    for name in ("--rate", "--seconds", "--warm-up"):
        parser.add_argument(name, type=float, required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print(run(asked.mode, asked.rate, asked.seconds, asked.warm_up, scratch))


if __name__ == "__main__":
    main()
