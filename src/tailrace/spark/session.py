"""A session with the settings that low latency needs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.errors import EnvironmentUnfit, InputError, TailraceError
from tailrace.masking import NAMES, masked, masked_value
from tailrace.policy.scaling.sizing import Limits
from tailrace.spark.cluster import access, archive
from tailrace.spark.cluster.process import HOST
from tailrace.spark.jvm.java import JAR, require_java
from tailrace.spark.jvm.launch import launched
from tailrace.spark.settings import wanted
from tailrace.spark.sources.connector import require_connector, with_connector

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGGING = Path(__file__).with_name("log4j2.properties")

STACK = "-Xss16m"
"""When a query is stopped, Spark matches Python's error text against a pattern that recurses once
for each character, and the default stack of a megabyte may be too small for that."""

_MASTER = re.compile(r"local(\[([1-9]\d*|\*)(,\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
_CLUSTER_HERE = f"spark://{HOST}:"
_ADDRESSES = ("spark.driver.host", "spark.driver.bindAddress")
_ADDRESSED = {"SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"}
"""The environment variables that give Spark the address of a machine."""

_BUILDING = Lock()
"""Flows may be started from several threads, and there is one session for all."""


def session(
    app: str = "tailrace",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    plain: bool = False,
    executors: tuple[int, int] | None = None,
    kafka: bool | str | Path = False,
) -> SparkSession:
    """A Spark session that is fit for low latency.

    If no session is running, one is built (``local[*]`` unless ``master`` says otherwise). A
    session that the user made is used as it is: nothing in it is overwritten, and ``tailrace
    doctor`` and the report of a flow say what it lacks. ``settings`` are the user's own and win
    over ours. A ``plain`` session has none of ours: it is what Spark creates by default, for
    comparison. With ``executors=(least, most)`` a session on a cluster starts with the least, of
    one core each unless ``settings`` say otherwise, and leaves their number to flows. With
    ``kafka=True`` it has Spark's Kafka connector, which is searched for in the cache and by Maven
    coordinates; ``kafka="folder"`` names a folder that has its jars.
    """
    with _BUILDING:
        running = running_session()
        if running is None:
            return _built(app, master, settings or {}, executors, plain=plain, kafka=kafka)
    if kafka:
        require_connector(running)
    return running


def running_session() -> SparkSession | None:
    """The session that runs; a thread that did nothing with it yet has none that is active."""
    made: Any = SparkSession._instantiatedSession
    ended = made is None or made._sc._jsc is None
    return SparkSession.getActiveSession() or (None if ended else made)


def _built(
    app: str,
    master: str | None,
    settings: Mapping[str, str],
    executors: tuple[int, int] | None,
    *,
    plain: bool,
    kafka: bool | str | Path,
) -> SparkSession:
    """Build a session; whoever calls this keeps others from it."""
    if master is not None and not _MASTER.fullmatch(master):
        raise InputError(
            f"'{master}' is not a Spark master: write local[4], spark://host:7077, k8s://... or "
            "yarn."
        )
    limits = None if executors is None else Limits(*executors)
    require_java()
    if not JAR.exists():
        raise EnvironmentUnfit(
            "Tailrace's Java part is not built: run 'make setup', or 'python jvm/build.py'."
        )
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    master = master or f"local[{os.cpu_count() or 1}]"
    ours = {} if plain else wanted(slots_of(master))
    elastic = limits is not None and not master.startswith("local")
    if limits is not None and elastic:
        ours |= few_executors(limits.least, limits.most, _cores(settings))
    ours |= on_loopback(master, settings)
    if master.startswith(_CLUSTER_HERE):
        settings = {**settings, **archive.options(settings)}
        settings = {**access.settings(master), **settings}
    chosen = {**ours, **_plumbing(), **settings, "spark.master": master, "spark.app.name": app}
    if kafka:
        chosen = with_connector(chosen, kafka)
    builder = SparkSession.builder
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        with launched(chosen):
            built = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise _not_started(str(error)) from error
    if kafka:
        _require_or_stop(built)
    if elastic:
        inside: Any = built.sparkContext
        inside._jvm.tailrace.cluster.ExecutorPool.takeOver(inside._jsc.sc())
    return built


def _require_or_stop(built: SparkSession) -> None:
    """End a session without the connector: it may have taken over a JVM that was built without."""
    try:
        require_connector(built)
    except EnvironmentUnfit:
        built.stop()
        raise


def few_executors(least: int, most: int, cores: int) -> dict[str, str]:
    """Start with few executors, and leave room for more.

    Without dynamic allocation a standalone cluster gives an application everything it may have, at
    once. So the session starts with it, and switches it off as soon as the session exists.
    """
    return {
        "spark.executor.cores": str(cores),
        "spark.cores.max": str(most * cores),
        "spark.sql.shuffle.partitions": str(most * cores),
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(least),
        "spark.dynamicAllocation.initialExecutors": str(least),
        "spark.dynamicAllocation.maxExecutors": str(most),
    }


def _cores(settings: Mapping[str, str]) -> int:
    """How many cores the user wants an executor to have; one by default."""
    said = str(settings.get("spark.executor.cores", 1)).strip()
    if not said.isdecimal() or not int(said):
        raise InputError(
            f"'{said}' is not a value for spark.executor.cores: set it to a whole number above 0."
        )
    return int(said)


def on_loopback(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Have the driver listen on loopback if everything that connects to it is on this machine.

    A session in one process listens as well, by default on whatever address the machine's name
    resolves to. If the user set any address, none is set here: a mix of both would have the driver
    listen on one address and be looked for on another.
    """
    here = master == "local" or master.startswith(("local[", _CLUSTER_HERE))
    if not here or settings.keys() & set(_ADDRESSES) or os.environ.keys() & _ADDRESSED:
        return {}
    return dict.fromkeys(_ADDRESSES, HOST)


def _not_started(said: str) -> TailraceError:
    """Why there is no session: a setting of the user's, a port, or the cause that Spark gives."""
    setting = re.search(r"The value '(.*)' in the config \"(.+)\" is invalid", said)
    if setting:
        value = masked_value(setting[2], setting[1])
        return InputError(f"'{value}' is not a value for {setting[2]}: set it to another.")
    in_use = re.search(r"(\S+): Service '(\w+)' failed", said)
    if "Address already in use" in said or in_use:
        service = in_use[2] if in_use else "Spark"
        return EnvironmentUnfit(
            f"A port that {service} needs is in use: free it, or set spark.driver.port and "
            "spark.driver.blockManager.port to others, or to 0 for any."
        )
    lines = said.strip().splitlines()
    cause = next((line[2:] for line in lines if line.startswith(": ")), lines[0])
    return EnvironmentUnfit(
        f"Spark did not start ({masked(cause)}): fix that, or the settings given to Spark."
    )


def _plumbing() -> dict[str, str]:
    """What the session needs to find our classes and to log little."""
    return {
        "spark.jars": str(JAR),
        "spark.driver.extraClassPath": str(JAR),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {STACK}",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.redaction.regex": NAMES,  # Spark's own misses JAAS, for example
    }


def slots_of(master: str) -> int:
    """The task slots of a ``local[n]`` master; the machine's cores for any other."""
    if master == "local":
        return 1
    inside = master.removeprefix("local[").removesuffix("]").split(",")[0]
    return int(inside) if master.startswith("local[") and inside.isdigit() else os.cpu_count() or 1
