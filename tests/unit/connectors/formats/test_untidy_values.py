"""Formats and values that are less tidy: zones, days, numbers beyond 64 bits, not-a-number, odd files."""

from __future__ import annotations

import bz2
import datetime as dt
import decimal
import errno
import io
import json
import os
import pickle
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fastavro
import polars as pl
import pyarrow as pa
import pyarrow.orc as orc
import pytest

from snapline.connectors import FileSink, FileSource
from snapline.connectors.files.filesystems import advice
from snapline.connectors.formats import AvroFormat, CsvFormat, JsonFormat, RawFormat, RowFormat, file_reading
from snapline.connectors.formats.file_format import OrcFormat
from snapline.connectors.formats.file_reading import csv_of, json_of
from snapline.dataflow.api.connector_api import SourceSplit
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place

NOON = dt.datetime(2026, 1, 1, 12, 30, tzinfo=dt.UTC)
ZONED = pa.timestamp("us", "Europe/Berlin")
INNER = pa.map_(pa.int64(), ZONED)
OF_BOOLS = pa.map_(pa.bool_(), pa.time32("s"))
NESTED = pa.list_(pa.struct([("at", ZONED), ("day", pa.date32()), ("x", pa.float64())]))


def read_again(kind: RowFormat, column: pa.Array) -> list[Any]:
    """Write one column, and read it."""
    values = kind.encode(pa.RecordBatch.from_arrays([column], names=kind.schema.names))
    decoded, bad = kind.decode(values)
    assert [] == bad
    return decoded.column(0).to_pylist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([NOON, None], ZONED),
        pa.array([NOON], pa.timestamp("s", "+05:30")),
        pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None], pa.date32()),
        pa.array([dt.time(23, 59, 59, 999_000), None], pa.time32("ms")),
        pa.array([dt.time(23, 59, 59, 999_999), dt.time(0)], pa.time64("us")),
        pa.array(["a", None, "a"]).dictionary_encode(),
        pa.array([[{"at": NOON, "day": dt.date(2026, 1, 1), "x": 0.5}, None], None], NESTED),
        pa.array([[("a", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.int64())),
        pa.array([[(dt.date(2026, 1, 1), [[(1, NOON)], None])], None], pa.map_(pa.date32(), pa.list_(INNER))),
        pa.array([[(NOON, decimal.Decimal("0.10"))]], pa.map_(pa.timestamp("ms", "UTC"), pa.decimal128(9, 2))),
        pa.array([[{"m": [(True, dt.time(1, 2, 3))]}, {"m": None}, None]], pa.list_(pa.struct([("m", OF_BOOLS)]))),
        pa.array([[["a"], None], None], pa.large_list(pa.large_list(pa.large_string()))),
    ],
    ids=lambda column: str(column.type)[:20],
)
def test_json_is_read_as_it_was_written(column: pa.Array) -> None:
    """Also times with a zone of their own: these were written as the hours of their zone, and said to be of UTC."""
    assert column.to_pylist() == read_again(JsonFormat(pa.schema([("v", column.type)])), column)


def test_json_says_times_in_utc_and_has_nothing_that_is_no_json() -> None:
    """What others read: Z is UTC, a map is an object, not-a-number is null inside of lists, too."""
    row = {"at": NOON, "m": [("k", 1)], "x": [float("nan")]}
    schema = pa.schema([("at", ZONED), ("m", pa.map_(pa.string(), pa.int64())), ("x", pa.list_(pa.float64()))])

    (line,) = JsonFormat(schema).encode(pa.RecordBatch.from_pylist([row], schema))

    assert {"at": "2026-01-01T12:30:00.000000Z", "m": {"k": 1}, "x": [None]} == json.loads(line or b"")


def test_json_still_reads_days_that_are_numbers_and_says_what_it_cannot_read() -> None:
    """Numbers of days were what could be read before; Arrow reads no lists of a fixed size."""
    days, _ = JsonFormat(pa.schema([("d", pa.date32())])).decode([b'{"d": 1}', b'{"d": "1970-01-03"}'])

    assert [dt.date(1970, 1, 2), dt.date(1970, 1, 3)] == days.column(0).to_pylist()
    with pytest.raises(ConnectorError, match=r"fixed_size_list<item: int64>\[2\] is not supported; leave such columns"):
        JsonFormat(pa.schema([("m", pa.list_(pa.int64(), 2))])).decode([b'{"m": [1, 2]}'])


