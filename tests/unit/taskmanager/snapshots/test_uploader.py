"""Encoding, writing, answering, and reading back: on memory and on a disk, with real threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from snapline.dataflow.ids import CheckpointID, JobID, OperatorID, ResourceID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.digests import ChangedState
from snapline.dataflow.snapshot.handles import (
    ByteStreamStateHandle,
    OperatorStateMode,
    SegmentStateHandle,
    TaskStateSnapshot,
)
from snapline.runtime.storage.memory_storage import MemoryStorage
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import Buffer, StorageError
from snapline.taskmanager.checkpointing.checkpointing_contract import ChannelState
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo, ResultSubpartitionInfo
from snapline.taskmanager.operators.base.operator_contract import OperatorListSnapshot, OperatorSnapshot
from snapline.taskmanager.snapshots import restore
from snapline.taskmanager.snapshots.restore import SnapshotReader
from snapline.taskmanager.snapshots.upload_threads import UploadThreads
from snapline.taskmanager.snapshots.uploader import (
    MAX_UNSETTLED,
    SMALL_BYTES,
    SMALL_IN_A_ROW,
    SnapshotUploader,
    TaskSnapshotSink,
)
from snapline.taskmanager.task.task_restore import decode_channel_state
from tests.services.cluster import wait_until

HEAD, TAIL = OperatorID("head"), OperatorID("tail")
BASE = "memory://uploads"
KEY_GROUPS = KeyGroupRange(0, 63)
ANSWER_SECONDS_MAX = 20


@dataclass
class Part:
    """Keyed state that says what happened to it."""

    data: bytes = b"k" * 100_000
    gate: threading.Event | None = None
    error: Exception | None = None
    calls: list[str] = field(default_factory=list)
    key_group_range: KeyGroupRange = KEY_GROUPS
    encoded_by: threading.Thread | None = None

    def encode(self) -> bytes:
        self.calls.append("encode")
        self.encoded_by = threading.current_thread()
        if self.gate is not None:
            assert self.gate.wait(ANSWER_SECONDS_MAX)
        if self.error is not None:
            raise self.error
        return self.data

    def release(self) -> None:
        self.calls.append("release")


class Gated(MemoryStorage):
    """Memory whose writes wait for permission, and can be told to fail."""

    def __init__(self) -> None:
        super().__init__("gated")
        self.begun: queue.Queue[str] = queue.Queue()
        self.gate = threading.Event()
        self.error: StorageError | None = None
        self.deleted: queue.Queue[str] = queue.Queue()

    def put_parts(self, path: str, parts: Any) -> None:
        self.begun.put(path)
        assert self.gate.wait(ANSWER_SECONDS_MAX)
        if self.error is not None:
            raise self.error
        super().put_parts(path, parts)

    def delete(self, path: str) -> None:
        super().delete(path)
        self.deleted.put(path)


@pytest.fixture
def memory() -> MemoryStorage:
    return MemoryStorage("uploads")


@pytest.fixture
def uploader(memory: MemoryStorage) -> Iterator[SnapshotUploader]:
    made = SnapshotUploader(ResourceID("tm-1"), StateStorages(lambda _: memory))
    yield made
    made.close()


@pytest.fixture
def gated() -> Gated:
    return Gated()


@pytest.fixture
def gated_uploader(gated: Gated) -> Iterator[SnapshotUploader]:
    made = SnapshotUploader(ResourceID("tm-1"), StateStorages(lambda _: gated))
    yield made
    gated.gate.set()
    made.close()


def begin(
    sink: TaskSnapshotSink,
    *snapshots: tuple[OperatorID, OperatorSnapshot],
    channel_state: ChannelState | None = None,
    checkpoint: int = 7,
    target: str = "chk-7",
) -> queue.Queue[Any]:
    answers: queue.Queue[Any] = queue.Queue()
    sink.start(CheckpointID(checkpoint), target, snapshots, channel_state, answers.put)
    return answers


def answer(answers: queue.Queue[Any]) -> Any:
    return answers.get(timeout=ANSWER_SECONDS_MAX)


def read(memory: MemoryStorage, handle: Any) -> bytes:
    blob = SnapshotReader(BASE, StateStorages(lambda _: memory)).open_state(handle)
    return blob.read_range(0, blob.size)


def lists(**elements: tuple[bytes, ...]) -> tuple[OperatorListSnapshot, ...]:
    return tuple(
        OperatorListSnapshot(name, OperatorStateMode.SPLIT_DISTRIBUTE, values) for name, values in elements.items()
    )


def test_everything_comes_back(uploader: SnapshotUploader, memory: MemoryStorage) -> None:
    """Keyed parts, list elements and data in flight, each under its operator: inputs at the head, outputs at the
    tail."""
    part = Part()
    one, two = pa.record_batch({"a": [1, 2, 3]}), pa.record_batch({"b": ["x"]})
    in_flight = ChannelState({InputChannelInfo(0, 1): (one.slice(1), two, two)}, {ResultSubpartitionInfo(2, 3): (one,)})

    state = answer(
        begin(
            uploader.for_task(BASE),
            (TAIL, OperatorSnapshot(operator_lists=lists(first=(b"one", b"", b"three"), empty=()))),
            (HEAD, OperatorSnapshot(keyed=(part,))),
            channel_state=in_flight,
        )
    )

    assert isinstance(state, TaskStateSnapshot)
    head, tail = state.operators[HEAD], state.operators[TAIL]
    assert head.managed_keyed[0].key_group_range == KeyGroupRange(0, 63)
    assert read(memory, head.managed_keyed[0].handle) == part.data
    handle = tail.managed_operator[0]
    assert {
        entry.name: [read(memory, handle.handle)[o : o + s] for o, s in entry.offsets] for entry in handle.entries
    } == {
        "first": [b"one", b"", b"three"],
        "empty": [],
    }
    (received,), (sent,) = head.input_channel, tail.output_channel
    assert (received.gate_or_partition, received.channel, received.batch_count) == (0, 1, 3)
    assert (sent.gate_or_partition, sent.channel, sent.batch_count) == (2, 3, 1)
    assert decode_channel_state(read(memory, received.handle)) == [one.slice(1), two, two]
    assert decode_channel_state(read(memory, sent.handle)) == [one]
    assert not any([tail.managed_keyed, head.managed_operator, tail.input_channel, head.output_channel])
    assert part.calls == ["encode", "release"]
    assert [path for path, _ in memory.list("")] == ["chk-7/segment-tm-1-7-0"]


def test_a_flipped_byte_of_list_state_or_data_in_flight_is_noticed(
    uploader: SnapshotUploader, memory: MemoryStorage
) -> None:
    """Whichever it is, and whichever part of the blob is read."""
    rows = pa.record_batch({"a": [1, 2, 3]})
    state = answer(
        begin(
            uploader.for_task(BASE, memory_threshold_bytes=0),
            (HEAD, OperatorSnapshot(keyed=(Part(),), operator_lists=lists(positions=(b"12", b"345")))),
            channel_state=ChannelState({InputChannelInfo(0, 0): (rows,)}, {}),
        )
    )
    head = state.operators[HEAD]
    checked = [head.managed_operator[0].handle, head.input_channel[0].handle]
    assert head.managed_keyed[0].handle.checksum == 0
    (path,) = [path for path, _ in memory.list("")]
    whole = memory.get(path)

    for handle in checked:
        for position in range(handle.size):
            damaged = bytearray(whole)
            damaged[handle.offset + position] ^= 0x08
            memory.put(path, bytes(damaged))
            blob = SnapshotReader(BASE, StateStorages(lambda _: memory)).open_state(handle)
            with pytest.raises(ChangedState, match=rf"{path} was changed .*: its bytes {handle.offset} to"):
                blob.read_range(0, 1)
    memory.put(path, whole)
    assert [len(read(memory, handle)) for handle in checked] == [handle.size for handle in checked]


def test_a_task_without_state_answers_without_storage(uploader: SnapshotUploader, memory: MemoryStorage) -> None:
    """And one with little state writes no file."""
    sink = uploader.for_task(BASE)

    assert answer(begin(sink, (HEAD, OperatorSnapshot()))) == TaskStateSnapshot()
    small = answer(begin(sink, (HEAD, OperatorSnapshot(keyed=(Part(b"tiny"),))), checkpoint=8))
    assert small.operators[HEAD].managed_keyed[0].handle == ByteStreamStateHandle(b"tiny")
    assert memory.list("") == []


def test_subtasks_share_a_segment_file(gated_uploader: SnapshotUploader, gated: Gated) -> None:
    """While the first file is being written, everybody else gathers in the second."""
    first = begin(gated_uploader.for_task(BASE), (HEAD, OperatorSnapshot(keyed=(Part(b"0" * 30_000),))))
    gated.begun.get(timeout=ANSWER_SECONDS_MAX)
    release = threading.Event()
    parts = [Part(str(n).encode() * 30_000, gate=release) for n in range(1, 6)]
    others = [begin(gated_uploader.for_task(BASE), (HEAD, OperatorSnapshot(keyed=(part,)))) for part in parts]
    release.set()
    gated.gate.set()

    states = [answer(answers) for answers in [first, *others]]

    handles = [state.operators[HEAD].managed_keyed[0].handle for state in states]
    assert {handle.path for handle in handles} == {"chk-7/segment-tm-1-7-0", "chk-7/segment-tm-1-7-1"}
    assert [read(gated, handle)[:1] for handle in handles] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_union_state_of_a_finished_operator_travels_with_the_acknowledgement(uploader: SnapshotUploader) -> None:
    """Later checkpoints carry it on, when the files of this one are gone; other state goes to a file as ever."""
    sink = uploader.for_task(BASE)
    data = b"u" * 50_000
    union = (OperatorListSnapshot("list", OperatorStateMode.UNION, (data,)),)
    split = (OperatorListSnapshot("list", OperatorStateMode.SPLIT_DISTRIBUTE, (data,)),)
    answers: queue.Queue[Any] = queue.Queue()
    final = [(HEAD, OperatorSnapshot((), union, is_final=True)), (TAIL, OperatorSnapshot((), split, is_final=True))]
    sink.start(CheckpointID(4), "chk-4", final, None, answers.put)
    operators = answer(answers).operators

    assert operators[HEAD].managed_operator[0].handle == ByteStreamStateHandle(data)
    assert isinstance(operators[TAIL].managed_operator[0].handle, SegmentStateHandle)


def test_an_encoding_that_fails_is_the_answer(uploader: SnapshotUploader, memory: MemoryStorage) -> None:
    """The exception itself; everything is released, nothing stays."""
    broken, whole = Part(error=ValueError("cannot encode")), Part()

    result = answer(begin(uploader.for_task(BASE), (HEAD, OperatorSnapshot(keyed=(broken, whole)))))
    uploader.close()

    assert isinstance(result, ValueError)
    assert broken.calls == ["encode", "release"] and whole.calls.count("release") == 1
    assert memory.list("") == []


def test_a_write_that_fails_is_the_answer(gated_uploader: SnapshotUploader, gated: Gated) -> None:
    """The storage's own message."""
    gated.error = StorageError("cannot write chk-7: the disk is full")
    gated.gate.set()

    result = answer(begin(gated_uploader.for_task(BASE), (HEAD, OperatorSnapshot(keyed=(Part(),)))))

    assert isinstance(result, StorageError) and "the disk is full" in str(result)


