"""How rows are files: what one file holds, how it is written batch by batch, and how small ones become a larger one.

Decides the name's ending, the compressions and how files are put together: Parquet and ORC are read and written again,
lines are copied, blocks of Avro are copied as they are. A format of single rows (`RowFormat`, as for Kafka) is a format
of files too: lines, or an Avro container. How files are read is in `file_reading`. It does not know where files lie.
"""

from __future__ import annotations

import io
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from snapline.connectors.formats.avro import AvroFormat
from snapline.connectors.formats.csv_lines import CsvFormat
from snapline.connectors.formats.file_reading import (
    FileRows,
    avro_of,
    avro_rows,
    csv_of,
    int96_unit_of,
    json_of,
    orc_rows,
    parquet_rows,
    text_rows,
)
from snapline.connectors.formats.json_lines import JsonFormat
from snapline.connectors.formats.row_format import RowFormat
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.columnar.arrow_columns import with_null_parts
from snapline.dataflow.columnar.column_types import converted, kept_type
from snapline.dataflow.errors import ConnectorError

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 << 20
"""Where files are put together, rows are written when there are so many bytes of them."""
LINE_ROWS = 16_384
"""So many rows of a format of lines are encoded together."""
COPIED_BYTES = 1 << 20
SAMPLE_ROWS = 2048
NEW_VALUES = 0.95
"""A column of a file where more of the values than this share are new has no dictionary."""


class FileEncoder(Protocol):
    """Writes one file, from its beginning to its end."""

    def write(self, rows: pa.Table) -> None:
        """Append these rows to the file."""
        ...

    def close(self) -> None:
        """Write what ends the file; the stream below it stays open."""
        ...


class FileFormat(ABC):
    """Rows to files; pickled into the job.

    >>> class ArrowFiles(sl_connectors.FileFormat):
    ...     suffix = ".arrow"
    ...     schema = None
    ...     def open(self, stream, schema):
    ...         return pa.ipc.new_stream(stream, schema)
    ...     def merge(self, sources, stream):
    ...         tables = [pa.ipc.open_stream(source).read_all() for source in sources]
    ...         with self.open(stream, tables[0].schema) as writer:
    ...             writer.write(pa.concat_tables(tables))
    ...     def read(self, stream, position, *, batch_rows, columns=None):
    ...         table = pa.ipc.open_stream(stream).read_all().slice(position.get("rows", 0))
    ...         for batch in table.to_batches(batch_rows):
    ...             position = {"rows": position.get("rows", 0) + batch.num_rows}
    ...             yield sl_connectors.FileRows(batch, position)
    ...     def schema_of(self, stream):
    ...         return pa.ipc.open_stream(stream).schema
    >>> sl_connectors.FileSink(f"{tmp}/arrow", ArrowFiles()).format.suffix
    '.arrow'
    """

    batch_rows: int = ROW_GROUP_ROWS
    """So many rows are gathered before they are encoded."""

    @property
    @abstractmethod
    def suffix(self) -> str:
        """What the names of files end with."""

    @property
    def schema(self) -> pa.Schema | None:
        """Columns that a file has; None: those of the first batch."""
        return None

    @abstractmethod
    def open(self, stream: Any, schema: pa.Schema) -> FileEncoder:
        """Begin a file in a binary stream."""

    @abstractmethod
    def merge(self, sources: Sequence[Any], stream: Any) -> None:
        """Write the rows of these files (open binary streams that can seek) into one."""

    def read(
        self, stream: Any, position: Mapping[str, int], *, batch_rows: int, columns: Sequence[str] | None = None
    ) -> Iterator[FileRows]:
        """Read a file (an open binary stream that can seek) behind a position; an empty one is its beginning.
        `columns`: others may be left out. Raises ConnectorError when the format can only be written, as here."""
        raise ConnectorError(f"{type(self).__name__} cannot be read: it has no read(stream, position, ...)")

    def schema_of(self, stream: Any) -> pa.Schema:
        """Return the columns of a file. Raises ConnectorError when they have to be said, as here."""
        if self.schema is None:
            raise ConnectorError(f"{type(self).__name__} does not say its columns; give schema=")
        return self.schema


