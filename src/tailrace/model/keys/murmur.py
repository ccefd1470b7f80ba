"""Spark's hash of a key, and so the partition that the key goes to.

A hash exchange puts a row into partition ``pmod(hash(columns), n)``. The hash is Murmur3 (x86, 32
bits, seed 42), and cannot change from one version of Spark to the next, because the state of
running queries is laid out by it. So the place of a key under any number of partitions is known
without running anything (Cooper 2020, section 4.5, has to estimate it from counted transfers).

Two things differ from the published Murmur3: the last one to three bytes of a text are mixed in one
by one, each as a signed number; and a null leaves the hash unchanged. The columns of a composite
key are chained: the hash of one is the seed for the next.

A Python value does not determine how Spark hashes it (5 may be an int or a bigint, with different
hashes), so every function here takes the name of the Spark type: ``"int"``, ``"string"``,
``"decimal(9,2)"``, or a tuple of names for a composite key, whose keys are then tuples.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.errors import InputError
from tailrace.model.keys.keytypes import numbers_of, plain_of, rule_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = str | tuple[str, ...]
"""The Spark type of a key: one name, or the names of its columns."""

Hashes = NDArray[np.int32]
_Words = NDArray[np.uint32]

SEED: Final = 42

_FULL: Final = 0xFFFFFFFF
_FIRST: Final = 0xCC9E2D51
_SECOND: Final = 0x1B873593
_ADDED: Final = 0xE6546B64
_THIRD: Final = 0x85EBCA6B
_FOURTH: Final = 0xC2B2AE35
_FEW: Final = 32
"""If fewer texts than this still have words to mix, plain Python is faster than numpy."""


# --- one key ----------------------------------------------------------------------------------


def hash_one(value: Any, kind: str, seed: int = SEED) -> int:
    """Spark's hash of one value, as the signed number that ``hash(column)`` shows."""
    rule = rule_of(kind)
    if value is None:
        return _signed(seed)
    plain = plain_of(value, kind, rule)
    state = seed & _FULL
    if rule.bits == 0:
        aligned = len(plain) & ~3
        state = _absorb(state, struct.unpack(f"<{aligned // 4}I", plain[:aligned]))
        state = _absorb(state, struct.unpack(f"{len(plain) - aligned}b", plain[aligned:]))
        return _signed(_finish(state, len(plain)))
    if rule.bits <= 32:
        return _signed(_finish(_absorb(state, (plain,)), 4))
    return _signed(_finish(_absorb(state, (plain, plain >> 32)), 8))


def hash_key(key: Any, kind: Kind) -> int:
    """Spark's hash of one key; for a composite key, both ``key`` and ``kind`` are tuples."""
    if isinstance(kind, str):
        return hash_one(key, kind)
    _check_width(key, kind)
    state = SEED
    for value, name in zip(key, kind, strict=True):
        state = hash_one(value, name, state)
    return state


def _absorb(state: int, words: Sequence[int]) -> int:
    for word in words:
        mixed = word * _FIRST & _FULL
        mixed = (mixed << 15 | mixed >> 17) * _SECOND & _FULL
        state ^= mixed
        state = ((state << 13 & _FULL | state >> 19) * 5 + _ADDED) & _FULL
    return state


def _finish(state: int, length: int) -> int:
    state ^= length
    state = (state ^ state >> 16) * _THIRD & _FULL
    state = (state ^ state >> 13) * _FOURTH & _FULL
    return state ^ state >> 16


def _signed(state: int) -> int:
    return (state & _FULL ^ 1 << 31) - (1 << 31)


def _check_width(key: Any, kind: tuple[str, ...]) -> None:
    if not isinstance(key, tuple) or len(key) != len(kind):
        raise InputError(
            f"The key {key!r} does not have the {len(kind)} columns {', '.join(kind)}: give a "
            "tuple with a value for each of them."
        )


# --- many keys --------------------------------------------------------------------------------