@pytest.mark.parametrize("key", [pa.duration("us"), pa.list_(pa.int64()), pa.struct([("a", pa.int64())])], ids=str)
def test_json_says_which_keys_of_maps_it_cannot_read(key: pa.DataType) -> None:
    """They ended the task with an AttributeError, or with one of Arrow's."""
    json_of_maps = JsonFormat(pa.schema([("m", pa.map_(key, pa.int64()))]))

    with pytest.raises(ConnectorError, match=r"JSON conversion to keys of .* is not supported; leave such columns out"):
        json_of_maps.decode([b'{"m": {"1": 2}}'])


def test_a_format_of_a_job_from_before_an_upgrade_reads_json() -> None:
    """What JSON is read as had another name in it, and new TaskManagers under running jobs ended their tasks."""
    before = {"_schema": pa.schema([("day", pa.date32())]), "_as_texts": pa.schema([("day", pa.string())]), "own": 1}
    made: Any = JsonFormat.__new__(JsonFormat)
    made.__setstate__({**before, "_has_narrow_floats": False})

    assert made.decode_all([b'{"day": "1970-01-02"}']).to_pylist() == [{"day": dt.date(1970, 1, 2)}]
    assert made.own == 1
    assert pickle.loads(pickle.dumps(made)).schema == made.schema


def test_json_reads_maps_as_strictly_as_everything_else() -> None:
    """What is no object is a bad row, a decimal keeps its digits, and of two equal names the last counts."""
    kinds = [("m", pa.map_(pa.string(), pa.decimal128(38, 20))), ("n", pa.int64())]
    digits = b'{"n": 1, "m": {"a": 1, "a": 1.00000000000000000001}, "o": {"p": 0.5}}'
    deep = b'{"n": 1, "m": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    lines = [digits, b'{"m": [1]}', b'{"m": {"a": {}}}', b'{"m": "a"}', deep, b'{"m": {"a": true}}', b'{"n": 2}']

    rows, bad = JsonFormat(pa.schema(kinds)).decode(lines)

    assert [
        {"m": [("a", decimal.Decimal("1.00000000000000000001"))], "n": 1},
        {"m": None, "n": 2},
    ] == [row for row in rows.to_pylist() if row["n"]]
    assert [1, 2, 3, 4, 5] == [each.index for each in bad]


def test_csv_has_not_a_number_and_rows_with_line_breaks_look_like_others() -> None:
    """Not-a-number was read as null; a line break made Python's texts of all values of a batch."""
    schema = pa.schema([("x", pa.float64()), ("s", pa.string()), ("b", pa.binary())])
    rows = [
        {"x": float("nan"), "s": "a\nb", "b": b"c"},
        {"x": float("inf"), "s": "", "b": b""},
        {"x": None, "s": "NA", "b": b"d"},
    ]
    kind = CsvFormat(schema)

    decoded, _ = kind.decode(kind.encode(pa.RecordBatch.from_pylist(rows, schema)))

    assert str(rows) == str(decoded.to_pylist())
    assert [None, None] == kind.decode([b"NA,,", b"null,,"])[0].column("x").to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"n\n12345678901234567890\n\n-1\n", [decimal.Decimal(12345678901234567890), decimal.Decimal(-1)]),
        (b'{"n": 12345678901234567890}\n{"n": null}\n', [decimal.Decimal(12345678901234567890), None]),
        (b"n\n1e300\n2\n", [1e300, 2.0]),
        (b'{"n": 1e300}\n{"n": 2}\n', [1e300, 2.0]),
    ],
)
def test_integers_beyond_64_bits_are_inferred_as_decimals(tmp_path: Path, text: bytes, expected: list[Any]) -> None:
    """They were floats, which have 53 bits of them."""
    form = csv_of(io.BytesIO(text)) if text[:1] == b"n" else json_of(io.BytesIO(text))
    lines = [line for line in text.removeprefix(b"n\n").split(b"\n") if line]

    assert expected == form.decode(lines)[0].column(0).to_pylist()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('{"n": 12345678901234567890, "m": 1}', {"n": decimal.Decimal(12345678901234567890), "m": 1}),
        ("[1, 12345678901234567890, null]", [decimal.Decimal(1), decimal.Decimal(12345678901234567890), None]),
        ('[{"n": 9223372036854775808}, null, {}]', [{"n": decimal.Decimal(2**63)}, None, {"n": None}]),
        ('{"n": [1e300, 12345678901234567890]}', {"n": [1e300, 12345678901234567890.0]}),
        ('{"n": [1.5], "m": null}', {"n": [1.5], "m": None}),
    ],
)
def test_integers_beyond_64_bits_inside_of_objects_and_lists_are_decimals_too(value: str, expected: Any) -> None:
    """They were floats, which have 53 bits of them."""
    lines = [f'{{"v": {value}}}'.encode(), b'{"v": null}', b"{}"]

    decoded = json_of(io.BytesIO(b"\n".join(lines))).decode(lines)[0]

    assert [expected, None, None] == decoded.column(0).to_pylist()


