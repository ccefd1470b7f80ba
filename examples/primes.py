"""PrimeTest: is a random 256-bit number prime? The load goes up and down a staircase.

    tailrace run examples/primes.py:flow --seconds 50
    tailrace demo                                       # the same, and plain Spark beside it

The workload of Lohrmann 2016, section 5.1.2, at the size of one machine: a source of random
numbers, a step that tests them with real arithmetic, and a step that says what it found. The
original goes from 10,000 to 80,000 numbers/s in steps of 60 s, on up to 392 tasks; here it is from
500 to 5,000 in steps of 7 s.

The bound is ours: a mean of 500 ms in every 5 s, for micro-batches. The original has 20 to 100 ms,
and its records pass from task to task as they come. For such bounds there is real-time mode, which
``python -m bench staircase`` chooses when it gives this flow 10 ms.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import tailrace as tr

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

load = tr.load.generate(tr.load.Staircase("500 /s", "5 k/s", steps=3, step_s="7 s"), seed=1)


def draw(row: Any) -> tuple[int, str]:
    """A 256-bit odd number, the same for the same record in every run."""
    digest = hashlib.sha256(str(row.seq).encode()).hexdigest()
    return row.seq, hex(int(digest, 16) | 1)


def test(row: Any) -> tuple[int, str, bool]:
    """Twenty rounds of Fermat's test: a composite number fails the first, almost always."""
    number = int(row.number, 16)
    prime = all(pow(base, number - 1, number) == 1 for base in range(2, 22))
    return row.seq, row.number, prime


def label(row: Any) -> tuple[int, str]:
    """What was found, for a person to read."""
    return row.seq, f"{row.number} is {'probably prime' if row.prime else 'composite'}"


def pipeline(records: DataFrame) -> DataFrame:
    """Draw, test, label."""
    return (
        records.transform(tr.step("draw", draw, "seq long, number string"))
        .transform(tr.step("test", test, "seq long, number string, prime boolean"))
        .transform(tr.step("label", label, "seq long, found string"))
    )


flow = tr.Flow("primes", load, pipeline, tr.sinks.discard()).keep(mean="500 ms")
