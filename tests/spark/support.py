"""What the tests of the Spark side share."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from tailrace.load import Texts, Trace
from tailrace.spark.from_file import send_by_value

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 60.0
PAST_US = 1_700_000_000_000_000


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait until the condition holds; fail the test if it does not in time."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        pause.wait(0.02)


def by_value(module: str) -> None:
    """Let workers run the functions of a test module, which they cannot import."""
    send_by_value(sys.modules[module])


def a_trace(count: int, span_us: int = 0, *, stored: bool = False, seed: int = 7) -> Trace:
    """A load of this many records over a span, with texts or with sizes for payloads."""
    rng = np.random.default_rng(seed)
    texts = Texts.of([f"p{i}·" + "x" * int(rng.integers(0, 9)) for i in range(count)])
    sizes = texts.sizes() if stored else rng.integers(0, 90, count)
    return Trace(
        due_us=np.sort(rng.integers(0, span_us + 1, count)).astype(np.int64),
        key=rng.integers(0, 4, count).astype(np.int32),
        size=sizes.astype(np.int32),
        key_names=("north", "süd", "", "west"),
        payloads=texts if stored else None,
    )


def even_trace(count: int, rate_per_s: float, keys: int = 1) -> Trace:
    """Records at even distances, with the keys k0, k1, ... in turn and no payload."""
    due = (np.arange(count) * 1e6 / rate_per_s).astype(np.int64)
    key = (np.arange(count) % keys).astype(np.int32)
    names = tuple(f"k{i}" for i in range(keys))
    return Trace(due, key, np.zeros(count, np.int32), names)
