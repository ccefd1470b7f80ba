from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tailrace.errors import LoadError
from tailrace.load import Constant, Frequencies, Pareto, Trace, Uniform, Zipf, generate

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOAD = Constant("1 k/s", "10 s")


def test_a_load_has_its_rate_its_keys_and_its_sizes() -> None:
    trace = generate(LOAD, arrivals="even", keys=Frequencies({"a": 3, "b": 1}), payload="1 kB")
    assert len(trace) == 10_000
    assert trace.key_names == ("a", "b")
    assert np.mean(trace.key == 0) == pytest.approx(0.75, abs=5 * np.sqrt(0.75 * 0.25 / 10_000))
    assert set(trace.size) == {1000}
    assert trace.payloads is None


def test_a_load_has_one_key_and_no_payload_unless_told() -> None:
    trace = generate(LOAD)
    assert trace.key_names == ("0",)
    assert set(trace.key) == {0}
    assert set(trace.size) == {0}


@pytest.mark.parametrize("arrivals", ["even", "poisson", Pareto(1.5)])
def test_the_same_seed_makes_the_same_load(arrivals: Any) -> None:
    def make(seed: int) -> Trace:
        return generate(LOAD, arrivals=arrivals, keys=Zipf(100, 1.0), seed=seed)

    assert make(3) == make(3)
    assert make(3) != make(4)


def test_other_keys_leave_the_due_times_as_they_were() -> None:
    one = generate(LOAD, seed=5)
    many = generate(LOAD, keys=Uniform(50), payload=64, seed=5)
    np.testing.assert_array_equal(one.due_us, many.due_us)


def test_payloads_may_be_made_from_the_keys() -> None:
    def words(rng: np.random.Generator, keys: NDArray[np.int32]) -> list[str]:
        numbers = rng.integers(10, 99, len(keys))
        return [f"{'ä' * key}{number}" for key, number in zip(keys, numbers, strict=True)]

    trace = generate(LOAD, keys=Uniform(3), payload=words, seed=9)
    assert trace.payloads is not None
    assert trace.size.tolist() == (2 * trace.key + 2).tolist()
    assert trace.payloads[7].lstrip("ä").isdigit()
    assert generate(LOAD, keys=Uniform(3), payload=words, seed=9) == trace


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"arrivals": "pareto"}, "'pareto' is not an arrival process"),
        ({"payload": "big"}, "the payload: 'big' is not a size"),
        ({"payload": -1}, "the payload: -1"),
        ({"payload": "4 GiB"}, "too large"),
        ({"payload": lambda _rng, _keys: ["one"]}, "1 payloads for"),
        ({"payload": lambda _rng, keys: [None] * len(keys)}, "A text is missing"),
        ({"seed": -1}, "is not a seed"),
        ({"seed": 1.5}, "is not a seed"),
    ],
)
def test_what_makes_no_load_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(LoadError, match=says):
        generate(LOAD, **options)


def test_a_load_without_records_is_refused() -> None:
    with pytest.raises(LoadError, match="No record"):
        generate(Constant("1 /h", "1 s"), arrivals="even")
