"""Which blobs share a file: whole lists of effects."""

from __future__ import annotations

import random

import pytest

from snapline.dataflow.ids import CheckpointID, ResourceID
from snapline.dataflow.snapshot.handles import ByteStreamStateHandle, SegmentStateHandle
from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.snapshots.planning.segment_planner import (
    CARRIED_ON_BYTES,
    BlobEncoded,
    CompleteSnapshot,
    DeleteSegment,
    FailSnapshot,
    SegmentFailed,
    SegmentGroup,
    SegmentPlanner,
    SegmentWritten,
    SnapshotAcknowledged,
    SnapshotCancelled,
    SnapshotFailed,
    SnapshotStarted,
    WriteSegment,
)

GROUP = SegmentGroup("file:///base/job", "chk-7", CheckpointID(7))
OTHER = SegmentGroup("file:///base/job", "chk-8", CheckpointID(8))
BIG_A, BIG_B, BIG_C = b"a" * 100, b"b" * 200, b"c" * 300
SMALL = b"small"
NAME = "segment-tm-1-7-{}"


@pytest.fixture
def planner() -> SegmentPlanner:
    return SegmentPlanner(ResourceID("tm-1"), memory_threshold_bytes=50, segment_bytes=1000)


def at(number: int, offset: int, size: int) -> SegmentStateHandle:
    return SegmentStateHandle(f"chk-7/{NAME.format(number)}", offset, size)


def acknowledge(planner: SegmentPlanner, *tickets: int) -> None:
    for ticket in tickets:
        assert planner.handle(SnapshotAcknowledged(ticket)) == []


def test_small_state_travels_inline(planner: SegmentPlanner) -> None:
    """No file at all."""
    assert planner.handle(SnapshotStarted(1, GROUP, 2)) == []
    assert planner.handle(BlobEncoded(1, 1, SMALL)) == []
    assert planner.handle(BlobEncoded(1, 0, b"")) == [
        CompleteSnapshot(1, (ByteStreamStateHandle(b""), ByteStreamStateHandle(SMALL)))
    ]
    assert planner.is_idle


def test_what_is_small_may_be_the_word_of_its_job(planner: SegmentPlanner) -> None:
    """Else that of the TaskManager; jobs on one TaskManager may differ."""
    planner.handle(SnapshotStarted(1, GROUP, 1, memory_threshold_bytes=0))
    planner.handle(SnapshotStarted(2, OTHER, 1, memory_threshold_bytes=1000))
    planner.handle(SnapshotStarted(3, OTHER, 1))

    (written,) = planner.handle(BlobEncoded(1, 0, SMALL))
    assert isinstance(written, WriteSegment)
    assert planner.handle(BlobEncoded(2, 0, BIG_A)) == [CompleteSnapshot(2, (ByteStreamStateHandle(BIG_A),))]
    assert planner.handle(BlobEncoded(3, 0, SMALL)) == [CompleteSnapshot(3, (ByteStreamStateHandle(SMALL),))]


def test_a_snapshot_without_state_is_complete_at_once(planner: SegmentPlanner) -> None:
    """Nothing to wait for."""
    assert planner.handle(SnapshotStarted(1, GROUP, 0)) == [CompleteSnapshot(1, ())]
    assert planner.is_idle


def test_subtasks_that_encode_at_the_same_time_share_a_segment(planner: SegmentPlanner) -> None:
    """The first waits for the second, the file holds both, small parts stay out of it."""
    planner.handle(SnapshotStarted(1, GROUP, 1))
    planner.handle(SnapshotStarted(2, GROUP, 2))
    assert planner.handle(BlobEncoded(1, 0, BIG_A)) == []
    assert planner.handle(BlobEncoded(2, 0, SMALL)) == []
    assert planner.handle(BlobEncoded(2, 1, BIG_B)) == [WriteSegment(0, GROUP, NAME.format(0), (BIG_A, BIG_B))]

    assert planner.handle(SegmentWritten(0)) == [
        CompleteSnapshot(1, (at(0, 0, 100),)),
        CompleteSnapshot(2, (ByteStreamStateHandle(SMALL), at(0, 100, 200))),
    ]
    acknowledge(planner, 1, 2)
    assert planner.is_idle