class ParquetFormat(FileFormat):
    """Parquet files.

    >>> import io
    >>> parquet = sl_connectors.ParquetFormat(compression="gzip", row_group_rows=1_000_000)
    >>> files = [io.BytesIO(), io.BytesIO()]
    >>> for file in files:
    ...     writer = parquet.open(file, pa.schema([("n", pa.int64())]))
    ...     writer.write(pa.table({"n": [1]}))
    ...     writer.close()
    >>> parquet.merge(files, io.BytesIO())
    >>> parquet.suffix, parquet.schema_of(files[0]).names
    ('.parquet', ['n'])
    >>> [found.rows.to_pydict() for found in parquet.read(files[0], {}, batch_rows=1000)]
    [{'n': [1]}]
    """

    compressions = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")

    def __init__(self, *, compression: str = "zstd", row_group_rows: int = ROW_GROUP_ROWS) -> None:
        require_positive("ParquetFormat", row_group_rows=row_group_rows)
        self.compression = _checked("ParquetFormat", compression, self.compressions)
        self.batch_rows = row_group_rows

    @property
    def suffix(self) -> str:
        return ".parquet"

    def open(self, stream: Any, schema: pa.Schema) -> FileEncoder:
        return ParquetEncoder(stream, schema, self)

    def merge(self, sources: Sequence[Any], stream: Any) -> None:
        files = [pq.ParquetFile(source) for source in sources]
        encoder = self.open(stream, files[0].schema_arrow)
        gathered: list[pa.RecordBatch] = []
        rows = size = 0
        for file in files:
            for batch in file.iter_batches(self.batch_rows):
                gathered.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows >= self.batch_rows or size >= ROW_GROUP_BYTES:
                    encoder.write(pa.Table.from_batches(gathered))
                    gathered, rows, size = [], 0, 0
        if gathered:
            encoder.write(pa.Table.from_batches(gathered))
        encoder.close()

    def read(
        self, stream: Any, position: Mapping[str, int], *, batch_rows: int, columns: Sequence[str] | None = None
    ) -> Iterator[FileRows]:
        footer = pq.read_metadata(stream)
        return parquet_rows(stream, position, batch_rows, columns, int96_unit_of(footer), footer)

    def schema_of(self, stream: Any) -> pa.Schema:
        return pq.ParquetFile(stream).schema_arrow.remove_metadata()


