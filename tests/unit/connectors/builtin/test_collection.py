"""Collections as sources and sinks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors.builtin.collection import CollectionSource, CollectSink
from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place

ROWS = [{"a": number, "b": str(number)} for number in range(10)]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    CollectSink.clear("here")


def test_rows_come_in_order_from_one_split() -> None:
    """As given, in batches, with the types of the values."""
    source = CollectionSource.of_rows(ROWS, batch_rows=4)
    reader = source.create_reader(Place())
    reader.add_splits(source.enumerate_splits())

    polled = [reader.poll_next(0) for _ in range(4)]

    assert [p.batch.num_rows if p.batch else 0 for p in polled] == [4, 4, 2, 0]
    assert [row for p in polled if p.batch for row in p.batch.to_pylist()] == ROWS
    assert polled[2].finished_splits == ("collection-0",) and polled[3].status is InputStatus.END_OF_INPUT
    assert source.schema() == pa.schema([("a", pa.int64()), ("b", pa.string())])


def test_a_restored_reader_goes_on() -> None:
    """The position is the number of batches."""
    source = CollectionSource.of_rows(ROWS, batch_rows=2, splits=2)
    reader = source.create_reader(Place())
    reader.add_splits(source.enumerate_splits())
    before = [row for _ in range(2) for row in (reader.poll_next(0).batch or pa.table({})).to_pylist()]
    snapshot = reader.snapshot_splits(1)

    restored = source.create_reader(Place())
    restored.add_splits(snapshot)
    after = []
    while (polled := restored.poll_next(0)).status is not InputStatus.END_OF_INPUT:
        assert polled.batch is not None
        after += polled.batch.to_pylist()

    assert sorted(row["a"] for row in before + after) == list(range(10))


def test_an_empty_collection_ends_at_once() -> None:
    """Also with splits that hold nothing."""
    source = CollectionSource.of_rows([], schema=pa.schema([("a", pa.int64())]), splits=3)
    reader = source.create_reader(Place())
    reader.add_splits(source.enumerate_splits())

    polled = reader.poll_next(0)

    assert polled.status is InputStatus.END_OF_INPUT and len(polled.finished_splits) == 3


def test_rows_that_do_not_fit_together_are_refused() -> None:
    """One line that says what to do."""
    with pytest.raises(ConnectorError, match=r"the rows do not fit together .*say schema="):
        CollectionSource.of_rows([{"a": 1}, {"a": "x"}])
    with pytest.raises(ConnectorError, match="batch 1 has other columns than the first"):
        CollectionSource([pa.record_batch({"a": [1]}), pa.record_batch({"b": [1]})])


def test_a_collection_takes_the_schema_that_its_errors_ask_for() -> None:
    """Also one without rows, whose columns nothing else says."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    numbers = pa.schema([("n", pa.float64())])
    with pytest.raises(ConnectorError, match="give every row the same columns, or say schema="):
        env.from_collection([{}, {"n": 1}])

    some, none = (
        env.from_collection([{}, {"n": 1}], schema=numbers),
        env.from_collection([], uid="none", schema=numbers),
    )

    assert list(some.execute_and_collect(local=True)) == [{"n": None}, {"n": 1.0}]
    assert none.schema == numbers


def test_collected_rows_appear_with_the_commit_and_once() -> None:
    """Written: nothing. Committed: there. Committed again: still once."""
    sink = CollectSink("here")
    writer, committer = sink.create_writer(Place(), ()), sink.create_committer(Place())
    writer.write(pa.record_batch({"a": [1, 2]}))
    first = writer.prepare_commit(1)
    writer.write(pa.record_batch({"a": [3]}))
    second = writer.prepare_commit(2)
    assert CollectSink.rows("here") == [] and not writer.prepare_commit(3)

    committer.commit(first)
    committer.commit([*first, *second])

    assert CollectSink.rows("here") == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_rows_whose_columns_change_are_collected_in_their_order() -> None:
    """A column that is null at first gets its type later; it was an error of Arrow's, which named no column."""
    sink = CollectSink("here")
    writer = sink.create_writer(Place(), ())
    for values in ([None], [1], [2], [None]):
        writer.write(pa.record_batch({"a": values}))

    sink.create_committer(Place()).commit(writer.prepare_commit(1))

    assert CollectSink.rows("here") == [{"a": None}, {"a": 1}, {"a": 2}, {"a": None}]


