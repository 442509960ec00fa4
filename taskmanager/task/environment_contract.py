"""What a task needs from the process that it runs in. Implemented by the TaskManager's shell, and by the simulator.

Every method is called on the task's own thread and returns soon, except that reads of restored state may take as long
as the storage does. Mirrors Flink's Environment, CheckpointResponder and TaskManagerActions.
"""

from __future__ import annotations

from typing import Any, Protocol

from snapline.dataflow.snapshot.handles import StreamStateHandle
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    EndOfDataReached,
    ReportWatermark,
    TaskStateChanged,
    TaskTapped,
)
from snapline.taskmanager.network.channels.exchange_contract import Exchange
from snapline.taskmanager.operators.base.operator_contract import SnapshotSink
from snapline.taskmanager.operators.sources.push_source_operator import PushSourceRunner
from snapline.taskmanager.programs.program_place import OfferPlace
from snapline.taskmanager.state.outside.segment_space import SegmentSpace


class StateBlob(Protocol):
    """One blob that state is restored from."""

    @property
    def size(self) -> int:
        """Return the length of the blob in bytes."""
        ...

    def read_range(self, offset: int, size: int) -> bytes:
        """Some of its bytes. Raises what the storage raises."""
        ...


class Environment(Protocol):
    """The world of one attempt."""

    @property
    def exchange(self) -> Exchange:
        """Where result partitions and input channels come from."""
        ...

    @property
    def snapshot_sink(self) -> SnapshotSink:
        """Where the asynchronous part of snapshots goes."""
        ...

    def open_state(self, handle: StreamStateHandle) -> StateBlob:
        """A blob of the snapshot that the task restores from."""
        ...

    def open_segment_space(self, directory: str) -> SegmentSpace:
        """Where keyed state lies that memory has no room for."""
        ...

    def unpickle(self, payload: bytes) -> Any:
        """What the user has given an operator. Raises whatever its modules raise when they are imported."""
        ...

    def create_push_source_runner(self) -> PushSourceRunner:
        """What runs a SourceFunction beside the task."""
        ...

    @property
    def offer_place(self) -> OfferPlace:
        """What offers the place of a program outside, for a task whose rows go there."""
        ...

    def clock_ms(self) -> int:
        """A clock for durations in metrics only; what is computed never depends on it."""
        ...

    def wake_up(self) -> None:
        """Make somebody call `StreamTask.step` soon. Called from any thread, and often."""
        ...

    def task_state_changed(self, change: TaskStateChanged) -> None:
        """The attempt entered a state. A terminal state comes once and last, when all but its results is released."""
        ...

    def acknowledge_checkpoint(self, message: AcknowledgeCheckpoint) -> None:
        """Send the acknowledgement of a checkpoint to the JobMaster."""
        ...

    def decline_checkpoint(self, message: DeclineCheckpoint) -> None:
        """Send the decline of a checkpoint to the JobMaster."""
        ...

    def end_of_data_reached(self, message: EndOfDataReached) -> None:
        """Tell the JobMaster that the task has seen all of its data."""
        ...

    def report_watermark(self, message: ReportWatermark) -> None:
        """Tell the JobMaster how far the source's watermark is."""
        ...

    def rows_tapped(self, message: TaskTapped) -> None:
        """Show rows to somebody who looks on, through the JobMaster."""
        ...
