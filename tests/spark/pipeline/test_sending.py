"""What cannot be pickled is named, with where it is held."""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import InputError
from tailrace.spark import sinks
from tailrace.spark.pipeline.sending import require_sendable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


class Client:
    """Holds a lock two levels down."""

    def __init__(self) -> None:
        self.name = "plain"
        self.pool = {"free": [1, threading.Lock()]}

    def ask(self, row: Any) -> Any:
        return row, self.name


class Closed:
    """Has nothing that could be named."""

    def __reduce__(self) -> str:
        raise OSError("no copies\nat all")

    def __call__(self, row: Any) -> Any:
        return row


def holding(held: Any) -> Callable[[Any], Any]:
    return lambda row: (row, held)


def first(held: Any, row: Any) -> Any:
    return held, row


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (holding(threading.Lock()), "'held' is a _thread.lock, which cannot be copied"),
        (holding(socket.socket()), "'held' is a socket.socket, which cannot be copied"),
        (holding({"a": {"b": threading.Lock()}}), "'held.a.b' is a _thread.lock"),
        (Client().ask, "'pool.free.item 2' is a _thread.lock"),
        (holding(Client()), "'held.pool.free.item 2' is a _thread.lock"),
        (partial(first, threading.Lock()), "'argument 1' is a _thread.lock"),
        (partial(first, held=threading.Lock()), "'held' is a _thread.lock"),
        (Closed(), "cannot be sent to workers (no copies): let its function hold plain data"),
    ],
)
def test_the_innermost_thing_that_does_not_travel_is_named(
    function: Callable[..., Any], named: str
) -> None:
    with pytest.raises(InputError) as refused:
        require_sendable("Step 'ask'", len, function)
    said = str(refused.value)
    assert said.startswith("Step 'ask' cannot be sent to workers")
    assert named in said
    assert said.endswith("at the first call.")
    assert "\n" not in said


def test_what_travels_is_let_pass() -> None:
    require_sendable("Step 'ask'", holding({"a": [1, None]}), partial(first, 1), None, {"n": 0})


def test_a_thing_that_holds_itself_is_no_way_without_end() -> None:
    held: dict[str, Any] = {"lock": threading.Lock()}
    held = {"self": held, **held}
    held["self"]["self"] = held
    with pytest.raises(InputError, match="Step 'ask' cannot be sent to workers"):
        require_sendable("Step 'ask'", holding(held))


def test_the_function_of_a_sink_is_tried_before_the_query_starts() -> None:
    no_session: Any = None
    sink = sinks.each(holding(threading.Lock()))
    with pytest.raises(InputError, match="The function of the sink cannot be sent to workers"):
        sink.prepare(no_session, "x")


@pytest.mark.spark
def test_what_only_the_driver_has_is_said_to_be_there_only(spark: SparkSession) -> None:
    held: dict[str, Any] = {
        "SparkSession": spark,
        "DataFrame": spark.range(1),
        "SparkContext": spark.sparkContext,
    }
    for kind, value in held.items():
        with pytest.raises(
            InputError, match=rf"'held' is a pyspark\..*{kind}, which only the driv"
        ):
            require_sendable("Step 'ask'", holding(value))
