"""Snapshots on a real S3 server: written by one TaskManager, read by another, abandoned without a trace."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from snapline.dataflow.ids import CheckpointID, OperatorID, ResourceID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import StorageError
from snapline.taskmanager.operators.base.operator_contract import OperatorListSnapshot, OperatorSnapshot
from snapline.taskmanager.snapshots.restore import SnapshotReader
from snapline.taskmanager.snapshots.uploader import SnapshotUploader
from tests.services.s3 import BUCKET, S3Server

pytestmark = pytest.mark.s3

OPERATOR = OperatorID("op")
KEY_GROUPS = KeyGroupRange(0, 127)


@dataclass
class Part:
    data: bytes
    key_group_range: KeyGroupRange = KEY_GROUPS

    def encode(self) -> bytes:
        return self.data

    def release(self) -> None:
        pass


@pytest.fixture
def storages(s3_server: S3Server) -> StateStorages:
    return StateStorages(lambda url: open_storage(url, s3_server.configuration))


@pytest.fixture
def uploader(storages: StateStorages) -> Iterator[SnapshotUploader]:
    made = SnapshotUploader(ResourceID("tm-1"), storages)
    yield made
    made.close()


@pytest.mark.parametrize("size", [100_000, 20 << 20])
def test_state_comes_back_by_ranges(uploader: SnapshotUploader, s3_server: S3Server, size: int) -> None:
    """Also when it is so large that it goes up in several parts; keyed state and list elements share the file."""
    base = f"s3://{BUCKET}/{secrets.token_hex(4)}/job"
    keyed = secrets.token_bytes(1000) * (size // 1000)
    elements = tuple(secrets.token_bytes(15_000) for _ in range(2))
    answers: queue.Queue[Any] = queue.Queue()
    snapshot = OperatorSnapshot((Part(keyed),), (OperatorListSnapshot("list", OperatorStateMode.UNION, elements),))

    uploader.for_task(base).start(CheckpointID(3), "chk-3", [(OPERATOR, snapshot)], None, answers.put)
    state = answers.get(timeout=60).operators[OPERATOR]

    assert len(open_storage(base, s3_server.configuration).list("chk-3")) == 1
    reader = SnapshotReader(base, StateStorages(lambda url: open_storage(url, s3_server.configuration)))
    blob = reader.open_state(state.managed_keyed[0].handle)
    assert blob.size == len(keyed) and blob.read_range(len(keyed) - 5000, 5000) == keyed[-5000:]
    lists = reader.open_state(state.managed_operator[0].handle)
    assert tuple(lists.read_range(o, s) for o, s in state.managed_operator[0].entries[0].offsets) == elements
    open_storage(base, s3_server.configuration).delete_prefix("chk-3")
    with pytest.raises(StorageError, match="there is no object at"):
        reader.open_state(state.managed_operator[0].handle).read_range(0, 1)


def test_a_bucket_that_is_gone_fails_the_snapshot(uploader: SnapshotUploader) -> None:
    """With the storage's own words."""
    answers: queue.Queue[Any] = queue.Queue()
    snapshot = OperatorSnapshot((Part(b"x" * 100_000),))

    uploader.for_task("s3://no-such-bucket/job").start(
        CheckpointID(1), "chk-1", [(OPERATOR, snapshot)], None, answers.put
    )

    result = answers.get(timeout=60)
    assert isinstance(result, StorageError) and "there is no bucket 'no-such-bucket'" in str(result)
