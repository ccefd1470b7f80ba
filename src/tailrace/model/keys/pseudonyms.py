"""Pseudonyms: frequent keys in profiles and reports that must not name them.

A pseudonym is a slot and a digest, as in ``"137-9f86d081884c7d65"``. The digest is keyed by a
secret of the run that is never written down: within a run it tells keys apart, and nobody can test
a guess against it. The slot is ``pmod(hash(key), 240)`` by Spark's own hash, which predictions need
to know where a key goes: any number of partitions that divides 240 (1 to 6, 8, 10, 12, 15, 16, 20,
24, ...) is known exactly, any other as far as it shares divisors with 240, and the rest is chance,
the same at every look. This is what leaks: whoever guesses a key, and knows nothing else, finds
that one of 240 guesses fits the slot. The hash itself would fit one of four thousand million.
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
    """What stands for a key that was counted under this text, of a column of this Arrow type."""
    named = text.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(named, key=secret, digest_size=8).hexdigest()
    kinds = tuple(from_arrow(arrow_type).split(";"))
    kind = kinds if len(kinds) > 1 else kinds[0]
    try:
        slot = hash_key(read_key(text, kind), kind) % SLOTS
    except InputError:  # a key that Spark hashes in a way not known here
        slot = int(digest, 16) % SLOTS
    return f"{slot}-{digest}"


def places(pseudonyms: Sequence[str], partitions: int) -> NDArray[np.int64]:
    """The partition of each key: exact where ``partitions`` divides the slots, else partly chance.

    With g the greatest common divisor of both, ``slot mod g`` is the partition modulo g.
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
            f"'{text}' is not a key that was redacted: name the type of the keys, or leave them as "
            "the run wrote them."
        )
    return found
