"""What a snapshot holds is told by operator, subtask and key group, and no client keeps others waiting with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from snapline.coordinator import snapshot_state
from snapline.coordinator.execution.reactive import ReactiveParallelism
from snapline.coordinator.io import LANE_THREADS, IoExecutor
from snapline.coordinator.restorable import check_restorable
from snapline.coordinator.snapshot_state import LANE, MAX_READERS, SnapshotStates, TooManyReaders, read_snapshot_state
from snapline.coordinator.snapshots import NoSnapshot, read_snapshot
from snapline.dataflow.graph.jobgraph import OperatorNode
from snapline.dataflow.ids import operator_id_of
from snapline.protos import checkpoint_pb2
from snapline.protos import client_pb2 as pb
from snapline.runtime.clock import SystemClock
from snapline.runtime.logs import silent_logger
from snapline.runtime.signing import UNSIGNED
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.timers import TimerScheduler
from snapline.state_reader import StateReader
from snapline.state_writer import SavepointWriter
from tests.simulation.jobs import job, vertex

KEYS = 1_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A savepoint of two operators, one of which has most of its keys in one key group."""
    even = pa.table({"k": range(KEYS), "n": range(KEYS), "name": [str(n) for n in range(KEYS)]})
    writer = SavepointWriter.new_savepoint()
    writer.with_operator("even", even, key="k", parallelism=3)
    writer.with_operator("lone", pa.table({"k": [7], "n": [1.5]}), key="k", parallelism=2)
    return writer.write(str(tmp_path / "savepoint"))


@pytest.fixture
def storages() -> StateStorages:
    """Of this file system."""
    return StateStorages(open_storage)


@pytest.fixture
def io() -> Iterator[IoExecutor]:
    """What performs slow work."""
    timers = TimerScheduler(SystemClock())
    executor = IoExecutor(timers, SystemClock(), silent_logger())
    yield executor
    executor.close(1)
    timers.close()


def test_operators_states_subtasks_and_key_groups_are_those_that_the_reader_of_state_finds(
    path: str, storages: StateStorages
) -> None:
    """All keys are counted once per subtask and once per key group, and the bytes are those of the files."""
    found = read_snapshot_state(storages, path, UNSIGNED)
    reader = StateReader(path)
    assert (path, "SNAPSHOT_TYPE_SAVEPOINT", "") == (
        found.path,
        checkpoint_pb2.SnapshotType.Name(found.snapshot_type),
        found.cut_short,
    )
    assert ["even", "lone"] == [operator.uid for operator in found.operators]
    for operator, table in zip(found.operators, reader.tables(), strict=True):
        assert [("k", "int64")] == [(key.name, key.type) for key in operator.key]
        assert [(c.name, c.kind, str(c.data_type)) for c in table.columns] == [
            (state.name, state.kind, state.type) for state in operator.states
        ]
        assert table.rows_at_most == sum(subtask.keys_at_most for subtask in operator.subtasks)
        assert table.rows_at_most == sum(groups.keys_at_most for groups in operator.key_groups)
        assert table.size_bytes == sum(subtask.keyed_bytes for subtask in operator.subtasks)
    even, lone = found.operators
    assert [(0, 42), (43, 85), (86, 127)] == [(s.first_key_group, s.last_key_group) for s in even.subtasks]
    assert 128 == len(even.key_groups)
    assert [1] == [groups.keys_at_most for groups in lone.key_groups if groups.keys_at_most]


def test_a_job_has_the_max_parallelism_of_the_state_that_it_starts_from(path: str, storages: StateStorages) -> None:
    """A reactive one took as many subtasks as it found slots, more than its state allows, and failed for that."""
    even, lone = (
        replace(vertex(uid, 1, max_parallelism=1_024), operators=(OperatorNode(operator_id_of(uid), uid, uid, b""),))
        for uid in ("even", "lone")
    )
    graph = job("j", [vertex("source", 1, source=True, max_parallelism=1_024), even, lone], [], {})

    found = check_restorable(storages, read_snapshot(storages, path), graph)

    assert [each.max_parallelism for each in found.vertices] == [1_024, 128, 128]
    assert ReactiveParallelism(found).slots_wanted == 128


