"""Snapshots are read as far as they should be, whatever lies at their place."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from snapline.coordinator.snapshots import (
    NoSnapshot,
    adopt_snapshot,
    dispose_savepoint,
    read_metadata,
    read_snapshot,
    snapshot_location,
)
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


@pytest.mark.parametrize("sealed", [False, True])
def test_a_read_that_fails_once_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: bool) -> None:
    """What nobody had signed was believed then, and what was signed was said to be damaged."""
    data = build_metadata(METADATA, "sp")
    (tmp_path / "_metadata").write_bytes(OURS.seal("_metadata", data) if sealed else data)
    storage = LocalStorage(str(tmp_path))

    def fail(*_range: object) -> bytes:
        raise StorageError("it is away")

    monkeypatch.setattr(storage, "get_range", fail)
    with pytest.raises(StorageError, match="it is away"):
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


def naming(directory: Path, *paths: str, **changes: Any) -> str:
    """A snapshot in the directory whose keyed state lies in these files, and the directory's path."""
    subtasks = {
        number: OperatorSubtaskState(
            managed_keyed=(KeyedStateHandle(KeyGroupRange(0, 1), SegmentStateHandle(path, 0, 5)),)
        )
        for number, path in enumerate(paths)
    }
    named = (OperatorState(OperatorID("o"), "uid", "name", len(paths), 128, subtasks),)
    (directory / "_metadata").write_bytes(build_metadata(replace(METADATA, operators=named, **changes), str(directory)))
    return str(directory)


def test_a_savepoint_that_names_files_elsewhere_is_not_adopted(tmp_path: Path) -> None:
    """Whoever planted one had any file of the coordinator's user signed as the state of a job, which then reads it out
    to them: by its path, by one that climbs, by a link to it, or through a directory that is one."""
    storages, directory, elsewhere = StateStorages(open_storage), tmp_path / "sp", tmp_path / "sp-2"
    for each in (directory, elsewhere):
        each.mkdir()
    (directory / "segment-own").write_bytes(b"state")
    for name in ("segment-token", "segment-a\nb"):
        (elsewhere / name).write_bytes(b"token")
    (directory / "link").symlink_to(elsewhere)
    (directory / "segment-link").symlink_to(elsewhere / "segment-token")
    for path in (
        f"{elsewhere}/segment-token",
        f"{elsewhere.as_uri()}/segment-token",
        f"{directory}/../sp-2/segment-token",
        f"{directory.as_uri()}/%2E%2E/sp-2/segment-token",
        f"{directory.as_uri()}/.\t./sp-2/segment-token",
        f"{directory}/link/segment-token",
        f"{directory}/segment-link",
        f"{elsewhere}/segment-a\nb",
    ):
        location = naming(directory, f"{directory}/segment-own", path)
        unsigned = (directory / "_metadata").read_bytes()
        with pytest.raises(NoSnapshot, match=r"/sp names the file .*, which is not in its own directory: ") as refused:
            adopt_snapshot(storages, location, OURS)
        assert repr(path) in str(refused.value) or path.startswith(f"{directory}/..")
        assert "\n" not in str(refused.value)
        assert unsigned == (directory / "_metadata").read_bytes()

    adopted = adopt_snapshot(storages, naming(directory, f"{directory}/segment-own"), OURS)
    assert adopted == read_snapshot(storages, str(directory), OURS)


def test_a_checkpoint_is_adopted_with_what_it_shares(tmp_path: Path) -> None:
    """Its files may lie with the shared ones of its job, or of the job whose checkpoint it was started from, and the
    directory may be reached through a link; other files there are not state, however they are called."""
    storages, job, another = StateStorages(open_storage), tmp_path / "checkpoints" / ("a" * 32), "b" * 32
    written = (
        "chk-7/segment-x",
        "shared/segment-tm-3-0",
        f"../{another}/shared/segment-tm-1-4",
        f"../{another}/chk-1/segment-y",
    )
    foreign = (
        "shared/notes",
        "chk-6/other",
        "shared/segment-tm-3-link",
        f"../{another}/_metadata",
        "../home/shared/segment-tm-3-0",
    )
    for path in (*written, *foreign[:2], *foreign[3:]):
        (job / path).parent.mkdir(parents=True, exist_ok=True)
        (job / path).resolve().write_bytes(b"state")
    victim = tmp_path / "segment-victim"
    victim.write_bytes(b"token")
    (job / "shared" / "segment-tm-3-1").symlink_to(victim)
    (tmp_path / "mounted").symlink_to(tmp_path / "checkpoints")

    def paths(*names: str) -> list[str]:
        return [os.path.normpath(f"{tmp_path}/mounted/{job.name}/{name}") for name in names]

    seen = Path(paths("chk-7")[0])
    adopted = adopt_snapshot(storages, naming(seen, *paths(*written), snapshot_type=SnapshotType.CHECKPOINT), OURS)
    assert sorted(adopted.files) == sorted(paths(*written))
    uris = [Path(path).as_uri() for path in paths(*written)[2:]]
    adopt_snapshot(storages, naming(seen, *uris), OURS)

    for path in (*paths(*foreign, "shared/segment-tm-3-1"), str(victim)):
        with pytest.raises(NoSnapshot, match="which is not in its own directory"):
            adopt_snapshot(storages, naming(seen, *paths(written[0]), path), OURS)


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


@pytest.mark.parametrize("path", ["/", "//", "/_metadata", "s3://", "s3:///", ""])
def test_what_is_above_all_directories_is_no_snapshot(path: str) -> None:
    """The root was told to be no absolute path, and a URL without a bucket no URL."""
    with pytest.raises(
        NoSnapshot, match=r"(is no directory of a checkpoint or savepoint|an empty path): name a directory"
    ):
        snapshot_location(path)
    with pytest.raises(NoSnapshot, match="'a/b' is no absolute path and no URL"):
        snapshot_location("a/b")
