"""The one committer of a sink whose subtasks commit together.

Decides what one transaction is: everything that came before the barrier of a checkpoint lies in the snapshot under its
id, and the completion of checkpoint n commits all of it that is not committed yet, as one transaction under the
greatest id among it. A restored operator asks the outside system how far it is, drops what lies at or below, and
commits the rest before anything new: so each committable becomes visible once, in the order of checkpoints. It does not
know what a committable is, nor how many writers there are: the barrier is aligned on the edge before it, so all of them
have come when it does. Where barriers are only counted, rows of a later checkpoint may have come as well: they wait for
theirs. Mirrors Flink's CommitterOperator behind a SupportsPreCommitTopology with one subtask.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import pyarrow as pa

from snapline.dataflow.api.async_methods import refuse_async_methods
from snapline.dataflow.api.connector_api import Committable, GlobalCommittable, GlobalCommitter
from snapline.dataflow.elements import Watermark, WatermarkStatus
from snapline.dataflow.graph.operator_specs import GlobalCommitterSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot, RestoredState, StreamOperator
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend
from snapline.taskmanager.operators.sinks.sink_operator import COMMITTABLES_STATE, waits_for_final_checkpoint


class PreCommitted(NamedTuple):
    """A committable and whose it is."""

    job_id: str
    sink_uid: str
    checkpoint_id: CheckpointID
    committable: Committable


class GlobalCommitterOperator(StreamOperator):
    """Keeps what is pre-committed and commits it; of parallelism 1."""

    def __init__(self, spec: GlobalCommitterSpec) -> None:
        self._sink = spec.sink
        self._committer: GlobalCommitter | None = None
        self._arrived: list[PreCommitted] = []
        """What the snapshot of a checkpoint does not hold yet."""
        self._pending: list[PreCommitted] = []
        self._last_checkpoint_id = CheckpointID(0)
        self._cleans_up = False

    def initialize_state(self, restored: RestoredState) -> None:
        self._last_checkpoint_id = restored.checkpoint_id
        self._cleans_up = restored.is_restored or self.context.attempt_number > 0
        self._state = OperatorStateBackend(restored.operator_lists)
        self._pending = [
            PreCommitted(
                each["job_id"], each["sink_uid"], CheckpointID(each["checkpoint_id"]), Committable(each["data"])
            )
            for each in self._state.list_state(COMMITTABLES_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).get()
        ]

    def open(self) -> None:
        committer = self._committer = refuse_async_methods(self._sink.create_global_committer(self.context))
        committed = {
            (job_id, sink_uid): committer.last_committed(job_id, sink_uid)
            for job_id, sink_uid in dict.fromkeys((each.job_id, each.sink_uid) for each in self._pending)
        }
        self._pending = [
            each for each in self._pending if each.checkpoint_id > (committed[each.job_id, each.sink_uid] or 0)
        ]
        # All of them lie in a snapshot that is complete, or nobody could have restored it.
        self._commit(None, may_repeat=True)

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        for job_id, sink_uid, checkpoint_id, text in rows:
            committable = Committable(json.loads(text))
            self._arrived.append(PreCommitted(job_id, sink_uid, CheckpointID(checkpoint_id), committable))

    def process_watermark(self, watermark: Watermark) -> None:
        """Do nothing, because watermarks end at a sink."""

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Do nothing, because watermark statuses end at a sink."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        self._last_checkpoint_id = max(self._last_checkpoint_id, checkpoint_id)
        self._bind(checkpoint_id)

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        self._state.list_state(COMMITTABLES_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).update(
            [
                {
                    "job_id": each.job_id,
                    "sink_uid": each.sink_uid,
                    "checkpoint_id": each.checkpoint_id,
                    "data": each.committable.data,
                }
                for each in self._pending
            ]
        )
        return OperatorSnapshot(operator_lists=self._state.snapshot())

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        self._commit(checkpoint_id)
        if self._cleans_up:
            self._cleans_up = False
            check(self._committer, "there is no committer, although open was called").clean_up()

    def finish(self) -> None:
        """Without a final checkpoint nobody will notify: what was written becomes visible now."""
        if not waits_for_final_checkpoint(self.context.configuration):
            last = max((each.checkpoint_id for each in self._arrived), default=self._last_checkpoint_id)
            self._bind(CheckpointID(max(last, self._last_checkpoint_id + 1)))
            self._commit(None)

    def close(self) -> None:
        committer, self._committer = self._committer, None
        if committer is not None:
            committer.close()

    def _bind(self, checkpoint_id: CheckpointID) -> None:
        """What has arrived belongs to this checkpoint."""
        due = [each for each in self._arrived if each.checkpoint_id <= checkpoint_id]
        self._arrived = [each for each in self._arrived if each.checkpoint_id > checkpoint_id]
        self._pending += [each._replace(checkpoint_id=checkpoint_id) for each in due]

    def _commit(self, up_to: CheckpointID | None, *, may_repeat: bool = False) -> None:
        """Everything at or before this checkpoint (None: all), a transaction for each job and sink."""
        committer = check(self._committer, "there is no committer, although open was called")
        due = [each for each in self._pending if up_to is None or each.checkpoint_id <= up_to]
        self._pending = [each for each in self._pending if up_to is not None and each.checkpoint_id > up_to]
        for job_id, sink_uid in dict.fromkeys((each.job_id, each.sink_uid) for each in due):
            mine = [each for each in due if (each.job_id, each.sink_uid) == (job_id, sink_uid)]
            greatest = max(each.checkpoint_id for each in mine)
            committables = tuple(each.committable for each in mine)
            committer.commit(GlobalCommittable(job_id, sink_uid, greatest, committables, may_repeat))
