"""State is copied to the local disk beside the upload, and read from there; whatever is wrong with a copy, the storage
is read."""

from __future__ import annotations

import fcntl
import os
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from snapline.dataflow.ids import CheckpointID, JobID, OperatorID, ResourceID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot import digest_sizes
from snapline.dataflow.snapshot.handles import OperatorStateMode, SegmentStateHandle, TaskStateSnapshot
from snapline.runtime.storage.memory_storage import MemoryStorage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.taskmanager.operators.base.operator_contract import OperatorListSnapshot, OperatorSnapshot
from snapline.taskmanager.snapshots import local_directories
from snapline.taskmanager.snapshots.local_copy import CHUNK_BYTES, DamagedCopy, checksums, open_part
from snapline.taskmanager.snapshots.local_directories import LocalDirectories
from snapline.taskmanager.snapshots.local_recovery import LocalRecovery
from snapline.taskmanager.snapshots.restore import SnapshotReader
from snapline.taskmanager.snapshots.uploader import SnapshotUploader, TaskSnapshotSink

JOB, OPERATOR, BASE = JobID("job"), OperatorID("op"), "memory://local"
LARGE = bytes(range(256)) * 12_000
"""Larger than what is fetched whole, and no multiple of a chunk."""
ANSWER_SECONDS_MAX = 20


@dataclass
class Part:
    data: bytes
    key_group_range: KeyGroupRange = field(default_factory=lambda: KeyGroupRange(0, 63))

    def encode(self) -> bytes:
        return self.data

    def release(self) -> None: ...


