"""Formats: what is written is read again, and of bad rows exactly the bad ones are found."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.connectors.formats import AvroFormat, CsvFormat, JsonFormat, RawFormat
from snapline.dataflow.errors import ConnectorError

SCHEMA = pa.schema(
    [("n", pa.int64()), ("s", pa.string()), ("x", pa.float64()), ("b", pa.bool_()), ("t", pa.timestamp("ms"))]
)
AVRO = {
    "type": "record", "name": "row", "fields": [
        {"name": "n", "type": ["null", "long"]}, {"name": "s", "type": ["null", "string"]}, {"name": "x", "type": ["null", "double"]},
        {"name": "b", "type": ["null", "boolean"]},
        {"name": "t", "type": ["null", {"type": "long", "logicalType": "local-timestamp-millis"}]},
    ],
}  # fmt: skip
FORMATS = {"json": JsonFormat(SCHEMA), "csv": CsvFormat(SCHEMA), "avro": AvroFormat(AVRO)}
WRONG = {
    "json": [
        b"",
        b"nonsense",
        b'{"n": 1',
        b'{"n": "x"}',
        b'{"n": 1}{"n": 2}',
        b"[1]",
        b"null",
        b'"{}"',
        b"\xff\xfe",
        b'{"n": 1.5}',
    ],
    "csv": [b"1,a", b"x,a,1,true,2020-01-01", b"", b"1,a,1,true,2020-01-01,more", b'1,"a,1,true,2020-01-01'],
    "avro": [b"", b"\x02", b"\x02\x02\x02\xff", b"\x0a"],
}
TIMES = [dt.datetime(year, 1, 1) for year in (1970, 2100)]  # noqa: DTZ001 - as Arrow gives them back
ROWS = st.lists(
    st.fixed_dictionaries({
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.text(st.characters(exclude_categories=["Cs"])).map(lambda text: text + "."),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.none() | st.booleans(),
        "t": st.none() | st.datetimes(*TIMES).map(lambda t: t.replace(microsecond=0)),
    }),
    min_size=1, max_size=5,
)  # fmt: skip
GOOD = {"n": 1, "s": 'a "b" \\ c', "x": 0.5, "b": True, "t": TIMES[0].replace(microsecond=678000)}


@pytest.mark.parametrize("name", FORMATS)
@given(rows=ROWS)
def test_what_is_written_is_read_again(name, rows):
    """Any rows: nulls, quotes, line breaks, extremes."""
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    kind = pickle.loads(pickle.dumps(FORMATS[name]))

    decoded, bad = kind.decode(kind.encode(batch))

    assert (rows, []) == (decoded.to_pylist(), bad)


@pytest.mark.parametrize(("name", "wrong"), [(name, each) for name, values in WRONG.items() for each in values])
def test_bad_rows_are_found_among_good_ones(name, wrong):
    """The bad ones are named by their place, with a reason in one line; the others are read."""
    kind = FORMATS[name]
    good = kind.encode(pa.RecordBatch.from_pylist([GOOD], SCHEMA))[0]

    decoded, bad = kind.decode([good, wrong, None, good, good, wrong])

    assert [1, 5] == [row.index for row in bad]
    assert all(row.reason and "\n" not in row.reason for row in bad)
    nothing = dict.fromkeys(SCHEMA.names)
    assert [GOOD, nothing, nothing, GOOD, GOOD, nothing] == decoded.to_pylist()


def test_lines_of_csv_have_the_columns_of_the_schema_whatever_else_a_batch_has():
    """Where a value has a line break in it, too, which pyarrow's lines cannot be cut at."""
    kind = CsvFormat(pa.schema([("n", pa.int64()), ("s", pa.string())]))
    for text in ("a", "a\nb"):
        batch = pa.RecordBatch.from_pydict({"more": [True], "s": [text], "n": [1]})
        assert [{"n": 1, "s": text}] == kind.decode(kind.encode(batch))[0].to_pylist()


