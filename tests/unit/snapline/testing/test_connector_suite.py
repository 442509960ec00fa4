"""`check_source` and `check_sink` find what connectors do wrong, in the connectors of docs/own-connectors.md, and
nothing else: these pass as they stand on the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import DiscardingSink
from snapline.testing import ConnectorReport, SimulationError, check_sink, check_source

ROOT = Path(__file__).resolve().parents[4]
PAGE = "\n\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own-connectors.md").read_text(), re.DOTALL))


def program(*mistake: str) -> dict[str, Any]:
    """The page's program; with a text and another in its place, one that is wrong."""
    text = PAGE
    for right, wrong in zip(mistake[::2], mistake[1::2], strict=True):
        assert right in text
        text = text.replace(right, wrong)
    names: dict[str, Any] = {"__name__": "connectors_of_the_page"}
    exec(text, names)
    return names


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def examined_source(names: dict[str, Any], folder: Path, **options: Any) -> ConnectorReport:
    """What the suite says of the page's source, with a file that is there and one that comes."""

    def create() -> sl.Source:
        for file in folder.iterdir():
            file.unlink()
        (folder / "a.json").write_text(names["lines"](range(8)))
        source: sl.Source = names["FolderSource"](folder)
        return source

    expected = [{"n": n, "text": f"row {n}"} for n in range(16)]
    arrivals = [lambda: _write(folder / "b.json", names["lines"](range(8, 16)))]
    return check_source(create, expected, arrivals=arrivals, check=False, **options)


def examined_sink(names: dict[str, Any], folder: Path, **options: Any) -> ConnectorReport:
    """What the suite says of the page's sink."""
    path = folder / "shop.db"

    def create() -> sl.Sink:
        path.unlink(missing_ok=True)
        sink: sl.Sink = names["SqliteSink"](path)
        return sink

    def read(table: str = "rows") -> list[dict[str, Any]]:
        with names["open_database"](path) as database:
            return [{"n": n, "text": text} for n, text in database.execute(f"SELECT n, text FROM {table}")]

    return check_sink(create, read, leftovers=lambda: read("pending"), check=False, **options)


def test_the_program_of_the_page_passes(tmp_path: Path) -> None:
    """Its own tests, as they stand there."""
    names = program()
    tests = [name for name in names if name.startswith("test_")]
    assert tests == ["test_the_source", "test_the_sink"]
    for name in tests:
        (tmp_path / name).mkdir()
        names[name](tmp_path / name)


@pytest.mark.rare
def test_the_program_of_the_page_passes_all_runs(tmp_path: Path) -> None:
    """None of all runs breaks it, and every step of both contracts was broken."""
    (tmp_path / "source").mkdir()
    source = examined_source(program(), tmp_path / "source")
    assert source.ok, str(source)
    assert set(source.steps) >= {"create_reader", "add_splits", "poll_next", "snapshot_splits", "discover"}
    sink = examined_sink(program(), tmp_path)
    assert sink.ok, str(sink)
    assert set(sink.steps) == {
        "create_writer", "write", "prepare_commit", "snapshot_state", "create_committer", "commit",
    }  # fmt: skip
    for report in (source, sink):
        assert report.runs > 100
        assert {"kill before a step", "kill after a step", "fail after a step", "leader after a step"} <= set(
            report.faults
        )


