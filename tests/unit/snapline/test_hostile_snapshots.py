"""Snapshots that somebody else has written, looked at by commands: one line, and nothing that steers the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from snapline.cli import cli
from snapline.coordinator import snapshots
from snapline.coordinator.checkpoint.metadata import build_metadata
from snapline.coordinator.snapshots import NoSnapshot
from snapline.dataflow.api.two_phase_commit import STATE_NAME
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID
from snapline.dataflow.snapshot.handles import (
    ByteStreamStateHandle,
    CheckpointMetadata,
    OperatorState,
    OperatorStateEntry,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
)
from snapline.open_transactions import TransactionError, open_snapshot, open_transactions
from snapline.state_writer import SavepointWriter
from snapline.taskmanager.operators.sinks.sink_operator import COMMITTABLES_STATE

GOOD: dict[str, Any] = {"job_id": "j", "sink_uid": "s", "checkpoint_id": 1, "data": {"rows": 3}}


def savepoint(
    directory: Path, name: str, *elements: bytes, uid: str = "out", operator: OperatorID = OperatorID("b" * 32)
) -> str:
    """One of a job with a single operator, whose list state of this name has these elements."""
    places = tuple((sum(map(len, elements[:number])), len(each)) for number, each in enumerate(elements))
    entry = OperatorStateEntry(name, OperatorStateMode.SPLIT_DISTRIBUTE, places)
    lists = OperatorStateHandle(ByteStreamStateHandle(b"".join(elements)), (entry,))
    subtasks = {0: OperatorSubtaskState(managed_operator=(lists,))}
    state = OperatorState(operator, uid, "n", 1, 128, subtasks)
    metadata = CheckpointMetadata(JobID("a" * 32), "job", CheckpointID(7), 1, SnapshotType.SAVEPOINT, (state,), ())
    (directory / "_metadata").write_bytes(build_metadata(metadata, str(directory)))
    return str(directory)


@pytest.mark.parametrize(
    "element",
    [
        b"",
        b"\xff",
        b"{",
        b"[" * 100_000,
        b"1.5",
        b"null",
        b"{}",
        *(json.dumps({**GOOD, key: value}).encode() for key in GOOD for value in (None, [1], {"files": 3}, 1.5)),
        json.dumps({**GOOD, "data": {"files": [3]}}).encode(),
    ],
)
def test_what_no_sink_has_written_is_one_line(tmp_path: Path, element: bytes) -> None:
    """It was a traceback, of twenty kinds; what has another meaning may be shown."""
    path = savepoint(tmp_path, COMMITTABLES_STATE, json.dumps(GOOD).encode(), element)
    result = CliRunner().invoke(cli, ["transactions", "ls", path])
    if result.exit_code:
        line = f"{tmp_path} holds, as what sink 'out' has pre-committed, what no sink has written"
        assert isinstance(result.exception, TransactionError)
        assert line in str(result.exception)


@pytest.mark.parametrize("element", [{}, 1, {"pending": 1}, {"pending": [[1, 2]]}, {"pending": [["x", {}, 3]]}])
def test_so_is_what_no_function_has_written(tmp_path: Path, element: object) -> None:
    """A TwoPhaseCommitSinkFunction keeps its transactions as a list of three."""
    path = savepoint(tmp_path, STATE_NAME, json.dumps(element).encode())
    with pytest.raises(TransactionError, match="what no sink has written"):
        open_transactions(*open_snapshot(path))


def test_names_of_others_do_not_steer_the_terminal(tmp_path: Path) -> None:
    """Uids, names of states and of transactions are spelled out where they are listed, and so is what is no text."""
    steering = json.dumps({**GOOD, "sink_uid": "\x1b[31m", "data": {"transaction": "\x1b[32m\ud800"}}).encode()
    path = savepoint(tmp_path, COMMITTABLES_STATE, steering, uid="\x1b[33m")
    other = tmp_path / "other"
    other.mkdir()
    for command in (
        ["transactions", "ls", path],
        ["state", "ls", path],
        ["state", "ls", savepoint(other, "\x1b[34m", b"")],
    ):
        result = CliRunner().invoke(cli, command)
        assert (0, False) == (result.exit_code, "\x1b" in result.output), result.output


def test_lists_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long they are is what the snapshot says: a terabyte ended the command by a traceback."""
    monkeypatch.setattr(snapshots, "MAX_LISTS_BYTES", 9)
    path = savepoint(tmp_path, COMMITTABLES_STATE, b"x" * 10)
    with pytest.raises(NoSnapshot, match="list states of 10 bytes, and 9 are the most that are read"):
        open_transactions(*open_snapshot(path))


def test_rows_of_state_do_not_steer_the_terminal(tmp_path: Path) -> None:
    """Keys, values and names of columns are what anybody has sent to the job."""
    rows = pa.table({"k": ["\x1b[31m"], "n\x1b[32m": ["\x1b]0;title\x07"], "bytes": [b"\x1b[33m"]})
    path = SavepointWriter.new_savepoint().with_operator("n", rows, key="k").write(str(tmp_path / "s"))
    more = pa.concat_tables([rows, rows.set_column(0, "k", [["k"]])])
    other = SavepointWriter.new_savepoint().with_operator("n", more, key="k").write(str(tmp_path / "o"))
    for command in (["read", path, "n"], ["diff", path, other, "n"]):
        result = CliRunner().invoke(cli, ["state", *command])
        assert (0, True, False) == (result.exit_code, "x1b]0;title" in result.output, "\x1b" in result.output), (
            result.output
        )


def test_a_file_of_rows_is_not_left_half_written(tmp_path: Path) -> None:
    """State that turned out to be damaged in its middle left what had been written of it beside the file."""
    rows = pa.table({"k": range(1000), "n": range(1000)})
    path = SavepointWriter.new_savepoint().with_operator("n", rows, key="k", parallelism=2).write(str(tmp_path / "s"))
    last = next(file for file in Path(path).iterdir() if "-1-" in file.name)
    data = last.read_bytes()
    last.write_bytes(data[:-2000] + bytes(2000))
    result = CliRunner().invoke(cli, ["state", "read", path, "n", "--to", str(tmp_path / "rows.parquet")])
    assert isinstance(result.exception, SnaplineError), result.output
    assert [file.name for file in tmp_path.iterdir()] == ["s"]
