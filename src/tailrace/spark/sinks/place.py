"""Where the files of an output are: a local directory, or any file system that Hadoop can reach.

A local directory is used directly. Hadoop's own local file system starts a process for each file
that it creates, which takes longer than publishing a batch may.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from py4j.protocol import Py4JJavaError

from tailrace.errors import InputError
from tailrace.state.files import write_text
from tailrace.state.lock import sole_user

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Place(Protocol):
    """The few file operations that a sink needs; every path is relative to the output."""

    def address(self, inside: str) -> str:
        """The path as Spark takes it."""

    def names(self) -> set[str]:
        """What the output holds, by name."""

    def exists(self, inside: str) -> bool:
        """Whether there is such a file or directory."""

    def read(self, inside: str) -> str | None:
        """The text of a file; None if there is none."""

    def write(self, inside: str, text: str) -> None:
        """Create a file, atomically if the file system can do that."""

    def move(self, origin: str, target: str) -> bool:
        """Give a file or directory another name, which nothing has; whether that was done."""

    def remove(self, inside: str) -> None:
        """Remove a file or a directory, if it is there."""

    def claim(self) -> bool:
        """Lock the output until ``release``; returns whether the file system can do that."""

    def release(self) -> None:
        """Release the lock."""


def place_of(path: str, spark: SparkSession) -> Place:
    """The place of an output, created if it does not exist."""
    if "://" in path or path.startswith("file:"):
        return HadoopPlace(path, spark)
    return LocalPlace(Path(path))


class LocalPlace:
    """A directory on this machine, or on a disk that all machines share."""

    def __init__(self, path: Path) -> None:
        """Create the directory; refuse a path that is a file."""
        if any(place.is_file() for place in (path, *path.parents)):
            raise InputError(
                f"The output {path} is, or is inside, a file: name a directory to write to."
            )
        self._root = path.resolve()
        self._held = ExitStack()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"The output {path} cannot be created ({error.strerror}): check the disk and its "
                "permissions, or name another directory."
            ) from error

    def address(self, inside: str) -> str:
        """The path as Spark takes it."""
        return str(self._root / inside)

    def names(self) -> set[str]:
        """What the output holds, by name."""
        return {entry.name for entry in self._root.iterdir()}

    def exists(self, inside: str) -> bool:
        """Whether there is such a file or directory."""
        return (self._root / inside).exists()

    def read(self, inside: str) -> str | None:
        """The text of a file; None if there is none."""
        try:
            return (self._root / inside).read_text("utf-8", "replace")
        except FileNotFoundError:
            return None

    def write(self, inside: str, text: str) -> None:
        """Create a file atomically."""
        write_text(self._root / inside, text)

    def move(self, origin: str, target: str) -> bool:
        """Give a file or directory another name, which nothing has; whether that was done."""
        try:
            (self._root / origin).rename(self._root / target)
        except OSError:
            return False
        return True

    def remove(self, inside: str) -> None:
        """Remove a file or a directory, if it is there."""
        found = self._root / inside
        if found.is_dir():
            shutil.rmtree(found)
        else:
            found.unlink(missing_ok=True)

    def claim(self) -> bool:
        """Lock the output until ``release``, or until this process ends."""
        self._held.enter_context(sole_user(self._root, "output", "_tailrace.lock"))
        return True

    def release(self) -> None:
        """Release the lock."""
        self._held.close()


class HadoopPlace:
    """A directory on a file system that Hadoop can reach: HDFS, or an object store."""

    def __init__(self, path: str, spark: SparkSession) -> None:
        """Create the directory."""
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        root = jvm.org.apache.hadoop.fs.Path(path)
        self._files: Any = root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self._root = root.toString()
        self._files.mkdirs(root)

    def _path(self, inside: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, inside)

    def address(self, inside: str) -> str:
        """The path as Spark takes it."""
        return str(self._path(inside).toString())

    def names(self) -> set[str]:
        """What the output holds, by name."""
        listed = self._files.listStatus(self._jvm.org.apache.hadoop.fs.Path(self._root))
        return {status.getPath().getName() for status in listed}

    def exists(self, inside: str) -> bool:
        """Whether there is such a file or directory."""
        return bool(self._files.exists(self._path(inside)))

    def read(self, inside: str) -> str | None:
        """The text of a file; None if there is none."""
        if not self.exists(inside):
            return None
        stream = self._files.open(self._path(inside))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, inside: str, text: str) -> None:
        """Create a file."""
        stream = self._files.create(self._path(inside))
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def move(self, origin: str, target: str) -> bool:
        """Give a file or directory another name, which nothing has; whether that was done."""
        if self.exists(target):  # Hadoop would move it into that directory
            return False
        try:
            return bool(self._files.rename(self._path(origin), self._path(target)))
        except Py4JJavaError:
            return False

    def remove(self, inside: str) -> None:
        """Remove a file or a directory, if it is there."""
        self._files.delete(self._path(inside), True)

    def claim(self) -> bool:
        """No lock on such a file system ends with its holder, so none is taken."""
        return False

    def release(self) -> None:
        """Nothing is held."""
