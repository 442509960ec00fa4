"""How files are rows again: what each kind of file holds from a position on, and where the next rows begin.

Decides what a position is (rows of Parquet and Avro, stripes and rows of ORC, bytes and lines of text), so that a
restored reader goes on in the middle of a file: whole row groups, stripes and blocks are passed over, text is not
parsed again; that text is decompressed where it begins as gzip, zstd, lz4 or bzip2 do; that a line break inside quotes
belongs to a row of CSV; and that lines which are no rows are found with their numbers. It does not know where files
lie, nor what becomes of bad rows. Mirrors Flink's StreamFormat and BulkFormat.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pj
import pyarrow.parquet as pq

from snapline.connectors.formats.avro import AvroFormat
from snapline.connectors.formats.avro_bounds import BoundedContainer, read_bytes, readable
from snapline.connectors.formats.csv_lines import BYTE_ORDER_MARK, COLUMNS_MAX, NULLS, CsvFormat, row_of
from snapline.connectors.formats.json_lines import JSON_TEXT, JsonFormat
from snapline.connectors.formats.row_format import UNREADABLE, RowFormat

BLOCK_BYTES = 1 << 20
"""So much text is read and decompressed at a time."""
ROW_BYTES_MAX = 64 << 20
"""A longer line is taken for something that is no text."""
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)")
MAGIC_BYTES = 10
INT64_MAX = 2**63 - 1
SPARK_VERSION = b"org.apache.spark.version"
"""What the footers of files have that Spark has written."""
DECIMAL_DIGITS = 38
NESTING_MAX = 100
"""Columns that are found in JSON are nested so deep at most."""
CELLS_MAX = 1 << 24
"""Lines that are looked at for columns have so many different keys at most, times their number."""
JSON_KEY = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:', re.DOTALL)
INTEGER = re.compile(r"[+-]?\d+")
LINE_BREAK, CARRIAGE_RETURN, QUOTE = b"\n", b"\r", b'"'


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of a file that is no row."""

    number: int
    """Counted from one, the header and empty lines too."""
    value: bytes
    """The line as it is."""
    reason: str
    """Why it cannot be read, in one line."""


@dataclass(frozen=True, slots=True)
class FileRows:
    r"""The next rows of a file.

    >>> import io
    >>> lines = sl_connectors.FileSource(tmp, sl_connectors.RawFormat("line", text=True)).format
    >>> [found.position for found in lines.read(io.BytesIO(b"a\nb\nc"), {}, batch_rows=2)]
    [{'bytes': 4, 'lines': 2}, {'bytes': 5, 'lines': 3}]
    """

    rows: pa.RecordBatch
    """The rows that are good, in the order of the file."""
    position: Mapping[str, int]
    """Given to `FileFormat.read`, it goes on behind these rows."""
    bad: Sequence[BadLine] = ()
    """Lines among them that are no rows."""


# --- Parquet, ORC, Avro -----------------------------------------------------------------------------------------------


def parquet_rows(
    stream: Any,
    position: Mapping[str, int],
    batch_rows: int,
    columns: Sequence[str] | None,
    int96_unit: str | None = None,
    footer: pq.FileMetaData | None = None,
) -> Iterator[FileRows]:
    """Read a Parquet file; row groups that were read are passed over. `int96_unit`: of the times that Spark writes by
    default, which are nanoseconds otherwise, and other times where these have no year. `footer`: where it was read."""
    done = int(position.get("rows", 0))
    with pq.ParquetFile(stream, metadata=footer, pre_buffer=False, coerce_int96_timestamp_unit=int96_unit) as file:
        counts = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        passed, first = 0, 0
        while first < len(counts) and passed + counts[first] <= done:
            passed += counts[first]
            first += 1
        groups = list(range(first, len(counts)))
        wanted = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_rows, row_groups=groups, columns=wanted, use_threads=False):
            rows = batch.slice(max(0, done - passed))
            passed += batch.num_rows
            if rows.num_rows:
                yield FileRows(rows, {"rows": passed})


def int96_unit_of(footer: pq.FileMetaData) -> str | None:
    """The unit of times that say none, None for Arrow's, or where there are none: those of Spark are microseconds.
    Arrow takes them for nanoseconds, which have no year before 1677 or after 2262, and makes other times of such
    ones."""
    columns = map(footer.schema.column, range(len(footer.schema)))
    of_spark = SPARK_VERSION in (footer.metadata or {})
    return "us" if of_spark and any(column.physical_type == "INT96" for column in columns) else None


