"""A sink for both backends whose results the test can read while the flow runs."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from tailrace.plan import Backend, Plan
from tailrace.spark import sinks

from .support import by_value

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.flow import Graph
    from tailrace.spark.sinks import Each

by_value(__name__)


class Lines:
    """Records as lines of JSON, in a file for every worker process, in the order they came."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory

    @property
    def sink(self) -> Each:
        return sinks.each(_writing(str(self._directory)))

    def read(self) -> list[tuple[Any, ...]]:
        """Every record that is there by now; one that is being written does not count yet."""
        whole = [
            line
            for file in sorted(self._directory.iterdir())
            for line in file.read_text(encoding="utf-8").splitlines(keepends=True)
            if line.endswith("\n")
        ]
        return [tuple(json.loads(line)) for line in whole]

    def counted(self) -> Counter[tuple[Any, ...]]:
        return Counter(self.read())


def _writing(directory: str) -> Callable[[Any], None]:
    def write(row: Any) -> None:
        line = json.dumps(list(row), default=str) + "\n"
        place = os.path.join(directory, str(os.getpid()))  # noqa: PTH118 - once for every record
        file = os.open(place, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    return write


def planned(backend: str, *chains: tuple[str, ...], **more: Any) -> Callable[[Graph], Plan]:
    """A plan for a backend: chained as given, or as far as can be; batches of a minute at most."""
    live = backend == Backend.REALTIME

    def plan(graph: Graph) -> Plan:
        how = {"partitions": {s.name: 1 for s in graph.steps if s.keyed_by}, **more}
        interval_ms = 60_000.0 if live else 0.0
        return Plan(interval_ms, chains or graph.primary_chains(), backend=Backend(backend), **how)

    return plan
