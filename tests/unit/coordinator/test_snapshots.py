"""Snapshots are read as far as they should be, whatever lies at their place."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from snapline.cli import cli
from snapline.coordinator.checkpoint.metadata import (
    MAGIC,
    CorruptMetadata,
    NotMetadata,
    TruncatedMetadata,
    build_metadata,
)
from snapline.coordinator.snapshots import dispose_savepoint, read_metadata, read_snapshot
from snapline.dataflow.config import Configuration
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    CheckpointMetadata,
    KeyedStateHandle,
    OperatorState,
    OperatorSubtaskState,
    SegmentStateHandle,
)
from snapline.runtime.signing import NotSigned, Signer
from snapline.runtime.storage.local_storage import LocalStorage
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
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


OURS = Signer((b"ours",))


def test_only_what_this_cluster_has_signed_is_decoded(tmp_path: Path) -> None:
    """A snapshot that was changed and its checksum made right is refused, and so is one without a seal, one of
    another cluster, and one whose seal is of other bytes; the line says how to adopt it. Without keys everything is
    read as before, the seal not looked at."""
    storage = LocalStorage(str(tmp_path))
    data = build_metadata(METADATA, "sp")
    emptied = build_metadata(replace(METADATA, job_name="another"), "sp")
    sealed = OURS.seal("_metadata", data)
    storage.put("_metadata", sealed)
    assert read_metadata(storage, "_metadata", "sp", OURS) == METADATA == read_metadata(storage, "_metadata", "sp")

    for forged in (
        data,
        emptied,
        emptied + sealed[len(data) :],
        Signer((b"theirs",)).seal("_metadata", data),
        sealed[:-1],
    ):
        storage.put("_metadata", forged)
        with pytest.raises(NotSigned, match=r"sp/_metadata is .*`snapline savepoint adopt sp` signs one"):
            read_metadata(storage, "_metadata", "sp", OURS)


def test_a_snapshot_is_adopted_by_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By who has the secret of the storage; after that it is restored like the cluster's own."""
    (tmp_path / "_metadata").write_bytes(build_metadata(METADATA, str(tmp_path)))
    storages = StateStorages(open_storage)
    monkeypatch.setenv("SNAPLINE_CONF_security__storage__secrets", "s")
    signer = Signer.of_storage(Configuration({"security.storage.secrets": "s"}))
    with pytest.raises(NotSigned):
        read_snapshot(storages, str(tmp_path), signer)

    assert 0 == CliRunner().invoke(cli, ["savepoint", "adopt", str(tmp_path)]).exit_code
    assert METADATA.checkpoint_id == read_snapshot(storages, str(tmp_path), signer).metadata.checkpoint_id


def test_disposing_deletes_what_lies_in_the_directory_alone(tmp_path: Path) -> None:
    """One that names files behind a link was obeyed; one that climbs lost its metadata before it was refused."""
    directory, elsewhere = tmp_path / "sp", tmp_path / "elsewhere"
    for each in (directory, elsewhere):
        each.mkdir()
        (each / "file").write_bytes(b"state")
    (directory / "link").symlink_to(elsewhere)
    (directory / "to-file").symlink_to(elsewhere / "file")
    paths = ("file", "link/file", "to-file", "link/../../elsewhere/file", "./file", "_metadata")
    subtasks = {
        number: OperatorSubtaskState(
            managed_keyed=(KeyedStateHandle(KeyGroupRange(0, 1), SegmentStateHandle(f"{directory}/{path}", 0, 5)),)
        )
        for number, path in enumerate(paths)
    }
    named = (OperatorState(OperatorID("o"), "uid", "name", len(paths), 128, subtasks),)
    metadata = replace(METADATA, operators=named)
    (directory / "_metadata").write_bytes(build_metadata(metadata, str(directory)))

    disposed = dispose_savepoint(StateStorages(open_storage), str(directory))

    assert (disposed.files, disposed.kept) == (3, ())
    assert b"state" == (elsewhere / "file").read_bytes()
    assert not directory.exists()
