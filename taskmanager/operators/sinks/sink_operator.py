"""Tail of most jobs: writes, pre-commits at the barrier, commits when the checkpoint is complete.

Decides when committables are collected (before the barrier leaves, and at the end of the input when no final checkpoint
follows), that they lie in the snapshot under their checkpoint's id until they are committed, that the completion of
checkpoint n commits everything pre-committed at or before n, and that a restored operator commits again what the
snapshot holds before it writes anything. Without checkpoints, a writer that has no second phase writes a second after
rows came what it holds of them. It does not know what a committable is. Mirrors Flink's SinkWriterOperator and
CommitterOperator in one.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from snapline.dataflow.api.async_methods import refuse_async_methods
from snapline.dataflow.api.connector_answers import answer, answers
from snapline.dataflow.api.connector_api import Committable, Committer, SinkWriter
from snapline.dataflow.api.two_phase_commit import STATE_NAME
from snapline.dataflow.config import CHECKPOINTING_AFTER_TASKS_FINISH, CHECKPOINTING_INTERVAL
from snapline.dataflow.elements import Watermark, WatermarkStatus
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import SinkSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.earliest_timer import EarliestTimer
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot, RestoredState, StreamOperator
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend

COMMITTABLES_STATE = "sink-committables"
WRITER_STATE = "sink-writer-state"
FLUSH_MS = 1_000
_LISTS = {COMMITTABLES_STATE, STATE_NAME}
"""Where sinks and functions keep what they have pre-committed. A committable to sweep tells a committer to clean up."""


def has_checkpoints(configuration: Mapping[str, str]) -> bool:
    """Whether this job has periodic checkpoints."""
    interval_ms = CHECKPOINTING_INTERVAL.read(
        configuration.get(CHECKPOINTING_INTERVAL.key, CHECKPOINTING_INTERVAL.default)
    )
    return interval_ms > 0


def waits_for_final_checkpoint(configuration: Mapping[str, str]) -> bool:
    """Whether tasks of this job end with a checkpoint that holds their finished state (FLIP-147)."""
    after_finish = CHECKPOINTING_AFTER_TASKS_FINISH
    return has_checkpoints(configuration) and after_finish.read(
        configuration.get(after_finish.key, after_finish.default)
    )


def nobody_commits(operator_uid: str) -> StateError:
    """Say that a snapshot holds what a sink has pre-committed, and that nothing in the job would make it visible."""
    return StateError(
        f"sink {operator_uid!r}: the snapshot holds rows that it has pre-committed, and it does not commit them any more, so that they may be "
        "lost: go on with the sink and the guarantee that it had, or end them with `snapline transactions commit` and give the sink another uid"
    )


def require_own_commits(restored: RestoredState, operator_uid: str, own: str) -> None:
    """Raise StateError where a snapshot holds what a sink of another kind has pre-committed, in another list than the
    sink's own one."""
    lists = OperatorStateBackend(restored.operator_lists)
    foreign = {name: lists.list_state(name, OperatorStateMode.SPLIT_DISTRIBUTE).get() for name in _LISTS - {own}}
    if any("sweep" not in each["data"] for each in foreign.get(COMMITTABLES_STATE, ())) or any(
        each["pending"] for each in foreign.get(STATE_NAME, ())
    ):
        raise nobody_commits(operator_uid)


