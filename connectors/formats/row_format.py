"""What a format is, and how the rows that it cannot read are found without reading all others one by one.

Decides that values are decoded together, and that when that fails they are halved until the bad ones stand alone: a
batch without a bad row costs one call, one with a bad row about twice that. A null value is a row of nulls (a tombstone
in Kafka). It does not know where values come from; positions are the caller's. Mirrors Flink's DeserializationSchema
and SerializationSchema, for batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from snapline.dataflow.errors import ConnectorError

REASON_LENGTH_MAX = 300
DAY_OF = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
"""A day in the units of Arrow's timestamps."""
FIRST_DAY, END_DAY = -719_528, 2_932_897
"""Days since 1970 of the beginning of the years 0 and 10,000."""
UNREADABLE = (ValueError, TypeError, KeyError, IndexError, EOFError, ArithmeticError)
"""What decoders raise for a value that is no row."""


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value that is no row."""

    index: int
    """Position of the value among the values that were decoded."""
    reason: str
    """Why the value cannot be decoded, in one line."""


class RowFormat(ABC):
    """Rows to values and back; pickled into the job.

    >>> class Upper(sl_connectors.RowFormat):
    ...     schema = pa.schema([("word", pa.string())])
    ...     def decode_all(self, values):
    ...         return pa.RecordBatch.from_pydict({"word": [value.decode().upper() for value in values]}, self.schema)
    ...     def encode(self, batch):
    ...         return [word.encode() for word in batch["word"].to_pylist()]
    >>> Upper().decode_all([b"a", b"b"]).to_pydict()
    {'word': ['A', 'B']}
    """

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the schema of the rows that the format decodes."""

    @abstractmethod
    def decode_all(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """One row for each value, which is not null. Raises ValueError (pa.ArrowInvalid is one) when any of them is no
        row."""

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> Sequence[bytes | None]:
        """One value for each row, which has the columns of `schema`."""

    def decode(self, values: Sequence[bytes | None]) -> tuple[pa.RecordBatch, list[BadValue]]:
        """As many rows as values; those that are null or bad are nulls in every column.

        >>> import pyarrow as pa
        >>> from snapline.connectors.formats import JsonFormat
        >>> rows, bad = JsonFormat(pa.schema([("n", pa.int64())])).decode([b'{"n": 1}', b"?", None])
        >>> rows.column("n").to_pylist(), [row.index for row in bad]
        ([1, None, None], [1])
        """
        if values and None not in values:
            try:
                return self.decode_all(values), []  # type: ignore[arg-type]  # none of them is null
            except UNREADABLE:
                pass
        there = [index for index, value in enumerate(values) if value is not None]
        parts = list(self._decode([value for value in values if value is not None], there))
        bad = [part for part in parts if isinstance(part, BadValue)]
        decoded_parts = [part for part in parts if not isinstance(part, BadValue)]
        good = [index for indices, _ in decoded_parts for index in indices]
        rows = pa.Table.from_batches([batch for _, batch in decoded_parts], self.schema).combine_chunks()
        if len(good) == len(values):
            decoded = rows.to_batches()
            return (decoded[0] if decoded else pa.RecordBatch.from_pylist([], self.schema)), bad
        places: list[int | None] = [None] * len(values)
        for place, index in enumerate(good):
            places[index] = place
        taken = rows.take(pa.array(places, pa.int64()))
        arrays = [column.combine_chunks() for column in taken.columns]
        schema = pa.schema([field.with_nullable(True) for field in self.schema])
        return pa.RecordBatch.from_arrays(arrays, schema=schema), bad

    def _decode(
        self, values: Sequence[bytes], indices: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], pa.RecordBatch] | BadValue]:
        """Halve what cannot be decoded until the bad values stand alone; in order of the indices."""
        if not values:
            return
        try:
            batch = self.decode_all(values)
        except UNREADABLE as error:
            if len(values) == 1:
                reason = " ".join(str(error).split())[:REASON_LENGTH_MAX] or type(error).__name__
                yield BadValue(indices[0], reason)
                return
            half = len(values) // 2
            yield from self._decode(values[:half], indices[:half])
            yield from self._decode(values[half:], indices[half:])
            return
        yield indices, batch