def test_a_text_may_begin_with_the_letter_that_marks_a_file():
    """It was gone from the first value of each batch, so that rows depended on how values came together."""
    kind = CsvFormat(pa.schema([("s", pa.string()), ("n", pa.int64())]))
    marked = ["\ufeffa", "\ufeff\ufeffb", "\ufeff"]
    values = [f"{text},1".encode() for text in marked]
    together = kind.decode(values)[0].column("s").to_pylist()
    alone = [kind.decode([value])[0].column("s")[0].as_py() for value in values]
    assert together == alone == marked


def test_lines_that_are_no_rows_do_not_make_up_for_each_other():
    """One value with two lines, and a quote that one opens and another closes, were as many rows as values."""
    kind = CsvFormat(pa.schema([("s", pa.string()), ("n", pa.int64())]))
    for line_break in (b"\n", b"\r", b"\r\n"):
        decoded, bad = kind.decode([b"a,1" + line_break + b"b,2", b'"c', b'd",3', b'"e\nf",4'])
        assert decoded.column("s").to_pylist() == [None, None, 'd"', "e\nf"]
        assert [each.index for each in bad] == [0, 1]
    decoded, bad = CsvFormat(pa.schema([("s", pa.string())])).decode([b'a"', b"b", b'"""'])
    assert decoded.column("s").to_pylist() == ['a"', "b", None]  # there was a line break in the last one
    assert [each.index for each in bad] == [2]


def test_json_of_nested_and_unusual_types():
    """Objects over several lines, nested ones, fields that nobody asked for, decimals, what is not a number."""
    schema = pa.schema([("a", pa.list_(pa.int64())), ("d", pa.decimal128(10, 2)), ("x", pa.float64())])
    kind = JsonFormat(schema)
    rows = [{"a": [1, 2], "d": decimal.Decimal("1.25"), "x": float("nan")}]

    decoded, bad = kind.decode(
        [*kind.encode(pa.RecordBatch.from_pylist(rows, schema)), b'{\n "other": {},\n "a": [3]\n}']
    )

    assert [] == bad
    assert [
        {"a": [1, 2], "d": decimal.Decimal("1.25"), "x": None},
        {"a": [3], "d": None, "x": None},
    ] == decoded.to_pylist()


def test_raw_values():
    """Bytes are bytes; text has to be UTF-8."""
    decoded, bad = RawFormat(text=True).decode([b"a", b"\xff", None])

    assert ([{"value": "a"}, {"value": None}, {"value": None}], [1]) == (
        decoded.to_pylist(),
        [row.index for row in bad],
    )
    assert [b"\xff", None] == RawFormat().encode(RawFormat().decode([b"\xff", None])[0])
    with pytest.raises(
        ConnectorError, match="RawFormat writes bytes and strings, and column 'value' is int64; cast it"
    ):
        RawFormat().encode(pa.RecordBatch.from_pydict({"value": [1]}))


def test_avro_schemas_that_no_column_can_be():
    """Each in one line."""
    union = {"type": "record", "name": "r", "fields": [{"name": "u", "type": ["int", "string"]}]}
    with pytest.raises(ConnectorError, match="field 'u' is a union of several types"):
        AvroFormat(union)
    with pytest.raises(ConnectorError, match="must be that of a record"):
        AvroFormat('{"type": "array", "items": "int"}')


def test_a_decimal_of_more_digits_than_python_has_is_a_bad_row():
    """Python's decimal.Overflow is no OverflowError, and ended the job whatever on_error said. Half a megabyte took a
    minute to become digits."""
    number = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    avro = AvroFormat({"type": "record", "name": "r", "fields": [{"name": "n", "type": number}]})
    value = b"\xc0\x84\x3d" + b"\x7f" * 500_000

    rows, bad = avro.decode([*avro.encode(pa.RecordBatch.from_pydict({"n": [decimal.Decimal("1.50")]})), value])

    assert [decimal.Decimal("1.50"), None] == rows.column("n").to_pylist()
    assert [1] == [row.index for row in bad]
    assert "a decimal of 500000 bytes; 1024 are the most" in bad[0].reason
