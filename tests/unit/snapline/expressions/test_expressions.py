"""Expressions mean what the same words mean in Polars, and are refused before a job runs where they mean nothing."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapline as sl
from snapline.dataflow.errors import JobDefinitionError

ROWS = 7


def at(year: int) -> dt.datetime:
    """The beginning of a year, without a zone."""
    return dt.datetime(year, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)


SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.int32()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("p", pa.bool_()),
        ("q", pa.bool_()),
        ("t", pa.timestamp("us")),
    ]
)
WHOLE = st.integers(-1000, 1000)
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "a": WHOLE,
    "b": WHOLE,
    "x": st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3)),
    "s": st.text("aAbB é1", max_size=6),
    "p": st.booleans(),
    "q": st.booleans(),
    "t": st.datetimes(at(1960), at(2040)),
}
BATCHES = st.fixed_dictionaries(
    {name: st.lists(st.none() | values, min_size=ROWS, max_size=ROWS) for name, values in COLUMNS.items()}
).map(lambda columns: pa.RecordBatch.from_pydict(columns, schema=SCHEMA))

INT64: dict[Any, Any] = {pl: pl.Int64, sl: pa.int64()}
CASES: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda m: (m.col("a") * 2 + m.col("b") - 3) * m.col("x"),
    "reversed": lambda m: 1 - m.col("x") + 2 * m.col("a"),
    "negative": lambda m: -m.col("x"),
    "true division": lambda m: m.col("a") / m.col("b"),
    "floor division": lambda m: m.col("a") // m.col("b"),
    "floor division of floats": lambda m: m.col("x") // 3.0,
    "remainder": lambda m: m.col("a") % 7,
    "comparison": lambda m: m.col("a") >= m.col("b"),
    "equality with text": lambda m: m.col("s") == "a",
    "logic": lambda m: (m.col("p") & m.col("q")) | ~m.col("p"),
    "either": lambda m: m.col("p") ^ m.col("q"),
    "null handling": lambda m: m.col("a").fill_null(0) + m.col("x").is_null().cast(INT64[m]),
    "is in": lambda m: m.col("b").is_in([1, 2, 3, 500]),
    "between": lambda m: m.col("x").is_between(-10, 10, closed="left"),
    "choice": lambda m: m.when(m.col("a") > 10).then(m.col("b")).when(m.col("p")).then(1).otherwise(m.col("b") * 2),
    "choice with null": lambda m: m.when(m.col("p")).then(m.col("x")).otherwise(None),
    "coalesce": lambda m: m.coalesce(m.col("b"), m.col("b") * 2, m.lit(5)),
    "absolute": lambda m: m.col("x").abs(),
    "floor": lambda m: m.col("x").floor(),
    "ceil": lambda m: m.col("x").ceil(),
    "root": lambda m: m.col("x").abs().sqrt(),
    "upper": lambda m: m.col("s").str.to_uppercase(),
    "lower": lambda m: m.col("s").str.to_lowercase(),
    "length": lambda m: m.col("s").str.len_chars().cast(INT64[m]),
    "starts": lambda m: m.col("s").str.starts_with("a"),
    "ends": lambda m: m.col("s").str.ends_with("B"),
    "contains": lambda m: m.col("s").str.contains("[aé]1"),
    "contains literally": lambda m: m.col("s").str.contains(" ", literal=True),
    "replace": lambda m: m.col("s").str.replace("[ab]", "_"),
    "replace all": lambda m: m.col("s").str.replace_all("[ab]", "_"),
    "slice": lambda m: m.col("s").str.slice(1, 3),
    "slice from the end": lambda m: m.col("s").str.slice(-2),
    "strip": lambda m: m.col("s").str.strip_chars(),
    "joined": lambda m: m.concat_str(m.col("s"), m.lit("x"), m.col("s"), separator="-"),
    "added text": lambda m: m.col("s") + "!",
    "year": lambda m: m.col("t").dt.year().cast(INT64[m]),
    "month": lambda m: m.col("t").dt.month().cast(INT64[m]),
    "weekday": lambda m: m.col("t").dt.weekday().cast(INT64[m]),
    "day of the year": lambda m: m.col("t").dt.ordinal_day().cast(INT64[m]),
    "minute": lambda m: m.col("t").dt.minute().cast(INT64[m]),
    "date": lambda m: m.col("t").dt.date(),
    "truncated": lambda m: m.col("t").dt.truncate("1h"),
    "truncated to weeks": lambda m: m.col("t").dt.truncate("1w"),
    "epoch": lambda m: m.col("t").dt.epoch("ms"),
    "formatted": lambda m: m.col("t").dt.strftime("%Y-%m-%d"),
    "compared with a time": lambda m: m.col("t") < at(2000),
}


@pytest.mark.parametrize("name", CASES)
@given(batch=BATCHES)
@settings(max_examples=20)
def test_an_expression_means_what_it_means_in_polars(name: str, batch: pa.RecordBatch) -> None:
    """Value by value, nulls included."""
    expression = CASES[name](sl).alias("out")
    expected = pl.from_arrow(batch).select(CASES[name](pl).alias("out"))["out"].to_list()  # type: ignore[union-attr]
    found = expression.evaluate(batch).to_pylist()

    assert found == (pytest.approx(expected, nan_ok=True) if isinstance(_first(expected), float) else expected)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_letters_that_become_several_or_differ_by_their_place_are_those_of_polars(kind: pa.DataType) -> None:
    """A sharp s became a capital one, as no other engine has it, and a sigma at the end of a word was a wrong one."""
    texts = pa.array(["Straße", None, "plain", "", "\N{LATIN SMALL LIGATURE FI}x", "ΟΔΟΣ ΣΑΣ", "İ", "É"])
    batch = pa.record_batch({"s": texts.cast(kind)})
    frame = pl.DataFrame({"s": texts.to_pylist()})

    for change in (lambda s: s.str.to_uppercase(), lambda s: s.str.to_lowercase()):
        expected = frame.select(change(pl.col("s")))["s"].to_list()
        assert change(sl.col("s")).evaluate(batch).to_pylist() == expected
        assert change(sl.lit("Straße")).evaluate(batch)[0].as_py() == expected[0]
        assert change(sl.col("s")).evaluate(batch[:0]).to_pylist() == []


def _first(values: list[Any]) -> Any:
    return next((value for value in values if value is not None), None)


@pytest.mark.parametrize("name", CASES)
def test_the_type_that_is_promised_is_the_type_that_comes(name: str) -> None:
    """Over a schema alone, and over rows; and an expression travels as a pickle."""
    expression = pickle.loads(pickle.dumps(CASES[name](sl)))
    values = {"a": 1, "b": 2, "x": 0.5, "s": "a", "p": True, "q": False, "t": at(2026)}
    batch = pa.RecordBatch.from_pylist([values, dict.fromkeys(values)], schema=SCHEMA)

    assert expression.type_in(SCHEMA) == expression.evaluate(batch).type


def stream() -> sl.DataStream:
    """A stream whose schema is known."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    return env.from_collection([{"price": 2.0, "pieces": 3, "item": "pen"}]).map_batches(
        lambda batch: batch,
        schema=pa.schema([("price", pa.float64()), ("pieces", pa.int64()), ("item", pa.string())]),
    )


