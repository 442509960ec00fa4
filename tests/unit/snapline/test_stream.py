"""What is refused while a graph of one stream is built, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl


class Nothing(sl.KeyedProcessFunction):
    """Emits nothing."""

    def process_element(self, row: sl.Row, context: object) -> None:
        return None


@pytest.fixture
def stream() -> sl.DataStream:
    """Rows with a key, a value and a time."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = environment.from_collection([{"k": 1, "v": 2, "t": 3}])
    return rows.assign_timestamps_and_watermarks(sl.WatermarkStrategy.for_monotonous_timestamps("t"))


async def nobody_awaits(one: sl.Row, other: sl.Row) -> sl.Row:
    return one


def buckets(stream: sl.DataStream) -> sl.WindowedStream:
    """Of event time."""
    return stream.key_by("k").window(sl.TumblingEventTimeWindows(1))


def test_functions_may_have_any_side_output(stream: sl.DataStream) -> None:
    """What they emit to is known when they run; a window's function, too, has others than the one for late rows."""
    for one in (
        stream.map_batches(lambda batch: batch),
        stream.key_by("k").process(Nothing()),
        buckets(stream).process_batches(lambda key, window, batch: batch),
        buckets(stream).side_output_late_data("any").aggregate(n=sl.count()),
    ):
        assert one.get_side_output("any").edges[0].side_output_tag == "any"


