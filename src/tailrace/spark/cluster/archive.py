"""A class archive: executors on this machine start faster.

A JVM that becomes an executor reads, checks and links more than ten thousand classes, which takes
most of its start-up time. Java can then write the linked classes to a file, and map that file the
next time (class data sharing, JEP 350). One executor is run to make it, once for each Java and each
Spark; Java ignores an archive that does not fit, at no cost.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyspark

from tailrace import cache
from tailrace.errors import EnvironmentUnfit
from tailrace.spark.jvm.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOG = logging.getLogger(__name__)

OPTIONS = "spark.executor.extraJavaOptions"

PATIENCE_S = 180.0
"""How long making it may take, on a busy machine."""

_CONTENT = 4
"""To be changed whenever archives should hold other classes."""

ENDING_S = 60.0
"""How long the making may take to end, with its cluster and session, when interrupted."""

WRITING_S = 60.0
"""How long the executor may take to write it, after it was asked to end."""


def path() -> Path:
    """Where the archive for this Java and this Spark is kept."""
    spark = pyspark.__version__, Path(pyspark.__file__).parent
    what = (find_java().resolve(), *spark, _CONTENT)
    key = hashlib.sha256("\n".join(map(str, what)).encode()).hexdigest()[:12]
    return cache.directory() / f"executors-{key}.jsa"


def options(given: Mapping[str, str]) -> dict[str, str]:
    """The options for starting executors from the archive, added to the given ones; else none.

    An archive that other users may have written is not used: its classes would run as ours.
    """
    own = given.get(OPTIONS, "")
    file = path()
    if not file.exists() or "-Xshare" in own or "SharedArchiveFile" in own:
        return {}
    why = cache.distrusted(file.parent) or cache.distrusted(file)
    if why is not None:
        _LOG.warning("Executors start without the class archive, because %s.", why)
        return {}
    return {OPTIONS: f"{own} -XX:SharedArchiveFile={file}".strip()}


def ensure() -> Path:
    """The archive; if there is none it is made first, which takes half a minute."""
    file = path()
    try:
        why = cache.distrusted(cache.made(file.parent))
        if why is not None:
            raise _unfit(why)
        if not file.exists():
            _require_jars_only()
            _make_apart(file)
    except OSError as error:
        raise _unfit(f"{error.strerror}: {error.filename}") from error
    except subprocess.TimeoutExpired as error:
        raise _unfit(f"that was not done in {PATIENCE_S:.0f} s") from error
    return file


def _require_jars_only() -> None:
    """Refuse a class path with a non-empty folder, for which Java archives no classes."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder and any(Path(folder).iterdir()):
        raise _unfit(
            f"Java makes none while SPARK_CONF_DIR names a folder with files, here {folder}"
        )


def _make_apart(file: Path) -> None:
    """Make it in a separate process, since this one may already have a session.

    That process is in a group of its own, so that Ctrl-C reaches only us. We then interrupt it,
    once, and it cleans up after itself.
    """
    command = [sys.executable, "-m", __name__, str(file)]
    with subprocess.Popen(  # noqa: S603 - our own command
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as child:
        try:
            _, said = child.communicate(timeout=PATIENCE_S)
        except BaseException:
            _end(child)
            raise
    if child.returncode:
        lines = said.strip().splitlines() or [f"its process ended with code {child.returncode}"]
        raise _unfit(lines[-1].rstrip("."))


def _end(child: subprocess.Popen[str]) -> None:
    """Let it end by itself, so that it cleans up; kill it if it does not."""
    child.send_signal(signal.SIGINT)
    try:
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=ENDING_S)
    finally:
        child.kill()
        child.wait()


def _unfit(why: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"No class archive for executors could be made ({why}): fix that, or go without it "
        "(--no-archive on the command line)."
    )


def _make(file: Path) -> None:
    """Run an executor that archives the classes it has loaded when it ends."""
    from tailrace.spark.cluster.executors import warmer  # noqa: PLC0415
    from tailrace.spark.cluster.local import Cluster  # noqa: PLC0415 - only the child needs them
    from tailrace.spark.session import session  # noqa: PLC0415
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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent may have had it ignored
    _make(Path(sys.argv[1]))