def test_the_schema_is_known_after_select_and_with_columns() -> None:
    """Names, types and order, without schema=."""
    total = sl.col("price") * sl.col("pieces")
    chosen = stream().select("item", sl.col("pieces").alias("n"), total=total, one=1)
    beside = stream().with_columns(total=total, pieces=sl.col("pieces").cast(pa.int32()))

    assert chosen.schema == pa.schema(
        [("item", pa.string()), ("n", pa.int64()), ("total", pa.float64()), ("one", pa.int64())]
    )
    assert beside.schema == pa.schema(
        [("price", pa.float64()), ("pieces", pa.int32()), ("item", pa.string()), ("total", pa.float64())]
    )


def test_keys_and_aggregates_take_expressions() -> None:
    """They become columns before the keys are hashed."""
    keyed = stream().key_by(sl.col("item").str.to_uppercase().alias("upper"))
    counted = keyed.running_aggregate(uid="sums", total=sl.sum(sl.col("price") * sl.col("pieces")), n=sl.count())

    assert keyed.key_columns == ("upper",)
    assert [edge.key_columns for edge in counted.node.inputs] == [("upper",)]
    assert stream().key_by(sl.col("item")).key_columns == ("item",)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.select(sl.col("prize")), r"there is no column 'prize'; did you mean 'price'\? Columns: price, pieces, item|"),
        (lambda s: s.filter(sl.col("nothing") > 1), "there is no column 'nothing'. Columns: price, pieces, item"),
        (lambda s: s.filter(sl.col("price") + 1), r'filter: \(col\("price"\) \+ 1\) is double, and a condition is true or false'),
        (
            lambda s: s.select(x=sl.col("item") * 2 + 1),
            r'\(col\("item"\) \* 2\) cannot be computed \(col\("item"\) is string, 2 is int64\)',
        ),
        (lambda s: s.select("item", sl.col("pieces").alias("item")), "two columns would be called 'item'"),
        (lambda s: s.select(x=sl.when(sl.col("pieces") > 1).then(2)), "ends with .otherwise"),
        (lambda s: s.select(x=object()), "is no expression and no literal"),
        (lambda s: s.select(lambda batch: batch), "is no column and no expression"),
        (lambda s: s.select(), "select needs at least one column"),
        (lambda s: s.select(x=sl.col("price").cast("int")), "cast takes an Arrow type"),
        (lambda s: s.select(x=sl.col("item").dt.truncate("soon")), "'soon' is no length of time"),
        (lambda s: s.key_by("item").running_aggregate(n=sl.sum(sl.col("item") + "x")), "cannot be added up"),
        (lambda s: s.filter(sl.col("item").str.contains("(")), r"str.contains.*cannot be computed.*missing \)"),
        (lambda s: s.select(x=sl.col("item").str.replace("a", r"\3")), "str.replace.*cannot be computed.*3 matches"),
        (lambda s: s.filter(sl.col("pieces").cast(pa.timestamp("us")) > dt.datetime(2020, 1, 1, tzinfo=dt.UTC)), "with timezone"),
        (lambda s: s.select(x=sl.col("pieces") ** -1), "negative integer powers"),
        (lambda s: s.select(x=sl.coalesce()), "coalesce takes at least one column"),
        (lambda s: s.select(x=sl.concat_str()), "concat_str takes at least one column"),
        (lambda s: s.select(sl.col("price").alias(3)), "alias takes the name of a column, not 3"),  # type: ignore[arg-type]
        (lambda s: s.select(sl.col("item").field(sl.col("price"))), r'field takes the name of a field, not col\("price"\)'),  # type: ignore[arg-type]
        (lambda s: s.select(sl.col("pieces").dt.epoch("s")), r'dt.epoch\(.*\("pieces"\) is int64\): only dates and timestamps'),
        (lambda s: s.filter(sl.col("pieces") < 2**64), "18446744073709551616 is no literal that Arrow can hold"),
        (lambda s: s.select(x=sl.lit("a", pa.int64())), "'a' is no literal that Arrow can hold"),
        (lambda s: s.filter(sl.col("pieces").is_in([1, "a"])), r"\[1, 'a'\] is no literal that Arrow can hold"),
        (lambda s: s.filter(sl.col("item").is_in("pen")), "is_in takes a list of literals, not 'pen'"),
        (lambda s: s.filter(sl.col("item").is_in(sl.col("item"))), r'is_in takes a list of literals, not col\("item"\)'),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused_before_the_job_runs(build: Callable[[sl.DataStream], Any], message: str) -> None:
    """With the culprit and the columns at that place."""
    with pytest.raises(JobDefinitionError, match=message):
        build(stream())


