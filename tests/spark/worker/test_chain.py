from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import InputError
from tailrace.model.keys.murmur import partition_of
from tailrace.model.keys.routing import shares
from tailrace.model.loads import histogram_of
from tailrace.profile.histogram import bin_of
from tailrace.profile.profile import StepProfile
from tailrace.spark.worker import operator as module
from tailrace.spark.worker.chain import Chain
from tailrace.spark.worker.meter import LONGEST_KEY, MOST_KEYS, SAMPLE_EVERY, Meter
from tailrace.spark.worker.operator import (
    FAILURE,
    BatchOperator,
    FlatOperator,
    Operator,
    RecordFailed,
    RowOperator,
)
from tailrace.spark.worker.records import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.spark.worker.meter import Meters

N = pa.schema([("n", pa.int64())])
KINDS = {each.kind: each for each in (RowOperator, FlatOperator, BatchOperator)}
PAIR = pa.schema([("n", pa.int64()), ("text", pa.string())])


class Kept:
    """Stands in for the accumulator: keeps what the chain reported."""

    def __init__(self) -> None:
        self.value: Meters = {}

    def add(self, meters: Meters) -> None:
        self.value.update(meters)


def operator(
    function: Callable[..., Any],
    schema: pa.Schema = N,
    *,
    kind: str = "row",
    on_error: str = "fail",
    name: str = "a",
    keyed_by: tuple[str, ...] = (),
) -> Operator:
    return KINDS[kind](name, function, schema, on_error, keyed_by)


def numbers(*values: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=N)


def through(
    batches: list[pa.RecordBatch], *operators: Operator
) -> tuple[list[dict[str, Any]], Meters]:
    """The rows that leave a chain, and what it measured."""
    kept = Kept()
    rows: list[dict[str, Any]] = []
    for batch in Chain(operators, kept)(batches):  # type: ignore[arg-type]  # it only needs .add
        assert batch.schema.equals(operators[-1].schema)
        rows += batch.to_pylist()
    return rows, kept.value


def failing(batches: list[pa.RecordBatch], *operators: Operator) -> dict[str, str]:
    """The facts that travel in the exception of a chain that gives up."""
    with pytest.raises(RecordFailed) as failure:
        through(batches, *operators)
    text = str(failure.value)
    assert text.startswith(FAILURE)
    facts: dict[str, str] = json.loads(text.removeprefix(FAILURE))
    return facts


def odd_fails(row: Any) -> Any:
    if row.n % 2:
        raise ValueError(f"{row.n} is odd")
    return row.n


@pytest.mark.parametrize(
    "function",
    [
        lambda row: (row.n, str(row.n)),
        lambda row: [row.n, str(row.n)],
        lambda row: {"text": str(row.n), "n": row.n},
        lambda row: (row.n, str(row.n)) if row.n % 2 else {"n": row.n, "text": str(row.n)},
        lambda row: {"n": row.n, "text": str(row.n)} if row.n % 2 else (row.n, str(row.n)),
    ],
    ids=["tuple", "list", "dict", "tuple then dict", "dict then tuple"],
)
def test_a_row_step_may_return_tuples_lists_and_dicts(function: Callable[[Any], Any]) -> None:
    rows, _ = through([numbers(1, 2, 3)], operator(function, PAIR))
    assert rows == [{"n": n, "text": str(n)} for n in (1, 2, 3)]


def test_a_step_with_one_column_may_return_the_bare_value_or_a_record_of_it() -> None:
    for function in (lambda row: row.n + 1, lambda row: (row.n + 1,), lambda r: {"n": r.n + 1}):
        assert through([numbers(1, 2)], operator(function))[0] == [{"n": 2}, {"n": 3}]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.int64()), [1, 2]),
        (pa.list_(pa.int64()), []),
        (pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 1, "y": "z"}),
        (pa.struct([("x", pa.int64())]), {"x": 1}),
        (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    ],
)
def test_a_bare_value_may_be_nested(kind: pa.DataType, value: Any) -> None:
    schema = pa.schema([("v", kind)])
    rows, _ = through([numbers(1, 2)], operator(lambda _: value, schema))
    assert rows == [{"v": value}] * 2
    rows, _ = through([numbers(1)], operator(lambda _: {"v": value}, schema))
    assert rows == [{"v": value}]