def hash_column(
    values: Sequence[Any] | NDArray[Any], kind: str, seeds: Hashes | None = None
) -> Hashes:
    """Spark's hash of every value of a column, None being null.

    ``seeds`` are the hashes of the columns before it. Numpy arrays are hashed without Python
    objects; in an array of dates or times, ``NaT`` is null.
    """
    rule = rule_of(kind)
    count = len(values)
    start = np.full(count, SEED, np.int32) if seeds is None else seeds
    states = start.astype(np.int32).view(np.uint32)
    if rule.bits == 0:
        nulls = np.fromiter((value is None for value in values), np.bool_, count)
        texts = [b"" if value is None else plain_of(value, kind, rule) for value in values]
        hashed = _hash_bytes(texts, states)
    else:
        numbers, nulls = numbers_of(values, kind, rule)
        low = numbers.astype(np.uint32)
        hashed = _mix(states, low)
        if rule.bits > 32:
            hashed = _mix(hashed, (numbers >> 32).astype(np.uint32))
        hashed = _finished(hashed, np.uint32(8 if rule.bits > 32 else 4))
    return np.where(nulls, states, hashed).view(np.int32)


def hash_keys(keys: Sequence[Any] | NDArray[Any], kind: Kind) -> Hashes:
    """Spark's hash of every key; for composite keys, the keys and ``kind`` are tuples."""
    if isinstance(kind, str):
        return hash_column(keys, kind)
    for key in keys:
        _check_width(key, kind)
    hashes = np.full(len(keys), SEED, np.int32)
    for place, name in enumerate(kind):
        hashes = hash_column([key[place] for key in keys], name, hashes)
    return hashes


def partition_of(
    keys: Sequence[Any] | NDArray[Any], partitions: int, kind: Kind
) -> NDArray[np.int64]:
    """The partition that Spark sends each key to: ``pmod(hash(key), partitions)``."""
    if not 1 <= partitions < 1 << 31:
        raise InputError(
            f"Keys cannot be spread over {partitions} partitions: use a whole number from 1 up, of "
            "32 bits as Spark does."
        )
    return hash_keys(keys, kind).astype(np.int64) % partitions


def _hash_bytes(texts: Sequence[bytes], seeds: _Words) -> _Words:
    """Hash texts in parallel, one word of each at a time; the last long ones one by one."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    starts = np.cumsum(lengths) - lengths
    blob = np.frombuffer(b"".join((*texts, b"\0\0\0\0")), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(blob, 4)
    words = lengths // 4
    states = seeds.copy()
    done = 0
    live = np.flatnonzero(words > 0)
    while len(live) >= _FEW:
        block = windows[starts[live] + 4 * done].view("<u4").ravel()
        states[live] = _mix(states[live], block)
        done += 1
        live = live[words[live] > done]
    for place in live.tolist():
        rest = texts[place][4 * done : 4 * int(words[place])]
        states[place] = _absorb(int(states[place]), struct.unpack(f"<{len(rest) // 4}I", rest))
    for byte in range(3):
        live = np.flatnonzero(lengths % 4 > byte)
        last = blob[starts[live] + 4 * words[live] + byte].view(np.int8)
        states[live] = _mix(states[live], last.astype(np.int32).view(np.uint32))
    return _finished(states, lengths.astype(np.uint32))


def _mix(states: _Words, words: _Words) -> _Words:
    mixed = words * np.uint32(_FIRST)
    mixed = (mixed << np.uint32(15) | mixed >> np.uint32(17)) * np.uint32(_SECOND)
    mixed ^= states
    mixed = mixed << np.uint32(13) | mixed >> np.uint32(19)
    return mixed * np.uint32(5) + np.uint32(_ADDED)


def _finished(states: _Words, lengths: _Words | np.uint32) -> _Words:
    states = states ^ lengths
    states = (states ^ states >> np.uint32(16)) * np.uint32(_THIRD)
    states = (states ^ states >> np.uint32(13)) * np.uint32(_FOURTH)
    return states ^ states >> np.uint32(16)
