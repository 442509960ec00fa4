"""A KeyedProcessFunction whose checkpoints are incremental, and whose state expires."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from snapline.dataflow.api.function_contexts import ProcessContext, Row, RuntimeContext
from snapline.dataflow.api.functions import KeyedProcessFunction
from snapline.dataflow.api.state import ValueStateDescriptor
from snapline.dataflow.api.state_ttl import StateTtlConfig
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.graph.operator_specs import KeyedProcessSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import ByteStreamStateHandle
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot, SharedKeyedSnapshotPart
from snapline.taskmanager.operators.process.keyed_process import KeyedProcessOperator
from tests.unit.taskmanager.operators.harness import Harness, KeyedFile, Written, restored_state

pytestmark = pytest.mark.usefixtures("state_backend")

INCREMENTAL = {"execution.checkpointing.incremental": "true", "pipeline.auto-watermark-interval": "0 ms"}


class Count(KeyedProcessFunction):
    """Rows per key in the last second."""

    def open(self, context: RuntimeContext) -> None:
        ttl = StateTtlConfig(dt.timedelta(seconds=1))
        self.seen = context.get_state(ValueStateDescriptor("seen", pa.int64(), ttl=ttl))

    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Row]:
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        return [{"key": row["key"], "seen": seen}]


def harness(configuration: dict[str, str]) -> Harness:
    return Harness(KeyedProcessOperator(KeyedProcessSpec(("key",), Count())), configuration=configuration)


def rows(*keys: int) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(keys, pa.int64())})


def snapshot(subject: Harness, checkpoint_id: int, snapshot_type: SnapshotType) -> OperatorSnapshot:
    subject.operator.announce_snapshot(snapshot_type)
    taken: OperatorSnapshot = subject.operator.snapshot_state(CheckpointID(checkpoint_id), 0)
    return taken


def stored(part: Any) -> list[KeyedFile]:
    """All files of a shared part, this one written."""
    assert isinstance(part, SharedKeyedSnapshotPart)
    handles = [*part.references, part.stored(ByteStreamStateHandle(bytes(part.encode())))]
    return [KeyedFile(one.handle.data, one.key_group_range) for one in handles]  # type: ignore[union-attr]


def test_a_checkpoint_builds_on_the_one_that_completed_and_a_savepoint_on_none() -> None:
    """Restoring the chain goes on where it was."""
    subject = harness(INCREMENTAL).start()
    subject.process(rows(1, 2, 3))
    assert 1 == len(stored(snapshot(subject, 1, SnapshotType.CHECKPOINT).keyed[0]))
    subject.operator.notify_checkpoint_complete(CheckpointID(1))
    subject.process(rows(2, 4))

    savepoint = snapshot(subject, 2, SnapshotType.SAVEPOINT)
    assert not isinstance(savepoint.keyed[0], SharedKeyedSnapshotPart)
    savepoint.keyed[0].release()

    taken = snapshot(subject, 3, SnapshotType.CHECKPOINT)
    files = stored(taken.keyed[0])
    assert 2 == len(files)
    written = Written(OperatorSnapshot((), taken.operator_lists))
    written.keyed = files
    again = harness(INCREMENTAL).start(restored_state([written]))
    again.process(rows(1, 2, 3, 4, 5))
    assert [2, 3, 2, 2, 1] == [row["seen"] for row in again.rows()]


def test_without_the_setting_nothing_is_shared() -> None:
    """The default."""
    subject = harness({"pipeline.auto-watermark-interval": "0 ms"}).start()
    subject.process(rows(1))
    assert not isinstance(snapshot(subject, 1, SnapshotType.CHECKPOINT).keyed[0], SharedKeyedSnapshotPart)


def test_state_expires_by_the_clock_of_the_task() -> None:
    """A key that comes back too late begins anew."""
    subject = harness(INCREMENTAL).start()
    seen = []
    for now in (0, 500, 1400, 2500):
        subject.advance(now)
        subject.process(rows(1))
        seen += [row["seen"] for row in subject.rows()]
    assert [1, 2, 3, 1] == seen
