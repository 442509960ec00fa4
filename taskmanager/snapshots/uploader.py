"""The shell around SegmentPlanner: encodes and writes snapshots on a few threads (a task whose snapshots are small
encodes its own), and answers the tasks.

One uploader per TaskManager, one sink per task (`for_task`). Every answer is the planner's; here are only threads,
storage and the callbacks. Frozen state is released as soon as it is encoded. A write that was cancelled while it ran is
deleted when it has ended. With local recovery, what is durable is copied to the local disk, too, before the task is
told. Mirrors Flink's AsyncCheckpointRunnable and CheckpointStreamFactory.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import xxhash

from snapline.dataflow.ids import CheckpointID, JobID, OperatorID, ResourceID
from snapline.dataflow.snapshot.digests import digests_of
from snapline.dataflow.snapshot.handles import SegmentStateHandle, StreamStateHandle, TaskStateSnapshot
from snapline.dataflow.urls import is_absolute
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import StorageError, put_parts
from snapline.taskmanager.checkpointing.checkpointing_contract import ChannelState
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot
from snapline.taskmanager.snapshots.blobs import BlobPlan, assemble, merged, plan_blobs
from snapline.taskmanager.snapshots.local_recovery import JobLocalRecovery, LocalRecovery
from snapline.taskmanager.snapshots.planning.local_state_retention import OriginalDeleted
from snapline.taskmanager.snapshots.planning.segment_planner import (
    BlobEncoded,
    CompleteSnapshot,
    DeleteSegment,
    FailSnapshot,
    SegmentEffect,
    SegmentEvent,
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
from snapline.taskmanager.snapshots.upload_threads import UploadThreads, Workers

MEMORY_THRESHOLD_BYTES = 20 << 10
ENCODING_AT_ONCE = 2
"""So many blobs of one snapshot, ..."""
WAITING_BYTES = 80 << 20
"""... and none more while this much of it is encoded and not yet durable; more than SEGMENT_BYTES, at which it is
written."""
SMALL_BYTES = 16 << 10
SMALL_IN_A_ROW = 4
"""A task that has had so many snapshots of no more bytes encodes the next one itself: that takes less than to wake a
thread for it. One that has grown since then stops its task for as long as it takes, once."""
SHARED_LOCATION = "shared"
"""Directory of what several checkpoints refer to, below the checkpoint directory of the job (as in Flink)."""

MAX_UNSETTLED = 32
"""Snapshots of a task that it acknowledged and that did not complete: what was before them is surely the
coordinator's."""

SnapshotAnswer = TaskStateSnapshot | BaseException


@dataclass(frozen=True, slots=True)
class _Running:
    plans: tuple[BlobPlan, ...]
    on_done: Callable[[SnapshotAnswer], None]
    checksums: dict[int, int] = field(default_factory=dict)
    """The checksums of the blobs that need one, by index."""
    digests: dict[int, bytes] = field(default_factory=dict)
    """The digests of the blobs, by index."""

    def answer(self, handles: Sequence[StreamStateHandle]) -> TaskStateSnapshot:
        """Make the subtask's state: what lies in files has its checksum and its digests in the handle."""
        checked = [
            replace(handle, checksum=self.checksums.get(index, 0), digests=self.digests[index])
            if isinstance(handle, SegmentStateHandle)
            else handle
            for index, handle in enumerate(handles)
        ]
        return assemble(self.plans, checked)


@dataclass(frozen=True, slots=True)
class _Blob:
    """One that is encoded now."""

    job_id: JobID
    ticket: int
    index: int
    plan: BlobPlan


@dataclass(slots=True)
class _Held:
    """What of a snapshot is not encoded yet, so that a large one is not in memory all at once."""

    job_id: JobID
    plans: deque[tuple[int, BlobPlan]]
    encoding: int = 0


