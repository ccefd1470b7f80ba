"""A class archive: executors on this machine start faster.

A JVM that becomes an executor reads, checks and links more than ten thousand classes, which is most
of what its start takes. Java can write them to a file as they are after that, and map the file the
next time (class data sharing, JEP 350). One executor is run for it, once for each Java and each
Spark; what does not fit what starts later is ignored by Java, and costs nothing.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyspark

from tailrace.errors import EnvironmentUnfit
from tailrace.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = "spark.executor.extraJavaOptions"

PATIENCE_S = 180.0
"""How long making it may take, on a machine that has much else to do."""

_CONTENT = 3
"""Another number whenever an archive is to hold other classes."""

WRITING_S = 60.0
"""How long the executor may take to write it, after it was told to end."""


def path() -> Path:
    """Where the archive for this Java and this Spark is kept."""
    spark = pyspark.__version__, Path(pyspark.__file__).parent
    what = (find_java().resolve(), *spark, _CONTENT)
    key = hashlib.sha256("\n".join(map(str, what)).encode()).hexdigest()[:12]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tailrace" / f"executors-{key}.jsa"


def options(given: Mapping[str, str]) -> dict[str, str]:
    """What lets executors start from the archive, added to what they are given; nothing without."""
    own = given.get(OPTIONS, "")
    file = path()
    if not file.exists() or "-Xshare" in own or "SharedArchiveFile" in own:
        return {}
    return {OPTIONS: f"{own} -XX:SharedArchiveFile={file}".strip()}


def ensure() -> Path:
    """The archive; it is made first if there is none, which takes half a minute."""
    file = path()
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        # In a process of its own, since this one may have a session already.
        command = [sys.executable, "-m", __name__, str(file)]
        try:
            subprocess.run(  # noqa: S603 - our own command
                command, capture_output=True, text=True, timeout=PATIENCE_S, check=True
            )
        except subprocess.SubprocessError as error:
            said = str(getattr(error, "stderr", None) or error).strip()
            raise EnvironmentUnfit(
                f"No class archive for executors could be made ({said.splitlines()[-1]}): mend "
                "that, or go without."
            ) from error
    return file


def _make(file: Path) -> None:
    """Run an executor that writes down what it has loaded when it ends."""
    from tailrace.spark.cluster import Cluster  # noqa: PLC0415 - only the child needs them
    from tailrace.spark.executors import warmer  # noqa: PLC0415
    from tailrace.spark.settings import session  # noqa: PLC0415
    from tailrace.spark.sinks import compute  # noqa: PLC0415

    with tempfile.TemporaryDirectory(dir=file.parent) as place:
        written = Path(place) / file.name
        with Cluster(workers=1, cores=1) as cluster:
            telling = f"-XX:ArchiveClassesAtExit={written}"
            told = {OPTIONS: telling}
            spark = session("archive", master=cluster.master, settings=told, executors=(1, 1))
            try:
                warmer(spark, 1, ())("0")
                compute(spark.range(64).repartition(2))
                every = psutil.process_iter(["cmdline"])
                writers = [one for one in every if telling in (one.info["cmdline"] or ())]
            finally:
                spark.stop()
            _, writing = psutil.wait_procs(writers, timeout=WRITING_S)
        if writing or not written.exists():
            raise EnvironmentUnfit(f"The executor wrote no class archive in {WRITING_S:.0f} s.")
        written.replace(file)


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
