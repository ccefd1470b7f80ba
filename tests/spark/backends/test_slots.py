"""The slots of a session, counted without one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import EnvironmentUnfit
from tailrace.spark.backends import slots
from tailrace.spark.backends.slots import MICROBATCH, Claims, SlotClaim, SlotShare, lacking

held = st.integers(0, 5)


def live(flow: str, number: int) -> SlotClaim:
    return SlotClaim(flow, number)


def batches(flow: str) -> SlotClaim:
    return SlotClaim(flow, MICROBATCH)


# --- what fits -------------------------------------------------------------------------------


@given(st.integers(1, 5), st.lists(held, max_size=6), st.integers(1, 12))
def test_a_real_time_flow_fits_if_all_could_run_at_once_and_micro_batches_go_on(
    wanted: int, others: list[int], there: int
) -> None:
    """Brute force: give out slots one by one, then see whether one is free for micro-batches."""
    free = there
    for number in (*others, wanted):
        for _ in range(number):
            free -= 1
    fits = free >= 0 and (free >= 1 or MICROBATCH not in others)
    claims = [SlotClaim(str(i), number) for i, number in enumerate(others)]
    assert (lacking(live("new", wanted), claims, there) is None) == fits


@given(st.lists(held, max_size=6), st.integers(1, 12))
def test_micro_batches_fit_if_real_time_flows_leave_a_slot(others: list[int], there: int) -> None:
    claims = [SlotClaim(str(i), number) for i, number in enumerate(others)]
    assert (lacking(batches("new"), claims, there) is None) == (sum(others) < there)


def test_micro_batches_alone_are_left_to_spark_even_where_no_executor_has_come_yet() -> None:
    assert lacking(batches("new"), [batches("other")], 0) is None


# --- what is said ----------------------------------------------------------------------------


def test_a_flow_alone_in_a_session_hears_how_many_slots_it_needs() -> None:
    assert lacking(live("new", 5), [], 4) == (
        "In real-time mode the flow holds 5 slots and the session has 4: use fewer partitions, or "
        "a session with more slots (local[5] may have more than there are cores)."
    )


def test_a_flow_without_room_hears_which_flows_hold_the_slots() -> None:
    others = [live("a", 2), batches("b"), live("c", 1)]
    assert lacking(live("new", 1), others, 4) == (
        "In real-time mode the flow holds 1 slot and the session has 4, of which 3 are held by "
        "'a' (2) and 'c' (1) and 1 is left to the micro-batches of 'b': stop one of those, use "
        "fewer partitions, or a session with more slots (local[5] may have more than there are "
        "cores)."
    )


def test_micro_batches_hear_which_flows_hold_every_slot() -> None:
    assert lacking(batches("new"), [live("a", 3), live("b", 1)], 4) == (
        "Micro-batches need a free slot, and the session has 4, 4 of them held by 'a' (3) and "
        "'b' (1) in real-time mode: stop one of those, or use a session with more slots (local[5] "
        "may have more than there are cores)."
    )


def test_of_many_flows_only_some_are_named() -> None:
    others = [live(str(i), 1) for i in range(48)]
    why = lacking(live("new", 1), others, 48)
    assert why is not None
    assert "48 are held by '0' (1), '1' (1), '2' (1), '3' (1), '4' (1) and 43 others:" in why


# --- claims ----------------------------------------------------------------------------------


def test_what_is_refused_claims_nothing_and_what_is_released_is_free() -> None:
    claims, first, second = Claims(), object(), object()
    assert claims.claim(first, live("a", 3), 4) is None
    assert claims.claim(second, live("b", 2), 4) is not None
    assert claims.room(first, 4) == 4
    claims.release(first)
    claims.release(first)
    assert claims.claim(second, live("b", 2), 4) is None


def test_another_plan_of_a_flow_takes_the_place_of_the_one_before() -> None:
    claims, flow, other = Claims(), object(), object()
    assert claims.claim(flow, live("a", 3), 4) is None
    assert claims.claim(other, live("b", 1), 4) is None
    assert claims.claim(flow, live("a", 4), 4) is not None
    assert claims.room(other, 4) == 1  # the first still has its three
    assert claims.claim(flow, batches("a"), 4) is None
    assert claims.room(other, 4) == 3


def test_a_flow_that_keeps_what_it_has_need_not_fit_again_beside_the_others() -> None:
    """An executor was lost: all flows start again, and wait for slots as they come back."""
    claims, flow, other = Claims(), object(), object()
    assert claims.claim(flow, live("a", 2), 4) is None
    assert claims.claim(other, live("b", 2), 4) is None
    assert claims.claim(flow, live("a", 2), 3) is None
    assert claims.claim(flow, live("a", 3), 3) is not None
    assert claims.claim(flow, live("a", 2), 1) is not None  # not even alone


def test_flows_that_start_at_the_same_time_claim_no_slot_twice() -> None:
    claims = Claims()
    gate = threading.Barrier(16)

    def start(number: int) -> bool:
        gate.wait()
        return claims.claim(object(), live(str(number), 3), 20) is None

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(start, range(16))) == 6


# --- waiting ---------------------------------------------------------------------------------


class Context:
    """The part of a SparkContext that a share uses; every check finds one slot more."""

    def __init__(self, name: str, master: str, most: int) -> None:
        self.applicationId, self.master = name, master
        self._there, self._most = 0, most

    @property
    def defaultParallelism(self) -> int:  # noqa: N802 - Spark's name
        self._there = min(self._there + 1, self._most)
        return self._there


def share(name: str, master: str, most: int) -> SlotShare:
    context: Any = Context(name, master, most)
    return SlotShare(context, "flow")


def test_slots_of_a_cluster_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "LOOK_S", 0.0)
    mine = share("cluster", "spark://host:7077", 8)
    mine.wait_for(6)
    assert mine.room >= 6


def test_a_cluster_on_which_they_do_not_come_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "LOOK_S", 0.0)
    monkeypatch.setattr(slots, "SLOTS_S", 0.05)
    with pytest.raises(EnvironmentUnfit, match="holds 6 slots and the session has 5"):
        share("small", "spark://host:7077", 5).wait_for(6)


def test_a_local_session_has_all_the_slots_that_it_will_ever_have() -> None:
    with pytest.raises(EnvironmentUnfit, match="holds 6 slots and the session has 2"):
        share("local", "local[8]", 8).wait_for(6)


def test_whoever_stops_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "LOOK_S", 0.0)
    looks = iter([False, False, True])
    share("given up", "spark://host:7077", 5).wait_for(6, lambda: next(looks))
    assert next(looks, None) is None


def test_sessions_have_slots_of_their_own() -> None:
    one, other = share("one", "local[4]", 4), share("other", "local[4]", 4)
    for each in (one, other):
        for _ in range(4):
            each.claim(0)
    assert one.claim(4) is None
    assert other.claim(4) is None
    again = share("one", "local[4]", 4)
    again._context._there = 4  # type: ignore[attr-defined]
    assert again.claim(1) is not None
