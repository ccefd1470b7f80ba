"""What a task measures about the steps that it runs. Kept light: every worker imports it."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from tailrace.profile.histogram import GAMMA, SMALLEST_MS

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE_EVERY = 127
"""One record in this many is timed on its own, for the variance of the service time. Odd, so that
the same record of periodic data is not always the one."""

MOST_KEYS = 16

LONGEST_KEY = 120
"""How many characters of a key are kept; a longer one is cut and gets a digest."""

_NEVER_CUT = 48
"""Longer than any number, date or timestamp, whose text is parsed again later."""

_DIGEST = 8

_LOG_GAMMA = math.log(GAMMA)


@dataclass(slots=True)
class Meter:
    """What one task measured of one step. Plain attributes, updated for every Arrow batch.

    The ages are sums over records, in microseconds since their arrival, where that is known.
    ``cpu_ns`` is the CPU part of the busy time. The sums over Arrow batches separate the cost of a
    batch from the cost of a record, by how much each batch is larger than the ``last`` one
    (:class:`~tailrace.profile.calls.Calls`).
    """

    sample_every: int = SAMPLE_EVERY
    records_in: int = 0
    records_out: int = 0
    errors: int = 0
    busy_ns: int = 0
    cpu_ns: int = 0
    calls: int = 0
    last: int = 0
    grown: int = 0
    grown_records: int = 0
    grown_ns: int = 0
    sampled: int = 0
    sampled_sum_ms: float = 0.0
    sampled_square_ms: float = 0.0
    entered_ms: float = 0.0
    left_ms: float = 0.0
    age_in_us: int = 0
    age_out_us: int = 0
    residence: Counter[int] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    key_type: str = ""
    dead: list[tuple[str, str]] = field(default_factory=list)

    def passed(self, records: int, out: int, began_ns: int, ended_ns: int) -> None:
        """Count an Arrow batch that went through. Means of times are in ms since the epoch."""
        self.records_in += records
        self.records_out += out
        took_ns = ended_ns - began_ns
        self.busy_ns += took_ns
        if not records:
            return
        self.calls += 1
        grown = records - (self.last or records)
        self.last = records
        self.grown += grown
        self.grown_records += grown * records
        self.grown_ns += grown * took_ns
        share = records / self.records_in
        self.entered_ms += (began_ns / 1e6 - self.entered_ms) * share
        self.left_ms += (ended_ns / 1e6 - self.left_ms) * share
        above = max(took_ns / 1e6, SMALLEST_MS) / SMALLEST_MS
        self.residence[math.ceil(math.log(above) / _LOG_GAMMA - 1e-9)] += records

    def sample(self, took_ns: int) -> None:
        """Count the time of one record."""
        took_ms = took_ns / 1e6
        self.sampled += 1
        self.sampled_sum_ms += took_ms
        self.sampled_square_ms += took_ms * took_ms

    def count_keys(self, columns: list[pa.Array]) -> None:
        """Count the keys of a batch, keeping the most frequent ones.

        A key of several columns is written as a JSON list of their texts, its type as the types of
        the columns separated by semicolons. A long key is cut to keep reports small; its frequency
        is still known, but no longer the partition that Spark puts it in.
        """
        self.key_type = ";".join(str(column.type) for column in columns)
        if len(columns) == 1:
            for entry in columns[0].value_counts():
                self.keys[shortened(str(entry["values"].as_py()))] += entry["counts"].as_py()
        else:
            import pyarrow as pa  # noqa: PLC0415 - only where keys have several columns

            names = [str(number) for number in range(len(columns))]
            counted = pa.table(columns, names).group_by(names).aggregate([([], "count_all")])
            room = LONGEST_KEY // len(names)
            for row in counted.to_pylist():
                texts = [shortened(str(row[name]), room) for name in names]
                self.keys[json.dumps(texts)] += row["count_all"]
        if len(self.keys) > 4 * MOST_KEYS:
            self.keys = Counter(dict(self.keys.most_common(MOST_KEYS)))

    def hide_keys(self, secret: bytes) -> None:
        """Replace keys by pseudonyms, before anything leaves the worker."""
        from tailrace.model.keys.keytypes import REDACTED  # noqa: PLC0415 - only where redacted
        from tailrace.model.keys.pseudonyms import pseudonym  # noqa: PLC0415

        if self.key_type:
            kind = self.key_type
            counted = ((pseudonym(key, kind, secret), n) for key, n in self.keys.items())
            self.keys, self.key_type = Counter(dict(counted)), REDACTED


def shortened(text: str, longest: int = LONGEST_KEY) -> str:
    """A text, or for a long one its beginning and a digest that keeps it distinct."""
    longest = max(longest, _NEVER_CUT)
    if len(text) <= longest:
        return text
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=_DIGEST).hexdigest()
    return f"{text[: longest - len(digest) - 1]}…{digest}"


Meters = dict[tuple[str, int], Meter]
