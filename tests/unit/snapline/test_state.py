"""State read without the job: one table from many files, one key, two snapshots held against each other, and the
commands."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from snapline.cli import cli
from snapline.coordinator.checkpoint.metadata import build_metadata
from snapline.dataflow.api.state import ListStateDescriptor, ValueStateDescriptor
from snapline.dataflow.api.state_ttl import StateTtlConfig
from snapline.dataflow.columnar.key_partition import split_batch
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from snapline.dataflow.snapshot.handles import (
    ByteStreamStateHandle,
    CheckpointMetadata,
    KeyedStateHandle,
    OperatorState,
    OperatorSubtaskState,
    SegmentStateHandle,
)
from snapline.state import SavepointWriter, StateReader, StateReadError, diff
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from snapline.taskmanager.state.outside.segment_space import MemorySegmentSpace
from snapline.taskmanager.state.outside.spilling_backend import SpillingKeyedStateBackend

MAX_PARALLELISM, PARALLELISM = 32, 2
KEY = pa.schema([("city", pa.string()), ("day", pa.date32())])


class Writer:
    """Two subtasks with a value and a list per key, and snapshots of them on a disk."""

    def __init__(self, directory: Path, backend: str = "hashmap") -> None:
        """On `rocksdb` nearly all keys lie outside of memory."""
        self.directory = directory
        ranges = [
            compute_key_group_range_for_operator_index(MAX_PARALLELISM, PARALLELISM, index)
            for index in range(PARALLELISM)
        ]
        self.backends = [
            KeyedStateBackend(KEY, key_groups, MAX_PARALLELISM)
            if backend == "hashmap"
            else SpillingKeyedStateBackend(KEY, key_groups, MAX_PARALLELISM, MemorySegmentSpace(), 0)
            for key_groups in ranges
        ]
        self.chains = [backend.incremental_snapshots(f"op-{n}") for n, backend in enumerate(self.backends)]
        self.totals = [backend.get_state(ValueStateDescriptor("total", pa.int64())) for backend in self.backends]
        self.recent = [backend.get_list_state(ListStateDescriptor("recent", pa.int32())) for backend in self.backends]
        self.checkpoint_id = 0

    def put(self, rows: Sequence[tuple[str, int, int | None]]) -> None:
        """City, day, total; None clears both states."""
        cities, days, totals = zip(*rows, strict=True)
        batch = pa.record_batch(
            {"city": pa.array(cities), "day": pa.array(days, pa.int32()).cast(pa.date32()), "total": pa.array(totals, pa.int64())}
        )  # fmt: skip
        for index, part in enumerate(split_batch(batch, list(KEY.names), MAX_PARALLELISM, PARALLELISM)):
            if part.num_rows:
                slots = self.backends[index].slots(part.columns[:2])
                self.totals[index].put_batch(slots, part.column("total"))
                self.recent[index].clear_batch(slots)
                present = part.column("total").is_valid()
                kept = slots[present.to_numpy(zero_copy_only=False)]
                self.recent[index].add_batch(kept, part.column("total").drop_null().cast(pa.int32()))

    def snapshot(self, *, inline: bool = True) -> str:
        """An incremental checkpoint; its directory."""
        self.checkpoint_id += 1
        location = self.directory / f"chk-{self.checkpoint_id}"
        location.mkdir(parents=True)
        subtasks = {}
        for index, chain in enumerate(self.chains):
            handles: list[KeyedStateHandle] = []
            for number, part in enumerate(chain.snapshot(self.checkpoint_id)):
                data = part.encode()
                part.release()
                path = location / f"part-{index}-{number}"
                path.write_bytes(data)
                handle = ByteStreamStateHandle(bytes(data)) if inline else SegmentStateHandle(str(path), 0, len(data))
                handles += [*part.references, part.stored(handle)]
            subtasks[index] = OperatorSubtaskState(managed_keyed=tuple(handles))
            chain.completed(self.checkpoint_id)
        operator = OperatorState(OperatorID("ab12"), "totals", "totals", PARALLELISM, MAX_PARALLELISM, subtasks)
        metadata = CheckpointMetadata(
            JobID("job"), "sums", CheckpointID(self.checkpoint_id), 0, SnapshotType.CHECKPOINT, (operator,)
        )
        (location / "_metadata").write_bytes(build_metadata(metadata, str(location)))
        return str(location)


@pytest.fixture(params=["hashmap", "rocksdb"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Writer:
    return Writer(tmp_path, request.param)


def rows_of(table: pa.Table) -> dict[str, int]:
    return {row["city"]: row["total"] for row in table.to_pylist()}


def test_many_files_are_one_table(writer: Writer) -> None:
    """Deltas say last what a key has, or that it has nothing any more."""
    writer.put([(f"c{n}", n, n) for n in range(20)])
    writer.snapshot()
    writer.put([("c3", 3, None), ("c4", 4, 400), ("new", 1, 7)])
    path = writer.snapshot(inline=False)

    table = StateReader(path).read("totals")
    expected = {f"c{n}": n for n in range(20) if n != 3} | {"c4": 400, "new": 7}
    assert expected == rows_of(table)
    assert ["city", "day", "total", "recent"] == table.schema.names
    assert all([row["total"]] == row["recent"] for row in table.to_pylist())


def test_one_key(writer: Writer) -> None:
    """As Python values, or as text of the command line."""
    writer.put([("rome", 5, 1), ("rome", 6, 2), ("oslo", 5, 3)])
    reader = StateReader(writer.snapshot())

    assert [2] == reader.read("totals", key=["rome", "1970-01-07"])["total"].to_pylist()
    assert 0 == reader.read("totals", key=["rome", "1970-02-01"]).num_rows
    with pytest.raises(StateReadError, match=r"has 2 columns \(city, day\), 1 given"):
        reader.read("totals", key=["rome"])
    with pytest.raises(StateReadError, match="'soon' is no date32"):
        reader.read("totals", key=["rome", "soon"])


def test_ranges_of_key_groups_share_the_rows(writer: Writer) -> None:
    """Each key is in one of them, and in an empty range there is none."""
    writer.put([(f"c{n}", n, n) for n in range(20)])
    reader = StateReader(writer.snapshot())
    parts = [reader.read("totals", key_groups=KeyGroupRange(*bounds)) for bounds in ((0, 9), (10, 9), (10, 31))]
    assert parts[1].num_rows == 0
    assert sorted(n for part in parts for n in part["total"].to_pylist()) == list(range(20))


def test_an_operator_that_is_not_there_is_named_with_those_that_are(writer: Writer) -> None:
    """By uid, or by its id."""
    writer.put([("rome", 5, 1)])
    reader = StateReader(writer.snapshot())
    with pytest.raises(StateReadError, match="no keyed state of an operator 'sums'; there is some of 'totals'"):
        reader.read("sums")

    assert 1 == reader.read("ab12").num_rows


def test_what_has_changed_between_two_snapshots(writer: Writer) -> None:
    """Added, removed, changed; equal ones not."""
    writer.put([(f"c{n}", n, n) for n in range(10)])
    before = StateReader(writer.snapshot())
    writer.put([("c3", 3, None), ("c4", 4, 400), ("new", 1, 7), ("c5", 5, 5)])
    after = StateReader(writer.snapshot())

    found = {row["city"]: (row["change"], row["total"]) for batch in diff(before, after, "totals") for row in batch.to_pylist()}  # fmt: skip
    assert {"c3": ("removed", 3), "c4": ("changed", 400), "new": ("added", 7)} == found
    assert not list(diff(after, after, "totals"))


def written(path: Path, state: pa.Array, name: str = "n") -> str:
    """A savepoint of one operator, whose keys are the rows' numbers."""
    data = pa.table({"k": range(len(state)), name: state})
    return SavepointWriter.new_savepoint().with_operator("op", data, key="k").write(str(path))


