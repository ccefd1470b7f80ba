"""What tests of traces share."""

from __future__ import annotations

import numpy as np

from tailrace.load import Texts, Trace


def a_trace(payloads: list[str] | None = None) -> Trace:
    texts = None if payloads is None else Texts.of(payloads)
    size = np.array([7, 0, 3]) if texts is None else texts.sizes()
    due = np.array([0, 5, 5], np.int64)
    key = np.array([1, 0, 1], np.int32)
    return Trace(due, key, size.astype(np.int32), ("", "Zürich"), texts)
