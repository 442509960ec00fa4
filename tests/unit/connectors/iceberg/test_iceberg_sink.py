"""The sink into Iceberg tables: one snapshot a checkpoint, once, whatever dies; what other tools read at each one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import BucketTransform, DayTransform, TruncateTransform
from pyiceberg.utils.concurrent import ExecutorFactory

import snapline as sl
from snapline.connectors import IcebergSink
from snapline.dataflow.api.connector_api import Committable, GlobalCommittable
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place

naive = dt.datetime
NAME = "shop.sales"


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library keeps its threads for the whole process; tests look for such."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    yield
    executor, ExecutorFactory._instance = ExecutorFactory._instance, None
    if executor is not None:
        executor.shutdown()


def properties(directory: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}


@pytest.fixture
def place_for_tables(tmp_path: Path) -> Path:
    load_catalog("default", **properties(tmp_path)).create_namespace("shop")
    return tmp_path


def sink_at(directory: Path, **options: Any) -> IcebergSink:
    return IcebergSink(NAME, catalog=properties(directory), **options)


def table_at(directory: Path) -> Table:
    return load_catalog("default", **properties(directory)).load_table(NAME)


def rows(*values: int, **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(values), **columns})


def written(sink: IcebergSink, *batches: pa.RecordBatch, place: Any = Place()) -> list[Committable]:  # noqa: B008
    writer = sink.create_writer(place, ())
    for batch in batches:
        writer.write(batch)
    committables = list(writer.prepare_commit(1))
    writer.close()
    return committables


def together(committables: Sequence[Committable], checkpoint_id: int, *, again: bool = False) -> GlobalCommittable:
    return GlobalCommittable("job", "uid", checkpoint_id, tuple(committables), again)


def commit(sink: IcebergSink, checkpoint_id: int, *batches: pa.RecordBatch) -> None:
    files = written(sink, *batches)
    sink.create_global_committer(Place()).commit(together(files, checkpoint_id))


def seen_by_all(directory: Path, snapshot: int | None = None) -> list[dict[str, Any]]:
    """What polars, pyiceberg and DuckDB agree on."""
    table = table_at(directory)
    scan = table.scan(snapshot_id=snapshot)
    library = scan.to_arrow()
    with duckdb.connect() as connection:
        connection.register("rows", library)
        found = connection.execute("from rows")
        names = [column[0] for column in found.description or ()]
        duck = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    polars = pl.scan_iceberg(table, snapshot_id=snapshot).collect().to_dicts()
    assert sorted(polars, key=lambda row: row["n"]) == sorted(duck, key=lambda row: row["n"])
    return sorted(library.to_pylist(), key=lambda row: row["n"])


def numbers(directory: Path, snapshot: int | None = None) -> list[int]:
    return [row["n"] for row in seen_by_all(directory, snapshot)]


def test_a_checkpoint_is_a_snapshot_of_the_table(place_for_tables):
    """Every tool sees the rows of a snapshot, whose summary says which checkpoint made it."""
    sink = sink_at(place_for_tables)
    sink.validate()
    first = written(sink, rows(1, 2), rows(3))
    other = written(sink, rows(4), place=Place(1, 2))
    committer = sink.create_global_committer(Place())
    assert committer.last_committed("job", "uid") is None
    committer.commit(together([*first, *other], 7))
    later = written(sink, rows(5))
    assert numbers(place_for_tables) == [1, 2, 3, 4]
    committer.commit(together(later, 9))
    table = table_at(place_for_tables)
    snapshots = [one.snapshot_id for one in table.snapshots()]
    assert [numbers(place_for_tables, one) for one in snapshots] == [[1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert committer.last_committed("job", "uid") == 9
    assert [committer.last_committed(*who) for who in (("other", "uid"), ("job", "other"))] == [None, None]


def test_partitions_by_values_are_made_and_read(place_for_tables):
    """With nulls, days, and signs that a path cannot have."""
    shops, days = (
        ["a/b", "ü=% x", None, "x" * 100],
        [dt.date(2024, 1, 1), None, dt.date(1969, 1, 1), dt.date(2024, 1, 1)],
    )
    sink = sink_at(place_for_tables, partition_by=["shop", "day"])
    commit(sink, 1, rows(1, 2, 3, 4, shop=shops, day=days))
    expected = [{"n": n + 1, "shop": shops[n], "day": days[n]} for n in range(4)]
    assert seen_by_all(place_for_tables) == expected
    table = table_at(place_for_tables)
    assert [field.name for field in table.spec().fields] == ["shop", "day"]
    assert table.scan(row_filter="shop == 'a/b'").to_arrow()["n"].to_pylist() == [1]
    assert len(list(table.scan(row_filter="shop == 'a/b'").plan_files())) == 1


def test_a_table_with_transforms_gets_files_that_fit_them(place_for_tables):
    """Parts of times and beginnings of texts; the files of a day hold rows of that day only."""
    catalog = load_catalog("default", **properties(place_for_tables))
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us")), ("shop", pa.string())])
    table = catalog.create_table(NAME, schema)
    with table.update_spec() as spec:
        spec.add_field("at", DayTransform())
        spec.add_field("shop", TruncateTransform(2))
        spec.add_field("n", TruncateTransform(10))
    times = [naive(2024, 1, 1, 5), naive(2024, 1, 1, 23), naive(2024, 1, 2), naive(1969, 12, 31, 23)]
    sink = sink_at(place_for_tables)
    commit(sink, 1, rows(1, 2, 3, 14, at=times, shop=["abc", "abd", "abc", None]))
    assert numbers(place_for_tables) == [1, 2, 3, 14]
    assert len(list(table_at(place_for_tables).scan().plan_files())) == 3


@pytest.mark.parametrize(
    ("column", "kept"),
    [
        ("shop", {"write.metadata.metrics.default": "counts"}),
        ("shop", {"write.metadata.metrics.column.shop": "none"}),
        ("shop.name", {}),
    ],
)
def test_partitions_are_right_where_no_bounds_are_kept(
    place_for_tables: Path, column: str, kept: dict[str, str]
) -> None:
    """The library takes partitions from bounds: files lay in that of null, where nobody who asked for a shop looked."""
    sink = sink_at(place_for_tables, partition_by=[column])
    batch = rows(1, 2, **{column: ["a", "b"]})
    commit(sink, 1, batch)
    with table_at(place_for_tables).transaction() as transaction:
        transaction.set_properties(kept)
    commit(sink, 2, batch)
    found = [task.file.partition[0] for task in table_at(place_for_tables).scan().plan_files()]
    assert sorted(map(str, found)) == ["a", "a", "b", "b"]
    assert numbers(place_for_tables) == [1, 1, 2, 2]


@pytest.mark.skipif(find_spec("pyiceberg_core") is not None, reason="the library can write such files anew")
def test_what_is_written_anew_needs_a_library_where_partitions_are_computed(place_for_tables: Path) -> None:
    """Said at submission, and not at each commit."""
    catalog = load_catalog("default", **properties(place_for_tables))
    none = {"write.metadata.metrics.default": "none"}
    table = catalog.create_table(NAME, pa.schema([("n", pa.int64())]), properties=none)
    with table.update_spec() as spec:
        spec.add_field("n", TruncateTransform(10))
    with pytest.raises(
        ConnectorError, match=r"by truncate\[10\] of 'n', where rows that are written anew need another"
    ):
        sink_at(place_for_tables).validate()


def test_a_table_of_which_a_partition_was_removed_gets_rows(place_for_tables: Path) -> None:
    """In tables of the first format the field stays, and says nothing: no commit ever ended."""
    catalog = load_catalog("default", **properties(place_for_tables))
    schema = pa.schema([("n", pa.int64()), ("shop", pa.string()), ("town", pa.string())])
    table = catalog.create_table(NAME, schema, properties={"format-version": "1"})
    with table.update_spec() as spec:
        spec.add_identity("shop").add_identity("town")
    with table.update_spec() as spec:
        spec.remove_field("shop")
    commit(sink_at(place_for_tables), 1, rows(1, 2, shop=["a", "b"], town=["x", "x"]))
    assert numbers(place_for_tables) == [1, 2]
    (task,) = table_at(place_for_tables).scan().plan_files()
    assert (task.file.partition[0], task.file.partition[1]) == (None, "x")


def test_a_commit_that_is_repeated_or_comes_too_late_changes_nothing(place_for_tables):
    """Also one of a process that is thought dead."""
    sink = sink_at(place_for_tables)
    first, second = written(sink, rows(1)), written(sink, rows(2))
    committer, dead = sink.create_global_committer(Place()), sink.create_global_committer(Place())
    committer.commit(together(first, 1))
    committer.commit(together(second, 2))
    for who in (committer, dead):
        who.commit(together(first, 1, again=True))
        who.commit(together(second, 2, again=True))
    assert numbers(place_for_tables) == [1, 2]
    assert len(table_at(place_for_tables).snapshots()) == 2


def test_a_race_of_two_that_commit_one_checkpoint_makes_one_snapshot(place_for_tables, monkeypatch):
    """The library would try again by itself, and add the rows twice; so would a process that is thought dead."""
    sink = sink_at(place_for_tables)
    files = written(sink, rows(1))
    original = Transaction.commit_transaction
    racing = [True]

    def race(self):
        if racing.pop() if racing else False:
            sink.create_global_committer(Place()).commit(together(files, 1))
        return original(self)

    monkeypatch.setattr(Transaction, "commit_transaction", race)
    sink.create_global_committer(Place()).commit(together(files, 1))
    assert numbers(place_for_tables) == [1]


def test_others_who_write_the_table_are_no_obstacle_unless_they_never_rest(place_for_tables, monkeypatch):
    """A commit that loses a race looks again, a bounded number of times."""
    sink = sink_at(place_for_tables)
    files = written(sink, rows(1))
    original = Table._do_commit
    races = [2]

    def race(self, updates, requirements):
        if races[0]:
            races[0] -= 1
            table = table_at(place_for_tables)
            waiting, races[0] = races[0], 0
            table.append(pa.table({"n": [100 + waiting]}))
            races[0] = waiting
        return original(self, updates, requirements)

    monkeypatch.setattr(Table, "_do_commit", race)
    sink.create_global_committer(Place()).commit(together(files, 1))
    assert numbers(place_for_tables) == [1, 100, 101]
    monkeypatch.setattr("snapline.connectors.tables.table_commits.LOST_RACES_MAX", 2)
    races[0] = 2
    with pytest.raises(ConnectorError, match="others committed 2 times between a look at the table and the commit"):
        sink.create_global_committer(Place()).commit(together(written(sink, rows(2)), 2))


class Death(BaseException):
    """The process ends here."""


def test_a_commit_that_dies_at_any_step_is_finished_by_its_successor(place_for_tables, monkeypatch):
    """Before and after the catalogue takes a commit; rows and their new column come together."""
    steps = [-1]
    original = Table._do_commit

    def mortal(self, updates, requirements):
        steps[0] -= 1
        if steps[0] == 0:
            raise Death
        original(self, updates, requirements)
        steps[0] -= 1
        if steps[0] == 0:
            raise Death

    monkeypatch.setattr(Table, "_do_commit", mortal)
    catalog = load_catalog("default", **properties(place_for_tables))
    deaths, dies = 0, True
    while dies:
        deaths, dies = deaths + 1, False
        if deaths > 1:
            catalog.drop_table(NAME)
        steps[0] = -1
        sink = sink_at(place_for_tables, new_columns="add")
        first = written(sink, rows(1), rows(2))
        wider = written(sink, rows(3, word=["three"]))
        steps[0] = deaths
        try:
            committer = sink.create_global_committer(Place())
            committer.commit(together(first, 1))
            committer.commit(together(wider, 2))
        except Death:
            dies = True
        steps[0] = -1
        successor = sink.create_global_committer(Place(attempt_number=1))
        done = successor.last_committed("job", "uid") or 0
        for checkpoint_id, files in ((1, first), (2, wider)):
            if checkpoint_id > done:
                successor.commit(together(files, checkpoint_id, again=True))
        found = [(row["n"], row["word"]) for row in seen_by_all(place_for_tables)]
        assert found == [(1, None), (2, None), (3, "three")]
    assert deaths == 5


def test_what_was_written_and_never_committed_is_seen_by_nobody(place_for_tables):
    """A writer that dies leaves a file that no snapshot names; one that ends in order takes its own away."""
    sink = sink_at(place_for_tables)
    commit(sink, 1, rows(1))
    written(sink, rows(2))
    writer = sink.create_writer(Place(), ())
    writer.write(rows(3))
    writer.close()
    assert numbers(place_for_tables) == [1]
    assert len(list(place_for_tables.rglob("part-*.parquet"))) == 2


def test_columns_are_matched_by_name_and_new_ones_follow_the_rule(place_for_tables):
    """A column that rows lack is null; one that the table lacks is refused, or added with the rows."""
    commit(sink_at(place_for_tables), 1, rows(1, word=["a"]))
    commit(sink_at(place_for_tables), 2, rows(2))
    with pytest.raises(
        ConnectorError, match="the rows have the column 'day', and the table has not; leave it out, or say"
    ):
        commit(sink_at(place_for_tables), 3, rows(3, day=[dt.date(2024, 1, 1)]))
    commit(sink_at(place_for_tables, new_columns="add"), 3, rows(3, day=[dt.date(2024, 1, 1)]))
    assert seen_by_all(place_for_tables) == [
        {"n": 1, "word": "a", "day": None},
        {"n": 2, "word": None, "day": None},
        {"n": 3, "word": None, "day": dt.date(2024, 1, 1)},
    ]


def test_types_come_back(place_for_tables):
    """Types that Iceberg lacks become the next wider one."""
    at = naive(2024, 1, 1, 3, 4, 5, 678901, tzinfo=dt.UTC)
    columns = {
        "u": pa.array([255, None], pa.uint8()),
        "i": pa.array([1, None], pa.int8()),
        "utc": pa.array([at, None], pa.timestamp("us", "UTC")).cast(pa.timestamp("ns", "Europe/Berlin")),
        "text": pa.array(["x" * 40, "y"]).dictionary_encode(),
        "list": pa.array([[{"a": 1}], [{"a": None}]], pa.list_(pa.struct([("a", pa.int32())]))),
    }
    commit(sink_at(place_for_tables), 1, rows(1, 2, **columns))
    assert seen_by_all(place_for_tables)[0] == {
        "n": 1,
        "u": 255,
        "i": 1,
        "utc": at,
        "text": "x" * 40,
        "list": [{"a": 1}],
    }


def test_a_table_that_changes_between_write_and_commit_is_an_error_that_names_it(place_for_tables):
    """The files were written for what the table was."""
    sink = sink_at(place_for_tables)
    files = written(sink, rows(2, word=["b"]))
    committer = sink.create_global_committer(Place())
    with table_at(place_for_tables).update_schema() as update:
        update.delete_column("word")
    with pytest.raises(
        ConnectorError, match="the table has changed: the rows have the column 'word', and the table has not"
    ):
        committer.commit(together(files, 2))
    load_catalog("default", **properties(place_for_tables)).drop_table(NAME)
    with pytest.raises(ConnectorError, match="the table is gone since its rows were written; put it back"):
        committer.commit(together(files, 2))


def test_files_that_are_gone_before_a_restored_commit_are_named(place_for_tables):
    """Instead of a snapshot that cannot be read."""
    sink = sink_at(place_for_tables)
    files = written(sink, rows(2, 3))
    note = files[0].data
    Path(note["directory"], note["files"][0]["path"]).unlink()
    with pytest.raises(ConnectorError, match=r"is gone, and with it 2 rows that were never committed"):
        sink.create_global_committer(Place()).commit(together(files, 2, again=True))


def test_a_failing_catalogue_is_an_error_not_a_race(place_for_tables, monkeypatch):
    """A commit that fails while nobody else commits is not tried for ever."""
    sink = sink_at(place_for_tables)
    files = written(sink, rows(1))

    def fail(self, updates, requirements):
        raise CommitFailedException("the catalogue is read-only\nreally")

    monkeypatch.setattr(Table, "_do_commit", fail)
    with pytest.raises(ConnectorError) as refusal:
        sink.create_global_committer(Place()).commit(together(files, 1))
    assert str(refusal.value).startswith(f"Iceberg table {NAME}: the catalogue is read-only; check")


def as_any(value: object) -> Any:
    return value


def bucketed(directory: Path) -> IcebergSink:
    catalog = load_catalog("default", **properties(directory))
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=BucketTransform(4), name="b"))
    made = catalog.create_table("shop.other", pa.schema([("n", pa.int64())]))
    catalog.create_table(NAME, made.schema(), partition_spec=spec)
    return sink_at(directory)


def partitioned_otherwise(directory: Path) -> IcebergSink:
    commit(sink_at(directory, partition_by=["word"]), 1, rows(1, word=["a"]))
    return sink_at(directory, partition_by=["n"])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: sink_at(path, new_columns=as_any("merge")), "new_columns is 'fail' or 'add', not 'merge'"),
        (lambda path: sink_at(path, rolling=5), "rolling is a RollingPolicy, not 5; write RollingPolicy(max_bytes=...)"),
        (lambda path: sink_at(path, shuffle=True), "shuffle=True needs partition_by"),
        (lambda path: IcebergSink("sales", catalog={}), "table needs its namespace, as in 'shop.sales', not 'sales'"),
        (lambda path: IcebergSink("no.sales", catalog=properties(path)).validate(), "there is no namespace 'no' in the catalogue"),
        (lambda path: IcebergSink(NAME, catalog="nowhere").validate(), "Iceberg catalogue 'nowhere': URI missing"),
        (lambda path: sink_at(path / "no").validate(), "unable to open database file; check type and uri"),
        (lambda path: IcebergSink(NAME, catalog={"type": "rest", "uri": "http://127.0.0.1:9"}).validate(), "Iceberg catalogue 'rest': "),
        (lambda path: bucketed(path).validate(), "is partitioned by bucket[4] of 'n', which pyiceberg cannot add files to"),
        (lambda path: partitioned_otherwise(path).validate(), "is partitioned by word, and the sink by n"),
        (lambda path: written(sink_at(path, partition_by=["x"]), rows(1)), "partitioned by 'x', which the rows have not"),
        (lambda path: written(sink_at(path, partition_by=["x"]), rows(1, x=[1.5])), "partition_by names 'x', which is double"),
        (lambda path: written(sink_at(path), rows(1, took=[dt.timedelta(1)])), "which such a table has no type for"),
        (lambda path: written(sink_at(path), rows(1), rows(2, x=[1])), "a batch has the column 'x', which earlier ones had not"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_in_a_line(place_for_tables, make, says):
    """The line names the culprit and the way out."""
    with pytest.raises(ConnectorError) as refusal:
        make(place_for_tables)
    assert says in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("options", [{}, {"partition_by": ["k"]}])
def test_a_job_without_rows_makes_a_table_without_rows(place_for_tables, options):
    """Readers find it, with the columns that the stream is known to have."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([{"k": "a", "n": 1}], uid="rows").filter(sl.col("n") > 1)
    stream.sink_to(sink_at(place_for_tables, **options), uid="table")
    env.execute("empty", local=True)
    assert table_at(place_for_tables).scan().to_arrow().schema.names == ["k", "n"]


def test_a_snapshot_brings_no_rows_of_another_table(place_for_tables):
    """A job that starts from it with another table committed the last rows there as well, by files that both had."""
    sink = sink_at(place_for_tables)
    waiting, lost = written(sink, rows(1)), written(sink, rows(2))
    sink.create_global_committer(Place()).commit(together(waiting, 1))
    other = IcebergSink("shop.others", catalog=properties(place_for_tables))
    committer = other.create_global_committer(Place())
    for _ in ("there is no such table", "there is one"):
        committer.commit(together(waiting, 1, again=True))
        with pytest.raises(
            ConnectorError, match=r"rows that were written for the table shop\.sales, and not committed there"
        ):
            committer.commit(together(lost, 2, again=True))
        written(other, rows(3))
    catalog = load_catalog("default", **properties(place_for_tables))
    assert catalog.load_table("shop.others").scan().to_arrow().num_rows == 0

    catalog.rename_table(NAME, "shop.renamed")
    renamed = IcebergSink("shop.renamed", catalog=properties(place_for_tables)).create_global_committer(Place())
    renamed.commit(together(lost, 2, again=True))
    assert sorted(catalog.load_table("shop.renamed").scan().to_arrow()["n"].to_pylist()) == [1, 2]
