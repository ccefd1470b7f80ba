"""Energy, from counters that are made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.spark.health.energy import EnergyMeter

if TYPE_CHECKING:
    from pathlib import Path


def zone(root: Path, name: str, microjoules: int) -> Path:
    place = root / name
    place.mkdir(exist_ok=True)
    (place / "max_energy_range_uj").write_text("1000000000\n")
    (place / "energy_uj").write_text(f"{microjoules}\n")
    return place


def test_packages_are_added_up_and_their_parts_are_not(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 5_000_000)
    zone(tmp_path, "intel-rapl:1", 0)
    zone(tmp_path, "intel-rapl:0:0", 0)
    meter = EnergyMeter(tmp_path)
    zone(tmp_path, "intel-rapl:0", 7_500_000)
    zone(tmp_path, "intel-rapl:1", 1_000_000)
    zone(tmp_path, "intel-rapl:0:0", 900_000_000)
    assert meter.read() == 3.5
    assert meter.read() == 3.5


def test_a_counter_that_wraps_around_keeps_counting(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 999_000_000)
    meter = EnergyMeter(tmp_path)
    zone(tmp_path, "intel-rapl:0", 2_000_000)
    assert meter.read() == 3.0


def test_a_machine_that_shows_nothing_has_no_energy_rather_than_none_used(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path / "not there").read() is None
    (tmp_path / "intel-rapl:0").mkdir()
    assert EnergyMeter(tmp_path).read() is None
