"""Values of options that no command can work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import GOOD, USER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "-0.0"])
@pytest.mark.parametrize("command", [("run", "job.py:flow"), ("demo",)])
def test_a_run_of_no_length_is_refused(
    tailrace: Callable[..., Said], command: tuple[str, ...], seconds: str
) -> None:
    said = tailrace(*command, "--seconds", seconds).sentence(USER)
    assert said.startswith("A run cannot take ")
    assert said.endswith(" seconds: give a number above 0.")


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("pair", "shown"),
    [
        ("spark.driver.port", "spark.driver.port"),
        ("=4", "=***"),
        ("", ""),
        ("spark.ui.port:4040", "spark.ui.port:4040"),
        ("spark.ssl.keyPassword:hunter2", "spark.ssl.keyPassword:***"),
    ],
)
def test_a_setting_that_is_not_a_pair_is_refused_without_a_secret(
    tailrace: Callable[..., Said], job: Callable[[str], Path], pair: str, shown: str
) -> None:
    said = tailrace("run", f"{job(GOOD)}:flow", "--conf", pair).sentence(USER)
    assert said == f"'{shown}' is not a Spark setting: write --conf key=value."
