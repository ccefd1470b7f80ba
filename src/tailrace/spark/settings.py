"""The settings that low latency needs, each with its reason.

Half of the latency of a small batch depends on settings. This module owns them all: ``session.py``
builds a session with them, ``findings`` says what a session lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing"


@dataclass(frozen=True, slots=True)
class Setting:
    """A Spark setting, the value that it needs, why, and whether it can be set on a live session.

    ``cost`` is what it costs to go without, to help the user decide.
    """

    key: str
    value: str
    reason: str
    live: bool
    cost: str


SETTINGS = (
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "Python workers talk to the JVM over Unix domain sockets instead of TCP",
        live=False,
        cost="about 40 ms for every Python stage of every batch",
    ),
    Setting(
        "spark.hadoop.fs.file.impl",
        "tailrace.cluster.LocalFiles",
        "local files are created without starting a process for each",
        live=False,
        cost="about 60 ms a batch for the query's log, and more for file sinks",
    ),
    Setting(
        "spark.python.daemon.module",
        "tailrace.spark.worker.daemon",
        "workers do not collect garbage over all that they have loaded after every task",
        live=False,
        cost="about 13 ms of a core after every Python task",
    ),
    Setting(
        "spark.sql.extensions",
        "tailrace.Extension",
        "in real-time mode records go to Python one by one, or in batches of a chosen age",
        live=False,
        cost="real-time mode, which needs it",
    ),
    Setting(
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs",
        "1",
        "the shuffle of real-time mode is flushed every millisecond, not every 50",
        live=False,
        cost="25 ms on average for every exchange of a flow in real-time mode",
    ),
    Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        f"{_MANAGERS}.FileSystemBasedCheckpointFileManager",
        "the query's log goes through the file system of spark.hadoop.fs.file.impl",
        live=True,
        cost="the same 60 ms, since the log then does not use that file system",
    ),
    Setting(
        "spark.sql.streaming.checkpoint.fileChecksum.enabled",
        "false",
        "one file instead of two for every entry of the query's log",
        live=True,
        cost="a few ms a batch",
    ),
    Setting(
        "spark.sql.adaptive.enabled",
        "false",
        "adaptive execution re-plans batches that are over before the new plan pays off",
        live=True,
        cost="about 5 ms a batch, more with a shuffle",
    ),
    Setting(
        "spark.sql.streaming.pollingDelay",
        "1ms",
        "an idle query checks for new records every millisecond, not every ten",
        live=True,
        cost="up to 10 ms for the first record after a pause",
    ),
    Setting(
        "spark.sql.shuffle.partitions",
        "",  # the number of slots
        "a shuffle makes as many tasks as there are slots, not 200",
        live=True,
        cost="4.5 s a batch with 200 partitions on 2 cores",
    ),
)


EXTENSION = next(setting for setting in SETTINGS if setting.key == "spark.sql.extensions")
"""Real-time mode needs this one."""


def wanted(slots: int) -> dict[str, str]:
    """The settings by key, for a session with this many task slots."""
    return {setting.key: setting.value or str(slots) for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a machine or a session that a user should know.

    If ``fatal``, nothing will run; otherwise flows run, but slower.
    """

    fatal: bool
    what: str
    remedy: str


def findings(spark: SparkSession) -> tuple[Finding, ...]:
    """What a session lacks, with the cost of each and how to fix it."""
    found = []
    slots = spark.sparkContext.defaultParallelism
    for setting in SETTINGS:
        key, value = setting.key, setting.value
        has = conf_of(spark, key)
        if key == "spark.sql.shuffle.partitions":
            has = has or "200"
            if int(has) > 4 * slots:
                found.append(
                    Finding(
                        fatal=False,
                        what=f"{has} shuffle partitions on {slots} slots; costs {setting.cost}.",
                        remedy=f"Set {key} to {slots}, before the first start of a query.",
                    )
                )
        elif has != value:
            when = "" if setting.live else " when the session is built"
            found.append(
                Finding(
                    fatal=False,
                    what=f"{key} is {has or 'not set'}; costs {setting.cost}.",
                    remedy=f"Set it to {value}{when}: {setting.reason}.",
                )
            )
    return tuple(found)


def conf_of(spark: SparkSession, key: str) -> str | None:
    """The value of a setting in a session; None when it is not set."""
    if key.startswith("spark.sql."):
        value = spark.conf.get(key, None)
    else:
        inside: Any = spark.sparkContext
        value = inside._conf.get(key)  # getConf() fetches every setting there is, to copy them
    return None if value is None else str(value)