@pytest.mark.parametrize(
    "state",
    [
        pa.array([float("nan"), 1.0]),
        pa.array([float("nan"), None], pa.float32()),
        pa.array([np.float16(1), np.float16("nan")], pa.float16()),
        pa.array([[float("nan")], [None]]),
        pa.array([{"x": float("nan")}, None]),
        pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    ],
)
def test_a_snapshot_does_not_differ_from_itself(tmp_path: Path, state: pa.Array) -> None:
    """Not a number is what it was, and types that Arrow does not compare are compared."""
    reader = StateReader(written(tmp_path / "s", state))
    assert not list(diff(reader, reader, "op"))


@pytest.mark.parametrize(
    ("before", "after"),
    [(pa.array(["a"]), pa.array([1])), (pa.array([(1 << 53) + 1]), pa.array([0.5]))],
)
def test_states_of_other_types_are_not_compared(tmp_path: Path, before: pa.Array, after: pa.Array) -> None:
    """Neither by the function nor by the command; both types are named in one line."""
    paths = written(tmp_path / "before", before), written(tmp_path / "after", after)
    message = f"'n' is {before.type} before and {after.type} after"
    with pytest.raises(StateReadError, match=message):
        list(diff(StateReader(paths[0]), StateReader(paths[1]), "op"))
    refused = run("diff", *paths, "op").exception
    assert isinstance(refused, StateReadError)
    assert message in str(refused)


