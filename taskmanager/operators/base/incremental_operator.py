"""Keyed operators whose state may be larger than memory, and whose snapshots may be incremental: all changes of their
state go by `slots_of`, `begin_batch` or `touch`.

Decides per snapshot: plain checkpoints are incremental where `execution.checkpointing.incremental` says so, full ones
begin a new chain, savepoints are none of it. It does not know what a part of a chain holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from snapline.dataflow.config import INCREMENTAL_CHECKPOINTS, ROCKSDB_DIRECTORY, ROCKSDB_MEMORY, STATE_BACKEND
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.operators.base.keyed_operator import KeyedOperator
from snapline.taskmanager.operators.base.operator_contract import KeyedSnapshotPart
from snapline.taskmanager.state.adopted_state import NOTHING_DUE
from snapline.taskmanager.state.incremental import IncrementalSnapshots
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from snapline.taskmanager.state.outside.spilling_backend import SpillingKeyedStateBackend

LATE_ROWS_METRIC = "late_rows"
"""The counter of rows that came too late for their windows or partners: dropped, or to the side output (Flink:
numLateRecordsDropped)."""


class IncrementalKeyedOperator(KeyedOperator):
    """Base of the operators whose state changes by slots."""

    def __init__(self, key_columns: Sequence[str]) -> None:
        super().__init__(key_columns)
        self._chain: IncrementalSnapshots | None = None
        self._snapshot_type = SnapshotType.CHECKPOINT

    def _create(self, key_schema: pa.Schema) -> KeyedStateBackend:
        backend = super()._create(key_schema)
        context = self.context
        backend.scope.now_ms = context.processing_time.now_ms
        if self.setting(INCREMENTAL_CHECKPOINTS):
            self._chain = backend.incremental_snapshots(f"{context.execution_attempt}-{context.operator_id}")
        return backend

    def make_backend(self, key_schema: pa.Schema) -> KeyedStateBackend:
        """The one that `state.backend.type` names."""
        if self.setting(STATE_BACKEND) != "rocksdb":
            return super().make_backend(key_schema)
        context = self.context
        space = context.open_segment_space(self.setting(ROCKSDB_DIRECTORY))
        return SpillingKeyedStateBackend(
            key_schema, context.key_group_range, context.max_parallelism, space, self.setting(ROCKSDB_MEMORY)
        )

    def due_outside_ms(self, state_name: str) -> int:
        """When the first key that is not in memory is due, by what this adopted state says; NOTHING_DUE: there is
        none."""
        return NOTHING_DUE if self.backend is None else self.backend.due_outside_ms(state_name)

    def count_late_rows(self, rows: int) -> None:
        """Count rows that come too late, wherever they go; with 0 rows, so that the figure is there before any is."""
        self.context.metrics.counter(LATE_ROWS_METRIC).inc(rows)

    def announce_snapshot(self, snapshot_type: SnapshotType) -> None:
        self._snapshot_type = snapshot_type

    def snapshot_keyed(self, checkpoint_id: CheckpointID) -> tuple[KeyedSnapshotPart, ...]:
        backend, chain = self.backend, self._chain
        if backend is None or chain is None or self._snapshot_type.is_savepoint:
            return super().snapshot_keyed(checkpoint_id)
        return chain.snapshot(checkpoint_id, full=self._snapshot_type is SnapshotType.FULL_CHECKPOINT)

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        super().notify_checkpoint_complete(checkpoint_id)
        if self._chain is not None:
            self._chain.completed(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID) -> None:
        super().notify_checkpoint_aborted(checkpoint_id)
        if self._chain is not None:
            self._chain.aborted(checkpoint_id)

    def close(self) -> None:
        super().close()
        self._chain = None
