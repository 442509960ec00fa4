"""Savepoints made from Arrow data: what is written is read back, and by an operator; what cannot be is refused
whole."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import DiscardingSink
from snapline.coordinator.checkpoint.metadata import build_metadata, parse_metadata
from snapline.dataflow.api.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RunningAggregateDescriptor,
    ValueStateDescriptor,
)
from snapline.dataflow.api.state_ttl import StateTtlConfig
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, JobID, operator_id_of
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    ByteStreamStateHandle,
    ChannelStateHandle,
    CheckpointMetadata,
    KeyedStateHandle,
    MasterState,
    OperatorState,
    OperatorSubtaskState,
    SegmentStateHandle,
)
from snapline.plan import plan_job
from snapline.state_files import StateWriteError
from snapline.state_reader import StateReader, StateReadError
from snapline.state_writer import SavepointWriter

USERS = pa.table({"user": range(1000), "total": [n * n for n in range(1000)], "name": [f"n{n}" for n in range(1000)]})


def test_every_column_beside_the_key_is_a_value(tmp_path: Path) -> None:
    """Rows come back as they went in, from several files."""
    path = (
        SavepointWriter.new_savepoint(64)
        .with_operator("sums", USERS, key="user", parallelism=3)
        .write(str(tmp_path / "s"))
    )
    metadata = parse_metadata((tmp_path / "s" / "_metadata").read_bytes(), path)
    assert metadata.snapshot_type is SnapshotType.SAVEPOINT
    [operator] = metadata.operators
    assert (operator.operator_id, operator.parallelism, operator.max_parallelism) == (operator_id_of("sums"), 3, 64)
    assert sorted(operator.subtasks) == [0, 1, 2]
    reader = StateReader(path)
    assert reader.read("sums").sort_by("user").equals(USERS)
    assert reader.read("sums", key=[7]).to_pylist() == [{"user": 7, "total": 49, "name": "n7"}]
    assert [column.kind for column in reader.table("sums").columns] == ["value", "value"]


def test_states_as_the_job_declares_them(tmp_path: Path) -> None:
    """Lists, maps, combined values, a time-to-live; the key's type is the job's."""
    data = pa.table(
        {
            "k": pa.array([1, 2, 3], pa.int32()),
            "values": pa.array([[1, 2], [], None], pa.list_(pa.int32())),
            "pairs": pa.array([[("a", 1)], None, None], pa.map_(pa.string(), pa.int64())),
            "most": pa.array([5, 6, None], pa.int32()),
            "seen": ["x", None, None],
            "unused": [0, 0, 0],
        }
    )
    states = [
        ListStateDescriptor("values", pa.int64()),
        MapStateDescriptor("pairs", pa.string(), pa.int64()),
        ReducingStateDescriptor("most", max, pa.int64()),
        ValueStateDescriptor("seen", pa.string(), ttl=StateTtlConfig(dt.timedelta(hours=1))),
    ]
    writer = SavepointWriter.new_savepoint().with_operator("o", data, key=pa.schema([("k", pa.int64())]), states=states)
    found = StateReader(writer.write(str(tmp_path / "s"))).read("o").sort_by("k")
    assert found.schema.field("k").type == pa.int64()
    assert found.column("values").to_pylist() == [[1, 2], None]  # a key without any state is none
    assert found.column("pairs").to_pylist() == [[("a", 1)], None]
    assert found.column("most").to_pylist() == [5, 6]
    [seen, nothing] = found.column("seen").to_pylist()
    assert (seen["value"], seen["touched"] > 0, nothing) == ("x", True, None)


def test_operators_of_a_savepoint_are_kept_replaced_and_removed(tmp_path: Path) -> None:
    """Files of those that are kept stay where they are."""
    first = SavepointWriter.new_savepoint().with_operator("a", USERS, key="user").with_operator("b", USERS, key="user")
    path = first.write(str(tmp_path / "first"))
    other = USERS.slice(0, 3)
    second = (
        SavepointWriter.from_existing(path)
        .with_operator("b", other, key=["user"])
        .with_operator("c", other, key=["user"])
    )
    changed = StateReader(second.remove_operator("c").write(str(tmp_path / "second")))
    assert [table.uid for table in changed.tables()] == ["a", "b"]
    assert changed.read("a").num_rows == 1000
    assert changed.read("b").sort_by("user").equals(other)


def test_an_operator_that_is_replaced_has_the_key_groups_of_its_savepoint(tmp_path: Path) -> None:
    """It got 128 of them, so that a job with more was refused, or had no more from then on."""
    path = SavepointWriter.new_savepoint(256).with_operator("sums", USERS, key="user").write(tmp_path / "first")
    for given, expected in ((0, 256), (64, 64)):
        writer = SavepointWriter.from_existing(path, max_parallelism=given).with_operator("sums", USERS, key="user")
        changed = StateReader(writer.write(tmp_path / str(given)))
        assert changed.table("sums").max_parallelism == expected


def test_the_state_of_master_hooks_stays(tmp_path: Path) -> None:
    """A hook began without its state in a job that started from a savepoint of which one operator was replaced."""
    hook = MasterState("reader-groups", 1, b"positions")
    metadata = CheckpointMetadata(JobID("j"), "j", CheckpointID(7), 0, SnapshotType.SAVEPOINT, (), (hook,))
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (first / "_metadata").write_bytes(build_metadata(metadata, str(first)))
    SavepointWriter.from_existing(first).with_operator("sums", USERS, key="user").write(second)
    written = parse_metadata((second / "_metadata").read_bytes(), str(second))
    assert written.master_states == (hook,)


def test_who_claims_what_was_made_from_a_checkpoint_does_not_own_the_files_of_that(tmp_path: Path) -> None:
    """A job that was started with `--claim` from a changed copy of an incremental checkpoint deleted the files of the
    checkpoint, which nothing could be started from any more."""
    shared = tmp_path / "shared" / "segment-tm-1-0"
    part = KeyedStateHandle(KeyGroupRange(0, 127), SegmentStateHandle(str(shared), 0, 9), "tm-1")
    operator = OperatorState(operator_id_of("sums"), "sums", "sums", 1, 128, {0: OperatorSubtaskState((part,))})
    metadata = CheckpointMetadata(JobID("j"), "j", CheckpointID(7), 0, SnapshotType.CHECKPOINT, (operator,))
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (first / "_metadata").write_bytes(build_metadata(metadata, str(first)))
    SavepointWriter.from_existing(first).with_operator("other", USERS, key="user").write(second)
    kept, _ = parse_metadata((second / "_metadata").read_bytes(), str(second)).operators
    assert kept.subtasks[0].managed_keyed == (replace(part, shared_key=""),)


class Subscribed(sl.SinkFunction, sl.WithMasterCheckpointHook):
    """Brings a hook, which nobody creates here."""

    def invoke(self, value: object) -> None:
        """Keep nothing."""

    def create_master_trigger_restore_hook(self) -> sl.MasterTriggerRestoreHook[object]:
        """Only a coordinator may."""
        raise AssertionError


@pytest.mark.parametrize(("hooked", "allowed"), [(False, False), (False, True), (True, False)])
def test_a_plan_says_that_the_state_of_a_master_hook_has_no_place(tmp_path: Path, hooked: bool, allowed: bool) -> None:
    """It said that the job would start, and `snapline update` stopped the old job for one that was refused then."""
    hook = MasterState("reader-groups", 1, b"positions")
    metadata = CheckpointMetadata(JobID("j"), "j", CheckpointID(7), 0, SnapshotType.SAVEPOINT, (), (hook,))
    (tmp_path / "_metadata").write_bytes(build_metadata(metadata, str(tmp_path)))
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_collection([{"k": 1}], uid="rows")
    if hooked:
        rows.add_sink(Subscribed(), uid="sink")
    else:
        rows.sink_to(DiscardingSink(), uid="sink")
    plan = plan_job(env.translate("j"), str(tmp_path), allow_non_restored_state=allowed)
    assert plan.would_start == (hooked or allowed)
    if not plan.would_start:
        assert plan.refusal.startswith(
            "it holds state of the master hooks 'reader-groups', and the job has none: register"
        )


def test_rows_in_flight_are_not_lost_with_the_state_that_is_replaced(tmp_path: Path) -> None:
    """An unaligned checkpoint has them where the state of their operator is, and they went with it without a word."""
    in_flight = OperatorSubtaskState(input_channel=(ChannelStateHandle(0, 0, ByteStreamStateHandle(b"rows"), 1),))
    operator = OperatorState(operator_id_of("sums"), "sums", "sums", 1, 128, {0: in_flight})
    metadata = CheckpointMetadata(JobID("j"), "j", CheckpointID(7), 0, SnapshotType.CHECKPOINT, (operator,))
    (tmp_path / "_metadata").write_bytes(build_metadata(metadata, str(tmp_path)))
    writer = SavepointWriter.from_existing(tmp_path)
    with pytest.raises(StateWriteError, match="'sums': the checkpoint holds rows in flight at it"):
        writer.with_operator("sums", USERS, key="user")
    kept = SavepointWriter.from_existing(writer.with_operator("other", USERS, key="user").write(tmp_path / "s"))
    assert kept.remove_operator("sums").write(tmp_path / "t") == str(tmp_path / "t")


@pytest.mark.parametrize(
    ("data", "key", "states", "said"),
    [
        (pa.table({"k": [1, 2, 1], "v": [1, 2, 3]}), "k", None, "operator 'o': the key k=1 has several rows"),
        (pa.table({"k": [1], "v": [1]}), "q", None, "there is no key column 'q' in the data: it has k, v"),
        (pa.table({"k": [1]}), "k", None, "no column beside the key"),
        (pa.table({"k": [[1]], "v": [1]}), "k", None, "operator 'o': key: a value of type list"),
        (
            pa.table({"k": [1], "v": ["x"]}),
            "k",
            [ValueStateDescriptor("v", pa.int64())],
            "column 'v' is string and the state",
        ),
        (pa.table({"k": [1], "v": ["x"]}), "k", [ValueStateDescriptor("w", pa.int64())], "there is no column 'w'"),
        (
            pa.table({"k": [1]}),
            "k",
            [RunningAggregateDescriptor("v", pa.int64())],
            "kind that only the operator can write",
        ),
        ([1, 2], "k", None, "the data is an Arrow table"),
        (pa.table({"k": [1]}), [], None, "name at least one key column"),
        (5, "k", None, "the data is an Arrow table, record batches or a Spark DataFrame, not int"),
        ([], "k", None, "one without rows says the columns"),
        ([USERS.to_batches()[0], 5], "user", None, "the data is an Arrow table, .* not list of int"),
        (USERS, 5, None, "operator 'o': name at least one key column, not 5"),
        (USERS, [5], None, "name at least one key column, not .5."),
        (USERS, ["user", "user"], None, "operator 'o': 'user' is named twice among keys and states"),
        (USERS, "user", [ValueStateDescriptor("user", pa.int64())], "'user' is named twice among keys and states"),
        (USERS, "user", ["total"], "operator 'o': states= is a list of state descriptors, not .'total'."),
        (USERS, "user", ValueStateDescriptor("total", pa.int64()), "states= is a list of state descriptors"),
    ],
)
def test_what_cannot_be_state_is_refused_and_nothing_is_left(tmp_path: Path, data, key, states, said) -> None:
    """One line with uid and column; no file is there afterwards."""
    with pytest.raises(StateWriteError, match=said):
        SavepointWriter.new_savepoint().with_operator("o", data, key=key, states=states).write(str(tmp_path / "s"))
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    """A savepoint gets one of its own."""
    (tmp_path / "other").write_text("something")
    with pytest.raises(StateWriteError, match="is not empty"):
        SavepointWriter.new_savepoint().with_operator("o", USERS, key="user").write(str(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["other"]
    with pytest.raises(StateWriteError, match="max parallelism must lie between 1 and 32768, not 0"):
        SavepointWriter.new_savepoint(0)
    with pytest.raises(StateWriteError, match="parallelism 200 does not lie between 1 and the max parallelism 128"):
        SavepointWriter.new_savepoint().with_operator("o", USERS, key="user", parallelism=200)
    with pytest.raises(StateWriteError, match="max parallelism must lie between 1 and 32768, not '64'"):
        SavepointWriter.new_savepoint("64")  # type: ignore[arg-type]
    with pytest.raises(StateWriteError, match=r"operator 'o': parallelism 1.5 does not lie between 1"):
        SavepointWriter.new_savepoint().with_operator("o", USERS, key="user", parallelism=1.5)  # type: ignore[arg-type]


def test_a_path_is_a_path_of_python_as_well(tmp_path: Path) -> None:
    """As it is for the sinks and sources that take a directory."""
    path = SavepointWriter.new_savepoint().with_operator("o", USERS, key="user").write(tmp_path / "s")
    assert path == str(tmp_path / "s")
    SavepointWriter.from_existing(tmp_path / "s").write(tmp_path / "t")
    assert StateReader(tmp_path / "t").read("o").num_rows == USERS.num_rows


@pytest.mark.parametrize(
    ("key", "said"), [(7, "not 7"), ("7", "not '7'"), ([1 << 70], "is no int64, as key column 'user' is")]
)
def test_a_key_to_read_is_a_list_of_values(tmp_path: Path, key: object, said: str) -> None:
    """What cannot be a key is refused in one line, a text instead of a list of texts as well."""
    reader = StateReader(SavepointWriter.new_savepoint().with_operator("o", USERS, key="user").write(tmp_path / "s"))
    with pytest.raises(StateReadError, match=said):
        reader.read("o", key=key)  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", [True, False])
def test_what_somebody_else_writes_there_meanwhile_stays(tmp_path: Path, fails: bool) -> None:
    """The directory was empty when both began: the one that is late deleted the savepoint of the other, and what else
    had come to lie there."""
    path, more = str(tmp_path / "s"), tmp_path / "s" / "notes"

    def batches() -> Iterator[pa.RecordBatch]:
        yield from USERS.slice(0, 1).to_batches()
        SavepointWriter.new_savepoint().with_operator("first", USERS, key="user").write(path)
        more.write_text("precious")
        if fails:
            raise OSError("no rows any more")
        yield from USERS.slice(1, 1).to_batches()

    late = SavepointWriter.new_savepoint().with_operator("late", batches(), key="user")
    with pytest.raises(OSError if fails else StateWriteError, match="no rows any more" if fails else "somebody else"):
        late.write(path)
    assert StateReader(path).read("first").num_rows == USERS.num_rows
    assert (more.read_text(), len(list(more.parent.iterdir()))) == ("precious", 3)
