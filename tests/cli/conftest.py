"""Flows, profiles and ended runs for commands to work on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tailrace.constraint import SINK, SOURCE, Constraint
from tailrace.control import Controller
from tailrace.control.events import Ended
from tailrace.errors import TailraceError
from tailrace.graph import Step, Stream, graph
from tailrace.load import Constant, generate
from tailrace.model.simulator import Plant, StepCost
from tailrace.plan import first_plan
from tailrace.report.data import Report, Usage, report_of
from tailrace.spark import from_file
from tests.simulated import simulate, started

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said

USER, MACHINE = 2, 1
"""Whose fault an error is, as exit codes."""

PATIENCE_S = 60.0

GOOD = """
import tailrace as tr

load = tr.load.generate(tr.load.Constant("100 /s", duration_s="5 s"))
flow = tr.Flow("good", load, lambda records: records, tr.sinks.discard()).keep(mean="1 s")
"""


def sentences(said: Said) -> list[str]:
    """The errors that a command printed, with its progress left out."""
    return [line for line in said.err.splitlines() if line.startswith("tailrace: ")]


# --- flows ---------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a file that declares a flow."""

    def write(text: str) -> Path:
        path = tmp_path / "job.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if anything asks for a session."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a session was asked for")

    monkeypatch.setattr(from_file, "session", refuse)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session runs yet, and none can be made."""

    def refuse(_: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)


# --- profiles ------------------------------------------------------------------------------


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders.json"
    steps: list[dict[str, Any]] = [
        {"name": "parse", "service_ms": 0.05},
        {"name": "score", "service_ms": 0.4, "keyed_by": ["user"], "keys": {"anna": 0.3}},
    ]
    path.write_text(json.dumps({"name": "orders", "rate_per_s": 1000, "cores": 4, "steps": steps}))
    return path


@pytest.fixture
def asked(tailrace: Callable[..., Said]) -> Callable[..., Any]:
    """What a command writes to standard output with ``--json``."""

    def call(*arguments: object) -> Any:
        said = tailrace(*arguments, "--json")
        assert said.code == 0, said.err
        return json.loads(said.out)

    return call


# --- runs that ended -----------------------------------------------------------------------


@pytest.fixture(scope="session")
def report() -> Report:
    """Half a minute of a flow with one step; too short for a profile, and with a name to print."""
    flow = graph((Step("zähle", "x int"),), (Stream(SOURCE, "zähle"), Stream("zähle", SINK)))
    goals = (Constraint(400.0),)
    controller = started(Controller(flow, goals), first_plan(flow, 100.0, 2))
    plant = Plant(planning_ms=40.0, sink_ms=20.0, steps={"zähle": StepCost(0.5)})
    trace = generate(Constant("100 /s", "30 s"), seed=3)
    simulate(flow, plant, trace, controller, np.random.default_rng(5))
    controller.handle(Ended())
    made = report_of("fluß", controller.log, Usage(30.0, 60.0, 9.0), warm_up_ms=10_000.0)
    return Report(made.data)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[[Report | TailraceError], None]:
    """Makes the next run end with a report, or with an error."""

    def arrange(outcome: Report | TailraceError) -> None:
        def run(*_: object, **__: object) -> Report:
            if isinstance(outcome, TailraceError):
                raise outcome
            return outcome

        monkeypatch.setattr(from_file, "find_flow", lambda _: None)
        monkeypatch.setattr(from_file, "run", run)

    return arrange


COMMAND = """
import json, resource, sys

from tailrace import cli
from tailrace.report.data import Report
from tailrace.spark import from_file

report, most_bytes = Report(json.loads(sys.argv.pop(1))), int(sys.argv.pop(1))
from_file.find_flow = lambda _: None
from_file.run = lambda *_, **__: report
if most_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
cli.main()
"""


@pytest.fixture
def shell(report: Report) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs ``tailrace run`` on a run that ended, with a shell's redirections."""

    def call(
        *arguments: object, line: str = "{command}", most_bytes: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", COMMAND, json.dumps(report.data), most_bytes]
        command += ["run", "job.py:flow", *arguments]
        return subprocess.run(
            ["/bin/sh", "-c", line.format(command='"$@"'), "sh", *map(str, command)],
            capture_output=True,
            check=False,
            env={**os.environ, **environment},
            timeout=PATIENCE_S,
        )

    return call
