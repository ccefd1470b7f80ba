"""Errors: why a file could not be written decides which class says so."""

from __future__ import annotations

import errno
import os

import pytest

from tailrace.errors import EnvironmentUnfit, InputError, TailraceError, unwritable


@pytest.mark.parametrize(
    ("number", "kind", "remedy"),
    [
        (errno.ENOSPC, EnvironmentUnfit, "free some space, or choose another place."),
        (errno.EDQUOT, EnvironmentUnfit, "free some space, or choose another place."),
        (errno.EFBIG, EnvironmentUnfit, "free some space, or choose another place."),
        (errno.EACCES, InputError, "choose another place."),
        (errno.EISDIR, InputError, "choose another place."),
        (errno.EROFS, InputError, "choose another place."),
    ],
)
def test_a_full_disk_is_the_machine_s_fault_and_a_wrong_place_the_user_s(
    number: int, kind: type[TailraceError], remedy: str
) -> None:
    why = os.strerror(number)
    error = unwritable("The report r.json", OSError(number, why))
    assert type(error) is kind
    assert str(error) == f"The report r.json cannot be written ({why}): {remedy}"
