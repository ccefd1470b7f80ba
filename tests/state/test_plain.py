"""Plain data: everything in the list comes back exactly, and nothing else goes in or out."""

from __future__ import annotations

import os
import pickle
import resource
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID, uuid1
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.state.plain import NotPlain, Packer, dumps, loads, unpack

zones = st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)))

hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.binary(),
    st.datetimes(timezones=st.none() | zones),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists, dicts = st.lists(inner, max_size=4), st.dictionaries(hashable, inner, max_size=4)
    factories = st.sampled_from([int, list, dict, set, float, str, Counter, deque])
    return st.one_of(
        lists,
        lists.map(tuple),
        dicts,
        dicts.map(OrderedDict),
        st.builds(defaultdict, factories, dicts),
        st.sets(hashable, max_size=4),
        st.frozensets(hashable, max_size=4),
        st.builds(Counter, st.dictionaries(hashable, st.integers(), max_size=4)),
        st.builds(deque, lists, st.none() | st.integers(0, 5)),
        st.binary().map(bytearray),
    )


def shape(value: Any) -> Any:
    """A value together with the types of everything in it."""
    kind = type(value)
    if isinstance(value, dict):
        items = [(shape(key), shape(item)) for key, item in value.items()]
        return kind, getattr(value, "default_factory", None), items
    if isinstance(value, deque):
        return kind, value.maxlen, list(map(shape, value))
    if isinstance(value, list | tuple):
        return kind, list(map(shape, value))
    if isinstance(value, set | frozenset):
        return kind, sorted(map(repr, value))
    return kind, repr(value)


@settings(max_examples=300, deadline=None)
@given(st.recursive(hashable, containers, max_leaves=12))
def test_plain_data_of_any_nesting_comes_back_exactly(value: Any) -> None:
    assert shape(loads(dumps(value))) == shape(value)


def test_what_is_easily_lost_comes_back() -> None:
    folded = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=UTC)
    assert loads(dumps(folded)).fold == 1
    assert str(loads(dumps(Decimal("-0.00")))) == "-0.00"
    assert repr(loads(dumps([float("nan"), -0.0]))) == "[nan, -0.0]"
    unique = uuid1()
    assert loads(dumps(unique)) == unique
    assert loads(dumps(unique)).is_safe == unique.is_safe
    assert loads(dumps("\ud800")) == "\ud800"
    shared: list[int] = []
    twice = loads(dumps([shared, shared]))
    assert twice[0] is twice[1]


class Grade(IntEnum):
    GOOD = 1


class Mine(dict[str, int]):
    pass


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (print, "builtin_function_or_method"),
        (lambda: None, "function"),
        (Mine, "class Mine"),
        (Exception, "class Exception"),
        (object(), "object"),
        (threading.Lock(), "lock"),
        (Mine(a=1), "Mine"),
        (Grade.GOOD, "Grade"),
        (Pair(1, 2), "Pair"),
        (np.float64(1), "numpy.float64"),
        (np.zeros(2), "numpy.ndarray"),
        (ZoneInfo("UTC"), "zoneinfo.ZoneInfo"),
        (datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC")), "zoneinfo.ZoneInfo"),
        (defaultdict(lambda: 1), "function"),
        (defaultdict(Mine), "class Mine"),
        (range(3), "range"),
        (iter([1]), "list_iterator"),
        (ValueError("x"), "ValueError"),
    ],
)
def test_anything_else_is_refused_by_name_at_any_depth(value: Any, named: str) -> None:
    for nested in (value, [value], {"a": ({"b": value},)}, deque([value])):
        with pytest.raises(NotPlain, match=named):
            dumps(nested)


def test_what_is_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NotPlain, match="too deeply"):
        dumps(deep)


class Calls:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize(
    "attack",
    [
        Calls(os.system, "true"),
        Calls(eval, "1"),
        Calls(getattr, "", "upper"),
        Calls(__import__, "os"),
        Calls(exec, "pass"),
        Calls(open, "/dev/null"),
        Calls(bytes.fromhex, "00"),
        Grade.GOOD,
        Mine(a=1),
    ],
)
@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_names_anything_else_is_refused_before_it_is_called(
    attack: Any, protocol: int
) -> None:
    with pytest.raises(NotPlain):
        loads(pickle.dumps([attack], protocol))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_pickle_give_one_kind_of_error(noise: bytes) -> None:
    try:
        loads(noise)
    except NotPlain:
        return