def orc_rows(
    stream: Any, position: Mapping[str, int], batch_rows: int, columns: Sequence[str] | None
) -> Iterator[FileRows]:
    """Read an ORC file; stripes that were read are passed over."""
    from pyarrow import orc

    file = orc.ORCFile(stream)
    wanted = None if columns is None else [name for name in columns if name in file.schema.names]
    done = int(position.get("rows", 0))
    for stripe in range(int(position.get("stripes", 0)), file.nstripes):
        batch = file.read_stripe(stripe, wanted)
        batch.validate(full=True)  # Arrow does not look whether texts are texts
        for start in range(done, batch.num_rows, batch_rows):
            rows = batch.slice(start, batch_rows)
            yield FileRows(rows, {"stripes": stripe, "rows": start + rows.num_rows})
        done = 0


def avro_rows(rows: AvroFormat, stream: Any, position: Mapping[str, int], batch_rows: int) -> Iterator[FileRows]:
    """Read an Avro container; blocks that were read are not decoded. Raises ValueError for what is none."""
    import fastavro

    done, passed = int(position.get("rows", 0)), 0
    # fastavro needs no more of a file than read and tell
    plain: Any = _told(lambda: BoundedContainer(stream))
    blocks = _told(lambda: fastavro.block_reader(plain, rows.parsed_schema()))
    while (block := _told(lambda: next(blocks, None))) is not None:
        if passed + block.num_records <= done:
            passed += block.num_records
            continue
        records = iter(block)
        ahead = max(0, done - passed)
        passed += len(_told(lambda records=records, ahead=ahead: list(islice(records, ahead))))
        while part := _told(lambda records=records: list(islice(records, batch_rows))):
            passed += len(part)
            yield FileRows(rows.batch_of(part), {"rows": passed})
        if block.bytes_.tell() != block.bytes_.getbuffer().nbytes:
            raise ValueError("the rows of a block do not end where the block does")


def _told(question: Any) -> Any:
    """What fastavro returns; whatever it or a codec raises is a ValueError."""
    try:
        return question()
    except (OSError, ValueError):
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


# --- text -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextRows:
    """Rows of a text that follow each other, as they lie in the file."""

    around: bytes
    """What was read of the file; nothing of it is copied as long as rows are read together."""
    start: int
    """Where the first row begins in it."""
    ends: npt.NDArray[np.int64]
    """Where the line break behind each row lies in it, or would lie."""
    has_long_rows: bool
    """Whether some rows may have several lines."""
    is_sure: bool
    """Whether each of the ends is one: of a text with quotes these are line breaks until somebody looks closer."""

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def size(self) -> int:
        """So many bytes, with the line break behind each row but, at the end of a file, the last."""
        return min(int(self.ends[-1]) + 1, len(self.around)) - self.start if len(self.ends) else 0

    @property
    def text(self) -> pa.Buffer:
        """The bytes of all of them."""
        return pa.py_buffer(self.around).slice(self.start, self.size)

    def lines(self) -> list[bytes]:
        """The rows one by one, without the line breaks behind them."""
        starts = [self.start, *(self.ends + 1).tolist()]
        return [self.around[start:end] for start, end in zip(starts, self.ends.tolist(), strict=False)]

    def line_count(self) -> int:
        """How many lines of the file they are."""
        if not self.has_long_rows:
            return len(self.ends)
        return self.around.count(LINE_BREAK, self.start, self.start + self.size - 1) + 1

    def part(self, first: int, count: int) -> TextRows:
        """So many of the rows from one of them on, or what there is."""
        start = int(self.ends[first - 1]) + 1 if first else self.start
        return TextRows(self.around, start, self.ends[first : first + count], self.has_long_rows, self.is_sure)

    def sure(self) -> TextRows:
        """The same rows with ends outside of quotes alone."""
        if self.is_sure:
            return self
        is_end = _is_outside_quotes(np.frombuffer(self.text, np.uint8), self.ends - self.start)
        return TextRows(self.around, self.start, self.ends[is_end], not is_end.all(), True)

    def one_by_one(self, row: re.Pattern[bytes], *, to_the_end: bool) -> TextRows:
        """The same text cut where rows of CSV end that are found one after the other, as it has to be where quotes are
        letters, too. `to_the_end`: what is no row at its end is one, all the same."""
        at, stop, ends = self.start, self.start + self.size, list[int]()
        while at < stop and (found := row.match(self.around, at, stop)):
            at = found.end()
            ends.append(at - self.around.endswith(LINE_BREAK, 0, at))
        if to_the_end and at < stop:
            ends.append(stop - self.around.endswith(LINE_BREAK, 0, stop))
        return TextRows(self.around, self.start, np.array(ends, np.int64), True, True)

    def has_empty(self) -> bool:
        """Whether a row is empty, but for a carriage return perhaps."""
        lengths = np.diff(self.ends, prepend=self.start - 1) - 1
        single = self.ends[lengths == 1] - 1
        return bool(np.any(lengths == 0)) or any(self.around[place] == CARRIAGE_RETURN[0] for place in single.tolist())

    def without_mark(self) -> TextRows:
        """The same rows without the mark that may be at the beginning of a file."""
        marked = self.around.startswith(BYTE_ORDER_MARK, self.start)
        start = self.start + len(BYTE_ORDER_MARK) if marked else self.start
        return TextRows(self.around, start, self.ends, self.has_long_rows, self.is_sure)