@pytest.mark.parametrize("text", [b'a\nx\n"y\nz\n', b'a\nx\n"y'])
def test_a_quote_that_is_not_closed_is_a_bad_row(tmp_path: Path, text: bytes) -> None:
    """The rest of the file was one field of one row, in silence."""
    schema = pa.schema([("a", pa.string())])
    form = FileSource("/nowhere", CsvFormat(schema, header=True)).format
    parts = list(form.read(io.BytesIO(text), {}, batch_rows=10))

    assert [{"a": "x"}] == [row for part in parts for row in part.rows.to_pylist()]
    assert [(3, "a quote is opened and not closed")] == [(bad.number, bad.reason) for part in parts for bad in part.bad]
    assert [1] == [bad.index for bad in CsvFormat(schema).decode([b"x", b'"y', b"z"])[1]]


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("marks", [[2], [2, 5], [2, 5, 7]])
@pytest.mark.parametrize("block", [1 << 20, 16])
def test_a_quote_within_a_field_is_a_letter(header: bool, marks: list[int], block: int) -> None:
    """One mark of inches made a single bad row of all that followed, which was dropped as such; two of them nothing, as
    long as no other row was bad."""
    schema = pa.schema([("a", pa.string()), ("n", pa.int64())])
    lines = [f'{n}" pipe,{n}' if n in marks else f'"x, ""{n}""\ny",{n}' if n == 4 else f"x,{n}" for n in range(8)]
    text = "\n".join([*(["a,n"] if header else []), *lines, "bad,row", "last,9"]).encode()
    form = FileSource("/nowhere", CsvFormat(schema, header=header)).format
    with patch.object(file_reading, "BLOCK_BYTES", block):
        parts = list(form.read(io.BytesIO(text), {}, batch_rows=3))

    assert [*range(8), 9] == [row["n"] for part in parts for row in part.rows.to_pylist()]
    assert [f'{marks[0]}" pipe', 'x, "4"\ny', "last"] == [
        row["a"] for part in parts for row in part.rows.to_pylist() if row["n"] in (marks[0], 4, 9)
    ]
    assert [(10 + header, b"bad,row")] == [(bad.number, bad.value) for part in parts for bad in part.bad]


@pytest.mark.parametrize("value", ["a\nb", "a\r"])
def test_raw_values_with_line_breaks_are_refused_in_files_of_lines(value: str) -> None:
    """They were two rows, and a carriage return was gone, when the file was read."""
    form = FileSink("/nowhere", RawFormat("line", text=True)).format
    writer = form.open(io.BytesIO(), form.schema)

    with pytest.raises(ConnectorError, match="has a line break in it, and would be several rows of a file"):
        writer.write(pa.table({"line": ["fine", value]}))
    writer.write(pa.table({"line": ["a\rb", "", None]}))


def test_integers_that_no_type_holds_are_said(tmp_path: Path) -> None:
    """In one line, which names file and column."""
    (tmp_path / "wide.csv").write_text(f"n\n{10**38}\n")
    with pytest.raises(
        ConnectorError, match=r"wide.csv does not say the columns: column 'n' has integers of more than 38"
    ):
        FileSource(str(tmp_path / "wide.csv"), "csv").schema()


