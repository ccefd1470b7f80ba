"""With ``redact`` nothing that a record holds leaves the flow but through its sinks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tailrace.errors import StepFailed
from tailrace.load import Trace
from tailrace.model.keys.keytypes import REDACTED
from tailrace.model.keys.murmur import partition_of
from tailrace.model.keys.pseudonyms import places
from tailrace.profile.file import as_json
from tailrace.spark import sinks
from tailrace.spark.pipeline.step import keyed_step, step
from tailrace.spark.sources import replay
from tests.spark.collected import BACKENDS, Files, plan_on
from tests.spark.flows import Running, observed
from tests.spark.support import by_value, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
by_value(__name__)

NAMES = ("alice@example.org", "bob@example.org", "carol@example.org")
COUNT = 3_000


def load() -> Any:
    due = (np.arange(COUNT) * 1e6 / 1_000).astype(np.int64)
    key = (np.arange(COUNT) % len(NAMES)).astype(np.int32)
    return replay(Trace(due, key, np.zeros(COUNT, np.int32), NAMES), partitions=1)


def shows_a_name(text: str) -> bool:
    return any(name.partition("@")[0] in text for name in NAMES)


def counted(key: str, rows: list[Any], state: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        state["n"] = state.get("n", 0) + 1
        yield key, row.seq, state["n"]


@pytest.mark.parametrize("redact", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_are_in_reports_and_profiles_only_without_redaction(
    spark: SparkSession, tmp_path: Path, backend: str, redact: bool
) -> None:
    files = Files(tmp_path / "out")
    apply = keyed_step("count", counted, "key string, seq bigint, n bigint", key="key")
    flow = observed(
        lambda records: records.transform(apply),
        files.sink,
        source=load(),
        redact=redact,
        interval="500 ms",
    )
    with Running(spark, flow, plan=plan_on(backend, None, {"count": 2})) as running:
        until(files.hold(COUNT), "all results")
        until(lambda: running.run.report().profile is not None, "a profile")
        report = running.run.stop()
        heard = [m.steps["count"].keys for m in running.measures]
    assert report.profile is not None
    (profiled,) = report.profile.steps
    assert profiled.keys
    said = json.dumps([report.data, as_json(report.profile), heard])
    assert shows_a_name(said) is not redact
    if redact:
        assert profiled.key_type == REDACTED
        ours = set(places(list(profiled.keys), 16).tolist())
        assert ours <= set(partition_of(NAMES, 16, "string").tolist())
    assert {row[0] for row in files.rows()} == set(NAMES)


def bad_name(row: Any) -> Any:
    raise ValueError(f"what is {row.key}?")


@pytest.mark.parametrize("redact", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("function", "place"),
    [
        (bad_name, r"ValueError in bad_name, line \d+ of test_redaction.py"),
        (lambda row: row.key, "its result does not fit the schema"),
    ],
    ids=["raises", "misfits"],
)
def test_a_failure_names_the_record_only_without_redaction(
    spark: SparkSession, backend: str, redact: bool, function: Any, place: str
) -> None:
    broken = step("broken", function, "n bigint")
    flow = observed(
        lambda records: records.transform(broken), sinks.discard(), source=load(), redact=redact
    )
    with Running(spark, flow, plan=plan_on(backend)) as running:
        until(lambda: running.run.wait(0), "the flow has failed")
        with pytest.raises(StepFailed, match=place if redact else "on the record {") as caught:
            running.run.stop()
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert shows_a_name(" ".join(map(str, chain))) is not redact


def test_a_state_that_cannot_be_kept_is_reported_without_its_key(spark: SparkSession) -> None:
    def spoilt(_key: str, _rows: list[Any], state: dict[str, Any]) -> None:
        state["lock"] = object()

    apply = keyed_step("count", spoilt, "n bigint", key="key")
    flow = observed(
        lambda records: records.transform(apply), sinks.discard(), source=load(), redact=True
    )
    with Running(spark, flow) as running:
        until(lambda: running.run.wait(0), "the flow has failed")
        with pytest.raises(StepFailed, match=r"for key \*\*\* cannot be kept") as caught:
            running.run.stop()
    assert not shows_a_name(str(caught.value))


def test_dead_letters_are_whole(spark: SparkSession) -> None:
    letters = sinks.memory()
    broken = step("broken", bad_name, "n bigint", on_error="dead-letter")
    flow = observed(
        lambda records: records.transform(broken),
        sinks.discard(),
        source=load(),
        redact=True,
        dead_letters=letters,
    )
    with Running(spark, flow) as running:
        until(lambda: len(letters.rows()) >= 3, "some dead letters")
        running.run.stop()
    (first, *_) = letters.rows()
    assert shows_a_name(first["record"])
    assert shows_a_name(first["error"])
