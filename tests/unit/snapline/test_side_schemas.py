"""Rows that a function puts aside have the columns that whoever reads them has declared, as its other rows have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors.builtin.collection import CollectionSource
from snapline.dataflow.errors import JobDefinitionError

ROWS = pa.schema([("shop", pa.string()), ("cents", pa.float64()), ("at", pa.timestamp("ms"))])
ASIDE = [{"shop": None, "cents": 1, "at": None}, {"shop": "a", "cents": 2.5, "at": None}]


class Aside(sl.ProcessFunction):
    """Puts rows aside whose first one tells little of their types."""

    def process_element(self, row: sl.Row, context: Any) -> None:
        for aside in ASIDE:
            context.output("aside", aside)


class KeyedAside(Aside, sl.KeyedProcessFunction):
    """The same with keys."""


class BothAside(sl.KeyedCoProcessFunction):
    """The same with two inputs."""

    def process_element1(self, row: sl.Row, context: Any) -> None:
        for aside in ASIDE:
            context.output("aside", aside)

    def process_element2(self, row: sl.Row, context: Any) -> None:
        """Puts nothing aside."""


class BroadcastAside(sl.KeyedBroadcastProcessFunction):
    """The same beside rules."""

    def process_element(self, row: sl.Row, context: Any) -> None:
        for aside in ASIDE:
            context.output("aside", aside)

    def process_broadcast_element(self, row: sl.Row, context: Any) -> None:
        """Has no rules."""


class WindowAside(sl.ProcessWindowFunction):
    """The same of a window."""

    def process(self, key: Any, context: Any, rows: Any) -> None:
        for aside in ASIDE:
            context.output("aside", aside)


RULES = sl.MapStateDescriptor("rules", pa.string(), pa.int64())
OPERATORS: dict[str, Callable[[Any], sl.DataStream]] = {
    "process": lambda one: one.process(Aside(), uid="it"),
    "keyed": lambda one: one.key_by("shop").process(KeyedAside(), uid="it"),
    "two inputs": lambda one: one.key_by("shop").connect(one.key_by("shop")).process(BothAside(), uid="it"),
    "broadcast": lambda one: one.key_by("shop").connect(one.broadcast_state(RULES)).process(BroadcastAside(), uid="it"),
    "window": lambda one: one.key_by("shop").window(sl.TumblingEventTimeWindows(10)).process(WindowAside(), uid="it"),
}


def rows_of(*shops: str | None) -> sl.DataStream:
    """A stream of one batch a row."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment({})
    batches = [pa.RecordBatch.from_pylist([{"shop": shop, "cents": 0.5, "at": 0}], schema=ROWS) for shop in shops]
    time = sl.WatermarkStrategy.for_monotonous_timestamps("at")
    return environment.from_source(CollectionSource(batches), time, uid="one")


@pytest.mark.parametrize("name", OPERATORS)
def test_rows_put_aside_have_the_types_that_were_declared(name: str) -> None:
    """A null, or a whole number, of the first row is of the type that get_side_output was told."""
    collected = OPERATORS[name](rows_of("a")).get_side_output("aside", ROWS).execute_and_collect(local=True)

    assert [(batch.schema, batch.to_pylist()) for batch in collected.batches()] == [(ROWS, ASIDE)]


class AllAside(sl.ProcessFunction):
    """Puts every row aside as it is."""

    def process_element(self, row: sl.Row, context: Any) -> None:
        context.output("aside", row)


def test_a_key_of_which_the_first_rows_have_none_is_one() -> None:
    """Rows that were put aside can be keyed by a column that is null in the first batch."""
    aside = rows_of(None, "a", None).process(AllAside(), uid="it").get_side_output("aside", ROWS)
    counts = aside.key_by("shop").running_aggregate(uid="counts", n=sl.count())

    found = [(row["shop"], row["n"]) for row in counts.execute_and_collect(local=True)]
    assert found == [(None, 1), ("a", 1), (None, 2)]


def test_one_tag_has_one_schema() -> None:
    """Two readers that declare different columns for one tag are told so while the job is built."""
    function = rows_of("a").process(Aside(), uid="it")
    function.get_side_output("aside", ROWS)
    function.get_side_output("aside", ROWS)
    function.get_side_output("aside")

    with pytest.raises(JobDefinitionError, match="get_side_output of 'it': 'aside' is read with two schemas"):
        function.get_side_output("aside", pa.schema([("shop", pa.string())]))
