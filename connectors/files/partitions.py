"""Rows to partitions: which rows of a batch go to which directory.

Decides that the columns of a partition are in the path alone, as Hive has it, and that rows keep their order within
their partition. It knows neither files nor formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapline.connectors.files.staging import partition_directory
from snapline.dataflow.errors import ConnectorError

CODES_MAX = 1 << 62
"""Numbers of partitions beyond it are counted anew by the rows that have them."""
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)


def names_of(columns: str | Sequence[str]) -> tuple[str, ...]:
    """The columns' names; a text is the name of one column, not a sequence of letters."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def split_by_partition(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """(directory, rows without the partition's columns), for every partition that the batch has rows of."""
    for name in columns:
        if name in batch.schema.names and any(is_bytes(batch.schema.field(name).type) for is_bytes in _BYTES):
            raise ConnectorError(f"FileSink: partition_by names {name!r}, which is bytes; make it a text before")
        if name in batch.schema.names and batch.schema.field(name).type == pa.time64("ns"):
            # Python's times of day end at microseconds, and several of these would be one directory.
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, name, batch.column(place).cast(pa.string()))
    for values, rows in split_by_values(batch, columns, "FileSink"):
        yield partition_directory(tuple(columns), values), rows


def split_by_values(
    batch: pa.RecordBatch, columns: Sequence[str], what: str
) -> Iterator[tuple[tuple[object, ...], pa.RecordBatch]]:
    """(values of these columns, rows without the columns), for every combination of values that the batch has."""
    if not columns:
        yield (), batch
        return
    missing = [name for name in columns if name not in batch.schema.names]
    if missing:
        raise ConnectorError(
            f"{what}: partition_by names {missing[0]!r}, and the rows have the columns {', '.join(batch.schema.names)}"
        )
    for name in columns:
        kind = batch.schema.field(name).type
        if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
            raise ConnectorError(
                f"{what}: partition_by names {name!r}, which is {kind}; make it a text or a number before"
            )
        _require_known_years(batch.column(name), name, what)
    rest = batch.select([name for name in batch.schema.names if name not in columns])
    if not rest.num_columns:
        raise ConnectorError(f"{what}: all columns are in partition_by, and none is left for the files")
    if batch.num_rows:
        yield from split_by_keys(rest, [batch.column(name) for name in columns])


def _require_known_years(column: pa.Array, name: str, what: str) -> None:
    """Raise ConnectorError for a time or day that Python has no text for."""
    values = column.dictionary if isinstance(column, pa.DictionaryArray) else column
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        try:
            for bound in pc.min_max(values).values():
                bound.as_py()
        except OverflowError as error:
            raise ConnectorError(
                f"{what}: partition_by names {name!r}, which is before the year 1 or after 9999 in a row, and no directory can be called "
                "so; correct it, or make it null, before the sink"
            ) from error


def split_by_keys(
    rest: pa.RecordBatch, keys: Sequence[pa.Array]
) -> Iterator[tuple[tuple[object, ...], pa.RecordBatch]]:
    """(values of the keys, the rows that have them), for every combination of values; there is at least one row."""
    if not keys:
        yield (), rest
        return
    codes, span = np.zeros(rest.num_rows, np.int64), 1
    encoded = [column if isinstance(column, pa.DictionaryArray) else pc.dictionary_encode(column) for column in keys]
    for column in encoded:
        count = len(column.dictionary) + 1
        if span * count > CODES_MAX:
            codes, span = np.unique(codes, return_inverse=True)[1], rest.num_rows
        indices = column.indices.cast(pa.int64()).fill_null(count - 1)
        codes = codes * count + indices.to_numpy(zero_copy_only=False)
        span *= count
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    firsts = pa.array(order[starts])
    named = zip(*(column.take(firsts).to_pylist() for column in encoded), strict=True)
    if len(starts) == 1:
        yield next(named), rest
        return
    # Rows that wait keep the memory of all that were taken with them, so few are not taken with many.
    counts = np.diff(starts, append=len(order))
    sizes = np.frexp(counts)[1] // 2
    taken = {size: rest.take(pa.array(order[np.repeat(sizes == size, counts)])) for size in np.unique(sizes)}
    given = dict.fromkeys(taken, 0)
    for values, size, count in zip(named, sizes, counts.tolist(), strict=True):
        yield values, taken[size].slice(given[size], count)
        given[size] += count
