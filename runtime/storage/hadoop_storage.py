"""Storage in HDFS, and anything else that only `pyarrow.fs` reaches.

HDFS has no conditional put, but its rename refuses a target that exists, and the name node orders renames: a file is
written under a hidden name and renamed, which is create; `put` deletes first. Needs libhdfs and a Hadoop client on
every machine (YARN users have them). Mirrors Flink's HadoopFileSystem.
"""

from __future__ import annotations

import contextlib
import posixpath
import secrets
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from snapline.runtime.storage.storage_port import (
    Buffer,
    StorageAlreadyExists,
    StorageError,
    StorageNotFound,
    checked_path,
)


class HadoopStorage:
    """Files below one directory of a `pyarrow.fs.FileSystem` whose move refuses an existing target."""

    def __init__(self, filesystem: Any, directory: str, url: str) -> None:
        self._filesystem = filesystem
        self._base = directory.rstrip("/")
        self._url = url.rstrip("/")

    @classmethod
    def connect(cls, url: str) -> HadoopStorage:
        """Connect to the name node of the URL (`hdfs:///path`: the default one). Raises StorageError when it cannot."""
        parts = urlsplit(url)
        try:
            port = parts.port or 0
        except ValueError as error:
            raise StorageError(f"{url!r} names no port of a name node: {error}") from error
        try:
            filesystem = fs.HadoopFileSystem(parts.hostname or "default", port, user=parts.username)
        except OSError as error:
            raise StorageError(
                f"cannot use {url}: {str(error).splitlines()[0]}; HDFS needs libhdfs and a Hadoop client on this machine "
                "(HADOOP_HOME, JAVA_HOME and CLASSPATH from `hadoop classpath --glob`)"
            ) from error
        path = url.partition("://")[2].partition("/")[2]  # which may have ? and # in it
        return cls(filesystem, f"/{path}", url)

    @property
    def url(self) -> str:
        return self._url

    def create(self, path: str, data: bytes) -> None:
        target = self._resolve(path)
        if self.exists(path):
            raise StorageAlreadyExists(f"there is a file at {target} already")
        temporary = self._write_temporary(target, (data,))
        try:
            with self._failures("write", target):
                self._filesystem.move(temporary, target)
        except StorageError:
            with contextlib.suppress(OSError):
                self._filesystem.delete_file(temporary)
            if self.exists(path):
                raise StorageAlreadyExists(f"there is a file at {target} already") from None
            raise

    def put(self, path: str, data: bytes) -> None:
        self.put_parts(path, (data,))

    def put_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        target = self._resolve(path)
        temporary = self._write_temporary(target, parts)
        with self._failures("write", target):
            self._replace(temporary, target)

    def get(self, path: str) -> bytes:
        source = self._resolve(path)
        with self._failures("read", source), self._filesystem.open_input_stream(source) as stream:
            return bytes(stream.read())

    def get_range(self, path: str, offset: int, size: int) -> bytes:
        source = self._resolve(path)
        with self._failures("read", source), self._filesystem.open_input_file(source) as file:
            file.seek(offset)
            data = bytes(file.read_buffer(size))  # `read_at` would keep the memory of what it could not read for good
        if len(data) < size:
            raise StorageError(f"{source} is shorter than expected: {offset + size} bytes wanted")
        return data

    def exists(self, path: str) -> bool:
        source = self._resolve(path)
        with self._failures("look for", source):
            return bool(self._filesystem.get_file_info(source).type == fs.FileType.File)

    def list(self, prefix: str) -> list[tuple[str, int]]:
        directory = self._resolve(prefix, empty=True)
        with self._failures("list", directory):
            if self._filesystem.get_file_info(directory).type != fs.FileType.Directory:
                return []
            infos = self._filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True, recursive=True))
        below = self._base + "/"
        return sorted(
            (info.path.removeprefix(below), info.size)
            for info in infos
            if info.type == fs.FileType.File and not _is_temporary(info.base_name)
        )

    def delete(self, path: str) -> None:
        target = self._resolve(path)
        try:
            with self._failures("delete", target):
                self._filesystem.delete_file(target)
        except StorageNotFound:
            return

    def delete_prefix(self, prefix: str) -> None:
        directory = self._resolve(prefix, empty=True)
        try:
            with self._failures("delete", directory):
                self._filesystem.delete_dir(directory)
        except StorageNotFound:
            return

    def rename(self, source: str, target: str) -> None:
        old, new = self._resolve(source), self._resolve(target)
        if not self.exists(source):
            raise StorageNotFound(f"there is no file at {old}")
        with self._failures("move", old):
            self._filesystem.create_dir(posixpath.dirname(new), recursive=True)
            if old != new:
                self._replace(old, new)

    def _resolve(self, path: str, *, empty: bool = False) -> str:
        relative = checked_path(path, empty=empty)
        return f"{self._base}/{relative}" if relative else self._base

    def _write_temporary(self, target: str, parts: Sequence[Buffer]) -> str:
        directory, name = posixpath.split(target)
        temporary = f"{directory}/.{name}.{secrets.token_hex(6)}.tmp"
        with self._failures("write", target):
            self._filesystem.create_dir(directory, recursive=True)
            with self._filesystem.open_output_stream(temporary) as stream:  # HDFS is durable once closed
                for part in parts:
                    stream.write(part)
        return temporary

    def _replace(self, source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(target)
        self._filesystem.move(source, target)

    @contextlib.contextmanager
    def _failures(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise StorageNotFound(f"there is no file at {path}") from error
        except (OSError, ValueError) as error:
            cause = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise StorageError(f"cannot {action} {self._url} ({path}): {cause}") from error


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")