def test_a_column_that_only_later_rows_have_is_refused() -> None:
    """Its values were left out without a word; one that a later row has not is null there, and a schema says it all."""
    rows = [{"a": 1}, {"a": 2, "b": 3}]

    with pytest.raises(ConnectorError, match=r"the first row has no 'b', which a later one has; .*say schema="):
        CollectionSource.of_rows(rows)
    columns = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    assert CollectionSource.of_rows(rows, schema=columns).schema() == columns
    assert CollectionSource.of_rows(rows[::-1]).schema() == columns


def test_a_list_that_contains_itself_is_refused() -> None:
    """Arrow went down into it until the process had no stack left, and died."""
    value: list[object] = []
    value.append(value)
    with pytest.raises(ConnectorError, match=r"the rows do not fit together \(.*contains itself, .*say schema="):
        CollectionSource.of_rows([{"a": [1]}, {"a": value}])


def test_a_number_that_no_column_has_room_for_is_refused() -> None:
    """Arrow's own error named neither the source nor the way out."""
    with pytest.raises(ConnectorError, match=r"the rows do not fit together .*say schema="):
        CollectionSource.of_rows([{"a": 2**64}])


def test_a_table_of_another_library_is_a_collection() -> None:
    """It was refused as dictionaries that could not be made; rows that come one by one are taken, too."""
    rows = [{"town": "Oslo", "n": 1}, {"town": "Bern", "n": 2}]

    for given in (pa.Table.from_pylist(rows), pl.DataFrame(rows), iter(rows)):
        source = CollectionSource.of_rows(given, splits=2)
        reader = source.create_reader(Place())
        reader.add_splits(source.enumerate_splits())
        found = []
        while (polled := reader.poll_next(0)).status is not InputStatus.END_OF_INPUT:
            assert polled.batch is not None
            found += polled.batch.to_pylist()
        assert rows == sorted(found, key=lambda row: row["n"])
    with pytest.raises(ConnectorError, match=r"the rows do not fit together .*say schema="):
        CollectionSource.of_rows([("Oslo", 1, 2)])


def test_the_index_of_a_frame_of_pandas_is_a_column_where_it_has_a_name() -> None:
    """Rows that were chosen from a frame had their old numbers in a column `__index_level_0__`, up to the sink."""
    frame = pytest.importorskip("pandas").DataFrame([{"town": "Oslo", "n": 1}, {"town": "Bern", "n": 2}])
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    chosen = env.from_collection(frame[frame["n"] > 1])
    named = frame.set_index("town")

    assert list(chosen.execute_and_collect(local=True)) == [{"town": "Bern", "n": 2}]
    with_others = (
        chosen.select("town").enrich(frame[frame["n"] > 1], "town").enrich(lambda: named.add_prefix("their_"), "town")
    )
    assert list(with_others.execute_and_collect(local=True)) == [{"town": "Bern", "n": 2, "their_n": 2}]
    schema = CollectionSource.of_rows(named).schema()
    assert schema is not None and schema.names == ["n", "town"]
    wanted = pa.schema({"town": pa.string(), "n": pa.int32()})
    assert CollectionSource.of_rows(named, schema=wanted).schema() == wanted
    once = pa.RecordBatchReader.from_batches(wanted, pa.table({"town": ["Bern"], "n": [2]}, wanted).to_batches())
    assert CollectionSource.of_rows(once, schema=wanted).schema() == wanted


@pytest.mark.parametrize("rows", [[{}, {}], pa.table({"n": [1, 2]}).select([])], ids=["rows", "table"])
def test_rows_without_columns_are_refused(rows: object) -> None:
    """Nothing would be left of them in a table, and a job would read none where there are two."""
    with pytest.raises(ConnectorError, match="the rows have no columns, and would be lost"):
        CollectionSource.of_rows(rows)


