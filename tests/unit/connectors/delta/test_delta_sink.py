"""The sink into Delta tables: one commit a checkpoint, once, whatever dies; what other tools read at each version."""

from __future__ import annotations

import datetime as dt
import decimal
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import snapline as sl
from snapline.connectors import DeltaSink
from snapline.connectors.delta import delta_sink
from snapline.connectors.delta.delta_sink import DeltaCommitter, application
from snapline.connectors.files import file_writer
from snapline.connectors.files.file_writer import conformed
from snapline.dataflow.api.connector_api import Committable, GlobalCommittable
from snapline.dataflow.api.user_metrics import Counter
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place

naive = dt.datetime


def rows(*values: int, **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(values), **columns})


def written(sink: DeltaSink, *batches: pa.RecordBatch, place: Any = Place()) -> list[Committable]:  # noqa: B008
    writer = sink.create_writer(place, ())
    for batch in batches:
        writer.write(batch)
    committables = list(writer.prepare_commit(1))
    writer.close()
    return committables


def together(committables: Sequence[Committable], checkpoint_id: int, *, again: bool = False) -> GlobalCommittable:
    return GlobalCommittable("job", "uid", checkpoint_id, tuple(committables), again)


def commit(sink: DeltaSink, checkpoint_id: int, *batches: pa.RecordBatch, again: bool = False) -> None:
    sink.create_global_committer(Place()).commit(together(written(sink, *batches), checkpoint_id, again=again))