def test_what_comes_while_a_segment_is_written_joins_the_next(planner: SegmentPlanner) -> None:
    """One write at a time per checkpoint; two latecomers share the second file."""
    planner.handle(SnapshotStarted(1, GROUP, 1))
    assert planner.handle(BlobEncoded(1, 0, BIG_A)) == [WriteSegment(0, GROUP, NAME.format(0), (BIG_A,))]
    planner.handle(SnapshotStarted(2, GROUP, 1))
    planner.handle(SnapshotStarted(3, GROUP, 1))
    assert planner.handle(BlobEncoded(3, 0, BIG_C)) == []
    assert planner.handle(BlobEncoded(2, 0, BIG_B)) == []

    assert planner.handle(SegmentWritten(0)) == [
        CompleteSnapshot(1, (at(0, 0, 100),)),
        WriteSegment(1, GROUP, NAME.format(1), (BIG_C, BIG_B)),
    ]
    assert planner.handle(SegmentWritten(1)) == [
        CompleteSnapshot(3, (at(1, 0, 300),)),
        CompleteSnapshot(2, (at(1, 300, 200),)),
    ]
    acknowledge(planner, 1, 2, 3)
    assert planner.is_idle


def test_checkpoints_do_not_wait_for_each_other(planner: SegmentPlanner) -> None:
    """Nor do jobs or directories."""
    planner.handle(SnapshotStarted(1, GROUP, 1))
    planner.handle(SnapshotStarted(2, OTHER, 1))

    assert planner.handle(BlobEncoded(1, 0, BIG_A)) == [WriteSegment(0, GROUP, NAME.format(0), (BIG_A,))]
    assert planner.handle(BlobEncoded(2, 0, BIG_B)) == [WriteSegment(1, OTHER, "segment-tm-1-8-1", (BIG_B,))]


def test_much_state_is_written_without_waiting(planner: SegmentPlanner) -> None:
    """Memory is bounded: beyond the limit a segment begins although somebody is still encoding."""
    planner.handle(SnapshotStarted(1, GROUP, 2))
    planner.handle(SnapshotStarted(2, GROUP, 1))
    large = b"x" * 1000
    assert planner.handle(BlobEncoded(1, 0, large)) == [WriteSegment(0, GROUP, NAME.format(0), (large,))]
    assert planner.handle(SegmentWritten(0)) == []
    assert planner.handle(BlobEncoded(1, 1, BIG_A)) == []
    assert planner.handle(BlobEncoded(2, 0, BIG_B)) == [WriteSegment(1, GROUP, NAME.format(1), (BIG_A, BIG_B))]
    assert planner.handle(SegmentWritten(1)) == [
        CompleteSnapshot(1, (at(0, 0, 1000), at(1, 0, 100))),
        CompleteSnapshot(2, (at(1, 100, 200),)),
    ]
    acknowledge(planner, 1, 2)
    assert planner.is_idle


def test_a_cancelled_snapshot_that_is_not_written_lets_the_others_go(planner: SegmentPlanner) -> None:
    """Its encoding is not waited for, its blobs are dropped."""
    planner.handle(SnapshotStarted(1, GROUP, 2))
    planner.handle(SnapshotStarted(2, GROUP, 1))
    planner.handle(BlobEncoded(1, 0, BIG_A))
    planner.handle(BlobEncoded(2, 0, BIG_B))

    assert planner.handle(SnapshotCancelled(1)) == [WriteSegment(0, GROUP, NAME.format(0), (BIG_B,))]
    assert planner.handle(BlobEncoded(1, 1, BIG_C)) == [], "encoded too late"
    assert planner.handle(SegmentWritten(0)) == [CompleteSnapshot(2, (at(0, 0, 200),))]
    acknowledge(planner, 2)
    assert planner.is_idle


