"""Java: finding the one that Spark will start, our own jar, and whether the JVM has ended."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from tailrace.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
JAR = Path(__file__).parents[1] / "tailrace.jar"
"""The part of Tailrace that runs in the JVM."""

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # Java 8 called itself 1.8


def find_java() -> Path:
    """The ``java`` that Spark will start: the one in ``JAVA_HOME``, else the first on the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise EnvironmentUnfit(
            f"There is no java {where}: install a JDK {OLDEST} or later, or set JAVA_HOME to one."
        )
    return Path(found)


def java_version(java: Path) -> int:
    """The feature version of a ``java``, such as 17."""
    try:
        said = subprocess.run(  # noqa: S603 - the path was found by find_java
            [java, "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentUnfit(f"{java} does not run: reinstall Java.") from error
    match = _VERSION.search(said.stderr + said.stdout)
    if match is None:
        raise EnvironmentUnfit(f"{java} does not say which version it is: reinstall Java.")
    return int(match[1])


def require_java() -> None:
    """Refuse to continue without a Java that Spark can run on."""
    java = find_java()
    version = java_version(java)
    if version < OLDEST:
        raise EnvironmentUnfit(
            f"{java} is Java {version} and Spark needs {OLDEST} or later: install a newer JDK, "
            "or set JAVA_HOME to one."
        )


def has_ended(spark: SparkSession) -> bool:
    """Whether the JVM of a session is gone, that is, does not answer."""
    inside: Any = spark.sparkContext
    try:
        inside._jvm.java.lang.System.nanoTime()
    except (Py4JError, OSError):
        return True
    return False