@pytest.mark.parametrize(
    ("define", "said"),
    [
        (lambda s: s.map(5), "operator 'map': 5 is no function"),
        (lambda s: s.map_batches(None), "operator 'map_batches': None is no function"),
        (lambda s: s.filter([True]), "operator 'filter': [True] is no function"),
        (lambda s: s.key_by("k").process(Nothing), "operator 'process': Nothing is a class: hand over Nothing(...)"),
        (lambda s: s.key_by("k").process(object()), "operator 'process': object has no method 'process_element'"),
        (
            lambda s: s.async_wait(print),
            "operator 'async_wait': builtin_function_or_method has no method 'async_invoke'",
        ),
        (lambda s: s.map(dict, schema={"k": "x"}), "{'k': 'x'} is no schema: say which columns there are by pyarrow"),
        (lambda s: s.map_batches(list).get_side_output("x", [("k", 1)]), "[('k', 1)] is no schema: say which columns"),
        (lambda s: s.map(dict).set_max_parallelism(0), "max parallelism must be a whole number, 1 to 32768, got 0"),
        (lambda s: s.sink_to("out"), "sink_to('out'): that is no Sink, such as ParquetSink('directory')"),
        (lambda s: s.environment.from_source("in"), "from_source('in'): that is no Source"),
        (lambda s: s.environment.set_parallelism("2"), "parallelism must be a whole number, at least 1, got '2'"),
        (
            lambda s: s.environment.from_source(sl.GeneratorSource(rows=1), "t", name="in"),
            "watermark strategy of 'in': 't' is no WatermarkStrategy; write WatermarkStrategy.for_monotonous_timestamps('t')",
        ),
        (
            lambda s: s.assign_timestamps_and_watermarks(None),
            "watermark strategy of 'watermarks': None is no Watermark",
        ),
        (lambda s: sl.WatermarkStrategy(["t"]), "a watermark strategy takes the name of a column, got ['t']"),  # type: ignore[arg-type]
        (lambda s: sl.WatermarkStrategy("t", 0, -5), "idle_timeout_ms must not be negative, got -5 ms"),
        (lambda s: s.union([s]), "union takes streams, one after the other, not a list; key_by comes after it"),
        (lambda s: s.connect(s.key_by("k")), "'connect' takes a stream, not a KeyedStream; key_by comes after it"),
        (lambda s: s.key_by("k").running_aggregate(n="count"), "n='count' is no aggregate, such as n=sl.count()"),
        (
            lambda s: buckets(s).side_output_late_data("late").aggregate(uid="w", n=sl.count()).get_side_output("lat"),
            "get_side_output of 'w': there is no side output 'lat', only 'late'",
        ),
        (lambda s: buckets(s).aggregate(n=sl.count()).get_side_output("late"), "side_output_late_data(...)"),
        (lambda s: s.filter_rows(bool).get_side_output("odd"), "only functions that are handed a context"),
        (
            lambda s: s.map(dict, uid="m").bad_rows(),
            "bad_rows of 'm': its bad rows are not set aside: give it on_error=",
        ),
        (
            lambda s: s.bad_rows(),
            "bad_rows of 'watermarks': sources, map, flat_map, filter_rows and process set bad rows",
        ),
        (
            lambda s: s.environment.from_collection([{"k": 1}], uid="c").bad_rows(),
            "bad_rows of 'c': its bad rows are not set aside: give CollectionSource on_error='side_output', if it has",
        ),
        (
            lambda s: s.map(dict, on_error="skip"),
            "operator 'map': on_error is one of fail, drop, side_output, not 'skip'",
        ),
        (lambda s: s.show(-5, local=True), "show: the number of rows must be a whole number, at least 0, got -5"),
        (lambda s: s.show("5", local=True), "show: the number of rows must be a whole number, at least 0, got '5'"),
        (lambda s: s.environment.restore_from(None), "restore_from(None): give the path of a savepoint or checkpoint"),
        (lambda s: s.environment.restore_from(""), "restore_from(''): give the path of a savepoint or checkpoint"),
        (lambda s: s.environment.add_python_module("pricing"), "add_python_module('pricing'): give the module itself"),
        (lambda s: s.map(Prices), "operator 'map': Prices is a class of functions: hand over Prices(...)"),
        (lambda s: s.inspect(Prices), "operator 'inspect': Prices is a class of functions"),
        (lambda s: s.key_by("k").reduce(Prices), "operator 'reduce': Prices is a class of functions"),
        (lambda s: s.inspect(Remembers()), "operator 'inspect': snapshot_state of Remembers is not called here"),
        (lambda s: s.key_by("k").reduce(Remembers()), "operator 'reduce': snapshot_state of Remembers is not called"),
        (lambda s: s.key_by(Remembers()), "key_by: snapshot_state of Remembers is not called here"),
        (lambda s: s.map_batches(list).get_side_output(""), "the tag of a side output is a name, not ''"),
        (lambda s: s.key_by("k").running_aggregate(k=sl.count()), "the result has a column 'k' already"),
        (lambda s: s.key_by("k", "k"), "key_by: column 'k' is named twice: name it once"),
        (
            lambda s: of_types(s).key_by("tags"),
            "key_by: column 'tags': a value of type list<item: int64> cannot be",
        ),
        (
            lambda s: of_types(s).key_by("k").running_aggregate(n=sl.count_distinct("wide")),
            "column 'wide' is decimal256(50, 2), whose values are not compared here",
        ),
        (
            lambda s: s.add_sink(print),
            "operator 'builtin_function_or_method': builtin_function_or_method has no method 'invoke'",
        ),
        (
            lambda s: s.key_by("k").count_window(2).process(print, name="w"),
            "operator 'w': builtin_function_or_method has no",
        ),
        (lambda s: s.key_by("k").count_window(2).process_batches(5, name="w"), "operator 'w': 5 is no function"),
        (lambda s: s.key_by("k").count_window(2).reduce(nobody_awaits, name="w"), "is async, and nothing awaits it"),
        (lambda s: s.key_by("k").reduce(nobody_awaits, name="r"), "is async, and nothing awaits it"),
        (lambda s: s.environment.add_source(sl.SourceFunction), "is no SourceFunction: hand over SourceFunction(...)"),
        (lambda s: s.environment.add_source(print), "that is no SourceFunction, which has run and cancel"),
        (
            lambda s: s.key_by("k").running_aggregate(passthrough=["v"], v=sl.sum("v")),
            "the result has a column 'v' already",
        ),
        (
            lambda s: s.key_by("k").window(sl.TumblingEventTimeWindows(1)).aggregate(window_end=sl.count()),
            "the result has a column 'window_end' already",
        ),
        (
            lambda s: of_windows(s).key_by("window_end").window(sl.TumblingEventTimeWindows(9)).aggregate(n=sl.count()),
            "key by it under another one, key_by(sl.col('window_end').alias('of_window_end'))",
        ),
        (
            lambda s: s.key_by(sl.col("t") // 9).window(sl.TumblingEventTimeWindows(9)),
            "and a key that is computed in its place",
        ),
        (
            lambda s: s.map_batches(list, uid="copy").get_side_output("odd").uid("odd"),
            "uid 'odd': that is a side output of 'map_batches', whose uid is 'copy'",
        ),
        (lambda s: s.key_by(sl.col("v") // 9).running_aggregate(n=sl.sum("v")), "column 'v' has become the key"),
        (
            lambda s: s.key_by(sl.col("v") // 9).running_aggregate(n=sl.sum(sl.col("v") * 2)),
            "give the key another name by .alias(...), or say .alias('v'), if the key is what is meant",
        ),
        (lambda s: s.key_by(-sl.col("v")).count_window(2).aggregate(n=sl.sum("v")), "column 'v' has become the key"),
        (lambda s: s.key_by(-sl.col("v")).count_window(2).max_by("v"), "column 'v' has become the key"),
        (
            lambda s: buckets(s.map_batches(list).get_side_output("x", pa.schema([("k", pa.int64())]))).aggregate(
                n=sl.count()
            ),
            "windows need event time",
        ),
        (
            lambda s: (
                of_windows(s)
                .key_by("k")
                .window(sl.TumblingEventTimeWindows(9))
                .max_by("n")
                .key_by("k")
                .window(sl.TumblingEventTimeWindows(9))
            ),
            "windows need event time",
        ),
    ],
)
def test_what_could_not_run_is_refused_by_name(
    stream: sl.DataStream, define: Callable[[sl.DataStream], object], said: str
) -> None:
    """Not in a task, once Spark has started; and no output has two columns of one name."""
    with pytest.raises(sl.JobDefinitionError) as raised:
        define(stream)
    assert said in str(raised.value)


def of_types(stream: sl.DataStream) -> sl.DataStream:
    """Columns of types whose values are found in no table of keys."""
    fields = [("k", pa.int64()), ("tags", pa.list_(pa.int64())), ("wide", pa.decimal256(50, 2))]
    return stream.map_batches(lambda batch: batch, schema=pa.schema(fields))


def of_windows(stream: sl.DataStream) -> sl.DataStream:
    """Rows with the times of windows, which the next windows do not touch."""
    return stream.key_by("k").window(sl.TumblingEventTimeWindows(3)).aggregate(n=sl.count())


def test_names_that_are_free_are_allowed(stream: sl.DataStream) -> None:
    """A count window has no columns of its own, and an aggregate may be called as its column."""
    stream.key_by("k").running_aggregate(v=sl.sum("v"))
    stream.key_by("k").window(sl.GlobalWindows(sl.CountTrigger(2))).aggregate(window_end=sl.count())
    of_windows(stream).key_by("window_end").count_window(2).aggregate(n=sl.sum("n"))
    stream.key_by((sl.col("v") // 9).alias("v")).running_aggregate(n=sl.sum("v"))
    stream.key_by(sl.col("v") // 9, sl.col("t") // 9).running_aggregate(n=sl.count(), k=sl.sum("k"))


@pytest.mark.parametrize("name", ["join", "window", "running_aggregate", "connect_nothing"])
def test_a_stream_without_keys_says_what_it_lacks(name: str) -> None:
    """A newcomer joined two streams, and heard that there is no such attribute."""
    stream: Any = sl.StreamExecutionEnvironment.get_execution_environment().from_collection([{"k": 1}])

    assert not hasattr(stream, name)
    line = f"has no attribute '{name}'" if "nothing" in name else f"say stream.key_by(...).{name}(...)"
    with pytest.raises(AttributeError, match=re.escape(line)):
        getattr(stream, name)


@pytest.mark.parametrize("name", ["map", "async_wait", "sink_to", "map_nothing"])
def test_a_stream_with_keys_says_where_else_to_look(name: str) -> None:
    """In Flink a stream with keys can be mapped, too, and the page on connectors spoke of requests behind `key_by`."""
    keyed: Any = sl.StreamExecutionEnvironment.get_execution_environment().from_collection([{"k": 1}]).key_by("k")

    assert not hasattr(keyed, name)
    line = f"has no attribute '{name}'" if "nothing" in name else f"a KeyedStream has no '{name}': say it before key_by"
    with pytest.raises(AttributeError, match=re.escape(line)):
        getattr(keyed, name)


def test_a_snapshot_is_named_by_a_path_of_either_kind(stream: sl.DataStream, tmp_path: Path) -> None:
    """A Path was an error of Python's, which named no argument."""
    assert stream.environment.restore_from(tmp_path).savepoint_restore.path == str(tmp_path)


def test_columns_that_are_passed_through_are_there_once(stream: sl.DataStream) -> None:
    """One name alone is no list of its letters; a key is in the result anyway."""
    for given in ("v", ["v", "v"], ["k", "v"]):
        counts = stream.key_by("k").running_aggregate(passthrough=given, n=sl.count(), uid="counts")
        assert list(counts.execute_and_collect(local=True)) == [{"k": 1, "v": 2, "n": 1}]
        assert counts.schema is not None
        assert counts.schema.names == ["k", "v", "n"]
    with pytest.raises(sl.JobDefinitionError, match="there is no column 'vt'"):
        stream.key_by("k").running_aggregate(passthrough="vt", n=sl.count())


@pytest.mark.parametrize(
    ("method", "lacks"), [("snapshot_state", "initialize_state"), ("initialize_state", "snapshot_state")]
)
def test_a_function_with_half_of_what_state_takes_is_refused(method: str, lacks: str) -> None:
    """Its state was in no checkpoint, without a word: the other method had another name."""

    class Counted:
        def restore_state(self, context: object) -> None:
            """Is never called."""

        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch

    setattr(Counted, method, lambda self, context: None)
    stream = sl.StreamExecutionEnvironment.get_execution_environment().from_collection([{"n": 1}])
    with pytest.raises(sl.JobDefinitionError, match=f"'counted': Counted has {method} and no {lacks}, so that neither"):
        stream.map_batches(Counted(), name="counted")


class Remembers:
    """A function with state of its own, where nobody asks for it."""

    def initialize_state(self, context: sl.FunctionInitializationContext) -> None: ...

    def snapshot_state(self, context: sl.FunctionSnapshotContext) -> None: ...

    def __call__(self, *rows: sl.Row) -> sl.Row:
        return rows[0]


class Prices(dict[str, int]):
    """A function that is a dictionary, which is empty until it is opened."""

    def open(self, context: sl.RuntimeContext) -> None:
        self["a"] = 7

    def __call__(self, row: sl.Row) -> sl.Row:
        return {"price": self[row["k"]]}


def test_a_function_may_be_an_object_that_is_empty() -> None:
    """It counted as none, which cannot be called."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    prices = environment.from_collection([{"k": "a"}]).map(Prices(), uid="prices")
    assert list(prices.execute_and_collect(local=True)) == [{"price": 7}]