class Log:
    """Remembers warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, event: str, **_: Any) -> None:
        self.warnings.append(event)

    def info(self, *_: Any, **__: Any) -> None: ...


@dataclass
class TaskManagerOnDisk:
    """As far as state is concerned."""

    root: Path
    name: str
    storage: MemoryStorage

    def __post_init__(self) -> None:
        self.log = Log()
        self.timers: list[Callable[[], None]] = []
        self.disks: list[LocalDirectories] = []
        self.recovery = LocalRecovery(
            self._take,
            lambda _, action: self.timers.append(action),
            self.log,  # type: ignore[arg-type]
        )
        self.uploader = SnapshotUploader(
            ResourceID(self.name), StateStorages(lambda _: self.storage), local=self.recovery
        )
        self.sink = self.task()

    def _take(self) -> LocalDirectories:
        self.disks.append(LocalDirectories([str(self.root)], ResourceID(self.name)))
        return self.disks[0]

    def task(self) -> TaskSnapshotSink:
        return self.uploader.for_task(BASE, self.recovery.of_job(JOB))

    def checkpoint(self, number: int, data: bytes = LARGE, target: str = "") -> TaskStateSnapshot:
        """One that the coordinator is told of."""
        answers: queue.Queue[Any] = queue.Queue()
        lists = (OperatorListSnapshot("list", OperatorStateMode.UNION, (b"a" * 30_000, b"b")),)
        snapshot = OperatorSnapshot((Part(data),), lists)
        checkpoint_id = CheckpointID(number)
        self.sink.start(checkpoint_id, target or f"chk-{number}", [(OPERATOR, snapshot)], None, answers.put)
        state = answers.get(timeout=ANSWER_SECONDS_MAX)
        assert isinstance(state, TaskStateSnapshot), state
        self.sink.acknowledged(checkpoint_id, state)
        return state

    def complete(self, number: int) -> None:
        self.sink.settled(CheckpointID(number), completed=True)

    def read(self, state: TaskStateSnapshot) -> tuple[bytes, list[bytes], SnapshotReader]:
        """Keyed state, list elements, and who read them."""
        reader = SnapshotReader(BASE, StateStorages(lambda _: self.storage), self.recovery.of_job(JOB))
        parts = state.operators[OPERATOR]
        blob = reader.open_state(parts.managed_keyed[0].handle)
        half = blob.size // 2
        keyed = blob.read_range(0, half) + blob.read_range(half, blob.size - half)
        lists = parts.managed_operator[0]
        elements = reader.open_state(lists.handle)
        return keyed, [elements.read_range(offset, size) for offset, size in lists.entries[0].offsets], reader

    def die(self) -> None:
        """As by signal 9: nothing is cleaned up, the operating system lets go of the locks."""
        self.uploader.close()
        for disk in self.disks:
            disk.close(keep=True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], TaskManagerOnDisk]]:
    storage = MemoryStorage("local")
    started: list[TaskManagerOnDisk] = []

    def begin(name: str) -> TaskManagerOnDisk:
        started.append(TaskManagerOnDisk(tmp_path / "state", name, storage))
        return started[-1]

    yield begin
    for each in started:
        each.die()


def files(root: Path) -> list[str]:
    """Below the directories of TaskManagers, without locks."""
    return sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and path.name != "lock"
    )


def copy_of(manager: TaskManagerOnDisk, state: TaskStateSnapshot) -> Path:
    """Where the copy of its file lies, once it is there."""
    manager.uploader.close()
    handle = state.operators[OPERATOR].managed_keyed[0].handle
    assert isinstance(handle, SegmentStateHandle)
    return manager.root / f"tm-{manager.name}" / JOB / handle.path


def test_the_next_task_manager_reads_the_copies_of_one_that_died(start: Callable[[str], TaskManagerOnDisk]) -> None:
    """All of it, and nothing from the storage, which is empty by then."""
    first = start("tm-1")
    state = first.checkpoint(3)
    first.complete(3)
    first.die()
    first.storage.delete_prefix("chk-3")

    keyed, elements, reader = start("tm-2").read(state)

    assert (keyed, elements) == (LARGE, [b"a" * 30_000, b"b"])
    assert reader.bytes_read.local == len(LARGE) + 30_001 and reader.bytes_read.remote == 0


def test_task_managers_of_one_machine_read_each_others_copies(start: Callable[[str], TaskManagerOnDisk]) -> None:
    """While both live: the one that took over what was left need not be the one that gets the task."""
    first, second = start("tm-1"), start("tm-2")
    state = first.checkpoint(1)
    first.uploader.close()

    assert second.read(state)[2].bytes_read.remote == 0


@pytest.mark.parametrize("damage", ["a byte", "the end", "the sums", "empty", "gone"])
def test_what_is_wrong_with_a_copy_is_read_from_the_storage(
    start: Callable[[str], TaskManagerOnDisk], damage: str
) -> None:
    """With one warning for the file, and it goes."""
    manager = start("tm-1")
    state = manager.checkpoint(1)
    path = copy_of(manager, state)
    data = bytearray(path.read_bytes())
    if damage == "a byte":
        data[CHUNK_BYTES + 1] ^= 1
    elif damage == "the end":
        del data[-100:]
    elif damage == "the sums":
        data[-40] ^= 1
    elif damage == "empty":
        data.clear()
    path.unlink() if damage == "gone" else path.write_bytes(data)

    keyed, elements, reader = manager.read(state)

    assert (keyed, elements) == (LARGE, [b"a" * 30_000, b"b"])
    assert reader.bytes_read.remote > 0
    expected = [] if damage == "gone" else ["a local copy of state is not used, the storage is read"]
    assert manager.log.warnings == expected
    assert not path.exists()


def test_a_copy_that_goes_while_it_is_read(start: Callable[[str], TaskManagerOnDisk]) -> None:
    """The rest comes from the storage."""
    manager = start("tm-1")
    state = manager.checkpoint(1)
    path = copy_of(manager, state)
    reader = SnapshotReader(BASE, StateStorages(lambda _: manager.storage), manager.recovery.of_job(JOB))
    blob = reader.open_state(state.operators[OPERATOR].managed_keyed[0].handle)
    assert blob.read_range(0, 1000) == LARGE[:1000]
    path.unlink()

    later = digest_sizes.CHUNK_BYTES
    assert blob.read_range(later, 5000) == LARGE[later : later + 5000]
    assert (reader.bytes_read.local, reader.bytes_read.remote) == (later, later)


def test_a_copy_that_changes_hands_while_it_is_read(start: Callable[[str], TaskManagerOnDisk]) -> None:
    """The replacement of the one that died takes it over, while another restores from it: nothing is read from the
    storage."""
    first, survivor = start("tm-1"), start("tm-2")
    state = first.checkpoint(1)
    first.die()
    reader = SnapshotReader(BASE, StateStorages(lambda _: survivor.storage), survivor.recovery.of_job(JOB))
    blob = reader.open_state(state.operators[OPERATOR].managed_keyed[0].handle)
    assert blob.read_range(0, 1000) == LARGE[:1000]
    start("tm-3")

    later = digest_sizes.CHUNK_BYTES
    assert blob.read_range(later, 5000) == LARGE[later : later + 5000]
    assert (reader.bytes_read.local, reader.bytes_read.remote) == (min(len(LARGE), 2 * later), 0)
    assert survivor.log.warnings == []


def test_a_copy_that_changes_hands_while_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is known, and before it is looked into, somebody else has it all."""
    owners = [LocalDirectories([str(tmp_path)], ResourceID("first"))]
    reader = LocalDirectories([str(tmp_path)], ResourceID("reader"))
    owners[0].write(JOB, "chk-1/x", [b"x"])
    directories = local_directories._directories

    def taken_over_once_known(root: Path) -> list[Path]:
        listed = directories(root)
        if len(owners) == 1:
            owners[0].close(keep=True)
            owners.append(owners[0])  # the next one asks for directories, too
            owners[1] = LocalDirectories([str(tmp_path)], ResourceID("second"))
        return listed

    monkeypatch.setattr(local_directories, "_directories", taken_over_once_known)

    found = reader.find(JOB, "chk-1/x")

    assert found is not None and found.path == tmp_path / "tm-second" / JOB / "chk-1" / "x"
    for each in (owners[1], reader):
        each.close(keep=False)