def test_csv_tells_an_empty_text_from_one_that_is_null(tmp_path: Path) -> None:
    """Null was read as an empty text, in silence, and by polars as what it is; words like NA are texts, too."""
    schema = pa.schema([("s", pa.string()), ("n", pa.int64()), ("b", pa.binary())])
    rows = [
        {"s": "x", "n": 1, "b": b""},
        {"s": None, "n": None, "b": None},
        {"s": "", "n": 2, "b": b"y"},
        {"s": "NA", "n": 3, "b": None},
    ]
    kind = CsvFormat(schema, header=True)
    lines = kind.encode(pa.RecordBatch.from_pylist(rows, schema))

    assert rows == kind.decode(lines)[0].to_pylist()
    assert [None, ""] == CsvFormat(pa.schema([("s", pa.string())])).decode([b"", b'""'])[0].column(0).to_pylist()
    assert [{"s": "NA", "n": None, "b": b"NA"}, {"s": "", "n": None, "b": b""}] == kind.decode(
        [b"NA,NA,NA", b'"","",""']
    )[0].to_pylist()
    text = b"\n".join([b"s,n,b", *(line or b"" for line in lines)])
    assert ["x", None, "", "NA"] == pl.read_csv(io.BytesIO(text)).get_column("s").to_list()


def test_csv_says_what_it_cannot_read() -> None:
    """A job with such a schema ended with an error of Arrow's and no way out; JSON says it."""
    with pytest.raises(ConnectorError, match=r"CsvFormat: CSV conversion to list.* leave such columns out"):
        CsvFormat(pa.schema([("n", pa.int64()), ("all", pa.list_(pa.int64()))])).decode([b"1,2"])


@pytest.mark.parametrize("delimiter", ["", ";;", "é", '"', "\n"])
def test_a_delimiter_that_is_none_is_refused_at_once(delimiter: str) -> None:
    """Every row was a bad one."""
    with pytest.raises(ConnectorError, match="CsvFormat: delimiter is one letter of ASCII"):
        CsvFormat(pa.schema([("s", pa.string())]), delimiter=delimiter)


def test_a_number_that_float32_has_not_is_a_bad_row() -> None:
    """It was infinity; what says that it is infinite is."""
    schema = pa.schema([("x", pa.float32()), ("y", pa.list_(pa.struct([("z", pa.float32())])))])
    values = [b'{"x": 1e300}', b'{"x": 3e38}', b'{"x": Infinity}', b'{"y": [{"z": -1e39}]}', b'{"y": [{"z": 1}]}']
    plain = CsvFormat(pa.schema([("x", pa.float32())]))

    assert [0, 3] == [bad.index for bad in JsonFormat(schema).decode(values)[1]]
    assert [0] == [bad.index for bad in plain.decode([b"1e39", b"inf", b"-Infinity", b"1e38"])[1]]
    assert "a number of column 'x' is larger than float32 has them" == plain.decode([b"1e39"])[1][0].reason


def test_a_decimal_with_more_digits_than_its_type_is_a_bad_row() -> None:
    """Arrow took 99999 for a decimal of five digits, two of them behind the point, and Parquet made -67773.16 of it."""
    money = pa.decimal128(5, 2)
    csv = CsvFormat(pa.schema([("n", pa.int64()), ("cents", money)]))
    rows, bad = csv.decode([b"1,999.99", b"2,99999", b"3,-1e3"])
    assert [1, 2] == [row.index for row in bad]
    assert [decimal.Decimal("999.99"), None, None] == rows.column("cents").to_pylist()
    json_lines = JsonFormat(pa.schema([("cents", money), ("all", pa.list_(pa.struct([("cents", money)])))]))
    rows, bad = json_lines.decode([b'{"cents": "999.99"}', b'{"cents": "1000"}', b'{"all": [{"cents": 99999}]}'])
    assert [1, 2] == [row.index for row in bad]
    assert [decimal.Decimal("999.99"), None, None] == rows.column("cents").to_pylist()


