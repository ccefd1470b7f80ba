"""A request to end: the first ends cleanly, the second at once."""

from __future__ import annotations

import signal
import threading

import pytest

from tailrace.spark.interrupt import ctrl_c

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@SIGNALS
def test_the_first_signal_asks_and_the_second_interrupts(number: signal.Signals) -> None:
    with ctrl_c() as asked:
        assert not asked.is_set()
        signal.raise_signal(number)
        assert asked.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


@SIGNALS
def test_the_second_signal_may_hurry_the_end_and_then_the_third_interrupts(
    number: signal.Signals,
) -> None:
    hurried: list[bool] = []
    with ctrl_c(lambda: hurried.append(True)) as asked:
        signal.raise_signal(number)
        assert asked.is_set()
        assert hurried == []
        signal.raise_signal(number)
        assert hurried == [True]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert hurried == [True]


@SIGNALS
def test_handlers_are_afterwards_what_they_were(number: signal.Signals) -> None:
    def own(*_: object) -> None:
        pass

    before = signal.signal(number, own)
    try:
        with ctrl_c():
            assert signal.getsignal(number) is not own
        assert signal.getsignal(number) is own
        with pytest.raises(ZeroDivisionError), ctrl_c():
            _ = 1 / 0
        assert signal.getsignal(number) is own
    finally:
        signal.signal(number, before)


@SIGNALS
def test_another_thread_is_never_asked_and_changes_no_handler(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    found: list[tuple[bool, object]] = []

    def elsewhere() -> None:
        with ctrl_c() as asked:
            found.append((asked.is_set(), signal.getsignal(number)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [(False, before)]
