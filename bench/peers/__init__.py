"""Other engines that a user might choose: the same three steps, on the same machine.

Each peer runs in its own environment and process, under the same load as ours: record i is due at
t0 + i / rate, and its latency counts from then, so a blocked source counts against its engine. Each
is configured as its documentation recommends for low latency.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peers.environment import HERE, RECIPES, install, last_line, packages, python
from tailrace.errors import FlowFailed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Peer", "Result", "highest_rate", "install", "peers"]

BOUND_MS = 100.0
LEAST_SHARE = 0.99
TOLERANCE = 0.1
LEAST_RATE_PER_S = 100.0
ALLOWANCE_S = 60.0
"""The time for an engine to start, drain and stop, on a machine that may be busy."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run; ``drift_ms`` is how much later the last fifth was than the first."""

    records: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    drift_ms: float
    sent: int
    received: int

    def held(self, bound_ms: float = BOUND_MS) -> bool:
        """Whether the engine kept up: records arrived, in time, and without growing delay.

        A backlog that grows steadily up to the bound during the run would pass the first two
        checks.
        """
        complete = self.received >= LEAST_SHARE * self.sent
        return complete and self.p99_ms < bound_ms and self.drift_ms < bound_ms / 2


def parse(name: str, output: str) -> Result:
    """The result from the line of JSON in a script's output; engines print other things too."""
    for line in reversed(output.splitlines()):
        with suppress(ValueError, TypeError, KeyError):
            found = json.loads(line)
            return Result(**{field.name: found[field.name] for field in fields(Result)})
    raise FlowFailed(f"The peer {name} ended without a result; run its script by hand to see why.")


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine, and how to run the three steps on it."""

    name: str
    environment: str
    script: str
    arguments: tuple[str, ...]
    warm_up_s: float
    start_per_s: float

    @property
    def version(self) -> str:
        """The package and its installed version."""
        return RECIPES[self.environment].requirements[0]

    def measure(self, rate_per_s: float, seconds: float) -> Result:
        """Run the load once.

        Raises:
            EnvironmentUnfit: The peer cannot be installed here.
            FlowFailed: It failed, or did not end in time.
        """
        place = install(self.environment)
        load = {"--rate": rate_per_s, "--seconds": seconds, "--warm-up": self.warm_up_s}
        numbers = [text for name, value in load.items() for text in (name, str(value))]
        command = [str(python(place)), str(HERE / self.script), *self.arguments, *numbers]
        deadline_s = self.warm_up_s + seconds + ALLOWANCE_S
        return parse(self.name, run(self.name, command, packages(place), deadline_s))

    def highest_rate(
        self, seconds: float, start: float | None = None, bound_ms: float = BOUND_MS
    ) -> float:
        """The highest rate that is held, to about 10 %; 0 if none is.

        A rate at which only the tail was late is tried once more: on a machine that does other
        things, a pause of a tenth of a second does not show a limit of the engine.
        """

        def held(rate_per_s: float) -> bool:
            result = self.measure(rate_per_s, seconds)
            if result.p50_ms < bound_ms and not result.held(bound_ms):
                result = self.measure(rate_per_s, seconds)
            return result.held(bound_ms)

        return highest_rate(held, start or self.start_per_s)


def highest_rate(
    held: Callable[[float], bool], start: float, tolerance: float = TOLERANCE
) -> float:
    """The highest rate held: doubled or halved to bracket it, then bisected on a log scale."""
    low = start
    if held(low):
        while held(2 * low):
            low *= 2
    else:
        low /= 2
        while not held(low):
            low /= 2
            if low < LEAST_RATE_PER_S:
                return 0.0
    high = 2 * low
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if held(middle) else (low, middle)
    return low


def run(name: str, command: list[str], library: Path, deadline_s: float) -> str:
    """The standard output of a command; all processes and files that it leaves are removed.

    The paths are for PyFlink: in thread mode the interpreter inside the JVM does not find the
    packages of its environment by itself, and Flink and its JVM leave files behind.
    """
    with tempfile.TemporaryDirectory(prefix="tailrace-", ignore_cleanup_errors=True) as scratch:
        surroundings = {
            **os.environ,
            "PYTHONPATH": str(library),
            "TMPDIR": scratch,
            "FLINK_LOG_DIR": scratch,
            "JVM_ARGS": f"-Djava.io.tmpdir={scratch}",
        }
        with (
            Path(scratch, "output").open("w+") as output,
            Path(scratch, "errors").open("w+") as errors,
            subprocess.Popen(  # noqa: S603 - our own script
                command,
                cwd=scratch,
                env=surroundings,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            ) as process,
        ):
            try:
                code = process.wait(deadline_s)
            except subprocess.TimeoutExpired as slow:
                raise FlowFailed(
                    f"The peer {name} did not end within {deadline_s:.0f} s and was stopped;"
                    " try again when the machine does less."
                ) from slow
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            output.seek(0)
            errors.seek(0)
            if code:
                why = last_line(errors.read()) or f"exit code {code}"
                raise FlowFailed(f"The peer {name} failed: {why}.")
            return output.read()


def peers() -> tuple[Peer, ...]:
    """All peers that ``bench realtime`` compares with."""
    flink = [
        Peer(f"pyflink {mode}", "pyflink", "flink_job.py", ("--mode", mode), 5.0, start)
        for mode, start in (("process", 16_000.0), ("thread", 40_000.0))
    ]
    return (*flink, Peer("bytewax", "bytewax", "bytewax_flow.py", (), 1.0, 500_000.0))