def test_csv_has_infinity_in_one_of_several_columns_of_float32() -> None:
    """The second of them was looked at as the first was, and the first as the second, without end."""
    csv = CsvFormat(pa.schema([("x", pa.float32()), ("y", pa.float32())]))

    decoded, bad = csv.decode([b"inf,1", b"-inf,inf", b"1e39,inf"])

    assert [float("inf"), float("-inf"), None] == decoded.column("x").to_pylist()
    assert [(2, "a number of column 'x' is larger than float32 has them")] == [(row.index, row.reason) for row in bad]


def test_bzip2_is_decompressed_and_a_text_that_begins_like_it_is_not() -> None:
    """A source sees by itself how a file is compressed."""
    form = FileSource("/nowhere", RawFormat("line", text=True)).format
    for data in (bz2.compress(b"a\nb\n"), b"a\nb\n"):
        (found,) = form.read(io.BytesIO(data), {}, batch_rows=10)
        assert ["a", "b"] == found.rows.column(0).to_pylist()
    (found,) = form.read(io.BytesIO(b"BZh91\n"), {}, batch_rows=10)
    assert ["BZh91"] == found.rows.column(0).to_pylist()


@pytest.mark.parametrize(
    ("text", "says"), [(b"a,a\n1,2\n", "has the column 'a' twice"), (b"a,b\r1,x\r", "its header cannot be read")]
)
def test_a_header_that_is_wrong_names_its_file(tmp_path: Path, text: bytes, says: str) -> None:
    """Among a thousand files that is what one wants to know."""
    path = tmp_path / "odd.csv"
    path.write_bytes(text)
    schema = pa.schema([("a", pa.int64())])
    source = FileSource(str(path), CsvFormat(schema, header=True))
    reader = source.create_reader(Place())
    stat = path.stat()
    reader.add_splits([SourceSplit("0", {"path": str(path), "size": stat.st_size, "modified_ns": stat.st_mtime_ns})])

    with pytest.raises(ConnectorError, match=f"FileSource: .*odd.csv: .*{says}"):
        reader.poll_next(0)


@pytest.mark.parametrize(
    ("form", "column"), [("orc", pa.uint64()), ("orc", pa.time32("s")), ("csv", pa.list_(pa.int64()))]
)
def test_a_type_that_files_have_not_is_refused_at_submission(tmp_path: Path, form: str, column: pa.DataType) -> None:
    """A job wrote nothing and restarted for ever, and the line advised to look at the network."""

    class Stream:
        schema = pa.schema([("id", pa.int64()), ("v", column)])

    with pytest.raises(
        ConnectorError, match=r"column 'v' is .*, which files of this format have not; convert it before"
    ):
        FileSink(str(tmp_path), form).before_writing(Stream())
    assert "convert the column before" in advice(pa.ArrowInvalid("x"))


def test_orc_has_nested_rows_that_begin_within_others_and_no_decimals_of_whole_tens() -> None:
    """The nulls of a record were those of other rows where a batch was a slice; such a decimal ended the process."""
    records = pa.array([{"a": 0}, None, {"a": 2}, None], pa.struct([("a", pa.int64())])).slice(1)
    file = io.BytesIO()
    writer = OrcFormat().open(file, pa.schema([]))
    writer.write(pa.table({"r": records}))
    writer.close()

    assert [None, {"a": 2}, None] == orc.read_table(file).column("r").to_pylist()
    tens = pa.array([[decimal.Decimal(1200)]], pa.list_(pa.decimal128(10, -2)))
    with pytest.raises(ConnectorError, match=r"column 'd' is list<item: decimal128\(10, -2\)>, and ORC has no"):
        OrcFormat().open(io.BytesIO(), pa.schema([])).write(pa.table({"d": tens}))


class FullDisk(io.RawIOBase):
    """A stream that takes so many writes."""

    def __init__(self, takes: int) -> None:
        self.takes = takes

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.takes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.takes -= 1
        return len(data)


