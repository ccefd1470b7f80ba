"""The load of each partition, for any number of partitions.

Cooper 2020 predicts where records go from counted transfers between replicas, and only for replicas
made of the tasks that were counted (section 4.5). Spark's hash is known
(``tailrace.model.keys.murmur``), so a histogram of keys is enough for any number of partitions: the
frequent keys are placed one by one, and all others are spread evenly in expectation, with a known
deviation. From there rates follow the graph, step by step and partition by partition (section 4.8).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tailrace.constraint import SOURCE
from tailrace.errors import InputError
from tailrace.model.keys import pseudonyms
from tailrace.model.keys.keytypes import REDACTED, read_key
from tailrace.model.keys.murmur import partition_of
from tailrace.outside import MOST_TASKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.graph import Graph
    from tailrace.model.keys.murmur import Kind

Floats = NDArray[np.float64]
Pair = tuple[str, str]
"""The two ends of a stream."""


# --- keys to partitions -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyHistogram:
    """How often keys occur: the frequent ones one by one, the others together.

    ``heavy`` counts the frequent keys, whose Spark type is ``kind``. The ``tail_records`` of all
    others belong to ``tail_keys`` keys that are assumed to be equally frequent. If they are not,
    give the equivalent number ``sum(count)**2 / sum(count**2)`` instead.
    """

    kind: Kind
    heavy: Mapping[Any, float]
    tail_records: float = 0.0
    tail_keys: float = 0.0

    def __post_init__(self) -> None:
        """Refuse impossible counts."""
        counts = (*self.heavy.values(), self.tail_records, self.tail_keys)
        if not all(0 <= count < math.inf for count in counts):
            raise InputError("The counts of keys must be finite numbers from 0 up.")
        if (self.tail_records > 0) != (self.tail_keys > 0):
            raise InputError(
                f"The tail of a histogram cannot have {self.tail_records:g} records of "
                f"{self.tail_keys:g} keys: give both, or neither."
            )
        if not self.total > 0:
            raise InputError(
                "A histogram of keys without records does not show where they go: count some."
            )

    @property
    def total(self) -> float:
        """The records of all keys."""
        return math.fsum((*self.heavy.values(), self.tail_records))

    @classmethod
    def measured(
        cls, keys: Mapping[str, int], records: int, kind: str, distinct: float | None = None
    ) -> KeyHistogram:
        """The histogram behind ``StepMeasure.keys``, which holds only the frequent keys, as texts.

        Without the number of ``distinct`` keys, the others are assumed to be as few as possible:
        none is more frequent than the rarest of those that were counted. So the imbalance is rather
        overstated.
        """
        if not keys:
            raise InputError("No keys were counted: measure a step that is keyed by a column.")
        others = max(0, records - sum(keys.values()))
        fewest = others / max(1, min(keys.values()))
        tail_keys = fewest if distinct is None else max(distinct - len(keys), fewest)
        heavy = {read_key(text, kind): float(count) for text, count in keys.items()}
        return cls(kind, heavy, others, math.ceil(tail_keys))


@dataclass(frozen=True, eq=False)
class Shares:
    """The shares of partitions in the records of a stream.

    ``expected`` is exact for the frequent keys and a mean for the ``rare`` others, which have a
    share of ``weight`` each and fall into partitions at random. ``heaviest`` is the most frequent
    key of the busiest partition, with its share of all records.
    """

    expected: Floats
    rare: float = 0.0
    weight: float = 0.0
    heaviest: tuple[Any, float] | None = None

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return len(self.expected)

    @property
    def deviation(self) -> float:
        """The standard deviation of the share of a partition: ``w*sqrt(D*(1/n)*(1 - 1/n))``."""
        return self.weight * math.sqrt(self.rare * (1 - 1 / self.partitions) / self.partitions)

    @property
    def busiest(self) -> int:
        """The partition with the largest share; the first of several."""
        return int(np.argmax(self.expected))

    @property
    def dominance(self) -> float:
        """The share of its heaviest key in the busiest partition's records."""
        if self.heaviest is None:
            return 0.0
        return self.heaviest[1] / float(self.expected[self.busiest])

    def __str__(self) -> str:
        """A sentence about the busiest partition and its heaviest key."""
        top = float(self.expected[self.busiest])
        said = f"Partition {self.busiest} of {self.partitions} gets {top:.0%} of the records"
        if self.heaviest is None:
            return f"{said}."
        return f"{said}, {self.dominance:.0%} of them for the key {self.heaviest[0]!r}."