def require_narrow_floats(table: pa.Table, read_as: Callable[[pa.Schema], pa.Table | pa.RecordBatch]) -> None:
    """Raise ValueError where a float32, also inside of lists and records, is infinite and not so as a double: Arrow
    makes infinity of numbers that are too large. `read_as`: reads the same text with other types."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        infinite = _count_infinite(column)
        if infinite:
            place = table.schema.get_field_index(name)
            doubles = read_as(table.schema.set(place, table.schema.field(place).with_type(_with_doubles(column.type))))
            if _count_infinite(doubles.column(name)) != infinite:
                raise ValueError(f"a number of column {name!r} is larger than float32 has them")


def require_digits(batch: pa.RecordBatch) -> None:
    """Raise ValueError for a decimal of more digits than its type has, also inside of lists and records: Arrow makes
    such ones of texts with fewer digits behind the point, and Parquet would cut them to other numbers."""
    for column in batch.columns:
        if _has_decimals(column.type):
            column.validate(full=True)


def require_years(batch: pa.RecordBatch, what: str) -> None:
    """Raise ConnectorError for a moment outside of the years 0 to 9999, which have four digits: of those far beyond
    Arrow makes texts that are no times, and Python's have none."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        kind = field.type
        if not pa.types.is_timestamp(kind) and not pa.types.is_date(kind):
            continue
        a_day = 1 if pa.types.is_date32(kind) else DAY_OF[kind.unit if pa.types.is_timestamp(kind) else "ms"]
        counts = pc.min_max(column.view(pa.int32() if pa.types.is_date32(kind) else pa.int64())).as_py()
        if counts["min"] is not None and not FIRST_DAY * a_day <= counts["min"] <= counts["max"] < END_DAY * a_day:
            raise ConnectorError(
                f"{what}: column {field.name!r} has a moment outside of the years 0 to 9999; correct it, or make it null before"
            )


def has_narrow_floats(kind: pa.DataType) -> bool:
    """Whether a type is float32, or has it inside of lists and records."""
    parts = (kind.field(place).type for place in range(kind.num_fields))
    return bool(pa.types.is_float32(kind)) or any(has_narrow_floats(part) for part in parts)


def _has_decimals(kind: pa.DataType) -> bool:
    parts = (kind.field(place).type for place in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind)) or any(_has_decimals(part) for part in parts)


def _with_doubles(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_doubles(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_doubles(kind.value_type)))
    return pa.float64() if pa.types.is_float32(kind) else kind


def _count_infinite(column: pa.Array | pa.ChunkedArray) -> int:
    kind = column.type
    if pa.types.is_floating(kind) and not pa.types.is_float16(kind):
        return int(pc.sum(pc.is_inf(column)).as_py() or 0)
    if pa.types.is_struct(kind):
        return sum(_count_infinite(pc.struct_field(column, place)) for place in range(kind.num_fields))
    return _count_infinite(pc.list_flatten(column)) if pa.types.is_list(kind) else 0


def require_columns(wanted: pa.Schema, rows: pa.Schema, what: str) -> None:
    """Raise ConnectorError where the rows lack a column that the format writes."""
    missing = [name for name in wanted.names if name not in rows.names]
    if missing:
        raise ConnectorError(
            f"{what}: the rows have no column {missing[0]!r}, which the format writes, but {', '.join(rows.names)}; correct format=, "
            "or add the column before the sink"
        )


def require_names_differ(file: pa.Schema, columns: Sequence[str], what: str) -> None:
    """Raise ConnectorError where a file has one of these columns twice."""
    twice = next((name for name in columns if len(file.get_all_field_indices(name)) > 1), None)
    if twice is not None:
        raise ConnectorError(
            f"{what} has two columns {twice!r}; write the file anew without one of them, or leave both out with columns="
        )


class RawFormat(RowFormat):
    """The value as it is, in one column.

    >>> raw = sl_connectors.RawFormat("word", text=True)
    >>> raw.encode(raw.decode_all([b"a", b"b"])), raw.schema.names
    ([b'a', b'b'], ['word'])
    """

    def __init__(self, column: str = "value", *, text: bool = False) -> None:
        """`text`: the column is a string, in UTF-8, instead of bytes."""
        self._schema = pa.schema([(column, pa.string() if text else pa.binary())])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def decode_all(self, values: Sequence[bytes]) -> pa.RecordBatch:
        array = pa.array(values, pa.binary())
        if self._schema.field(0).type == pa.string():
            array = array.cast(pa.string())
        return pa.RecordBatch.from_arrays([array], schema=self._schema)

    def encode(self, batch: pa.RecordBatch) -> Sequence[bytes | None]:
        column = batch.column(self._schema.names[0])
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = column.cast(pa.binary())
        if not (
            pa.types.is_binary(column.type)
            or pa.types.is_large_binary(column.type)
            or pa.types.is_fixed_size_binary(column.type)
        ):
            raise ConnectorError(
                f"RawFormat writes bytes and strings, and column {self._schema.names[0]!r} is {column.type}; cast it"
            )
        return column.to_pylist()
