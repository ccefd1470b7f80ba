from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.spark.settings import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session of the run, with every setting that a flow gets."""
    shared = session("tests", master="local[2]")
    yield shared
    shared.stop()
