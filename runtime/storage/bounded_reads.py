"""Reads of files that somebody else may have put there: no larger than what belongs there can be, and told apart from a
storage that does not answer."""

from __future__ import annotations

from snapline.runtime.storage.storage_port import Storage, StorageError, StorageNotFound
from snapline.runtime.storage.storage_probe import probe_storage


def get_at_most(storage: Storage, path: str, most_bytes: int) -> bytes:
    """The whole content. Raises StorageNotFound, or StorageError, also for a file of more bytes, which is not read."""
    size = dict(storage.list(path.rpartition("/")[0])).get(path, 0)
    if size > most_bytes:
        raise StorageError(f"{storage.url}/{path} has {size} bytes, and what belongs there {most_bytes} at most")
    return storage.get_range(path, 0, size)


def get_or_why(storage: Storage, path: str, most_bytes: int) -> bytes | str:
    """The whole content; or, in words, why there is no way to read this file of a storage that answers: the file is
    asked for twice, and the storage in between. Raises StorageNotFound, or StorageError of a storage that is away."""
    try:
        return get_at_most(storage, path, most_bytes)
    except StorageNotFound:
        raise
    except StorageError:
        probe_storage(storage)
    try:
        return get_at_most(storage, path, most_bytes)
    except StorageNotFound:
        raise
    except StorageError as error:
        return str(error)
