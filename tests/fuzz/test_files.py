"""A cut of the fuzzer, and that it finds what it is for."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from tailrace.load import layout
from tailrace.state import files as state_files

from .files import fuzz

if TYPE_CHECKING:
    import pytest


def test_damaged_files_give_the_same_data_or_a_sentence() -> None:
    summary = fuzz(2_000, seed=20_261_118)
    assert summary.failures == []
    assert summary.failed == 0
    assert summary.cases == 2_000
    assert summary.refused > 1_000
    assert summary.same > 20


def test_the_same_seed_does_the_same() -> None:
    assert fuzz(60, seed=3) == fuzz(60, seed=3)


def test_a_reader_of_state_that_trusts_the_footer_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trusting(_path: Any, mapped: Any, _written_as: int) -> int:
        (total,) = struct.unpack(">Q", mapped[-12:-4])
        return int(total)

    monkeypatch.setattr(state_files, "_checked_footer", trusting)
    summary = fuzz(1_000, seed=1)
    assert summary.by_target["snapshot of format 2: silently_wrong"] > 5
    assert any(failure.startswith("snapshot of format 2") for failure in summary.failures)


def test_a_reader_of_traces_that_checks_nothing_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Constant:
        @staticmethod
        def crc32(*_: object) -> int:
            return 0

    monkeypatch.setattr(layout, "zlib", Constant)
    summary = fuzz(1_000, seed=1)
    assert summary.by_target["trace of texts: silently_wrong"] > 0
    assert summary.failed > 0