def test_a_state_may_have_the_name_of_the_mark(tmp_path: Path) -> None:
    """The mark that says what became of a key stays the first column, under another name."""
    paths = [written(tmp_path / str(n), pa.array([n]), "change") for n in (1, 2)]
    [found] = diff(StateReader(paths[0]), StateReader(paths[1]), "op")
    assert found.to_pylist() == [{"change_": "changed", "k": 0, "change": 2}]
    assert run("diff", *paths, "op").output.split()[:3] == ["change_", "k", "change"]


def test_more_rows_than_there_can_be_are_no_limit(writer: Writer) -> None:
    """Said in one line of usage instead of by the failure of a loop."""
    writer.put([("rome", 5, 1)])
    result = run("read", writer.snapshot(), "totals", "--limit", str(1 << 80))
    assert (result.exit_code, "is not in the range" in result.output) == (2, True)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["state", *arguments])


def test_the_commands_show_and_write(writer: Writer, tmp_path: Path) -> None:
    """A table, JSON, and files of other tools."""
    writer.put([("rome", 5, 1), ("oslo", 6, 2)])
    before = writer.snapshot()
    writer.put([("rome", 5, 10)])
    after = writer.snapshot()

    listed: list[dict[str, Any]] = json.loads(run("ls", after, "-o", "json").output)
    assert [("totals", ["total", "recent"])] == [(one["uid"], [s["name"] for s in one["states"]]) for one in listed]
    shown = run("ls", after).output
    assert "totals" in shown
    assert "city string, day date32" in shown
    assert "oslo" in run("read", after, "totals").output
    [row] = json.loads(run("read", after, "totals", "-k", "rome", "-k", "1970-01-06", "-o", "json").output)
    assert (10, "1970-01-06") == (row["total"], row["day"])
    assert "changed" in run("diff", before, after, "totals").output

    target = tmp_path / "state.parquet"
    assert "wrote 2 rows" in run("read", after, "totals", "--to", str(target)).output
    assert {"rome": 10, "oslo": 2} == rows_of(pq.read_table(target))
    assert "wrote 1 rows" in run("read", after, "totals", "--limit", "1", "--to", str(tmp_path / "one.arrow")).output


def test_the_json_of_rows_has_no_number_that_json_lacks(tmp_path: Path) -> None:
    """What is no number is null, as the files of JsonFormat have it; NaN is refused by every other reader."""
    path = written(tmp_path / "s", pa.array([[float("nan"), 1.5], [float("-inf")]]))
    shown = run("read", path, "op", "-o", "json").stdout
    found = json.loads(shown, parse_constant=pytest.fail)
    assert [{"k": 0, "n": [None, 1.5]}, {"k": 1, "n": [None]}] == sorted(found, key=lambda row: int(row["k"]))


def test_times_that_python_has_not_are_no_traceback(tmp_path: Path) -> None:
    """Neither as a state, nor within one; a file takes them, and the line says so."""
    column = pa.array([-(1 << 63)], pa.timestamp("us"))
    for number, state in enumerate((column, pa.StructArray.from_arrays([column], ["at"]))):
        path = written(tmp_path / str(number), state)
        for output in ("table", "json"):
            refused = run("read", path, "op", "-o", output).exception
            assert isinstance(refused, StateReadError)
            assert "beyond Python's own times" in str(refused)
            assert "--to FILE.parquet" in str(refused)
        assert run("read", path, "op", "--to", str(tmp_path / "rows.parquet")).exit_code == 0