def shares(histogram: KeyHistogram, partitions: int) -> Shares:
    """The share of every partition when Spark hashes keys over ``partitions`` of them.

    A partition gets its frequent keys, which are known by their hash, and ``T/n`` of the T records
    of the others. Each of their D keys falls into it with probability 1/n, so the number of them is
    binomial and their load has the variance ``(T/D)**2 * D * (1/n) * (1 - 1/n)``.
    """
    _check_partitions(partitions)
    keys, total = list(histogram.heavy), histogram.total
    counts = np.array(list(histogram.heavy.values()), np.float64)
    if histogram.kind == REDACTED:
        places = pseudonyms.places(keys, partitions)
    else:
        places = partition_of(keys, partitions, histogram.kind)
    placed = np.bincount(places, counts, partitions).astype(np.float64)
    tail, distinct = histogram.tail_records, histogram.tail_keys
    expected = (placed + tail / partitions) / total
    weight = tail / distinct if distinct else 0.0
    here = np.flatnonzero(places == np.argmax(expected))
    top = int(here[np.argmax(counts[here])]) if len(here) else None
    return Shares(
        expected,
        distinct,
        weight / total,
        None if top is None else (keys[top], float(counts[top]) / total),
    )


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= MOST_TASKS:
        raise InputError(
            f"Records cannot be spread over {partitions} partitions: use a whole number from 1 up "
            f"to {MOST_TASKS:,}."
        )


def round_robin(partitions: int) -> Shares:
    """Records dealt out in turn: equal shares (Cooper 2020, eq. 4.3)."""
    _check_partitions(partitions)
    return Shares(np.full(partitions, 1 / partitions))


# --- rates through the graph --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PartitionRates:
    """The records per second that reach every partition of every step.

    ``by_input`` holds them by the step they come from. ``assumed_even`` names the keyed steps with
    unknown keys, which were assumed to have equal shares.
    """

    by_input: Mapping[str, Mapping[str, Floats]]
    assumed_even: tuple[str, ...] = ()

    def per_partition(self, step: str) -> Floats:
        """The rates of the partitions of a step: the sum over its inputs."""
        rates: Floats = np.sum(list(self.by_input[step].values()), axis=0)
        return rates

    def total(self, step: str) -> float:
        """The rate of a step."""
        return float(self.per_partition(step).sum())


@dataclass(frozen=True, slots=True)
class Workload:
    """What enters a flow, and how many records its steps make of it.

    ``source_per_s`` holds the rate of each partition of the source. ``ratios`` maps the two ends of
    a stream to the number of its records for each record into its origin, or to one such number for
    each input of the origin (Cooper 2020, eq. 4.9); 1 if not given. ``routes`` says where the
    records of a stream go: by the histogram of its keys, by the shares of partitions, or by a
    table of those, one row for each partition that they come from.
    """

    source_per_s: Sequence[float]
    ratios: Mapping[Pair, float | Mapping[str, float]] = field(default_factory=dict)
    routes: Mapping[Pair, KeyHistogram | Shares | Floats] = field(default_factory=dict)


