"""The sink into Iceberg tables by a key: rows replace and delete those of the table, a checkpoint at a time, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType, NestedField, TimestampType

from snapline.connectors import IcebergSink
from snapline.connectors.iceberg.iceberg_merge import rows_of_keys
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.iceberg.test_iceberg_sink import (
    NAME,
    _no_threads,  # noqa: F401 - a fixture
    commit,
    naive,
    place_for_tables,  # noqa: F401 - a fixture
    properties,
    seen_by_all,
    sink_at,
    table_at,
    together,
    written,
)
from tests.unit.connectors.parquet.places import Place


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("key", [["k"], ["k", "part"]])
def test_a_checkpoint_of_rows_before_updates_alone_is_committed(place_for_tables: Path, key: list[str]) -> None:  # noqa: F811
    """No row is left of them, and of no keys with several columns an expression was sought without end."""
    sink = sink_at(place_for_tables, key=key, delete="row_kind")
    commit(sink, 1, rows(k=[1], part=["a"], n=[1], row_kind=["+I"]))
    commit(sink, 2, rows(k=[1], part=["a"], n=[0], row_kind=["-U"]))
    assert [row["n"] for row in seen_by_all(place_for_tables)] == [1]
    assert sink.create_global_committer(Place()).last_committed("job", "uid") == 2


def test_rows_replace_and_delete_by_key(place_for_tables: Path) -> None:  # noqa: F811
    """The last row of a key counts, whatever the order of files; keys have capitals; partitions are moved between."""
    sink = sink_at(place_for_tables, key=["Shop", "n"], delete="row_kind", partition_by=["day"], new_columns="add")
    sink.validate()
    first = rows(Shop=["a", "b", "c"], n=[1, 1, 1], day=["x", "x", "y"], row_kind=["+I", "+I", "+I"])
    again = rows(Shop=["a", "d"], n=[1, 2], day=["z", "z"], row_kind=["+U", "+I"])
    commit(sink, 1, first, again)
    expected = [("a", 1, "z"), ("b", 1, "x"), ("c", 1, "y"), ("d", 2, "z")]
    assert expected == sorted((row["Shop"], row["n"], row["day"]) for row in seen_by_all(place_for_tables))
    change = rows(
        Shop=["b", "b", "c", "none", "e", "e", "a"],
        n=[1] * 7,
        day=["x", "w", *[None] * 2, "v", None, None],
        more=range(7),
        row_kind=["-U", "+U", "-D", "-D", "+I", "-D", "-D"],
    )
    commit(sink, 2, change)
    found = sorted((row["Shop"], row["n"], row["day"], row["more"]) for row in seen_by_all(place_for_tables))
    assert found == [("b", 1, "w", 1), ("d", 2, "z", None)]
    assert list(place_for_tables.rglob("part-job-*")) == []


def test_a_checkpoint_is_merged_once(place_for_tables: Path) -> None:  # noqa: F811
    """Also when it is committed again, when it only deletes what is not there, and when another program writes."""
    sink = sink_at(place_for_tables, key=["k"], delete="gone")
    commit(sink, 1, rows(k=[1, 2], n=[10, 20], gone=[False, False]))
    second, third = (
        written(sink, rows(k=[2, 3], n=[21, 30], gone=[False] * 2)),
        written(sink, rows(k=[3], n=[31], gone=[False])),
    )
    third[0].data["checkpoint_id"] = 3
    committer = sink.create_global_committer(Place())
    assert committer.last_committed("job", "uid") == 1
    table_at(place_for_tables).append(pa.table({"k": [9], "n": [90]}))
    for again in (False, True):
        committer.commit(together([*third, *second], 3, again=again))
        assert {1: 10, 2: 21, 3: 31, 9: 90} == {row["k"]: row["n"] for row in seen_by_all(place_for_tables)}
    assert committer.last_committed("job", "uid") == 3
    committer.commit(together(written(sink, rows(k=[77], n=[0], gone=[True])), 4))
    assert committer.last_committed("job", "uid") == 4
    before = table_at(place_for_tables).metadata_location
    committer.commit(together(written(sink, rows(k=[1], n=[0], gone=[False])), 2))
    assert before == table_at(place_for_tables).metadata_location


def test_a_table_that_another_program_has_made(place_for_tables: Path) -> None:  # noqa: F811
    """Its key may not be null; where it is partitioned by a part of a time, the library that is missing is named."""
    catalog = load_catalog("default", **properties(place_for_tables))
    schema = Schema(
        NestedField(1, "n", LongType(), required=True), NestedField(2, "at", TimestampType(), required=False)
    )
    catalog.create_table(NAME, schema)
    sink = sink_at(place_for_tables, key=["n"])
    times = [naive(2026, 1, day) for day in (1, 2, 3)]
    commit(sink, 1, rows(n=[1, 2], at=times[:2]))
    commit(sink, 2, rows(n=[2, 3], at=[times[2], times[0]]))
    assert {1: times[0], 2: times[2], 3: times[0]} == {row["n"]: row["at"] for row in seen_by_all(place_for_tables)}
    catalog.drop_table(NAME)
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=DayTransform(), name="at_day"))
    catalog.create_table(NAME, schema, partition_spec=spec)
    with pytest.raises(
        ConnectorError, match=r"partitioned by day of 'at', .*pip install 'pyiceberg\[pyiceberg-core\]'"
    ):
        sink.validate()


def test_many_keys_of_several_columns_are_few_alternatives() -> None:
    """The library goes through expressions recursively, so that a chain of thousands would end it."""
    keys = pa.table({"shop": [n % 3000 for n in range(30_000)], "n": range(30_000)})

    def depth(expression: Any) -> int:
        return 1 + max(
            (depth(getattr(expression, side)) for side in ("left", "right") if hasattr(expression, side)), default=0
        )

    assert depth(rows_of_keys(keys)) <= 14


def test_what_cannot_work(place_for_tables: Path) -> None:  # noqa: F811
    """Each in one line: at definition, or when the rows come."""
    for options, says in (
        ({"delete": "d"}, "IcebergSink: delete= needs key="),
        ({"key": ["k"], "partition_by": ["n"], "shuffle": True}, "leave out shuffle="),
    ):
        with pytest.raises(ConnectorError, match=says):
            IcebergSink(NAME, catalog=properties(place_for_tables), **options)
    sink = sink_at(place_for_tables, key=["k"], delete="d")
    for batch, says in (
        (rows(n=[1], d=[True]), "the rows have no column 'k' but n, d"),
        (rows(k=[None, 1], n=[1, 1], d=[True, False]), "a row has no key: 'k' is null"),
        (rows(k=[1], d=["c"]), "'d' is 'c' in a row; there are"),
    ):
        with pytest.raises(ConnectorError, match=says):
            written(sink, batch)


@pytest.mark.parametrize("at", [pa.array([1 << 58], pa.timestamp("us")), pa.array([-(1 << 30)], pa.date32())])
def test_a_time_that_the_library_cannot_read_back_is_refused_by_key_as_well(
    place_for_tables: Path,  # noqa: F811
    at: pa.Array,
) -> None:
    """It waited in a file, and each commit of its checkpoint failed from then on."""
    sink = sink_at(place_for_tables, key=["k"])
    with pytest.raises(ConnectorError, match="column 'at' has a time in a year before 1 or after 9999"):
        written(sink, rows(k=[1], at=at))


def test_a_schema_has_the_column_that_says_what_is_deleted(place_for_tables: Path) -> None:  # noqa: F811
    """It is one of the rows', and not of those that are written: such a sink took no rows."""
    columns = pa.schema([("k", pa.int64()), ("n", pa.float32()), ("kind", pa.string())])
    sink = sink_at(place_for_tables, key=["k"], delete="kind", schema=columns)
    sink.validate()
    commit(sink, 1, rows(k=[1, 2], n=[1.0, 2.0], kind=["+I", "+I"]))
    commit(sink, 2, rows(k=[1, 2], n=[0.5, 0.0], kind=["+U", "-D"]))

    assert seen_by_all(place_for_tables) == [{"k": 1, "n": 0.5}]
