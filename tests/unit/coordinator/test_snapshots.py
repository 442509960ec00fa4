"""Snapshots are read as far as they should be, whatever lies at their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from snapline.coordinator.checkpoint.metadata import (
    MAGIC,
    CorruptMetadata,
    NotMetadata,
    TruncatedMetadata,
    build_metadata,
)
from snapline.coordinator.snapshots import read_metadata
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.snapshot.handles import CheckpointMetadata
from snapline.runtime.storage.local_storage import LocalStorage
from snapline.runtime.storage.storage_port import StorageError

METADATA = CheckpointMetadata(JobID("a" * 32), "job", CheckpointID(7), 1, SnapshotType.SAVEPOINT, (), ())


def test_a_file_of_four_gigabytes_is_not_read_whole(tmp_path: Path) -> None:
    """One with holes costs its maker nothing, and would cost the reader its memory."""
    file = tmp_path / "_metadata"
    file.write_bytes(build_metadata(METADATA, "sp"))
    os.truncate(file, 1 << 32)
    assert read_metadata(LocalStorage(str(tmp_path)), "_metadata", "sp") == METADATA

    file.write_bytes(b"")
    os.truncate(file, 1 << 32)
    with pytest.raises(NotMetadata):
        read_metadata(LocalStorage(str(tmp_path)), "_metadata", "sp")


@pytest.mark.parametrize("size", [0, len(MAGIC), 40, 80])
def test_a_file_that_was_cut_is_named(tmp_path: Path, size: int) -> None:
    """Within the header or within the body."""
    (tmp_path / "_metadata").write_bytes(build_metadata(METADATA, "sp")[:size])
    with pytest.raises((TruncatedMetadata, CorruptMetadata), match="sp/_metadata"):
        read_metadata(LocalStorage(str(tmp_path)), "_metadata", "sp")


def test_a_pipe_in_its_place_does_not_keep_the_reader(tmp_path: Path) -> None:
    """Whoever opens one for reading waits for a writer."""
    os.mkfifo(tmp_path / "_metadata")
    with pytest.raises(StorageError, match=r"cannot read .*_metadata: it is no regular file"):
        read_metadata(LocalStorage(str(tmp_path)), "_metadata", "sp")