def test_cancelling_during_the_write_deletes_the_file_and_answers_nothing(
    gated_uploader: SnapshotUploader, gated: Gated
) -> None:
    """The delete comes after the write."""
    sink = gated_uploader.for_task(BASE)
    part = Part()
    answers = begin(sink, (HEAD, OperatorSnapshot(keyed=(part,))))
    path = gated.begun.get(timeout=ANSWER_SECONDS_MAX)

    sink.cancel(CheckpointID(7))
    sink.cancel(CheckpointID(7))
    gated.gate.set()

    assert gated.deleted.get(timeout=ANSWER_SECONDS_MAX) == path
    assert gated.list("") == [] and answers.empty()
    assert part.calls == ["encode", "release"]


def test_cancelling_before_the_encoding_releases_without_it(gated_uploader: SnapshotUploader) -> None:
    """All threads are busy with others; what waits is dropped."""
    gate = threading.Event()
    busy = [
        begin(gated_uploader.for_task(BASE), (HEAD, OperatorSnapshot(keyed=tuple(Part(b"b", gate) for _ in range(2)))))
        for _ in range(2)
    ]
    sink = gated_uploader.for_task(BASE)
    part = Part()
    answers = begin(sink, (HEAD, OperatorSnapshot(keyed=(part,))))

    sink.cancel(CheckpointID(7))
    gate.set()
    for answers_of_busy in busy:
        answer(answers_of_busy)
    gated_uploader.close()

    assert part.calls == ["release"] and answers.empty()


@pytest.mark.parametrize("acknowledged", [True, False])
def test_cancelling_what_was_answered(uploader: SnapshotUploader, memory: MemoryStorage, acknowledged: bool) -> None:
    """Its file stays when the coordinator was told of it; when nobody was, it is nobody's."""
    sink = uploader.for_task(BASE)
    answer(begin(sink, (HEAD, OperatorSnapshot(keyed=(Part(),)))))
    if acknowledged:
        sink.acknowledged(CheckpointID(7), TaskStateSnapshot())

    sink.cancel(CheckpointID(7))
    uploader.close()

    assert len(memory.list("chk-7")) == acknowledged


def test_what_the_coordinator_was_never_told_of_is_deleted_with_the_end_of_the_task(
    uploader: SnapshotUploader, memory: MemoryStorage
) -> None:
    """Of four checkpoints, one of which is complete."""
    sink = uploader.for_task(BASE)
    for number in (5, 6, 7, 8):
        answer(begin(sink, (HEAD, OperatorSnapshot(keyed=(Part(),))), checkpoint=number, target=f"chk-{number}"))
        sink.acknowledged(CheckpointID(number), TaskStateSnapshot())
    sink.settled(CheckpointID(6), completed=True)

    sink.release(untold=(CheckpointID(8),))
    uploader.close()

    assert sorted(path.partition("/")[0] for path, _ in memory.list("")) == ["chk-5", "chk-6", "chk-7"]