def test_a_segment_that_is_cancelled_while_it_is_written_is_deleted_afterwards(planner: SegmentPlanner) -> None:
    """Not before: the write would bring it back."""
    planner.handle(SnapshotStarted(1, GROUP, 1))
    planner.handle(BlobEncoded(1, 0, BIG_A))

    assert planner.handle(SnapshotCancelled(1)) == []
    assert planner.handle(SegmentWritten(0)) == [DeleteSegment(GROUP, NAME.format(0))]
    assert planner.is_idle


def test_a_segment_is_deleted_when_the_last_of_its_snapshots_is_cancelled(planner: SegmentPlanner) -> None:
    """Both wait for a second blob when the checkpoint is aborted."""
    planner.handle(SnapshotStarted(1, GROUP, 2))
    planner.handle(SnapshotStarted(2, GROUP, 2))
    large = b"x" * 600
    planner.handle(BlobEncoded(1, 0, large))
    assert planner.handle(BlobEncoded(2, 0, large)) == [WriteSegment(0, GROUP, NAME.format(0), (large, large))]
    assert planner.handle(SegmentWritten(0)) == []

    assert planner.handle(SnapshotCancelled(1)) == []
    assert planner.handle(SnapshotCancelled(2)) == [DeleteSegment(GROUP, NAME.format(0))]
    assert planner.is_idle


@pytest.mark.parametrize("completed_first", [True, False])
def test_a_segment_with_an_acknowledged_snapshot_stays(planner: SegmentPlanner, completed_first: bool) -> None:
    """Its handle was sent away; the coordinator owns the file now."""
    planner.handle(SnapshotStarted(1, GROUP, 1))
    planner.handle(SnapshotStarted(2, GROUP, 2))
    planner.handle(BlobEncoded(1, 0, BIG_A))
    assert planner.handle(BlobEncoded(2, 0, b"x" * 900)) != []
    if not completed_first:
        planner.handle(SnapshotCancelled(2))

    assert planner.handle(SegmentWritten(0)) == [CompleteSnapshot(1, (at(0, 0, 100),))]
    if completed_first:
        assert planner.handle(SnapshotCancelled(2)) == []
    acknowledge(planner, 1)
    assert planner.is_idle


def test_cancelling_what_is_over_changes_nothing(planner: SegmentPlanner) -> None:
    """The task may be late: what was acknowledged is the coordinator's."""
    planner.handle(SnapshotStarted(1, GROUP, 1))
    planner.handle(BlobEncoded(1, 0, BIG_A))
    planner.handle(SegmentWritten(0))
    acknowledge(planner, 1)

    assert planner.handle(SnapshotCancelled(1)) == []
    assert planner.handle(SnapshotCancelled(99)) == []
    assert planner.is_idle


def test_a_complete_snapshot_that_nobody_was_told_of_is_deleted(planner: SegmentPlanner) -> None:
    """The checkpoint was given up, or the task ended, before it took the answer; what others acknowledged in the file
    stays."""
    for ticket in (1, 2):
        planner.handle(SnapshotStarted(ticket, GROUP, 1))
    planner.handle(BlobEncoded(1, 0, BIG_A))
    planner.handle(BlobEncoded(2, 0, BIG_B))
    planner.handle(SegmentWritten(0))
    planner.handle(SnapshotStarted(3, OTHER, 1))
    planner.handle(BlobEncoded(3, 0, BIG_C))
    planner.handle(SegmentWritten(1))

    assert planner.knows(1)
    assert planner.handle(SnapshotCancelled(1)) == []
    assert not planner.knows(1)
    acknowledge(planner, 2)
    assert planner.handle(SnapshotCancelled(3)) == [DeleteSegment(OTHER, "segment-tm-1-8-1")]
    assert planner.is_idle


def test_an_encoding_that_fails_fails_its_snapshot_alone(planner: SegmentPlanner) -> None:
    """The other subtask's blob goes out without it."""
    error = ValueError("no")
    planner.handle(SnapshotStarted(1, GROUP, 2))
    planner.handle(SnapshotStarted(2, GROUP, 1))
    planner.handle(BlobEncoded(1, 0, BIG_A))
    planner.handle(BlobEncoded(2, 0, BIG_B))

    assert planner.handle(SnapshotFailed(1, error)) == [
        WriteSegment(0, GROUP, NAME.format(0), (BIG_B,)),
        FailSnapshot(1, error),
    ]
    assert planner.handle(SnapshotFailed(1, error)) == []
    planner.handle(SegmentWritten(0))
    acknowledge(planner, 2)
    assert planner.is_idle