def seen_by_all(path: Path, version: int | None = None) -> list[dict[str, Any]]:
    """What polars, deltalake and DuckDB agree on."""
    table = deltalake.DeltaTable(path, version=version)
    with duckdb.connect() as connection:
        files = table.to_pyarrow_dataset()
        connection.register("files", files)
        found = connection.execute("from files")
        names = [column[0] for column in found.description or ()]
        duck = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    polars = pl.read_delta(str(path), version=version).to_dicts()
    library = table.to_pyarrow_table().to_pylist()

    def ordered(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(found, key=lambda row: (row["n"] is None, row["n"]))

    assert ordered(polars) == ordered(library) == ordered(duck)
    return ordered(polars)


def numbers(path: Path, version: int | None = None) -> list[int]:
    return [row["n"] for row in seen_by_all(path, version)]


def test_a_checkpoint_is_a_version_of_the_table(tmp_path):
    """Every tool sees the rows of a version, and the log says which checkpoint made it."""
    sink = DeltaSink(tmp_path)
    sink.validate()
    first = written(sink, rows(1, 2), rows(3))
    other = written(sink, rows(4), place=Place(1, 2))
    committer = sink.create_global_committer(Place())
    assert committer.last_committed("job", "uid") is None
    committer.commit(together([*first, *other], 7))
    later = written(sink, rows(5))
    assert numbers(tmp_path) == [1, 2, 3, 4]
    committer.commit(together(later, 9))

    assert [numbers(tmp_path, version) for version in (0, 1, 2)] == [[], [1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert committer.last_committed("job", "uid") == 9
    assert deltalake.DeltaTable(tmp_path).history()[0]["snapline.checkpoint"] == "9"
    committer.close()


VALUES: dict[str, list[Any]] = {
    "shop": ["a/b", "ü=% x", None, ""],
    "day": [dt.date(2024, 1, 1), dt.date(2024, 1, 2), None, dt.date(1969, 12, 31)],
    "at": [naive(2024, 1, 1, 3, 4, 5, 678901), naive(1, 1, 1), None, naive(2024, 1, 1)],
    "open": [True, False, None, True],
    "price": [decimal.Decimal("1.50"), decimal.Decimal(-2), None, decimal.Decimal(0)],
}


@pytest.mark.parametrize("columns", [["shop"], ["day", "at", "open", "price"], ["shop", "day"]])
def test_partitions_are_read_by_every_tool(tmp_path, columns):
    """With nulls, times, and signs that a path cannot have; to Delta, an empty text is null."""
    sink = DeltaSink(tmp_path, partition_by=columns)
    chosen = {name: VALUES[name] for name in columns}
    schema = {"at": pa.timestamp("us"), "price": pa.decimal128(6, 2)}
    batch = pa.RecordBatch.from_pydict(
        {"n": [1, 2, 3, 4], **{k: pa.array(v, schema.get(k)) for k, v in chosen.items()}}
    )
    commit(sink, 1, batch)
    expected = [
        {"n": n + 1, **{name: values[n] if values[n] != "" else None for name, values in chosen.items()}}
        for n in range(4)
    ]
    assert seen_by_all(tmp_path) == expected
    assert deltalake.DeltaTable(tmp_path).metadata().partition_columns == columns


def test_every_type_comes_back_and_bounds_skip_no_row(tmp_path):
    """Types that Delta lacks become the next wider one; filters that use the bounds of files find all rows."""
    at = naive(2024, 1, 1, 3, 4, 5, 678901)
    zone = at.replace(tzinfo=dt.UTC)
    columns = {
        "u": pa.array([255, None], pa.uint8()),
        "f": pa.array([float("nan"), 1.0]),
        "at": pa.array([at, naive(1969, 12, 31, 23, 59, 59, 999999)], pa.timestamp("us")),
        "utc": pa.array([zone, None], pa.timestamp("us", "UTC")).cast(pa.timestamp("ns", "Europe/Berlin")),
        "text": pa.array(["x" * 40, "y"]).dictionary_encode(),
        "bytes": pa.array([b"\x00", None], pa.large_binary()),
        "list": pa.array([[{"a": 1}], None], pa.list_(pa.struct([("a", pa.int32())]))),
        "price": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(10, 2)),
    }
    commit(DeltaSink(tmp_path), 1, rows(1, 2, **columns))
    table = deltalake.DeltaTable(tmp_path)
    read = table.to_pyarrow_table().to_pylist()
    assert [row["u"] for row in read] == [255, None] and read[0]["utc"] == zone and read[0]["list"] == [{"a": 1}]
    assert read[0]["text"] == "x" * 40 and read[0]["bytes"] == b"\x00" and read[0]["price"] == decimal.Decimal("1.25")
    scan = pl.scan_delta(str(tmp_path))
    for filtered in (scan.filter(pl.col("at") == at), scan.filter(pl.col("text") > "x"), scan.filter(pl.col("n") < 2)):
        assert 1 in filtered.collect()["n"].to_list()
    assert scan.filter(pl.col("at") < naive(1970, 1, 1)).collect()["n"].to_list() == [2]
    commit(DeltaSink(tmp_path), 2, rows(3))
    assert pa.table(deltalake.DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist()[0]["min.n"] == 3


@pytest.mark.parametrize("fraction", [0.5, 1e-300, float("nan"), float("inf")])
@pytest.mark.parametrize("price", ["1.50000", "0.00001", "1234567890123456789.12345"])
@pytest.mark.parametrize(
    "text", ["w", "\U00020bb7", "\U0010ffff" * 40, "x" * 5_000], ids=["short", "rare letter", "last", "long"]
)
def test_rows_are_found_by_each_column(tmp_path: Path, fraction: float, price: str, text: str) -> None:
    """The deltalake library found none by a column without bounds where others of the file had them, nor by a text with
    a letter that takes two words of UTF-16 where the bounds had it so."""
    columns = {
        "f": pa.array([fraction, None]),
        "price": pa.array([decimal.Decimal(price), decimal.Decimal(2)], pa.decimal128(30, 5)),
        "text": pa.array([text, "y"]),
        "open": pa.array([True, None]),
        "bytes": pa.array([b"z", None]),
        "none": pa.array([None, None], pa.int32()),
    }
    commit(DeltaSink(tmp_path), 1, rows(1, 2, **columns))
    files = deltalake.DeltaTable(tmp_path).to_pyarrow_dataset()

    for name, column in columns.items():
        is_one = pc.field(name).is_nan() if fraction != fraction and name == "f" else pc.field(name) == column[0]
        wanted = is_one if column[0].is_valid else pc.field("n") == 1
        assert [1] == files.to_table(filter=wanted)["n"].to_pylist(), name


def test_rows_are_found_by_columns_behind_maps(tmp_path: Path) -> None:
    """A map is one column to readers and two in the file, so that the columns behind many of them had no bounds."""
    maps = {f"m{n}": pa.array([[("a", n)], []], pa.map_(pa.string(), pa.int64())) for n in range(16)}
    numbers = {f"c{n}": pa.array([n, None]) for n in range(16)}
    commit(DeltaSink(tmp_path), 1, rows(1, 2, **maps, **numbers))
    files = deltalake.DeltaTable(tmp_path).to_pyarrow_dataset()

    for n in range(16):
        assert [1] == files.to_table(filter=pc.field(f"c{n}") == n)["n"].to_pylist(), n


def test_a_commit_that_is_repeated_or_comes_too_late_changes_nothing(tmp_path):
    """Also one of a process that is thought dead, which has looked at the table before."""
    sink = DeltaSink(tmp_path)
    first, second = written(sink, rows(1)), written(sink, rows(2))
    committer, dead = sink.create_global_committer(Place()), sink.create_global_committer(Place())
    committer.commit(together(first, 1))
    dead.last_committed("job", "uid")
    committer.commit(together(second, 2))
    for again in (first, second):
        for who in (committer, dead):
            who.commit(together(again, 1 if again is first else 2, again=True))
    assert numbers(tmp_path) == [1, 2]
    assert deltalake.DeltaTable(tmp_path).version() == 2


def test_others_who_write_the_table_are_no_obstacle(tmp_path, monkeypatch):
    """A commit that loses a race looks again and goes on top of what it finds."""
    sink = DeltaSink(tmp_path)
    commit(sink, 1, rows(1))
    committer = sink.create_global_committer(Place())
    files = written(sink, rows(2))
    original = deltalake.DeltaTable.create_write_transaction
    races = [3]

    def race(self, *arguments, **named):
        if races[0]:
            races[0] -= 1
            deltalake.write_deltalake(tmp_path, pa.table({"n": [100 + races[0]]}), mode="append")
        return original(self, *arguments, **named)

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", race)
    committer.commit(together(files, 2))
    assert numbers(tmp_path) == [1, 2, 100, 101, 102]


def test_a_table_that_never_rests_is_an_error_that_says_so(tmp_path, monkeypatch):
    """After a bounded number of races."""
    monkeypatch.setattr("snapline.connectors.tables.table_commits.LOST_RACES_MAX", 2)
    sink = DeltaSink(tmp_path)
    commit(sink, 1, rows(1))
    files = written(sink, rows(2))

    def race(self, *arguments, **named):
        deltalake.write_deltalake(tmp_path, pa.table({"n": [100]}), mode="append")
        raise deltalake.exceptions.CommitFailedError("somebody was faster")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", race)
    with pytest.raises(ConnectorError, match="others committed 2 times between a look at the table and the commit of"):
        sink.create_global_committer(Place()).commit(together(files, 2))


class Death(BaseException):
    """The process ends here."""


def test_a_commit_that_dies_at_any_step_is_finished_by_its_successor(tmp_path, monkeypatch):
    """Before and after each thing that changes the table: the table is made, gets a column, gets the rows."""
    steps = [0]

    def mortal(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def step(*arguments, **named):
            steps[0] -= 1
            if steps[0] == 0:
                raise Death
            answer = original(*arguments, **named)
            steps[0] -= 1
            if steps[0] == 0:
                raise Death
            return answer

        monkeypatch.setattr(owner, name, step)

    mortal(deltalake.DeltaTable, "create")
    mortal(deltalake.DeltaTable, "create_write_transaction")
    mortal(deltalake.table.TableAlterer, "add_columns")
    deaths, dies = 0, True
    while dies:
        deaths, dies = deaths + 1, False
        directory = tmp_path / str(deaths)
        sink = DeltaSink(directory, new_columns="add")
        first = written(sink, rows(1), rows(2))
        wider = written(sink, rows(3, word=["three"]))
        steps[0] = deaths
        try:
            committer = sink.create_global_committer(Place())
            committer.commit(together(first, 1))
            committer.commit(together([*wider], 2))
        except Death:
            dies = True
        steps[0] = -1
        successor = sink.create_global_committer(Place(attempt_number=1))
        done = successor.last_committed("job", "uid") or 0
        for checkpoint_id, files in ((1, first), (2, wider)):
            if checkpoint_id > done:
                successor.commit(together(files, checkpoint_id, again=True))
        found = [(row["n"], row.get("word")) for row in seen_by_all(directory)]
        assert found == [(1, None), (2, None), (3, "three")]
    assert deaths == 9


def test_what_was_written_and_never_committed_is_seen_by_nobody_and_removed_by_vacuum(tmp_path):
    """A writer that dies leaves a data file that no version names; one that ends in order takes its own away."""
    sink = DeltaSink(tmp_path)
    commit(sink, 1, rows(1))
    written(sink, rows(2))
    writer = sink.create_writer(Place(), ())
    writer.write(rows(3))
    writer.close()
    assert numbers(tmp_path) == [1]
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    table = deltalake.DeltaTable(tmp_path)
    removed = table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len(removed) == 1 and len(list(tmp_path.glob("*.parquet"))) == 1
    assert numbers(tmp_path) == [1]


def test_columns_are_matched_by_name_and_new_ones_follow_the_rule(tmp_path):
    """A column that rows lack is null; one that the table lacks is refused, or added before the rows."""
    commit(DeltaSink(tmp_path), 1, rows(1, word=["a"]))
    commit(DeltaSink(tmp_path), 2, rows(2))
    with pytest.raises(
        ConnectorError, match="the rows have the column 'day', and the table has not; leave it out, or say"
    ):
        commit(DeltaSink(tmp_path), 3, rows(3, day=[dt.date(2024, 1, 1)]))
    commit(DeltaSink(tmp_path, new_columns="add"), 3, rows(3, day=[dt.date(2024, 1, 1)]))
    assert seen_by_all(tmp_path) == [
        {"n": 1, "word": "a", "day": None},
        {"n": 2, "word": None, "day": None},
        {"n": 3, "word": None, "day": dt.date(2024, 1, 1)},
    ]


def test_a_table_that_changes_between_write_and_commit_is_an_error_that_names_the_column(tmp_path):
    """The files were written for what the table was."""
    sink = DeltaSink(tmp_path)
    commit(sink, 1, rows(1, word=["a"]))
    files = written(sink, rows(2, word=["b"]))
    committer = sink.create_global_committer(Place())
    for changed, says in (
        ({"n": [1]}, "the table has changed: the rows have the column 'word', and the table has not"),
        ({"n": [1], "word": [1]}, "the table has changed: column 'word' is string in the rows and int64 in the table"),
    ):
        deltalake.write_deltalake(tmp_path, pa.table(changed), mode="overwrite", schema_mode="overwrite")
        with pytest.raises(ConnectorError, match=says):
            committer.commit(together(files, 2))


def test_files_that_are_gone_before_a_restored_commit_are_named(tmp_path):
    """Instead of a version that cannot be read."""
    sink = DeltaSink(tmp_path)
    commit(sink, 1, rows(1))
    files = written(sink, rows(2, 3))
    (tmp_path / files[0].data["files"][0]["path"]).unlink()
    with pytest.raises(ConnectorError, match=r"is gone, and with it 2 rows that were never committed; VACUUM or a"):
        commit_again = sink.create_global_committer(Place())
        commit_again.commit(together(files, 2, again=True))
    assert numbers(tmp_path) == [1]


def test_a_table_that_is_taken_away_is_an_error(tmp_path):
    """It is not made anew below a job that has written to it."""
    sink = DeltaSink(tmp_path / "t")
    committer = sink.create_global_committer(Place())
    committer.commit(together(written(sink, rows(1)), 1))
    files = written(sink, rows(2))
    shutil.rmtree(tmp_path / "t" / "_delta_log")
    with pytest.raises(ConnectorError, match="the table is gone") as refusal:
        committer.commit(together(files, 2))
    assert "\n" not in str(refusal.value)


def test_what_is_aborted_by_hand_leaves_no_file(tmp_path):
    """Also where there is no table yet."""
    sink = DeltaSink(tmp_path, partition_by=["word"])
    files = written(sink, rows(1, 2, word=["a", "b"]))
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    for _ in range(2):
        sink.create_global_committer(Place()).abort(together(files, 1))
    assert list(tmp_path.rglob("*.parquet")) == []


def test_ids_of_jobs_and_sinks_do_not_mix(tmp_path):
    """Each has a counter of its own in the table."""
    assert application("a", "b") != application("b", "a")
    sink = DeltaSink(tmp_path)
    commit(sink, 5, rows(1))
    committer = DeltaCommitter(sink.path, {}, Counter())
    committer.commit(GlobalCommittable("other", "uid", 1, tuple(written(sink, rows(2)))))
    assert numbers(tmp_path) == [1, 2]
    assert [committer.last_committed(job, "uid") for job in ("job", "other", "none")] == [5, 1, None]


def table_with(path: Path, **features: Any) -> DeltaSink:
    deltalake.write_deltalake(path, pa.table({"n": [1], "word": ["a"]}), **features)
    return DeltaSink(path)


def as_any(value: object) -> Any:
    return value


def otherwise_partitioned(path: Path) -> DeltaSink:
    table_with(path, partition_by=["word"])
    return DeltaSink(path, partition_by=["n"])


def constrained(path: Path) -> DeltaSink:
    sink = table_with(path)
    deltalake.DeltaTable(path).alter.add_constraint({"positive": "n > 0"})
    return sink


def not_null(path: Path) -> DeltaSink:
    schema = pa.schema([pa.field("n", pa.int64()), pa.field("must", pa.string(), nullable=False)])
    deltalake.DeltaTable.create(path, schema=deltalake.Schema.from_arrow(schema))
    return DeltaSink(path)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: DeltaSink(path, new_columns=as_any("merge")), "new_columns is 'fail' or 'add', not 'merge'"),
        (lambda path: DeltaSink(path, rolling=as_any(5)), "rolling is a RollingPolicy, not 5; write RollingPolicy(max_bytes=...)"),
        (lambda path: DeltaSink(path, shuffle=True), "shuffle=True needs partition_by"),
        (lambda path: DeltaSink(path, compression="rar"), "unknown compression 'rar'"),
        (lambda path: constrained(path).validate(), "the table has the constraint 'positive', which DeltaSink cannot check"),
        (lambda path: written(otherwise_partitioned(path), rows(1)), "is partitioned by word, and the sink by n"),
        (lambda path: written(table_with(path), rows(1, word=[1])), "column 'word' is int64 in the rows and string in the table"),
        (lambda path: written(table_with(path), rows(1, N=[1])), "the columns 'n' and 'N' are one to a table"),
        (lambda path: written(DeltaSink(path), rows(1, r=[[{"a": 1, "A": 2}]])), "in column 'r' are called 'A' but for capitals"),
        (lambda path: written(not_null(path), rows(1)), "the rows lack the column 'must', which must not be null"),
        (lambda path: written(not_null(path), rows(1, must=[None]).cast(pa.schema([("n", pa.int64()), ("must", pa.string())]))), "must not be null"),
        (lambda path: written(DeltaSink(path, partition_by=["x"]), rows(1)), "the table is partitioned by 'x', which the rows have not"),
        (lambda path: written(DeltaSink(path, partition_by=["x"]), rows(1, x=[1.5])), "partition_by names 'x', which is double"),
        (lambda path: written(DeltaSink(path, partition_by=["n"]), rows(1)), "none is left for the files"),
        (lambda path: written(DeltaSink(path), rows(1, took=[dt.timedelta(1)])), "column 'took' is duration[us], which such a table has no type for"),
        (lambda path: DeltaSink(path, schema=pa.schema([("t", pa.time64("us"))])).validate(), "which such a table has no type for"),
        (lambda path: written(DeltaSink(path), rows(1), rows(2, x=[1])), "a batch has the column 'x', which earlier ones had not"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_in_a_line(tmp_path, make, says):
    """The line names the culprit and the way out."""
    with pytest.raises(ConnectorError) as refusal:
        make(tmp_path)
    assert says in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_path_that_is_a_file_is_refused_at_submission(tmp_path):
    """Before the job starts, with what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConnectorError, match="something on the way is a file, not a directory"):
        DeltaSink(tmp_path / "file").validate()


@pytest.mark.parametrize("options", [{}, {"partition_by": ["k"]}, {"key": ["k"], "delete": "gone"}])
def test_a_job_without_rows_makes_a_table_without_rows(tmp_path, options):
    """Readers find it, with the columns that the stream is known to have."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([{"k": "a", "n": 1, "gone": False}], uid="rows").filter(sl.col("n") > 1)
    stream.sink_to(DeltaSink(tmp_path / "table", **options), uid="table")
    env.execute("empty", local=True)
    row = {"k": "a", "n": 1} if "delete" in options else {"k": "a", "n": 1, "gone": None}
    assert pl.read_delta(str(tmp_path / "table")).columns == list(row)
    columns = pa.schema([("k", pa.string()), ("n", pa.int64()), ("gone", pa.bool_())][: len(row)])
    commit(DeltaSink(tmp_path / "table"), 9, pa.RecordBatch.from_pylist([row], columns))
    assert seen_by_all(tmp_path / "table") == [row]


def test_a_batch_with_more_text_than_a_column_has_room_for_is_written_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polars has texts of any length together, and a batch with more than 2 GiB of them ended the job for ever."""

    def narrow(batch: pa.RecordBatch, *arguments: Any, **options: Any) -> pa.RecordBatch:
        if batch.nbytes > 2_000:
            raise pa.ArrowInvalid("Failed casting from large_string to string: input array too large")
        return conformed(batch, *arguments, **options)

    monkeypatch.setattr(file_writer, "BATCH_BYTES_MAX", 1_000)
    monkeypatch.setattr(delta_sink, "conformed", narrow)
    texts = [f"{number:400d}" for number in range(21)]
    commit(DeltaSink(tmp_path), 1, pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.large_string())}))

    assert pl.read_delta(str(tmp_path))["text"].to_list() == texts
