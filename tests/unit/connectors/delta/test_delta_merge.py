"""The sink into Delta tables by a key: rows replace and delete those of the table, a checkpoint at a time, once."""

from __future__ import annotations

from typing import Any

import deltalake
import pyarrow as pa
import pytest

from snapline.connectors import DeltaSink
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.delta.test_delta_sink import commit, seen_by_all, together, written
from tests.unit.connectors.parquet.places import Place


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_rows_replace_and_delete_by_key(tmp_path):
    """The last row of a key counts, whatever the order of files; keys have capitals; partitions are moved between."""
    sink = DeltaSink(tmp_path, key=["Shop", "n"], delete="row_kind", partition_by=["day"], new_columns="add")
    sink.validate()
    first = rows(Shop=["a", "b", "c"], n=[1, 1, 1], day=["x", "x", "y"], row_kind=["+I", "+I", "+I"])
    again = rows(Shop=["a", "d"], n=[1, 2], day=["z", "z"], row_kind=["+U", "+I"])
    commit(sink, 1, first, again)
    expected = [("a", 1, "z"), ("b", 1, "x"), ("c", 1, "y"), ("d", 2, "z")]
    assert expected == sorted((row["Shop"], row["n"], row["day"]) for row in seen_by_all(tmp_path))
    kinds = ["-U", "+U", "-D", "-D", "+I", "-D", "-D"]
    change = rows(
        Shop=["b", "b", "c", "none", "e", "e", "a"],
        n=[1] * 7,
        day=["x", "w", *[None] * 2, "v", None, None],
        more=range(7),
        row_kind=kinds,
    )
    commit(sink, 2, change)
    found = sorted((row["Shop"], row["n"], row["day"], row["more"]) for row in seen_by_all(tmp_path))
    assert found == [("b", 1, "w", 1), ("d", 2, "z", None)]
    assert list(tmp_path.rglob("part-job-*")) == []


def test_a_checkpoint_is_merged_once(tmp_path):
    """Also when it is committed again, together with a later one, and when another program writes meanwhile."""
    sink = DeltaSink(tmp_path, key=["k"])
    commit(sink, 1, rows(k=[1, 2], n=[10, 20]))
    second, third = written(sink, rows(k=[2, 3], n=[21, 30])), written(sink, rows(k=[3], n=[31]))
    third[0].data["checkpoint_id"] = 3
    committer = sink.create_global_committer(Place())
    assert committer.last_committed("job", "uid") == 1
    deltalake.write_deltalake(tmp_path, pa.table({"k": [9], "n": [90]}), mode="append")
    for again in (False, True):
        committer.commit(together([*third, *second], 3, again=again))
        assert {1: 10, 2: 21, 3: 31, 9: 90} == {row["k"]: row["n"] for row in seen_by_all(tmp_path)}
    assert committer.last_committed("job", "uid") == 3
    version = deltalake.DeltaTable(tmp_path).version()
    committer.commit(together(written(sink, rows(k=[1], n=[0])), 2))
    assert version == deltalake.DeltaTable(tmp_path).version()


@pytest.mark.parametrize("kind", ["-D", "-U"])
def test_a_checkpoint_that_changes_nothing_is_found_done(tmp_path, kind):
    """Deletes of keys that are not there made no version: the rows were gone, and a commit that came again failed for
    good."""
    sink = DeltaSink(tmp_path, key=["k"], delete="row_kind")
    commit(sink, 1, rows(k=[1], n=[10], row_kind=["+I"]))
    waiting = written(sink, rows(k=[2, 1], n=[0, 0], row_kind=[kind, "-U"]))
    for again in (False, True):
        committer = sink.create_global_committer(Place())
        committer.commit(together(waiting, 2, again=again))
        assert committer.last_committed("job", "uid") == 2
    assert seen_by_all(tmp_path) == [{"k": 1, "n": 10}]
    assert list(tmp_path.rglob("part-job-*")) == []


@pytest.mark.parametrize("kinds", [["+U", "-U", "-D"], [False, None, True]])
def test_kinds_of_rows_may_be_categories(tmp_path, kinds):
    """As a stream hands them on, and other sinks by key take them."""
    sink = DeltaSink(tmp_path, key=["k"], delete="kind")
    commit(sink, 1, rows(k=[3], n=[0], kind=pa.array(kinds[:1]).dictionary_encode()))
    commit(sink, 2, rows(k=[1, 2, 3], n=[1, 2, 3], kind=pa.array(kinds).dictionary_encode()))
    left = [1] if kinds[1] == "-U" else [1, 2]
    assert [row["n"] for row in seen_by_all(tmp_path)] == left


def test_both_zeros_are_one_key(tmp_path):
    """No checkpoint with both could be committed: the library found two rows for one of the table."""
    sink = DeltaSink(tmp_path, key=["k"])
    commit(sink, 1, rows(k=[0.0], n=[1]))
    commit(sink, 2, rows(k=[-0.0, 0.0, 1.0], n=[2, 3, 4]))

    assert [(0.0, 3), (1.0, 4)] == sorted((row["k"], row["n"]) for row in seen_by_all(tmp_path))


def test_what_cannot_work(tmp_path):
    """Each in one line: at definition, or when the rows come."""
    for options, says in (
        ({"delete": "d"}, "delete= needs key="),
        ({"key": ["k", "d"], "delete": "d"}, "delete= names 'd', which is in key= and is not written"),
        ({"key": ["k", "k"]}, "key= names each column once"),
        ({"key": ["k"], "partition_by": ["n"], "shuffle": True}, "leave out shuffle="),
    ):
        with pytest.raises(ConnectorError, match=says):
            DeltaSink(tmp_path, **options)
    sink = DeltaSink(tmp_path, key=["k"], delete="d")
    for batch, says in (
        (rows(n=[1], d=[True]), "the rows have no column 'k' but n, d"),
        (rows(k=[1]), "the rows have no column 'd' but k"),
        (rows(k=[None, 1], n=[1, 1], d=[True, False]), "a row has no key: 'k' is null"),
        (rows(k=[1], d=[1]), "delete= names 'd', which is int64"),
        (rows(k=[1], d=["c"]), "'d' is 'c' in a row; there are"),
    ):
        with pytest.raises(ConnectorError, match=says):
            written(sink, batch)


def test_a_schema_has_the_column_that_says_what_is_deleted(tmp_path):
    """It is one of the rows', and not of those that are written: such a sink took no rows."""
    columns = pa.schema([("k", pa.int64()), ("n", pa.float32()), ("kind", pa.string())])
    sink = DeltaSink(tmp_path, key=["k"], delete="kind", schema=columns)
    sink.validate()
    commit(sink, 1, rows(k=[1, 2], n=[1.0, 2.0], kind=["+I", "+I"]))
    commit(sink, 2, rows(k=[1, 2], n=[0.5, 0.0], kind=["+U", "-D"]))

    assert seen_by_all(tmp_path) == [{"k": 1, "n": 0.5}]
