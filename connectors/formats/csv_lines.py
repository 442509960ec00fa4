"""CSV: one line a row, without a header. Read and written by pyarrow, whole batches at once.

Decides that a value is one line with the schema's columns in their order; a line break inside a quoted field stays
there.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.csv as pacsv

from snapline.connectors.formats.row_format import RowFormat


class CsvFormat(RowFormat):
    """Reads and writes CSV with one line for each row.

    >>> csv = sl_connectors.CsvFormat(pa.schema([("word", pa.string()), ("n", pa.int64())]))
    >>> csv.decode_all([b"a,1", b"b,"]).to_pydict(), csv.schema.names
    ({'word': ['a', 'b'], 'n': [1, None]}, ['word', 'n'])
    >>> len(csv.encode(pa.RecordBatch.from_pydict({"word": ["a"], "n": [1]})))
    1
    """

    def __init__(self, schema: pa.Schema, *, delimiter: str = ",") -> None:
        """`schema`: of the columns, in the order of the line. An empty field is null, unless the column is a string."""
        self._schema = schema.remove_metadata()
        self.delimiter = delimiter

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def decode_all(self, values: Sequence[bytes]) -> pa.RecordBatch:
        if len(self._schema) > 1 and not all(values):
            raise ValueError("an empty line")
        data = b"\n".join([value.rstrip(b"\r\n") for value in values]) + b"\n"
        breaks = data.count(b"\n") != len(values)
        table = pacsv.read_csv(
            io.BytesIO(data),
            read_options=pacsv.ReadOptions(
                use_threads=False, block_size=len(data) + 1, column_names=self._schema.names
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=breaks, ignore_empty_lines=False
            ),
            convert_options=pacsv.ConvertOptions(column_types=self._schema),
        )
        if table.num_rows != len(values):
            raise ValueError("a line of CSV is not one row")
        return table.select(self._schema.names).combine_chunks().to_batches()[0]

    def encode(self, batch: pa.RecordBatch) -> Sequence[bytes | None]:
        sink = io.BytesIO()
        options = pacsv.WriteOptions(include_header=False, delimiter=self.delimiter)
        pacsv.write_csv(batch.select(self._schema.names), sink, options)
        lines: list[bytes | None] = list(sink.getvalue().split(b"\n")[:-1])
        if len(lines) == batch.num_rows:
            return lines
        return [self._line(row) for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]

    def _line(self, row: Sequence[object]) -> bytes:
        """A row that has line breaks in it, or others that have."""
        text = io.StringIO()
        csv.writer(text, delimiter=self.delimiter, lineterminator="\n").writerow(row)
        return text.getvalue()[:-1].encode()