@pytest.mark.parametrize("first", ["told", "untold"])
def test_a_file_that_the_coordinator_needs_for_another_task_stays(
    uploader: SnapshotUploader, memory: MemoryStorage, first: str
) -> None:
    """Two tasks in one file, and the coordinator was told of one of them, whichever ends first."""
    gate = threading.Event()
    tasks = {name: uploader.for_task(BASE) for name in ("told", "untold")}
    begun = [begin(sink, (HEAD, OperatorSnapshot(keyed=(Part(gate=gate),)))) for sink in tasks.values()]
    gate.set()
    for sink, answers in zip(tasks.values(), begun, strict=True):
        sink.acknowledged(CheckpointID(7), answer(answers))
    assert len(memory.list("")) == 1

    for name in sorted(tasks, reverse=first == "untold"):
        tasks[name].release((CheckpointID(7),) if name == "untold" else ())
    uploader.close()

    assert len(memory.list("")) == 1


def test_snapshots_of_which_nobody_says_what_became_are_not_kept_in_mind_for_ever(
    uploader: SnapshotUploader, memory: MemoryStorage
) -> None:
    """Savepoints, for instance, which tasks are not notified of."""
    sink = uploader.for_task(BASE)
    numbers = [CheckpointID(number) for number in range(1, MAX_UNSETTLED + 3)]
    for number in numbers:
        answer(begin(sink, (HEAD, OperatorSnapshot(keyed=(Part(),))), checkpoint=number, target=f"chk-{number}"))
        sink.acknowledged(number, TaskStateSnapshot())

    sink.release(untold=numbers)
    uploader.close()

    assert sorted(path.partition("/")[0] for path, _ in memory.list("")) == ["chk-1", "chk-2"]


def test_an_aborted_checkpoint_may_be_one_that_nobody_heard_of(
    uploader: SnapshotUploader, memory: MemoryStorage
) -> None:
    """The coordinator aborted it, and was lost before the task acknowledged it: only the TaskExecutor knows."""
    sink = uploader.for_task(BASE)
    answer(begin(sink, (HEAD, OperatorSnapshot(keyed=(Part(),)))))
    sink.acknowledged(CheckpointID(7), TaskStateSnapshot())

    sink.settled(CheckpointID(7), completed=False)
    sink.release(untold=(CheckpointID(7),))
    uploader.close()

    assert memory.list("") == []


def test_after_close_nothing_is_answered_and_all_is_released(uploader: SnapshotUploader) -> None:
    """A TaskManager that goes down."""
    uploader.close()
    part = Part()

    answers = begin(uploader.for_task(BASE), (HEAD, OperatorSnapshot(keyed=(part,))))

    assert part.calls == ["release"] and answers.empty()