@given(st.integers(0, 200))
def test_a_pickle_that_was_cut_off_is_refused(cut: int) -> None:
    packed = dumps({"a": [1, 2.5, "text", Decimal(1)], "b": UUID(int=5)})
    with pytest.raises(NotPlain):
        loads(packed[: cut % len(packed)])


@pytest.mark.parametrize(
    "value",
    [
        {"text": "ä" * 200, "bytes": b"." * 300, "array": bytearray(b"r" * 20)},
        {"text": "x" * 100_000, "bytes": b"." * 100_000, "array": bytearray(100_000)},
        [10**length for length in (1, 20, 300, 3_000)],
        [str(number) for number in range(3_000)] * 2,
        {(number, float(number)): {number} for number in range(3_000)},
    ],
)
def test_values_of_any_length_come_back(value: Any) -> None:
    packed = dumps(value)
    assert shape(loads(packed)) == shape(value)
    assert unpack(packed + b"more", 0, len(packed) + 4) == (value, len(packed))


MEMO = pickle.PROTO + b"\x05" + pickle.NONE


@pytest.mark.parametrize(
    "bomb",
    [
        MEMO + pickle.LONG_BINPUT + b"\0\0\0\x40.",
        MEMO + pickle.PUT + b"1073741824\n.",
        pickle.PROTO + b"\x05" + pickle.BINBYTES8 + b"\0\0\0\0\4\0\0\0.",
        pickle.PROTO + b"\x05" + pickle.BYTEARRAY8 + b"\0\0\0\0\4\0\0\0.",
        pickle.PROTO + b"\x05" + pickle.BINUNICODE + b"\0\0\0\xff.",
        pickle.PROTO + b"\x05" + pickle.LONG4 + b"\0\0\0\x7f.",
        pickle.PROTO + b"\x05" + pickle.FRAME + b"\0\0\0\0\4\0\0\0N.",
    ],
)
def test_a_few_bytes_that_ask_for_gigabytes_are_refused_and_get_none(bomb: bytes) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(NotPlain):
        loads(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100_000


def test_values_are_packed_one_by_one_and_a_refused_one_leaves_no_trace() -> None:
    packer = Packer()
    sizes = [packer.add("first")]
    with pytest.raises(NotPlain):
        packer.add(["x" * 1_000, print])
    sizes.append(packer.add({"second": 2}))
    packed = packer.take()
    assert sum(sizes) == len(packed)
    assert len(packer) == 0
    assert unpack(packed, 0, len(packed)) == ("first", sizes[0])
    assert unpack(packed, sizes[0], len(packed)) == ({"second": 2}, len(packed))
    with pytest.raises(NotPlain, match="cut off"):
        unpack(packed, len(packed), len(packed))
    with pytest.raises(NotPlain, match="cut off"):
        unpack(packed, sizes[0], len(packed) - 1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.recursive(hashable, containers, max_leaves=4), max_size=6))
def test_values_packed_one_after_the_other_come_back_one_after_the_other(values: list[Any]) -> None:
    packer = Packer()
    sizes = [packer.add(value) for value in values]
    packed, at = packer.take(), 0
    for value, size in zip(values, sizes, strict=True):
        read, end = unpack(packed, at, len(packed))
        assert shape(read) == shape(value)
        assert end - at == size
        at = end


def test_a_large_dict_never_comes_back_to_python_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    from tailrace.state import plain  # noqa: PLC0415 - its private writer is watched here

    def watched(self: Any, value: Any) -> Any:  # noqa: ARG001 - pickle's signature
        asked.append(value)
        return NotImplemented

    monkeypatch.setattr(plain._Pickler, "reducer_override", watched)
    many = {f"user{i}": {"n": i, "last": float(i), "seen": [i]} for i in range(1_000)}
    assert loads(dumps(many)) == many
    assert asked == []