class ParquetEncoder:
    """Writes row groups of one file."""

    def __init__(self, stream: Any, schema: pa.Schema, form: ParquetFormat) -> None:
        self._stream = stream
        # Parquet asks the parts of a record that is null, too.
        self._schema = pa.schema([field.with_type(written_type(field.type)) for field in schema], schema.metadata)
        self._form = form
        self._writer: pq.ParquetWriter | None = None
        """Made with the first rows, which say which columns have a dictionary."""

    def write(self, rows: pa.Table) -> None:
        for place, field in enumerate(self._schema):
            if rows.column(place).type != field.type:
                chunks = [converted(chunk, field.type) for chunk in rows.column(place).chunks]
                rows = rows.set_column(place, field, pa.chunked_array(chunks, field.type))
        self._writer_for(rows).write_table(rows, row_group_size=self._form.batch_rows)

    def close(self) -> None:
        self._writer_for(self._schema.empty_table()).close()

    @property
    def metadata(self) -> pq.FileMetaData:
        """What the footer of the file says, once it is closed."""
        return self._writer_for(self._schema.empty_table()).writer.metadata

    def _writer_for(self, rows: pa.Table) -> pq.ParquetWriter:
        """What writes the file, which begins with these rows."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._stream,
                self._schema,
                compression=self._form.compression,
                use_dictionary=columns_with_dictionary(rows),
            )
        return self._writer


def written_type(data_type: pa.DataType) -> pa.DataType:
    """The type of a column in a file of Parquet. Each batch numbers the categories of a column anew, in 8 bits if they
    are few, as pandas does, and a file has those of many batches: Arrow writes them all with the type of the first, but
    cannot read them again where they are more, nor where they lie within records and lists and are not all the same."""
    if not pa.types.is_dictionary(data_type):
        return with_null_parts(kept_type(data_type))
    wide = data_type.index_type.bit_width >= 32
    return data_type if wide else pa.dictionary(pa.int32(), data_type.value_type, data_type.ordered)


def columns_with_dictionary(rows: pa.Table) -> bool | list[str]:
    """The columns of a Parquet file that begins with these rows for which a dictionary is built, or whether it is for
    all. Where values hardly come twice, building it takes longer than all else, and the file only gets larger.

    A sample decides: rows that follow each other, and rows far apart; both have to be new nearly all."""
    if any(pa.types.is_nested(kind) for kind in rows.schema.types):
        return True  # nested columns are named by their leaves
    places = pa.array(range(0, rows.num_rows, -(-rows.num_rows // SAMPLE_ROWS) or 1), pa.int64())
    return [
        name
        for name, column in zip(rows.column_names, rows.columns, strict=True)
        if not (_is_new(column.slice(0, SAMPLE_ROWS)) and _is_new(column.take(places)))
    ]


def _is_new(sample: pa.ChunkedArray) -> bool:
    """Whether nearly all of the values differ from each other; not where Arrow cannot say."""
    values = len(sample) - sample.null_count
    try:
        return bool(pc.count_distinct(sample).as_py() > NEW_VALUES * values)
    except pa.ArrowNotImplementedError:
        return False


class OrcFormat(FileFormat):
    """ORC files.

    >>> import io
    >>> orc, file = sl_connectors.OrcFormat(compression="zlib"), io.BytesIO()
    >>> writer = orc.open(file, pa.schema([("n", pa.int64())]))
    >>> writer.write(pa.table({"n": [1]}))
    >>> writer.close()
    >>> orc.merge([file], io.BytesIO())
    >>> orc.suffix, orc.schema_of(file).names
    ('.orc', ['n'])
    >>> [found.position for found in orc.read(file, {}, batch_rows=1000)]
    [{'stripes': 0, 'rows': 1}]
    """

    compressions = ("zstd", "snappy", "zlib", "lz4", "none")

    def __init__(self, *, compression: str = "zstd") -> None:
        self.compression = _checked("OrcFormat", compression, self.compressions)

    @property
    def suffix(self) -> str:
        return ".orc"

    def open(self, stream: Any, schema: pa.Schema) -> FileEncoder:
        from pyarrow import orc

        name = "uncompressed" if self.compression == "none" else self.compression
        calm = _CalmStream(stream)
        return _OrcEncoder(orc.ORCWriter(calm, compression=name), calm)

    def merge(self, sources: Sequence[Any], stream: Any) -> None:
        from pyarrow import orc

        files = [orc.ORCFile(source) for source in sources]
        encoder = self.open(stream, files[0].schema)
        for file in files:
            encoder.write(file.read())
        encoder.close()

    def read(
        self, stream: Any, position: Mapping[str, int], *, batch_rows: int, columns: Sequence[str] | None = None
    ) -> Iterator[FileRows]:
        return orc_rows(stream, position, batch_rows, columns)

    def schema_of(self, stream: Any) -> pa.Schema:
        from pyarrow import orc

        schema = orc.ORCFile(stream).schema.remove_metadata()
        schema.names  # noqa: B018 (raises ValueError where one is no text)
        return schema


class _OrcEncoder:
    """Writes stripes of one file, which has categories as the values that they stand for. Arrow takes the nulls of
    records that begin within others from the wrong place, so nested rows are copied to a place of their own, and writes
    what lies below a null, so that is null, too; where the scale of a decimal is negative, it ends the process."""

    def __init__(self, writer: FileEncoder, stream: _CalmStream) -> None:
        self._writer = writer
        self._stream = stream

    def write(self, rows: pa.Table) -> None:
        for place, field in enumerate(rows.schema):
            if pa.types.is_dictionary(field.type):
                decoded = field.with_type(field.type.value_type)
                rows = rows.set_column(place, decoded, rows.column(place).cast(decoded.type))
            elif _has_negative_scale(field.type):
                raise ConnectorError(
                    f"OrcFormat: column {field.name!r} is {field.type}, and ORC has no decimals of a negative scale; cast it before the sink"
                )
        if any(pa.types.is_nested(kind) for kind in rows.schema.types):
            rows = rows.take(pa.array(np.arange(rows.num_rows)))
            columns = [_null_below_null(column.combine_chunks()) for column in rows.columns]
            rows = pa.Table.from_arrays(columns, rows.column_names)
        self._writer.write(rows)
        self._stream.require_written()

    def close(self) -> None:
        self._writer.close()
        self._stream.require_written()


class _CalmStream(io.RawIOBase):
    """A stream whose errors are said by `require_written`: Arrow's writer of ORC writes once more when it is freed, and
    an error then, because the disk is full or the file was given up, ends the process."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._error: Exception | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            if self._error is None:
                self._stream.write(data)
        except Exception as error:
            self._error = error
        return len(data)

    def require_written(self) -> None:
        """Raise the first error of a write."""
        if self._error is not None:
            raise self._error


