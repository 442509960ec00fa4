"""Writer of a sink whose subtasks commit together: writes, and at the barrier emits what it pre-committed.

Decides that committables leave before the barrier does, as rows that name job and sink, and at the end of the input at
once, since nothing can be emitted after it. Who commits them is `GlobalCommitterOperator`, behind it. Mirrors Flink's
SinkWriterOperator.
"""

from __future__ import annotations

import json

import pyarrow as pa

from snapline.dataflow.api.async_methods import refuse_async_methods
from snapline.dataflow.api.connector_answers import answer, answers
from snapline.dataflow.api.connector_api import Committable, SinkWriter
from snapline.dataflow.elements import Watermark, WatermarkStatus
from snapline.dataflow.graph.operator_specs import COMMITTABLES, SinkWriterSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot, RestoredState, StreamOperator
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend
from snapline.taskmanager.operators.sinks.sink_operator import (
    COMMITTABLES_STATE,
    WRITER_STATE,
    nobody_commits,
    require_own_commits,
)


class SinkWriterOperator(StreamOperator):
    """Runs the writer of one subtask."""

    def __init__(self, spec: SinkWriterSpec) -> None:
        self._sink = spec.sink
        self._writer: SinkWriter | None = None
        self._last_checkpoint_id = CheckpointID(0)
        self._has_finished = False

    def initialize_state(self, restored: RestoredState) -> None:
        require_own_commits(restored, self.context.operator_uid, COMMITTABLES_STATE)
        self._last_checkpoint_id = restored.checkpoint_id
        self._state = OperatorStateBackend(restored.operator_lists)
        self._of_subtasks = OperatorStateBackend(restored.operator_lists)

    def open(self) -> None:
        self._commit_of_subtasks()
        states = self._state.list_state(WRITER_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).get()
        writer = answer(self._sink.create_writer(self.context, states), SinkWriter, self._sink, "create_writer")
        self._writer = refuse_async_methods(writer)

    def _commit_of_subtasks(self) -> None:
        """When the snapshot was made, each subtask of the sink may have committed by itself. The committer behind this
        operator does not know what is left of that; it lies in a snapshot that is complete."""
        left = self._of_subtasks.list_state(COMMITTABLES_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).get()
        if not left:
            return
        committer = refuse_async_methods(self._sink.create_committer(self.context))
        if committer is None:
            raise nobody_commits(self.context.operator_uid)
        try:
            committer.commit(
                [Committable(each["data"]) for each in sorted(left, key=lambda each: each["checkpoint_id"])]
            )
        finally:
            committer.close()

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        check(self._writer, "there is no writer, although open was called").write(batch)

    def process_watermark(self, watermark: Watermark) -> None:
        """Do nothing, because watermarks end at a sink."""

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Do nothing, because watermark statuses end at a sink."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        self._last_checkpoint_id = max(self._last_checkpoint_id, checkpoint_id)
        if not self._has_finished:
            self._emit(checkpoint_id)

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        writer = check(self._writer, "there is no writer, although open was called")
        self._state.list_state(WRITER_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).update(
            answers(writer.snapshot_state(checkpoint_id), dict, writer, "snapshot_state")
        )
        return OperatorSnapshot(operator_lists=self._state.snapshot())

    def finish(self) -> None:
        self._emit(CheckpointID(self._last_checkpoint_id + 1))
        self._has_finished = True

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _emit(self, checkpoint_id: CheckpointID) -> None:
        writer = check(self._writer, "there is no writer, although open was called")
        committables = answers(writer.prepare_commit(checkpoint_id), Committable, writer, "prepare_commit")
        if committables:
            context, count = self.context, len(committables)
            columns = [
                pa.array([context.job_id] * count),
                pa.array([context.operator_uid] * count),
                pa.array([checkpoint_id] * count, pa.int64()),
                pa.array([json.dumps(committable.data) for committable in committables]),
            ]
            self.output.emit_batch(pa.RecordBatch.from_arrays(columns, schema=COMMITTABLES))
