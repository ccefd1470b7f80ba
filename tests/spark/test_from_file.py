"""The command line with a session: what a stranger meets when a flow runs, fails or is ended."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import psutil
import pytest

from tailrace.spark import from_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.conftest import Said

pytestmark = pytest.mark.spark

USAGE, MACHINE = 2, 1
PATIENCE_S = 90.0
ENDLESS = ("--seconds", "60")
"""For flows that end by themselves: what they get if they do not."""

HEAD = """
import tailrace as tr

load = tr.load.generate(tr.load.Constant("200 /s", duration_s="90 s"), arrivals="even")
"""
SEQ = "tr.step('{0}', lambda row: row.seq, 'seq long')"


@pytest.fixture(autouse=True)
def leaves_nothing(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """However a command ends, its query is stopped and its temporary directories are gone."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert spark.streams.active == []
    assert list(temporary.glob("tailrace-*")) == []


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., str]:
    """Writes a file that declares a flow over a small load; how to call it."""

    def write(pipeline: str, *, sink: str = "tr.sinks.discard()", more: str = "") -> str:
        path = tmp_path / "job.py"
        flow = f"flow = tr.Flow('job', load, pipeline, {sink})\n"
        path.write_text(f"{HEAD}\n{pipeline}\n{flow}{more}\n", encoding="utf-8")
        return f"{path}:flow"

    return write


def through(*steps: str) -> str:
    """A pipeline of steps that follow each other."""
    return f"pipeline = lambda frame: frame{''.join(f'.transform({step})' for step in steps)}"


# --- what the user got wrong ---------------------------------------------------------------


def test_an_unknown_step_in_a_path_is_named_beside_the_known_ones(
    tailrace: Callable[..., Said], job: Callable[..., str]
) -> None:
    target = job(
        through(SEQ.format("parse"), SEQ.format("score")),
        more="flow.keep(mean='1 s', path=('parse', 'scoer'))",
    )
    before = set(threading.enumerate())
    said = tailrace("run", target, *ENDLESS).last_sentence(USAGE)
    assert said == (
        "There is no step 'scoer' on this flow: a path can name source, parse, score, sink."
    )
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("tailrace")]


@pytest.mark.parametrize("schema", ["seq", "seq lnog", "", "long", "seq long,, n long", "a b c d"])
def test_a_schema_that_cannot_be_read_is_named_with_its_step(
    tailrace: Callable[..., Said], job: Callable[..., str], schema: str
) -> None:
    target = job(through(f"tr.step('parse', lambda row: row.seq, {schema!r})"))
    said = tailrace("run", target, *ENDLESS).last_sentence(USAGE)
    assert said == (
        f"The schema {schema!r} of step 'parse' cannot be read: write columns and types, as in "
        "'user string, score double'."
    )


@pytest.mark.parametrize(
    ("returned", "schema", "why"),
    [
        ("'many'", "n long", "it returned 'many', which does not fit"),
        ("(3, 1)", "n long", "it returned (3, 1), which does not fit (expected 1 values)"),
        ("3", "n long, m long", "it returned 3, which does not fit"),
        ("{'m': 1}", "n long, o long", "which does not fit (expected the fields ['n', 'o'])"),
        ("None", "n long", "expected a record; to leave one out, use flat_step"),
        ("1.5", "n long", "it returned 1.5, which does not fit"),
    ],
)
def test_a_schema_that_does_not_fit_what_a_step_returns_is_said_with_the_record(
    tailrace: Callable[..., Said], job: Callable[..., str], returned: str, schema: str, why: str
) -> None:
    target = job(through(f"tr.step('misfit', lambda row: {returned}, {schema!r})"))
    said = tailrace("run", target, *ENDLESS).last_sentence(USAGE)
    assert re.match(r"Step 'misfit' failed in batch \d+ on the record \{", said)
    assert why in said
    assert said.endswith("fix the step, or give it on_error='drop' or 'dead-letter'.")


