"""Keyed steps on both backends, against counts in plain Python."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError, StepFailed
from tailrace.spark import sinks
from tailrace.spark.pipeline.step import keyed_step, step
from tailrace.spark.sources import replay
from tailrace.spark.worker.keyed import BORN_NOW, KeyedOperator, KeyedRun, StateSpec
from tailrace.spark.worker.meter import Meter
from tests.spark.collected import BACKENDS, Files, plan_on
from tests.spark.flows import Running, observed, total
from tests.spark.support import by_value, even_trace, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.spark.flow import Flow
    from tailrace.spark.pipeline.step import Apply
    from tailrace.spark.worker.operator import Passed

pytestmark = pytest.mark.spark
by_value(__name__)

COUNT, KEYS = 600, 7
COUNTED = "key string, seq bigint, n bigint"


def numbered(_key: Any, rows: list[Any], state: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    """Every record with its place among those of its key: wrong if any came twice or not."""
    for row in rows:
        state["n"] = state.get("n", 0) + 1
        yield row.key, row.seq, state["n"]


def keyed(function: Callable[..., Any] = numbered, schema: str = COUNTED, **how: Any) -> Apply:
    return keyed_step("count", function, schema, **{"key": "key", **how})


def load(count: int = COUNT, rate: float = 1000, keys: int = KEYS) -> Any:
    """A load read by one task, so that three are left for the partitions of the step."""
    return replay(even_trace(count, rate, keys=keys), partitions=1)


def flow_of(apply: Apply, sink: object, **how: Any) -> Flow:
    how = {"source": load(), **how}
    before = how.pop("before", lambda records: records)
    return observed(lambda records: before(records).transform(apply), sink, **how)


def on(backend: str, partitions: int = 1) -> Any:
    return plan_on(backend, None, {"count": partitions})


def places(rows: list[tuple[Any, ...]]) -> Counter[tuple[Any, int]]:
    return Counter((row[0], row[2]) for row in rows)


def every_place(count: int = COUNT, keys: int = KEYS) -> Counter[tuple[str, int]]:
    """What ``numbered`` makes of the load, one record after the other."""
    return Counter((f"k{seq % keys}", seq // keys + 1) for seq in range(count))


# --- counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize(
    "backends",
    [("microbatch", "realtime"), ("realtime", "microbatch"), ("realtime", "realtime")],
    ids="-then-".join,
)
def test_counts_go_on_where_they_were_when_a_run_is_resumed_on_either_backend(
    spark: SparkSession, tmp_path: Path, backends: tuple[str, str], partitions: int
) -> None:
    files, checkpoint = Files(tmp_path / "out"), tmp_path / "flow"
    seen, batches = [], []
    for backend, least in zip(backends, (1, 1500), strict=True):
        flow = flow_of(keyed(), files.sink, source=load(1500, 500), checkpoint=checkpoint)
        with Running(spark, flow, plan=on(backend, partitions)) as running:
            until(files.hold(least), "results of this run")
            running.run.stop()
        seen.append(len(files.rows()))
        commits = (checkpoint / "checkpoint" / "commits").iterdir()
        batches.append(max(int(path.name) for path in commits if path.name.isdigit()))
    assert seen[0] < seen[1] == 1500
    assert batches[0] < batches[1]
    assert places(files.rows()) == every_place(1500)
    assert Counter(row[1] for row in files.rows()) == Counter(range(1500))


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_columns_and_nulls_and_whole_numbers_are_keys(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    def key_of(seq: int) -> tuple[str | None, int | None]:
        return (None if seq % 5 == 0 else f"k{seq % 2}", None if seq % 3 == 0 else seq % 2)

    def count(key: Any, rows: list[Any], state: dict[str, int]) -> Iterator[tuple[Any, ...]]:
        for _ in rows:
            state["n"] = state.get("n", 0) + 1
            yield (*key, state["n"])

    mark = step("mark", lambda row: key_of(row.seq), "name string, number bigint")
    apply = keyed(count, "name string, number bigint, n bigint", key=("name", "number"))
    files = Files(tmp_path / "out")
    flow = flow_of(apply, files.sink, before=lambda records: records.transform(mark))
    with Running(spark, flow, plan=on(backend, 2)) as running:
        until(files.hold(COUNT), "all results")
        running.run.stop()
    sizes = Counter(key_of(seq) for seq in range(COUNT))
    assert None in {name for name, _ in sizes}
    expected = Counter((*key, n + 1) for key, size in sizes.items() for n in range(size))
    assert files.counted() == expected


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("initial", [{"n": 100}, lambda: {"n": 100}], ids=["dict", "function"])
def test_a_new_key_begins_with_the_initial_state(
    spark: SparkSession, tmp_path: Path, backend: str, initial: Any
) -> None:
    files = Files(tmp_path / "out")
    flow = flow_of(keyed(state=initial), files.sink, source=load(70))
    with Running(spark, flow, plan=on(backend)) as running:
        until(files.hold(70), "all results")
        running.run.stop()
    assert places(files.rows()) == Counter({(k, n + 100): 1 for k, n in every_place(70)})


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_before_and_a_step_after_change_nothing(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    both = "key string, seq bigint"
    before = step("before", lambda row: (row.key, row.seq), both)
    behind = step("behind", lambda row: (row.key, row.seq, -row.n), COUNTED)

    def pipeline(records: DataFrame) -> DataFrame:
        return records.transform(before).transform(keyed()).transform(behind)

    files = Files(tmp_path / "out")
    flow = observed(pipeline, files.sink, source=load())
    with Running(spark, flow, plan=on(backend, 2)) as running:
        graph = running.run.controller.graph
        until(files.hold(COUNT), "all results")
        running.run.stop()
    assert graph.primary_chains() == (("before",), ("count", "behind"))
    assert places(files.rows()) == Counter({(k, -n): 1 for k, n in every_place()})


# --- timers ----------------------------------------------------------------------------------


def ask_to_be_woken(_key: Any, rows: list[Any], state: Any) -> None:
    state["n"] = state.get("n", 0) + len(rows)
    state.wake(state.now + timedelta(milliseconds=300))


def tell(key: Any, state: Any) -> list[tuple[Any, ...]]:
    told = [(key, -1, state["n"])]
    state.clear()
    return told


def test_timers_by_the_clock_fire_while_no_records_come(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Files(tmp_path / "out")
    apply = keyed(ask_to_be_woken, on_timer=tell)
    with Running(spark, flow_of(apply, files.sink, source=load(210)), plan=on("realtime")) as it:
        until(lambda: sum(n for _, _, n in files.rows()) >= 210, "a timer for the last records")
        commits = it.run._directory / "checkpoint" / "commits"
        assert not [p for p in commits.glob("*") if p.name.isdigit()]  # in the one batch
        it.run.stop()
    counts = Counter[str]()
    for key, _, n in files.rows():
        counts[key] += n
    assert counts == Counter({f"k{k}": 30 for k in range(KEYS)})


@pytest.mark.parametrize("backend", BACKENDS)
def test_timers_in_event_time_fire_by_the_watermark(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    """One key: records 1 ms apart; a timer 100 ms after the first, of which the watermark tells."""

    def collect(_key: Any, rows: list[Any], state: Any) -> None:
        if not state:
            state.wake(rows[0].due + timedelta(milliseconds=100))
        state["seqs"] = [*state.get("seqs", []), *(row.seq for row in rows)]

    def release(key: Any, state: Any) -> list[tuple[Any, ...]]:
        told = [(key, min(state["seqs"]), len(state["seqs"]))]
        state.clear()
        return told

    files = Files(tmp_path / "out")
    apply = keyed(collect, on_timer=release, event="due")
    flow = flow_of(apply, files.sink, source=load(1000, 1000, keys=1))
    with Running(spark, flow, plan=on(backend)) as running:
        until(lambda: sum(n for _, _, n in files.rows()) >= 1000 - 101, "all windows but the last")
        running.run.stop()
    windows = sorted((first, n) for _, first, n in files.rows())
    starts = [first for first, _ in windows]
    assert starts == [sum(n for _, n in windows[:i]) for i in range(len(windows))]
    assert all(n > 100 for _, n in windows)  # no window was let go before its time


# --- records that fail -----------------------------------------------------------------------


def half_done(_key: Any, rows: list[Any], state: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    """Fails on some records, after the state was changed."""
    for row in rows:
        state["n"] = state.get("n", 0) + 1
        if row.seq % 10 == 5:
            state["n"] += 1000
            raise ValueError(f"no {row.seq}")
        yield row.key, row.seq, state["n"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("on_error", ["drop", "dead-letter"])
def test_a_call_that_fails_leaves_the_state_of_its_key_as_it_was(
    spark: SparkSession, tmp_path: Path, backend: str, on_error: str
) -> None:
    """Ten keys, so that one of them has all bad records, and its calls always fail."""
    files, dead = Files(tmp_path / "out"), sinks.memory()
    apply = keyed(half_done, on_error=on_error)
    flow = flow_of(apply, files.sink, source=load(400, keys=10), dead_letters=dead)
    with Running(spark, flow, plan=on(backend)) as running:
        until(files.hold(360), "all results but those of the bad key")
        running.run.stop()
    good = Counter({place: 1 for place in every_place(400, 10) if place[0] != "k5"})
    assert places(files.rows()) == good
    letters = sorted(json.loads(row["record"])["seq"] for row in dead.rows())
    assert letters == (list(range(5, 400, 10)) if on_error == "dead-letter" else [])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_is_put_back_also_for_a_key_that_had_one(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    """Records so far apart that most are calls of their own; the others are tried again singly."""
    files = Files(tmp_path / "out")
    apply = keyed(half_done, on_error="drop")
    flow = flow_of(apply, files.sink, source=load(40, 20, keys=1))
    with Running(spark, flow, plan=on(backend)) as running:
        until(lambda: 39 in [row[1] for row in files.rows()], "the last record")
        running.run.stop()
    numbers = sorted(n for _, _, n in files.rows())
    assert numbers == list(range(1, 37))
    assert not {row[1] for row in files.rows()} & {5, 15, 25, 35}


# --- what cannot be --------------------------------------------------------------------------


def fails(spark: SparkSession, apply: Apply, backend: str, match: str) -> None:
    flow = flow_of(apply, sinks.discard(), source=load(50))
    with Running(spark, flow, plan=on(backend)) as running:
        assert running.run.wait(60)
        with pytest.raises(StepFailed, match=match) as failure:
            running.run.stop()
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_that_cannot_be_stored_fails_the_flow_in_one_sentence(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    def keep_a_function(_key: Any, rows: list[Any], state: Any) -> Iterator[tuple[Any, ...]]:
        state["f"] = len
        return ((row.key, row.seq, 0) for row in rows)

    files = Files(tmp_path / "out")
    flow = flow_of(keyed(keep_a_function), files.sink, source=load(50))
    with Running(spark, flow, plan=on(backend)) as running:
        # In real-time mode the state is written when the batch ends, which is when it is stopped.
        until(lambda: files.rows() or running.run.wait(0), "a result, or the failure")
        with pytest.raises(StepFailed, match=r"step 'count'.* cannot be kept") as failure:
            running.run.stop()
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_timer_without_on_timer_fails_the_flow_in_one_sentence(
    spark: SparkSession, backend: str
) -> None:
    fails(spark, keyed(ask_to_be_woken), backend, r"Step 'count' has set a timer.*no on_timer")


def test_another_number_of_partitions_is_refused_on_resume(
    spark: SparkSession, tmp_path: Path
) -> None:
    def flow() -> Flow:
        return flow_of(keyed(), sinks.discard(), checkpoint=tmp_path / "flow")

    with Running(spark, flow(), plan=on("microbatch", 2)) as running:
        running.run.stop()
    for backend in BACKENDS:
        with pytest.raises(InputError, match="is spread over 2 partitions, not 3: run it with 2"):
            flow().start(spark, plan=on(backend, 3))
    assert spark.streams.active == []


def test_without_a_plan_of_its_own_a_resumed_run_keeps_the_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = flow_of(keyed(), sinks.discard(), checkpoint=tmp_path / "flow")
    with Running(spark, flow, plan=on("microbatch", 3)) as running:
        running.run.stop()
    again = flow_of(keyed(), sinks.discard(), checkpoint=tmp_path / "flow", backend="realtime")
    with Running(spark, again) as running:
        assert running.run.controller.plan.partitions == {"count": 3}
        running.run.stop()


def test_a_key_column_that_does_not_exist_is_refused(spark: SparkSession) -> None:
    flow = flow_of(keyed(key="user"), sinks.discard())
    with pytest.raises(InputError, match="Step 'count' is keyed by 'user', which is not among"):
        flow.start(spark)
    assert spark.streams.active == []


def test_two_runs_of_one_load_differ_in_nothing_but_time(spark: SparkSession) -> None:
    """The order within a key is that of arrival, whatever the hand-overs."""
    memory = sinks.memory()
    with Running(spark, flow_of(keyed(), memory), plan=on("microbatch", 3)) as running:
        until(lambda: total(memory) >= COUNT, "all results")
        running.run.stop()
    for key in range(KEYS):
        mine = [r for r in memory.rows() if r["key"] == f"k{key}"]
        assert [r["seq"] for r in sorted(mine, key=lambda r: int(r["n"]))] == list(
            range(key, COUNT, KEYS)
        )


# --- a keyed step in one task, without a session ---------------------------------------------

NUMBERED = pa.schema([("key", pa.string()), ("seq", pa.int64()), ("n", pa.int64())])


def in_one_task(
    directory: Path, function: Callable[..., Any], on_error: str, on_timer: Any = None
) -> KeyedRun:
    memory = StateSpec(("key",), None, on_timer, None, 0, 1 << 20, str(directory))
    made = KeyedOperator("count", function, NUMBERED, on_error, ("key",), memory=memory)
    return made.open()


def handed_over(*seqs: int) -> pa.RecordBatch:
    keys = pa.array([f"k{seq % 3}" for seq in seqs])
    return pa.RecordBatch.from_arrays([keys, pa.array(seqs, pa.int64())], names=["key", "seq"])


def numbers_of(passed: Passed) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in passed.batch.to_pylist()]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=8))
def test_which_records_fail_does_not_depend_on_which_come_together(sizes: list[int]) -> None:
    """One that raises takes no other along, and each has a letter of its own."""
    seqs = iter(range(sum(sizes)))
    meter, found = Meter(), []
    with tempfile.TemporaryDirectory() as directory:
        run = in_one_task(Path(directory), half_done, "dead-letter")
        for size in sizes:
            found += numbers_of(run.run(handed_over(*islice(seqs, size)), meter))
    good = [seq for seq in range(sum(sizes)) if seq % 10 != 5]
    places = Counter[str]()
    expected = []
    for seq in good:
        places[f"k{seq % 3}"] += 1
        expected.append((f"k{seq % 3}", seq, places[f"k{seq % 3}"]))
    assert sorted(found) == sorted(expected)
    dead = [json.loads(record)["seq"] for record, _ in meter.dead]
    assert sorted(dead) == list(range(5, sum(sizes), 10))
    assert meter.errors == len(dead)


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_timer_that_fails_takes_no_other_along_and_is_identified_by_its_key(
    tmp_path: Path, at_the_end: bool
) -> None:
    def remember(_key: Any, _rows: list[Any], state: Any) -> None:
        state["rings"] = 0
        state.wake(state.now)

    def ring(key: Any, state: Any) -> list[tuple[Any, ...]]:
        state["rings"] += 1
        if at_the_end and state["rings"] == 1:
            state.wake(state.now)  # due already, but not before the next time
            return []
        if key == "k2":
            raise ValueError("no timer")
        return [(key, "not a number" if key == "k1" else 0, 0)]

    run, meter = in_one_task(tmp_path, remember, "dead-letter", ring), Meter()
    passed = run.run(handed_over(0, 1, 2), meter)
    if at_the_end:
        assert (numbers_of(passed), meter.dead) == ([], [])
        passed = run.finish(meter)
    assert numbers_of(passed) == [("k0", 0, 0)]
    assert passed.origins == [BORN_NOW]
    assert sorted(record for record, _ in meter.dead) == ['{"key": "k1"}', '{"key": "k2"}']
