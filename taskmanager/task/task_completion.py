"""How a task ends well: its data, then a checkpoint that holds its finished state, then the end of its partitions.

Decides which checkpoint a finished task waits for, and when it may end. With drain, and if the job takes checkpoints:
one that was taken after the operators were finished (FLIP-147). When the job stops with a savepoint: that savepoint.
Otherwise nothing. Mirrors `finalCheckpointMinId`, `syncSavepoint` and `finalCheckpointCompleted` of Flink's StreamTask.
"""

from __future__ import annotations

from enum import Enum

from snapline.dataflow.elements import CheckpointBarrier
from snapline.dataflow.ids import CheckpointID


class DataPhase(Enum):
    """Where a task is in its data. Phases follow each other in this order, none is left out but FINISHING."""

    PROCESSING = "processing"
    FINISHING = "finishing"
    """No more input; operators flush, one after the other. Only when the job drains."""
    ENDED = "ended"
    """EndOfData is out; checkpoints go on."""


class TaskCompletion:
    """The end of one task."""

    def __init__(self, *, waits_for_final_checkpoint: bool, had_finished: bool = False) -> None:
        """`had_finished`: in the checkpoint that the task was restored from, so that it only ends again."""
        self._waits_for_final_checkpoint = waits_for_final_checkpoint and not had_finished
        self._had_finished = had_finished
        self.phase = DataPhase.PROCESSING
        self._drain = True
        self._final_checkpoint_min_id: CheckpointID | None = None
        self._sync_savepoint: CheckpointID | None = None
        self._final_checkpoint_completed = False

    def end_of_input(self, *, drain: bool) -> None:
        """No more data comes in."""
        self._drain = drain
        self.phase = DataPhase.FINISHING if drain else DataPhase.ENDED

    def end_of_data_sent(self) -> None:
        """The operators are finished, and the outputs know."""
        self.phase = DataPhase.ENDED

    @property
    def operators_finished(self) -> bool:
        """Whether a snapshot taken now holds finished operators. Those of a task that had finished before its restore
        are so from the first moment on, as in Flink (FINISHED_ON_RESTORE)."""
        return self._had_finished or (self.phase is DataPhase.ENDED and self._drain)

    @property
    def stands_still(self) -> bool:
        """Whether the operators do nothing any more: the job stops, and what they would emit comes when it goes on from
        its savepoint."""
        return self.phase is DataPhase.ENDED and not self._drain

    @property
    def reports_end_of_data(self) -> bool:
        """Whether the JobMaster is to know that this task waits for a checkpoint."""
        return self._drain and self._waits_for_final_checkpoint

    def checkpoint_taken(self, barrier: CheckpointBarrier) -> None:
        """The synchronous part of a checkpoint begins."""
        if barrier.options.snapshot_type.is_synchronous:
            self._sync_savepoint = barrier.checkpoint_id
        elif self.operators_finished and self._final_checkpoint_min_id is None:
            self._final_checkpoint_min_id = barrier.checkpoint_id

    def checkpoint_completed(self, checkpoint_id: CheckpointID) -> None:
        """Note that the JobMaster has confirmed the checkpoint. A later one does not stand for the savepoint that the
        job stops with, which may still fail."""
        if self._sync_savepoint is not None:
            self._final_checkpoint_completed |= checkpoint_id == self._sync_savepoint
        elif self._final_checkpoint_min_id is not None and checkpoint_id >= self._final_checkpoint_min_id:
            self._final_checkpoint_completed = True

    def is_failed_savepoint(self, checkpoint_id: CheckpointID) -> bool:
        """Whether the abort of this checkpoint is that of the savepoint that the job was to stop with."""
        return checkpoint_id == self._sync_savepoint and not self._final_checkpoint_completed

    @property
    def may_end(self) -> bool:
        """Whether nothing holds the task back, once its inputs have ended."""
        if self.phase is not DataPhase.ENDED:
            return False
        awaits = not self._drain or self._waits_for_final_checkpoint or self._sync_savepoint is not None
        return self._final_checkpoint_completed or not awaits