def test_a_step_that_raises_is_named_with_batch_record_and_error(
    tailrace: Callable[..., Said], job: Callable[..., str]
) -> None:
    target = job(through("tr.step('invert', lambda row: 6 / (row.seq - 150), 'x double')"))
    said = tailrace("run", target, *ENDLESS).last_sentence(USAGE)
    assert said.startswith("Step 'invert' failed in batch ")
    facts, _, rest = said.partition(" on the record ")
    assert facts.rpartition(" ")[2].isdigit()
    record, end = json.JSONDecoder().raw_decode(rest)
    assert record["seq"] == 150
    assert rest[end:].startswith(" (ZeroDivisionError: ")


@pytest.mark.parametrize("backend", ["microbatch", "realtime"])
def test_a_step_that_cannot_be_pickled_is_named_with_what_it_holds(
    tailrace: Callable[..., Said], job: Callable[..., str], backend: str
) -> None:
    step = "tr.step('guarded', lambda row: (lock, row.seq)[1], 'seq long')"
    target = job(
        f"import threading\nlock = threading.Lock()\n{through(SEQ.format('a'), step)}",
        more=f"flow.backend = {backend!r}",
    )
    assert tailrace("run", target, *ENDLESS).sentence(USAGE) == (
        "Step 'guarded' cannot be sent to workers, since 'lock' is a _thread.lock, which cannot be "
        "copied to another process: create it inside the function, at the first call."
    )


def test_a_flow_that_fails_in_the_middle_delivers_what_was_measured(
    tailrace: Callable[..., Said], job: Callable[..., str], tmp_path: Path
) -> None:
    target = job(
        through("tr.step('invert', lambda row: 6 / (row.seq - 1_500), 'x double')"),
        more="flow.interval_ms = 1_000\nflow.keep(mean='1 s', every='1 s')",
    )
    said = tailrace("run", target, *ENDLESS, "--json", "--out", tmp_path / "out")
    failure = said.last_sentence(USAGE)
    report = json.loads(said.out)
    assert failure.startswith("Step 'invert' failed in batch ")
    assert report["failure"] == failure
    assert 0 < report["records"] <= 1_500
    assert report["records"] == sum(interval["records"] for interval in report["intervals"])
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report


@pytest.mark.parametrize(
    ("pipeline", "why"),
    [
        ("def pipeline(frame):\n    return frame.select(undefined)", "NameError: name 'undefined'"),
        ("def pipeline(frame):\n    return frame.nothing", "PySparkAttributeError"),
        ("def pipeline(frame):\n    return {}['x']", "KeyError: 'x'"),
    ],
)
def test_a_pipeline_that_raises_is_named_with_its_line(
    tailrace: Callable[..., Said], job: Callable[..., str], pipeline: str, why: str
) -> None:
    target = job(pipeline)
    said = tailrace("run", target, *ENDLESS).last_sentence(USAGE)
    line = HEAD.count("\n") + 3
    assert said.startswith(f"{target.removesuffix(':flow')}, line {line}, fails with {why}")


