"""A state file that was changed after its snapshot is refused where it is restored, whatever its own checksums say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from snapline.coordinator.checkpoint.metadata import build_metadata
from snapline.coordinator.snapshots import adopt_snapshot, read_blob_range, read_snapshot
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.digest_sizes import CHUNK_BYTES
from snapline.dataflow.snapshot.digests import ChangedState, digests_of
from snapline.dataflow.snapshot.handles import (
    CheckpointMetadata,
    KeyedStateHandle,
    OperatorState,
    OperatorSubtaskState,
    SegmentStateHandle,
)
from snapline.dataflow.snapshot.state_format import (
    KEY_COLUMN,
    STATE_COLUMN,
    decode_keyed_state,
    encode_keyed_state,
    with_role,
)
from snapline.runtime.signing import Signer
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.taskmanager.snapshots.restore import SnapshotReader

SCHEMA = pa.schema(
    [with_role(pa.field("k", pa.int64()), KEY_COLUMN), with_role(pa.field("n", pa.int64()), STATE_COLUMN)]
)
GROUPS = KeyGroupRange(0, 3)
ROWS = 200_000


def keyed_state(numbers: np.ndarray) -> bytes:
    """A file of keyed state whose checksums are all right."""
    keys = np.arange(len(numbers))
    rows = pa.record_batch([pa.array(keys), pa.array(numbers)], schema=SCHEMA)
    ends = [len(numbers) * group // 4 for group in range(5)]
    return bytes(encode_keyed_state(SCHEMA, GROUPS, 4, ends, lambda first, end: rows.slice(first, end - first)))


def restored(directory: Path, handle: SegmentStateHandle, groups: KeyGroupRange) -> int:
    """The sum of the state of these key groups, as a task restores it."""
    blob = SnapshotReader(str(directory), StateStorages(open_storage)).open_state(handle)
    _, batches = decode_keyed_state(blob.read_range, groups)
    return sum(sum(batch.column("n").to_pylist()) for batch in batches)


def test_state_of_a_forger_with_the_right_checksums_is_refused_by_name(tmp_path: Path) -> None:
    """All of it, or only the key groups that a rescaled task reads; the line names the file. A handle without digests,
    as an older release wrote it, believes the forger."""
    ours, forged = keyed_state(np.full(ROWS, 1)), keyed_state(np.full(ROWS, 1_000))
    assert len(ours) == len(forged) > 2 * CHUNK_BYTES
    file = tmp_path / "chk-1" / "segment"
    file.parent.mkdir()
    file.write_bytes(ours)
    handle = SegmentStateHandle("chk-1/segment", 0, len(ours), digests=digests_of(ours))
    assert (ROWS, ROWS // 4) == (restored(tmp_path, handle, GROUPS), restored(tmp_path, handle, KeyGroupRange(3, 3)))

    file.write_bytes(forged)
    assert 1_000 * ROWS == restored(tmp_path, replace(handle, digests=b""), GROUPS)
    for groups in (GROUPS, KeyGroupRange(3, 3)):
        with pytest.raises(ChangedState, match="chk-1/segment was changed after the snapshot was taken: ") as error:
            restored(tmp_path, handle, groups)
        assert "\n" not in str(error.value)


def test_only_the_chunks_that_hold_what_is_read_are_looked_at(tmp_path: Path) -> None:
    """A rescale reads its part of a file: a byte that was changed in somebody else's part does not concern it."""
    ours = keyed_state(np.full(ROWS, 1))
    (tmp_path / "chk-1").mkdir()
    (tmp_path / "chk-1" / "segment").write_bytes(ours[:-1] + bytes([ours[-1] ^ 1]))
    handle = SegmentStateHandle("chk-1/segment", 0, len(ours), digests=digests_of(ours))

    assert ROWS // 4 == restored(tmp_path, handle, KeyGroupRange(0, 0))
    with pytest.raises(ChangedState):
        restored(tmp_path, handle, KeyGroupRange(3, 3))


def test_digests_are_in_the_metadata_and_adopting_adds_those_that_are_missing(tmp_path: Path) -> None:
    """A snapshot of an older release has none: who adopts it vouches for its files as they are."""
    data = keyed_state(np.full(ROWS, 1))
    (tmp_path / "segment").write_bytes(data)
    without = SegmentStateHandle(f"{tmp_path}/segment", 0, len(data))
    (tmp_path / "_metadata").write_bytes(build_metadata(_metadata(without), str(tmp_path)))
    storages, signer = StateStorages(open_storage), Signer((b"ours",))

    adopt_snapshot(storages, str(tmp_path), signer)
    (found,) = read_snapshot(storages, str(tmp_path), signer).handles()
    assert replace(without, digests=digests_of(data)) == found

    (tmp_path / "segment").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert data[:32] == read_blob_range(storages, found, 0, 32)
    for change in (
        lambda: adopt_snapshot(storages, str(tmp_path), signer),
        lambda: read_blob_range(storages, found, len(data) - 9, 9),
    ):
        with pytest.raises(ChangedState, match="/segment was changed"):
            change()


def _metadata(handle: SegmentStateHandle) -> CheckpointMetadata:
    state = OperatorSubtaskState(managed_keyed=(KeyedStateHandle(GROUPS, handle),))
    operator = OperatorState(OperatorID("b" * 32), "o", "o", 1, 4, {0: state})
    return CheckpointMetadata(JobID("a" * 32), "job", CheckpointID(7), 1, SnapshotType.SAVEPOINT, (operator,), ())