class SinkOperator(StreamOperator):
    """Writer and committer of one subtask."""

    def __init__(self, spec: SinkSpec) -> None:
        self._sink = spec.sink
        self._writer: SinkWriter | None = None
        self._committer: Committer | None = None
        self._pending: dict[CheckpointID, list[Committable]] = {}
        self._last_checkpoint_id = CheckpointID(0)
        self._flush = EarliestTimer(self._flush_writer)
        self._has_barriers = True

    def initialize_state(self, restored: RestoredState) -> None:
        require_own_commits(restored, self.context.operator_uid, COMMITTABLES_STATE)
        self._restored = restored
        self._last_checkpoint_id = restored.checkpoint_id
        self._state = OperatorStateBackend(restored.operator_lists)
        for element in self._state.list_state(COMMITTABLES_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).get():
            checkpoint_id = CheckpointID(element["checkpoint_id"])
            self._pending.setdefault(checkpoint_id, []).append(Committable(element["data"]))

    def open(self) -> None:
        context = self.context
        self._committer = refuse_async_methods(self._sink.create_committer(context))
        if self._committer is None and self._pending:
            raise nobody_commits(context.operator_uid)
        if self._committer is not None:
            # All of them lie in a snapshot that is complete, or nobody could have restored it.
            recovered = self._take_pending(None)
            goes_on = self._restored.is_restored or context.attempt_number > 0
            if goes_on:
                self._committer.restored_from(self._restored.checkpoint_id)
            if recovered:
                self._committer.commit(recovered)
            if goes_on:
                self._committer.clean_up(recovered)
        self._pending.clear()
        states = self._state.list_state(WRITER_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).get()
        writer = answer(self._sink.create_writer(context, states), SinkWriter, self._sink, "create_writer")
        self._writer = refuse_async_methods(writer)
        waits = writer.gathers_rows and not self._sink.two_phase
        self._has_barriers = not waits or has_checkpoints(context.configuration)

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        writer = check(self._writer, "there is no writer, although open was called")
        writer.write(batch)
        if not self._has_barriers:
            time = self.context.processing_time
            self._flush.arm(time, time.now_ms() + FLUSH_MS)

    def _flush_writer(self, _at_ms: int) -> None:
        """Rows that the writer gathers would wait for a barrier that never comes."""
        if self._writer is not None:
            self._prepare_commit(CheckpointID(self._last_checkpoint_id + 1))

    def process_watermark(self, watermark: Watermark) -> None:
        """Do nothing, because watermarks end at a sink."""

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Do nothing, because watermark statuses end at a sink."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        self._last_checkpoint_id = max(self._last_checkpoint_id, checkpoint_id)
        self._prepare_commit(checkpoint_id)

    def _prepare_commit(self, checkpoint_id: CheckpointID) -> None:
        writer = check(self._writer, "there is no writer, although open was called")
        committables = answers(writer.prepare_commit(checkpoint_id), Committable, writer, "prepare_commit")
        if committables:
            answer(self._committer, Committer, self._sink, "create_committer")
            self._pending.setdefault(checkpoint_id, []).extend(committables)

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        writer = check(self._writer, "there is no writer, although open was called")
        self._state.list_state(COMMITTABLES_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).update(
            [
                {"checkpoint_id": pending_id, "data": committable.data}
                for pending_id, committables in self._pending.items()
                for committable in committables
            ]
        )
        self._state.list_state(WRITER_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).update(
            answers(writer.snapshot_state(checkpoint_id), dict, writer, "snapshot_state")
        )
        return OperatorSnapshot(operator_lists=self._state.snapshot())

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        if self._committer is not None:
            due = self._take_pending(checkpoint_id)
            if due:
                self._committer.commit(due)

    def _take_pending(self, up_to: CheckpointID | None) -> list[Committable]:
        """What was pre-committed at or before this checkpoint (None: all), oldest first."""
        due = sorted(pending for pending in self._pending if up_to is None or pending <= up_to)
        return [committable for pending in due for committable in self._pending.pop(pending)]

    def finish(self) -> None:
        """Without a final checkpoint nobody will notify: what was written becomes visible now."""
        if not waits_for_final_checkpoint(self.context.configuration):
            self._prepare_commit(CheckpointID(self._last_checkpoint_id + 1))
            committables = self._take_pending(None)
            if committables and self._committer is not None:
                self._committer.commit(committables)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        committer, self._committer = self._committer, None
        try:
            if writer is not None:
                writer.close()
        finally:
            if committer is not None:
                committer.close()
