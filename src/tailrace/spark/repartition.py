"""Repartitions the state of a stopped flow, of keyed steps and of Spark's own operators.

The partition of a key depends on the number of partitions, so state fixes that number. Between two
runs it can be changed: the state of keyed steps is redistributed by Spark's own hash, and the state
of Spark's operators by its checkpoint manager (since Spark 4.2), as a batch of its own.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tailrace.errors import EnvironmentUnfit, InputError
from tailrace.spark.checkpoints.batch_log import BatchLog
from tailrace.spark.checkpoints.checkpoint import places
from tailrace.spark.failures import explained
from tailrace.spark.pipeline.trace import traced
from tailrace.spark.sources import open_source
from tailrace.state.lock import sole_user
from tailrace.state.partitions import partitions_of
from tailrace.state.place import state_place
from tailrace.state.respread import respread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from tailrace.spark.flow import Flow

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PARTITIONS = "spark.sql.shuffle.partitions"

SPARKS = "Spark's operators"
"""The name, in results, of state that does not belong to keyed steps."""


def repartition(flow: Flow, spark: SparkSession, partitions: int) -> dict[str, int]:
    """Spread all state of a stopped flow anew; returns what was spread, with its old number.

    The state is that of the last committed batch. A batch that was begun after it is run again by
    the next start; if state of Spark's operators is to move, that must come first. State that
    already has this number of partitions stays as it is. If this is interrupted, all state is
    still there, under its old number or the new one, and a repeated call does the rest.
    """
    if flow.checkpoint is None:
        raise InputError(
            f"Flow '{flow.name}' has no checkpoint, so it keeps no state between runs: give it "
            "one with Flow(..., checkpoint=directory)."
        )
    if partitions < 1:
        raise InputError(f"State cannot be spread over {partitions} partitions: give at least 1.")
    if BatchLog(flow.checkpoint / "checkpoint").committed < 0:
        raise InputError(
            f"Flow '{flow.name}' has committed no batch in {flow.checkpoint}: run it first."
        )
    with sole_user(flow.checkpoint):
        return _spread(flow, flow.checkpoint, spark, partitions)


def _spread(flow: Flow, directory: Path, spark: SparkSession, partitions: int) -> dict[str, int]:
    """Spread the state of keyed steps, then the state of Spark's operators.

    Spark makes a batch of its part, though no step sees one. So if it has a part, every step gets
    a version for that batch too, even a step that already has the right number of partitions.
    """
    log = BatchLog(directory / "checkpoint")
    version = log.committed
    _check_begun(flow, log, version, partitions)
    theirs = _operators(log, version)
    moving = None if theirs == partitions else theirs
    if moving is not None:
        _check_provider(log.settings(version))
    before: dict[str, int] = {}
    for name, kinds in _key_types(flow, spark).items():
        place = state_place(directory / "state", name)
        ours = partitions_of(place)
        if ours is None or (ours == partitions and moving is None):
            continue
        if ours != partitions:
            before[name] = ours
        spread = partial(places, partitions=partitions, kinds=kinds)
        respread(place, partitions, version, spread, idle_after=moving is not None)
    if moving is not None:
        before[SPARKS] = moving
        _repartition_operators(spark, log.directory, partitions)
    return before


def _check_begun(flow: Flow, log: BatchLog, committed: int, partitions: int) -> None:
    """Refuse a begun but uncommitted batch where Spark would, before anything changes.

    Spark does not repartition its operators' state after such a batch, because the batch could
    then not be run again. If the batch is itself an unfinished repartitioning (it has another
    number of partitions), Spark only resumes that one.
    """
    begun = log.begun
    if begun <= committed:
        return
    theirs, wanted = _operators(log, committed), _operators(log, begun)
    if wanted != theirs:
        if wanted != partitions:
            raise InputError(
                f"Spreading the state of flow '{flow.name}' over {wanted} partitions was "
                f"interrupted: spread it over {wanted} first."
            )
    elif theirs not in {None, partitions}:
        raise InputError(
            f"Flow '{flow.name}' was ended in the middle of batch {begun}, so the state of Spark's "
            "operators cannot be spread yet: start the flow once, stop it, then try again."
        )


def _operators(log: BatchLog, batch: int) -> int | None:
    """How many partitions the state of Spark's operators has in a batch; None if it has none."""
    return int(log.settings(batch)[PARTITIONS]) if (log.directory / "state").is_dir() else None


def _key_types(flow: Flow, spark: SparkSession) -> Mapping[str, tuple[str, ...]]:
    with tempfile.TemporaryDirectory(prefix="tailrace-") as directory:
        opened = open_source(flow.source, flow.arrived, spark, Path(directory))
        return traced(flow.pipeline, opened.frame).key_types


def _check_provider(settings: Mapping[str, str]) -> None:
    if settings.get(PROVIDER) != ROCKSDB:
        raise InputError(
            "The state of Spark's operators is not kept in RocksDB, so Spark cannot spread it: "
            f"start with a new checkpoint, and with {PROVIDER}={ROCKSDB}."
        )


def _repartition_operators(spark: SparkSession, log: Path, partitions: int) -> None:
    session: Any = spark
    manager = getattr(session, "_streamingCheckpointManager", None)
    if manager is None:
        raise EnvironmentUnfit(
            f"This version of Spark ({spark.version}) cannot spread the state of its operators "
            "anew: install one from 4.2 on."
        )
    try:
        manager.repartition(str(log), partitions)
    except (PySparkException, Py4JError) as error:
        raise explained(error) from error