SOURCE_MISTAKES = {
    "it forgets its position": ('{"byte": self.next_byte[name]}', "{}"),
    "its position lies before what was returned": (
        "self.next_byte[name] += sum(map(len, lines))\n        self.bytes.inc(",
        "self.late[name], self.next_byte[name] = self.next_byte[name], self.next_byte[name] + sum(map(len, lines))\n        self.bytes.inc(",
        '{"byte": self.next_byte[name]}', '{"byte": self.late.get(name, self.next_byte[name])}',
        "self.next_byte = {}", "self.next_byte = {}\n        self.late = {}",
    ),
    "it forgets the split that it reads": (
        "for name, split in self.splits.items()\n", "for name, split in list(self.splits.items())[1:]\n",
    ),
    "what was found is not in the state": ('{"seen": seen + new}', '{"seen": new}'),
    "it begins a restored split anew": ('split.position.get("byte", 0)', "0"),
}  # fmt: skip
SINK_MISTAKES = {
    "it commits when it pre-commits": (
        'return [sl.Committable({"transaction": name})]',
        "SqliteCommitter(self.path, self.context).commit([sl.Committable({'transaction': name})])\n        return []",
    ),
    "its commit is not idempotent": (
        'database.execute(f"DELETE FROM pending WHERE {self.WHERE}", name)', "pass",
    ),
    "its names come again": ("context.execution_attempt, checkpoint_id]", "'', 0]"),
    "it removes what another subtask commits": ("checkpoint_id > ? AND", "? IS NOT NULL AND"),
    "it leaves open what was lost": ("[job, sink, self.restored_id, subtask,", "[job, sink, 1 << 40, subtask,"),
    "it drops what no checkpoint has yet": ("def prepare_commit(self, checkpoint_id):", "def prepare_commit(self, checkpoint_id):\n        self.rows = self.rows[1:]"),
}  # fmt: skip


def short(mistakes: dict[str, Any], *always: str) -> list[Any]:
    """All of them; those that are not named are for the long run."""
    return [pytest.param(name, marks=() if name in always else pytest.mark.rare) for name in mistakes]


@pytest.mark.parametrize("name", short(SOURCE_MISTAKES, "it forgets its position"))
def test_a_planted_mistake_of_a_source_is_found(name: str, tmp_path: Path) -> None:
    """Rows that come again or are missing, in a story that says at which step."""
    report = examined_source(program(*SOURCE_MISTAKES[name]), tmp_path)

    assert not report.ok, str(report)
    assert "why: rows " in report.story


@pytest.mark.parametrize("name", short(SINK_MISTAKES, "it commits when it pre-commits", "its commit is not idempotent"))
def test_a_planted_mistake_of_a_sink_is_found(name: str, tmp_path: Path) -> None:
    """Rows that come again, are missing or seen too early, or something that is left open."""
    report = examined_sink(program(*SINK_MISTAKES[name]), tmp_path)

    assert not report.ok, str(report)
    assert any(said in report.story for said in ("why: rows ", "only commit() may make rows visible", "left open"))


def test_what_no_output_shows_is_found(tmp_path: Path) -> None:
    """A look that changes the state that it was given, and a position that a snapshot cannot hold."""
    changing = ('seen = state.get("seen", [])', 'seen = state.setdefault("seen", [])')
    with pytest.raises(SimulationError, match="discover has changed the state that it was given"):
        examined_source(program(*changing), tmp_path)
    with pytest.raises(SimulationError, match=r"the position of split 'a\.json' is not JSON-like"):
        examined_source(program('{"byte": self.next_byte[name]}', '{"byte": {self.next_byte[name]}}'), tmp_path)


def test_a_connector_that_does_not_work_at_all_is_said_at_once(tmp_path: Path) -> None:
    """What its method raises in the run without faults, and arguments that mean nothing."""
    with pytest.raises(SimulationError, match=r"(?s)without any fault.*no such disk"):
        examined_sink(program("self.rows += batch.to_pylist()", "raise OSError('no such disk')"), tmp_path)
    with pytest.raises(SimulationError, match="guarantee must be one of exactly_once"):
        examined_sink(program(), tmp_path, guarantee="exactly-once")
    with pytest.raises(SimulationError, match="runs must be at least 1"):
        examined_sink(program(), tmp_path, runs=0)
    for wrong, message in (
        ({"create": DiscardingSink()}, "check_sink: create is a function without arguments, got <"),
        ({"create": lambda: DiscardingSink}, "check_sink: create must return a Sink, and returned <class"),
        ({"create": lambda: None}, "check_sink: create must return a Sink, and returned None"),
        ({"read": lambda: None}, "the function that reads the target must return rows, and returned None"),
        ({"leftovers": []}, "check_sink: leftovers is a function without arguments"),
        ({"rows": [1]}, "check_sink: rows is a table or a list of dictionaries, got"),
        ({"runs": "3"}, "runs must be at least 1, got '3'"),
    ):
        with pytest.raises(SimulationError, match=re.escape(message)):
            check_sink(**{"create": DiscardingSink, "read": list, "runs": 1, **wrong})  # type: ignore[arg-type]
    with pytest.raises(SimulationError, match="check_source: create must return a Source, and returned None"):
        check_source(lambda: None, [], runs=1)  # type: ignore[arg-type, return-value]


