"""A sink that is a user's function: each batch, or each row, is handed to `invoke`.

Decides nothing about transactions: a function that keeps them is a CheckpointedFunction and a CheckpointListener, and
`FunctionOperator` calls it as such. Without a final checkpoint nobody notifies after the end of the input; then this
operator takes one last snapshot of the function for itself, and tells it at once that it is complete. Mirrors Flink's
StreamSink.
"""

from __future__ import annotations

import pyarrow as pa

from snapline.dataflow.api.two_phase_commit import STATE_NAME, TwoPhaseCommitSinkFunction
from snapline.dataflow.elements import Watermark, WatermarkStatus
from snapline.dataflow.graph.operator_specs import SinkFunctionSpec
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.operators.base.failure import failed_read
from snapline.taskmanager.operators.base.function_operator import FunctionOperator, SnapshotContext
from snapline.taskmanager.operators.base.operator_contract import RestoredState
from snapline.taskmanager.operators.base.rows import rows_of
from snapline.taskmanager.operators.sinks.sink_operator import require_own_commits, waits_for_final_checkpoint


class SinkFunctionOperator(FunctionOperator):
    """Calls a SinkFunction's `invoke` for each row."""

    def __init__(self, spec: SinkFunctionSpec) -> None:
        super().__init__(spec.function)
        self._invoke = spec.function.invoke
        self._row_wise = spec.row_wise
        self._last_checkpoint_id = CheckpointID(0)

    def initialize_state(self, restored: RestoredState) -> None:
        own = STATE_NAME if isinstance(self.function, TwoPhaseCommitSinkFunction) else ""
        if own not in (restored.operator_lists or {}):  # else it took the place before this snapshot
            require_own_commits(restored, self.context.operator_uid, own)
        self._last_checkpoint_id = restored.checkpoint_id
        super().initialize_state(restored)

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        invoke = self._invoke
        if not self._row_wise:
            invoke(batch)
            return
        rows = rows_of(batch)
        iterator = iter(rows)
        try:
            for row in iterator:
                invoke(row)
        except Exception as error:
            raise failed_read(rows, iterator, error) from error

    def process_watermark(self, watermark: Watermark) -> None:
        """Do nothing, because watermarks end at a sink."""

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Do nothing, because watermark statuses end at a sink."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        self._last_checkpoint_id = max(self._last_checkpoint_id, checkpoint_id)

    def finish(self) -> None:
        super().finish()
        if not waits_for_final_checkpoint(self.context.configuration):
            last = CheckpointID(self._last_checkpoint_id + 1)
            if self._is_checkpointed:
                self.function.snapshot_state(SnapshotContext(last, self.context.processing_time.now_ms()))
            self.notify_checkpoint_complete(last)
