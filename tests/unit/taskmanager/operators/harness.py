"""One operator without a task: what it emits is a list, time and snapshots are in the test's hands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from snapline.dataflow.elements import Watermark, WatermarkStatus
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from snapline.dataflow.snapshot.handles import ByteStreamStateHandle, OperatorStateMode
from snapline.taskmanager.operators.base.operator_contract import (
    OperatorContext,
    OperatorSnapshot,
    RestoredState,
    SharedKeyedSnapshotPart,
    StreamOperator,
)
from snapline.taskmanager.state.outside.segment_space import MemorySegmentSpace
from snapline.taskmanager.task.processing_time import TaskProcessingTime


class KeyedFile:
    """An encoded keyed part."""

    def __init__(self, data: bytes, key_group_range: KeyGroupRange) -> None:
        self.data, self.key_group_range, self.size = data, key_group_range, len(data)

    def read_range(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]


class Written:
    """A snapshot of one subtask, written."""

    def __init__(self, snapshot: OperatorSnapshot) -> None:
        self.keyed = []
        for part in snapshot.keyed:
            data = bytes(part.encode())
            if isinstance(part, SharedKeyedSnapshotPart):
                self.keyed += [KeyedFile(known.handle.data, known.key_group_range) for known in part.references]  # type: ignore[union-attr]
                part.stored(ByteStreamStateHandle(data))
            self.keyed.append(KeyedFile(data, part.key_group_range))
            part.release()
        self.lists = snapshot.operator_lists


def restored_state(written: Sequence[Written], checkpoint_id: int = 7) -> RestoredState:
    """What one new subtask gets of the snapshots of all old ones (it takes its own key groups itself)."""
    lists: dict[str, tuple[bytes, ...]] = {}
    for one in written:
        for state in one.lists:
            if state.mode is OperatorStateMode.BROADCAST and state.name in lists:
                continue
            lists[state.name] = (*lists.get(state.name, ()), *state.elements)
    return RestoredState(CheckpointID(checkpoint_id), tuple(file for one in written for file in one.keyed), lists)


BACKEND: dict[str, str] = {}
"""Settings of the state backend that the tests of a module run on; see the fixture `state_backend`."""


class Harness:
    """Drives one operator; is its Output."""

    def __init__(
        self,
        operator: StreamOperator,
        *,
        subtask: int = 0,
        parallelism: int = 1,
        configuration: dict[str, str] | None = None,
        attempt: int = 0,
        max_parallelism: int = 128,
    ) -> None:
        self.operator: Any = operator
        self.time = TaskProcessingTime()
        self.emitted: list[Any] = []
        """Batches, watermarks and statuses, in order."""
        self.side: dict[str, list[pa.RecordBatch]] = {}
        self.context = OperatorContext(
            job_id=JobID("job"),
            operator_id=OperatorID("op"),
            operator_uid="op",
            operator_name="op",
            task_name="op",
            subtask_index=subtask,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            attempt_number=attempt,
            execution_attempt=f"attempt-{attempt}",
            key_group_range=compute_key_group_range_for_operator_index(max_parallelism, parallelism, subtask),
            processing_time=self.time,
            configuration={**BACKEND, **(configuration or {"pipeline.auto-watermark-interval": "0 ms"})},
            wake_up=lambda: None,
            open_segment_space=lambda *_: MemorySegmentSpace(),
        )
        operator.setup(self.context, self)

    def start(self, restored: RestoredState | None = None) -> Harness:
        self.operator.initialize_state(restored or RestoredState())
        self.operator.open()
        return self

    # --- Output -----------------------------------------------------------------------------------------------------

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self.emitted.append(batch)

    def emit_side(self, tag: str, batch: pa.RecordBatch) -> None:
        self.side.setdefault(tag, []).append(batch)

    def emit_watermark(self, watermark: Watermark) -> None:
        self.emitted.append(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        self.emitted.append(status)

    # --- driving ----------------------------------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> Harness:
        assert not self.operator.has_pending_work
        self.operator.process_batch(batch)
        return self

    def watermark(self, ms: int, *, work: bool = True) -> Harness:
        self.operator.process_watermark(Watermark(ms))
        return self.work() if work else self

    def work(self) -> Harness:
        for _ in range(1_000_000):
            if not self.operator.has_pending_work:
                return self
            self.operator.continue_work()
        raise AssertionError("the work has no end")

    def advance(self, now_ms: int, *, rows_wait: bool = False) -> Harness:
        """Time passes: due timers fire, and then the task looks for rows."""
        self.time.advance(now_ms)
        while (token := self.time.take_due()) is not None:
            token.callback(token.at_ms)
        if not rows_wait:
            self.time.found_nothing()
        return self

    def snapshot(self, checkpoint_id: int = 1) -> Written:
        self.operator.prepare_snapshot_pre_barrier(CheckpointID(checkpoint_id))
        return Written(self.operator.snapshot_state(CheckpointID(checkpoint_id), 0))

    def checkpoint(self, checkpoint_id: int) -> Harness:
        """One that completes."""
        self.snapshot(checkpoint_id)
        self.operator.notify_checkpoint_complete(CheckpointID(checkpoint_id))
        return self

    def take(self) -> list[Any]:
        emitted, self.emitted = self.emitted, []
        return emitted

    def rows(self) -> list[dict[str, Any]]:
        """Rows emitted since the last call."""
        return [row for item in self.take() if isinstance(item, pa.RecordBatch) for row in item.to_pylist()]