def test_what_takes_too_long_or_is_too_much_is_left_out_and_said(
    path: str, storages: StateStorages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes and key groups stand in the metadata, and are there although no file was looked at."""
    times = iter([0.0])
    found = read_snapshot_state(storages, path, UNSIGNED, lambda: next(times, 11.0))
    assert "the keys of some subtasks were not counted: 10 s were over" == found.cut_short
    assert {-1} == {subtask.keys_at_most for operator in found.operators for subtask in operator.subtasks}
    assert [] == [groups for operator in found.operators for groups in operator.key_groups]
    assert all(subtask.keyed_bytes for operator in found.operators for subtask in operator.subtasks)

    monkeypatch.setattr(snapshot_state, "MAX_SUBTASKS_SHOWN", 2)
    found = read_snapshot_state(storages, path, UNSIGNED)
    assert "2 subtasks are shown, and there are more" == found.cut_short
    assert [2, 0] == [len(operator.subtasks) for operator in found.operators]


def test_many_key_groups_are_told_in_128_ranges(tmp_path: Path, storages: StateStorages) -> None:
    """Neighbours go together, and all keys are still there."""
    data = pa.table({"k": range(KEYS), "n": range(KEYS)})
    writer = SavepointWriter.new_savepoint(max_parallelism=1000)
    path = writer.with_operator("n", data, key="k").write(str(tmp_path / "n"))
    (operator,) = read_snapshot_state(storages, path, UNSIGNED).operators
    assert (125, 0, 999) == (
        len(operator.key_groups),
        operator.key_groups[0].first_key_group,
        operator.key_groups[-1].last_key_group,
    )
    assert KEYS == sum(groups.keys_at_most for groups in operator.key_groups)


def test_a_snapshot_is_read_once_by_one_thread_and_for_so_many_clients_at_most(
    path: str, storages: StateStorages, io: IoExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All who ask for the same one get what was read once; one more than fits is told to come again, and the loop is
    free meanwhile."""
    reads: list[str] = []

    def read(*arguments: object) -> pb.SnapshotState:
        reads.append(str(arguments[1]))
        return read_snapshot_state(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot_state, "read_snapshot_state", read)

    async def ask() -> list[object]:
        states = SnapshotStates(storages, UNSIGNED, io.lane(LANE))
        answers = await asyncio.gather(*(states.read(path) for _ in range(MAX_READERS + 1)), return_exceptions=True)
        with pytest.raises(NoSnapshot, match="there is no checkpoint or savepoint in"):
            await states.read(str(tmp_path / "gone"))
        return [*answers, await states.read(path)]

    *answers, refused, later = asyncio.run(ask())
    assert isinstance(refused, TooManyReaders)
    assert [path, str(tmp_path / "gone")] == reads
    assert {"even,lone"} == {",".join(o.uid for o in each.operators) for each in (*answers, later)}  # type: ignore[attr-defined]


def test_a_storage_that_never_answers_holds_no_thread_of_others(
    storages: StateStorages, io: IoExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients who ask for it again and again, and go, hold the threads of its lane and of nothing else."""
    begun, answers = threading.Semaphore(0), threading.Event()

    def hang(*_: object) -> pb.SnapshotState:
        begun.release()
        answers.wait()
        return pb.SnapshotState()

    monkeypatch.setattr(snapshot_state, "read_snapshot_state", hang)

    async def ask() -> str:
        states = SnapshotStates(storages, UNSIGNED, io.lane(LANE))
        for number in range(LANE_THREADS + 8):
            asked = asyncio.create_task(states.read(f"savepoint-{number}"))
            if number < LANE_THREADS:
                await asyncio.to_thread(begun.acquire)
            else:
                await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait([asked])
        other = asyncio.get_running_loop().create_future()
        io.lane("job").submit(
            "other", lambda: "other", lambda told: other.get_loop().call_soon_threadsafe(other.set_result, told), str
        )
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "call"), 60) == "call"
        return await asyncio.wait_for(other, 60)

    try:
        assert "other" == asyncio.run(ask())
    finally:
        answers.set()