def test_a_flat_step_makes_any_number_of_records() -> None:
    def repeat(row: Any) -> Iterator[int]:
        yield from [row.n] * row.n

    rows, meters = through([numbers(0, 1, 3)], operator(repeat, kind="flat"))
    assert [row["n"] for row in rows] == [1, 3, 3, 3]
    assert (meters["a", 0].records_in, meters["a", 0].records_out) == (3, 4)


def test_a_columnar_step_may_reorder_narrow_and_change_the_number_of_rows() -> None:
    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
        n = pa.concat_arrays([batch["n"], batch["n"]]).cast(pa.int32())
        return pa.RecordBatch.from_pydict({"text": n.cast(pa.string()), "n": n})

    rows, meters = through([numbers(1, 2)], operator(twice, PAIR, kind="batch"))
    assert rows == [{"n": n, "text": str(n)} for n in (1, 2, 1, 2)]
    assert (meters["a", 0].records_in, meters["a", 0].records_out) == (2, 4)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda _: None, "expected a record; to leave one out, use flat_step"),
        (lambda row: (row.n,), "expected 2 values"),
        (lambda row: (row.n, "x", "y"), "expected 2 values"),
        (lambda row: {"n": row.n}, "expected the fields ['n', 'text']"),
        (lambda row: {"n": row.n, "txet": "x"}, "expected the fields ['n', 'text']"),
        (lambda _: "ab", "expected a tuple or a dict"),
        (lambda _: ("x", "y"), "it returned ('x', 'y'), which does not fit"),
        (lambda row: (row.n, 5), "which does not fit"),
        (lambda row: (row.n + 0.5, "x"), "which does not fit"),
        (lambda _: (2**80, "x"), "which does not fit"),
        (lambda _: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda row: row.m, "AttributeError"),
    ],
)
def test_a_row_step_that_goes_wrong_names_the_record_the_step_and_the_reason(
    function: Callable[[Any], Any], reason: str
) -> None:
    good = lambda row: (row.n, "fine") if row.n != 7 else function(row)  # noqa: E731
    for batch in (numbers(7), numbers(7, 1), numbers(1, 7, 2)):
        facts = failing([batch], operator(good, PAIR, name="parse"))
        assert facts["step"] == "parse"
        assert json.loads(facts["record"]) == {"n": 7}
        assert reason in facts["error"]


def test_none_is_refused_and_flat_step_recommended() -> None:
    for batch in (numbers(7), numbers(1, 7)):
        facts = failing([batch], operator(lambda row: None if row.n == 7 else row.n))
        assert json.loads(facts["record"]) == {"n": 7}
        assert "use flat_step" in facts["error"]


def test_a_null_in_a_column_declared_not_null_is_refused() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    rows = operator(lambda row: (None if row.n == 7 else row.n,), schema, on_error="drop")
    whole = operator(
        lambda batch: (
            pa.RecordBatch.from_pydict({"n": pa.array([None], pa.int64())})
            if batch["n"][0].as_py() == 7
            else batch
        ),
        schema,
        kind="batch",
        on_error="drop",
    )
    for step in (rows, whole):
        out, meters = through([numbers(7), numbers(1)], step)
        assert out == [{"n": 1}]
        assert meters["a", 0].errors == 1


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda batch: batch.to_pylist(), "it returned list, not a pyarrow.RecordBatch"),
        (lambda _: None, "it returned NoneType"),
        (
            lambda _: pa.RecordBatch.from_pydict({"m": [1]}),
            "it returned the columns ['m'], not ['n']",
        ),
        (lambda _: pa.RecordBatch.from_pydict({"n": ["x"]}), "ArrowInvalid"),
        (lambda _: pa.RecordBatch.from_pydict({"n": [0.5]}), "ArrowInvalid"),
    ],
)
def test_a_columnar_step_that_goes_wrong_names_the_first_record_and_the_reason(
    function: Callable[[Any], Any], reason: str
) -> None:
    facts = failing([numbers(4, 5)], operator(function, kind="batch", name="score"))
    assert facts["step"] == "score"
    assert json.loads(facts["record"]) == {"n": 4}
    assert reason in facts["error"]


def test_a_columnar_step_that_fails_on_one_record_loses_only_this_record() -> None:
    def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 7 in batch["n"].to_pylist():
            raise ValueError("seven")
        return batch

    step = operator(picky, kind="batch", on_error="dead-letter")
    rows, meters = through([numbers(*range(20)), numbers(7), numbers(8)], step)
    assert [row["n"] for row in rows] == [*range(7), *range(8, 20), 8]
    assert meters["a", 0].dead == [('{"n": 7}', "ValueError: seven")] * 2
    assert meters["a", 0].errors == 2


