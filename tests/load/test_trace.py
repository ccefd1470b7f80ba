from __future__ import annotations

import itertools
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.errors import LoadError
from tailrace.load import Texts, Trace

files = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def a_trace(payloads: list[str] | None = None) -> Trace:
    texts = None if payloads is None else Texts.of(payloads)
    size = np.array([7, 0, 3]) if texts is None else texts.sizes()
    due = np.array([0, 5, 5], np.int64)
    key = np.array([1, 0, 1], np.int32)
    return Trace(due, key, size.astype(np.int32), ("", "Zürich"), texts)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    n = draw(st.integers(1, 30))
    names = draw(st.lists(st.text(max_size=6), min_size=1, max_size=9))
    due = sorted(draw(st.lists(st.integers(0, 2**53), min_size=n, max_size=n)))
    key = draw(st.lists(st.integers(0, len(names) - 1), min_size=n, max_size=n))
    size = np.array(draw(st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n)))
    texts = None
    if draw(st.booleans()):
        texts = Texts.of(draw(st.lists(st.text(max_size=6), min_size=n, max_size=n)))
        size = texts.sizes()
    return Trace(
        np.array(due, np.int64),
        np.array(key, np.int32),
        size.astype(np.int32),
        tuple(names),
        texts,
    )


def parsed(raw: bytes) -> tuple[list[int], list[int], list[int], list[bytes], list[bytes]]:
    """A second reader of the format, byte by byte."""
    magic, n, keys, key_bytes, payload_bytes = struct.unpack_from("<8s4q", raw)
    assert magic == b"TRTRACE2"
    at = 40

    def take(form: str, count: int) -> list[int]:
        nonlocal at
        at += -at % 8
        values = list(struct.unpack_from(f"<{count}{form}", raw, at))
        at += count * struct.calcsize(form)
        return values

    def texts(start: list[int], blob: bytes) -> list[bytes]:
        return [blob[a:b] for a, b in itertools.pairwise(start)]

    due, key, size = take("q", n), take("i", n), take("i", n)
    names = texts(take("q", keys + 1), bytes(take("B", key_bytes)))
    stored = texts(take("q", n + 1), bytes(take("B", payload_bytes))) if payload_bytes else []
    assert take("q", 1) == [zlib.crc32(raw[:-8])]
    assert len(raw) == at
    return due, key, size, names, stored


@files
@given(trace=traces())
def test_a_saved_trace_is_what_the_format_says_and_loads_as_it_was(
    trace: Trace, tmp_path: Path
) -> None:
    path = tmp_path / "a.trace"
    trace.save(path)
    due, key, size, names, stored = parsed(path.read_bytes())
    assert due == trace.due_us.tolist()
    assert key == trace.key.tolist()
    assert size == trace.size.tolist()
    assert [name.decode() for name in names] == list(trace.key_names)
    assert [text.decode() for text in stored] == list(trace.payloads or ())
    assert Trace.load(path) == trace


@files
@given(trace=traces(), data=st.data())
def test_a_file_that_is_cut_off_anywhere_is_refused(
    trace: Trace, data: st.DataObject, tmp_path: Path
) -> None:
    path = tmp_path / "a.trace"
    trace.save(path)
    raw = path.read_bytes()
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(LoadError, match=str(path)):
        Trace.load(path)


@files
@given(trace=traces(), data=st.data())
def test_a_file_with_any_byte_changed_is_refused(
    trace: Trace, data: st.DataObject, tmp_path: Path
) -> None:
    path = tmp_path / "a.trace"
    trace.save(path)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    with pytest.raises(LoadError, match=str(path)):
        Trace.load(path)


def test_a_file_with_any_bit_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    a_trace(["é", "x", "yz"]).save(path)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)
        with pytest.raises(LoadError, match=str(path)):
            Trace.load(path)


def sealed(raw: bytes | bytearray) -> bytes:
    """The file with the right checksum, whatever stands before."""
    return bytes(raw[:-8]) + struct.pack("<q", zlib.crc32(raw[:-8]))


