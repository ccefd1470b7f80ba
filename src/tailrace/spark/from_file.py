"""Runs flows for the command line: from a file, live on the terminal, or as plain Spark would."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import sysconfig
import traceback
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from rich.console import Console
from rich.live import Live

from tailrace.control import Mode
from tailrace.errors import FlowFailed, InputError, TailraceError
from tailrace.masking import masked
from tailrace.plan import Plan
from tailrace.report.data import Report
from tailrace.report.terminal import LiveView
from tailrace.spark import repartition as respreading
from tailrace.spark.failures import explained
from tailrace.spark.flow import Flow
from tailrace.spark.interrupt import ctrl_c
from tailrace.spark.jvm.java import has_ended
from tailrace.spark.session import running_session, session
from tailrace.units import show_duration, show_rate

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from pyspark.sql import SparkSession

    from tailrace.graph import Graph
    from tailrace.policy.scaling.sizing import Scaler
    from tailrace.spark.run import Run


MOST_SOURCE_BYTES = 2**20
"""The limit for a file that declares a flow: Python takes seconds to read longer ones."""


def example(name: str) -> Path:
    """An example that ships with the package, or is in the repository."""
    here = Path(__file__).resolve()
    shipped = here.parents[1] / "examples" / name
    return shipped if shipped.exists() else here.parents[3] / "examples" / name


def find_flow(target: str) -> Flow:
    """The flow that ``FILE:NAME`` names; ``NAME`` may be a function that makes it."""
    path, colon, name = target.rpartition(":")
    if not colon or not path or not name:
        raise InputError(f"'{target}' does not name a flow: write FILE:FLOW, as in job.py:flow.")
    module = _file(path, "flow")
    with naming_the_line(path):
        found = getattr(module, name, None)
    if callable(found) and not isinstance(found, Flow):
        with naming_the_line(path):
            found = found()
    if not isinstance(found, Flow):
        flows = [key for key, value in vars(module).items() if isinstance(value, Flow)]
        raise InputError(
            f"{path} declares no flow '{name}': it declares {', '.join(flows) or 'none'}."
        )
    return found


def find_scaler(target: str) -> Scaler:
    """The scaler that ``FILE:NAME`` or ``MODULE:NAME`` names; ``NAME`` may be a factory of it."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise InputError(
            f"'{target}' does not name a scaler: write FILE:SCALER, as in mine.py:Careful."
        )
    module = _file(place, "scaler") if place.endswith(".py") else _installed_module(place)
    with naming_the_line(place):
        found = getattr(module, name, None)
        if isinstance(found, type) or (callable(found) and not hasattr(found, "decide")):
            found = found()
        decides = callable(getattr(found, "decide", None)) and hasattr(found, "name")
    if not decides:
        raise InputError(
            f"{place} has no scaler '{name}': a scaler has a name and decide(load), which returns "
            "a Move."
        )
    return cast("Scaler", found)


def _file(path: str, what: str) -> ModuleType:
    """The module of a file that declares a flow or the like."""
    size = _size(Path(path))
    if size is None:
        raise InputError(f"There is no file {path}: name the Python file that declares the {what}.")
    if size > MOST_SOURCE_BYTES:
        raise InputError(f"{path} is too long for a Python file: name the one with the {what}.")
    return _module(Path(path))


def _installed_module(name: str) -> ModuleType:
    """A module that Python can import by name."""
    try:
        with naming_the_line(name):
            return importlib.import_module(name)
    except InputError as error:
        if isinstance(error.__cause__, ImportError | TypeError | ValueError):
            raise InputError(
                f"Python cannot find the module {name}: name a file that ends in .py, or an "
                "installed module."
            ) from error
        raise