@pytest.mark.parametrize("on_error", ["drop", "dead-letter"])
@pytest.mark.parametrize("kind", ["row", "flat"])
def test_bad_records_are_left_out_and_counted(on_error: str, kind: str) -> None:
    function = odd_fails if kind == "row" else lambda row: [odd_fails(row)]
    rows, meters = through([numbers(1, 2, 3, 4)], operator(function, kind=kind, on_error=on_error))
    letters = [(f'{{"n": {n}}}', f"ValueError: {n} is odd") for n in (1, 3)]
    assert [row["n"] for row in rows] == [2, 4]
    assert meters["a", 0].errors == 2
    assert meters["a", 0].dead == (letters if on_error == "dead-letter" else [])


def test_a_flat_record_with_one_result_that_does_not_fit_goes_as_a_whole_and_once() -> None:
    def three(row: Any) -> list[Any]:
        return [row.n, "bad", "worse"] if row.n == 7 else [row.n, -row.n]

    step = operator(three, kind="flat", on_error="dead-letter")
    rows, meters = through([numbers(1, 7, 2)], step)
    assert [row["n"] for row in rows] == [1, -1, 2, -2]
    assert [record for record, _ in meters["a", 0].dead] == ['{"n": 7}']
    assert meters["a", 0].errors == 1


def test_more_dead_letters_than_allowed_fail_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_DEAD_LETTERS", 3)
    step = operator(odd_fails, on_error="dead-letter")
    assert len(through([numbers(1, 3), numbers(5)], step)[1]["a", 0].dead) == 3
    facts = failing([numbers(1, 3), numbers(5, 7)], step)
    assert json.loads(facts["record"]) == {"n": 7}
    assert "more than 3 dead letters in one task; last: ValueError: 7 is odd" in facts["error"]


def test_a_long_record_and_a_long_reason_are_cut() -> None:
    schema = pa.schema([("text", pa.string())])
    batch = pa.RecordBatch.from_arrays([pa.array(["x" * 10_000])], schema=schema)

    def complain(row: Any) -> Any:
        raise ValueError(row.text)

    facts = failing([batch], operator(complain, schema))
    assert len(facts["record"]) <= 500
    assert len(facts["error"]) <= 500


@pytest.mark.parametrize("kind", ["row", "flat", "batch"])
def test_empty_batches_pass(kind: str) -> None:
    functions = {"row": lambda r: r.n, "flat": lambda r: [r.n], "batch": lambda batch: batch}
    rows, meters = through([numbers(), numbers(1), numbers()], operator(functions[kind], kind=kind))
    assert rows == [{"n": 1}]
    assert sum(meters["a", 0].residence.values()) == 1
    rows, meters = through([], operator(functions[kind], kind=kind))
    assert rows == []
    assert meters["a", 0] == Meter()


TYPES: list[tuple[pa.DataType, Any]] = [
    (pa.timestamp("us", "UTC"), datetime(2024, 2, 29, 12, 0, 0, 123_456, UTC)),
    (pa.timestamp("us"), datetime(1969, 12, 31, 23, 59, 59)),
    (pa.date32(), datetime(2024, 2, 29, tzinfo=UTC).date()),
    (pa.decimal128(20, 4), Decimal("-123456789012.3456")),
    (pa.list_(pa.struct([("x", pa.int32())])), [{"x": 1}, {"x": None}, None]),
    (pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))]), {"x": 1, "y": ["a", None]}),
    (pa.map_(pa.string(), pa.float64()), [("a", 1.5)]),
    (pa.binary(), b"\x00\xff"),
    (pa.bool_(), True),
    (pa.float32(), 0.5),
    (pa.string(), "süß\x00"),
    (pa.null(), None),
]


def test_every_type_survives_every_kind_of_step() -> None:
    names = [f"c{i}" for i in range(len(TYPES))]
    schema = pa.schema([(n, kind) for n, (kind, _) in zip(names, TYPES, strict=True)])
    arrays = [pa.array([value, None], kind) for kind, value in TYPES]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    steps = [
        operator(tuple, schema, name="tuple"),
        operator(lambda row: row._asdict(), schema, name="dict"),
        operator(lambda row: [row], schema, kind="flat", name="flat"),
        operator(lambda b: b, schema, kind="batch", name="batch"),
    ]
    (result,) = Chain(tuple(steps), None)([batch])
    assert result.equals(batch)