def test_times_with_a_zone_and_without_one_do_not_mix() -> None:
    """The first decided the type, and the others were moved to it without a word; with a schema that is asked for."""
    rows = [
        {"at": None},
        {"at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)},
        {"at": dt.datetime.fromisoformat("2020-01-01")},
    ]

    for mixed in (rows, rows[::-1]):
        with pytest.raises(ConnectorError, match=r"some times in 'at' have a zone and some have none; .*say schema="):
            CollectionSource.of_rows(mixed)
    columns = pa.schema([("at", pa.timestamp("us", "UTC"))])
    assert CollectionSource.of_rows(rows, schema=columns).schema() == columns
    assert CollectionSource.of_rows(rows[:2]).schema() == columns


@pytest.mark.parametrize(
    ("rows", "kind", "says"),
    [
        ([{"n": 1}, {"n": 1.5}], pa.int64(), "(column 'n': 1.5 is no whole number)"),
        (
            [{"n": dt.date(2020, 1, 1)}, {"n": dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)}],
            None,
            "'n' has dates and times of day; give it one of them",
        ),
        ([{"n": dt.timedelta(microseconds=1)}], pa.duration("ms"), "(column 'n': datetime.timedelta"),
        (
            [{"n": 1}, {"m": 1}],
            pa.int64(),
            "row 1 has 'm', which is no column, and no 'n': the columns are 'n', as schema= says",
        ),
    ],
)
def test_values_are_not_changed_and_columns_not_lost_without_a_word(
    rows: list[dict[str, object]], kind: pa.DataType | None, says: str
) -> None:
    """What does not fit its type was cut, and a column whose name was written wrongly was null."""
    with pytest.raises(ConnectorError) as refused:
        CollectionSource.of_rows(rows, schema=None if kind is None else pa.schema([("n", kind)]))

    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "given", "says"),
    [
        (
            CollectionSource,
            [{"n": 1}],
            "takes a list of RecordBatches, not of dict; CollectionSource.of_rows tak",
        ),
        (
            CollectionSource,
            [pa.table({"n": [1]})],
            "not of Table; CollectionSource.of_rows takes dictionaries",
        ),
        (CollectionSource, pa.table({"n": [1]}), "CollectionSource.of_rows takes dictionaries and tables"),
        (CollectionSource, 5, "not of int; CollectionSource.of_rows takes"),
        (lambda x: CollectionSource([], splits=x), "2", "splits must be a whole number, got '2'"),
        (lambda x: CollectionSource.of_rows([{"n": 1}], splits=x), 0, "splits must be at least 1, got 0"),
        (lambda x: CollectionSource.of_rows(pa.table({"n": [1]}), schema=x), {"n": "int64"}, "is no schema: say which"),
        (lambda x: CollectionSource.of_rows([{"n": 1}], batch_rows=x), 0, "batch_rows must be at least 1, got 0"),
    ],
)
def test_what_is_no_batch_is_refused(make: Callable[[Any], object], given: object, says: str) -> None:
    """Rows in the place of batches ended in an AttributeError, and no splits in a division by zero."""
    with pytest.raises(ConnectorError) as refused:
        make(given)

    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (
            lambda: pa.table({"n": pa.array([43_200], pa.timestamp("s"))}),
            pa.date32(),
            "column 'n': some values of timestamp",
        ),
        (lambda: pl.DataFrame({"n": [2]}), pa.bool_(), "column 'n': some values of int64 are not the same as bool"),
        (
            lambda: pytest.importorskip("pandas").DataFrame({"n": [1e300]}),
            pa.float32(),
            "column 'n': some values of double are not the same",
        ),
        (
            lambda: pytest.importorskip("pandas").DataFrame({"m": [1]}),
            pa.int64(),
            "name 'n' present in the specified schema is not found",
        ),
    ],
)
def test_a_table_is_not_changed_by_its_schema(make: Callable[[], Any], kind: pa.DataType, said: str) -> None:
    """Noon became a day, 2 became true and a large number infinite, without a word; a lacking column was a KeyError."""
    with pytest.raises(ConnectorError, match=f"the rows do not fit together .*{said}"):
        CollectionSource.of_rows(make(), schema=pa.schema([("n", kind)]))


def test_categories_of_polars_are_the_texts_that_the_schema_says() -> None:
    """Arrow takes no category of a view."""
    frame = pl.DataFrame({"n": ["a", None, "a"]}, schema={"n": pl.Categorical})

    source = CollectionSource.of_rows(frame, schema=pa.schema([("n", pa.string())]))

    assert [row for batch in source._batches for row in batch.to_pylist()] == [{"n": "a"}, {"n": None}, {"n": "a"}]


def test_categories_of_a_table_may_be_more_than_one_batch_numbers() -> None:
    """A table has several dictionaries, which do not go together."""
    kind = pa.dictionary(pa.int8(), pa.string())
    words = [pa.array([f"{part}-{n}" for n in range(100)]).dictionary_encode().cast(kind) for part in range(2)]
    table = pa.table({"w": pa.chunked_array(words), "n": pa.array(range(200))})

    source = CollectionSource.of_rows(table, schema=pa.schema([("w", pa.string()), ("n", pa.int16())]))

    assert [row for batch in source._batches for row in batch.to_pylist()] == table.to_pylist()