def _null_below_null(array: pa.Array) -> pa.Array:
    """The same values, where fields of a record that is null are null, too; the array begins where its buffers do."""
    kind, is_null = array.type, array.is_null()
    if pa.types.is_struct(kind) and kind.num_fields:
        fields = [_null_below_null(field) for field in array.flatten()]
        return pa.StructArray.from_arrays(fields, [field.name for field in kind], mask=is_null)
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(array.offsets, array.keys, _null_below_null(array.items), mask=is_null)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return type(array).from_arrays(array.offsets, _null_below_null(array.values), mask=is_null)
    if pa.types.is_fixed_size_list(kind):
        values = _null_below_null(array.values)
        return pa.FixedSizeListArray.from_arrays(values, kind.list_size, mask=is_null)
    return array


def _has_negative_scale(kind: pa.DataType) -> bool:
    """Whether a type is a decimal of whole tens, or has one inside of lists and records."""
    parts = (kind.field(place).type for place in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind) and kind.scale < 0) or any(_has_negative_scale(part) for part in parts)


class LinesFormat(FileFormat):
    """A row a line, in the form of a row format, perhaps compressed."""

    compressions = ("none", "gzip", "zstd")
    batch_rows = LINE_ROWS

    def __init__(self, rows: RowFormat, *, compression: str = "none") -> None:
        """`rows`: JsonFormat, CsvFormat, or another whose values have no line breaks in them."""
        self.rows = rows
        self.compression = _checked("LinesFormat", compression, self.compressions)

    @property
    def suffix(self) -> str:
        kind = ".jsonl" if isinstance(self.rows, JsonFormat) else ".csv" if isinstance(self.rows, CsvFormat) else ".txt"
        return kind + {"none": "", "gzip": ".gz", "zstd": ".zst"}[self.compression]

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def open(self, stream: Any, schema: pa.Schema) -> FileEncoder:
        plain = self.compression == "none"
        lines = stream if plain else pa.CompressedOutputStream(_StaysOpen(stream), self.compression)
        lines.write(self.header())
        return _LinesEncoder(lines, self.rows, owns_stream=not plain)

    def merge(self, sources: Sequence[Any], stream: Any) -> None:
        out = stream if self.compression == "none" else pa.CompressedOutputStream(stream, self.compression)
        header = self.header()
        for number, source in enumerate(sources):
            lines = source if self.compression == "none" else pa.CompressedInputStream(source, self.compression)
            if header and number:
                lines.read(len(header))
            shutil.copyfileobj(lines, out, COPIED_BYTES)
        if out is not stream:
            out.close()

    def read(
        self, stream: Any, position: Mapping[str, int], *, batch_rows: int, columns: Sequence[str] | None = None
    ) -> Iterator[FileRows]:
        return text_rows(self.rows, stream, position, batch_rows)

    def header(self) -> bytes:
        """What a file begins with, before its rows."""
        return self.rows.header_line() if isinstance(self.rows, CsvFormat) else b""


