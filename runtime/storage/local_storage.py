"""Storage on a mounted file system: a local disk, or a network file system that every machine sees under the same path.

Decides what durable means there: a file is written under a hidden temporary name, synced, moved into place, and its
directory synced; so is the parent of every directory that had to be made. Conditional create is a hard link, which the
kernel refuses when the name is taken. What is made belongs to its owner alone: state is what a job's users gave it, and
a job graph is code that a coordinator runs. Not through obstore, whose local store syncs neither. Mirrors Flink's
LocalFileSystem and FsCheckpointStateOutputStream.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from snapline.runtime.absolute_paths import path_of_user
from snapline.runtime.storage.storage_port import (
    Buffer,
    StorageAlreadyExists,
    StorageError,
    StorageNotFound,
    checked_path,
)

KNOWN_DIRECTORIES_MAX = 1024
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
WRITEV_PARTS_MAX = 512
"""Below IOV_MAX, which is 1024 on Linux."""


class LocalStorage:
    """Files in a directory of the local disk; they are synced before they count as durable."""

    def __init__(self, directory: str) -> None:
        self._base = path_of_user(directory)
        self._known_directories: dict[Path, None] = {}
        """Directories whose entry in their parent this process has synced; in order of first use."""

    @property
    def url(self) -> str:
        return self._base.as_uri()

    def real_path(self, path: str) -> str:
        """The absolute path of the file, behind all links. Raises StorageError for a path that climbs out."""
        return os.path.realpath(self._resolve(path))

    def create(self, path: str, data: bytes) -> None:
        target = self._resolve(path)
        with self._failures("write", target):
            if target.exists():
                raise StorageAlreadyExists(f"there is a file at {target} already")
            temporary = self._write_temporary(target, (data,))
            try:
                os.link(temporary, target)
            except FileExistsError:
                if temporary.stat().st_nlink == 1:  # else it is ours: NFS asks again when an answer is lost
                    raise StorageAlreadyExists(f"there is a file at {target} already") from None
            except OSError as error:
                if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                    raise StorageError(
                        f"cannot create {target}: its file system has no hard links, which conditional create needs; "
                        "put checkpoints on another file system or an object store"
                    ) from error
                raise
            finally:
                temporary.unlink()
            _sync_directory(target.parent)

    def put(self, path: str, data: bytes) -> None:
        self.put_parts(path, (data,))

    def put_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        target = self._resolve(path)
        with self._failures("write", target):
            temporary = self._write_temporary(target, parts)
            try:
                temporary.replace(target)
            except OSError:
                temporary.unlink()
                raise
            _sync_directory(target.parent)

    def get(self, path: str) -> bytes:
        source = self._resolve(path)
        with self._failures("read", source), _open_regular(source) as file:
            return file.read()

    def get_range(self, path: str, offset: int, size: int) -> bytes:
        source = self._resolve(path)
        with self._failures("read", source), _open_regular(source) as file:
            file.seek(offset)
            data = bytearray()
            while len(data) < size and (part := file.read(size - len(data))):
                if not data and len(part) == size:
                    return part
                data += part
            if len(data) < size:
                raise StorageError(
                    f"{source} is shorter than expected: {offset + size} bytes wanted, the file was truncated"
                )
            return bytes(data)

    def exists(self, path: str) -> bool:
        source = self._resolve(path)
        with self._failures("read", source):
            try:
                return stat.S_ISREG(source.stat().st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return False

    def list(self, prefix: str) -> list[tuple[str, int]]:
        directory = self._resolve(prefix, empty=True)
        found: list[tuple[str, int]] = []

        def fail(error: OSError) -> None:
            """One below that cannot be opened stands in the list, so that whoever reads it is told why."""
            if isinstance(error, (FileNotFoundError, NotADirectoryError)):
                return
            if error.filename in (None, str(directory)):
                raise error
            found.append((Path(error.filename).relative_to(self._base).as_posix(), 0))

        with self._failures("list", directory):
            for parent, _directories, names in os.walk(directory, onerror=fail):
                for name in names:
                    if _is_temporary(name):
                        continue
                    file = Path(parent, name)
                    try:
                        status = file.stat()
                    except OSError as error:
                        if error.errno in (errno.ENOENT, errno.ELOOP):
                            continue
                        raise
                    if stat.S_ISREG(status.st_mode) and _is_text(name):
                        found.append((file.relative_to(self._base).as_posix(), status.st_size))
        return sorted(found)

    def delete(self, path: str) -> None:
        target = self._resolve(path)
        with self._failures("delete", target):
            try:
                target.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return

    def delete_prefix(self, prefix: str) -> None:
        directory = self._resolve(prefix, empty=True)
        with self._failures("delete", directory):
            while directory.is_dir():
                try:
                    shutil.rmtree(directory)
                except FileNotFoundError:  # somebody else has deleted one of the files; the others are still there
                    continue
                except NotADirectoryError:
                    return

    def rename(self, source: str, target: str) -> None:
        old, new = self._resolve(source), self._resolve(target)
        with self._failures("move", old):
            if not old.is_file():
                raise StorageNotFound(f"there is no file at {old}")
            self._make_directory(new.parent)
            old.replace(new)
            _sync_directory(new.parent)
            if old.parent != new.parent:
                _sync_directory(old.parent)

    def _resolve(self, path: str, *, empty: bool = False) -> Path:
        relative = checked_path(path, empty=empty)
        return self._base / relative if relative else self._base

    def _write_temporary(self, target: Path, parts: Sequence[Buffer]) -> Path:
        """Write and sync a hidden file beside the target."""
        directory = target.parent
        temporary = directory / f".{target.name}.{secrets.token_hex(6)}.tmp"
        if directory not in self._known_directories:
            self._make_directory(directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, FILE_MODE)
        except FileNotFoundError:  # somebody deleted the directory since
            self._make_directory(directory)
            descriptor = os.open(temporary, flags, FILE_MODE)
        try:
            _write_all(descriptor, parts)
            os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            temporary.unlink()
            raise
        os.close(descriptor)
        return temporary

    def _make_directory(self, directory: Path) -> None:
        """Make the directory and its parents, so that a power failure cannot take them back."""
        missing = []
        above = directory
        while not above.is_dir() and above != above.parent:
            missing.append(above)
            above = above.parent
        for each in reversed(missing):
            with contextlib.suppress(FileExistsError):
                each.mkdir(DIRECTORY_MODE)
            _sync_directory(each.parent)
        if not missing and directory != self._base:  # made by somebody who may not have synced it yet
            _sync_directory(directory.parent)
        self._known_directories[directory] = None
        while len(self._known_directories) > KNOWN_DIRECTORIES_MAX:
            with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread was faster
                del self._known_directories[next(iter(self._known_directories))]

    @contextlib.contextmanager
    def _failures(self, action: str, path: Path) -> Iterator[None]:
        """Say what could not be done to which file, and what to look at."""
        try:
            yield
        except FileNotFoundError as error:
            if action == "write":
                raise StorageError(f"cannot write {path}: its directory cannot be made there") from error
            raise StorageNotFound(f"there is no file at {path}") from error
        except OSError as error:
            raise StorageError(f"cannot {action} {path}: {error.strerror or error}; {_advice(error, path)}") from error


def _open_regular(path: Path) -> BinaryIO:
    """Open the file for reading. A pipe or a device in its place is refused, which would keep the reader for ever."""
    file = open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 (only this one takes an opener)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is no regular file")


def _write_all(descriptor: int, parts: Sequence[Buffer]) -> None:
    views = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
    while views:
        written = os.writev(descriptor, views[:WRITEV_PARTS_MAX])
        while written and views:
            if written >= views[0].nbytes:
                written -= views.pop(0).nbytes
            else:
                views[0] = views[0][written:]
                written = 0


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_text(name: str) -> bool:
    """Whether the name can be said in a message; one of ours always can."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def _advice(error: OSError, path: Path) -> str:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"check that user id {os.geteuid()} may write there, on every machine of the cluster"
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        in_the_way = next((above for above in path.parents if above.is_file()), None)
        return f"{in_the_way} is a file; choose another directory" if in_the_way else f"{path} is a directory"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room, or name another place (execution.checkpointing.dir, high-availability.storageDir)"
    return "check the disk or mount"
