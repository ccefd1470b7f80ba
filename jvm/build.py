"""Builds ``src/tailrace/spark/tailrace.jar`` from every Java source beside this file.

Needs ``javac`` (17 or later) and the PySpark of the running interpreter, nothing else. The jar is
reproducible: the same sources and the same compiler give the same bytes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
RESOURCES = HERE / "resources"
JAR = HERE.parent / "src" / "tailrace" / "spark" / "tailrace.jar"
MANIFEST = "META-INF/MANIFEST.MF"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip entry can bear; every entry bears it."""

LINT = "-Xlint:all,-classfile,-path,-processing"
"""Everything but what Spark's own jars are at fault for: annotations without classes, class paths
that name absent jars, and annotations that no processor claims."""


class BuildError(Exception):
    """The jar cannot be built; the message says why and what to do."""


def find_javac() -> Path:
    """Returns the compiler of ``JAVA_HOME``, or else the first on the ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("javac")
    if found is None:
        raise BuildError("There is no javac; install a JDK 17 or later, or set JAVA_HOME to one.")
    return Path(found)


def find_spark_jars() -> Path:
    """Returns the directory of the jars that the installed PySpark brings along."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise BuildError("This Python has no PySpark; run the build with the project's own Python.")
    return Path(spec.origin).parent / "jars"


def manifest(pyspark_version: str) -> bytes:
    """Returns the manifest, which records the PySpark that the classes were compiled against."""
    return f"Manifest-Version: 1.0\r\nPySpark-Version: {pyspark_version}\r\n\r\n".encode()


def is_current(inputs: list[Path], wanted_manifest: bytes) -> bool:
    """Tells whether the jar is newer than every input and made for this PySpark."""
    if not JAR.exists():
        return False
    made_at = JAR.stat().st_mtime_ns
    if any(path.stat().st_mtime_ns >= made_at for path in inputs):
        return False
    try:
        with zipfile.ZipFile(JAR) as jar:
            return jar.read(MANIFEST) == wanted_manifest
    except (zipfile.BadZipFile, KeyError):
        return False


def compile_classes(sources: list[Path], classes: Path) -> None:
    """Compiles the sources into a directory; any warning is an error."""
    command = [str(find_javac()), "--release", "17", LINT, "-Werror", "-encoding", "UTF-8"]
    command += ["-proc:none", "-g", "-d", str(classes), "-cp", str(find_spark_jars() / "*")]
    command += [str(source) for source in sources]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if result.returncode != 0:
        raise BuildError(f"The Java sources do not compile; mend this:\n{result.stderr.strip()}")


def pack(classes: Path, wanted_manifest: bytes) -> None:
    """Writes the jar beside its place and moves it there in one step."""
    entries = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for root in (classes, RESOURCES)
        for path in root.rglob("*")
        if path.is_file()
    }
    descriptor, temporary = tempfile.mkstemp(dir=JAR.parent, prefix=".tailrace-", suffix=".jar")
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as jar,
        ):
            jar.writestr(zipfile.ZipInfo(MANIFEST, EPOCH), wanted_manifest)
            for name in sorted(entries):
                info = zipfile.ZipInfo(name, EPOCH)
                info.compress_type = zipfile.ZIP_DEFLATED
                jar.writestr(info, entries[name])
        Path(temporary).chmod(0o644)
        Path(temporary).replace(JAR)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def build(force: bool = False) -> Path:
    """Builds the jar if anything that it is made of has changed, and returns its path."""
    sources = sorted(SOURCES.rglob("*.java"))
    parts = [path for root in (SOURCES, RESOURCES) for path in (root, *root.rglob("*"))]
    wanted_manifest = manifest(importlib.metadata.version("pyspark"))
    # A directory is newer than the jar when a file in it was added or taken away.
    inputs = [Path(__file__).resolve(), *parts]
    if force or not is_current(inputs, wanted_manifest):
        with tempfile.TemporaryDirectory() as classes:
            compile_classes(sources, Path(classes))
            pack(Path(classes), wanted_manifest)
    return JAR


def main() -> int:
    """Builds the jar and prints one line about it."""
    parser = argparse.ArgumentParser(description="Build the JVM part of Tailrace.")
    parser.add_argument("--force", action="store_true", help="build even if nothing changed")
    force: bool = parser.parse_args().force
    before = JAR.stat().st_mtime_ns if JAR.exists() else 0
    try:
        jar = build(force)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    verb = "built" if jar.stat().st_mtime_ns != before else "up to date:"
    print(f"{verb} {jar} ({jar.stat().st_size} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