@pytest.mark.parametrize("takes", [0, 1, 2])
def test_a_full_disk_is_an_error_of_orc_and_does_not_end_the_process(takes: int) -> None:
    """What Arrow wrote when the writer was freed failed once more, where nobody could catch it."""
    writer = OrcFormat().open(FullDisk(takes), pa.schema([]))

    with pytest.raises(OSError, match="No space left on device"):
        writer.write(pa.table({"n": range(1000)}))
        writer.close()
    del writer


WITHIN = pa.struct([("p", pa.struct([("q", pa.list_(pa.int64())), ("x", pa.float64())]))])


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (WITHIN, lambda value: value),
        (pa.list_(WITHIN), lambda value: [value, value]),
        (pa.list_(WITHIN, 2), lambda value: [value, None]),
        (pa.map_(pa.string(), WITHIN), lambda value: [("k", value)]),
    ],
    ids=["record", "list", "pair", "map"],
)
def test_orc_has_records_within_records_that_are_null(kind: pa.DataType, make: Callable[[Any], Any]) -> None:
    """The values behind such a null were those of other rows: what lay below it was written as if it were there."""
    inner: Any = [None, {"q": [7, None], "x": -0.0}, {"q": None, "x": 0.5}, None, {"q": [], "x": None}]
    values = [make({"p": value}) for value in inner]
    file = io.BytesIO()
    writer = OrcFormat().open(file, pa.schema([]))
    writer.write(pa.table({"v": pa.array(values, kind)}))
    writer.close()

    assert values == orc.read_table(file).column("v").to_pylist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-12_219_292_801, -1, None], pa.int64()).cast(pa.timestamp("s", "Europe/Berlin")),
        pa.array(["a", None, "", "NA"]).dictionary_encode(),
        pa.array([b"NA", None, b"xy"], pa.binary(2)),
    ],
    ids=lambda column: str(column.type)[:20],
)
def test_csv_is_read_as_it_was_written(column: pa.Array) -> None:
    """A time before zones had whole minutes was half a minute off, a category that is null was an empty text, and bytes
    that say NA were null."""
    form = CsvFormat(pa.schema([("n", pa.int64()), ("v", column.type)]))
    written = pa.record_batch({"n": range(len(column)), "v": column})

    decoded, bad = form.decode(form.encode(written))

    assert [] == bad
    assert column.to_pylist() == decoded.column("v").to_pylist()


def test_json_has_times_of_day_to_the_nanosecond() -> None:
    """They were cut to microseconds, as Python's are."""
    form = JsonFormat(pa.schema([("v", pa.time64("ns"))]))
    column = pa.array([86_399_999_999_999, None, 1], pa.int64()).cast(pa.time64("ns"))

    decoded, _ = form.decode(form.encode(pa.record_batch({"v": column})))

    assert column.equals(decoded.column("v"))


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (pa.binary(), b"\xff", "/w=="), (pa.bool_(), True, "true"), (pa.int64(), 1, "1"),
        (pa.timestamp("us", "UTC"), NOON, "2026-01-01T12:30:00+00:00"),
    ],
)  # fmt: skip
def test_keys_of_maps_are_written_to_json_as_values_are(kind: pa.DataType, key: Any, text: str) -> None:
    """Bytes were written as Python shows them."""
    form = JsonFormat(pa.schema([("m", pa.map_(kind, pa.int64()))]))

    (line,) = form.encode(pa.RecordBatch.from_pylist([{"m": [(key, 1)]}], form.schema))

    assert {"m": {text: 1}} == json.loads(line or b"")


def test_a_map_of_two_equal_keys_is_refused_by_json() -> None:
    """The first value was lost."""
    form = JsonFormat(pa.schema([("m", pa.map_(pa.string(), pa.int64()))]))

    with pytest.raises(ConnectorError, match="a map has two keys that are one in an object of JSON"):
        form.encode(pa.RecordBatch.from_pylist([{"m": [("k", 1), ("k", 2)]}], form.schema))


def test_orc_has_categories_as_their_values() -> None:
    """Arrow's writer of ORC has no dictionaries."""
    file = io.BytesIO()
    writer = OrcFormat().open(file, pa.schema([]))
    writer.write(pa.table({"c": pa.array(["a", None, "a"]).dictionary_encode()}))
    writer.close()

    (found,) = OrcFormat().read(file, {}, batch_rows=10)
    assert ["a", None, "a"] == found.rows.column(0).to_pylist()


