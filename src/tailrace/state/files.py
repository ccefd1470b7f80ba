"""The files of a state directory: how they are written, recognised and read.

A file is a header, a body and a footer. The header says what the file is and which file it builds
on, and ends with a checksum of itself and of the directory's name, which is the number of the
partition. So it can be trusted before the rest is read, and one partition cannot be mistaken for
another. The body holds the records, packed one after the other; the footer holds the number of
records and a checksum of every byte before it. The last record must end where the footer begins. A
file is written under a temporary name, flushed to disk and renamed, so that the final name never
refers to half a file.

Format 1 had no checksum in the header, and the one in the footer left out the number of records.
Such files are still read: a wrong number does not match the body.
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
from tailrace.state.plain import NotPlain, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tailrace.state.plain import Packer

FORMAT = 2
NO_FILE = "0" * 16
"""The parent nonce of the first file, which builds on nothing."""

_MAGIC = b"tailrace state\n"
_HEADER = struct.Struct(">15sB?q16s16s")
_CHECKSUM = struct.Struct(">I")
_COUNT = struct.Struct(">Q")
_FOOTER_BYTES = _COUNT.size + _CHECKSUM.size
_CHUNK = 1 << 20
_NONCE = re.compile(rb"[0-9a-f]{16}")
_NAME = re.compile(r"([0-9]+)-([0-9a-f]{16})\.(delta|snapshot|claim)(\.tmp)?")
_CLAIM = re.compile(r"([0-9]+) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{8})\n")


@dataclass(frozen=True, slots=True)
class Link:
    """One file: the state as of ``version``, complete or as the changes since its parent.

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


class Name(NamedTuple):
    """What a file name in a state directory says."""

    text: str
    version: int
    nonce: str
    kind: str
    temporary: bool


def names_in(directory: Path) -> list[Name]:
    """The files of a state directory; those with other kinds of names are not ours."""
    with os.scandir(directory) as entries:
        found = [_NAME.fullmatch(entry.name) for entry in entries]
    return [Name(m[0], int(m[1]), m[2], m[3], m[4] is not None) for m in found if m]


@contextmanager
def replacing(final: Path, temporary: Path, *, flush: bool) -> Iterator[BinaryIO]:
    """A file to write; it gets its final name at the end, or leaves nothing behind on failure."""
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


def write_text(path: Path, text: str) -> None:
    """Write a text; a reader sees all of it or the previous file. A device is written directly."""
    final = path.resolve()
    # Half a surrogate pair is not valid UTF-8, but its escape sequence is.
    encoded = text.encode("utf-8", "backslashreplace")
    if final.exists() and not final.is_file():
        final.write_bytes(encoded)
        return
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    with replacing(final, temporary, flush=True) as file:
        file.write(encoded)


def write_link(directory: Path, link: Link, packer: Packer, records: Iterable[Any]) -> int:
    """Write a file whose records go through ``packer``; return its size in bytes.

    ``records`` puts each record into the packer itself, because only the caller can explain why one
    does not fit; what it yields is counted and otherwise ignored.
    """
    temporary = directory / f"{link.name}.tmp"
    with replacing(directory / link.name, temporary, flush=True) as file:
        checksum = 0
        written = 0

        def put(chunk: bytes) -> None:
            nonlocal checksum, written
            checksum = zlib.crc32(chunk, checksum)
            written += file.write(chunk)

        put(_header(link, directory))
        total = 0
        for _ in records:
            total += 1
            if len(packer) >= _CHUNK:
                put(packer.take())
        put(packer.take())
        put(_COUNT.pack(total))
        written += file.write(_CHECKSUM.pack(checksum))
    return written


def _header(link: Link, directory: Path) -> bytes:
    nonces = link.nonce.encode(), link.parent.encode()
    header = _HEADER.pack(_MAGIC, FORMAT, link.snapshot, link.version, *nonces)
    return header + _seal(header, directory)


def _seal(header: bytes, directory: Path) -> bytes:
    """The checksum of a header in a partition's directory."""
    return _CHECKSUM.pack(zlib.crc32(header, zlib.crc32(os.fsencode(directory.name))))