class SnapshotUploader:
    """Encodes and stores the snapshots of all tasks of one TaskManager."""

    def __init__(
        self,
        resource_id: ResourceID,
        storages: StateStorages,
        *,
        memory_threshold_bytes: int = MEMORY_THRESHOLD_BYTES,
        workers: Workers | None = None,
        local: LocalRecovery | None = None,
    ) -> None:
        """`workers` encode and write; None: threads of its own. The simulator brings some without threads."""
        self._storages = storages
        self._local = local
        self._planner = SegmentPlanner(resource_id, memory_threshold_bytes)
        self._workers = workers or UploadThreads()
        self._lock = threading.Lock()
        self._running: dict[int, _Running] = {}
        self._held: dict[int, _Held] = {}
        self._tickets = itertools.count(1)

    def for_task(
        self,
        checkpoint_directory: str,
        local: JobLocalRecovery | None = None,
        memory_threshold_bytes: int | None = None,
        job_id: JobID = JobID(""),
    ) -> TaskSnapshotSink:
        """The sink of one attempt. `checkpoint_directory`: of its job, from the deployment descriptor.
        `memory_threshold_bytes`: what the job says of it, else it is the TaskManager's."""
        return TaskSnapshotSink(self, checkpoint_directory, local, memory_threshold_bytes, job_id)

    def start(
        self,
        group: SegmentGroup,
        plans: Sequence[BlobPlan],
        on_done: Callable[[SnapshotAnswer], None],
        memory_threshold_bytes: int | None = None,
        *,
        in_place: bool = False,
    ) -> int:
        """Begin; returns the ticket for `cancel`. `on_done` is called from any thread, perhaps before this returns.
        `in_place`: the calling thread encodes."""
        ticket = next(self._tickets)
        with self._lock:
            self._running[ticket] = _Running(tuple(plans), on_done)
            self._held[ticket] = _Held(group.job_id, deque(enumerate(plans)))
            effects = self._planner.handle(SnapshotStarted(ticket, group, len(plans), memory_threshold_bytes))
        self._perform(effects)
        if in_place:
            while mine := self._take_held(1, ticket):
                self._encode_one(mine[0])
        else:
            self._encode_more()
        return ticket

    def _encode_more(self) -> None:
        """Let blobs be encoded that were held back."""
        for blob in self._take_held():
            self._submit(blob.job_id, partial(self._encode, blob), blob.plan.release)

    def _take_held(self, most: int | None = None, of: int | None = None) -> list[_Blob]:
        """What may be encoded now, so many blobs at most, of all snapshots or one; those of snapshots that are over are
        released."""
        with self._lock:
            begin: list[_Blob] = []
            over: list[BlobPlan] = []
            for ticket, held in list(self._held.items()):
                if ticket not in self._running:
                    over += [plan for _, plan in held.plans]
                    held.plans.clear()
                while (
                    held.plans
                    and of in {None, ticket}
                    and len(begin) != most
                    and held.encoding < ENCODING_AT_ONCE
                    and self._planner.waiting_bytes(ticket) < WAITING_BYTES
                ):
                    index, plan = held.plans.popleft()
                    held.encoding += 1
                    begin.append(_Blob(held.job_id, ticket, index, plan))
                if not held.plans:
                    del self._held[ticket]
        for plan in over:
            plan.release()
        return begin

    def knows(self, ticket: int) -> bool:
        """Whether the snapshot runs, or is complete and neither acknowledged nor cancelled."""
        with self._lock:
            return ticket in self._running or self._planner.knows(ticket)

    def acknowledged(self, ticket: int) -> None:
        """The coordinator knows of it: its files are not ours any more."""
        self._tell(SnapshotAcknowledged(ticket))

    def cancel(self, ticket: int) -> None:
        """Abandon; what was or will be written for it alone is deleted. No answer comes after this."""
        with self._lock:
            self._running.pop(ticket, None)
        self._tell(SnapshotCancelled(ticket))
        self._encode_more()

    def close(self) -> None:
        """Give up what waits, wait for what runs. Nothing is answered any more."""
        with self._lock:
            self._running.clear()
        self._encode_more()
        self._workers.close()

    def _tell(self, event: SegmentEvent) -> None:
        with self._lock:
            effects = self._planner.handle(event)
            if isinstance(event, BlobEncoded | SnapshotFailed) and event.ticket in self._held:
                self._held[event.ticket].encoding -= 1
        self._perform(effects)

    def _perform(self, effects: Sequence[SegmentEffect]) -> None:
        for effect in effects:
            match effect:
                case WriteSegment():
                    self._submit(effect.group.job_id, partial(self._write, effect), lambda: None)
                case DeleteSegment(group, name):
                    self._submit(group.job_id, partial(self._delete, group, name), lambda: None)
                case CompleteSnapshot(ticket, handles):
                    with self._lock:
                        running = self._running.pop(ticket, None)
                    if running is not None:
                        running.on_done(running.answer(handles))
                case FailSnapshot(ticket, error):
                    with self._lock:
                        running = self._running.pop(ticket, None)
                    if running is not None:
                        running.on_done(error)

    def _submit(self, job_id: JobID, work: Callable[[], None], instead: Callable[[], None]) -> None:
        try:
            self._workers.submit(job_id, work)
        except RuntimeError:  # the TaskManager is going down
            instead()

    def _encode(self, blob: _Blob) -> None:
        """One blob, and then others that were held back, one after the other: that wakes no other thread."""
        begin = [blob]
        while begin:
            self._encode_one(begin[0])
            begin = self._take_held(1)

    def _encode_one(self, blob: _Blob) -> None:
        ticket, index, plan = blob.ticket, blob.index, blob.plan
        with self._lock:
            running = self._running.get(ticket)
        if running is None:
            plan.release()
            return
        try:
            try:
                data = plan.encode()
            finally:
                plan.release()
        except Exception as error:
            self._tell(SnapshotFailed(ticket, error))
        else:
            if plan.needs_checksum:
                running.checksums[index] = xxhash.xxh64_intdigest(data)
            running.digests[index] = digests_of(data)
            self._tell(BlobEncoded(ticket, index, data, plan.is_carried_on))

    def _write(self, effect: WriteSegment) -> None:
        group = effect.group
        try:
            storage, path = self._storages.locate(group.base, _path(group, effect.name))
            put_parts(storage, path, effect.parts)
            if self._local is not None and group.is_copied:
                self._local.write(group.job_id, group.checkpoint_id, _path(group, effect.name), effect.parts)
        except Exception as error:
            self._tell(SegmentFailed(effect.segment, error))
        else:
            self._tell(SegmentWritten(effect.segment))
        self._encode_more()

    def _delete(self, group: SegmentGroup, name: str) -> None:
        if self._local is not None and group.is_copied:
            self._local.tell(OriginalDeleted(group.job_id, _path(group, name)))
        with contextlib.suppress(StorageError):  # the coordinator deletes the whole directory of an aborted checkpoint
            storage, path = self._storages.locate(group.base, _path(group, name))
            storage.delete(path)


