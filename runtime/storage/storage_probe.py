"""Does a store keep what checkpoints rest on? Asked once, before the first checkpoint, with real files.

Two coordinators that both believe to lead must not both publish `_metadata`: that rests on conditional create, which
some S3 look-alikes silently ignore (they overwrite). Such a store is refused here, by name, instead of losing a
checkpoint later.
"""

from __future__ import annotations

import contextlib
import secrets

from snapline.runtime.storage.storage_port import Storage, StorageAlreadyExists, StorageError

FIRST = b"written first"
SECOND = b"written second"


def probe_storage(storage: Storage) -> None:
    """Write, read, list and delete a small file below `.probe/`; raises StorageError that says what the store got
    wrong."""
    path = f".probe/{secrets.token_hex(8)}"
    try:
        storage.create(path, FIRST)
        try:
            storage.create(path, SECOND)
        except StorageAlreadyExists:
            pass
        else:
            raise StorageError(
                f"{storage.url} ignores conditional create (If-None-Match): a second create of {path} was accepted. "
                "Two coordinators could both publish a checkpoint there; use a store that honours it"
            )
        _expect(storage, path, storage.get(path) == FIRST, "a refused create has changed the file")
        _expect(storage, path, storage.get_range(path, 8, 5) == FIRST[8:13], "a range read returned other bytes")
        _expect(storage, path, (path, len(FIRST)) in storage.list(".probe"), "a new file is missing in the listing")
        storage.delete(path)
        _expect(storage, path, not storage.exists(path), "a deleted file is still there")
    finally:
        with contextlib.suppress(StorageError):
            storage.delete(path)


def _expect(storage: Storage, path: str, condition: bool, what: str) -> None:
    if not condition:
        raise StorageError(f"{storage.url} cannot hold checkpoints: {what} ({path}); use another store")
