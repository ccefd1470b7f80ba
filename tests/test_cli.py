"""What goes wrong before there is a session: one sentence, the right exit code, no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.errors import EnvironmentUnfit
from tailrace.spark import doctor, java, running, settings
from tailrace.spark.settings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Said

GOOD = """
import tailrace as tr

load = tr.load.generate(tr.load.Constant("100 /s", duration_s="5 s"))
flow = tr.Flow("good", load, lambda records: records, tr.sinks.discard()).keep(mean="1 s")
"""
USAGE, MACHINE = 2, 1


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session may be asked for."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a session was asked for")

    monkeypatch.setattr(running, "session", refuse)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session runs yet, and none can be made."""

    def refuse(_: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a file that declares a flow."""

    def write(text: str) -> Path:
        path = tmp_path / "job.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write


# --- the file and the flow in it -----------------------------------------------------------


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("target", ["job.py", "job.py:", ":flow", "", "flow"])
def test_a_target_without_file_or_flow_shows_how_to_write_one(
    tailrace: Callable[..., Said], target: str
) -> None:
    said = tailrace("run", target).sentence(USAGE)
    assert said == f"'{target}' does not name a flow: write FILE:FLOW, as in job.py:flow."


@pytest.mark.usefixtures("nothing_runs")
def test_a_missing_file_and_a_directory_are_named(
    tailrace: Callable[..., Said], tmp_path: Path
) -> None:
    for path in (tmp_path / "none.py", tmp_path):
        assert f"There is no file {path}:" in tailrace("run", f"{path}:flow").sentence(USAGE)


@pytest.mark.usefixtures("nothing_runs")
def test_a_file_that_is_not_python_is_refused(
    tailrace: Callable[..., Said], tmp_path: Path
) -> None:
    (tmp_path / "job.txt").write_text(GOOD)
    said = tailrace("run", f"{tmp_path / 'job.txt'}:flow").sentence(USAGE)
    assert "is not a Python file" in said


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("text", "name", "declared"),
    [(GOOD, "other", "flow"), (GOOD, "load", "flow"), ("", "f", "none")],
)
def test_a_flow_that_a_file_does_not_have_is_named_beside_those_that_it_has(
    tailrace: Callable[..., Said], job: Callable[[str], Path], text: str, name: str, declared: str
) -> None:
    path = job(text)
    said = tailrace("run", f"{path}:{name}").sentence(USAGE)
    assert said == f"{path} declares no flow '{name}': it declares {declared}."


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("x = 1\ny = = 2\n", 2, "SyntaxError: invalid syntax"),
        ("def f():\n  return 1\n   return 2\n", 3, "IndentationError: unexpected indent"),
        ("x = 1\n\nprint(undefined)\n", 3, "NameError: name 'undefined' is not defined"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError: Expecting property name"),
        ("import no_such_package\n", 1, "ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise ValueError('first\\nsecond')\n", 1, "ValueError: first."),
        ("raise ValueError\n", 1, "ValueError."),
        ("def flow():\n    return 1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("import tailrace as tr\nflow = tr.Flow('a')\n", 2, "TypeError: Flow.__init__() missing"),
    ],
)
def test_a_file_that_fails_is_named_with_its_own_line(
    tailrace: Callable[..., Said], job: Callable[[str], Path], text: str, line: int, why: str
) -> None:
    path = job(text)
    said = tailrace("run", f"{path}:flow").sentence(USAGE)
    assert said.startswith(f"{path}, line {line}, fails with {why}")


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit(3)\n", "job.py, line 2, fails with SystemExit: 3."),
        ("def __getattr__(name):\n    raise RuntimeError(name)\n", "line 2, fails with RuntimeErr"),
        ("x = '\0'\n", "job.py fails with SyntaxError: source code string cannot contain null"),
        ("x = 1\n" * 200_000, "job.py is too long for a Python file: name the one with the flow."),
    ],
)
def test_a_file_that_is_no_declaration_is_one_sentence(
    tailrace: Callable[..., Said], job: Callable[[str], Path], text: str, said: str
) -> None:
    assert said in tailrace("run", f"{job(text)}:flow").sentence(USAGE)


@pytest.mark.usefixtures("nothing_runs")
def test_a_name_that_no_file_can_have_is_one_sentence(tailrace: Callable[..., Said]) -> None:
    for name in ("a" * 5_000, "\x1b[31m", "a\nb"):
        assert "There is no file" in tailrace("run", f"{name}:flow").sentence(USAGE)


@pytest.mark.usefixtures("nothing_runs")
def test_a_function_that_wants_arguments_is_no_flow(
    tailrace: Callable[..., Said], job: Callable[[str], Path]
) -> None:
    path = job("def flow(load):\n    return load\n")
    said = tailrace("run", f"{path}:flow").sentence(USAGE)
    assert said.startswith(f"{path} fails with TypeError: flow() missing 1 required")


# --- what a file declares ------------------------------------------------------------------

NONE = "is negative or not finite"
ZERO = "must be above zero"


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ("flow.keep(mean='soon')", "the bound on the mean: 'soon' is not a duration: write"),
        ("flow.keep(mean='400 parsecs')", "'400 parsecs' is not a duration: write"),
        ("flow.keep(mean=None)", "None is not a duration: write"),
        ("flow.keep(mean='0 ms')", ZERO),
        ("flow.keep(p99=0)", ZERO),
        ("flow.keep(p99='-1 s')", NONE),
        ("flow.keep(mean=float('nan'))", NONE),
        ("flow.keep(mean='1 s', every='0 s')", ZERO),
        ("flow.keep(mean='1 s', every=-5)", NONE),
        ("flow.keep(p100='1 s')", "'p100' is not a statistic of latency"),
        ("flow.keep(p0='1 s')", "'p0' is not a statistic of latency"),
        ("flow.keep()", "Nothing to keep"),
        ("flow.keep(mean='1 s', path='parse')", "is not a tuple of step names"),
        ("tr.load.Constant('0 /s', '5 s')", ZERO),
        ("tr.load.Constant('-3 k/s', '5 s')", NONE),
        ("tr.load.Constant('3 k', '5 s')", "'3 k' is not a rate: write"),
        ("tr.load.Constant('3 k/s', '0 s')", ZERO),
        ("tr.load.Staircase('1 /s', '2 /s', steps=-1, step_s='1 s')", "not a whole number above"),
        ("tr.replay(load, partitions=0)", "cannot have 0 partitions: give it 1 or more"),
        ("tr.replay(load, partitions=-2)", "cannot have -2 partitions"),
        ("tr.replay(load, most_records=0)", "cannot hold at most 0 records"),
        ("tr.step('a', str, 'a string', scale=(0, 4))", "The scale (0, 4) of step 'a'"),
        ("tr.step('a', str, 'a string', scale=(-1, 4))", "The scale (-1, 4) of step 'a'"),
        ("tr.step('a', str, 'a string', scale=(4, 1))", "The scale (4, 1) of step 'a'"),
        ("tr.step('a', str, 'a string', on_error='ignore')", "on_error='ignore'"),
        ("tr.step('a', 'str', 'a string')", "Step 'a' was given a value of type str, which cannot"),
        ("tr.step('sink', str, 'a string')", "A step cannot be called 'sink'"),
        ("tr.Flow('f', load, str, sink=7)", "A value of type int is not a sink"),
        ("tr.Flow('f', load, str, tr.sinks.memory(), mode='force')", "mode='force' is not known"),
        ("tr.Flow('f', load, str, tr.sinks.memory(), interval='0 s')", ZERO),
        ("tr.Flow('f', load, str, tr.sinks.memory(), warm_up='-1 s')", NONE),
        (
            "tr.Flow('f', load, str, tr.sinks.memory(), executors=(4, 2))",
            "From 4 to 2 executors is not a range: give (least, most)",
        ),
        ("tr.Flow('f', load, str, tr.sinks.memory(), executors=(0, 2))", "is not a range"),
        (
            "tr.Flow('f', load, str, tr.sinks.memory(), executors=(1, 2), scaler='best')",
            "There is no scaler 'best': choose predictive, reactive",
        ),
    ],
)
def test_a_declaration_that_cannot_mean_anything_is_refused_with_its_reason(
    tailrace: Callable[..., Said], job: Callable[[str], Path], declared: str, why: str
) -> None:
    path = job(f"{GOOD}{declared}\n")
    assert why in tailrace("run", f"{path}:flow").sentence(USAGE)


# --- options -------------------------------------------------------------------------------


ENDLESS = """
import pathlib, tempfile, threading

with tempfile.TemporaryDirectory() as place:
    pathlib.Path("place").write_text(place)
    print("open", flush=True)
    threading.Event().wait(60)
"""


def test_what_is_open_is_closed_when_a_command_is_ended_before_its_flow_runs(
    tmp_path: Path,
) -> None:
    """By SIGTERM; Ctrl-C is ignored where whoever starts the command ignores it."""
    (tmp_path / "endless.py").write_text(ENDLESS, encoding="utf-8")
    command = [sys.executable, "-m", "tailrace.cli", "run", "endless.py:flow"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "open\n"
            started.send_signal(signal.SIGTERM)
            assert started.wait(30) > 0  # it says so itself, and was not killed
        finally:
            started.kill()
    assert not Path((tmp_path / "place").read_text(encoding="utf-8")).exists()


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "-0.0"])
@pytest.mark.parametrize("command", [("run", "job.py:flow"), ("demo",)])
def test_a_run_of_no_length_is_refused(
    tailrace: Callable[..., Said], command: tuple[str, ...], seconds: str
) -> None:
    said = tailrace(*command, "--seconds", seconds).sentence(USAGE)
    assert said.startswith("A run of ")
    assert said.endswith(" seconds cannot be: give a number above 0.")


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("pair", "shown"),
    [
        ("spark.driver.port", "spark.driver.port"),
        ("=4", "=***"),
        ("", ""),
        ("spark.ui.port:4040", "spark.ui.port:4040"),
        ("spark.ssl.keyPassword:hunter2", "spark.ssl.keyPassword:***"),
    ],
)
def test_a_setting_that_is_not_a_pair_is_refused_without_a_secret(
    tailrace: Callable[..., Said], job: Callable[[str], Path], pair: str, shown: str
) -> None:
    said = tailrace("run", f"{job(GOOD)}:flow", "--conf", pair).sentence(USAGE)
    assert said == f"'{shown}' is not a Spark setting: write --conf key=value."


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("inside", ["", "deeper"])
def test_an_output_that_is_or_lies_in_a_file_is_refused_before_anything_runs(
    tailrace: Callable[..., Said], job: Callable[[str], Path], tmp_path: Path, inside: str
) -> None:
    (tmp_path / "taken").write_text("mine")
    out = tmp_path / "taken" / inside
    sentence = f"The output {out} is, or lies in, a file: name a directory."
    assert tailrace("run", f"{job(GOOD)}:flow", "--out", out).sentence(USAGE) == sentence
    assert tailrace("demo", "--out", out).sentence(USAGE) == sentence
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.usefixtures("nothing_runs")
def test_an_output_that_cannot_be_made_is_refused(
    tailrace: Callable[..., Said], job: Callable[[str], Path]
) -> None:
    said = tailrace("run", f"{job(GOOD)}:flow", "--out", "/proc/none/out").sentence(USAGE)
    assert said == "The output /proc/none/out cannot be written: name another directory."


@pytest.mark.usefixtures("nothing_runs")
def test_no_output_directory_is_left_by_a_flow_that_is_not_there(
    tailrace: Callable[..., Said], job: Callable[[str], Path], tmp_path: Path
) -> None:
    tailrace("run", f"{job(GOOD)}:other", "--out", tmp_path / "out").sentence(USAGE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("run",), "Missing argument"),
        (("run", "job.py:flow", "--seconds", "long"), "Invalid value for '--seconds'"),
        (("run", "job.py:flow", "--secnods", "1"), "No such option"),
        (("walk",), "No such command 'walk'"),
        (("--\x1b[31mwalk",), "No such option"),
        (("score", "log", "--\x1b[31m\u202ewalk"), "No such option"),
    ],
)
def test_what_is_no_command_line_is_explained_without_a_traceback(
    tailrace: Callable[..., Said], arguments: tuple[str, ...], why: str
) -> None:
    said = tailrace(*arguments)
    assert said.code == USAGE
    assert said.out == ""
    assert why in said.err
    assert "Traceback" not in said.err
    assert not {"\x1b", "\u202e"} & set(said.err)


# --- what the machine lacks ----------------------------------------------------------------


def fake_java(home: Path, script: str) -> Path:
    """A ``java`` that says what it is told to."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(script)
    binary.chmod(0o755)
    return binary


@pytest.fixture
def java_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a ``java`` of a script the one in JAVA_HOME."""

    def install(script: str) -> Path:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        return fake_java(tmp_path / "home", script)

    return install


def versioned(version: str) -> str:
    return f"""#!/bin/sh\necho 'openjdk version "{version}" 2019-01-15' >&2\n"""


@pytest.mark.usefixtures("no_session")
def test_no_java_on_the_path_is_said(
    tailrace: Callable[..., Said],
    job: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = tailrace("run", f"{job(GOOD)}:flow").sentence(MACHINE)
    assert said.startswith("There is no java on the PATH: install a JDK 17 or later")


@pytest.mark.usefixtures("no_session")
def test_no_java_in_java_home_is_said_though_one_is_on_the_path(
    tailrace: Callable[..., Said],
    job: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    fake_java(tmp_path / "path", versioned("21.0.1"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    said = tailrace("run", f"{job(GOOD)}:flow").sentence(MACHINE)
    assert said.startswith(f"There is no java in JAVA_HOME ({tmp_path / 'nowhere'})")


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize(("version", "number"), [("11.0.2", 11), ("1.8.0_392", 8), ("16", 16)])
def test_a_java_that_is_too_old_is_named_with_its_version(
    tailrace: Callable[..., Said],
    job: Callable[[str], Path],
    java_home: Callable[[str], Path],
    version: str,
    number: int,
) -> None:
    binary = java_home(versioned(version))
    said = tailrace("run", f"{job(GOOD)}:flow").sentence(MACHINE)
    assert said.startswith(f"{binary} is Java {number} and Spark needs 17 or later: install")


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("#!/bin/sh\necho hello\n", "does not say which version it is: reinstall Java."),
        ("#!/no/such/shell\n", "does not run: reinstall Java."),
        ("not a program", "does not run: reinstall Java."),
    ],
)
def test_a_java_that_is_none_is_said(
    tailrace: Callable[..., Said],
    job: Callable[[str], Path],
    java_home: Callable[[str], Path],
    script: str,
    why: str,
) -> None:
    binary = java_home(script)
    assert tailrace("run", f"{job(GOOD)}:flow").sentence(MACHINE) == f"{binary} {why}"


@pytest.mark.parametrize("version", ["17", "17.0.12", "21.0.1", "25-ea"])
def test_a_java_that_spark_runs_on_is_accepted(
    java_home: Callable[[str], Path], version: str
) -> None:
    java_home(versioned(version))
    java.require_java()
    assert java.java_version(java.find_java()) >= java.OLDEST


@pytest.mark.usefixtures("no_session")
def test_a_jar_that_is_not_built_is_said(
    tailrace: Callable[..., Said],
    job: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(settings, "JAR", tmp_path / "none.jar")
    said = tailrace("run", f"{job(GOOD)}:flow").sentence(MACHINE)
    assert said == "Tailrace's Java part is not built: run 'make setup', or 'python jvm/build.py'."


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize("master", ["nonsense", "local[0]", "local[x]", "local[-1]", "http://host"])
def test_a_master_that_is_none_is_refused_before_java_is_started(
    tailrace: Callable[..., Said], job: Callable[[str], Path], master: str
) -> None:
    said = tailrace("run", f"{job(GOOD)}:flow", "--master", master).sentence(USAGE)
    assert said.startswith(f"'{master}' is not a Spark master: write local[4]")


BIND = (
    "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
    ": java.net.BindException: bind(..) failed with error(-98): Address already in use: "
    "Service 'sparkDriver' failed after 0 retries (starting from 4711)!\n\tat io.netty"
)
VALUE = (
    "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
    ": org.apache.spark.SparkIllegalArgumentException: [INVALID_CONF_VALUE.TYPE_MISMATCH] The "
    "value 'abc' in the config \"spark.driver.port\" is invalid. It should be a/an 'int' value."
)
OTHER = (
    "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
    ": java.net.UnknownHostException: box: Name or service not known\n\tat java.base/java.net"
)


@pytest.fixture
def spark_fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes Spark fail to start with what it is told to say."""

    def arrange(spark_says: str) -> None:
        def fail(_: object) -> None:
            raise PySparkException(spark_says)

        monkeypatch.setattr(settings, "require_java", lambda: None)
        monkeypatch.setattr(settings, "launched", nullcontext)
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
        monkeypatch.setattr(SparkSession.Builder, "getOrCreate", fail)
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)

    return arrange


@pytest.mark.parametrize(
    ("spark_says", "code", "why"),
    [
        (BIND, MACHINE, "A port that sparkDriver wants is in use: free it"),
        (VALUE, USAGE, "'abc' is not a value for spark.driver.port: set it to another."),
        (OTHER, MACHINE, "Spark did not start (java.net.UnknownHostException: box: Name or"),
        ("no\nidea", MACHINE, "Spark did not start (no): mend that"),
    ],
)
def test_why_spark_did_not_start_is_said(
    tailrace: Callable[..., Said],
    spark_fails: Callable[[str], None],
    spark_says: str,
    code: int,
    why: str,
) -> None:
    spark_fails(spark_says)
    target = f"{running.example('primes.py')}:flow"
    assert tailrace("run", target).sentence(code).startswith(why)


# --- doctor --------------------------------------------------------------------------------

SLOW = Finding(fatal=False, what="spark.x is 200 [of 2]; costs 4.5 s.", remedy="Set it to 2.")
FATAL = Finding(fatal=True, what="There is no java on the PATH: install one.", remedy="")


class FakeSession:
    """A session that only knows whether it was stopped."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeSession]:
    """Sets what doctor finds on the machine and in the session that it starts."""

    def lie_down(machine: tuple[Finding, ...], session: tuple[Finding, ...]) -> FakeSession:
        fake = FakeSession()
        monkeypatch.setattr(doctor, "machine", lambda: machine)
        monkeypatch.setattr(doctor, "session", lambda **_: fake)
        monkeypatch.setattr(doctor, "examine", lambda _: session)
        return fake

    return lie_down


@pytest.mark.parametrize(
    ("machine", "session", "code"),
    [
        ((), (), 0),
        ((SLOW,), (), 0),
        ((), (SLOW, SLOW), 0),
        ((FATAL,), (SLOW,), 1),
        ((SLOW,), (FATAL,), 1),
    ],
)
def test_doctor_ends_with_1_only_if_nothing_would_run_and_its_json_stands_alone(
    tailrace: Callable[..., Said],
    patient: Callable[..., FakeSession],
    machine: tuple[Finding, ...],
    session: tuple[Finding, ...],
    code: int,
) -> None:
    fake = patient(machine, session)
    said = tailrace("doctor", "--json")
    assert said.code == code
    assert said.err == ""
    looked = FATAL not in machine  # what cannot work is not started
    expected = (*machine, *session) if looked else machine
    assert json.loads(said.out) == {
        "fit": code == 0,
        "findings": [{"fatal": f.fatal, "what": f.what, "remedy": f.remedy} for f in expected],
    }
    assert fake.stopped == looked


def test_doctor_says_everything_to_a_person_too(
    tailrace: Callable[..., Said], patient: Callable[..., FakeSession]
) -> None:
    patient((SLOW,), (FATAL,))
    said = " ".join(tailrace("doctor").out.split())
    assert f"slow {SLOW.what} {SLOW.remedy}" in said
    assert f"will not work {FATAL.what}" in said
    patient((), ())
    assert tailrace("doctor").out == "fit  Nothing is missing and nothing is slow.\n"


def test_a_session_that_does_not_start_is_a_finding(
    tailrace: Callable[..., Said],
    patient: Callable[..., FakeSession],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient((), ())

    def fail(**_: object) -> None:
        raise EnvironmentUnfit("A port is in use: free it.")

    monkeypatch.setattr(doctor, "session", fail)
    said = tailrace("doctor", "--json")
    assert said.code == MACHINE
    (finding,) = json.loads(said.out)["findings"]
    assert finding == {"fatal": True, "what": "A port is in use: free it.", "remedy": ""}


def test_doctor_stops_its_session_even_if_the_examination_fails(
    patient: Callable[..., FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = patient((), ())

    def fail(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", fail)
    with pytest.raises(KeyboardInterrupt):
        doctor.try_session(plain=False)
    assert fake.stopped


def test_the_machine_is_found_wanting_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    before = doctor.machine()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/other-python")
    monkeypatch.setattr(doctor, "JAR", tmp_path / "none.jar")
    versions = {"pyspark": "3.5.1", "pandas": "3.0.0"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    found = [finding for finding in doctor.machine() if finding not in before]
    told = [(finding.fatal, f"{finding.what} {finding.remedy}") for finding in found]
    wanted = [
        (True, "There is no java in JAVA_HOME"),
        (True, "PySpark 3.5.1 is not one that"),
        (False, "PySpark 4.3 does not fully support pandas 3.0.0. Install pandas<3."),
        (True, "Tailrace's Java part is not built. Run 'make setup'"),
        (False, "PYSPARK_PYTHON is /usr/bin/other-python, not this interpreter."),
    ]
    assert len(told) == len(wanted)
    for (fatal, text), (must, start) in zip(told, wanted, strict=True):
        assert fatal == must
        assert text.startswith(start)
