"""Rows of a batch by their partitions, where these are many, or numbered with narrow integers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from snapline.connectors.files.partitions import split_by_keys, split_by_partition
from snapline.dataflow.errors import ConnectorError


@pytest.mark.parametrize(
    ("columns", "rows", "values"), [(8, 1000, 300), (5, 16_384, 16_384), (70, 100, 2), (2, 50, 7), (1, 10, 1)]
)
def test_rows_go_to_their_own_partition_however_many_there_could_be(columns, rows, values):
    """Beyond 2**63 possible partitions their numbers ran over, and rows were written into partitions of others."""
    random = np.random.default_rng(1)
    keys = [pa.array([None if n == 1 else int(n) for n in random.integers(values, size=rows)]) for _ in range(columns)]
    expected: dict[tuple[object, ...], list[int]] = {}
    for number, row in enumerate(zip(*(key.to_pylist() for key in keys), strict=True)):
        expected.setdefault(row, []).append(number)

    found = split_by_keys(pa.record_batch([pa.array(range(rows))], ["n"]), keys)

    assert expected == {partition: part.column("n").to_pylist() for partition, part in found}


def test_large_dictionaries_lead_rows_to_their_own_partition():
    """Three rows were enough, since every entry of a dictionary counted, also those that no row has."""
    texts = pa.array([f"v{number}" for number in range(100_000)])
    key = pa.DictionaryArray.from_arrays(pa.array([0, None, 99_999], pa.int32()), texts)

    found = split_by_keys(pa.record_batch([pa.array(range(3))], ["n"]), [key] * 4)

    assert [("v0",) * 4, ("v99999",) * 4, (None,) * 4] == [partition for partition, _ in found]


def test_a_null_beside_all_values_that_narrow_indices_have():
    """The number of nulls, 128, did not fit the indices, and the task failed with an error of Arrow's."""
    texts = pa.array([f"v{number}" for number in range(128)])
    key = pa.DictionaryArray.from_arrays(pa.array([127, None], pa.int8()), texts)

    found = split_by_keys(pa.record_batch([pa.array(range(2))], ["n"]), [key])

    assert [("v127",), (None,)] == [partition for partition, _ in found]


def test_a_rare_partition_does_not_keep_the_rows_of_others():
    """A row of one in each batch kept all batches in memory until the barrier, and a TaskManager had none left."""
    key = pa.array(["rare" if number == 7 else f"p{number % 3}" for number in range(10_000)])

    found = dict(split_by_keys(pa.record_batch([pa.array(range(10_000))], ["n"]), [key]))

    assert [7] == found["rare",].column("n").to_pylist()
    assert found["rare",].get_total_buffer_size() < 1_000


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 253_402_300_800_000_000], pa.timestamp("us")),
        pa.array([-(2**63), None], pa.timestamp("s", "UTC")),
        pa.array([3_000_000], pa.date32()),
        pa.array([3_000_000, None], pa.date32()).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_a_time_that_no_directory_can_be_called_by_is_refused_with_its_column(column):
    """It was an OverflowError of Python's."""
    batch = pa.record_batch({"n": range(len(column)), "at": column})

    with pytest.raises(ConnectorError, match="FileSink: partition_by names 'at', which is before the year 1 or after"):
        list(split_by_partition(batch, ["at"]))


def test_a_column_of_an_extension_type_is_refused_by_its_name():
    """Of a UUID it was an error of Arrow's, "Function 'dictionary_encode' has no kernel matching input types"."""
    identities = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16)))

    with pytest.raises(ConnectorError, match=r"FileSink: partition_by names 'id', which is extension<arrow\.uuid>"):
        list(split_by_partition(pa.record_batch({"id": identities, "n": [1]}), ["id"]))


def test_truth_values_are_called_as_everybody_else_calls_them():
    """As Python has them, they were other partitions than Flink's, Spark's and Hive's, and DuckDB found no 'true'."""
    batch = pa.record_batch({"n": [1, 2, 3], "is_late": [True, None, False]})

    found = [(directory, rows.column("n").to_pylist()) for directory, rows in split_by_partition(batch, ["is_late"])]

    assert [("is_late=__HIVE_DEFAULT_PARTITION__", [2]), ("is_late=false", [3]), ("is_late=true", [1])] == sorted(found)
