"""Results that workers leave in files, for flows whose sink takes records one by one."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.plan import Backend, Plan
from tailrace.spark import sinks
from tests.spark.support import by_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.graph import Graph
    from tailrace.plan import Chains

by_value(__name__)

BACKENDS = ("microbatch", "realtime")
LONG_MS = 60_000.0
"""The length of a real-time batch; it ends early when the flow is stopped."""


class Files:
    """A directory to which every worker process appends its results, in a file of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True)

    @property
    def sink(self) -> sinks.Each:
        return sinks.each(self.append)

    @property
    def append(self) -> Callable[[Any], None]:
        """What the sink does with a record, in the worker."""
        directory = str(self._directory)

        def append(row: Any) -> None:
            with (Path(directory) / str(os.getpid())).open("a") as file:
                file.write(json.dumps(list(row)) + "\n")

        return append

    def rows(self) -> list[tuple[Any, ...]]:
        """What is there by now, but for a line that is being written."""
        texts = [path.read_text() for path in self._directory.iterdir()]
        lines = [line for text in texts for line in text.splitlines(keepends=True)]
        return [tuple(json.loads(line)) for line in lines if line.endswith("\n")]

    def counted(self) -> Counter[tuple[Any, ...]]:
        return Counter(self.rows())

    def hold(self, rows: int) -> Callable[[], bool]:
        return lambda: len(self.rows()) >= rows


def plan_on(
    backend: str, chains: Chains | None = None, partitions: dict[str, int] | None = None
) -> Callable[[Graph], Plan]:
    """A plan for one of the backends, as simple as can be."""
    interval_ms = LONG_MS if backend == Backend.REALTIME else 0.0

    def plan(graph: Graph) -> Plan:
        own = chains or graph.primary_chains()
        return Plan(interval_ms, own, partitions or {}, Backend(backend))

    return plan