class TaskSnapshotSink:
    """Where one task's snapshots go (SnapshotSink). Called from the task's thread."""

    def __init__(
        self,
        uploader: SnapshotUploader,
        checkpoint_directory: str,
        local: JobLocalRecovery | None = None,
        memory_threshold_bytes: int | None = None,
        job_id: JobID = JobID(""),
    ) -> None:
        self._uploader = uploader
        self._checkpoint_directory = checkpoint_directory
        self._job_id = job_id if local is None else local.job_id
        self._local = local
        self._memory_threshold_bytes = memory_threshold_bytes
        self._tickets: dict[CheckpointID, tuple[int, ...]] = {}
        self._acknowledged: dict[CheckpointID, tuple[int, ...]] = {}
        """The acknowledged snapshots of which nobody has said yet that the coordinator knows them."""
        self._copied: dict[CheckpointID, None] = {}
        """With local recovery: checkpoints (savepoints have no copies) of which nobody has said what became of them."""
        self._small_in_a_row = 0
        """The snapshots since the last one that was not small, or failed."""

    def start(
        self,
        checkpoint_id: CheckpointID,
        target_location: str,
        snapshots: Sequence[tuple[OperatorID, OperatorSnapshot]],
        channel_state: ChannelState | None,
        on_done: Callable[[Any], None],
    ) -> None:
        """Encode and store in the background; `on_done` is called from any thread with a TaskStateSnapshot or an
        exception, unless `cancel` came first. `snapshots`: tail of the chain first."""
        base = "" if is_absolute(target_location) else self._checkpoint_directory
        is_copied = self._local is not None and bool(base)
        if is_copied:
            self._copied[checkpoint_id] = None
        group = SegmentGroup(base, target_location, checkpoint_id, self._job_id, is_copied)
        plans = plan_blobs(snapshots, channel_state)
        knows = self._uploader.knows
        self._tickets = {known: tickets for known, tickets in self._tickets.items() if any(map(knows, tickets))}
        shared = [plan for plan in plans if plan.is_shared]
        threshold_bytes = self._memory_threshold_bytes
        if not shared:
            is_small = self._small_in_a_row >= SMALL_IN_A_ROW
            ticket = self._uploader.start(group, plans, self._measured(on_done), threshold_bytes, in_place=is_small)
            self._tickets[checkpoint_id] = (ticket,)
            return
        own = [plan for plan in plans if not plan.is_shared]
        both = _Both(on_done)
        shared_group = replace(group, target_location=SHARED_LOCATION)
        first = self._uploader.start(shared_group, shared, both.take_answer, threshold_bytes)
        self._tickets[checkpoint_id] = (first, self._uploader.start(group, own, both.take_answer, threshold_bytes))

    def _measured(self, on_done: Callable[[Any], None]) -> Callable[[Any], None]:
        def take_answer(answer: SnapshotAnswer) -> None:
            is_small = isinstance(answer, TaskStateSnapshot) and answer.state_size_bytes <= SMALL_BYTES
            self._small_in_a_row = self._small_in_a_row + 1 if is_small else 0
            on_done(answer)

        return take_answer

    def cancel(self, checkpoint_id: CheckpointID) -> None:
        """Abandon; delete what was written, unless that was acknowledged."""
        for ticket in self._tickets.pop(checkpoint_id, ()):
            self._uploader.cancel(ticket)

    def acknowledged(self, checkpoint_id: CheckpointID, state: TaskStateSnapshot) -> None:
        """The coordinator is being told of it: `cancel` leaves alone from now on what was written."""
        if self._local is not None and checkpoint_id in self._copied:
            self._local.refer(checkpoint_id, state)
        tickets = tuple(filter(self._uploader.knows, self._tickets.pop(checkpoint_id, ())))
        if tickets:
            self._acknowledged[checkpoint_id] = tickets
        if len(self._acknowledged) > MAX_UNSETTLED:
            self._hand_over(next(iter(self._acknowledged)))

    def settled(self, checkpoint_id: CheckpointID, *, completed: bool) -> None:
        """The coordinator says what became of it. One that it aborted may have been acknowledged too late for it to
        hear."""
        if completed and checkpoint_id in self._acknowledged:
            self._hand_over(checkpoint_id)
        if self._local is None or checkpoint_id not in self._copied:
            return
        if completed:
            self._copied = {known: None for known in self._copied if known > checkpoint_id}
            self._local.complete(checkpoint_id)
        else:
            del self._copied[checkpoint_id]
            self._local.abort(checkpoint_id)

    def release(self, untold: Collection[CheckpointID]) -> None:
        """The task has ended, and with these checkpoints the coordinator was never told of it: what was written for
        them is deleted, all else is the coordinator's. Called from any thread, after everything else."""
        for checkpoint_id in list(self._acknowledged):
            if checkpoint_id not in untold:
                self._hand_over(checkpoint_id)
        for tickets in self._acknowledged.values():
            for ticket in tickets:
                self._uploader.cancel(ticket)
        self._acknowledged.clear()

    def _hand_over(self, checkpoint_id: CheckpointID) -> None:
        for ticket in self._acknowledged.pop(checkpoint_id):
            self._uploader.acknowledged(ticket)


class _Both:
    """Answers when both of two uploads have answered, with the first error if there is one. Called from any thread."""

    def __init__(self, on_done: Callable[[SnapshotAnswer], None]) -> None:
        self._on_done = on_done
        self._lock = threading.Lock()
        self._first: SnapshotAnswer | None = None

    def take_answer(self, answer: SnapshotAnswer) -> None:
        with self._lock:
            first, self._first = self._first, answer
        if isinstance(first, BaseException):
            return  # answered already
        if isinstance(answer, BaseException):
            self._on_done(answer)
        elif first is not None:
            self._on_done(merged(first, answer))


def _path(group: SegmentGroup, name: str) -> str:
    location = group.target_location.rstrip("/")
    return f"{location}/{name}" if location else name
