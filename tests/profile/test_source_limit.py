"""What batches leave at their source: against the queue itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.plan import Plan
from tailrace.profile.batch import MOST_PER_READ, BatchMeasure, came
from tailrace.profile.histogram import LogHistogram
from tailrace.profile.moments import Moments
from tailrace.profile.source_limit import IN_A_ROW, SourceLimit


def cut(at_ms: float, arrivals_ms: list[float]) -> BatchMeasure:
    """A batch that is cut at a moment, of records that came at these."""
    at_us, ages = round(at_ms * 1e3), [at_ms + 10 - arrival for arrival in arrivals_ms]
    return BatchMeasure(
        batch_id=0,
        records=len(ages),
        planned_us=at_us,
        handed_us=at_us + 10_000,
        submitted_us=at_us + 30_000,
        started_us=at_us + 35_000,
        computed_us=at_us + 60_000,
        ended_us=at_us + 70_000,
        ages_ms=LogHistogram.of(ages),
        age_ms=Moments.of(ages),
        steps={},
        plan=Plan(),
        slots=2,
    )


@dataclass
class Source:
    """Records that arrive in order, and reach the source some time after that."""

    arrivals_ms: list[float]
    most: int | None = None
    late_ms: float = 0.0
    taken: int = field(default=0, init=False)

    def batch(self, at_ms: float) -> tuple[BatchMeasure, int]:
        """The next batch, and how many records are left."""
        there = sum(arrival + self.late_ms <= at_ms for arrival in self.arrivals_ms)
        until = there if self.most is None else min(there, self.taken + self.most)
        taken, self.taken = self.arrivals_ms[self.taken : until], until
        return cut(at_ms, taken), there - until


@given(
    each_ms=st.integers(1, 200),
    gaps_ms=st.lists(st.integers(100, 2_000), min_size=3, max_size=12),
    most=st.integers(1, 20),
    told=st.booleans(),
    late_ms=st.sampled_from([0.0, 40.0]),
)
def test_what_a_source_holds_back_is_known_by_the_ages_of_records(
    *, each_ms: int, gaps_ms: list[int], most: int, told: bool, late_ms: float
) -> None:
    cuts_ms = np.cumsum(gaps_ms).tolist()
    arrivals = np.arange(0, cuts_ms[-1], each_ms, dtype=float).tolist()
    source, limit = Source(arrivals, most, late_ms), SourceLimit(most if told else None)
    seen, full = list[BatchMeasure](), 0
    for at_ms in cuts_ms:
        plain, left = source.batch(at_ms)
        batch = limit(plain)
        longest_ms = left * each_ms + late_ms + each_ms
        assert batch.left_ms <= longest_ms + most * each_ms / 2
        full = full + 1 if left * each_ms > most * each_ms + 2 * max(gaps_ms) else 0
        if full > (1 if told else IN_A_ROW):
            assert batch.left_ms == pytest.approx(longest_ms, abs=2 * each_ms + late_ms)
            assert limit.most_records == most
            records, seconds = came([seen[-1], batch])
            read_s = (batch.planned_us - seen[-1].planned_us) / 1e6
            expected = min(1e3 / each_ms, MOST_PER_READ * records / read_s)
            assert records / seconds == pytest.approx(expected)
        seen.append(batch)


@pytest.mark.parametrize("told", [None, 5_000])
@pytest.mark.parametrize("late_ms", [3_000.0, 3_600_000.0])
def test_records_that_come_late_are_none_that_are_held_back(
    told: int | None, late_ms: float
) -> None:
    """Batches as they fall: of a second at first, and then back to back, which tells."""
    random = np.random.default_rng(1)
    arrivals = np.cumsum(random.exponential(2.0, 30_000)).tolist()
    source, limit = Source(arrivals, None, late_ms), SourceLimit(told)
    at_ms = late_ms
    for number in range(200):
        at_ms += 1_000 if number < 10 else 150 + 20 * random.random()
        left_ms = limit(source.batch(at_ms)[0]).left_ms
        assert not left_ms or (told is None and number < 10)
    assert limit.most_records == told


def test_a_limit_that_is_lifted_is_forgotten() -> None:
    arrivals = np.arange(0, 100_000, 10, dtype=float).tolist()
    source, limit = Source(arrivals, 20), SourceLimit()
    for at_s in range(1, 20):
        limit(source.batch(1e3 * at_s)[0])
    assert limit.most_records == 20
    source.most = None
    batch, left = source.batch(20_500)
    assert (limit(batch).left_ms, left) == (0, 0)
    assert limit.most_records is None


def test_a_batch_without_records_tells_nothing() -> None:
    limit = SourceLimit(2)
    full, empty = cut(0, [-9_000.0, -8_500.0]), cut(100, [])
    limit(full)
    assert limit(empty) == empty
    assert limit(cut(200, [-8_000.0, -7_500.0])).left_ms == pytest.approx(7_450)