def avro(kind: Any) -> AvroFormat:
    """A format of one column that may be null."""
    return AvroFormat({"type": "record", "name": "r", "fields": [{"name": "v", "type": ["null", kind]}]})


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
RECORD = {"type": "record", "name": "inner", "fields": [{"name": "at", "type": MICROS}]}


def test_avro_takes_times_without_a_zone_for_utc_whatever_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were shifted by the zone of the TaskManager's machine."""
    naive = dt.datetime(2026, 1, 1, 12, 30)  # noqa: DTZ001 - that is the point
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        top = read_again(avro(MICROS), pa.array([naive, None], pa.timestamp("ns")))
        inside = read_again(
            avro({"type": "array", "items": RECORD}),
            pa.array([[{"at": naive}], None], pa.list_(pa.struct([("at", pa.timestamp("us"))]))),
        )
    finally:
        monkeypatch.undo()
        time.tzset()

    assert ([NOON, None], [[{"at": NOON}], None]) == (top, inside)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, pa.array([uuid.UUID(int=1).bytes], pa.binary(16))),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, pa.array([b"\xff" * 16], pa.binary(16))),
        ({"type": "long", "logicalType": "date"}, pa.array([5])),
        ({"type": "string", "logicalType": "decimal"}, pa.array(["1.5"])),
    ],
)  # fmt: skip
def test_a_logical_type_on_another_type_of_avro_means_nothing(kind: Any, column: pa.Array) -> None:
    """UUIDs of 16 bytes, which Avro has since 1.12, became texts of such bytes, or failed; longs became days."""
    form = avro(kind)
    assert column.to_pylist() == read_again(form, column)
    assert form.schema.field("v").type == column.type


def test_avro_writes_maps_and_reads_uuids() -> None:
    """Pairs are a map to fastavro only as a dictionary, and a UUID is an object to it."""
    text = "12345678-1234-5678-1234-567812345678"
    assert [[("k", 1)], None] == read_again(
        avro({"type": "map", "values": "long"}), pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64()))
    )
    assert [text, None] == read_again(avro({"type": "string", "logicalType": "uuid"}), pa.array([text, None]))
    assert [[text]] == read_again(
        avro({"type": "array", "items": {"type": "string", "logicalType": "uuid"}}), pa.array([[text]])
    )
    file = io.BytesIO()
    fastavro.writer(file, dict(avro({"type": "string", "logicalType": "uuid"}).avro_schema), [{"v": uuid.UUID(text)}])
    (found,) = FileSource("/nowhere", avro({"type": "string", "logicalType": "uuid"})).format.read(
        io.BytesIO(file.getvalue()), {}, batch_rows=10
    )
    assert [text] == found.rows.column(0).to_pylist()


@pytest.mark.parametrize(
    ("kind", "column", "says"),
    [
        ("long", pa.array([1.5]), "was truncated"),
        ("int", pa.array([3_000_000_000]), "not in range"),
        ("long", pa.array([2**63], pa.uint64()), "not in range"),
        ("long", pa.array(["1"]), "is string, and int64 in the schema; cast it before"),
        ("float", pa.array([1e300]), "some values of double are not the same as float"),
        ("double", pa.array([2**53 + 1]), "not in range"),
        ("boolean", pa.array(["false"]), "is string, and bool in the schema"),
        ({"type": "int", "logicalType": "date"}, pa.array([NOON]), "and date32.day. in the schema"),
        (
            {"type": "array", "items": "string"},
            pa.array(["ab"]),
            "is string, and list<item: string not null> in the schema",
        ),
        (
            {"type": "map", "values": "int"},
            pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int32())),
            "key twice",
        ),
    ],
)
def test_avro_refuses_values_that_it_would_change(kind: Any, column: pa.Array, says: str) -> None:
    """1.5 was written as 1, an int beyond 32 bits as what no reader of Avro takes, a large number as infinity, any text
    as true, a time as its day, a text as a list of letters, and of two values of a key the last."""
    with pytest.raises(ConnectorError, match=says):
        read_again(avro(kind), column)


