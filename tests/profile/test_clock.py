from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from tailrace.plan import Plan
from tailrace.profile.batch import BatchMeasure
from tailrace.profile.clock import Forward, Onward
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.moments import Moments

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


def a_batch(planned_us: int, *parts_us: int) -> BatchMeasure:
    planned, handed, submitted, started, computed, ended = accumulate(parts_us, initial=planned_us)
    return BatchMeasure(
        batch_id=0,
        records=0,
        planned_us=planned,
        handed_us=handed,
        submitted_us=submitted,
        started_us=started,
        computed_us=computed,
        ended_us=ended,
        ages_ms=LogHistogram.of([]),
        age_ms=Moments(),
        steps={},
        plan=Plan(),
        slots=1,
    )


def times_of(batch: BatchMeasure) -> list[int]:
    return [
        batch.planned_us,
        batch.handed_us,
        batch.submitted_us,
        batch.started_us,
        batch.computed_us,
        batch.ended_us,
    ]


JUMPS = st.lists(
    st.tuples(
        st.integers(0, 10**6),
        st.tuples(*[st.integers(-(10**7), 10**6)] * 5),
        st.integers(-(10**9), 10**6),
    ),
    min_size=1,
)


@given(JUMPS)
def test_batches_end_no_earlier_than_they_begin_and_follow_each_other(
    jumps: list[tuple[int, tuple[int, ...], int]],
) -> None:
    forward, now_us = Forward(), 10**12
    cut_us = ended_us = 0
    for wait, parts, jump in jumps:
        batch = forward(a_batch(now_us + wait, *parts))
        assert times_of(batch) == sorted(times_of(batch))
        assert batch.planned_us >= cut_us
        cut_us, ended_us = batch.planned_us, batch.ended_us
        assert forward.at(now_us - 10**10) == ended_us
        now_us += wait + sum(parts) + jump


@given(st.lists(st.tuples(*[st.integers(0, 10**6)] * 6), min_size=1))
def test_batches_on_a_clock_that_goes_on_are_left_alone(parts: list[tuple[int, ...]]) -> None:
    forward, now_us = Forward(), 0
    for wait, *inside in parts:
        batch = a_batch(now_us + wait, *inside)
        assert forward(batch) == batch
        now_us = batch.ended_us
        assert forward.at(now_us + 5) == now_us + 5


def test_a_batch_after_the_clock_was_set_back_begins_when_the_last_one_ended() -> None:
    forward = Forward()
    forward(a_batch(1_000_000, 10, 10, 10, 10, 10))
    batch = forward(a_batch(5_000, 1, 2, 3, 4, 5))
    assert times_of(batch) == [1_000_050 + each for each in (0, 1, 3, 6, 10, 15)]
    assert times_of(forward(a_batch(6_000, 1, 1, 1, 1, 1)))[0] == 1_000_050 + 1_000