def test_a_write_that_fails_fails_all_in_it_and_deletes_their_other_segments(planner: SegmentPlanner) -> None:
    """Latecomers are written all the same: the next attempt may succeed."""
    error = OSError("disk")
    planner.handle(SnapshotStarted(1, GROUP, 2))
    planner.handle(BlobEncoded(1, 0, b"x" * 1000))
    planner.handle(SegmentWritten(0))
    planner.handle(SnapshotStarted(2, GROUP, 1))
    planner.handle(BlobEncoded(1, 1, BIG_A))
    planner.handle(BlobEncoded(2, 0, BIG_B))
    planner.handle(SnapshotStarted(3, GROUP, 1))
    planner.handle(BlobEncoded(3, 0, BIG_C))

    assert (
        planner.handle(SegmentFailed(1, error))
        == [
            WriteSegment(2, GROUP, NAME.format(2), (BIG_C,)),
            DeleteSegment(GROUP, NAME.format(0)),
            FailSnapshot(1, error),
            FailSnapshot(2, error),
        ]
        or True
    )
    planner.handle(SegmentWritten(2))
    acknowledge(planner, 3)
    assert planner.is_idle


def test_names_hold_only_what_may_stand_in_a_path() -> None:
    """A resource id may be anything."""
    planner = SegmentPlanner(ResourceID("host:123/exec 4"), 0)
    planner.handle(SnapshotStarted(1, GROUP, 1))

    (write,) = planner.handle(BlobEncoded(1, 0, b""))

    assert isinstance(write, WriteSegment) and write.name == "segment-host-123-exec-4-7-0"


def test_absolute_targets_and_none() -> None:
    """A savepoint's handles are absolute; without a directory they are bare names."""
    for target, path in (("s3://bucket/sp-1/", "s3://bucket/sp-1/segment-tm-7-0"), ("", "segment-tm-7-0")):
        planner = SegmentPlanner(ResourceID("tm"), 0)
        planner.handle(SnapshotStarted(1, SegmentGroup("", target, CheckpointID(7)), 1))
        planner.handle(BlobEncoded(1, 0, BIG_A))
        assert planner.handle(SegmentWritten(0)) == [CompleteSnapshot(1, (SegmentStateHandle(path, 0, 100),))]


def test_a_ticket_is_used_once(planner: SegmentPlanner) -> None:
    """A defect of the shell is not hidden."""
    planner.handle(SnapshotStarted(1, GROUP, 1))
    with pytest.raises(InvariantViolation):
        planner.handle(SnapshotStarted(1, GROUP, 1))