TABLE = """
class Table(sl.Sink):
    commits_together = True

    def __init__(self, folder):
        self.folder = folder

    def create_writer(self, context, restored):
        return Parts(self.folder, context.execution_attempt)

    def create_global_committer(self, context):
        return Versions(self.folder)


class Parts(sl.SinkWriter):
    def __init__(self, folder, attempt):
        self.folder, self.attempt, self.rows = folder, attempt, []

    def write(self, batch):
        self.rows += batch.to_pylist()

    def prepare_commit(self, checkpoint_id):
        rows, self.rows = self.rows, []
        return [sl.Committable({"rows": rows})] if rows else []


class Versions(sl.GlobalCommitter):
    def __init__(self, folder):
        self.path = folder / "table.json"

    def table(self):
        return json.loads(self.path.read_text()) if self.path.exists() else {"last": 0, "rows": []}

    def last_committed(self, job_id, sink_uid):
        return self.table()["last"]

    def commit(self, together):
        table = self.table()
        if table["last"] < together.checkpoint_id:
            rows = [row for one in together.committables for row in one.data["rows"]]
            self.path.write_text(json.dumps({"last": together.checkpoint_id, "rows": table["rows"] + rows}))
"""
TOGETHER_MISTAKES = {
    "none": (),
    "it notes nothing": ('return self.table()["last"]', "return None", 'table["last"] < together.checkpoint_id', "True"),
    "it shows what no checkpoint has": ('[sl.Committable({"rows": rows})] if rows else []', "Versions(self.folder).commit(sl.GlobalCommittable('', '', checkpoint_id, (sl.Committable({'rows': rows}),))) or []"),
}  # fmt: skip


@pytest.mark.parametrize("name", short(TOGETHER_MISTAKES, "none"))
def test_a_sink_that_commits_together(name: str, tmp_path: Path) -> None:
    """A table of one file, whose commit has the id with the rows, passes; without the note it does not."""
    mistake = TOGETHER_MISTAKES[name]
    text = TABLE
    for right, wrong in zip(mistake[::2], mistake[1::2], strict=True):
        assert right in text
        text = text.replace(right, wrong)
    names: dict[str, Any] = {"sl": sl, "json": json, "__name__": "a_table"}
    exec(text, names)

    def create() -> sl.Sink:
        (tmp_path / "table.json").unlink(missing_ok=True)
        sink: sl.Sink = names["Table"](tmp_path)
        return sink

    def read() -> Any:
        return names["Versions"](tmp_path).table()["rows"]

    report = check_sink(create, read, runs=None if mistake else 8, check=False)

    assert report.ok == (not mistake), str(report)


class Appending(sl.Sink):
    """Rows are in the file at once, and come again after a failure; perhaps each no more than once."""

    two_phase = False

    def __init__(self, path: Path, *, forgets: bool) -> None:
        self.path, self.forgets = path, forgets

    def create_writer(self, context: Any, restored: Any) -> sl.SinkWriter:
        return AppendingWriter(self)


class AppendingWriter(sl.SinkWriter):
    """Writes for Appending."""

    def __init__(self, sink: Appending) -> None:
        self.sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        path = self.sink.path
        there = path.read_text().splitlines()
        new = [json.dumps(row) for row in batch.to_pylist()]
        kept = [line for line in dict.fromkeys(new) if line not in there] if self.sink.forgets else new
        path.write_text("".join(f"{line}\n" for line in [*there, *kept]))

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        return []


@pytest.mark.parametrize("forgets", [False, True])
def test_a_row_that_is_written_twice_may_come_more_often_and_not_less(forgets: bool, tmp_path: Path) -> None:
    """At least once: a sink that works was said to lose the second one."""
    path = tmp_path / "lines"

    def create() -> sl.Sink:
        path.write_text("")
        return Appending(path, forgets=forgets)

    def read() -> list[Any]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    rows = [{"n": n % 5} for n in range(10)]
    report = check_sink(create, read, rows, guarantee="at_least_once", runs=10, check=False)
    assert report.ok is not forgets, report.story
