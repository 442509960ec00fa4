"""What one task gets from its TaskManager: exchange, uploads, state to restore from, and the way to its JobMaster.

Implements `snapline.taskmanager.task.environment_contract.Environment`. Everything that the task says becomes an event
of the TaskExecutor, in the order in which it was said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from snapline.dataflow.config import FILE_THRESHOLD
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.graph.declared_payload import ALL_ALLOWED, LoadingRules
from snapline.dataflow.snapshot.handles import StreamStateHandle
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    EndOfDataReached,
    ReportWatermark,
    TaskDeploymentDescriptor,
    TaskStateChanged,
    TaskTapped,
)
from snapline.runtime.clock import Clock
from snapline.runtime.logs import Logger
from snapline.runtime.storage.state_storages import StateStorages
from snapline.taskmanager.executor.events import TaskEnteredState, TaskSaid
from snapline.taskmanager.network.channels.exchange_contract import Exchange
from snapline.taskmanager.operators.sources.push_source_operator import PushSourceRunner
from snapline.taskmanager.programs.program_place import OfferPlace, offer_no_place
from snapline.taskmanager.snapshots.local_recovery import JobLocalRecovery
from snapline.taskmanager.snapshots.restore import BytesRead, SnapshotReader
from snapline.taskmanager.snapshots.uploader import SnapshotUploader, TaskSnapshotSink
from snapline.taskmanager.state.outside.segment_files import SegmentFiles
from snapline.taskmanager.state.outside.segment_space import SegmentSpace
from snapline.taskmanager.task.environment_contract import StateBlob
from snapline.taskmanager.threads.push_source_threads import ThreadedPushSource
from snapline.taskmanager.threads.unpickling import unpickle_alone


class TaskEnvironment:
    """The world of one attempt."""

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        exchange: Exchange,
        uploader: SnapshotUploader,
        storages: StateStorages,
        clock: Clock,
        wake_up: Callable[[], None],
        tell_executor: Callable[[Any], None],
        on_terminal_state: Callable[[], None],
        logger: Logger,
        local: JobLocalRecovery | None = None,
        offer_place: OfferPlace = offer_no_place,
        rules: LoadingRules = ALL_ALLOWED,
        segment_directory: str = "",
    ) -> None:
        """`on_terminal_state` is called before the TaskExecutor learns that the task has ended. `rules`: of what the
        job brings or names. `segment_directory`: for state outside of memory, where the job names none."""
        self._descriptor = descriptor
        self._exchange = exchange
        self.offer_place = offer_place
        self._rules = rules
        self._segment_directory = segment_directory
        threshold = descriptor.configuration.get(FILE_THRESHOLD.key)
        self._snapshot_sink = uploader.for_task(
            descriptor.checkpoint_directory,
            local,
            None if threshold is None else FILE_THRESHOLD.read(threshold),
            descriptor.job_id,
        )
        self._state = SnapshotReader(descriptor.checkpoint_directory, storages, local)
        if local is not None and descriptor.restore_checkpoint_id > 0:
            local.refer(descriptor.restore_checkpoint_id, descriptor.restore_state)
        self._clock = clock
        self._wake_up = wake_up
        self._tell = tell_executor
        self._on_terminal_state = on_terminal_state
        self._logger = logger

    @property
    def exchange(self) -> Exchange:
        """Where result partitions and input channels come from."""
        return self._exchange

    @property
    def bytes_read(self) -> BytesRead:
        """The bytes that were read of the state that the task was restored from."""
        return self._state.bytes_read

    @property
    def snapshot_sink(self) -> TaskSnapshotSink:
        """Where the asynchronous part of snapshots goes."""
        return self._snapshot_sink

    def open_state(self, handle: StreamStateHandle) -> StateBlob:
        """A blob of the snapshot that the task restores from."""
        return self._state.open_state(handle)

    def open_segment_space(self, directory: str) -> SegmentSpace:
        """Files without names on the local disk."""
        return SegmentFiles(directory or self._segment_directory)

    def unpickle(self, payload: bytes) -> Any:
        """One task after the other."""
        return unpickle_alone(payload, self._rules)

    def create_push_source_runner(self) -> PushSourceRunner:
        """A thread beside the task."""
        return ThreadedPushSource(f"{self._descriptor.task_name} source", self._wake_up)

    def clock_ms(self) -> int:
        """Return the clock for durations in metrics, in milliseconds since the epoch."""
        return self._clock.now_ms()

    def wake_up(self) -> None:
        """Make the task's thread look again."""
        self._wake_up()

    def task_state_changed(self, change: TaskStateChanged) -> None:
        """The attempt entered a state."""
        if change.state.is_terminal:
            self._on_terminal_state()
        self._tell(TaskEnteredState(change.attempt_id, change.state, change.failure))

    def acknowledge_checkpoint(self, message: AcknowledgeCheckpoint) -> None:
        """Send the acknowledgement of a checkpoint to the JobMaster."""
        self._tell(TaskSaid(message))

    def decline_checkpoint(self, message: DeclineCheckpoint) -> None:
        """To the JobMaster. That a newer checkpoint has skipped one is worth a warning: it was waited for in vain."""
        skipped = message.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED
        (self._logger.warning if skipped else self._logger.info)(
            "checkpoint skipped, a newer one has overtaken it" if skipped else "checkpoint declined",
            task=self._descriptor.task_name,
            checkpoint_id=message.checkpoint_id,
            reason=message.reason.name,
            detail=message.detail,
        )
        self._tell(TaskSaid(message))

    def end_of_data_reached(self, message: EndOfDataReached) -> None:
        """Tell the JobMaster that the task has seen all of its data."""
        self._tell(TaskSaid(message))

    def report_watermark(self, message: ReportWatermark) -> None:
        """Tell the JobMaster how far the source's watermark is."""
        self._tell(TaskSaid(message))

    def rows_tapped(self, message: TaskTapped) -> None:
        """Show rows to somebody who looks on."""
        self._tell(TaskSaid(message))