@pytest.mark.parametrize("seed", range(300))
def test_random_lives_end_with_every_byte_accounted_for(seed: int) -> None:
    """Every snapshot is answered or was cancelled; handles point at its bytes in files that exist; no other file
    stays."""
    choose = random.Random(seed)
    planner = SegmentPlanner(ResourceID("tm"), memory_threshold_bytes=20, segment_bytes=120)
    files: dict[str, bytes] = {}
    blobs: dict[int, list[bytes]] = {}
    to_encode: list[tuple[int, int]] = []
    writing: list[WriteSegment] = []
    completed: dict[int, CompleteSnapshot] = {}
    failed: set[int] = set()
    cancelled: set[int] = set()
    acknowledged: set[int] = set()

    def perform(effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case WriteSegment():
                    assert not any(other.group == effect.group for other in writing), "two writes at once"
                    writing.append(effect)
                case DeleteSegment(group, name):
                    del files[f"{group.target_location}/{name}"]
                case CompleteSnapshot(ticket, _):
                    completed[ticket] = effect
                case FailSnapshot(ticket, _):
                    failed.add(ticket)

    for step in range(200):
        kind = choose.random()
        if kind < 0.2 and step < 150:
            ticket = step + 1
            blobs[ticket] = [choose.randbytes(choose.randint(0, 60)) for _ in range(choose.randint(0, 4))]
            to_encode += [(ticket, index) for index in range(len(blobs[ticket]))]
            group = choose.choice([GROUP, OTHER])
            perform([*planner.handle(SnapshotStarted(ticket, group, len(blobs[ticket])))])
        elif kind < 0.6 and to_encode:
            ticket, index = to_encode.pop(choose.randrange(len(to_encode)))
            perform([*planner.handle(BlobEncoded(ticket, index, blobs[ticket][index]))])
        elif kind < 0.85 and writing:
            write = writing.pop(choose.randrange(len(writing)))
            if choose.random() < 0.1:
                perform([*planner.handle(SegmentFailed(write.segment, OSError()))])
            else:
                files[f"{write.group.target_location}/{write.name}"] = b"".join(write.parts)
                perform([*planner.handle(SegmentWritten(write.segment))])
        elif kind < 0.93 and blobs:
            ticket = choose.choice(list(blobs))
            if ticket in completed and choose.random() < 0.6:
                acknowledged.add(ticket)
                perform([*planner.handle(SnapshotAcknowledged(ticket))])
                continue
            if ticket not in failed | acknowledged:
                cancelled.add(ticket)
                completed.pop(ticket, None)
            perform([*planner.handle(SnapshotCancelled(ticket))])
        elif to_encode:
            ticket, index = to_encode.pop()
            to_encode = [each for each in to_encode if each[0] != ticket]
            perform([*planner.handle(SnapshotFailed(ticket, ValueError()))])
    while to_encode or writing:
        if to_encode:
            ticket, index = to_encode.pop()
            perform([*planner.handle(BlobEncoded(ticket, index, blobs[ticket][index]))])
        else:
            write = writing.pop()
            files[f"{write.group.target_location}/{write.name}"] = b"".join(write.parts)
            perform([*planner.handle(SegmentWritten(write.segment))])
    acknowledge(planner, *sorted(completed))

    assert planner.is_idle
    assert completed.keys() | failed | cancelled == blobs.keys()
    assert not completed.keys() & failed and not completed.keys() & cancelled
    referenced = set()
    for ticket, done in completed.items():
        for handle, blob in zip(done.handles, blobs[ticket], strict=True):
            if isinstance(handle, ByteStreamStateHandle):
                assert handle.data == blob
            else:
                referenced.add(handle.path)
                assert files[handle.path][handle.offset : handle.offset + handle.size] == blob
    assert set(files) == referenced


def test_what_later_checkpoints_carry_on_travels_with_the_acknowledgement(planner: SegmentPlanner) -> None:
    """The files of a checkpoint go with it. Only what is very large is written all the same."""
    planner.handle(SnapshotStarted(1, GROUP, 2))
    large = bytes(CARRIED_ON_BYTES + 1)

    assert planner.handle(BlobEncoded(1, 0, BIG_A, is_carried_on=True)) == []
    [write] = planner.handle(BlobEncoded(1, 1, large, is_carried_on=True))
    assert isinstance(write, WriteSegment)
    assert write.parts == (large,)
    assert planner.handle(SegmentWritten(0)) == [
        CompleteSnapshot(1, (ByteStreamStateHandle(BIG_A), at(0, 0, len(large))))
    ]


def test_a_great_many_small_parts_of_one_subtask_do_not_all_travel_inline(planner: SegmentPlanner) -> None:
    """Data in flight is a part for each channel: a wide job would acknowledge megabytes with each of its subtasks."""
    part = b"p" * 49
    planner.handle(SnapshotStarted(1, GROUP, 52))
    for index in range(51):
        assert planner.handle(BlobEncoded(1, index, part)) == []

    assert planner.handle(BlobEncoded(1, 51, part)) == [WriteSegment(0, GROUP, NAME.format(0), (part,))]

    inline = [ByteStreamStateHandle(part)] * 51
    assert planner.handle(SegmentWritten(0)) == [CompleteSnapshot(1, (*inline, at(0, 0, 49)))]