STEPS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "double": ("row", lambda row: row.n * 2 if row.n is not None else (None,)),
    "tuple": ("row", lambda row: (row.n,)),
    "odd fails": ("row", odd_fails),
    "repeat": ("flat", lambda row: [row.n] * (row.n % 3)),
    "texts": ("flat", lambda row: [row.n, "no number"] if row.n % 5 == 0 else [row.n]),
    "add": ("batch", lambda b: pa.RecordBatch.from_pydict({"n": _plus_one(b["n"])})),
    "picky": ("batch", lambda b: b if 6 not in b["n"].to_pylist() else 1 / 0),
}


def _plus_one(column: pa.Array) -> pa.Array:
    return pa.array([None if n is None else n + 1 for n in column.to_pylist()], pa.int64())


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4),
    st.lists(st.lists(st.one_of(st.none(), st.integers(-20, 20)), max_size=8), max_size=3),
)
def test_the_result_is_the_same_however_the_steps_are_chained(
    names: list[str], values: list[list[int | None]]
) -> None:
    operators = [
        operator(STEPS[n][1], kind=STEPS[n][0], on_error="dead-letter", name=f"{n} {i}")
        for i, n in enumerate(names)
    ]
    batches = [numbers(*some) for some in values]
    together, measured = through(batches, *operators)
    apart: dict[Any, Meter] = {}
    for single in operators:
        kept = Kept()
        batches = list(Chain((single,), kept)(batches))  # type: ignore[arg-type]
        apart.update(kept.value)
    assert [row for batch in batches for row in batch.to_pylist()] == together
    for key, meter in measured.items():
        other = apart[key]
        assert (meter.records_in, meter.records_out) == (other.records_in, other.records_out)
        assert (meter.errors, meter.dead) == (other.errors, other.dead)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-20, 20), max_size=12), st.integers(1, 12))
def test_the_result_does_not_depend_on_how_records_are_cut_into_arrow_batches(
    values: list[int], size: int
) -> None:
    for name, (kind, function) in STEPS.items():
        step = operator(function, kind=kind, on_error="dead-letter", name=name)
        cut = [numbers(*values[i : i + size]) for i in range(0, len(values), size)]
        rows, meters = through([numbers(*values)], step)
        cut_rows, cut_meters = through(cut, step)
        assert rows == cut_rows
        assert meters[name, 0].dead == cut_meters[name, 0].dead


@given(
    st.lists(st.none() | st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)), max_size=20),
    st.sampled_from(["UTC", "Europe/Vienna", None]),
    st.integers(0, 3),
)
def test_rows_hold_the_moments_that_arrow_would_give(
    values: list[datetime | None], zone: str | None, first: int
) -> None:
    column = pa.array(values, pa.timestamp("us")).cast(pa.timestamp("us", zone)).slice(first)
    rows = rows_of(pa.RecordBatch.from_arrays([column], names=["at"]))
    found, expected = [at for (at,) in rows], column.to_pylist()
    assert found == expected
    assert [(type(at), getattr(at, "tzinfo", None)) for at in found] == [
        (type(at), getattr(at, "tzinfo", None)) for at in expected
    ]