def test_savepoints_go_where_they_are_asked_to(tmp_path: Path) -> None:
    """An absolute target: handles are absolute, and readable from anywhere."""
    storages = StateStorages(open_storage)
    uploader = SnapshotUploader(ResourceID("tm-1"), storages)
    target = (tmp_path / "savepoints" / "sp-1").as_uri()
    try:
        state = answer(
            begin(
                uploader.for_task(f"{tmp_path}/checkpoints/job"),
                (HEAD, OperatorSnapshot(keyed=(Part(),))),
                target=target,
            )
        )
    finally:
        uploader.close()

    handle = state.operators[HEAD].managed_keyed[0].handle
    assert handle.path == f"{target}/segment-tm-1-7-0"
    assert [path.name for path in tmp_path.iterdir()] == ["savepoints"]
    assert SnapshotReader("memory://elsewhere", storages).open_state(handle).read_range(0, 3) == b"kkk"


class CountingMemory(MemoryStorage):
    """Memory that knows what was read."""

    def __init__(self) -> None:
        super().__init__("counting")
        self.reads: list[tuple[int, int]] = []

    def get_range(self, path: str, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        return super().get_range(path, offset, size)


def test_small_blobs_are_fetched_once_and_large_ones_by_range() -> None:
    """Many list elements make one request; a rescale reads only its key groups."""
    storage = CountingMemory()
    storage.put("chk-1/s", bytes(3 << 20))
    reader = SnapshotReader(BASE, StateStorages(lambda _: storage))
    small, large = (
        reader.open_state(SegmentStateHandle("chk-1/s", offset, size)) for offset, size in ((10, 1000), (2000, 2 << 20))
    )

    for index in range(10):
        assert len(small.read_range(index * 100, 100)) == 100
    large.read_range(5, 50)
    large.read_range(500, 7)

    assert storage.reads == [(10, 1000), (2005, 50), (2500, 7)]


def test_what_has_a_checksum_is_fetched_whole_unless_it_is_very_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a whole blob can be checked; one that is very large is checked when it is read at once."""
    monkeypatch.setattr(restore, "CHECKED_WHOLE_BYTES", 2 << 20)
    storage = CountingMemory()
    storage.put("chk-1/s", bytes(4 << 20))
    reader = SnapshotReader(BASE, StateStorages(lambda _: storage))
    checksum = xxhash.xxh64_intdigest(bytes(2 << 20))
    large = reader.open_state(SegmentStateHandle("chk-1/s", 7, 2 << 20, checksum))
    very_large = reader.open_state(SegmentStateHandle("chk-1/s", 7, 3 << 20, checksum))

    assert len(large.read_range(5, 50)) == len(large.read_range(500, 50)) == len(very_large.read_range(5, 50)) == 50
    assert storage.reads == [(7, 2 << 20), (12, 50)]
    with pytest.raises(StorageError, match="is damaged"):
        very_large.read_range(0, 3 << 20)


@pytest.mark.parametrize("handle", [ByteStreamStateHandle(b"12345"), SegmentStateHandle("chk-1/s", 0, 5)])
def test_reading_beyond_a_blob_is_refused(handle: Any) -> None:
    """A neighbour's bytes are never handed out."""
    storage = MemoryStorage("reading")
    storage.put("chk-1/s", b"1234567890")
    blob = SnapshotReader(BASE, StateStorages(lambda _: storage)).open_state(handle)

    assert blob.read_range(3, 2) == b"45" and blob.read_range(5, 0) == b""
    for offset, size in ((3, 3), (-1, 2), (0, -1)):
        with pytest.raises(StorageError, match="the snapshot is damaged"):
            blob.read_range(offset, size)


def test_storages_are_opened_once_per_directory() -> None:
    """And no more than a bounded number stays open."""
    opened: list[str] = []

    def open_it(url: str) -> MemoryStorage:
        opened.append(url)
        return MemoryStorage(url)

    storages = StateStorages(open_it)
    assert storages.locate("s3://b/job", "chk-1/x")[1] == "chk-1/x"
    assert storages.locate("s3://b/job", "s3://b/old/chk-9/y")[1] == "y"
    assert storages.locate("s3://b/job", "/mnt/sp/z")[1] == "z"
    storages.locate("s3://b/job", "chk-2/x")
    assert opened == ["s3://b/job", "s3://b/old/chk-9", "/mnt/sp"]

    for number in range(100):
        storages.at(str(number))
    assert len(storages._storages) == 64


def test_any_buffer_will_do(uploader: SnapshotUploader, memory: MemoryStorage) -> None:
    """A backend may encode into an Arrow buffer; nobody copies it."""

    class ArrowPart(Part):
        def encode(self) -> bytes:
            buffer: Buffer = memoryview(pa.py_buffer(b"z" * 50_000))
            return buffer  # type: ignore[return-value]  # the point of the test

    state = answer(begin(uploader.for_task(BASE), (HEAD, OperatorSnapshot(keyed=(ArrowPart(),)))))

    assert read(memory, state.operators[HEAD].managed_keyed[0].handle) == b"z" * 50_000


def test_a_thread_that_has_encoded_goes_on_with_what_was_held_back(memory: MemoryStorage) -> None:
    """Each blob was a call of its own, which woke another thread while this one went to sleep."""

    class Counting(UploadThreads):
        calls = 0

        def submit(self, job_id: JobID, work: Callable[[], None]) -> None:
            self.calls += 1
            super().submit(job_id, work)

    workers = Counting()
    uploader = SnapshotUploader(ResourceID("tm-1"), StateStorages(lambda _: memory), workers=workers)
    parts = [Part(b"k" * 100) for _ in range(8)]
    state = answer(begin(uploader.for_task(BASE), (HEAD, OperatorSnapshot(keyed=tuple(parts)))))
    uploader.close()

    assert 8 == len(state.operators[HEAD].managed_keyed)
    assert (2, [["encode", "release"]] * 8) == (workers.calls, [part.calls for part in parts])


def test_a_large_snapshot_is_not_in_memory_all_at_once(
    gated: Gated, gated_uploader: SnapshotUploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While storage is slow no more is encoded than a bit over the limit; what was held back is encoded, or
    released."""
    monkeypatch.setattr("snapline.taskmanager.snapshots.uploader.WAITING_BYTES", 250_000)
    gated_uploader._planner._segment_bytes = 200_000
    parts = [Part() for _ in range(20)]
    sink = gated_uploader.for_task(BASE)
    answers = begin(sink, (HEAD, OperatorSnapshot(keyed=tuple(parts))))
    gated.begun.get(timeout=ANSWER_SECONDS_MAX)
    assert sum("encode" in part.calls for part in parts) <= 5  # three that wait, and two that had begun

    gated.gate.set()
    state = answer(answers)
    assert 20 == len(state.operators[HEAD].managed_keyed)
    assert [["encode", "release"]] * 20 == [part.calls for part in parts]

    gated.gate.clear()
    parts = [Part() for _ in range(20)]
    answers = begin(sink, (HEAD, OperatorSnapshot(keyed=tuple(parts))), checkpoint=8)
    sink.cancel(CheckpointID(8))
    gated.gate.set()
    gated_uploader.close()
    assert ["release"] * 20 == [part.calls[-1] for part in parts]
    assert answers.empty()


def test_a_task_whose_snapshots_are_small_encodes_the_next_one_itself(memory: MemoryStorage) -> None:
    """Nobody is woken for it, and the answer is there when `start` returns; a large one, or one that fails, goes to the
    threads again next time, and what has to be written always does."""
    handed_over: list[int] = []

    class Noting(UploadThreads):
        def submit(self, job_id: JobID, work: Callable[[], None]) -> None:
            handed_over.append(checkpoint)
            super().submit(job_id, work)

    uploader = SnapshotUploader(ResourceID("tm-1"), StateStorages(lambda _: memory), workers=Noting())
    sink = uploader.for_task(BASE)
    small, large = b"k" * SMALL_BYTES, b"k" * (SMALL_BYTES + 1)
    small_ones = [small] * (SMALL_IN_A_ROW + 2)
    states: list[bytes | ValueError] = [*small_ones, large, *small_ones, ValueError("lost"), small]
    answers: queue.Queue[Any] = queue.Queue()
    for checkpoint, data in enumerate(states, 1):
        part = Part(error=data) if isinstance(data, ValueError) else Part(data)
        answers = begin(sink, (HEAD, OperatorSnapshot(keyed=(part,))), checkpoint=checkpoint)
        found = answers.get_nowait() if checkpoint not in handed_over else answer(answers)
        assert data == (found if isinstance(data, ValueError) else found.operators[HEAD].managed_keyed[0].handle.data)
        assert ["encode", "release"] == part.calls
        sink.acknowledged(CheckpointID(checkpoint), found)
    uploader.close()

    first_threads = range(1, SMALL_IN_A_ROW + 1)
    after_large = range(len(small_ones) + 2, len(small_ones) + 2 + SMALL_IN_A_ROW)
    assert [*first_threads, *after_large, 2 * len(small_ones) + 3] == handed_over


def test_a_task_that_encodes_its_own_snapshot_encodes_no_other(
    gated: Gated, gated_uploader: SnapshotUploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held back of a large one of its neighbour would have stopped it."""
    sink, neighbour = gated_uploader.for_task(BASE), gated_uploader.for_task(BASE)
    for checkpoint in range(1, SMALL_IN_A_ROW + 1):
        answer(begin(sink, (HEAD, OperatorSnapshot(keyed=(Part(b"k"),))), checkpoint=checkpoint))
    monkeypatch.setattr("snapline.taskmanager.snapshots.uploader.WAITING_BYTES", 250_000)
    gated_uploader._planner._segment_bytes = 200_000
    parts = [Part() for _ in range(20)]
    answers = begin(neighbour, (HEAD, OperatorSnapshot(keyed=tuple(parts))))
    wait_until(
        lambda: [held.encoding for held in gated_uploader._held.values()] == [0],
        "what is encoded waits for the storage",
    )
    really, here = gated_uploader._planner.waiting_bytes, threading.current_thread()
    monkeypatch.setattr(  # to this thread alone there seems to be room for more of the neighbour's
        gated_uploader._planner,
        "waiting_bytes",
        lambda ticket: 0 if threading.current_thread() is here else really(ticket),
    )
    left = [part for part in parts if part.encoded_by is None]

    own = begin(sink, (HEAD, OperatorSnapshot(keyed=(Part(b"k"),))), checkpoint=SMALL_IN_A_ROW + 1)

    assert b"k" == own.get_nowait().operators[HEAD].managed_keyed[0].handle.data
    assert left and all(part.encoded_by is not here for part in left)
    gated.gate.set()
    assert 20 == len(answer(answers).operators[HEAD].managed_keyed)


def test_storage_that_never_answers_holds_up_its_own_job_only(memory: MemoryStorage, gated: Gated) -> None:
    """As many of its snapshots as there were threads for all kept every other job of the TaskManager from any."""
    storages = StateStorages(lambda url: gated if "hangs" in url else memory)
    uploader = SnapshotUploader(ResourceID("tm-1"), storages, memory_threshold_bytes=1)
    for number in range(10):
        sink = uploader.for_task("memory://hangs", job_id=JobID("hangs"))
        begin(sink, (HEAD, OperatorSnapshot(keyed=(Part(),))), checkpoint=number + 1)
    for _ in range(4):
        gated.begun.get(timeout=ANSWER_SECONDS_MAX)

    done = begin(uploader.for_task(BASE, job_id=JobID("other")), (HEAD, OperatorSnapshot(keyed=(Part(b"k" * 10),))))

    assert answer(done).state_size_bytes == 10
    assert gated.begun.empty()
    gated.gate.set()
    uploader.close()


def test_threads_end_with_their_work() -> None:
    """Thousands of jobs that have ended left as many threads; a job that goes on gets new ones."""
    workers, done = UploadThreads(idle_s=0.001), queue.Queue[int]()
    for number in range(100):
        workers.submit(JobID(f"job {number % 10}"), partial(done.put, number))
    assert sorted(done.get(timeout=ANSWER_SECONDS_MAX) for _ in range(100)) == list(range(100))
    wait_until(lambda: not workers._lanes, "the end of idle threads")
    workers.submit(JobID("job 1"), partial(done.put, 1))
    workers.close()
    assert done.get_nowait() == 1
    with pytest.raises(RuntimeError, match="going down"):
        workers.submit(JobID("job 1"), lambda: None)
