"""The columns of a stream are known behind every verb whose result follows from its input, without `schema=`: a name
that is wrong, and types that do not fit, are errors while the job is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors.builtin.collection import CollectionSource
from snapline.dataflow.errors import JobDefinitionError

SCHEMA = pa.schema(
    [("shop", pa.string()), ("price", pa.float64()), ("pieces", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))]
)  # fmt: skip
WINDOW = [pa.field(name, pa.timestamp("us", "UTC")) for name in ("window_start", "window_end")]
CLOCK = [pa.field(name, pa.timestamp("ms")) for name in ("window_start", "window_end")]


def sales() -> sl.DataStream:
    environment = sl.StreamExecutionEnvironment.get_execution_environment({})
    return environment.from_source(
        CollectionSource([], schema=SCHEMA), sl.WatermarkStrategy.for_monotonous_timestamps("at"), uid="sales"
    )


def keyed() -> sl.KeyedStream:
    return sales().key_by("shop")


def tumbling() -> sl.WindowedStream:
    return keyed().window(sl.TumblingEventTimeWindows(1_000))


SHOP = SCHEMA.field("shop")


class Part(TypedDict):
    """A struct within a row."""

    weight: float | None


class Article(TypedDict):
    """What functions over rows say that they return."""

    shop: str
    parts: list[Part]
    at: Annotated[datetime, pa.timestamp("us", "UTC")]


class Priced(TypedDict):
    """A row with a type that is no one Arrow type."""

    price: Decimal


ARTICLE = [
    SHOP, pa.field("parts", pa.list_(pa.struct([("weight", pa.float64())]))),
    pa.field("at", pa.timestamp("us", "UTC")),
]  # fmt: skip


def article_of(row: sl.Row) -> Article:
    return {"shop": row["shop"], "parts": [{"weight": None}], "at": row["at"]}


def articles_of(row: sl.Row) -> Iterator[Article]:
    yield article_of(row)


def priced(row: sl.Row) -> Priced:
    return {"price": Decimal(row["price"])}


class OneByOne(sl.KeyedProcessFunction):
    """Says its rows by a return type."""

    def process_element(self, row: sl.Row, context: Any) -> Iterator[Article]:
        yield article_of(row)


VERBS: dict[str, tuple[Callable[[], sl.DataStream], list[pa.Field]]] = {
    "return type of map": (lambda: sales().map(article_of), ARTICLE),
    "return type of flat_map": (lambda: sales().flat_map(articles_of), ARTICLE),
    "return type of process": (lambda: keyed().process(OneByOne()), ARTICLE),
    "window aggregate": (
        lambda: tumbling().aggregate(n=sl.count(), total=sl.sum("pieces"), mean=sl.mean("pieces"), most=sl.max("pieces")),
        [SHOP, *WINDOW, pa.field("n", pa.int64()), pa.field("total", pa.int64()), pa.field("mean", pa.float64()), pa.field("most", pa.int32())],
    ),
    "held aggregate": (
        lambda: tumbling().aggregate(
            kinds=sl.count_distinct("price"), median=sl.median("pieces"), best=sl.top_n("price", 3), opening=sl.first("pieces", by="at")
        ),
        [
            SHOP, *WINDOW, pa.field("kinds", pa.int64()), pa.field("median", pa.float64()),
            pa.field("best", pa.list_(pa.float64())), pa.field("opening", pa.int32()),
        ],
    ),
    "expression in an aggregate": (
        lambda: tumbling().aggregate(total=sl.sum(sl.col("price") * sl.col("pieces"))),
        [SHOP, *WINDOW, pa.field("total", pa.float64())],
    ),
    "windows of the clock": (
        lambda: keyed().window(sl.ProcessingTimeSessionWindows(10)).aggregate(n=sl.count()),
        [SHOP, *CLOCK, pa.field("n", pa.int64())],
    ),
    "count windows": (lambda: keyed().count_window(5).aggregate(n=sl.count()), [SHOP, pa.field("n", pa.int64())]),
    "window reduce": (lambda: tumbling().reduce(lambda one, _: one), [*SCHEMA, *WINDOW]),
    "max_by": (lambda: tumbling().max_by("price"), [*SCHEMA, *WINDOW]),
    "running aggregate": (
        lambda: keyed().running_aggregate(passthrough=["at"], low=sl.min("price")),
        [SHOP, SCHEMA.field("at"), pa.field("low", pa.float64())],
    ),
    "reduce": (lambda: keyed().reduce(lambda one, _: one), list(SCHEMA)),
    "late rows": (
        lambda: tumbling().side_output_late_data("late").aggregate(n=sl.count()).get_side_output("late"),
        list(SCHEMA),
    ),
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_the_columns_behind_a_verb(verb: str) -> None:
    """Names and types are those of the rows that come; what is behind it is checked against them."""
    build, fields = VERBS[verb]
    stream = build()
    assert stream.schema == pa.schema(fields)
    name = fields[-1].name
    wrong = f"{name}s"
    for use in (
        lambda: stream.filter(sl.col(wrong) == 1),
        lambda: stream.select(x=sl.col(wrong)),
        lambda: stream.with_columns(x=sl.col(wrong)),
        lambda: stream.key_by(sl.col(wrong)),
        lambda: stream.key_by("shop").running_aggregate(x=sl.count_distinct(wrong)),
    ):
        with pytest.raises(
            JobDefinitionError, match=f"there is no column '{wrong}'; did you mean '.*' ?.*Columns: shop, "
        ):
            use()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: tumbling().aggregate(x=sl.median("shop")),
            "quantile\\(\\) as 'x': column 'shop' is string, which is no number",
        ),
        (
            lambda: tumbling().aggregate(x=sl.approx_quantile("at", 0.5)),
            "column 'at' is timestamp.*, which is no number",
        ),
        (
            lambda: tumbling().aggregate(x=sl.top_n("tags", 2)),
            "column 'tags' is list<.*>, which cannot be ordered here.*by=",
        ),
        (
            lambda: tumbling().aggregate(x=sl.first("price", by="tags")),
            "first\\(\\) as 'x': column 'tags' is list<.*>, which cannot be ordered",
        ),
        (
            lambda: tumbling().aggregate(x=sl.count_distinct("tags")),
            "column 'tags' is list<.*>, whose values are not compared",
        ),
        (lambda: tumbling().aggregate(x=sl.last("prize")), "there is no column 'prize'; did you mean 'price'"),
        (
            lambda: tumbling().aggregate(n=sl.count()).filter(sl.col("n") == "many"),
            'cannot be computed .*col\\("n"\\) is int64',
        ),
        (lambda: keyed().running_aggregate(x=sl.sum("shop")), "sum\\(\\) as 'x': column 'shop' is string"),
        (lambda: tumbling().aggregate(n=sl.count()).filter(sl.col("n") + 1), "a condition is true or false"),
    ],
)
def test_types_that_do_not_fit(build: Any, message: str) -> None:
    """The aggregate, the column and its type are named."""
    with pytest.raises(JobDefinitionError, match=message):
        build()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sl.quantile("price", 1.5), "takes a quantile from 0 to 1, got 1.5"),
        (lambda: sl.top_n("price", 0), "takes how many values it keeps, at least 1, got 0"),
        (lambda: sl.collect_list(""), "collect_list\\(\\) needs the name of a column"),
        (lambda: sl.batch_aggregate(object()), "takes a BatchAggregateFunction"),  # type: ignore[arg-type]
    ],
)
def test_aggregates_that_make_no_sense(make: Any, message: str) -> None:
    """They are refused where they are written."""
    with pytest.raises(JobDefinitionError, match=message):
        make()


def test_reduce_needs_to_know_the_columns() -> None:
    """They are what it keeps."""
    unknown = sales().map_batches(lambda batch: batch).key_by("shop")
    with pytest.raises(JobDefinitionError, match=r"the columns of the stream are not known.*schema="):
        unknown.reduce(lambda one, _: one)


def test_a_return_type_without_one_arrow_type_says_nothing() -> None:
    """A Decimal has digits that no hint tells, and a lambda no hints; rows run all the same."""
    assert [sales().map(priced).schema, sales().map(lambda row: row).schema] == [None, None]


class Named(sl.KeyedProcessFunction):
    """Says the time of each row."""

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterator[sl.Row]:
        yield {"at": row["at"], "time": context.timestamp_ms}


def test_event_time_ends_where_another_type_takes_the_place_of_its_column() -> None:
    """A time that was written as text for whoever reads the output failed every function with keys behind it."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_collection([{"shop": "a", "at": datetime(2026, 1, 2, tzinfo=UTC)}], uid="rows")
    timed = rows.assign_timestamps_and_watermarks(sl.WatermarkStrategy.for_monotonous_timestamps("at"), uid="timed")
    texts = timed.with_columns(at=sl.col("at").dt.strftime("%d.%m.%Y"))
    assert texts.event_time_column == ""
    assert timed.with_columns(at=sl.col("at").cast(pa.timestamp("ms", "UTC"))).event_time_column == "at"
    said = texts.key_by("shop").process(Named(), uid="named").execute_and_collect(local=True)
    assert list(said) == [{"at": "02.01.2026", "time": None}]
    with pytest.raises(JobDefinitionError, match="windows need event time"):
        texts.key_by("shop").window(sl.TumblingEventTimeWindows(1_000))
