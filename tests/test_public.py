"""The public surface: small, sorted, and free for workers that need none of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tailrace


def test_public_names_are_sorted_and_can_all_be_had() -> None:
    assert tailrace.__all__ == sorted(tailrace.__all__)
    for name in tailrace.__all__:
        assert getattr(tailrace, name) is not None


def test_every_public_name_says_what_it_is() -> None:
    for name in tailrace.__all__:
        assert getattr(tailrace, name).__doc__


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'flwo'"):
        tailrace.flwo  # noqa: B018 - asking for it is the test


HEAVY = ("matplotlib", "rich", "typer", "pandas")


@pytest.mark.parametrize(
    ("module", "without"),
    [("tailrace.spark.worker.chain", HEAVY), ("bench", (*HEAVY, "pyspark", "tailrace.spark"))],
    ids=["what workers run", "the names of benchmarks"],
)
def test_what_is_imported_often_brings_nothing_that_takes_long(
    module: str, without: tuple[str, ...]
) -> None:
    code = f"import sys, {module}; print([m for m in {without} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
