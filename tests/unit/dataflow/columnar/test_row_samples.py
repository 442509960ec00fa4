"""Rows from a process that may be hostile become no more in memory than they may."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from snapline.dataflow.columnar.row_samples import read_sample
from snapline.dataflow.columnar.validated import DAMAGE
from tests.unit.dataflow.columnar.test_validated import BATCH, mutated

ROWS = 5_000
BYTES = 1 << 20


def written(columns: dict[str, pa.Array], compression: str | None = None) -> bytes:
    """An Arrow stream with one batch."""
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def shared(count: int, kind: pa.DataType) -> pa.Array:
    """One long text that so many rows have."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int8()), pa.array(["x" * 10_000], kind))


NULLS = pa.nulls(10_000_000)
HOSTILE: dict[str, Callable[[], bytes]] = {
    "compressed": lambda: written({"n": pa.array([0] * ROWS)}, "zstd"),
    "a compressed dictionary": lambda: written({"d": pa.array(["x" * 1000]).dictionary_encode()}, "lz4"),
    "compressed nothing": lambda: written({"n": pa.nulls(ROWS)}, "zstd"),
    "many rows": lambda: written({"n": pa.nulls(ROWS + 1)}),
    "many nulls": lambda: written({"n": pa.ListArray.from_arrays([0, len(NULLS)], NULLS)}),
    "runs": lambda: written({"r": pa.RunEndEncodedArray.from_arrays(pa.array([9], pa.int32()), pa.array(["x"]))}),
    "views": lambda: written({"v": pa.array(["x" * 100] * 9, pa.string_view())}),
    "a dictionary": lambda: written({"d": shared(ROWS, pa.string())}),
    "a dictionary in a list": lambda: written({"d": pa.ListArray.from_arrays([0, 1000], shared(1000, pa.binary()))}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_becomes_more_than_it_may_is_refused(name: str) -> None:
    """17 KB that were compressed became 0.7 GB in a coordinator."""
    with pytest.raises(pa.ArrowInvalid):
        read_sample(HOSTILE[name](), ROWS, BYTES)


def test_columns_that_share_their_bytes_are_refused() -> None:
    """Many columns of one long text are many long texts in a row."""
    stream = written({"a": pa.array(range(8)), "b": pa.array(range(100, 108))})
    second = np.array([64, 64], np.int64).tobytes()  # where the bytes of the second column begin, and how many they are
    changed = np.array([0, 128], np.int64).tobytes().join(stream.rsplit(second, 1))
    with pytest.raises(pa.ArrowInvalid, match="share their bytes"):
        read_sample(changed, ROWS, BYTES)


def test_rows_of_all_types_are_read_as_they_are() -> None:
    """A job may have dictionaries, lists and structs, and several batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BATCH.schema) as writer:
        for part in (BATCH.slice(0, 100), BATCH.slice(100), BATCH.slice(0, 0)):
            writer.write_batch(part)
    found = read_sample(sink.getvalue().to_pybytes(), ROWS, BYTES)
    assert BATCH.to_pylist() == [row for batch in found for row in batch.to_pylist()]


def test_a_dictionary_of_nothing_is_read() -> None:
    """A category that no row has yet is one of nulls, which have no length."""
    nothing = pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), pa.nulls(1))
    assert [nothing] == [batch.column(0) for batch in read_sample(written({"d": nothing}), ROWS, BYTES)]


def test_damaged_headers_are_refused() -> None:
    """Whatever is changed, it is refused in order, or other rows that are sound come out."""
    stream = written(dict(zip(BATCH.schema.names, BATCH.columns, strict=True)))
    read = 0
    for seed in range(1000):
        try:
            read += sum(batch.num_rows for batch in read_sample(mutated(stream, seed), ROWS, BYTES))
        except DAMAGE:
            continue
    assert read
