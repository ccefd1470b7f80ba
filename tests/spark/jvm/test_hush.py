from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from py4j import java_gateway

from tailrace.spark.jvm.hush import hush


def a_session(told: list[object]) -> Any:
    """The part of a session that is quietened: the server that collects accumulators."""
    server = SimpleNamespace(handle_error=lambda request, client: told.append((request, client)))
    return SimpleNamespace(sparkContext=SimpleNamespace(_accumulatorServer=server))


def fails(session: Any, error: Exception) -> None:
    """Have the server meet an error, as socketserver does."""
    try:
        raise error
    except type(error):
        session.sparkContext._accumulatorServer.handle_error("request", "client")


def test_what_py4j_logs_about_a_jvm_that_is_gone_is_not_shown_and_what_others_log_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hush(a_session([]))
    root = logging.getLogger()
    for path in (java_gateway.__file__, __file__):
        root.handle(root.makeRecord("root", logging.ERROR, path, 1, "said", (), None))
    assert [record.pathname for record in caplog.records] == [__file__]


@pytest.mark.parametrize("gone", [EOFError(), ConnectionResetError(), BrokenPipeError()])
def test_a_server_says_nothing_of_a_jvm_that_is_gone(gone: Exception) -> None:
    told: list[object] = []
    session = a_session(told)
    hush(session)
    fails(session, gone)
    assert told == []


def test_a_server_that_is_quietened_twice_says_every_other_error_once() -> None:
    told: list[object] = []
    session = a_session(told)
    hush(session)
    hush(session)
    fails(session, ValueError("another"))
    assert told == [("request", "client")]