NO_ROWS = np.zeros(0, np.int64)


class TextLines:
    """Lines of a file, decompressed if need be, and where they lie."""

    def __init__(self, stream: Any, row: re.Pattern[bytes] | None) -> None:
        """`row`: what a row of CSV looks like, which may have several lines; None: a line is a row."""
        stream = readable(stream)
        stream.seek(0)
        start = stream.read(MAGIC_BYTES)
        stream.seek(0)
        codec = next((name for magic, name in MAGIC.items() if start.startswith(magic)), None)
        codec = "bz2" if BZIP2.match(start) else codec
        self._raw = stream
        self._text: Any = stream if codec is None else pa.CompressedInputStream(stream, codec)
        self._is_plain = codec is None
        self._row = row
        self._here = b""
        """What was read and not taken begins in it at `_start`."""
        self._start = 0
        self._ends = NO_ROWS
        """Where whole rows end that were not taken."""
        self._has_long_rows, self._is_sure = False, True
        self._ended = False
        self.at_bytes = 0
        """Behind the lines that were taken, in the text as it is decompressed."""
        self.at_line = 0
        """So many lines were taken."""

    def go_to(self, at_bytes: int, at_line: int) -> None:
        """Go on behind this many bytes and lines, which must lie ahead."""
        if at_bytes <= self.at_bytes:
            return
        rest = b""
        if self._is_plain:
            self._raw.seek(at_bytes)
        else:
            here = self._here[self._start :]
            read = self.at_bytes + len(here)
            while read < at_bytes and (block := read_bytes(self._text, min(BLOCK_BYTES, at_bytes - read))):
                read += len(block)
            rest = here[at_bytes - self.at_bytes :]  # something, when the place lies in what is here already
        self._ended = False
        self._look_at(rest)
        self.at_bytes, self.at_line = at_bytes, at_line

    def take(self, most: int | None = None) -> TextRows:
        """Take the next rows: those that a block of the file holds, or at most so many; none at the end of the file."""
        while not len(self._ends) and not self._ended:
            self._fill()
        whole = TextRows(self._here, self._start, self._ends, self._has_long_rows, self._is_sure)
        taken = whole if most is None else whole.sure().part(0, most)
        self._ends = NO_ROWS if most is None else whole.sure().ends[most:]
        self._has_long_rows, self._is_sure = taken.has_long_rows, taken.is_sure
        ends = taken.ends
        if len(ends):
            self._start = int(ends[-1]) + 1
            self.at_bytes += taken.size
            self.at_line += taken.line_count()
        return taken

    def cut(self, taken: TextRows) -> TextRows:
        """The rows that were taken last, cut whatever quotes there are; what is no whole row comes again."""
        if self._row is None:
            return taken
        found = taken.one_by_one(self._row, to_the_end=self._ended)
        rest = taken.size - found.size
        self._start, self.at_bytes = self._start - rest, self.at_bytes - rest
        self.at_line -= self._here.count(LINE_BREAK, self._start, self._start + rest)
        return found

    def _fill(self) -> None:
        block = read_bytes(self._text, BLOCK_BYTES)
        rest = self._here[self._start :]
        if not block:
            self._ended = True
            self._here, self._start = rest, 0
            self._ends = np.array([len(rest)], np.int64) if rest else NO_ROWS
            self._has_long_rows, self._is_sure = LINE_BREAK in rest, True
            return
        if len(rest) > ROW_BYTES_MAX:
            raise ValueError(f"line {self.at_line + 1} is longer than {ROW_BYTES_MAX} bytes")
        self._look_at(rest + block)

    def _look_at(self, text: bytes) -> None:
        """Take over text that begins with a row, and find where rows end: at line breaks outside of quotes."""
        self._here, self._start = text, 0
        letters = np.frombuffer(text, np.uint8)
        self._ends = np.flatnonzero(letters == LINE_BREAK[0])
        self._has_long_rows, self._is_sure = False, self._row is None or QUOTE not in text
        if self._is_sure or not len(self._ends):
            return
        # Where no quotes are open at the last line break, and there are as many rows as line breaks, all are ends.
        found, stop = TextRows(text, 0, self._ends, False, False), int(self._ends[-1])
        is_open = np.count_nonzero(letters[:stop] == QUOTE[0]) % 2
        if self._row is not None and (is_open or not self._row.match(text, text.rfind(LINE_BREAK, 0, stop) + 1, stop)):
            found = found if self.at_bytes else found.without_mark()
            found = found.one_by_one(self._row, to_the_end=False)
        elif CARRIAGE_RETURN in text:
            found = found.sure()
        self._ends, self._has_long_rows, self._is_sure = found.ends, found.has_long_rows, found.is_sure


