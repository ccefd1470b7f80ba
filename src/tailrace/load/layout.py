"""The bytes of a trace file, version 2, which the replay source maps into memory.

All numbers are little-endian. The header is the magic ``TRTRACE2`` and four int64: the records n,
the keys, the bytes of the key blob and the bytes of the payload blob (0: no payloads are stored,
and filler of the given sizes is replayed). The sections follow, each at the next multiple of 8,
with zeros between:

====================== =============== ====================================================
due_us                 int64[n]        microseconds since the start, not decreasing, from 0 up
key                    int32[n]        index into the keys
size                   int32[n]        bytes of the payload
key offsets            int64[keys + 1] into the key blob
key blob               UTF-8
payload offsets        int64[n + 1]    into the payload blob; only if there are payloads
payload blob           UTF-8           only if there are payloads
checksum               int64           CRC-32 of every byte before it
====================== =============== ====================================================

Version 1, ``TRTRACE1``, is the same without the checksum; checkpoints may hold such a file, so it
is still read.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from tailrace.errors import LoadError
from tailrace.load.texts import Texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_MAGIC: Final = b"TRTRACE2"
_MAGIC_1: Final = b"TRTRACE1"
_HEADER_BYTES: Final = 40
_INT64: Final = np.dtype("<i8")
_INT32: Final = np.dtype("<i4")
_BYTE: Final = np.dtype("u1")


@dataclass(frozen=True, slots=True)
class Sections:
    """What a trace file holds, section by section."""

    due_us: NDArray[np.int64]
    key: NDArray[np.int32]
    size: NDArray[np.int32]
    keys: Texts
    payloads: Texts | None


def write(path: Path, sections: Sections) -> None:
    """Write a trace file; a reader sees either all of it or the previous file.

    Raises:
        LoadError: If the file cannot be written.
    """
    payloads = sections.payloads
    header = [len(sections.due_us), len(sections.keys), len(sections.keys.blob)]
    header.append(len(payloads.blob) if payloads else 0)
    parts: list[tuple[NDArray[Any], np.dtype[Any]]] = [
        (np.frombuffer(_MAGIC, _BYTE), _BYTE),
        (np.array(header), _INT64),
        (sections.due_us, _INT64),
        (sections.key, _INT32),
        (sections.size, _INT32),
        (sections.keys.start, _INT64),
        (sections.keys.blob, _BYTE),
    ]
    if payloads:
        parts += [(payloads.start, _INT64), (payloads.blob, _BYTE)]
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            temporary = Path(folder) / path.name
            with temporary.open("xb") as file:
                checksum = 0
                for array, kind in parts:
                    checksum = _put(file, np.ascontiguousarray(array, kind).data, checksum)
                file.write(checksum.to_bytes(8, "little"))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except OSError as error:
        raise LoadError(f"The trace file {path} cannot be written: {error.strerror}.") from None


def _put(file: BinaryIO, section: memoryview, checksum: int) -> int:
    """Write a section and the padding after it; return the checksum so far."""
    zeros = bytes(-section.nbytes % 8)
    file.write(section)
    file.write(zeros)
    return zlib.crc32(zeros, zlib.crc32(section, checksum))


def read(path: Path) -> Sections:
    """Map a trace file into memory, and check that it is complete and that its texts are valid.

    Raises:
        LoadError: If the file cannot be read, is not a trace file, or is damaged.
    """
    raw = _mapped(path)
    magic = raw[:8].tobytes()
    if magic not in (_MAGIC, _MAGIC_1):
        raise LoadError(f"{path} is not a trace file: make one with tailrace.load.generate.")
    if len(raw) < _HEADER_BYTES:
        raise LoadError(f"The trace file {path} is cut off in its header: make it again.")
    kinds = _kinds(path, raw[8:_HEADER_BYTES].view(_INT64).tolist())
    if magic == _MAGIC:
        kinds.append((1, _INT64))
    places = list(_places(kinds))
    end, needed = places[-1]
    if len(raw) != needed:
        raise LoadError(
            f"The trace file {path} has {len(raw)} bytes where its header asks for {needed}: "
            "make it again."
        )
    arrays: list[NDArray[Any]] = [
        raw[a:b].view(kind) for (a, b), (_, kind) in zip(places, kinds, strict=True)
    ]
    if magic == _MAGIC and zlib.crc32(raw[:end].data) != int(arrays.pop()[0]):
        raise LoadError(f"The trace file {path} is damaged (its checksum is wrong): make it again.")
    due_us, key, size, key_start, key_blob, *stored = arrays
    payloads = Texts(stored[0], stored[1]) if stored else None
    sections = Sections(due_us, key, size, Texts(key_start, key_blob), payloads)
    sections.keys.check(f"The key table of the trace file {path}")
    if payloads:
        payloads.check(f"The payload table of the trace file {path}")
    return sections


def _kinds(path: Path, header: list[int]) -> list[tuple[int, np.dtype[Any]]]:
    """The number of entries in each section, and their type."""
    n, keys, key_bytes, payload_bytes = header
    if n < 1 or keys < 1 or key_bytes < 0 or payload_bytes < 0:
        raise LoadError(
            f"The trace file {path} has an impossible header "
            f"({n} records, {keys} keys): make it again."
        )
    kinds: list[tuple[int, np.dtype[Any]]]
    kinds = [(n, _INT64), (n, _INT32), (n, _INT32), (keys + 1, _INT64), (key_bytes, _BYTE)]
    if payload_bytes:
        kinds += [(n + 1, _INT64), (payload_bytes, _BYTE)]
    return kinds


def _places(kinds: list[tuple[int, np.dtype[Any]]]) -> Iterator[tuple[int, int]]:
    """Where each section starts and ends."""
    end = _HEADER_BYTES
    for count, kind in kinds:
        start = end + -end % 8
        end = start + count * kind.itemsize
        yield start, end


def _mapped(path: Path) -> NDArray[np.uint8]:
    """The bytes of the file, mapped; a mapping cannot be empty, a file can."""
    try:
        if path.stat().st_size == 0:
            return np.zeros(0, np.uint8)
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    except OSError as error:
        raise LoadError(f"The trace file {path} cannot be read: {error.strerror}.") from None