@pytest.mark.parametrize(
    ("pipeline", "sink", "why"),
    [
        ("pipeline = lambda frame: frame.select('none')", "print", "Spark cannot analyse"),
        ("pipeline = lambda frame: None", "print", "The pipeline returned NoneType: return"),
        ("pipeline = lambda frame: {'a': frame}", "print", "give one sink for each output"),
        (through(SEQ.format("a"), SEQ.format("a")), "print", "Two steps are called 'a'"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused(
    tailrace: Callable[..., Said], job: Callable[..., str], pipeline: str, sink: str, why: str
) -> None:
    assert why in tailrace("run", job(pipeline, sink=sink), *ENDLESS).last_sentence(USAGE)


def test_a_source_that_spark_does_not_know_is_named_with_its_line(
    tailrace: Callable[..., Said], job: Callable[..., str]
) -> None:
    target = job(
        "load = lambda spark: spark.readStream.format('carrier-pigeon').load()\n"
        "pipeline = lambda frame: frame"
    )
    said = tailrace("run", target, *ENDLESS).last_sentence(USAGE)
    assert said.startswith(f"{target.removesuffix(':flow')}, line {HEAD.count(chr(10)) + 2}, fails")
    assert "carrier-pigeon" in said


# --- where the results go ------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["", "/deeper"])
def test_a_parquet_output_that_is_or_lies_in_a_file_is_refused_and_the_file_kept(
    tailrace: Callable[..., Said], job: Callable[..., str], tmp_path: Path, inside: str
) -> None:
    (tmp_path / "taken").write_text("mine")
    out = f"{tmp_path / 'taken'}{inside}"
    target = job(through(SEQ.format("a")), sink=f"tr.sinks.parquet({out!r})")
    said = tailrace("run", target, *ENDLESS).last_sentence(USAGE)
    assert str(tmp_path / "taken") in said
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_parquet_output_with_something_else_in_it_is_refused(
    tailrace: Callable[..., Said], job: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    target = job(through(SEQ.format("a")), sink=f"tr.sinks.parquet({str(tmp_path / 'out')!r})")
    said = tailrace("run", target, *ENDLESS).last_sentence(USAGE)
    assert said.startswith(f"The output directory {tmp_path / 'out'} is not empty")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_a_sink_that_fails_says_why_in_one_sentence(
    tailrace: Callable[..., Said], job: Callable[..., str]
) -> None:
    target = job(
        "def full(frame, batch_id):\n    raise OSError('disk full\\nreally')\n"
        "pipeline = lambda frame: frame",
        sink="full",
    )
    said = tailrace("run", target, *ENDLESS).last_sentence(USAGE)
    assert said.startswith("The flow failed (OSError: disk full)")


# --- a run that goes well ------------------------------------------------------------------

REPORT = {
    "flow", "constraints", "intervals", "fulfilled_share", "core_seconds", "decisions"
}  # fmt: skip
INTERVAL = {
    "start_us", "records", "mean_ms", "p50_ms", "p95_ms", "p99_ms", "fulfilled", "breakdown_ms",
    "plan",
}  # fmt: skip


def test_json_is_alone_on_standard_output_whatever_the_users_code_prints(
    tailrace: Callable[..., Said], job: Callable[..., str], tmp_path: Path
) -> None:
    target = job(
        f"print('declared')\n{through(SEQ.format('a'))}",
        sink="tr.sinks.console(2)",
        more="flow.interval_ms = 1_000\nflow.keep(mean='1 s', every='1 s')",
    )
    said = tailrace("run", target, "--seconds", "4", "--json", "--out", tmp_path / "out")
    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert said.out.count("\n") == 1
    assert report.keys() >= REPORT
    assert report["intervals"]
    assert all(interval.keys() >= INTERVAL for interval in report["intervals"])
    assert report["records"] > 0
    assert "declared" in said.err
    assert "batch 0: " in said.err
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report
    assert (tmp_path / "out" / "report.png").read_bytes().startswith(b"\x89PNG")


def test_without_json_the_report_is_on_standard_output_and_progress_is_not(
    tailrace: Callable[..., Said], job: Callable[..., str]
) -> None:
    target = job(through(SEQ.format("a")), more="flow.interval_ms = 1_000")
    said = tailrace("run", target, "--seconds", "4")
    assert said.code == 0, said.err
    assert "job" in said.out
    assert "interval" in said.err
    assert "Traceback" not in said.err


def test_a_plain_run_changes_nothing_and_hands_over_for_every_step(
    tailrace: Callable[..., Said], job: Callable[..., str]
) -> None:
    target = job(
        through(SEQ.format("a"), SEQ.format("b")),
        more="flow.interval_ms = 1_000\nflow.keep(mean='1 s', every='1 s')",
    )
    said = tailrace("run", target, "--seconds", "4", "--plain", "--json")
    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert report["mode"] == "observe"
    assert report["decisions"] == []
    plans = [interval["plan"] for interval in report["intervals"]]
    assert plans
    assert all(plan["chains"] == [["a"], ["b"]] and plan["interval_ms"] == 0 for plan in plans)


def test_a_plain_run_keeps_state_too(
    tailrace: Callable[..., Said], job: Callable[..., str]
) -> None:
    counts = """
def counted(key, rows, state):
    for row in rows:
        state["n"] = state.get("n", 0) + 1
        yield row.seq
"""
    keyed = 'tr.keyed_step("count", counted, "seq long", key="key")'
    target = job(counts + through(keyed))
    said = tailrace("run", target, "--seconds", "8", "--plain", "--json")
    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert report["records"] > 0
    assert report["intervals"][-1]["plan"]["partitions"]["count"] >= 1


def test_doctor_finds_nothing_wrong_with_a_session_of_ours(
    tailrace: Callable[..., Said], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = []
    monkeypatch.setattr(spark, "stop", lambda: stopped.append(True))
    said = tailrace("doctor", "--json")
    assert (said.code, json.loads(said.out)) == (0, {"fit": True, "findings": []})
    assert stopped == [True]


# --- Ctrl-C --------------------------------------------------------------------------------

INTERRUPTING = f"""
import os, signal, threading

driver = {{driver}}

def interrupt(row):
    if row.seq == 300:
        os.kill(driver, signal.SIGINT)
        threading.Event().wait(1.0)  # the batch goes on for a while
    return row.seq

sink = tr.sinks.memory()
{through("tr.step('interrupt', interrupt, 'seq long')")}
"""


def test_ctrl_c_lets_the_batch_at_hand_finish_and_reports(
    tailrace: Callable[..., Said], job: Callable[..., str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    target = job(INTERRUPTING.format(driver=os.getpid()), sink="sink")
    said = tailrace("run", target, *ENDLESS, "--json")
    assert said.code == 0, said.err
    assert "Traceback" not in said.err
    declared: Any = sys.modules["tailrace_flow_job"]
    kept = sorted(row["seq"] for row in declared.sink.rows())
    assert 300 in kept
    assert kept == list(range(len(kept)))
    assert json.loads(said.out)["records"] == len(kept)
    assert signal.getsignal(signal.SIGINT) is before


HANGING = f"""
import os, signal, threading

def hang(row):
    if row.seq == 100:
        for _ in range({{signals}}):
            threading.Event().wait(5.0)  # the step is named meanwhile, and two at once are one
            os.kill({{driver}}, signal.SIGTERM)
        threading.Event().wait()
    return row.seq

{through("tr.step('hang', hang, 'seq long')")}
"""


@pytest.mark.parametrize(
    ("signals", "how"),
    [
        (0, ("--seconds", "15", "--stop-within", "200 ms")),
        (1, (*ENDLESS, "--stop-within", "200 ms")),
        (2, (*ENDLESS, "--stop-within", "10 min")),
    ],
    ids=["its time is up", "one SIGTERM", "two of them"],
)
def test_a_step_that_hangs_does_not_keep_a_command_from_ending_and_is_named(
    tailrace: Callable[..., Said], job: Callable[..., str], signals: int, how: tuple[str, ...]
) -> None:
    target = job(HANGING.format(driver=os.getpid(), signals=signals), more="flow.stall_ms = 1_000")
    said = tailrace("run", target, *how, "--json")
    assert said.code == 0, said.err
    assert "Traceback" not in said.err
    report = json.loads(said.out)
    hung = [s for s in report["stalls"] if "in hang: threading" in str(s["stack"])]
    assert {(stall["step"], stall["over"]) for stall in hung} == {("hang", False)}
    assert any("was given up" in note for note in report["notes"])
    assert "Step 'hang' has hung in partition" in said.err


def test_a_limit_of_stopping_that_is_no_duration_is_refused(
    tailrace: Callable[..., Said], job: Callable[..., str]
) -> None:
    said = tailrace("run", job(through(SEQ.format("a"))), "--stop-within", "soon")
    assert said.sentence(USAGE).startswith("'soon' is not a duration")


# --- in a process and a JVM of its own -----------------------------------------------------


@contextmanager
def started(tmp_path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a process group of its own, as a shell starts it; gone at the end."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "here").mkdir()
    local = {"TMPDIR": str(tmp_path / "tmp"), "SPARK_LOCAL_IP": "127.0.0.1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path / "here",
        env={**os.environ, **local},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)


def ours(directory: Path) -> list[str]:
    """What is left in a directory, without what Spark and its Java keep for themselves."""
    theirs = ("spark-", "artifacts-", "blockmgr-", "hsperfdata", "liblz4", "libnetty", ".")
    return [path.name for path in directory.iterdir() if not path.name.startswith(theirs)]


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        target = f"{from_file.example('primes.py')}:flow"
        conf = ("--conf", f"spark.driver.port={port}", "--conf", "spark.port.maxRetries=0")
        with started(tmp_path, "run", target, *conf, "--master", "local[1]") as process:
            out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == MACHINE
    assert out == ""
    assert "Traceback" not in err
    assert "Exception" not in err
    assert err.splitlines()[-1].startswith(
        "tailrace: A port that sparkDriver needs is in use: free it, or set spark.driver.port"
    )
    assert ours(tmp_path / "tmp") == []


def lines_of(stream: IO[str]) -> queue.SimpleQueue[str]:
    """The lines of a stream as they come, and an empty one at its end."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        with stream:
            for line in stream:
                lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    return lines


BRISK = """
from tailrace.spark.from_file import find_flow

flow = find_flow({!r})
flow.interval_ms = 1_000  # there is something to report soon
"""


def test_ctrl_c_ends_the_command_with_a_report_and_leaves_nothing_behind(tmp_path: Path) -> None:
    example = f"{from_file.example('primes.py')}:flow"
    (tmp_path / "brisk.py").write_text(BRISK.format(example), encoding="utf-8")
    target = f"{tmp_path / 'brisk.py'}:flow"
    with started(tmp_path, "run", target, "--master", "local[2]", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        err, out = lines_of(process.stderr), lines_of(process.stdout)
        said: list[str] = []
        deadline = time.monotonic() + PATIENCE_S
        while not (said and " interval " in said[-1]):  # the first interval is over
            said.append(err.get(timeout=deadline - time.monotonic()))
            assert said[-1], "".join(said)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        os.killpg(process.pid, signal.SIGINT)
        report = json.loads(out.get(timeout=PATIENCE_S))
        assert process.wait(PATIENCE_S) == 0
        _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
        assert alive == []
        assert out.get(timeout=PATIENCE_S) == ""  # nothing but the report
        said += iter(lambda: err.get(timeout=PATIENCE_S), "")
    assert report["flow"] == "primes"
    assert report["records"] > 0
    words = "".join(said)
    assert "Traceback" not in words
    assert "Exception" not in words
    assert ours(tmp_path / "tmp") == []
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("backend", ["microbatch", "realtime"])
def test_a_killed_jvm_is_one_sentence_after_the_report_of_what_was_measured(
    tmp_path: Path, job: Callable[..., str], backend: str
) -> None:
    brisk = f"flow.interval_ms = 1_000\nflow.backend = {backend!r}\nflow.keep(mean='1 s')"
    target = job(through(SEQ.format("a")), more=brisk)
    with started(tmp_path, "run", target, "--master", "local[4]", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        err, out = lines_of(process.stderr), lines_of(process.stdout)
        said: list[str] = []
        deadline = time.monotonic() + PATIENCE_S
        while not (said and " interval " in said[-1]):  # there is something to report
            said.append(err.get(timeout=deadline - time.monotonic()))
            assert said[-1], "".join(said)
        children = psutil.Process(process.pid).children()
        (jvm,) = (child for child in children if child.name() == "java")
        jvm.kill()
        report = json.loads(out.get(timeout=PATIENCE_S))
        assert process.wait(PATIENCE_S) == USAGE
        said += iter(lambda: err.get(timeout=PATIENCE_S), "")
    words = "".join(said)
    assert report["records"] > 0
    assert report["failure"].startswith("Spark's JVM died in the middle of the run")
    assert said[-1] == f"tailrace: {report['failure']}\n"
    assert "Traceback" not in words
    assert "Error" not in words
    assert "Exception" not in words
