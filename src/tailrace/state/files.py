"""The files of a state directory: how one is written, recognised and read.

A file is a header, a body and a footer. The header says what the file is and on which file it
builds; the body holds the records, packed one after the other; the footer holds the number of
records and a checksum of all that stands before it. A file is written under a temporary name,
flushed to the disk and renamed, so that its name never stands for half of it.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from tailrace.errors import FlowFailed
from tailrace.state.plain import NotPlain, Packer, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FORMAT = 1
NO_FILE = "0" * 16
"""The nonce of what the first file builds on."""

_MAGIC = b"tailrace state\n"
_HEADER = struct.Struct(">15sB?q16s16s")
_FOOTER = struct.Struct(">QI")
_CHUNK = 1 << 20
_NAME = re.compile(r"(\d+)-([0-9a-f]{16})\.(delta|snapshot|claim)(\.tmp)?")
_CLAIM = re.compile(r"(\d+) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{8})\n")


@dataclass(frozen=True, slots=True)
class Link:
    """One file: the state as of ``version``, whole or as what changed since its parent.

    ``nonce`` is random and names the attempt that wrote the file. It is part of the file's name,
    so attempts at one batch never touch each other's files. ``parent`` is the nonce of the file
    of the version before, so the files that make up a version are known exactly.
    """

    version: int
    nonce: str
    parent: str
    snapshot: bool
    size: int = 0

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.version}-{self.nonce}.{'snapshot' if self.snapshot else 'delta'}"

    def header(self) -> bytes:
        """The first bytes of the file."""
        nonces = self.nonce.encode(), self.parent.encode()
        return _HEADER.pack(_MAGIC, FORMAT, self.snapshot, self.version, *nonces)


class Name(NamedTuple):
    """What the name of a file in a state directory says."""

    text: str
    version: int
    nonce: str
    kind: str
    temporary: bool


def names_in(directory: Path) -> list[Name]:
    """The files of a state directory; what has another kind of name is none of ours."""
    with os.scandir(directory) as entries:
        found = [_NAME.fullmatch(entry.name) for entry in entries]
    return [Name(m[0], int(m[1]), m[2], m[3], m[4] is not None) for m in found if m]


@contextmanager
def replacing(final: Path, temporary: Path, *, flush: bool) -> Iterator[BinaryIO]:
    """A file to write; it takes its final name at the end, or leaves nothing if that fails."""
    try:
        with temporary.open("wb") as file:
            yield file
            if flush:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(final)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_link(directory: Path, link: Link, packer: Packer, records: Iterable[Any]) -> int:
    """Write a file whose records go through ``packer`` as they are taken; its size in bytes.

    ``records`` puts each record into the packer itself, because only the caller knows what to
    say when one does not fit; what it yields is counted and otherwise ignored.
    """
    temporary = directory / f"{link.name}.tmp"
    with replacing(directory / link.name, temporary, flush=True) as file:
        checksum = 0
        written = 0

        def put(chunk: bytes) -> None:
            nonlocal checksum, written
            checksum = zlib.crc32(chunk, checksum)
            written += file.write(chunk)

        put(link.header())
        total = 0
        for _ in records:
            total += 1
            if len(packer) >= _CHUNK:
                put(packer.take())
        put(packer.take())
        written += file.write(_FOOTER.pack(total, checksum))
    return written


def read_link(directory: Path, version: int, nonce: str) -> Link:
    """What the header of a file says, or ``FileNotFoundError``."""
    for snapshot in (True, False):
        expected = Link(version, nonce, NO_FILE, snapshot)
        path = directory / expected.name
        with suppress(FileNotFoundError), path.open("rb") as file:
            return _checked_header(path, file, expected)
    raise FileNotFoundError(version, nonce)


def _checked_header(path: Path, file: BinaryIO, expected: Link) -> Link:
    header = file.read(_HEADER.size)
    if not header.startswith(_MAGIC) or len(header) < _HEADER.size:
        raise _damaged(path, "it does not start as one")
    _, written_as, snapshot, version, nonce, parent = _HEADER.unpack(header)
    if written_as != FORMAT:
        raise FlowFailed(
            f"The state file {path} has format {written_as} and this version of Tailrace reads "
            f"format {FORMAT}: run the flow with the version that wrote it."
        )
    ours = (expected.version, expected.nonce.encode(), expected.snapshot)
    if (version, nonce, snapshot) != ours:
        raise _damaged(path, "it was written under another name")
    size = os.fstat(file.fileno()).st_size
    return Link(version, expected.nonce, parent.decode("ascii", "replace"), snapshot, size)


def read_records(directory: Path, link: Link) -> Iterator[tuple[Any, int]]:
    """The records of a file, each with its size, after the checksum was found to be right."""
    path = directory / link.name
    with path.open("rb") as file:
        whole = _checked_header(path, file, link).size
        if whole < _HEADER.size + _FOOTER.size:
            raise _damaged(path, "it is too short")
        with mmap(file.fileno(), whole, access=ACCESS_READ) as mapped:
            total = _checked_footer(path, mapped)
            mapped.seek(_HEADER.size)
            position = _HEADER.size
            try:
                for _ in range(total):
                    record = unpack(mapped)
                    before, position = position, mapped.tell()
                    yield record, position - before
            except NotPlain as error:
                raise _damaged(path, str(error)) from error


def _checked_footer(path: Path, mapped: mmap) -> int:
    end = len(mapped) - _FOOTER.size
    with memoryview(mapped) as view, view[:end] as checked:
        checksum = zlib.crc32(checked)
    total, expected = _FOOTER.unpack(mapped[end:])
    if checksum != expected:
        raise _damaged(path, "its checksum is wrong")
    return int(total)


def _damaged(path: Path, why: str) -> FlowFailed:
    return FlowFailed(
        f"The file {path} is not a whole state file ({why}): put back a copy of the directory, or "
        "start the flow with a new checkpoint, which loses its state."
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """Which attempt is to write ``version``, and on which file it builds."""

    version: int
    nonce: str
    parent: str


def write_claim(directory: Path, claim: Claim, *, flush: bool) -> None:
    """Put a claim in the place of the one before; to be flushed where it has to decide."""
    text = f"{claim.version} {claim.nonce} {claim.parent}"
    temporary = directory / f"{claim.version}-{claim.nonce}.claim.tmp"
    with replacing(directory / "claim", temporary, flush=flush) as file:
        file.write(f"{text} {zlib.crc32(text.encode()):08x}\n".encode())


def read_claim(directory: Path) -> Claim | None:
    """The last claim; None if there is none, or a power failure tore it."""
    try:
        text = (directory / "claim").read_bytes().decode("ascii", "replace")
    except FileNotFoundError:
        return None
    found = _CLAIM.fullmatch(text)
    if not found or zlib.crc32(text[:-10].encode()) != int(found[4], 16):
        return None
    return Claim(int(found[1]), found[2], found[3])
