"""Types, values and expressions of a declared job mean what they mean in Python, and what means nothing is said."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.errors import JobDefinitionError
from snapline.declared.declared_values import METHODS, decode_expression, decode_schema, decode_type, decode_value
from snapline.protos.declared_pb2 import DeclaredField
from tests.unit.snapline.declared.declared_jobs import call, expression, value

TYPES = (
    pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(),
    pa.date32(), pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.timestamp("ns", "Europe/Berlin"),
    pa.timestamp("s", "+02:00"), pa.time64("us"), pa.duration("ms"), pa.decimal128(10, 2), pa.decimal256(40, 0),
    pa.list_(pa.int64()), pa.large_list(pa.string()), pa.list_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
)  # fmt: skip


@pytest.mark.parametrize("expected", TYPES, ids=str)
def test_a_type_is_spelled_as_arrow_prints_it(expected: pa.DataType) -> None:
    """Whoever prints a schema in Python can declare it."""
    assert expected == decode_type(str(expected).replace("date32[day]", "date32"))


def test_maps_and_short_lists() -> None:
    """The names that Arrow gives to elements need not be said."""
    assert pa.map_(pa.string(), pa.list_(pa.int64())) == decode_type("map<string, list<int64>>")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "int65",
        "list<",
        "list<int64>>",
        "struct<>",
        "struct<a int64>",
        "decimal128(3)",
        "timestamp[xx]",
        "a;b",
        "map<string>",
    ],
)
def test_what_is_no_type_is_said(text: str) -> None:
    """The line quotes it, and shows how types are spelled."""
    with pytest.raises(JobDefinitionError) as raised:
        decode_type(text)

    assert str(raised.value).startswith(f"{text!r} is no type; types are spelled int64, ")


def test_columns_have_names_of_their_own() -> None:
    """Two columns of one name could not be told apart."""
    with pytest.raises(JobDefinitionError, match="no two of them the same one: 'a', 'a'"):
        decode_schema([DeclaredField(name="a", type="int64"), DeclaredField(name="a", type="string")])


def test_values_are_those_of_python() -> None:
    """Each kind, nested ones and nothing included."""
    declared = value(
        {
            "list": {
                "values": [
                    {},
                    {"boolValue": True},
                    {"intValue": "9007199254740993"},
                    {"doubleValue": 0.5},
                    {"bytesValue": "AQI="},
                    {"timestampUs": 1_000_001},
                    {"columns": {"fields": [{"name": "n", "type": "int64"}]}},
                    {"options": {"options": {"b": {"stringValue": "x"}}}},
                ]
            }
        }
    )

    at = dt.datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=dt.UTC)
    expected = [None, True, 9007199254740993, 0.5, b"\x01\x02", at, pa.schema([("n", pa.int64())]), {"b": "x"}]
    assert expected == decode_value(declared, lambda _: None)


@pytest.mark.parametrize(
    ("expected", "declared"),
    [
        (sl.col("a") * 1.5, call("*", "$a", 1.5)),
        (sl.lit(2) - sl.col("a"), call("-", 2, "$a")),
        (~((sl.col("a") >= 1) & sl.col("s").is_null()), call("not", call("&", call(">=", "$a", 1), call("is_null", "$s")))),
        (sl.col("a").cast(pa.decimal128(10, 2)).alias("d"), call("alias", call("cast", "$a", "decimal128(10, 2)"), "d")),
        (sl.col("s").str.replace("x", "y"), call("str.replace", "$s", "x", "y")),
        (sl.col("s").str.to_datetime("%Y").dt.year(), call("dt.year", call("str.to_datetime", "$s", "%Y"))),
        (sl.col("a").is_in([1, 2]), call("is_in", "$a", 1, 2)),
        (sl.coalesce(sl.col("s"), "none"), call("coalesce", "$s", "none")),
        (sl.when(sl.col("a") > 9).then("many").when(sl.col("a") > 1).then("some").otherwise("few"),
         call("when", call(">", "$a", 9), "many", call(">", "$a", 1), "some", "few")),
        (sl.col("a").fill_null(0), call("fill_null", "$a", 0)),
        (-sl.col("a"), call("negate", "$a")),
    ],
)  # fmt: skip
def test_an_expression_is_that_of_a_program(expected: sl.Expr, declared: dict) -> None:
    """Built by the same methods, it reads the same."""
    assert repr(expected) == repr(decode_expression(expression(declared)))


def test_every_method_is_one_of_an_expression() -> None:
    """No name of the list leads to nothing."""
    for name in METHODS:
        kind, _, method = name.rpartition(".")
        assert callable(getattr(getattr(sl.col("a"), kind) if kind else sl.col("a"), method)), name


@pytest.mark.parametrize(
    ("line", "declared"),
    [
        ("'uppercase' is no function of expressions; did you mean 'str.to_uppercase'?", call("uppercase", "$s")),
        ("'str.contain' is no function of expressions; did you mean 'str.contains'?", call("str.contain", "$s", "x")),
        ("'__class__' is no function of expressions", call("__class__", "$s")),
        ("'+' in an expression: not enough values to unpack (expected 2, got 1)", call("+", "$s")),
        ("'when' in an expression: it takes a condition and a value in turn, and last the value of all other rows",
         call("when", "$s", 1)),
        ("'is_null' in an expression: it is called on nothing", call("is_null")),
        ("an expression is a column, a literal or a call, and one of them says none of these", {}),
        ("9223372036854775807 microseconds since 1970 are no time of the years 1 to 9999",
         {"literal": {"timestampUs": str(2**63 - 1)}}),
        ("'JsonFormat' is an object, and an expression has numbers, texts and times only",
         {"literal": {"object": {"name": "JsonFormat"}}}),
    ],
)  # fmt: skip
def test_what_is_no_expression_is_said(line: str, declared: dict) -> None:
    """One line that names the function, and the nearest one."""
    with pytest.raises(JobDefinitionError) as raised:
        decode_expression(expression(declared))

    assert line == str(raised.value)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (f"'{'z' * 80}...' is no type: it has 8193 characters, and at most 8192 can be", "z" * 8193),
        (f"'{'list<' * 16}...' is no type: it is nested more than 50 deep, and no deeper can be",
         "list<" * 500 + "int8" + ">" * 500),
        (f"'{'list<' * 16}...' is no type: it is nested more than 50 deep, and no deeper can be",
         "list<" * 50 + "int8" + ">" * 50),
        (f"'{'z' * 80}...' is no type; types are spelled", "z" * 8192),
        (f"'{' ' * 80}...' is no type; types are spelled", " " * 8192),
    ],
    ids=["long", "deep", "a-level-too-deep", "unknown", "empty"],
)  # fmt: skip
def test_a_type_has_a_length_and_levels(line: str, text: str) -> None:
    """What nobody means was a traceback of 238 KB a request, or repeated as it was, in the coordinator's log."""
    with pytest.raises(JobDefinitionError) as raised:
        decode_type(text)

    assert str(raised.value).startswith(line)
    assert len(str(raised.value)) < 300


def test_types_within_the_bounds_are_read() -> None:
    """As many levels and fields as there may be."""
    deep = decode_type("list<" * 49 + "int8" + ">" * 49)
    wide = decode_type("struct<" + ",".join(f"a{number}:int8" for number in range(700)) + ">")

    assert 49 == str(deep).count("list<")
    assert 700 == wide.num_fields


def test_names_of_columns_are_repeated_in_part() -> None:
    """A megabyte of them was a line of the coordinator's log."""
    with pytest.raises(JobDefinitionError) as raised:
        decode_schema([DeclaredField(name="x" * 1000, type="int8")] * 2)

    assert len(str(raised.value)) < 200
