"""The wheel: what users install, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOW = """
import tailrace as tr


def pipeline(records):
    return records.transform(tr.step("double", lambda row: 2 * row.seq, "n long"))


load = tr.load.generate(tr.load.Constant("200 /s", "60 s"))
flow = tr.Flow("doubled", load, pipeline, tr.sinks.parquet("doubled")).keep(mean="5 s")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (made,) = place.glob("*.whl")
    return made


def test_it_holds_the_package_and_its_jar_and_no_laboratory(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "tailrace/spark/tailrace.jar" in names
    assert "tailrace/examples/primes.py" in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tailrace"}
    parts = {part.split(".")[0] for name in names for part in name.split("/")}
    assert not parts & {"bench", "broker", "kafka.pom", "jars", "peers", "rivals", "tests", "tools"}


def test_it_needs_nothing_that_only_benchmarks_use(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = [name for name in files.namelist() if name.endswith("METADATA")]
        lines = files.read(metadata).decode().splitlines()
    needed = [line for line in lines if line.startswith("Requires-Dist") and "extra" not in line]
    assert [line for line in needed if line.startswith("Requires-Dist: pyspark")]
    assert not [line for line in needed if "numba" in line or "kafka" in line]


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.apart
def test_it_runs_the_demo_and_a_flow_from_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Installed in another directory, where nothing of the sources is at hand."""
    home, place = tmp_path / "env", tmp_path / "elsewhere"
    place.mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    install = [uv, "pip", "install", "--quiet", "--python", str(home / "bin/python"), str(wheel)]
    subprocess.run(install, check=True)

    def run(*arguments: str) -> dict[str, object]:
        command = [str(home / "bin" / "tailrace"), *arguments, "--json"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    demo = run("demo", "--seconds", "12", "--no-baseline")
    assert demo["records"]
    assert (place / "out" / "demo" / "report.png").is_file()
    (place / "flow.py").write_text(FLOW)
    report = run("run", "flow.py:flow", "--seconds", "12")
    assert report["records"]
    assert list((place / "doubled").glob("batch=*"))