def test_a_file_that_cannot_be_written_leaves_nothing(writer: Writer, tmp_path: Path) -> None:
    """Neither a half file, nor one of a format that nobody asked for."""
    writer.put([("rome", 5, 1)])
    path = writer.snapshot()
    (tmp_path / "no-directory").touch()
    for name, wanted in (
        ("rows.txt", ".parquet, .arrow, .csv"),
        ("rows.csv", ".parquet and .arrow take states of any type"),
        ("no-directory/rows.arrow", "Not a directory"),
        (f"{'n' * 249}.arrow", "File name too long"),
    ):
        result = run("read", path, "totals", "--to", str(tmp_path / name))
        assert isinstance(result.exception, StateReadError)
        assert wanted in str(result.exception)
    assert not [file for file in tmp_path.iterdir() if "rows" in file.name]


@pytest.mark.parametrize("newer", [0, 1])
@pytest.mark.parametrize("ttl", [None, StateTtlConfig(dt.timedelta(seconds=1))])
def test_subtasks_of_two_versions_of_a_job_read_as_one_table(
    tmp_path: Path, newer: int, ttl: StateTtlConfig | None
) -> None:
    """One has gone over to a state with a column more, a wider one and a time-to-live, the other not yet; where the
    last one had not, its columns were those of the table."""
    old = pa.schema([("n", pa.int32())])
    new = pa.schema([("n", pa.int64()), ("tier", pa.string())])
    subtasks = {}
    for index in range(PARALLELISM):
        state = ValueStateDescriptor("p", new, ttl=ttl) if index == newer else ValueStateDescriptor("p", old)
        groups = compute_key_group_range_for_operator_index(MAX_PARALLELISM, PARALLELISM, index)
        backend = KeyedStateBackend(pa.schema([("k", pa.int64())]), groups, MAX_PARALLELISM)
        backend.scope.now_ms = lambda: 0
        keys = pa.record_batch({"k": pa.array(range(20), pa.int64())})
        own = split_batch(keys, ["k"], MAX_PARALLELISM, PARALLELISM)[index].column(0)
        value = {"n": 1 << 40, "tier": "x"} if index == newer else {"n": 1}
        stored = pa.array(
            [value if state.ttl is None else {"value": value, "touched": 0}] * len(own), state.storage_type
        )
        backend.state_of(state).restore(backend.slots([own]), stored)
        handle = KeyedStateHandle(groups, ByteStreamStateHandle(bytes(backend.snapshot().encode())))
        subtasks[index] = OperatorSubtaskState(managed_keyed=(handle,))
    operator = OperatorState(OperatorID("o"), "o", "o", PARALLELISM, MAX_PARALLELISM, subtasks)
    metadata = CheckpointMetadata(JobID("j"), "j", CheckpointID(1), 0, SnapshotType.SAVEPOINT, (operator,))
    (tmp_path / "_metadata").write_bytes(build_metadata(metadata, str(tmp_path)))

    found = StateReader(str(tmp_path)).read("o").column("p").to_pylist()
    values = found if ttl is None else [row["value"] for row in found]
    assert {(value["n"], value["tier"]) for value in values} == {(1, None), (1 << 40, "x")}
    assert len(found) == 20


def test_a_state_that_is_called_as_the_key_is_read(tmp_path: Path) -> None:
    """The key comes first, and the state has its values behind it, under a name of its own: by one of two equal names
    nothing finds its column, and the command ended in a traceback."""
    groups = compute_key_group_range_for_operator_index(MAX_PARALLELISM, 1, 0)
    backend = KeyedStateBackend(pa.schema([("k", pa.int64())]), groups, MAX_PARALLELISM)
    backend.state_of(ValueStateDescriptor("k", pa.string())).restore(backend.slots([pa.array([7])]), pa.array(["x"]))
    handle = KeyedStateHandle(groups, ByteStreamStateHandle(bytes(backend.snapshot().encode())))
    subtasks = {0: OperatorSubtaskState(managed_keyed=(handle,))}
    operator = OperatorState(OperatorID("o"), "o", "o", 1, MAX_PARALLELISM, subtasks)
    metadata = CheckpointMetadata(JobID("j"), "j", CheckpointID(1), 0, SnapshotType.SAVEPOINT, (operator,))
    (tmp_path / "_metadata").write_bytes(build_metadata(metadata, str(tmp_path)))

    reader = StateReader(str(tmp_path))
    assert reader.read("o").to_pylist() == [{"k": 7, "k_": "x"}]
    assert list(diff(reader, reader, "o")) == []
    shown = CliRunner().invoke(cli, ["state", "read", str(tmp_path), "o", "-o", "json"])
    assert json.loads(shown.stdout) == [{"k": 7, "k_": "x"}]