class _StaysOpen(io.RawIOBase):
    """A stream that is not closed with what compresses into it, because whoever opened it asks how long it is."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(data)
        return len(data)


class _LinesEncoder:
    """Writes lines into one file."""

    def __init__(self, stream: Any, rows: RowFormat, *, owns_stream: bool) -> None:
        self._stream = stream
        self._rows = rows
        self._owns_stream = owns_stream

    def write(self, rows: pa.Table) -> None:
        for batch in rows.to_batches(LINE_ROWS):
            if isinstance(self._rows, CsvFormat):
                self._stream.write(self._rows.write_text(batch))
                continue
            lines = [value or b"" for value in self._rows.encode(batch)]
            text = b"\n".join([*lines, b""])
            if text.count(b"\n") != len(lines) or b"\r\n" in text:
                broken = next(line for line in lines if b"\n" in line or line.endswith(b"\r"))
                raise ConnectorError(
                    f"{type(self._rows).__name__}: the value {broken[:40]!r} has a line break in it, and would be several rows of a file "
                    "that has a row a line; replace line breaks before the sink, or write 'json', 'csv' or 'parquet'"
                )
            self._stream.write(text)

    def close(self) -> None:
        if self._owns_stream:
            self._stream.close()


class AvroFilesFormat(FileFormat):
    """Avro containers, with the schema of an AvroFormat."""

    compressions = ("none", "gzip", "snappy", "zstd")
    batch_rows = LINE_ROWS

    def __init__(self, rows: AvroFormat, *, compression: str = "none") -> None:
        """`compression`: gzip is what Avro calls deflate; snappy and zstd need their own Python packages."""
        self.rows = rows
        self.compression = _checked("AvroFilesFormat", compression, self.compressions)

    @property
    def suffix(self) -> str:
        return ".avro"

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def open(self, stream: Any, schema: pa.Schema) -> FileEncoder:
        return _AvroEncoder(self._writer(stream, dict(self.rows.avro_schema)), self.rows)

    def merge(self, sources: Sequence[Any], stream: Any) -> None:
        import fastavro

        files = [fastavro.block_reader(source) for source in sources]
        writer = self._writer(stream, files[0].writer_schema)  # in which symbols may have another order than now
        for file in files:
            for block in file:
                writer.write_block(block)
        writer.flush()

    def read(
        self, stream: Any, position: Mapping[str, int], *, batch_rows: int, columns: Sequence[str] | None = None
    ) -> Iterator[FileRows]:
        return avro_rows(self.rows, stream, position, batch_rows)

    def _writer(self, stream: Any, schema: Any) -> Any:
        from fastavro.write import Writer

        codec = {"none": "null", "gzip": "deflate", "snappy": "snappy", "zstd": "zstandard"}[self.compression]
        return Writer(stream, schema, codec)


class _AvroEncoder:
    """Writes datums into one container."""

    def __init__(self, writer: Any, rows: AvroFormat) -> None:
        self._writer = writer
        self._rows = rows

    def write(self, rows: pa.Table) -> None:
        for row in self._rows.records_of(rows):
            try:
                self._writer.write(row)
            except (ValueError, TypeError, OverflowError) as error:
                raise ConnectorError(f"AvroFormat: a row does not fit the schema: {error}") from error

    def close(self) -> None:
        self._writer.flush()


def require_types(form: FileFormat, schema: pa.Schema, what: str) -> None:
    """Raise ConnectorError when the columns have a type that files of ORC or CSV have not."""
    for field in schema:
        try:
            if isinstance(form, OrcFormat):
                form.open(io.BytesIO(), schema).write(pa.schema([field]).empty_table())
            elif isinstance(form, LinesFormat) and isinstance(form.rows, CsvFormat):
                CsvFormat(pa.schema([field])).write_text(pa.RecordBatch.from_pylist([], pa.schema([field])))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConnectorError(
                f"{what}: column {field.name!r} is {field.type}, which files of this format have not; convert it before"
            ) from error


def require_mergeable(form: FileFormat, rows: pa.RecordBatch, what: str) -> None:
    """Raise ConnectorError for moments that Arrow writes into ORC and cannot read again, which it has to in order to
    put files together."""
    if not isinstance(form, OrcFormat):
        return
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if _has_far_moments(column):
            raise ConnectorError(
                f"{what}: column {name!r} has a moment outside of the years 1677 to 2262, with which files of ORC cannot be put "
                "together; leave out compact_below=, or correct it, or make it null before"
            )


def _has_far_moments(array: pa.Array) -> bool:
    """Whether a moment, also inside of lists and records, has no count of nanoseconds since 1970."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_date64(array.type):
        array = array.cast(pa.timestamp("ms"))
    kind = array.type
    if pa.types.is_timestamp(kind):
        try:
            array.cast(pa.timestamp("ns", kind.tz))
        except pa.ArrowInvalid:
            return True
    if pa.types.is_struct(kind):
        return any(map(_has_far_moments, array.flatten()))
    if pa.types.is_map(kind):
        return _has_far_moments(array.keys) or _has_far_moments(array.items)
    return pa.types.is_nested(kind) and hasattr(array, "flatten") and _has_far_moments(array.flatten())


