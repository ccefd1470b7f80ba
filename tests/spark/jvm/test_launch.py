"""A JVM that does not start, without one: a Java that is a shell script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark import SparkContext

from tailrace.errors import EnvironmentUnfit
from tailrace.spark.jvm.launch import launched, why_ended

if TYPE_CHECKING:
    from pathlib import Path

HEAP = """Invalid maximum heap size: -Xmxnonsense
Error: Could not create the Java Virtual Machine.
Error: A fatal exception has occurred. Program will exit.
"""
ROOM = """Error occurred during initialization of VM
Could not reserve enough space for 943718400000KB object heap
"""
CORES = """WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" org.apache.spark.SparkException: Driver cores must be a positive number
\tat org.apache.spark.deploy.SparkSubmitArguments.error(SparkSubmitArguments.scala:670)
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)
"""
NESTED = """java.lang.reflect.InvocationTargetException: null
\tat a.b.C
Caused by: java.nio.file.NoSuchFileException: /no/such.jar
\t... 12 more
"""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (HEAP, "Invalid maximum heap size: -Xmxnonsense"),
        (ROOM, "Could not reserve enough space for 943718400000KB object heap"),
        (CORES, "SparkException: Driver cores must be a positive number"),
        (NESTED, "NoSuchFileException: /no/such.jar"),
        ("\n", "it gave no reason"),
    ],
)
def test_the_line_that_says_why_java_ended_is_found(said: str, why: str) -> None:
    assert why_ended(said) == why


@pytest.mark.parametrize("stream", [1, 2])
def test_of_a_java_that_does_not_start_only_the_reason_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], stream: int
) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\ncat >&{stream} <<'END'\n{CORES}END\nexit 1\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(SparkContext, "_gateway", None)
    with (
        pytest.raises(EnvironmentUnfit, match=r"had started \(SparkException: Driver cores must"),
        launched({"spark.master": "local[1]"}),
    ):
        pytest.fail("there is no session without a JVM")
    assert capfd.readouterr() == ("", "")


def test_secrets_are_kept_off_the_command_line_of_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    java, told = tmp_path / "bin" / "java", tmp_path / "told"
    java.write_text(f'#!/bin/sh\necho "$@" >> {told}\nexit 1\n', encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(SparkContext, "_gateway", None)
    secret = {"spark.authenticate.secret": "hunter2", "spark.hadoop.fs.s3a.secret.key": "hunter2"}
    with pytest.raises(EnvironmentUnfit), launched({"spark.executor.cores": "3", **secret}):
        pytest.fail("there is no session without a JVM")
    assert "spark.executor.cores=3" in told.read_text()
    assert "hunter2" not in told.read_text()