def _is_outside_quotes(letters: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether an even number of quotes lies before each of these places. There is a bit for each letter, and only words
    of 64 of them are counted one after the other."""
    bits = np.packbits(letters == QUOTE[0], bitorder="little")
    words = np.zeros(len(letters) // 64 + 1, "<u8")
    words.view(np.uint8)[: len(bits)] = bits
    counts = np.bitwise_count(words)
    before = np.cumsum(counts, dtype=np.uint8) - counts  # only whether it is even counts, so it may overflow
    word, bit = places >> 6, (places & 63).astype(np.uint64)
    same_word = np.bitwise_count(words[word] & ((np.uint64(1) << bit) - np.uint64(1)))
    return np.asarray((before[word] + same_word) & 1 == 0)


def text_rows(rows: RowFormat, stream: Any, position: Mapping[str, int], batch_rows: int) -> Iterator[FileRows]:
    """Read a file that has a row a line, from a position on; what a block of it holds is decoded together."""
    lines = TextLines(stream, row_of(rows.delimiter) if isinstance(rows, CsvFormat) else None)
    wanted = rows.schema.names
    if isinstance(rows, CsvFormat) and rows.header:
        header = lines.take(1).lines()
        if not header:
            return
        rows = rows.of_header(_unmarked(header[0]))
    skips_empty = isinstance(rows, JsonFormat) or (isinstance(rows, CsvFormat) and len(rows.schema) > 1)
    lines.go_to(int(position.get("bytes", 0)), int(position.get("lines", 0)))
    while True:
        is_start, at_line = lines.at_bytes == 0, lines.at_line
        taken = lines.take()
        if not len(taken):
            return
        taken = taken.without_mark() if is_start else taken
        at_bytes = lines.at_bytes - taken.size
        together, taken = _decoded_at_once(rows, taken, skips_empty=skips_empty)
        taken = taken if together is not None else lines.cut(taken)
        for first in range(0, len(taken), batch_rows):
            part, bad = taken.part(first, batch_rows), list[BadLine]()
            if together is not None:
                batch = together.slice(first, len(part))
            else:
                batch, bad = _decoded(rows, part, at_line + 1, skips_empty=skips_empty)
            at_bytes, at_line = at_bytes + part.size, at_line + part.line_count()
            batch = batch if batch.schema.names == wanted else batch.select(wanted)
            yield FileRows(batch, {"bytes": at_bytes, "lines": at_line}, bad)


def _decoded_at_once(rows: RowFormat, taken: TextRows, *, skips_empty: bool) -> tuple[pa.RecordBatch | None, TextRows]:
    """The rows of some lines, if they can be read together: all of them are good, and none is empty; and the same lines
    with their ends for sure."""
    if not isinstance(rows, (CsvFormat, JsonFormat)):
        return None, taken
    if skips_empty and taken.has_empty():
        taken = taken.sure()  # perhaps it is a part of one
        if taken.has_empty():
            return None, taken
    with contextlib.suppress(*UNREADABLE):
        if taken.is_sure or isinstance(rows, JsonFormat):
            return rows.read_text(taken.text, len(taken)), taken
        batch = rows.read_text(taken.text)
        if batch.num_rows == len(taken):  # a row ends at each line break, since it ends nowhere else
            return batch, replace(taken, is_sure=True)
        sure = taken.sure()
        if batch.num_rows == len(sure):
            return batch, sure
    return None, taken


def _decoded(
    rows: RowFormat, taken: TextRows, first_line: int, *, skips_empty: bool
) -> tuple[pa.RecordBatch, list[BadLine]]:
    """The good rows of some lines, and the bad ones. Lines are looked at one by one only where they cannot be read
    together."""
    together, _ = _decoded_at_once(rows, taken, skips_empty=skips_empty)
    if together is not None:
        return together, []
    lines = taken.lines()
    values = [line[:-1] if line[-1:] == b"\r" else line for line in lines]
    places: Sequence[int] = range(len(values))
    if skips_empty and b"" in values:
        places = [place for place in places if values[place]]
        values = [value for value in values if value]
    batch, bad = rows.decode(values)
    if not bad:
        return batch, []
    is_bad = {row.index for row in bad}
    batch = batch.filter(pa.array([index not in is_bad for index in range(len(values))]))
    breaks = [0]
    for line in lines:
        breaks.append(breaks[-1] + line.count(LINE_BREAK))
    return batch, [
        BadLine(first_line + places[row.index] + breaks[places[row.index]], values[row.index], row.reason)
        for row in bad
    ]


def _unmarked(line: bytes) -> bytes:
    return line.removeprefix(BYTE_ORDER_MARK)


# --- what a file is, by what it holds ---------------------------------------------------------------------------------


def sample_of(stream: Any, row: re.Pattern[bytes] | None = None) -> bytes:
    """Return the first rows of a text, whole. `row`: what one of CSV looks like; None: a line is a row."""
    lines = TextLines(stream, row)
    found: list[bytes] = []
    size = 0
    while size < BLOCK_BYTES and (more := lines.take(1 << 16).lines()):
        found += more
        size += sum(map(len, more))
    return _unmarked(LINE_BREAK.join(found)) + LINE_BREAK if found else b""


def json_of(stream: Any) -> JsonFormat:
    """Return the format of a file of JSON lines, with columns as its beginning has them."""
    sample = sample_of(stream)
    if not sample.strip():
        raise ValueError("it is empty")
    if not sample.lstrip().startswith(b"{"):  # where all that there is is null, Arrow ends the process
        raise ValueError("its first line is no JSON object")
    _check_shape(sample)
    read_options = pj.ReadOptions(use_threads=False, block_size=len(sample) + 1)
    table = pj.read_json(io.BytesIO(sample), read_options)
    if not table.num_columns:
        raise ValueError("its objects have no fields")
    wide = [name for name, column in zip(table.column_names, table.columns, strict=True) if _is_wide(column)]
    rows = [json.loads(line) for line in sample.split(LINE_BREAK) if line.strip()] if wide else []
    rows = [row for row in rows if row is not None]
    found = {name: [row[name] for row in rows if row.get(name) is not None] for name in wide}
    return JsonFormat(_usual(_with_wide(table, found)))


def _check_shape(sample: bytes) -> None:
    """Raises ValueError for lines of JSON whose columns would be nested without end, or as many as there are rows."""
    letters = np.frombuffer(JSON_TEXT.sub(b"", sample), np.uint8)
    opened = np.isin(letters, np.frombuffer(b"[{", np.uint8)).astype(np.int32)
    depths = np.cumsum(opened - np.isin(letters, np.frombuffer(b"]}", np.uint8)))
    if len(depths) and depths.max() > NESTING_MAX:
        raise ValueError(f"its values are nested deeper than {NESTING_MAX}; say schema=")
    keys, lines = len(set(JSON_KEY.findall(sample))), sample.count(LINE_BREAK)
    if keys * lines > CELLS_MAX:
        raise ValueError(f"its first {lines} lines have {keys} different keys; say schema=")


def csv_of(stream: Any, delimiter: str = ",") -> CsvFormat:
    """Return the format of a file of CSV with a header, with columns as its beginning has them."""
    sample = sample_of(stream, row_of(delimiter))
    if not sample.strip():
        raise ValueError("it is empty")
    columns = sample.partition(LINE_BREAK)[0].count(delimiter.encode()) + 1
    if columns > COLUMNS_MAX:
        raise ValueError(f"its header has {columns} columns; {COLUMNS_MAX} are the most that are read")
    options = (
        pacsv.ReadOptions(use_threads=False, block_size=len(sample) + 1),
        pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
    )
    table = pacsv.read_csv(io.BytesIO(sample), *options, pacsv.ConvertOptions(null_values=NULLS))
    twice = next((name for name, count in Counter(table.column_names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"its header has the column {twice!r} twice")
    found: dict[str, list[Any]] = {}
    wide = [name for name, column in zip(table.column_names, table.columns, strict=True) if _is_wide(column)]
    if wide:
        as_texts = pacsv.ConvertOptions(column_types=dict.fromkeys(wide, pa.string()), include_columns=wide)
        for name, column in pacsv.read_csv(io.BytesIO(sample), *options, as_texts).to_pydict().items():
            texts = [text for text in column if text not in NULLS]
            found[name] = [int(text) if INTEGER.fullmatch(text) else 0.0 for text in texts]
    return CsvFormat(_usual(_with_wide(table, found)), delimiter=delimiter, header=True)


def avro_of(stream: Any) -> AvroFormat:
    """Return the format of an Avro container, with the schema that it was written with."""
    import fastavro

    return AvroFormat(_told(lambda: fastavro.reader(stream)).writer_schema)


def _is_wide(column: pa.Array | pa.ChunkedArray) -> bool:
    """Whether a column has, inside of lists and objects too, numbers beyond int64, which Arrow takes for floats, and so
    changes."""
    if pa.types.is_float64(column.type):
        return bool(pc.any(pc.greater_equal(pc.abs(column), float(INT64_MAX))).as_py())
    return any(_is_wide(part) for part in _parts_of(column))


def _parts_of(column: pa.Array | pa.ChunkedArray) -> list[pa.Array | pa.ChunkedArray]:
    """The fields of objects, or the elements of lists."""
    if pa.types.is_struct(column.type):
        return [pc.struct_field(column, place) for place in range(column.type.num_fields)]
    return [pc.list_flatten(column)] if pa.types.is_list(column.type) else []


def _with_wide(table: pa.Table, found: Mapping[str, Sequence[Any]]) -> pa.Schema:
    """The columns of the table, with decimals where all values are integers. Raises ValueError where no type holds
    them. `found`: the values of columns that have numbers beyond int64."""
    schema = table.schema
    for name, values in found.items():
        place = schema.get_field_index(name)
        schema = schema.set(place, pa.field(name, _widened(table.column(name), values, name)))
    return schema


def _widened(column: pa.Array | pa.ChunkedArray, values: Sequence[Any], name: str) -> pa.DataType:
    kind, values = column.type, [value for value in values if value is not None]
    if not _is_wide(column):
        return kind
    parts = _parts_of(column)
    if pa.types.is_struct(kind):
        fields = [
            field.with_type(_widened(part, [value.get(field.name) for value in values], f"{name}.{field.name}"))
            for field, part in zip(kind, parts, strict=True)
        ]
        return pa.struct(fields)
    if pa.types.is_list(kind):
        items = [item for value in values for item in value]
        return pa.list_(kind.value_field.with_type(_widened(parts[0], items, name)))
    if not all(isinstance(value, int) for value in values):
        return kind
    if max(abs(value) for value in values) >= 10**DECIMAL_DIGITS:
        raise ValueError(f"column {name!r} has integers of more than {DECIMAL_DIGITS} digits")
    return pa.decimal128(DECIMAL_DIGITS, 0)


def _usual(schema: pa.Schema) -> pa.Schema:
    """The schema with types that later files fit, too: microseconds for times, text where nothing was there, also
    inside of lists and objects."""
    return pa.schema([field.with_type(_usual_type(field.type)) for field in schema])


def _usual_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_usual_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_usual_type(kind.value_type)))
    return pa.string() if pa.types.is_null(kind) else kind
