from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from tailrace.bench.broker import Broker
from tailrace.errors import EnvironmentUnfit
from tailrace.spark import connector
from tailrace.spark.settings import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session of the run, with every setting that a flow gets, and Kafka where it is."""
    shared = session("tests", master="local[4]", kafka=has_kafka())
    yield shared
    shared.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The one Kafka of the run, started for the first test that needs it.

    A test makes topics of its own, and brings the broker back if it ends it.
    """
    try:
        shared = Broker()
    except EnvironmentUnfit as unfit:
        pytest.skip(str(unfit))
    with shared:
        yield shared


def has_kafka() -> bool:
    """Whether the connector can be had; tests that need it are skipped else, with the reason."""
    try:
        connector.find()
    except EnvironmentUnfit as error:
        warnings.warn(str(error), stacklevel=1)
        return False
    return True
