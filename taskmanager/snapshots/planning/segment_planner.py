"""Which blobs share a file: all subtasks of a TaskManager write one segment file per checkpoint, not one each.

A core. Blobs below a threshold travel inside the acknowledgement, and so do those that later checkpoints will carry on.
The others of one checkpoint gather until no subtask of this checkpoint is still encoding (or a good deal has gathered),
and are then written as one segment; what comes while a segment is being written joins the next one. A snapshot is
complete when all its segments are durable. Decides also what becomes of a segment whose snapshots were all abandoned,
while they were written or before the task acknowledged them: it is deleted, unless a snapshot that was acknowledged
lies in it, too. From then on its files are the coordinator's. It does not know how anything is encoded, nor where files
go. Mirrors Flink's FileMergingSnapshotManager, with segments that never outlive one checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from snapline.dataflow.ids import CheckpointID, JobID, ResourceID
from snapline.dataflow.snapshot.handles import ByteStreamStateHandle, SegmentStateHandle, StreamStateHandle
from snapline.runtime.cores.machine import check
from snapline.runtime.storage.storage_port import Buffer

SEGMENT_BYTES = 64 << 20
"""A segment is begun without waiting for other subtasks once so much has gathered."""
MOST_THRESHOLDS = 50
"""What of one snapshot travels inside the acknowledgement has no more bytes together than so many times the threshold:
data in flight is a blob for each channel, of which a wide job has thousands."""
CARRIED_ON_BYTES = 4 << 20
"""Larger blobs are written to a file although later checkpoints should carry them on: all metadata would hold them."""


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Snapshots that may share segment files: one checkpoint of one job in one directory."""

    base: str
    """Checkpoint directory of the job, as `open_storage` takes it."""
    target_location: str
    """Directory of the checkpoint below it, or an absolute URL."""
    checkpoint_id: CheckpointID
    job_id: JobID = JobID("")
    is_copied: bool = False
    """Whether copies are kept on the local disk."""


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SnapshotStarted:
    """A subtask's snapshot of so many blobs is being encoded. Tickets are never used twice."""

    ticket: int
    group: SegmentGroup
    blobs: int
    memory_threshold_bytes: int | None = None
    """What its job says; None: nothing."""