def test_only_what_may_be_restored_is_on_the_disk(start: Callable[[str], TaskManagerOnDisk]) -> None:
    """Older checkpoints go when one completes, aborted and cancelled ones at once; savepoints have no copies."""
    manager = start("tm-1")
    for number in (1, 2, 3):
        manager.checkpoint(number)
    manager.checkpoint(4, target="memory://savepoints/s-4")
    manager.complete(2)
    manager.sink.settled(CheckpointID(3), completed=False)
    manager.complete(4)
    manager.uploader.close()

    assert {path.split("/")[2] for path in files(manager.root)} == {"chk-2"}
    manager.recovery.release_job(JOB)
    assert files(manager.root) == []
    manager.recovery.close(keep=False)
    assert [path.name for path in manager.root.iterdir()] == ["lock"]


def test_a_task_manager_that_ends_while_its_job_runs_leaves_the_copies(
    start: Callable[[str], TaskManagerOnDisk],
) -> None:
    """For the one that is started in its place; jobs that do not come after it are forgotten in time."""
    first = start("tm-1")
    first.checkpoint(1)
    first.uploader.close()
    first.recovery.close(keep=True)
    second = start("tm-2")
    assert len(files(second.root)) == 1 and files(second.root)[0].startswith("tm-tm-2/job/chk-1/")
    second.recovery.release_job(JOB)
    first_again = start("tm-3")
    first_again.checkpoint(2)
    first_again.die()

    timers: list[Callable[[], None]] = []
    disk = LocalDirectories([str(second.root)], ResourceID("tm-4"))
    recovery = LocalRecovery(lambda: disk, lambda _, action: timers.append(action), Log())  # type: ignore[arg-type]
    recovery.of_job(JobID("another"))
    assert len(files(second.root)) == 1
    timers[0]()

    assert files(second.root) == []
    recovery.release_job(JobID("another"))
    recovery.close(keep=False)


def test_two_that_live_never_share_a_directory(tmp_path: Path) -> None:
    """What belongs to a living one stays where it is; an unfinished file of a dead one goes."""
    one = LocalDirectories([str(tmp_path)], ResourceID("a/b"))
    one.write(JOB, "chk-1/x", [b"x"])
    (tmp_path / "tm-a-b" / JOB / "chk-1" / "y.tmp").write_bytes(b"half")

    with pytest.raises(BlockingIOError, match=r"another TaskManager uses .*tm-a-b"):
        LocalDirectories([str(tmp_path)], ResourceID("a/b"))
    two = LocalDirectories([str(tmp_path)], ResourceID("c"))
    assert two.inherited() == ()
    assert two.find(JOB, "chk-1/x") is not None
    two.delete(JOB, "chk-1/x")
    assert one.find(JOB, "chk-1/x") is not None

    one.close(keep=True)
    three = LocalDirectories([str(tmp_path)], ResourceID("d"))
    assert three.inherited() == ((JOB, "chk-1/x"),)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "tm-c", "tm-d"]
    for each in (two, three):
        each.close(keep=False)


