"""How tasks are taken by slots, of which some may come later."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.stages import schedule

TASKS = st.lists(st.floats(0.5, 100), min_size=1, max_size=12)


def by_hand(task_ms: list[float], free_ms: list[float]) -> tuple[list[float], float]:
    """Every task on the slot that is free first, one after the other."""
    starts, free = [], list(free_ms)
    for task in task_ms:
        slot = free.index(min(free))
        starts.append(free[slot])
        free[slot] += task
    return starts, max(start + task for start, task in zip(starts, task_ms, strict=True))


@given(TASKS, st.integers(1, 5), st.integers(0, 5), st.floats(0, 200))
def test_a_task_is_taken_by_the_slot_that_is_free_first(
    tasks: list[float], slots: int, joining: int, joined_ms: float
) -> None:
    starts_ms, end_ms = schedule(np.array(tasks), slots, joining, joined_ms)
    starts, end = by_hand(tasks, [0.0] * slots + [joined_ms] * joining)
    assert starts_ms.tolist() == pytest.approx(starts)
    assert end_ms == pytest.approx(end)


def test_slots_that_join_take_what_has_not_begun() -> None:
    eight = np.full(8, 10.0)
    assert schedule(eight, 1)[1] == 80
    assert schedule(eight, 1, 7, 7.0)[1] == 17
    assert schedule(eight, 1, 7, 75.0)[1] == 80