def damaged(path: Path, at: int, form: str, value: object) -> Path:
    a_trace(["é", "x", "yz"]).save(path)
    raw = bytearray(path.read_bytes())
    struct.pack_into(form, raw, at, value)
    path.write_bytes(sealed(raw))
    return path


# Header 0, due_us 40, key 64, size 80 (padded from 76), key offsets 96, key blob 120 (7 bytes),
# payload offsets 128, payload blob 160 (5 bytes), checksum 168.
@pytest.mark.parametrize(
    ("at", "form", "value", "says"),
    [
        (0, "<8s", b"TRTRACE3", "is not a trace file"),
        (0, "<8s", b"TRTRACE1", "its header asks for"),
        (8, "<q", 0, "impossible header"),
        (8, "<q", -1, "impossible header"),
        (16, "<q", 0, "impossible header"),
        (24, "<q", -1, "impossible header"),
        (8, "<q", 2**62, "its header asks for"),
        (8, "<q", 2, "its header asks for"),
        (40, "<q", -1, "must not be negative"),
        (48, "<q", 6, "must be sorted"),
        (64, "<i", 2, "key indices must be from 0 to 1"),
        (64, "<i", -1, "key indices must be from 0 to 1"),
        (80, "<i", -1, "sizes must not be negative"),
        (80, "<i", 3, "sizes must be those of its payloads"),
        (96, "<q", 1, "offsets that do not fit"),
        (104, "<q", 8, "offsets that do not fit"),
        (112, "<q", 6, "offsets that do not fit"),
        (121, "<B", 0xFF, "not UTF-8"),
        (136, "<q", 2**40, "offsets that do not fit"),
        (160, "<B", 0x20, "not UTF-8"),
    ],
)
def test_each_thing_that_no_trace_has_is_named_even_if_the_checksum_is_right(
    tmp_path: Path, at: int, form: str, value: object, says: str
) -> None:
    path = damaged(tmp_path / "a.trace", at, form, value)
    with pytest.raises(LoadError, match=says) as caught:
        Trace.load(path)
    assert str(path) in str(caught.value)


def test_a_text_that_is_cut_within_a_character_is_refused(tmp_path: Path) -> None:
    path = damaged(tmp_path / "a.trace", 136, "<q", 1)
    raw = bytearray(path.read_bytes())
    struct.pack_into("<2i", raw, 80, 1, 2)
    path.write_bytes(sealed(raw))
    with pytest.raises(LoadError, match="not UTF-8"):
        Trace.load(path)


@pytest.mark.parametrize("content", [b"", b"TR", b"TRTRACE2", b"time,key\n1,a\n", bytes(100)])
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "garbage"
    path.write_bytes(content)
    with pytest.raises(LoadError, match="garbage"):
        Trace.load(path)


def test_bytes_after_the_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    a_trace().save(path)
    whole = path.read_bytes()
    for more in (1, 8, 9):
        path.write_bytes(whole + bytes(more))
        with pytest.raises(LoadError, match="its header asks for"):
            Trace.load(path)


def test_a_wrong_checksum_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    a_trace().save(path)
    raw = bytearray(path.read_bytes())
    struct.pack_into("<q", raw, 40, 1)  # sorted still, and from 0 up
    path.write_bytes(raw)
    with pytest.raises(LoadError, match=r"is damaged \(its checksum is wrong\): make it again"):
        Trace.load(path)


def test_a_trace_of_version_1_is_read_as_it_was_written() -> None:
    written = Path(__file__).parent
    due, key = np.array([0, 5, 5, 90], np.int64), np.array([1, 0, 1, 1], np.int32)
    size = np.array([2, 0, 3, 1], np.int32)
    filler = Trace(due, key, size, ("", "Zürich"))
    stored = Trace(due, key, size, ("", "Zürich"), Texts.of(["é", "", "abc", "x"]))
    assert Trace.load(written / "format1-filler.trace") == filler
    assert Trace.load(written / "format1.trace") == stored


