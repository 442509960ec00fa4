"""What flows through a channel: Arrow batches, and the control elements between them.

Order inside a channel is the order of emission, except that an unaligned barrier is a priority element. Mirrors Flink's
StreamElement and RuntimeEvent families; a data element is a whole `pyarrow.RecordBatch`, never a record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from snapline.dataflow.ids import CheckpointID

if TYPE_CHECKING:  # a client, which handles no batch, does without Arrow
    import pyarrow as pa

MIN_WATERMARK_MS = -(2**63)
MAX_WATERMARK_MS = 2**63 - 1
"""The watermark after the last element of a bounded input: fires every event-time timer and window."""

NO_ALIGNED_TIMEOUT_MS = -1
"""`CheckpointOptions.aligned_checkpoint_timeout_ms` of a barrier that never turns unaligned by itself."""


class SnapshotType(Enum):
    """Why a snapshot is taken (Flink: SnapshotType, CheckpointType, SavepointType)."""

    CHECKPOINT = "checkpoint"
    FULL_CHECKPOINT = "full_checkpoint"
    SAVEPOINT = "savepoint"
    SAVEPOINT_SUSPEND = "savepoint_suspend"
    """Stop with savepoint, without drain."""
    SAVEPOINT_TERMINATE = "savepoint_terminate"
    """Stop with savepoint and drain: the watermark goes to its maximum first."""

    @property
    def is_savepoint(self) -> bool:
        """Whether the snapshot belongs to the user and is aligned."""
        return self in (SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_SUSPEND, SnapshotType.SAVEPOINT_TERMINATE)

    @property
    def is_synchronous(self) -> bool:
        """Whether tasks process nothing between their snapshot and its completion (stop with savepoint)."""
        return self in (SnapshotType.SAVEPOINT_SUSPEND, SnapshotType.SAVEPOINT_TERMINATE)


class AlignmentType(Enum):
    """How barriers treat data in flight (Flink: CheckpointOptions.AlignmentType)."""

    AT_LEAST_ONCE = "at_least_once"
    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    FORCED_ALIGNED = "forced_aligned"
    """Unaligned was asked for, this channel cannot do it (a forward edge into a two-phase sink, for example)."""


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """Travels with every trigger and barrier (Flink: CheckpointOptions)."""

    snapshot_type: SnapshotType = SnapshotType.CHECKPOINT
    alignment: AlignmentType = AlignmentType.ALIGNED
    aligned_checkpoint_timeout_ms: int = NO_ALIGNED_TIMEOUT_MS
    target_location: str = ""
    """Directory that this snapshot's files go to, relative paths below it; set by the coordinator."""

    @property
    def is_unaligned(self) -> bool:
        """Whether the barrier overtakes data."""
        return self.alignment is AlignmentType.UNALIGNED

    @property
    def is_timeoutable(self) -> bool:
        """Whether the barrier starts aligned and turns unaligned after a timeout."""
        return self.alignment is AlignmentType.ALIGNED and self.aligned_checkpoint_timeout_ms >= 0

    @property
    def needs_alignment(self) -> bool:
        """Whether what follows the barrier in its channel has to wait for the barriers of the other channels."""
        return self.alignment in (AlignmentType.ALIGNED, AlignmentType.FORCED_ALIGNED)

    @property
    def needs_channel_state(self) -> bool:
        """Whether data in flight may become part of the snapshot."""
        return self.is_unaligned or self.is_timeoutable

    def as_unaligned(self) -> CheckpointOptions:
        """Return the options that hold once the aligned timeout has passed: unaligned."""
        return replace(self, alignment=AlignmentType.UNALIGNED, aligned_checkpoint_timeout_ms=NO_ALIGNED_TIMEOUT_MS)

    def without_overtaking(self) -> CheckpointOptions:
        """For a savepoint: aligned, and never anything else."""
        if not self.needs_channel_state:
            return self
        return replace(self, alignment=AlignmentType.ALIGNED, aligned_checkpoint_timeout_ms=NO_ALIGNED_TIMEOUT_MS)

    def with_unaligned_unsupported(self) -> CheckpointOptions:
        """For an output whose data must not be overtaken (committables on their way to a committer)."""
        return replace(self, alignment=AlignmentType.FORCED_ALIGNED) if self.needs_channel_state else self

    def with_unaligned_supported(self) -> CheckpointOptions:
        """Behind such an output: the barrier goes on as it was meant."""
        if self.alignment is not AlignmentType.FORCED_ALIGNED:
            return self
        timeoutable = self.aligned_checkpoint_timeout_ms >= 0
        return replace(self, alignment=AlignmentType.ALIGNED if timeoutable else AlignmentType.UNALIGNED)


DEFAULT_CHECKPOINT_OPTIONS = CheckpointOptions()


@dataclass(frozen=True, slots=True)
class Watermark:
    """No row with an event time at or below this follows (milliseconds since the epoch)."""

    timestamp_ms: int


class WatermarkStatus(Enum):
    """Whether a channel takes part in the watermark (Flink: WatermarkStatus)."""

    ACTIVE = "active"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """Flows from a source to the sinks among the rows, to be measured by each operator (Flink: LatencyMarker). It takes
    one channel of each edge, so that their number does not grow with the parallelism."""

    marked_ms: int
    """When it left its source, by that machine's clock."""
    source_uid: str


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """Separates what belongs to checkpoint `checkpoint_id` from what does not."""

    checkpoint_id: CheckpointID
    timestamp_ms: int
    """When the coordinator triggered the checkpoint."""
    options: CheckpointOptions = DEFAULT_CHECKPOINT_OPTIONS

    def as_unaligned(self) -> CheckpointBarrier:
        """Return the barrier as it is once the aligned timeout has passed: unaligned."""
        return self.with_options(self.options.as_unaligned())

    def with_options(self, options: CheckpointOptions) -> CheckpointBarrier:
        """The same checkpoint, otherwise treated."""
        return replace(self, options=options)


@dataclass(frozen=True, slots=True)
class EventAnnouncement:
    """Priority notice that a timeoutable barrier is queued behind data at `sequence_number` (Flink: same name)."""

    barrier: CheckpointBarrier
    sequence_number: int


@dataclass(frozen=True, slots=True)
class CancelCheckpointMarker:
    """Upstream gave up this checkpoint; do not wait for its barrier."""

    checkpoint_id: CheckpointID


@dataclass(frozen=True, slots=True)
class EndOfData:
    """No more rows follow. `drain`: the job ends for good, so flush windows and timers (Flink: EndOfData, StopMode)."""

    drain: bool = True


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """Nothing follows, not even barriers (Flink: EndOfPartitionEvent)."""


@dataclass(frozen=True, slots=True)
class EndOfChannelState:
    """All data in flight that was restored for this channel stands before the first of these; nothing behind it is
    processed on any channel of the consumer before all of them have delivered it (Flink: EndOfChannelStateEvent).
    Behind it comes what the producer makes of its own restored data, until the next one, and so on: what was further on
    in the job when the snapshot was taken stays ahead of what was not so far, even if a rescale sends both other ways.
    Flink needs one only: it takes forward edges out."""

    is_last: bool = True
    """Whether all that follows is new, because no restored data is left."""


ControlElement = (
    Watermark
    | WatermarkStatus
    | LatencyMarker
    | CheckpointBarrier
    | EventAnnouncement
    | CancelCheckpointMarker
    | EndOfData
    | EndOfPartition
    | EndOfChannelState
)
if TYPE_CHECKING:
    StreamElement = pa.RecordBatch | ControlElement
else:
    StreamElement = "pa.RecordBatch | ControlElement"
