from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import EnvironmentUnfit
from tailrace.spark.session import session
from tailrace.spark.sources import connector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session of the run, with every setting that a flow gets, and Kafka where it is."""
    shared = session("tests", master="local[4]", kafka=has_kafka())
    yield shared
    shared.stop()


def has_kafka() -> bool:
    """Whether the connector is available; if not, tests that need it are skipped with a reason."""
    try:
        connector.find()
    except EnvironmentUnfit as error:
        warnings.warn(str(error), stacklevel=1)
        return False
    return True
