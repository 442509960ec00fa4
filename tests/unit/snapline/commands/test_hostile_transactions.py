"""`snapline transactions commit|abort` with a snapshot that somebody has made up: one line, and nothing happens to what
is not the sink's."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from snapline.cli import main
from snapline.dataflow.ids import operator_id_of
from snapline.taskmanager.operators.sinks.sink_operator import COMMITTABLES_STATE
from tests.unit.snapline.test_hostile_snapshots import savepoint

JOB = """
import sys
import snapline as sl
from snapline.connectors import GeneratorSource
env = sl.StreamExecutionEnvironment.get_execution_environment()
rows = env.from_source(GeneratorSource(rows_per_second=5, splits=1), uid="rows")
rows.sink_to(sl.ParquetSink(sys.argv[1]), uid="out")
env.execute("job")
"""


class Place:
    """A job's script, the directory of its sink, and a file of somebody else."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.out, self.script, self.victim = directory / "out", directory / "job.py", directory / "victim"
        self.snapshot = directory / "snapshot"
        self.script.write_text(JOB)
        self.victim.write_text("precious")
        self.staged = self.out / "_staging" / "job" / "out-0-0-ab-1.staged"
        self.staged.parent.mkdir(parents=True)
        self.staged.write_text("rows")
        self.target = self.out / "part-0.parquet"
        self.snapshot.mkdir()

    def end(self, how: str, *datas: Any, **more: Any) -> tuple[int, str, list[str]]:
        """Exit code, output, and lines of errors of a command that ends these committables."""
        elements = [json.dumps({"checkpoint_id": 7, "data": data, **more}).encode() for data in datas]
        path = savepoint(self.snapshot, COMMITTABLES_STATE, *elements, operator=operator_id_of("out"))
        arguments = ["-y"] if how == "abort" else []
        with pytest.raises(SystemExit) as ended:
            main(["transactions", how, *arguments, path, str(self.script), str(self.out)])
        told = self.capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, told.out, told.err.splitlines()

    def named(self, **other: Any) -> Mapping[str, Any]:
        """The committable of a file that is staged, changed so."""
        return {"staged": str(self.staged), "target": str(self.target), "rows": 1, **other}


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    """What a snapshot may name, and what it may not."""
    return Place(tmp_path, capsys)


@pytest.mark.parametrize("how", ["commit", "abort"])
@pytest.mark.parametrize("way", ["away", "up", "onto", "up onto", "of another sink", "no text", "lacking"])
def test_files_that_the_sink_has_not_staged_are_left_alone(place: Place, how: str, way: str) -> None:
    """A snapshot that named any file had it deleted, or moved to any place, also where a job was restored from it."""
    other = place.staged.with_name("other-0-0-ab-1.staged")
    other.write_text("rows of others")
    up = f"{place.out}/_staging/job/../../../victim"
    changes: dict[str, Mapping[str, Any]] = {
        "away": {"staged": str(place.victim)},
        "up": {"staged": up},
        "onto": {"target": str(place.victim)},
        "up onto": {"target": f"{place.out}/../part-victim"},
        "of another sink": {"staged": str(other)},
        "no text": {"staged": 1, "target": [2]},
    }
    data = {"staged": str(place.staged)} if way == "lacking" else place.named(**changes[way])
    code, _, lines = place.end(how, place.named(), data)
    assert (code, len(lines)) == (1, 1) and "which the sink 'out' has not made" in lines[0], lines
    left = [place.victim.read_text(), place.staged.read_text(), other.read_text()]
    assert (left, place.target.exists()) == (["precious", "rows", "rows of others"], False)


