"""The executor pool: how many tasks it runs, and has room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.profile.pool import ExecutorPool

sizes = st.integers(0, 50)


@given(sizes, sizes, sizes, st.integers(1, 16))
def test_slots_are_those_of_executors_one_by_one_and_never_none(
    wanted: int, ready: int, cold: int, cores: int
) -> None:
    pool = ExecutorPool(wanted, wanted, ready + cold, ready, cores)
    executors = [cores for _ in range(ready)]
    assert pool.slots == (sum(executors) or cores)
    executors += [cores for _ in range(cold)]
    assert pool.held_slots == (sum(executors) or cores)
    assert pool.slots <= pool.held_slots
