"""The files of a state directory: damage of any kind is found."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import FlowFailed
from tailrace.state.store import Store
from tests.state.stores import refusal, run, version_files

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_with_any_byte_changed_is_refused(written: Path) -> None:
    whole = written.read_bytes()
    footer = len(whole) - 12
    for position in range(len(whole)):
        for bit in range(8) if position >= footer else (position % 8,):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            written.write_bytes(damaged)
            assert str(written) in refusal(written)


@pytest.mark.parametrize("said", [0, 1, 20, 22, 2**40, 2**64 - 1])
def test_another_number_of_records_is_refused(written: Path, said: int) -> None:
    whole = written.read_bytes()
    assert whole[-12:-4] == struct.pack(">Q", 21)
    written.write_bytes(whole[:-12] + struct.pack(">Q", said) + whole[-4:])
    assert "its checksum is wrong" in refusal(written)


def sealed(whole: bytes) -> bytes:
    """A file with the right checksum at its end, whatever stands before."""
    return whole[:-4] + struct.pack(">I", zlib.crc32(whole[:-4]))


@pytest.mark.parametrize(
    ("said", "says"), [(0, "more than the 0"), (20, "more than the 20"), (22, "cut off")]
)
def test_the_last_record_must_end_where_the_footer_begins(
    written: Path, said: int, says: str
) -> None:
    whole = written.read_bytes()
    written.write_bytes(sealed(whole[:-12] + struct.pack(">Q", said) + whole[-4:]))
    assert says in refusal(written)


def test_bytes_after_the_last_record_are_refused(written: Path) -> None:
    whole = written.read_bytes()
    for more in (b"\0", b"N.", b"\x80\x05N."):
        written.write_bytes(sealed(whole[:-12] + more + whole[-12:]))
        assert "more than the 21 records" in refusal(written)


def test_a_file_that_was_cut_off_anywhere_is_refused(written: Path) -> None:
    whole = written.read_bytes()
    for length in range(len(whole)):
        written.write_bytes(whole[:length])
        assert "is not a whole state file" in refusal(written)


def test_a_partition_does_not_pass_for_another(written: Path) -> None:
    other = written.parent.with_name("1")
    written.parent.rename(other)
    assert "it belongs to another partition" in refusal(other / written.name)


def test_a_file_of_another_version_under_this_name_is_refused(written: Path) -> None:
    store = Store(written.parent)
    run(store, 1, {"a": 1})
    (other,) = version_files(written.parent, 1)
    written.write_bytes(other.read_bytes())
    with pytest.raises(FlowFailed, match="under another name"):
        Store(written.parent).open(1)


def test_a_file_of_a_later_format_is_refused_by_its_number(written: Path) -> None:
    whole = bytearray(written.read_bytes())
    whole[15] = 9
    written.write_bytes(whole)
    assert "has format 9 and this version of Tailrace reads formats 1 to 2" in refusal(written)


def test_a_file_does_not_pass_for_one_of_format_1(written: Path) -> None:
    whole = bytearray(written.read_bytes())
    whole[15] = 1
    written.write_bytes(whole)
    assert "its checksum is wrong" in refusal(written)
    written.write_bytes(sealed(bytes(whole)))
    assert "its checksum is wrong" in refusal(written)