def file_format_of(given: FileFormat | RowFormat | str, compression: str | None) -> FileFormat:
    """The format of files that is meant by what a user gave. Raises ConnectorError for what is none."""
    said = {} if compression is None else {"compression": compression}
    if given == "parquet":
        return ParquetFormat(**said)  # type: ignore[arg-type]
    if given == "orc":
        return OrcFormat(**said)
    if isinstance(given, FileFormat):
        if compression is not None:
            raise ConnectorError(f"say compression={compression!r} to {type(given).__name__}, which has one of its own")
        return given
    if isinstance(given, AvroFormat):
        return AvroFilesFormat(given, **said)
    if isinstance(given, RowFormat):
        return LinesFormat(given, **said)
    raise ConnectorError(
        f"{given!r} is no format of files: give 'parquet', 'orc', 'json', 'csv', JsonFormat(schema), CsvFormat(schema), "
        "AvroFormat(schema) or another FileFormat"
    )


NAMED_LINES: dict[str, Callable[[pa.Schema], RowFormat]] = {
    "json": JsonFormat,
    "csv": lambda schema: CsvFormat(schema, header=True),
}
"""Formats of lines, by the names under which they are written with the columns of the stream, and read with those that
a file says."""


INFERRED: dict[str, Callable[[Any], RowFormat]] = {"json": json_of, "csv": csv_of, "avro": avro_of}
"""Formats whose columns a file says, by the name that stands for them."""
READABLE = ("parquet", "orc", *INFERRED)


def readable_format_of(given: FileFormat | RowFormat | str, schema: pa.Schema | None) -> FileFormat | str:
    """The format of files that are to be read; its name as long as a file has to say the columns. Raises ConnectorError
    for what is none."""
    if isinstance(given, str):
        if given not in READABLE:
            raise ConnectorError(
                f"unknown format {given!r}; there are {', '.join(READABLE)}, JsonFormat(schema), CsvFormat(schema), "
                "AvroFormat(schema) and other formats"
            )
        if given == "avro" or (given in INFERRED and schema is None):
            return given
        if given in INFERRED and schema is not None:
            return LinesFormat(NAMED_LINES[given](schema))
    return file_format_of(given, None)


def _checked(name: str, compression: str, known: Sequence[str]) -> str:
    if compression not in known:
        raise ConnectorError(f"{name}: unknown compression {compression!r}; there are {', '.join(known)}")
    return compression