def read_link(directory: Path, version: int, nonce: str) -> Link:
    """What the header of a file says, or ``FileNotFoundError``."""
    for snapshot in (True, False):
        expected = Link(version, nonce, NO_FILE, snapshot)
        path = directory / expected.name
        with suppress(FileNotFoundError), path.open("rb") as file:
            link, _ = _checked_header(path, file, expected)
            return link
    raise FileNotFoundError(version, nonce)


def _checked_header(path: Path, file: BinaryIO, expected: Link) -> tuple[Link, int]:
    """What the header says, and the file's format; leaves the file at the start of the body."""
    header = file.read(_HEADER.size)
    if not header.startswith(_MAGIC) or len(header) < _HEADER.size:
        raise damaged(path, "it does not start like one")
    _, written_as, snapshot, version, nonce, parent = _HEADER.unpack(header)
    if not 1 <= written_as <= FORMAT:
        raise FlowFailed(
            f"The state file {path} has format {written_as} and this version of Tailrace reads "
            f"formats 1 to {FORMAT}: run the flow with the version that wrote it."
        )
    if written_as > 1 and file.read(_CHECKSUM.size) != _seal(header, path.parent):
        raise damaged(path, "its header is damaged, or it belongs to another partition")
    ours = (expected.version, expected.nonce.encode(), expected.snapshot)
    if (version, nonce, snapshot) != ours:
        raise damaged(path, "it was written under another name")
    if not _NONCE.fullmatch(parent):
        raise damaged(path, "it does not name the file that it builds on")
    size = os.fstat(file.fileno()).st_size
    return Link(version, expected.nonce, parent.decode(), snapshot, size), written_as


def read_records(directory: Path, link: Link) -> Iterator[tuple[Any, int]]:
    """The records of a file, each with its size, after its checksum was verified.

    In format 1 their number can only be checked after the last of them.
    """
    path = directory / link.name
    with path.open("rb") as file:
        found, written_as = _checked_header(path, file, link)
        position, end = file.tell(), found.size - _FOOTER_BYTES
        if position > end:
            raise damaged(path, "it is too short")
        with mmap(file.fileno(), found.size, access=ACCESS_READ) as mapped:
            total = _checked_footer(path, mapped, written_as)
            try:
                for _ in range(total):
                    before = position
                    record, position = unpack(mapped, before, end)
                    yield record, position - before
            except NotPlain as error:
                raise damaged(path, str(error)) from error
        if position != end:
            raise damaged(path, f"it has more than the {total} records that it declares")


def _checked_footer(path: Path, mapped: mmap, written_as: int) -> int:
    """The number of records, after the checksum was verified."""
    end = len(mapped) - _FOOTER_BYTES
    covered = end + (_COUNT.size if written_as > 1 else 0)
    with memoryview(mapped) as view, view[:covered] as checked:
        checksum = zlib.crc32(checked)
    if _CHECKSUM.pack(checksum) != mapped[-_CHECKSUM.size :]:
        raise damaged(path, "its checksum is wrong")
    (total,) = _COUNT.unpack(mapped[end : end + _COUNT.size])
    return int(total)


def damaged(path: Path, why: str) -> FlowFailed:
    """The error for a file that is not as it was written."""
    return FlowFailed(
        f"The file {path} is not a whole state file ({why}): put back a copy of the directory, or "
        "start the flow with a new checkpoint, which loses its state."
    )


@dataclass(frozen=True, slots=True)
class WriteClaim:
    """Which attempt is to write ``version``, and which file it builds on."""

    version: int
    nonce: str
    parent: str


def write_claim(directory: Path, claim: WriteClaim, *, flush: bool) -> None:
    """Replace the previous claim; flushed if it has to decide between several files."""
    text = f"{claim.version} {claim.nonce} {claim.parent}"
    temporary = directory / f"{claim.version}-{claim.nonce}.claim.tmp"
    with replacing(directory / "claim", temporary, flush=flush) as file:
        file.write(f"{text} {zlib.crc32(text.encode()):08x}\n".encode())


def read_claim(directory: Path) -> WriteClaim | None:
    """The last claim; None if there is none or it is damaged, for example by a power failure."""
    try:
        text = (directory / "claim").read_bytes().decode("ascii", "replace")
    except FileNotFoundError:
        return None
    found = _CLAIM.fullmatch(text)
    if not found or zlib.crc32(text[:-10].encode()) != int(found[4], 16):
        return None
    return WriteClaim(int(found[1]), found[2], found[3])