def test_the_meter_adds_up_time_moments_and_residence() -> None:
    def busy(row: Any) -> int:
        end = time.perf_counter_ns() + 200_000
        while time.perf_counter_ns() < end:
            pass
        return int(row.n)

    sizes = [40, 25]
    began_ms = time.time_ns() / 1e6
    operators = (operator(busy, name="a"), operator(lambda row: row.n, name="b"))
    _, meters = through([numbers(*range(size)) for size in sizes], *operators)
    ended_ms = time.time_ns() / 1e6
    a, b = meters["a", 0], meters["b", 0]
    samples = sum(-(-size // SAMPLE_EVERY) for size in sizes)
    assert a.records_in == a.records_out == b.records_in == sum(sizes)
    assert a.sampled == samples
    assert a.sampled_sum_ms >= 0.2 * samples
    assert a.sampled_square_ms >= a.sampled_sum_ms**2 / samples * 0.999  # Jensen
    assert 0.2 * sum(sizes) <= a.busy_ns / 1e6 <= ended_ms - began_ms
    assert sum(a.residence.values()) == sum(sizes)
    assert min(a.residence) >= bin_of(0.2 * min(sizes))
    assert began_ms <= a.entered_ms < a.left_ms <= b.entered_ms < b.left_ms <= ended_ms


def test_mean_moments_are_weighted_by_records() -> None:
    meter = Meter()
    spans = [(10, 1_000_000, 3_000_000), (30, 5_000_000, 6_000_000), (0, 9_000_000, 9_500_000)]
    for records, began, ended in spans:
        meter.passed(records, 2 * records, began, ended)
    weights = [records for records, _, _ in spans]
    assert meter.entered_ms == pytest.approx(np.average([1, 5, 9], weights=weights))
    assert meter.left_ms == pytest.approx(np.average([3, 6, 9.5], weights=weights))
    assert meter.busy_ns == 3_500_000
    assert (meter.records_in, meter.records_out) == (40, 80)
    assert meter.residence == Counter({int(bin_of(2.0)): 10, int(bin_of(1.0)): 30})


def test_keys_are_counted_and_only_the_frequent_ones_kept() -> None:
    rng = np.random.default_rng(3)
    hot = [5] * 4000 + rng.integers(10, 3000, 4000).tolist()
    rng.shuffle(hot)
    step = operator(lambda batch: batch, kind="batch", keyed_by=("n",))
    _, meters = through([numbers(*hot[i : i + 500]) for i in range(0, 8000, 500)], step)
    keys = meters["a", 0].keys
    assert keys["5"] == 4000
    assert keys.most_common(1)[0][0] == "5"
    assert len(keys) <= 4 * MOST_KEYS
    few = [1, 2, 2, None]
    assert through([numbers(*few)], step)[1]["a", 0].keys == Counter(map(str, few))
    unknown = operator(lambda batch: batch, kind="batch", keyed_by=("gone",))
    assert through([numbers(1)], unknown)[1]["a", 0].keys == Counter()


def test_long_keys_are_cut_and_stay_distinct_from_others_that_begin_alike() -> None:
    meter, long = Meter(), "x" * 100_000
    meter.count_keys([pa.array([long + "a", long + "b", long + "b", "short"])])
    assert sorted(meter.keys.values()) == [1, 1, 2]
    assert meter.keys["short"] == 1
    assert max(map(len, meter.keys)) == LONGEST_KEY
    both = Meter()
    both.count_keys([pa.array([long, long]), pa.array(["a" + long, "b" + long])])
    assert list(both.keys.values()) == [1, 1]
    assert all(len(json.loads(key)) == 2 for key in both.keys)
    assert max(map(len, both.keys)) < 2 * LONGEST_KEY
    many = Meter()
    many.count_keys([pa.array([-(2**63)])] * 20)
    assert list(many.keys) == [json.dumps([str(-(2**63))] * 20)]  # a number can be read back


def test_without_meters_nothing_is_reported_and_the_result_is_the_same() -> None:
    step = operator(odd_fails, on_error="drop", keyed_by=("n",))
    (result,) = Chain((step,), None)([numbers(1, 2)])
    assert result.to_pylist() == [{"n": 2}]


def test_keys_of_several_columns_are_counted_together_and_fall_where_spark_puts_them() -> None:
    meter = Meter()
    users, days = ["a", "b", "a", "a"], [1, 1, 2, 1]
    meter.count_keys([pa.array(users), pa.array(days, pa.int32())])
    assert meter.key_type == "string;int32"
    assert meter.keys == {'["a", "1"]': 2, '["b", "1"]': 1, '["a", "2"]': 1}
    keys = {text: count / 4 for text, count in meter.keys.items()}
    step = StepProfile("s", 1.0, keyed_by=("user", "day"), key_type="string;int", keys=keys)
    histogram = histogram_of(step)
    assert histogram is not None
    for partitions in (2, 5, 16):
        placed = partition_of(list(zip(users, days, strict=True)), partitions, ("string", "int"))
        expected = np.bincount(placed, minlength=partitions) / 4
        assert shares(histogram, partitions).expected == pytest.approx(expected)


def test_a_key_with_too_few_columns_is_refused() -> None:
    step = StepProfile("s", 1.0, keyed_by=("a", "b"), key_type="string;int", keys={"a": 1.0})
    with pytest.raises(InputError, match="not a key of 2 columns"):
        histogram_of(step)
