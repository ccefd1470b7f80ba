"""What the machine lacks for ``tailrace run``: one sentence, and Spark is not started."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.spark import from_file, session
from tailrace.spark.jvm import java
from tests.cli.conftest import GOOD, MACHINE, USER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said


# --- Java ----------------------------------------------------------------------------------


def fake_java(home: Path, script: str) -> Path:
    """A ``java`` that prints the given text."""
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


# --- Spark ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_session")
def test_a_jar_that_is_not_built_is_said(
    tailrace: Callable[..., Said],
    job: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(session, "JAR", tmp_path / "none.jar")
    said = tailrace("run", f"{job(GOOD)}:flow").sentence(MACHINE)
    assert said == "Tailrace's Java part is not built: run 'make setup', or 'python jvm/build.py'."


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize("master", ["nonsense", "local[0]", "local[x]", "local[-1]", "http://host"])
def test_a_master_that_is_none_is_refused_before_java_is_started(
    tailrace: Callable[..., Said], job: Callable[[str], Path], master: str
) -> None:
    said = tailrace("run", f"{job(GOOD)}:flow", "--master", master).sentence(USER)
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
    """Makes Spark fail to start with the given message."""

    def arrange(spark_says: str) -> None:
        def fail(_: object) -> None:
            raise PySparkException(spark_says)

        monkeypatch.setattr(session, "require_java", lambda: None)
        monkeypatch.setattr(session, "launched", nullcontext)
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
        monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
        monkeypatch.setattr(SparkSession.Builder, "getOrCreate", fail)
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)

    return arrange


@pytest.mark.parametrize(
    ("spark_says", "code", "why"),
    [
        (BIND, MACHINE, "A port that sparkDriver needs is in use: free it"),
        (VALUE, USER, "'abc' is not a value for spark.driver.port: set it to another."),
        (OTHER, MACHINE, "Spark did not start (java.net.UnknownHostException: box: Name or"),
        ("no\nidea", MACHINE, "Spark did not start (no): fix that"),
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
    target = f"{from_file.example('primes.py')}:flow"
    assert tailrace("run", target).sentence(code).startswith(why)
