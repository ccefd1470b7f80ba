"""The secret of a cluster: for its owner alone, and gone with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import EnvironmentUnfit
from tailrace.spark.cluster import access

if TYPE_CHECKING:
    from pathlib import Path

PORT = 21_077
MASTER = f"spark://127.0.0.1:{PORT}"


@pytest.fixture(autouse=True)
def cache_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_session_gets_what_the_cluster_left_and_nothing_after_it() -> None:
    assert access.settings(MASTER) == {}
    secret = access.grant(PORT)
    assert access.settings(MASTER) == {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
    }
    assert access.settings(f"spark://127.0.0.1:{PORT + 1}") == {}
    access.revoke(PORT, secret)
    assert access.settings(MASTER) == {}
    access.revoke(PORT, secret)


def test_only_the_user_can_read_it_and_each_cluster_has_another() -> None:
    first = access.grant(PORT)
    assert access.place(PORT).stat().st_mode & 0o777 == 0o600
    assert access.place(PORT).parent.stat().st_mode & 0o777 == 0o700
    second = access.grant(PORT)  # the first was killed, and its port taken
    assert first != second
    access.revoke(PORT, first)
    assert access.place(PORT).read_text() == second


def test_a_place_that_others_can_write_to_is_refused() -> None:
    access.grant(PORT)
    access.place(PORT).parent.chmod(0o777)
    for use in (lambda: access.grant(PORT), lambda: access.settings(MASTER)):
        with pytest.raises(EnvironmentUnfit, match=r"cannot be kept safe, because .* by others: "):
            use()


def test_a_place_that_cannot_be_written_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(EnvironmentUnfit, match=r"^The secret of the cluster cannot be written \("):
        access.grant(PORT)
