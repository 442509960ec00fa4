"""Categories in files: each batch numbers its own, and a file has those of many batches."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapline.connectors.files.file_sink import FileSink
from snapline.connectors.formats.file_format import ParquetFormat
from snapline.connectors.parquet import ParquetSource
from snapline.dataflow.api.connector_api import InputStatus
from tests.unit.connectors.parquet.places import Place

BATCHES = 4
SMALL = pa.dictionary(pa.int8(), pa.string())


def batch_with(number: int, kind: pa.DataType = SMALL) -> pa.RecordBatch:
    """A hundred categories that no other batch has, as pandas numbers them."""
    words = pa.array([f"{number}-{place}" for place in range(100)]).dictionary_encode().cast(kind)
    return pa.record_batch({"word": words})


def words_of(table: pa.Table) -> list[str]:
    return table.column("word").cast(pa.string()).to_pylist()


WORDS = [word for number in range(BATCHES) for word in batch_with(number).column(0).to_pylist()]


def test_a_file_holds_more_categories_than_the_batches_number(tmp_path: Path) -> None:
    """Four batches with a hundred categories each, numbered in 8 bits, make a file that can be read."""
    sink = FileSink(tmp_path)
    writer = sink.create_writer(Place(), ())
    for number in range(BATCHES):
        writer.write(batch_with(number))
    sink.create_committer(Place()).commit(list(writer.prepare_commit(1)))
    (file,) = tmp_path.glob("*.parquet")
    table = pq.ParquetFile(file).read()
    assert words_of(table) == WORDS
    assert table.schema.field("word").type == pa.dictionary(pa.int32(), pa.string())


def test_files_that_are_put_together_hold_more_categories_than_each() -> None:
    """Files whose categories have numbers of 8 bits can be put together."""
    files = [io.BytesIO() for _ in range(BATCHES)]
    for number, file in enumerate(files):
        pq.write_table(pa.table(batch_with(number)), file)
    whole = io.BytesIO()
    ParquetFormat().merge(files, whole)
    assert words_of(pq.ParquetFile(whole).read()) == WORDS


@pytest.mark.parametrize(
    "nested",
    [
        lambda words: pa.StructArray.from_arrays([words], names=["w"]),
        lambda words: pa.ListArray.from_arrays([0, 40, 40, 100], words),
        lambda words: pa.LargeListArray.from_arrays([0, 40, 40, 100], words),
        lambda words: pa.FixedSizeListArray.from_arrays(words, 2),
        lambda words: pa.MapArray.from_arrays([0, 40, 100], pa.array(range(100)), words),
    ],
)
def test_so_does_a_column_with_categories_inside(nested: Callable[[pa.Array], pa.Array]) -> None:
    """Arrow cannot read several dictionaries inside of lists and records, so that there are values in them."""
    columns = [nested(batch_with(number).column(0)) for number in range(BATCHES)]
    file = io.BytesIO()
    writer = ParquetFormat().open(file, pa.schema([("x", columns[0].type)]))
    for column in columns:
        writer.write(pa.table({"x": column}))
    writer.close()
    found = pq.ParquetFile(file).read().column("x")
    assert found.to_pylist() == [value for column in columns for value in column.to_pylist()]


def test_wide_numbers_stay() -> None:
    """Numbers of more bits than needed are kept."""
    file = io.BytesIO()
    kind = pa.dictionary(pa.int64(), pa.large_string(), ordered=True)
    writer = ParquetFormat().open(file, pa.schema([("word", kind)]))
    writer.write(pa.table({"word": batch_with(0).column(0).cast(pa.large_string()).dictionary_encode().cast(kind)}))
    writer.close()
    assert words_of(pq.ParquetFile(file).read()) == words_of(pa.table(batch_with(0)))


def test_files_that_number_their_categories_otherwise_are_read_together(tmp_path: Path) -> None:
    """Those of an older version, or of pandas, lie beside those of this one."""
    kinds = [pa.int8(), pa.int32(), pa.int16()]
    for number, kind in enumerate(kinds):
        batch = batch_with(number, pa.dictionary(kind, pa.string()))
        inner = pa.StructArray.from_arrays([batch.column(0)], names=["w"])
        pq.write_table(pa.table({"word": batch.column(0), "inner": inner}), tmp_path / f"{number}.parquet")
    source = ParquetSource(str(tmp_path))
    splits = source.enumerate_splits()
    reader = source.create_reader(Place())
    reader.add_splits(splits)
    rows: list[dict[str, Any]] = []
    while (polled := reader.poll_next(0)).status is not InputStatus.END_OF_INPUT:
        rows += polled.batch.to_pylist() if polled.batch is not None else []
    assert sorted(row["word"] for row in rows) == sorted(WORDS[:300])
    assert all(row["inner"] == {"w": row["word"]} for row in rows)
    assert source.schema().field("word").type == pa.dictionary(pa.int32(), pa.string())