def arrivals(graph: Graph, workload: Workload, partitions: Mapping[str, int]) -> PartitionRates:
    """The rates of all partitions of all steps, and of the sinks.

    ``partitions`` holds the steps with their own number of partitions, including every one behind
    an exchange. Their input is partitioned by key, or otherwise round-robin. All other steps
    inherit the partitions of their input; those of several inputs are placed side by side, as after
    a union.

    Steps are taken in the order in which records meet them. In breadth-first order, as in Cooper
    2020, section 4.8, a step could be processed before all of its inputs are known.
    """
    source = np.array(workload.source_per_s, np.float64)
    if source.ndim != 1 or not len(source) or not np.all(np.isfinite(source) & (source >= 0)):
        raise InputError(
            f"The rates {workload.source_per_s} cannot be those of the source: give one number "
            "from 0 up for each of its partitions."
        )
    _refuse_strangers(graph, workload, partitions)
    inputs: dict[str, dict[str, Floats]] = {SOURCE: {"": source}}
    even: dict[str, None] = {}
    for name in (*graph.names, *graph.sinks):
        streams = {(stream.origin, name): stream for stream in graph.streams_to(name)}
        sent = {
            pair[0]: _sent(inputs[pair[0]], workload.ratios.get(pair, 1.0), pair)
            for pair in streams
        }
        if name not in partitions:
            if any(stream.keyed_by or pair in workload.routes for pair, stream in streams.items()):
                raise InputError(
                    f"What flows into '{name}' is spread by key over a number of partitions that "
                    "is not told: give it with the others."
                )
            inputs[name] = _side_by_side(sent)
            continue
        inputs[name] = {}
        for (origin, _), stream in streams.items():
            route = workload.routes.get((origin, name))
            keyed = bool(stream.keyed_by or (name in graph.names and graph.step(name).keyed_by))
            if route is None and keyed:
                even[name] = None
            inputs[name][origin] = _routed(sent[origin], route, partitions[name], (origin, name))
    return PartitionRates(inputs, tuple(even))


def _refuse_strangers(graph: Graph, workload: Workload, partitions: Mapping[str, int]) -> None:
    """Refuse ratios, routes and partitions for streams or steps that do not exist."""
    pairs = {(stream.origin, stream.target) for stream in graph.streams}
    for pair in (*workload.ratios, *workload.routes):
        if pair not in pairs:
            raise InputError(
                f"No stream leads from '{pair[0]}' to '{pair[1]}': give ratios and routes by the "
                "two ends of a stream."
            )
    for name in partitions:
        if name not in (*graph.names, *graph.sinks):
            raise InputError(
                f"There is no step '{name}' to give partitions to: the steps are "
                f"{', '.join(graph.names)}."
            )


def _sent(inputs: Mapping[str, Floats], ratio: float | Mapping[str, float], pair: Pair) -> Floats:
    """What each partition of a step sends on a stream: sigma = beta * lambda (eq. 4.9)."""
    of_input = ratio if isinstance(ratio, Mapping) else dict.fromkeys(inputs, ratio)
    if of_input.keys() != inputs.keys() or not all(0 <= x < math.inf for x in of_input.values()):
        raise InputError(
            f"The ratio {ratio} from '{pair[0]}' to '{pair[1]}' is impossible: give a finite "
            f"number from 0 up, or one for each input of '{pair[0]}'."
        )
    sent: Floats = np.sum([rates * of_input[name] for name, rates in inputs.items()], axis=0)
    return sent


def _routed(
    sent: Floats, route: KeyHistogram | Shares | Floats | None, partitions: int, pair: Pair
) -> Floats:
    if route is None:
        return float(sent.sum()) * round_robin(partitions).expected
    if isinstance(route, KeyHistogram):
        route = shares(route, partitions)
    table = np.tile(route.expected, (len(sent), 1)) if isinstance(route, Shares) else route
    if table.shape != (len(sent), partitions) or np.abs(table.sum(axis=1) - 1).max() > 1e-6:
        raise InputError(
            f"The route from '{pair[0]}' to '{pair[1]}' is not a table of {len(sent)} by "
            f"{partitions} shares with rows that add up to 1: make it for these partitions."
        )
    return sent @ table


def _side_by_side(sent: Mapping[str, Floats]) -> dict[str, Floats]:
    if len(sent) == 1:
        return dict(sent)
    whole = sum(map(len, sent.values()))
    placed: dict[str, Floats] = {}
    at = 0
    for name, rates in sent.items():
        placed[name] = np.pad(rates, (at, whole - at - len(rates)))
        at += len(rates)
    return placed
