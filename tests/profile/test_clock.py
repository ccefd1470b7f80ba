from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.profile.clock import Onward

MOMENTS = st.lists(st.integers(-(10**9), 10**9), min_size=1)


@given(MOMENTS)
def test_moments_never_go_back(moments: list[int]) -> None:
    onward = Onward()
    passed = [onward(moment) for moment in moments]
    assert passed == sorted(passed)


@given(MOMENTS.map(sorted))
def test_a_clock_that_goes_on_is_left_alone(moments: list[int]) -> None:
    onward = Onward()
    assert [onward(moment) for moment in moments] == moments
    assert onward.lost_us == 0


def test_after_a_clock_was_set_back_time_goes_on_as_fast_as_before() -> None:
    onward = Onward()
    assert [onward(moment) for moment in (100, 200, 50, 80, 90)] == [100, 200, 200, 230, 240]
    assert onward.lost_us == 150