def _size(path: Path) -> int | None:
    """The size of a file in bytes; None if it does not exist or is not a regular file."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:  # the name is too long, or access is denied
        return None


def send_by_value(module: ModuleType) -> None:
    """Have the functions of a module pickled by value, instead of imported by workers."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _module(path: Path) -> ModuleType:
    """Import a file; its functions go to workers by value, since workers do not have the file."""
    spec = importlib.util.spec_from_file_location(f"tailrace_flow_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file: name the file that declares the flow.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    send_by_value(module)
    with naming_the_line(str(path)):
        spec.loader.exec_module(module)
    return module


@contextmanager
def naming_the_line(file: str | None = None) -> Iterator[None]:
    """Turn anything the user's code raises into one sentence that names the line, or the file."""
    try:
        yield
    except TailraceError:
        raise
    except (Exception, SystemExit) as error:  # a script may exit when it is imported
        raise _located(error, file) from error


def _located(error: Exception | SystemExit, file: str | None) -> TailraceError:
    """An error with the line of user code that led to it, not one of Python, Spark or Tailrace."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{f.filename}, line {f.lineno}," for f in frames if not _installed(f.filename)]
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        places = [f"{error.filename}, line {error.lineno},"]
        said = f"{type(error).__name__}: {error.msg}"
    elif isinstance(error, Py4JJavaError):
        said = error.java_exception.toString()
    place = places[-1] if places else file
    if place is None:
        return explained(said)
    return InputError(f"{place} fails with {masked(said).splitlines()[0].rstrip(' :.')}.")


def _installed(file: str) -> bool:
    """Whether a file is part of Python, of a package or of Tailrace."""
    paths = sysconfig.get_paths()
    homes = (paths["stdlib"], paths["purelib"], paths["platlib"], Path(__file__).parents[1])
    return file.startswith("<") or any(Path(file).is_relative_to(home) for home in homes)


def run(
    flow: Flow,
    seconds: float | None,
    *,
    plain: bool = False,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    redact: bool = False,
    after_restore: bool = False,
) -> Report:
    """Run a flow, and show it live if standard error is a terminal.

    It gets a session of its own, which ends with it, unless one is already running.
    """
    limits = flow.executors
    executors = None if limits is None else (limits.least, limits.most)
    how = {"master": master, "settings": settings, "plain": plain, "executors": executors}
    with _session_for(flow, **how) as spark:
        flow.redact = flow.redact or redact
        if plain:
            flow.mode = Mode.OBSERVE
        with naming_the_line():
            plan = unchained if plain else None
            running = flow.start(spark, plan=plan, after_restore=after_restore)
        with ctrl_c(running.hurry) as asked_to_end:
            _watch(running, seconds, asked_to_end)
            return running.stop()


def repartition(
    flow: Flow,
    partitions: int,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """Repartition the state of a flow, in a session just for that."""
    with _session_for(flow, master=master, settings=settings) as spark:
        return respreading.repartition(flow, spark, partitions)


@contextmanager
def _session_for(flow: Flow, **how: Any) -> Iterator[SparkSession]:
    """A session for one flow, which ends with the block, unless one is already running."""
    borrowed = running_session() is not None
    spark = session(flow.name, kafka=flow.uses_kafka, **how)
    try:
        yield spark
    finally:
        if not borrowed and not has_ended(spark):
            spark.stop()


def unchained(graph: Graph) -> Plan:
    """The plan of plain Spark: back to back, with a hand-over to Python for every step."""
    return Plan(0.0, tuple((name,) for name in graph.names))


def _watch(running: Run, seconds: float | None, asked_to_end: threading.Event) -> None:
    """Show a run until its time is up, it fails, or Ctrl-C."""
    console = Console(stderr=True)
    looks = running.looks(seconds, asked_to_end)
    if console.is_terminal:
        with Live(LiveView(running.report), console=console, refresh_per_second=2, transient=True):
            deque(looks, maxlen=0)
        return
    shown_us = 0
    for _ in looks:
        for record in list(running.controller.log.history):
            if record.start_us > shown_us:
                shown_us = record.start_us
                console.print(
                    f"{show_rate(record.rate_per_s)}  mean {show_duration(record.latency_ms.mean)}"
                    f"  interval {show_duration(record.plan.interval_ms)}",
                    highlight=False,
                )


def run_plain_apart(path: Path, seconds: float) -> Report:
    """Run the flow of a file as plain Spark would, in a process and a JVM of its own."""
    Console(stderr=True).print("Now the same load on plain Spark, with its usual settings ...")
    command = [sys.executable, "-m", "tailrace.cli", "run", f"{path}:flow"]
    command += ["--plain", "--seconds", str(seconds), "--json"]
    done = subprocess.run(  # noqa: S603 - our own command
        command, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise FlowFailed(f"The plain Spark side failed: {said[-1] if said else 'no reason given'}")
    return Report(json.loads(done.stdout))
