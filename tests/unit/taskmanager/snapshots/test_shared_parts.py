"""Parts that several checkpoints share: where they lie, how their handles come together, what is left when one is given
up."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from snapline.dataflow.ids import CheckpointID, OperatorID, ResourceID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    ByteStreamStateHandle,
    KeyedStateHandle,
    OperatorStateMode,
    SegmentStateHandle,
    StreamStateHandle,
    TaskStateSnapshot,
)
from snapline.runtime.storage.memory_storage import MemoryStorage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import StorageError
from snapline.taskmanager.operators.base.operator_contract import OperatorListSnapshot, OperatorSnapshot
from snapline.taskmanager.snapshots.uploader import SnapshotUploader

OPERATOR = OperatorID("op")
RANGE = KeyGroupRange(0, 3)
EARLIER = KeyedStateHandle(RANGE, SegmentStateHandle("shared/earlier", 0, 10), "base")
SECONDS_MAX = 20


@dataclass
class SharedPart:
    """A delta."""

    data: bytes = b"d" * 50_000
    shared_key: str = "delta"
    references: tuple[KeyedStateHandle, ...] = (EARLIER,)
    key_group_range: KeyGroupRange = RANGE
    kept: list[KeyedStateHandle] = field(default_factory=list)
    error: Exception | None = None

    def encode(self) -> bytes:
        if self.error is not None:
            raise self.error
        return self.data

    def release(self) -> None: ...

    def stored(self, handle: StreamStateHandle) -> KeyedStateHandle:
        self.kept.append(KeyedStateHandle(RANGE, handle, self.shared_key))
        return self.kept[-1]


class Gated(MemoryStorage):
    """Memory that waits before it writes below this directory, and says what it has deleted."""

    def __init__(self, slow: str) -> None:
        super().__init__("gated")
        self.slow = slow
        self.gate = threading.Event()
        self.waiting = threading.Event()
        """A write has come to the gate."""
        self.written: queue.Queue[str] = queue.Queue()
        self.deleted: queue.Queue[str] = queue.Queue()

    def put_parts(self, path: str, parts: Any) -> None:
        if path.startswith(self.slow):
            self.waiting.set()
            assert self.gate.wait(SECONDS_MAX)
        super().put_parts(path, parts)
        self.written.put(path)

    def delete(self, path: str) -> None:
        super().delete(path)
        self.deleted.put(path)


def snapshot(part: Any) -> tuple[OperatorID, OperatorSnapshot]:
    lists = (OperatorListSnapshot("list", OperatorStateMode.UNION, (b"e" * 50_000,)),)
    return OPERATOR, OperatorSnapshot((part,), lists)


def start(storage: MemoryStorage, part: Any, owner: str = "tm") -> tuple[SnapshotUploader, Any, queue.Queue[Any]]:
    uploader = SnapshotUploader(ResourceID(owner), StateStorages(lambda _: storage))
    sink = uploader.for_task("memory://job")
    answers: queue.Queue[Any] = queue.Queue()
    sink.start(CheckpointID(4), "chk-4", [snapshot(part)], None, answers.put)
    return uploader, sink, answers


def test_shared_parts_lie_in_shared_and_come_after_what_they_build_on() -> None:
    """The rest of the snapshot lies in the directory of the checkpoint."""
    part = SharedPart()
    uploader, _, answers = start(MemoryStorage("job"), part)
    answer = answers.get(timeout=SECONDS_MAX)
    uploader.close()

    assert isinstance(answer, TaskStateSnapshot)
    state = answer.operators[OPERATOR]
    assert (EARLIER, part.kept[0]) == state.managed_keyed
    new = state.managed_keyed[1].handle
    own = state.managed_operator[0].handle
    assert isinstance(new, SegmentStateHandle)
    assert isinstance(own, SegmentStateHandle)
    assert ("shared", "chk-4") == (new.path.split("/")[0], own.path.split("/")[0])


def test_a_small_delta_travels_with_the_acknowledgement() -> None:
    """Below the threshold there is no file."""
    part = SharedPart(data=b"d")
    uploader, _, answers = start(MemoryStorage("job"), part)
    state = answers.get(timeout=SECONDS_MAX).operators[OPERATOR]
    uploader.close()

    assert KeyedStateHandle(RANGE, ByteStreamStateHandle(b"d"), "delta") == state.managed_keyed[1]


def test_one_answer_when_half_of_it_fails() -> None:
    """The error, once."""
    uploader, _, answers = start(MemoryStorage("job"), SharedPart(error=StorageError("full")))
    answer = answers.get(timeout=SECONDS_MAX)
    uploader.close()

    assert isinstance(answer, StorageError)
    assert answers.empty()


@pytest.mark.parametrize("slow", ["chk-4", "shared"])
def test_what_was_written_for_a_snapshot_that_is_given_up_is_deleted(slow: str) -> None:
    """Whichever half is written first; what it builds on stays."""
    storage = Gated(slow)
    uploader, sink, answers = start(storage, SharedPart())
    storage.written.get(timeout=SECONDS_MAX)
    assert storage.waiting.wait(SECONDS_MAX)
    sink.cancel(CheckpointID(4))
    storage.gate.set()
    gone = {storage.deleted.get(timeout=SECONDS_MAX) for _ in range(2)}
    uploader.close()

    assert {path.split("/")[0] for path in gone} == {"chk-4", "shared"}
    assert any(path.startswith("shared/segment-tm-4-") for path in gone)
    assert "shared/earlier" not in gone
    assert answers.empty()


def test_a_number_in_the_name_of_the_task_manager_is_not_that_of_a_checkpoint() -> None:
    """What checkpoint 4 builds on stays, although its file's name holds a 4: it belongs to checkpoint 3 of tm-4."""
    builds_on = KeyedStateHandle(RANGE, SegmentStateHandle("shared/segment-tm-4-3-7", 0, 10), "base")
    storage = Gated("chk-4")
    uploader, sink, _ = start(storage, SharedPart(references=(builds_on,)), owner="tm-4")
    storage.written.get(timeout=SECONDS_MAX)
    assert storage.waiting.wait(SECONDS_MAX)
    sink.cancel(CheckpointID(4))
    storage.gate.set()
    gone = {storage.deleted.get(timeout=SECONDS_MAX) for _ in range(2)}
    uploader.close()

    assert storage.deleted.empty()
    assert "shared/segment-tm-4-3-7" not in gone