def test_a_trace_of_version_1_does_not_pass_for_one_of_version_2(tmp_path: Path) -> None:
    old = Path(__file__).with_name("format1.trace").read_bytes()
    path = tmp_path / "a.trace"
    path.write_bytes(b"TRTRACE2" + old[8:])
    with pytest.raises(LoadError, match="its header asks for"):
        Trace.load(path)


def test_a_missing_file_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"nowhere.*No such file"):
        Trace.load(tmp_path / "nowhere")
    with pytest.raises(LoadError, match=r"nowhere.*cannot be written"):
        a_trace().save(tmp_path / "nowhere" / "a.trace")


def test_saving_replaces_the_file_at_once_and_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.trace"
    a_trace().save(path)
    before = Trace.load(path)
    a_trace(["a", "b", "c"]).save(path)
    assert before == a_trace()
    assert Trace.load(path) == a_trace(["a", "b", "c"])

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(LoadError, match="No space left"):
        a_trace().save(path)
    assert Trace.load(path) == a_trace(["a", "b", "c"])
    assert list(tmp_path.iterdir()) == [path]


def test_empty_payloads_are_filler_of_size_zero() -> None:
    assert a_trace(["", "", ""]).payloads is None
    assert a_trace(["", "", ""]).size.tolist() == [0, 0, 0]


def test_a_trace_knows_its_length_and_duration() -> None:
    assert len(a_trace()) == 3
    assert a_trace().duration_s == 5e-6


def test_a_trace_is_not_equal_to_one_that_differs_or_to_something_else() -> None:
    assert a_trace() == a_trace()
    assert a_trace() != a_trace(["a", "b", "c"])
    assert a_trace() != a_trace().speed(5)
    assert a_trace() != "a trace"


@given(st.floats(1e-3, 1e3))
def test_a_faster_trace_has_the_same_records_sooner(factor: float) -> None:
    due = np.array([0, 1, 10, 999, 10**9], np.int64)
    ones = np.zeros(5, np.int32)
    faster = Trace(due, ones, ones, ("k",)).speed(factor)
    np.testing.assert_allclose(faster.due_us, due / factor, atol=1.0)
    assert np.all(np.diff(faster.due_us) >= 0)


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), 1e-300])
def test_a_speed_that_means_nothing_is_refused(factor: float) -> None:
    with pytest.raises(LoadError, match="times as fast"):
        a_trace().speed(factor)


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("due_us", np.array([0, 1, 2], np.int32), "flat arrays"),
        ("due_us", np.zeros((3, 1), np.int64), "flat arrays"),
        ("key", np.array([0, 1], np.int32), "one entry for each record"),
        ("key_names", (), "at least one record and one key"),
    ],
)
def test_a_table_of_the_wrong_form_is_refused(column: str, value: object, says: str) -> None:
    base = a_trace()
    names = ("due_us", "key", "size", "key_names")
    parts = {name: getattr(base, name) for name in names} | {column: value}
    with pytest.raises(LoadError, match=says):
        Trace(**parts)


def test_a_trace_without_records_is_refused() -> None:
    none = np.zeros(0, np.int32)
    with pytest.raises(LoadError, match="at least one record"):
        Trace(np.zeros(0, np.int64), none, none, ("k",))


@given(st.lists(st.text(max_size=5), max_size=20))
def test_texts_hold_what_was_put_in(texts: list[str]) -> None:
    packed = Texts.of(texts)
    packed.check("The table")
    assert list(packed) == texts
    assert packed.sizes().tolist() == [len(text.encode()) for text in texts]
    assert packed == Texts.of(packed.arrow())


@pytest.mark.parametrize("bad", [[None], [1], ["\ud800"]])
def test_what_is_not_text_is_refused(bad: list[str]) -> None:
    with pytest.raises(LoadError, match="A text"):
        Texts.of(bad)