def test_several_roots_share_the_files(tmp_path: Path) -> None:
    """And each of them is found again, whoever comes next."""
    roots = [str(tmp_path / "a"), str(tmp_path / "b")]
    one = LocalDirectories(roots, ResourceID("one"))
    paths = [f"chk-{number}/x" for number in range(20)]
    for path in paths:
        one.write(JOB, path, [path.encode()])
    one.close(keep=True)
    two = LocalDirectories(roots, ResourceID("two"))

    found = [two.find(JOB, path) for path in paths]
    assert [file.read(0, file.size).decode() for file in found if file is not None] == paths
    assert all(files(tmp_path / root) for root in ("a", "b"))
    two.close(keep=False)


def test_a_disk_that_cannot_be_used_does_not_matter(tmp_path: Path) -> None:
    """One warning; checkpoints are taken and restored as without."""
    (tmp_path / "state").write_text("a file is in the way")
    manager = TaskManagerOnDisk(tmp_path / "state", "tm-1", MemoryStorage("local"))

    assert manager.read(manager.checkpoint(1))[2].bytes_read.local == 0
    assert manager.log.warnings == ["no local recovery: the disk cannot be used"]
    manager.die()


def test_a_task_manager_that_hangs_does_not_make_others_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the lock of the root: the others do without local copies."""
    monkeypatch.setattr(local_directories, "ROOT_LOCK_SECONDS", 0.0)
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        with pytest.raises(TimeoutError, match="lock is held by another TaskManager"):
            LocalDirectories([str(tmp_path)], ResourceID("a"))
    LocalDirectories([str(tmp_path)], ResourceID("a")).close(keep=False)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_directory_of_another_user_is_not_used(tmp_path: Path) -> None:
    """State could be made up there; a directory in ours is not looked at."""
    mine = tmp_path / "mine"
    (mine / "tm-theirs" / JOB).mkdir(parents=True)
    (mine / "tm-theirs" / JOB / "x").write_bytes(b"made up")
    os.chown(mine / "tm-theirs", 12345, 12345)
    disk = LocalDirectories([str(mine)], ResourceID("a"))
    assert disk.inherited() == () and disk.find(JOB, "x") is None
    disk.close(keep=False)

    os.chown(mine, 12345, 12345)
    with pytest.raises(PermissionError, match=r"belongs to another user; set taskmanager\.state\.local\.root-dirs"):
        LocalDirectories([str(mine)], ResourceID("a"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives links away")
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    """He would point it at a directory of his own later; and what is made on the way there is nobody else's to read."""
    (tmp_path / "victims").mkdir()
    link = tmp_path / "snapline-0"
    link.symlink_to(tmp_path / "victims")
    os.chown(link, 12345, 12345, follow_symlinks=False)
    with pytest.raises(PermissionError, match="snapline-0 belongs to another user"):
        LocalDirectories([str(link / "localState")], ResourceID("a"))

    LocalDirectories([str(tmp_path / "new" / "localState")], ResourceID("a")).close(keep=False)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_part_that_the_copy_does_not_have(tmp_path: Path) -> None:
    """A file of this name with other content is no copy."""
    disk = LocalDirectories([str(tmp_path)], ResourceID("a"))
    parts = [b"x" * 10, b"", b"y" * 7]
    disk.write(JOB, "chk-1/x", [*parts, checksums(parts)])
    file = disk.find(JOB, "chk-1/x")
    assert file is not None

    assert open_part(file, 10, 7).read_range(2, 3) == b"yyy"
    assert open_part(file, 10, 0).read_range(0, 0) == b""
    with pytest.raises(DamagedCopy, match="no part of 8 bytes at 10"):
        open_part(file, 10, 8)
    disk.close(keep=False)
