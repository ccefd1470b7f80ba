"""Pseudonyms for the frequent keys, in profiles and reports that must not show them.

A pseudonym is a slot and a digest, as in ``"137-9f86d081884c7d65"``. The digest is keyed by a
secret of the run that is never stored: it distinguishes keys within a run, and guesses cannot be
tested against it. The slot is ``pmod(hash(key), 240)`` with Spark's own hash. Predictions need it
to know where a key goes: for any number of partitions that divides 240 (1 to 6, 8, 10, 12, 15, 16,
20, 24, ...) that is known exactly, for any other as far as it shares divisors with 240, and the
rest is pseudo-random but always the same. The slot is what leaks: a wrong guess of a key fits it
with a chance of 1 in 240. The full hash would leak more: there the chance is 1 in four thousand
million.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.errors import InputError
from tailrace.model.keys.keytypes import from_arrow, read_key
from tailrace.model.keys.murmur import hash_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SLOTS: Final = 240


def pseudonym(text: str, arrow_type: str, secret: bytes) -> str:
    """The pseudonym of a key that was counted under this text, from a column of this Arrow type."""
    named = text.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(named, key=secret, digest_size=8).hexdigest()
    kinds = tuple(from_arrow(arrow_type).split(";"))
    kind = kinds if len(kinds) > 1 else kinds[0]
    try:
        slot = hash_key(read_key(text, kind), kind) % SLOTS
    except InputError:  # a type whose hash in Spark is not known here
        slot = int(digest, 16) % SLOTS
    return f"{slot}-{digest}"


def places(pseudonyms: Sequence[str], partitions: int) -> NDArray[np.int64]:
    """The partition of each key: exact if ``partitions`` divides the slots, else partly random.

    With g the greatest common divisor of the two, ``slot mod g`` is the partition modulo g.
    """
    known = math.gcd(partitions, SLOTS)
    found = []
    for one in pseudonyms:
        slot, digest = _parts(one)
        found.append(slot % known + known * (digest % (partitions // known)))
    return np.array(found, np.int64)


def _parts(text: str) -> tuple[int, int]:
    slot, _, digest = text.partition("-")
    try:
        found = int(slot), int(digest, 16)
    except ValueError:
        found = -1, 0
    if not 0 <= found[0] < SLOTS:
        raise InputError(
            f"'{text}' is not a redacted key: name the type of the keys, or leave them as "
            "the run wrote them."
        )
    return found