def test_a_column_that_is_missing_while_the_job_runs_is_said_with_those_that_are_there() -> None:
    """What a function without schema= puts out is known only then."""
    unknown = stream().map(lambda row: row, uid="rows")
    said = r"no column 'prize' in the batch \(did you mean 'price'\?\): its columns are 'price', 'pieces', 'item'"
    with pytest.raises(sl.JobFailed, match=said):
        unknown.select("prize").execute_and_collect(local=True).to_arrow()


def test_an_expression_is_neither_true_nor_false() -> None:
    """`and`, `or` and chained comparisons would say something else than they seem to."""
    with pytest.raises(TypeError, match="combine conditions with &"):
        bool(sl.col("a") > 1)


def values_of(expression: sl.Expr, **columns: pa.Array) -> list[Any]:
    """The values of an expression over these columns."""
    return expression.evaluate(pa.RecordBatch.from_pydict(columns)).to_pylist()


@pytest.mark.parametrize("divisor", [sl.col("by"), sl.lit(decimal.Decimal("2.00")), sl.lit(2)])
def test_decimals_are_divided_and_rounded_down(divisor: sl.Expr) -> None:
    """The quotient of decimals is a whole number, and the remainder is what is left."""
    prices = pa.array([decimal.Decimal("7.50"), decimal.Decimal("-7.50"), None, decimal.Decimal("4.00")])
    columns = {"price": prices, "by": pa.array([decimal.Decimal("2.00")] * 4)}

    assert values_of(sl.col("price") // divisor, **columns) == [3, -4, None, 2]
    assert values_of(sl.col("price") % divisor, **columns) == [
        decimal.Decimal("1.50"),
        decimal.Decimal("0.50"),
        None,
        decimal.Decimal("0.00"),
    ]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_the_least_number_divided_by_minus_one_wraps_as_in_polars(kind: pa.DataType) -> None:
    """Arrow makes zero of it, which left the whole number as its remainder."""
    least = -(2 ** (kind.bit_width - 1))
    columns = {"a": pa.array([least, 7, None], kind), "b": pa.array([-1, -1, -1], kind)}

    for divisor in (sl.col("b"), sl.lit(-1)):
        assert values_of(sl.col("a") // divisor, **columns) == [least, -7, None]
        assert values_of(sl.col("a") % divisor, **columns) == [0, 0, None]


def test_a_divisor_of_zero_gives_null_for_floats_as_for_whole_numbers() -> None:
    """Both `//` and `%` say so, whichever sign the zero has."""
    columns = {"x": pa.array([1.0, -1.0, 5.0]), "y": pa.array([0.0, -0.0, 2.0])}

    for operation in (sl.col("x") // sl.col("y"), sl.col("x") % sl.col("y")):
        assert values_of(operation, **columns)[:2] == [None, None]
    assert values_of(sl.col("x") // 0, **columns) == [None, None, None]


BESIDE_FLOATS: dict[str, Callable[[Any], Any]] = {
    "a fraction": lambda m: m.col("ns") / 1_000_000_000,
    "a product": lambda m: m.col("ns") * 1.5,
    "a sum with a column": lambda m: m.col("ns") + m.col("x"),
    "a comparison": lambda m: m.col("ns") > m.col("x"),
    "a root": lambda m: m.col("ns").sqrt(),
    "a choice": lambda m: m.when(m.col("x") > 2).then(m.col("ns")).otherwise(0.5),
    "no null": lambda m: m.col("ns").fill_null(0.5),
    "the first that is there": lambda m: m.coalesce(m.col("ns"), m.col("x")),
}


@pytest.mark.parametrize("name", BESIDE_FLOATS)
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_whole_numbers_that_no_float_has_are_rounded_beside_floats(name: str, kind: pa.DataType) -> None:
    """Nanoseconds since 1970 are such numbers, and a job that divided them failed."""
    columns = {"ns": pa.array([2**53 + 1, 1_700_000_000_123_456_789, None], kind), "x": pa.array([1.5, 2.5, 3.5])}
    expected = pl.DataFrame(columns).select(out=BESIDE_FLOATS[name](pl))["out"].to_list()

    assert values_of(BESIDE_FLOATS[name](sl), **columns) == pytest.approx(expected)


@pytest.mark.parametrize("every", ["1s", "15m", "1h", "6h", "1d", "1w", "1mo"])
@pytest.mark.parametrize(
    "first", [dt.datetime(2024, 10, 26, 20, tzinfo=dt.UTC), dt.datetime(2024, 3, 30, 20, tzinfo=dt.UTC)]
)
def test_times_are_truncated_where_the_clocks_are_changed(every: str, first: dt.datetime) -> None:
    """An hour that comes twice begins twice, as in Polars; a job that met one failed."""
    times = [first + dt.timedelta(minutes=7 * number) for number in range(300)]
    column = pa.array([*times, None], pa.timestamp("us", "Europe/Berlin"))
    expected = pl.DataFrame({"t": column}).select(pl.col("t").dt.truncate(every).dt.epoch("us"))["t"].to_list()

    assert values_of(sl.col("t").dt.truncate(every).dt.epoch("us"), t=column) == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_the_time_since_1970_is_that_of_utc_where_the_clocks_are_changed(unit: str) -> None:
    """A zone has no part in it, not even in an hour that comes twice."""
    utc = pa.array([1_729_986_310_500_000, 1_729_989_910_500_000, -1_500_000, None], pa.timestamp("us", "UTC"))
    column = utc.cast(pa.timestamp("us", "Europe/Berlin"))

    assert values_of(sl.col("t").dt.epoch(unit), t=column) == values_of(sl.col("t").dt.epoch(unit), t=utc)


@pytest.mark.parametrize(
    ("day", "begin"),
    [
        (dt.datetime(2024, 3, 10, 10, tzinfo=dt.UTC), dt.datetime(2024, 3, 10, 5, tzinfo=dt.UTC)),
        (dt.datetime(2024, 11, 3, 6, tzinfo=dt.UTC), dt.datetime(2024, 11, 3, 4, tzinfo=dt.UTC)),
    ],
)
def test_a_day_whose_midnight_is_missing_or_comes_twice_has_one_beginning(day: dt.datetime, begin: dt.datetime) -> None:
    """In Havana the clocks are changed at midnight: a day begins with the first moment that it has."""
    column = pa.array([day], pa.timestamp("us", "America/Havana"))

    found = values_of(sl.col("t").dt.truncate("1d").cast(pa.timestamp("us", "UTC")), t=column)
    assert found == [begin]


@pytest.mark.parametrize("every", ["0s", "00h", "1h\n", "99999999999s"])
def test_a_length_of_time_that_is_none_is_refused(every: str) -> None:
    """Arrow divides by a length of zero, which ends the whole process."""
    with pytest.raises(JobDefinitionError, match="is no length of time"):
        sl.col("t").dt.truncate(every)


@pytest.mark.parametrize("all_", [True, False])
def test_an_empty_text_is_replaced_where_the_empty_pattern_matches(all_: bool) -> None:
    """Arrow never came to an end with every empty text of a text."""
    text = sl.col("s").str
    replaced = (text.replace_all if all_ else text.replace)("", r"\1", literal=True)

    assert values_of(replaced, s=pa.array(["ab", "", None])) == [r"\1a\1b\1" if all_ else r"\1ab", r"\1", None]


@pytest.mark.parametrize(
    ("form", "wrong"),
    [
        ("%Y-%m-%d", "2021-02-29"),
        ("%Y-%m-%d", "2020-2-30"),
        ("%d. %b %Y", "31. Apr 2021"),
        ("%F %T", "2021-06-31 01:02:03"),
    ],
)
def test_a_day_that_its_month_has_not_is_no_time(form: str, wrong: str) -> None:
    """Arrow would take it for one of the next month."""
    right = [at(2020) + dt.timedelta(days=number) for number in range(800)]
    texts = [moment.strftime(form) for moment in right]

    assert values_of(sl.col("s").str.to_datetime(form), s=pa.array([*texts, None])) == [*right, None]
    with pytest.raises(pa.ArrowInvalid, match=f"{wrong}.*there is no such day"):
        values_of(sl.col("s").str.to_datetime(form), s=pa.array([*texts, wrong]))


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("us", "Europe/Berlin"), pa.timestamp("ms", "UTC")])
def test_seconds_as_text_have_no_fraction(kind: pa.DataType) -> None:
    """They are those of strftime in Python and Polars, also before 1970."""
    column = pa.array([-1_013_000, 1_700_000_000_123_000, None], pa.timestamp("us")).cast(kind)
    expected = pl.DataFrame({"t": column}).select(pl.col("t").dt.strftime("%Y-%m-%d %H:%M:%S"))["t"].to_list()

    assert values_of(sl.col("t").dt.strftime("%Y-%m-%d %H:%M:%S"), t=column) == expected


def test_zero_is_among_values_whichever_sign_it_has() -> None:
    """As `==` and keys have it."""
    column = pa.array([0.0, -0.0, 1.0, None])

    assert values_of(sl.col("x").is_in([0.0]), x=column) == [True, True, False, None]
    assert values_of(sl.col("x").is_in([-0.0]), x=column) == [True, True, False, None]


def test_texts_of_polars_are_joined_with_literals() -> None:
    """They come as `large_string`, beside which Arrow takes no other kind of text."""
    columns = {"long": pa.array(["a", None], pa.large_string()), "short": pa.array(["b", "c"])}

    assert values_of(sl.concat_str("<", sl.col("long"), "-", sl.col("short")), **columns) == ["<a-b", None]
    assert values_of(sl.concat_str(sl.col("short"), sl.col("long"), separator="-"), **columns) == ["b-a", None]
