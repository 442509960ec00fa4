"""CSV: one line a row. Read and written by pyarrow, whole batches at once.

Decides that a value is one line with the schema's columns in their order; a line break inside a quoted field stays
there; an empty text is in quotes, and one that is null is nothing at all, as Spark and polars have it. A file may begin
with a header, which then says the order of its columns.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from snapline.connectors.formats.row_format import RowFormat, require_digits, require_narrow_floats, require_years
from snapline.dataflow.errors import ConnectorError

QUOTE = ord('"')
NOT_CLOSED = "a quote is opened and not closed"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""At the beginning of a file it says that this is UTF-8; in the first of some rows it is a letter."""
COLUMNS_MAX = 1 << 15
"""A longer header is no header; each column takes kilobytes."""
NULLS = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL", "n/a", "null")
"""Fields that are null, unless the column is a text: Arrow's own, without those that say not-a-number. A text is null
where there is nothing, not even quotes."""
TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)


class CsvFormat(RowFormat):
    """Reads and writes CSV with one line for each row.

    >>> csv = sl_connectors.CsvFormat(pa.schema([("word", pa.string()), ("n", pa.int64())]))
    >>> csv.decode_all([b"a,1", b"b,"]).to_pydict(), csv.schema.names
    ({'word': ['a', 'b'], 'n': [1, None]}, ['word', 'n'])
    >>> len(csv.encode(pa.RecordBatch.from_pydict({"word": ["a"], "n": [1]})))
    1
    """

    def __init__(self, schema: pa.Schema, *, delimiter: str = ",", header: bool = False) -> None:
        """`schema`: of the columns, in the order of the line. An empty field is null; so is one that says NA or null,
        or has empty quotes, unless the column is a text. `header`: files begin with a line of names; those that are
        read may have their columns in another order, and more of them."""
        if len(delimiter.encode()) != 1 or delimiter in '"\r\n':
            raise ConnectorError(f"CsvFormat: delimiter is one letter of ASCII, not {delimiter!r}")
        self._schema = schema.remove_metadata()
        self.delimiter = delimiter
        self.header = header

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def of_header(self, line: bytes) -> CsvFormat:
        """The format of a file that begins with this header: its columns, those that the schema lacks as text. Raises
        ConnectorError when it lacks one of the schema's.

        >>> csv = sl_connectors.CsvFormat(pa.schema([("n", pa.int64())]), header=True)
        >>> csv.of_header(b"word,n").decode_all([b"a,1"]).to_pydict()
        {'word': ['a'], 'n': [1]}
        """
        try:
            names = next(csv.reader([line.decode(errors="replace").rstrip("\r\n")], delimiter=self.delimiter), [])
        except csv.Error as error:
            raise ConnectorError(f"its header cannot be read: {error}") from error
        if len(names) > COLUMNS_MAX:
            raise ConnectorError(f"its header has {len(names)} columns; {COLUMNS_MAX} are the most that are read")
        twice = next((first for first, second in pairwise(sorted(names)) if first == second), None)
        if twice is not None:
            raise ConnectorError(f"its header has the column {twice!r} twice; give names that differ")
        missing = next((name for name in self._schema.names if name not in names), None)
        if missing is not None:
            raise ConnectorError(f"its header has no column {missing!r}, but {', '.join(names)}; correct schema=")
        known = {field.name: field for field in self._schema}
        return self._of(pa.schema([known.get(name, pa.field(name, pa.string())) for name in names]))

    def _of(self, schema: pa.Schema) -> CsvFormat:
        return CsvFormat(schema, delimiter=self.delimiter)

    def header_line(self) -> bytes:
        r"""The line of names that a file begins with; nothing for files without a header.

        >>> sl_connectors.CsvFormat(pa.schema([("word", pa.string()), ("n", pa.int64())]), header=True).header_line()
        b'word,n\n'
        """
        if not self.header:
            return b""
        return self._line(self._schema.names) + b"\n"

    def decode_all(self, values: Sequence[bytes]) -> pa.RecordBatch:
        if len(self._schema) > 1 and not all(values):
            raise ValueError("an empty line")
        lines = [value.rstrip(b"\r\n") for value in values]
        text = b"\n".join(lines) + b"\n"
        if QUOTE in text and any(
            line.count(QUOTE) % 2 and not row_of(self.delimiter).fullmatch(line) for line in lines
        ):
            raise ValueError(NOT_CLOSED)
        if len(lines) > 1 and text.count(b"\n") + text.count(b"\r") > len(lines):
            for line in lines:  # one that is two rows could make up for two that are one
                if b"\n" in line or b"\r" in line:
                    self.read_text(line + b"\n", 1)
        return self._rows(text, len(lines))

    def read_text(self, text: bytes | pa.Buffer, count: int | None = None) -> pa.RecordBatch:
        r"""Decode a text of `count` rows, or however many they are, with a line break behind each. Raises ValueError
        (pa.ArrowInvalid is one) when a line is no row.

        >>> csv = sl_connectors.CsvFormat(pa.schema([("word", pa.string()), ("n", pa.int64())]))
        >>> csv.read_text(b"a,1\nb,2\n", 2).to_pydict()
        {'word': ['a', 'b'], 'n': [1, 2]}
        """
        if np.count_nonzero(np.frombuffer(text, np.uint8) == QUOTE) % 2:
            raise ValueError(NOT_CLOSED)  # Arrow would take all that follows for one field
        return self._rows(text, count)

    def _rows(self, text: bytes | pa.Buffer, count: int | None) -> pa.RecordBatch:
        """Decode a text of which every quote that is opened is closed. Raises as `read_text` does."""
        try:
            table = self._read(text)
        except pa.ArrowNotImplementedError as error:
            raise ConnectorError(
                f"CsvFormat: {str(error).splitlines()[0]}; leave such columns out of the schema, or read them as other types"
            ) from error
        if pa.float32() in self._schema.types:
            require_narrow_floats(table, lambda schema: self._of(schema)._read(text))  # noqa: SLF001 - one class
        if count is not None and table.num_rows != count:
            raise ValueError("a line of CSV is not one row")
        found = table.select(self._schema.names).combine_chunks().to_batches()[0]
        require_digits(found)
        return found

    def _read(self, text: bytes | pa.Buffer) -> pa.Table:
        texts = [field.name for field in self._schema if any(is_kind(_value_type(field.type)) for is_kind in TEXTS)]
        if not texts:
            return self._convert(text, null_values=NULLS)
        plain = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
        try:
            return self._convert(text, **plain)
        except pa.ArrowInvalid:  # perhaps because of nulls that say so, which to a text are words
            rest = [name for name in self._schema.names if name not in texts]
            if not rest:
                raise
            found = self._convert(text, null_values=NULLS, include_columns=rest)
            for name, column in zip(texts, self._convert(text, **plain, include_columns=texts).columns, strict=True):
                found = found.append_column(self._schema.field(name), column)
            return found

    def _convert(self, text: bytes | pa.Buffer, **options: Any) -> pa.Table:
        if bytes(memoryview(text)[: len(BYTE_ORDER_MARK)]) == BYTE_ORDER_MARK:
            text = BYTE_ORDER_MARK + bytes(text)  # Arrow leaves out the first one
        return pacsv.read_csv(
            pa.BufferReader(text),
            read_options=pacsv.ReadOptions(
                use_threads=False, block_size=len(text) + 1, column_names=self._schema.names
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=True, ignore_empty_lines=False
            ),
            convert_options=pacsv.ConvertOptions(column_types=self._schema, **options),
        )

    def encode(self, batch: pa.RecordBatch) -> Sequence[bytes | None]:
        lines: list[bytes | None] = list(self.write_text(batch).to_pybytes().split(b"\n")[:-1])
        if len(lines) == batch.num_rows:
            return lines
        rows = [batch.slice(number, 1) for number in range(batch.num_rows)]  # some have line breaks in them
        return [self.write_text(row).to_pybytes()[:-1] for row in rows]

    def write_text(self, batch: pa.RecordBatch) -> pa.Buffer:
        r"""Encode rows as a text with a line break behind each.

        >>> csv = sl_connectors.CsvFormat(pa.schema([("word", pa.string()), ("n", pa.int64())]))
        >>> csv.write_text(pa.RecordBatch.from_pydict({"n": [1], "word": ["a"]})).to_pybytes()
        b'"a",1\n'
        """
        text = pa.BufferOutputStream()
        options = pacsv.WriteOptions(include_header=False, delimiter=self.delimiter)
        batch = batch.select(self._schema.names)
        require_years(batch, "CsvFormat")
        # The hours of a zone are said without the seconds that zones had before there was a standard time.
        pacsv.write_csv(
            batch.cast(pa.schema([field.with_type(_in_utc(field.type)) for field in batch.schema])), text, options
        )
        return text.getvalue()

    def _line(self, row: Sequence[object]) -> bytes:
        """Return values as one line."""
        text = io.StringIO()
        csv.writer(text, delimiter=self.delimiter, lineterminator="\n").writerow(row)
        return text.getvalue()[:-1].encode()


@cache
def row_of(delimiter: str) -> re.Pattern[bytes]:
    r"""What a row looks like, with the line break behind it if there is one: a field that begins with a quote ends
    behind another one, and may have line breaks in it; in a field that begins otherwise a quote is a letter.

    >>> from snapline.connectors.formats.csv_lines import row_of
    >>> row_of(",").match(b'6" pipe,"a\nb"\nnext').end()
    14
    """
    escaped = re.escape(delimiter.encode())
    letters = rb"[^%b\n]*" % escaped
    field = rb'(?:"[^"]*(?:""[^"]*)*"(?!")%b|(?!")%b)' % (letters, letters)
    return re.compile(rb"%b(?:%b%b)*(?:\n|\Z)" % (field, escaped, field))


def _value_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a category; every other type as it is."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """The same moments in UTC; every other type as it is."""
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind
