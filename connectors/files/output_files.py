"""How files of a sink are staged, made durable and published, on a local disk and elsewhere.

Decides what durable means (local: file and directory synced; object stores and HDFS: the write was acknowledged) and
what publishing is (local: an atomic rename; HDFS: its rename; object stores: a server-side copy, then the delete of the
original). Every operation may be repeated after a crash at any point inside it. It does not know which file belongs to
which checkpoint: that is the committer.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from snapline.connectors.files.filesystems import Location, advice, first_line, locate
from snapline.connectors.files.listing import is_hidden
from snapline.dataflow.errors import ConnectorError

MAKE_DIRECTORY_ATTEMPTS = 5
"""Another subtask may remove an empty staging directory between our making it and our first file in it."""
WITH_DIRECTORIES = ("hdfs", "abfs")
"""Where a file cannot be moved into a directory that is not there: HDFS, and Azure with a hierarchical namespace."""


class OutputFiles(ABC):
    """Files on one file system, by absolute path."""

    @abstractmethod
    def open(self, path: str) -> Any:
        """A new binary stream; the file may be visible from now on, or only once it is closed."""

    @abstractmethod
    def seal(self, path: str, sealed_path: str) -> None:
        """The stream at `path` is closed: make its content survive anything, under the name `sealed_path`."""

    @abstractmethod
    def publish(self, files: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Move each (source, target). A source that is gone because of an earlier call is fine; returns those whose
        target is not there either."""

    @abstractmethod
    def read(self, path: str) -> Any:
        """A binary stream of a file's bytes, which can seek."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is such a file."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """No error when it is gone."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """Names of the files in a directory, sorted; none when there is no directory."""

    @abstractmethod
    def has_partitions(self, directory: str) -> bool:
        """Whether there are directories in a directory that readers look into."""

    @abstractmethod
    def remove_directory_if_empty(self, directory: str) -> None:
        """Tidy up; no error when it is not empty or gone."""

    @abstractmethod
    def prepare(self, directory: str) -> None:
        """Make the directory and prove that files can be written below it."""


def open_output(url: str, options: Mapping[str, str]) -> tuple[OutputFiles, Location]:
    """The files of the file system that the URL means, and where on it the URL points to."""
    location = locate(url, options)
    return (LocalOutputFiles() if location.is_local else RemoteOutputFiles(location)), location


@contextlib.contextmanager
def failures(action: str, what: str) -> Iterator[None]:
    """Say what could not be done to which output, and what to look at."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise ConnectorError(f"cannot {action} {what}: {first_line(error)}; {advice(error)}") from error


class LocalOutputFiles(OutputFiles):
    """Output files below a directory of a mounted file system."""

    def open(self, path: str) -> Any:
        with failures("write", path):
            for attempt in range(MAKE_DIRECTORY_ATTEMPTS):
                try:
                    _make_directory(Path(path).parent)
                    return pa.OSFile(path, "wb")
                except FileNotFoundError:  # a committer that closes has removed a directory that was empty
                    if attempt + 1 == MAKE_DIRECTORY_ATTEMPTS:
                        raise
            return None

    def seal(self, path: str, sealed_path: str) -> None:
        with failures("write", path):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            Path(path).rename(sealed_path)
            _sync_directory(Path(sealed_path).parent)

    def publish(self, files: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        missing = []
        for source, target in files:
            with failures("publish", target):
                if Path(source).exists():
                    _make_directory(Path(target).parent)
                    Path(source).rename(target)
                elif not Path(target).exists():
                    missing.append((source, target))
        for directory in dict.fromkeys(Path(target).parent for _, target in files):
            if directory.is_dir():
                with failures("publish", str(directory)):
                    _sync_directory(directory)
        return missing

    def read(self, path: str) -> Any:
        return pa.OSFile(path, "rb")

    def exists(self, path: str) -> bool:
        with failures("look for", path):
            return Path(path).is_file()

    def delete(self, path: str) -> None:
        with failures("delete", path):
            Path(path).unlink(missing_ok=True)

    def names(self, directory: str) -> list[str]:
        with failures("list", directory):
            try:
                return sorted(entry.name for entry in os.scandir(directory) if entry.is_file())
            except FileNotFoundError:
                return []

    def has_partitions(self, directory: str) -> bool:
        with failures("list", directory):
            try:
                return any(entry.is_dir() and not is_hidden(entry.name) for entry in os.scandir(directory))
            except FileNotFoundError:
                return False

    def remove_directory_if_empty(self, directory: str) -> None:
        with contextlib.suppress(OSError):
            Path(directory).rmdir()

    def prepare(self, directory: str) -> None:
        with failures("write into", directory):
            _make_directory(Path(directory))
            probe = Path(directory) / f".probe-{os.getpid()}-{os.urandom(4).hex()}"
            probe.write_bytes(b"x")
            probe.unlink()


class RemoteOutputFiles(OutputFiles):
    """An object store or HDFS through `pyarrow.fs`. A file appears when its stream is closed, whole or not at all."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._filesystem = location.filesystem

    def open(self, path: str) -> Any:
        with failures("write", self._url(path)):
            if isinstance(self._filesystem, fs.HadoopFileSystem):
                self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            return self._filesystem.open_output_stream(path)

    def seal(self, path: str, sealed_path: str) -> None:
        if path != sealed_path:
            with failures("write", self._url(path)):
                self._filesystem.move(path, sealed_path)

    def publish(self, files: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        missing = []
        for source, target in files:
            with failures("publish", self._url(target)):
                if self._is_file(source):
                    if self._filesystem.type_name in WITH_DIRECTORIES:
                        self._filesystem.create_dir(target.rpartition("/")[0], recursive=True)
                    self._filesystem.move(source, target)  # a crash half way leaves both, with one content
                elif not self._is_file(target):
                    missing.append((source, target))
        return missing

    def read(self, path: str) -> Any:
        return self._filesystem.open_input_file(path)

    def exists(self, path: str) -> bool:
        with failures("look for", self._url(path)):
            return self._is_file(path)

    def delete(self, path: str) -> None:
        with failures("delete", self._url(path)):
            if self._is_file(path):
                self._filesystem.delete_file(path)

    def names(self, directory: str) -> list[str]:
        with failures("list", self._url(directory)):
            infos = self._filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True))
        return sorted(info.base_name for info in infos if info.type == fs.FileType.File)

    def has_partitions(self, directory: str) -> bool:
        with failures("list", self._url(directory)):
            infos = self._filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True))
        return any(info.type == fs.FileType.Directory and not is_hidden(info.base_name) for info in infos)

    def remove_directory_if_empty(self, directory: str) -> None:
        """Do nothing: a directory goes with what another subtask has put there since somebody looked."""

    def prepare(self, directory: str) -> None:
        probe = f"{directory}/.probe-{os.getpid()}-{os.urandom(4).hex()}"
        with failures("write into", self._url(directory)):
            if isinstance(self._filesystem, fs.HadoopFileSystem):
                self._filesystem.create_dir(directory, recursive=True)
            with self._filesystem.open_output_stream(probe) as stream:
                stream.write(b"x")
            self._filesystem.delete_file(probe)

    def _is_file(self, path: str) -> bool:
        return bool(self._filesystem.get_file_info(path).type == fs.FileType.File)

    def _url(self, path: str) -> str:
        return self._location.at(path).url


def _make_directory(directory: Path) -> None:
    """Make it and its parents, so that a power failure cannot take them back."""
    missing = []
    above = directory
    while not above.is_dir() and above != above.parent:
        missing.append(above)
        above = above.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        _sync_directory(each.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