def test_nobody_who_could_answer_is_no_interrupt(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script without a terminal is told of the option, and not that somebody has pressed Ctrl-C."""
    path = savepoint(
        place.snapshot,
        COMMITTABLES_STATE,
        json.dumps({"checkpoint_id": 7, "data": place.named()}).encode(),
        operator=operator_id_of("out"),
    )
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit) as ended:
        main(["transactions", "abort", path, str(place.script), str(place.out)])
    last = place.capsys.readouterr().err.splitlines()[-1]
    assert (ended.value.code, last) == (1, "snapline: nothing was aborted; --yes says yes without a question")
    assert place.staged.exists()


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_its_own_are_ended_wherever_its_path_was(place: Place, how: str) -> None:
    """The job may have got another path since: its files go where they were to go."""
    before = place.out.parent / "before" / "_staging" / "job" / place.staged.name
    before.parent.mkdir(parents=True)
    before.write_text("rows")
    target = place.out.parent / "before" / "part-0.parquet"
    code, _, lines = place.end(how, place.named(), place.named(staged=str(before), target=str(target)))
    assert (code, lines) == (0, [])
    is_there = [each.exists() for each in (place.staged, before, place.target, target)]
    assert [False, False, how == "commit", how == "commit"] == is_there


@pytest.mark.parametrize("before", ["commit", "abort"])
def test_what_has_ended_is_not_said_to_be_aborted(place: Place, before: str) -> None:
    """Its rows are visible, or were given up before: nothing is there to abort."""
    assert place.end(before, place.named())[0] == 0
    code, told, lines = place.end("abort", place.named())
    assert (code, lines) == (0, [])
    said = "checkpoint 7 of sink 'out' was committed already, or aborted: there was nothing to abort"
    assert told.splitlines() == [said]
    assert place.target.exists() == (before == "commit")


def test_what_was_ended_before_a_failure_is_told_in_json(place: Place) -> None:
    """A program that asked for JSON learns what is visible by now, as whoever reads lines does."""
    elements = [
        json.dumps({"checkpoint_id": number, "data": data}).encode()
        for number, data in ((7, place.named()), (8, place.named(staged=str(place.victim))))
    ]
    path = savepoint(place.snapshot, COMMITTABLES_STATE, *elements, operator=operator_id_of("out"))
    with pytest.raises(SystemExit) as ended:
        main(["transactions", "commit", "-o", "json", path, str(place.script), str(place.out)])
    told = place.capsys.readouterr()
    assert (ended.value.code, len(told.err.splitlines())) == (1, 1)
    assert [(each["checkpoint_id"], each["ended"]) for each in json.loads(told.out)] == [(7, "committed")]


@pytest.mark.parametrize("how", ["commit", "abort"])
@pytest.mark.parametrize("data", ["text", [1], {"rows": 10**4299}, {"sweep": 1, "rows": 1}])
def test_what_no_sink_writes_is_at_most_one_line(place: Place, how: str, data: object) -> None:
    """It was a traceback of four kinds, and of a number that is too long to be printed."""
    code, _, lines = place.end(how, data)
    assert (code, len(lines)) == (1, 1), lines


def test_errors_of_committers_and_their_names_steer_no_terminal(place: Place) -> None:
    """What a committer raises is one line with the name of the sink; control characters are spelled out."""
    place.script.write_text(
        JOB.replace(
            "env.execute",
            """class Ours(sl.ParquetSink):
    def create_committer(self, context):
        raise KeyError("\\x1b[31mred\\nand more")
rows.sink_to(Ours(sys.argv[1]), uid="out")
env.execute""",
        ).replace('rows.sink_to(sl.ParquetSink(sys.argv[1]), uid="out")', "")
    )
    line = "snapline: sink 'out' could not commit what it has of checkpoint 7: KeyError: '\\x1b[31mred\\nand more'"
    assert (1, "", [line]) == place.end("commit", place.named())
    place.snapshot = place.snapshot / "\x1b[31m"
    place.snapshot.mkdir()
    code, _, lines = place.end("commit", "text")
    assert (code, len(lines), "\x1b" in lines[0]) == (1, 1, False)


def test_a_snapshot_that_is_not_signed_is_not_ended_where_the_keys_are_known(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has `security.storage.secrets` ends nothing that a coordinator without them would not restore."""
    monkeypatch.setenv("SNAPLINE_CONF_security__storage__secrets", "0123456789abcdef0123456789abcdef")
    code, _, lines = place.end("abort", place.named())
    assert (code, len(lines), place.staged.exists()) == (1, 1, True) and "snapline savepoint adopt" in lines[0], lines


@pytest.mark.parametrize("what", ["x" * 300, "s3://[", "//["])
def test_what_is_no_name_of_a_snapshot_is_one_line(place: Place, what: str) -> None:
    """A name that is too long for a file, and a URL with half a bracket, were tracebacks."""
    with pytest.raises(SystemExit) as ended:
        main(["transactions", "ls", "--coordinator", "127.0.0.1:1", what])
    assert (1, 1) == (ended.value.code, len(place.capsys.readouterr().err.splitlines()))