@pytest.mark.parametrize("digits", [0, 39])
def test_decimals_of_avro_that_no_column_holds_name_their_field(digits: int) -> None:
    """It was Arrow's line about a precision, of no field."""
    with pytest.raises(ConnectorError, match=f"field 'v' is a decimal of {digits} digits, and columns have 38 at most"):
        avro({"type": "bytes", "logicalType": "decimal", "precision": digits})


TWICE = {"type": "record", "name": "r", "fields": [{"name": "v", "type": "int"}, {"name": "v", "type": "long"}]}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{nope", "Expecting property name"),
        ({"type": "record", "name": "r"}, "'fields' is missing"),
        ({"type": "record", "name": "r", "fields": 5}, "not iterable"),
        ({"type": "record", "name": 5, "fields": []}, "not iterable"),
        ({"type": "record", "name": "r", "fields": [{"name": "v", "type": None}]}, "not iterable"),
        ({"type": "record", "name": "r", "fields": [{"name": "v", "type": {"type": "array"}}]}, "'items' is missing"),
        (TWICE, "the field 'v' is there twice"),
        (
            {**TWICE, "fields": [{"name": "v", "type": {"type": "map", "values": "bytes"}, "default": {"a": 5}}]},
            "'int'",
        ),
    ],
)
def test_what_is_no_schema_of_avro_is_said_in_a_line(schema: Any, says: str) -> None:
    """Some were an error of Python's, and two fields of one name were two columns with the values of the last."""
    with pytest.raises(ConnectorError, match=f"^AvroFormat: not an Avro schema: .*{says}"):
        AvroFormat(schema)


@pytest.mark.parametrize("kind", [JsonFormat, CsvFormat])
@pytest.mark.parametrize(
    "column",
    [
        pa.array([None, 10**18], pa.timestamp("s")),
        pa.array([253_402_300_800_000, 0], pa.timestamp("ms", "UTC")),
        pa.array([-719_529], pa.date32()),
        pa.array([2_932_897], pa.date32()),
        pa.array([4_000_000 * 86_400_000], pa.date64()),
    ],
    ids=lambda column: str(column.type),
)
def test_years_of_five_digits_are_refused_where_they_are_written(kind, column):
    """JSON got hours without end and CSV `<value out of range>` for a time, in silence; a day was an OverflowError."""
    with pytest.raises(ConnectorError, match=r"column 'v' has a moment outside of the years 0 to 9999; correct it"):
        kind(pa.schema({"v": column.type})).encode(pa.record_batch({"v": column}))


@pytest.mark.parametrize("kind", [JsonFormat, CsvFormat])
def test_the_first_and_the_last_moment_with_four_digits_are_written(kind):
    """Bounds are the moments themselves, and null is within them."""
    moments = pa.array([-62_167_219_200_000_000, 253_402_300_799_999_999, None], pa.timestamp("us"))
    first, last, _ = kind(pa.schema({"v": moments.type})).encode(pa.record_batch({"v": moments}))
    assert b"0000-01-01" in first
    assert b"9999-12-31" in last


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_are_written_as_polars_writes_them(unit):
    """They were as Python shows them, or as pandas does: a second less than nothing was "-1 day, 23:59:59"."""
    column = pa.array([0, 1, -1, 86_400_000, -86_400_000_007, None], pa.duration(unit))
    batch = pa.record_batch({"v": column, "l": pa.array([[value] for value in column])})
    expected = io.BytesIO()
    pl.DataFrame(pl.from_arrow(batch)).write_ndjson(expected)

    lines = JsonFormat(batch.schema).encode(batch)
    assert [json.loads(line or b"") for line in lines] == [
        json.loads(line) for line in expected.getvalue().splitlines()
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        pa.array([[4_000_000]], pa.list_(pa.date32())),
        pa.array([2**62], pa.duration("s")),
    ],
    ids=lambda column: str(column.type),
)
def test_a_value_without_a_text_in_json_names_its_column(column):
    """These were an AttributeError and two OverflowErrors."""
    with pytest.raises(ConnectorError, match=r"column 'v' is .* of which a value has no text in JSON \(.*\); cast it"):
        JsonFormat(pa.schema({"v": column.type})).encode(pa.record_batch({"v": column}))
