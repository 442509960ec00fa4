"""Snapshots as users name them: by a directory or its `_metadata` file. Finds, reads, checks and deletes them.

Decides what counts as a snapshot, and what of a savepoint may be deleted: the files that it names in its own directory,
and nothing else. Does not know jobs. Mirrors the part of Flink's AbstractFsCheckpointStorageAccess that resolves
pointers, and Checkpoints.disposeSavepoint.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from snapline.coordinator.checkpoint.abandoned_files import root_of_adopted
from snapline.coordinator.checkpoint.metadata import (
    HEADER_SIZE,
    METADATA_FILE_NAME,
    build_metadata,
    declared_size,
    metadata_path,
    parse_metadata,
)
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.snapshot.digest_sizes import CHUNK_BYTES
from snapline.dataflow.snapshot.digests import CheckedRanges, check_chunks, digests_of
from snapline.dataflow.snapshot.handles import (
    ByteStreamStateHandle,
    CheckpointMetadata,
    KeyedStateHandle,
    OperatorStateEntry,
    OperatorStateHandle,
    SegmentStateHandle,
    StreamStateHandle,
)
from snapline.dataflow.urls import is_absolute, is_file_url, path_of_file_url
from snapline.runtime.signing import SEAL_BYTES, UNSIGNED, NotSigned, Signer
from snapline.runtime.storage.local_storage import LocalStorage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import Storage, StorageError, StorageNotFound

if TYPE_CHECKING:
    from snapline.dataflow.snapshot.state_format import KeyedStateHeader

READ_BYTES = 8 * CHUNK_BYTES
"""A snapshot that is adopted is read in parts of this size."""


MAX_LISTS_BYTES = 1 << 30
"""What the list states of a subtask have at most that are read here."""


class NoSnapshot(SnaplineError):
    """There is no snapshot at the path, or none that can be used so; names the path and the way out."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that was read."""

    location: str
    """URL or absolute path of the directory that holds `_metadata`."""
    metadata: CheckpointMetadata

    def handles(self) -> Iterator[StreamStateHandle]:
        """Every blob that it refers to."""
        for operator in self.metadata.operators:
            for state in operator.subtasks.values():
                yield from state.stream_handles

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all files that it refers to, `_metadata` not among them, each once."""
        paths = (handle.path for handle in self.handles() if isinstance(handle, SegmentStateHandle))
        return tuple(dict.fromkeys(paths))


@dataclass(frozen=True, slots=True)
class DisposedSavepoint:
    """A savepoint that was deleted, and the files that had to stay."""

    location: str
    files: int
    kept: tuple[str, ...]
    """Files in its directory that do not belong to it, and are still there."""


def snapshot_location(path: str) -> str:
    """The directory that a user means. Raises NoSnapshot for a relative path, and for what is above all directories."""
    location = path.rstrip("/").removesuffix(f"/{METADATA_FILE_NAME}")
    if location in ("", f"{path.partition('://')[0]}:"):
        what = f"{path!r} is no directory of a checkpoint or savepoint" if path.strip() else "an empty path"
        raise NoSnapshot(f"{what}: name a directory that holds {METADATA_FILE_NAME}")
    if not is_absolute(location):
        raise NoSnapshot(f"{path!r} is no absolute path and no URL: the coordinator runs in another directory than you")
    return location


def read_snapshot(storages: StateStorages, path: str, signer: Signer = UNSIGNED) -> Snapshot:
    """Read and parse `_metadata`, which `signer` has to know. Raises NoSnapshot, NotSigned, MetadataError, or
    StorageError."""
    location = snapshot_location(path)
    storage, name = storages.locate("", metadata_path(location))
    try:
        metadata = read_metadata(storage, name, location, signer)
    except StorageNotFound:
        raise NoSnapshot(
            f"there is no checkpoint or savepoint in {location}: name a directory that holds {METADATA_FILE_NAME}"
        ) from None
    return Snapshot(location, metadata)


def read_metadata(storage: Storage, path: str, directory: str, signer: Signer = UNSIGNED) -> CheckpointMetadata:
    """Read and parse `path` of the storage, which is `<directory>/_metadata`: no more bytes than its header says, and
    the seal behind them, however long the file is. Nothing that `signer` does not know is decoded. Raises NotSigned,
    MetadataError, or StorageError."""
    try:
        header = storage.get_range(path, 0, HEADER_SIZE)
        data = header + storage.get_range(path, HEADER_SIZE, declared_size(header, directory) - HEADER_SIZE)
    except StorageNotFound:
        raise
    except StorageError:
        data = storage.get(path)
        if len(data) < HEADER_SIZE or len(data) < declared_size(data[:HEADER_SIZE], directory):
            return parse_metadata(data, directory)  # which says how much is missing
        raise
    if signer.keys:
        _check_seal(storage, path, data, directory, signer)
    return parse_metadata(data, directory)


def _check_seal(storage: Storage, path: str, data: bytes, directory: str, signer: Signer) -> None:
    """Raises NotSigned for what no coordinator of this cluster has written, and nobody has adopted."""
    try:
        seal = storage.get_range(path, len(data), SEAL_BYTES)
    except StorageError:  # the file ends before
        seal = b""
    try:
        signer.open(METADATA_FILE_NAME, data + seal)
    except NotSigned as error:
        raise NotSigned(
            f"{metadata_path(directory)} {error}; `snapline savepoint adopt {directory}` signs one that you trust"
        ) from error


def adopt_snapshot(storages: StateStorages, path: str, signer: Signer) -> Snapshot:
    """Sign a snapshot that was not written by this cluster, or before it had keys, as one of its own, with the digests
    of all its files. Raises NoSnapshot, also for one that names files of others, MetadataError, ChangedState, or
    StorageError."""
    found = read_snapshot(storages, path)
    _require_own_files(storages, found)
    operators = tuple(
        replace(
            operator,
            subtasks={
                index: state.with_handles(lambda handle: _with_digests(storages, handle))
                for index, state in operator.subtasks.items()
            },
        )
        for operator in found.metadata.operators
    )
    snapshot = Snapshot(found.location, replace(found.metadata, operators=operators))
    storage, name = storages.locate("", metadata_path(snapshot.location))
    storage.put(name, signer.seal(METADATA_FILE_NAME, build_metadata(snapshot.metadata, snapshot.location)))
    return snapshot


def _require_own_files(storages: StateStorages, snapshot: Snapshot) -> None:
    """Raise NoSnapshot for a file that is neither in the snapshot's directory nor shared by checkpoints: what is signed
    is read by a job, and a snapshot can name any file that there is."""
    for path in snapshot.files:
        root = root_of_adopted(_plain_path(path), _plain_path(snapshot.location))
        if root is None or not _leads_into(root, *storages.locate("", path)):
            raise NoSnapshot(
                f"{snapshot.location} names the file {path!r}, which is not in its own directory: it was changed, or goes on from "
                "another snapshot; take a savepoint, which has all its files in its directory"
            )


def _plain_path(path: str) -> str:
    """The path as storages understand it: URLs are unquoted, and one of the local disk may be a URL or not."""
    if is_file_url(path):
        return path_of_file_url(path)
    return unquote(path) if "://" in path else path


def _leads_into(root: str, storage: Storage, name: str) -> bool:
    """Whether the file is in the directory, whatever links are on the way; only a local disk has any."""
    return not isinstance(storage, LocalStorage) or Path(storage.real_path(name)).is_relative_to(os.path.realpath(root))


def _with_digests(storages: StateStorages, handle: StreamStateHandle) -> StreamStateHandle:
    """Read the blob, in parts. Raises ChangedState when it is not what its digests say, if it has some."""
    if isinstance(handle, ByteStreamStateHandle):
        return handle
    parts = (read_blob_range(storages, handle, at, READ_BYTES) for at in range(0, handle.size, READ_BYTES))
    return replace(handle, digests=b"".join(map(digests_of, parts)))


def read_blob_range(storages: StateStorages, handle: StreamStateHandle, offset: int, size: int) -> bytes:
    """Some bytes of a blob of a snapshot that was read here. Raises StorageError, and ChangedState for those that are
    not what the snapshot names."""
    if isinstance(handle, ByteStreamStateHandle):
        return handle.data[offset : offset + size]
    storage, name = storages.locate("", handle.path)

    def fetch(begin: int, length: int) -> bytes:
        data = storage.get_range(name, handle.offset + begin, length)
        if handle.digests:
            check_chunks(data, begin, handle.digests, handle.path, handle.offset)
        return data

    length = min(size, handle.size - offset)
    return CheckedRanges(fetch, handle.size).read_range(offset, length) if handle.digests else fetch(offset, length)


def read_state_header(storages: StateStorages, part: KeyedStateHandle) -> KeyedStateHeader:
    """The header of a file of keyed state of a snapshot that was read here. Raises StateError, StorageError or
    ChangedState."""
    from snapline.dataflow.snapshot.state_format import read_header  # which loads Arrow

    return read_header(lambda offset, size: read_blob_range(storages, part.handle, offset, size))


def read_elements(
    storages: StateStorages, state: OperatorStateHandle
) -> Iterator[tuple[OperatorStateEntry, tuple[bytes, ...]]]:
    """Each list state of a subtask with its elements; the blob is read once. Raises NoSnapshot for one that is too
    large, StorageError or ChangedState."""
    size = state.handle.state_size_bytes
    if size > MAX_LISTS_BYTES:
        where = "" if isinstance(state.handle, ByteStreamStateHandle) else f" in {state.handle.path}"
        raise NoSnapshot(
            f"a subtask has list states of {size} bytes{where}, and {MAX_LISTS_BYTES} are the most that are read"
        )
    data = read_blob_range(storages, state.handle, 0, size)
    for entry in state.entries:
        yield entry, tuple(data[offset : offset + size] for offset, size in entry.offsets)


def damaged_files(storages: StateStorages, snapshot: Snapshot) -> list[str]:
    """What is missing of the files that it refers to, a line each. Reads no state."""
    needed: dict[str, int] = {}
    for handle in snapshot.handles():
        if isinstance(handle, SegmentStateHandle):
            needed[handle.path] = max(needed.get(handle.path, 0), handle.offset + handle.size)
    found: list[str] = []
    sizes: dict[str, dict[str, int]] = {}
    for path, size in needed.items():
        directory = path.rpartition("/")[0]
        if directory not in sizes:
            sizes[directory] = dict(storages.at(directory or "/").list(""))
        there = sizes[directory].get(path.rpartition("/")[2])
        if there is None:
            found.append(f"{path} is missing")
        elif there < size:
            found.append(f"{path} has {there} bytes and should have at least {size}")
    return found


def dispose_savepoint(storages: StateStorages, path: str) -> DisposedSavepoint:
    """Delete a savepoint with its files. Raises NoSnapshot for anything else, and then nothing was deleted."""
    snapshot = read_snapshot(storages, path)
    location = snapshot.location
    if not snapshot.metadata.snapshot_type.is_savepoint:
        raise NoSnapshot(
            f"{location} is a checkpoint of job {snapshot.metadata.job_name!r}, not a savepoint: its files may be shared with "
            "other checkpoints; the job deletes it itself, or delete the job's whole checkpoint directory when it is over"
        )
    storage = storages.at(location)
    there = {name for name, _ in storage.list("")}  # below the directory itself, and behind no link
    named = (file[len(location) + 1 :] for file in snapshot.files if file.startswith(f"{location}/"))
    own = [METADATA_FILE_NAME]  # first: what is half deleted is no savepoint any more
    own += [name for name in named if name in there and name != METADATA_FILE_NAME]
    for name in own:
        storage.delete(name)
    kept = tuple(name for name, _ in storage.list(""))
    parent, _, directory = location.rpartition("/")
    if directory and not kept:
        try:
            storages.at(parent or "/").delete_prefix(directory)
        except StorageError:  # an empty directory that stays behind is nobody's loss
            pass
    return DisposedSavepoint(location, len(own), kept)