@dataclass(frozen=True, slots=True)
class BlobEncoded:
    """One of them is there."""

    ticket: int
    index: int
    data: Buffer
    is_carried_on: bool = False
    """Later checkpoints will hold it, and this one's files go with this one."""


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The snapshot of one subtask could not be encoded."""

    ticket: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class SnapshotCancelled:
    """Nobody wants it any more, although it may be complete."""

    ticket: int


@dataclass(frozen=True, slots=True)
class SnapshotAcknowledged:
    """The coordinator knows of it."""

    ticket: int


@dataclass(frozen=True, slots=True)
class SegmentWritten:
    """The segment file is durable in the checkpoint storage."""

    segment: int


@dataclass(frozen=True, slots=True)
class SegmentFailed:
    """The segment could not be written; nothing of it is there."""

    segment: int
    error: BaseException


SegmentEvent = (
    SnapshotStarted
    | BlobEncoded
    | SnapshotFailed
    | SnapshotCancelled
    | SnapshotAcknowledged
    | SegmentWritten
    | SegmentFailed
)

# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteSegment:
    """Write the parts, joined, to `<target location>/<name>`; answer SegmentWritten or SegmentFailed."""

    segment: int
    group: SegmentGroup
    name: str
    parts: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class DeleteSegment:
    """Nobody will ever refer to this file: delete it, as well as possible."""

    group: SegmentGroup
    name: str


@dataclass(frozen=True, slots=True)
class CompleteSnapshot:
    """All blobs of the snapshot are durable; their handles, in order."""

    ticket: int
    handles: tuple[StreamStateHandle, ...]


@dataclass(frozen=True, slots=True)
class FailSnapshot:
    """The snapshot cannot be completed."""

    ticket: int
    error: BaseException


SegmentEffect = WriteSegment | DeleteSegment | CompleteSnapshot | FailSnapshot


@dataclass(slots=True)
class _Snapshot:
    group: SegmentGroup
    handles: list[StreamStateHandle | None]
    encoding: int
    """Blobs that are not encoded yet."""
    undone: int
    """Blobs without a durable handle."""
    memory_threshold_bytes: int
    inline_bytes: int = 0
    """How much of it, of blobs below the threshold, is inline."""
    waiting_bytes: int = 0
    """Encoded, and neither durable nor inline."""
    segments: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Segment:
    group: SegmentGroup
    name: str
    blobs: list[tuple[int, int, int]]
    """(ticket, index, size) in the order of the file."""
    users: set[int]
    """Snapshots in it that are neither acknowledged nor abandoned."""
    durable: bool = False
    referenced: bool = False
    """An acknowledged snapshot lies in it."""


@dataclass(slots=True)
class _Gathering:
    snapshots: set[int] = field(default_factory=set)
    """All that are not complete."""
    blobs: list[tuple[int, int, Buffer, int]] = field(default_factory=list)
    size_bytes: int = 0
    writing: bool = False


class SegmentPlanner:
    """All snapshots of one TaskManager."""

    def __init__(
        self, resource_id: ResourceID, memory_threshold_bytes: int, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._owner = re.sub(r"[^A-Za-z0-9_.-]", "-", resource_id)
        self._memory_threshold_bytes = memory_threshold_bytes
        self._segment_bytes = segment_bytes
        self._snapshots: dict[int, _Snapshot] = {}
        self._complete: dict[int, set[int]] = {}
        """Segments of snapshots that are complete, and neither acknowledged nor abandoned."""
        self._groups: dict[SegmentGroup, _Gathering] = {}
        self._segments: dict[int, _Segment] = {}
        self._next_segment = 0

    def handle(self, event: SegmentEvent) -> list[SegmentEffect]:
        """Take one event; events about snapshots that are over are ignored."""
        match event:
            case SnapshotStarted():
                return self._started(event)
            case BlobEncoded():
                return self._encoded(event)
            case SnapshotFailed(ticket, error):
                return [*self._abandon(ticket), FailSnapshot(ticket, error)] if ticket in self._snapshots else []
            case SnapshotCancelled(ticket):
                return self._abandon(ticket) if ticket in self._snapshots else self._release(ticket, referenced=False)
            case SnapshotAcknowledged(ticket):
                return self._release(ticket, referenced=True)
            case SegmentWritten(segment):
                return self._written(segment)
            case SegmentFailed(segment, error):
                return self._failed(segment, error)

    def waiting_bytes(self, ticket: int) -> int:
        """What of a snapshot is in memory because it is encoded and not yet durable."""
        snapshot = self._snapshots.get(ticket)
        return 0 if snapshot is None else snapshot.waiting_bytes

    def knows(self, ticket: int) -> bool:
        """Whether it makes a difference if the snapshot is cancelled."""
        return ticket in self._snapshots or ticket in self._complete

    @property
    def is_idle(self) -> bool:
        """Nothing is remembered of anything."""
        return not (self._snapshots or self._complete or self._groups or self._segments)

    def _started(self, event: SnapshotStarted) -> list[SegmentEffect]:
        ticket, group, blobs, threshold_bytes = event.ticket, event.group, event.blobs, event.memory_threshold_bytes
        check(ticket not in self._snapshots, f"snapshot ticket {ticket} was used twice")
        if not blobs:
            return [CompleteSnapshot(ticket, ())]
        if threshold_bytes is None:
            threshold_bytes = self._memory_threshold_bytes
        self._snapshots[ticket] = _Snapshot(group, [None] * blobs, blobs, blobs, threshold_bytes)
        self._groups.setdefault(group, _Gathering()).snapshots.add(ticket)
        return []

    def _encoded(self, event: BlobEncoded) -> list[SegmentEffect]:
        ticket, index, data = event.ticket, event.index, event.data
        snapshot = self._snapshots.get(ticket)
        if snapshot is None:
            return []
        check(snapshot.handles[index] is None, f"blob {index} of snapshot {ticket} was encoded twice")
        size = memoryview(data).nbytes
        snapshot.encoding -= 1
        gathering = self._groups[snapshot.group]
        threshold = snapshot.memory_threshold_bytes
        is_small = size < threshold and snapshot.inline_bytes + size <= MOST_THRESHOLDS * threshold
        if is_small or (event.is_carried_on and size <= CARRIED_ON_BYTES):
            snapshot.inline_bytes += size if is_small else 0
            snapshot.handles[index] = ByteStreamStateHandle(bytes(data))
            snapshot.undone -= 1
        else:
            gathering.blobs.append((ticket, index, data, size))
            gathering.size_bytes += size
            snapshot.waiting_bytes += size
        effects = self._completed(ticket) if not snapshot.undone else []
        return [*effects, *self._flush(snapshot.group)]

    def _flush(self, group: SegmentGroup) -> list[SegmentEffect]:
        """Write what has gathered, if it is time."""
        gathering = self._groups.get(group)
        if gathering is None or gathering.writing:
            return []
        if not gathering.blobs:
            if not gathering.snapshots:
                del self._groups[group]
            return []
        encoding = any(self._snapshots[ticket].encoding for ticket in gathering.snapshots)
        if encoding and gathering.size_bytes < self._segment_bytes:
            return []
        number = self._next_segment
        self._next_segment += 1
        name = f"segment-{self._owner}-{group.checkpoint_id}-{number}"
        blobs, gathering.blobs, gathering.size_bytes = gathering.blobs, [], 0
        gathering.writing = True
        users = {ticket for ticket, _, _, _ in blobs}
        self._segments[number] = _Segment(group, name, [(t, i, size) for t, i, _, size in blobs], users)
        for ticket in users:
            self._snapshots[ticket].segments.add(number)
        return [WriteSegment(number, group, name, tuple(data for _, _, data, _ in blobs))]

    def _written(self, number: int) -> list[SegmentEffect]:
        segment = self._segments[number]
        check(not segment.durable, f"segment {segment.name} was written twice")
        segment.durable = True
        self._groups[segment.group].writing = False
        location = segment.group.target_location.rstrip("/")
        path = f"{location}/{segment.name}" if location else segment.name
        offset = 0
        effects: list[SegmentEffect] = []
        for ticket, index, size in segment.blobs:
            snapshot = self._snapshots.get(ticket)
            if snapshot is not None:
                snapshot.handles[index] = SegmentStateHandle(path, offset, size)
                snapshot.undone -= 1
                snapshot.waiting_bytes -= size
                if not snapshot.undone:
                    effects += self._completed(ticket)
            offset += size
        return [*effects, *self._drop_unused(number), *self._flush(segment.group)]

    def _failed(self, number: int, error: BaseException) -> list[SegmentEffect]:
        segment = self._segments.pop(number)
        self._groups[segment.group].writing = False
        effects: list[SegmentEffect] = []
        for ticket in sorted(segment.users):
            self._snapshots[ticket].segments.discard(number)
            effects += [*self._abandon(ticket), FailSnapshot(ticket, error)]
        return [*effects, *self._flush(segment.group)]

    def _completed(self, ticket: int) -> list[SegmentEffect]:
        snapshot = self._snapshots.pop(ticket)
        self._groups[snapshot.group].snapshots.discard(ticket)
        handles = tuple(handle for handle in snapshot.handles if handle is not None)
        check(len(handles) == len(snapshot.handles), f"snapshot {ticket} is complete, but lacks handles")
        if snapshot.segments:
            self._complete[ticket] = snapshot.segments
        return [CompleteSnapshot(ticket, handles)]

    def _release(self, ticket: int, *, referenced: bool) -> list[SegmentEffect]:
        """A complete snapshot is somebody else's, or nobody's."""
        effects: list[SegmentEffect] = []
        for number in sorted(self._complete.pop(ticket, ())):
            segment = self._segments[number]
            segment.referenced = segment.referenced or referenced
            segment.users.discard(ticket)
            effects += self._drop_unused(number)
        return effects

    def _abandon(self, ticket: int) -> list[SegmentEffect]:
        """Forget a snapshot, and delete what was written for it alone."""
        snapshot = self._snapshots.pop(ticket)
        gathering = self._groups[snapshot.group]
        gathering.snapshots.discard(ticket)
        gathering.blobs = [blob for blob in gathering.blobs if blob[0] != ticket]
        gathering.size_bytes = sum(size for _, _, _, size in gathering.blobs)
        effects: list[SegmentEffect] = []
        for number in sorted(snapshot.segments):
            self._segments[number].users.discard(ticket)
            effects += self._drop_unused(number)
        return [*effects, *self._flush(snapshot.group)]

    def _drop_unused(self, number: int) -> list[SegmentEffect]:
        """Forget a durable segment that nobody waits for; delete it when nobody refers to it."""
        segment = self._segments.get(number)
        if segment is None or segment.users or not segment.durable:
            return []
        del self._segments[number]
        return [] if segment.referenced else [DeleteSegment(segment.group, segment.name)]
