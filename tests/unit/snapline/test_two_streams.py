"""What is refused while a graph of joins, connected streams and windows is built, and what the results look like."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors.builtin.collection import CollectionSource
from snapline.dataflow.partitioning import Partitioning

LEFT = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms")), ("name", pa.string())])
LISTS = pa.schema([("id", pa.list_(pa.int64()))])
DAY = sl.StateTtlConfig(dt.timedelta(days=1))
RIGHT = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms")), ("text", pa.string())])


class Nothing(sl.KeyedCoProcessFunction):
    """Emits nothing."""

    def process_element1(self, row: sl.Row, context: Any) -> None:
        return None

    def process_element2(self, row: sl.Row, context: Any) -> None:
        return None


def streams(*, timed: bool = True) -> tuple[sl.DataStream, sl.DataStream]:
    environment = sl.StreamExecutionEnvironment.get_execution_environment({})
    strategy = sl.WatermarkStrategy.for_monotonous_timestamps("at") if timed else None
    made = [environment.from_source(CollectionSource([], schema=schema), strategy) for schema in (LEFT, RIGHT)]
    return made[0], made[1]


def test_a_join_has_the_columns_of_both() -> None:
    """A name that both have is the right one's with a suffix; both edges are by hash."""
    left, right = streams()
    joined = left.key_by("id").join(right.key_by("id")).between(-5, 5, uid="join")

    assert joined.schema is not None
    assert joined.schema.names == ["id", "at", "name", "id_right", "at_right", "text"]
    assert joined.event_time_column == "at"
    assert [(edge.target_input, edge.partitioning) for edge in joined.node.inputs] == [
        (0, Partitioning.HASH), (1, Partitioning.HASH),
    ]  # fmt: skip


def test_two_streams_are_keyed_by_expressions() -> None:
    """It ended in a TypeError of Python's, and each of them alone took one."""
    left, right = streams()
    keyed = left.connect(right).key_by(sl.col("name").str.to_lowercase().alias("key"), [sl.col("text")])

    assert isinstance(keyed.first, sl.KeyedStream)
    assert isinstance(keyed.second, sl.KeyedStream)
    assert (keyed.first.key_columns, keyed.second.key_columns) == (("key",), ("text",))


def test_pairs_that_may_come_whenever_have_no_event_time() -> None:
    """Windows behind them dropped those whose left row had waited, as late; they ask for another watermark now."""
    left, right = streams()
    both = left.key_by("id").join(right.key_by("id"))
    for joined in (both.unbounded(uid="all"), both.window(sl.TumblingProcessingTimeWindows(1_000), uid="clock")):
        assert joined.event_time_column == ""
        with pytest.raises(sl.JobDefinitionError, match="assign_timestamps_and_watermarks"):
            joined.key_by("id").window(sl.TumblingEventTimeWindows(10))
    assert both.window(sl.TumblingEventTimeWindows(10), uid="minute").event_time_column == "at"
    assert both.as_of(uid="latest").event_time_column == "at"


class Passed(sl.KeyedCoProcessFunction):
    """Passes the rows of both on."""

    def process_element1(self, row: sl.Row, context: Any) -> list[sl.Row]:
        return [row]

    def process_element2(self, row: sl.Row, context: Any) -> list[sl.Row]:
        return [row]


def test_event_time_goes_on_behind_a_function_of_two_streams() -> None:
    """Where both have it in one column, and the result is known to have that."""
    left, right = streams()
    both = left.connect(right).key_by("id", "id")
    timed = both.process(Nothing(), uid="timed", schema=RIGHT)
    assert timed.event_time_column == "at"
    assert timed.get_side_output("aside").event_time_column == ""
    assert timed.get_side_output("rows", RIGHT).event_time_column == "at"
    assert both.process(Nothing(), uid="unknown").event_time_column == ""
    assert both.process(Nothing(), uid="without", schema=RIGHT.remove(1)).event_time_column == ""
    left = replace(left, event_time_column="")
    assert left.connect(right).key_by("id", "id").process(Nothing(), schema=RIGHT).event_time_column == ""


def test_no_row_of_two_streams_is_late_behind_a_function_of_both() -> None:
    """Windows behind it asked for another watermark, which was that of the stream that was ahead: all rows of the
    other one were late."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    strategy = sl.WatermarkStrategy.for_monotonous_timestamps("at")
    ahead, behind = (
        env.from_source(CollectionSource.of_rows(rows, batch_rows=batch_rows), strategy, uid=uid)
        for uid, batch_rows, rows in (
            ("ahead", 1_000, [{"id": 1, "at": at} for at in range(0, 1_000, 10)]),
            ("behind", 1, [{"id": 1, "at": at} for at in range(0, 1_000, 10)]),
        )
    )
    both = ahead.connect(behind).key_by("id", "id").process(Passed(), uid="both", schema=schema)
    counted = both.key_by("id").window(sl.TumblingEventTimeWindows(100)).aggregate(uid="windows", n=sl.count())
    assert [row["n"] for row in counted.execute_and_collect(local=True)] == [20] * 10


def test_rules_go_to_all_subtasks() -> None:
    """The keyed side by hash, the rules broadcast."""
    left, right = streams()
    rules = right.broadcast_state(sl.MapStateDescriptor("rules", pa.int64(), pa.string()))
    with pytest.raises(sl.JobDefinitionError, match="needs a KeyedBroadcastProcessFunction, got a Nothing"):
        left.key_by("id").connect(rules).process(Nothing())  # type: ignore[arg-type]
    wanted = "on a stream without keys needs a BroadcastProcessFunction, got a Nothing"
    with pytest.raises(sl.JobDefinitionError, match=wanted):
        left.connect(rules).process(Nothing())  # type: ignore[arg-type]


def test_windows_that_need_no_event_time() -> None:
    """Counts and the clock."""
    left, _ = streams(timed=False)
    keyed = left.key_by("id")
    assert keyed.window(sl.GlobalWindows(sl.CountTrigger(2))).aggregate(n=sl.count()).event_time_column == ""
    assert keyed.count_window(3).aggregate(n=sl.count()).event_time_column == ""
    assert keyed.window(sl.TumblingProcessingTimeWindows(5)).aggregate(n=sl.count()).event_time_column == "window_end"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda a, b: a.key_by("id").join(b.key_by("text")).unbounded(), "'id' is int64 and 'text' is string"),
        (lambda a, b: a.key_by("id").join(b.key_by("id", "text")), "have different numbers of columns"),
        (lambda a, b: a.key_by("id").join(b), "key the second stream, too"),
        (
            lambda a, b: a.key_by("id").join(b.key_by("id")).between(3, 1),
            "lower bound 3 ms lies above the upper one 1 ms",
        ),
        (lambda a, b: a.key_by("id").join(b.key_by("id")).as_of(how="full"), "unknown how='full', one of inner, left"),
        (
            lambda a, b: a.key_by("id").join(b.key_by("id")).window(sl.EventTimeSessionWindows(5)),
            "joins take tumbling or sliding windows",
        ),
        (
            lambda a, b: b.broadcast_state(sl.MapStateDescriptor("d", pa.int64(), pa.int64(), ttl=DAY)),
            "state 'd' has a time-to-live, and rules stay until they are removed: leave ttl= out",
        ),
        (
            lambda a, b: b.broadcast_state(
                sl.MapStateDescriptor("d", pa.int64(), pa.int64()), sl.MapStateDescriptor("d", pa.string(), pa.int64())
            ),
            "two states have the name 'd': give each its own",
        ),
        (lambda a, b: a.connect(b).process(Nothing()), r"needs a CoProcessFunction, got a Nothing; key_by\(...\)"),
        (lambda a, b: a.connect(b).key_by("id", "text"), "'id' is int64 and 'text' is string"),
        (lambda a, b: a.connect(b).key_by("id", None), r"key_by takes names of columns .*, got \(None,\)"),
        (lambda a, b: a.key_by("id").window(7), "7 is no window: one of TumblingEventTimeWindows"),
        (
            lambda a, b: a.key_by("id").window(sl.TumblingEventTimeWindows(5)).side_output_late_data(""),
            "side_output_late_data: the tag of a side output is a name, not ''",
        ),
        (
            lambda a, b: a.key_by("id").window(sl.TumblingEventTimeWindows(5)).side_output_late_data(5),
            "side_output_late_data: the tag of a side output is a name, not 5",
        ),
        (lambda a, b: a.enrich(pa.table({"x": [1]}), "id"), "the table has no column 'id': it has x"),
        (lambda a, b: a.enrich(pa.table({"id": ["1"]}), "id"), "column 'id' is int64 and the table's 'id' is string"),
        (
            lambda a, b: a.map_batches(len, schema=LISTS).enrich(pa.table({"id": [[1]]}), "id"),
            r"'enrich': column 'id': a value of type list<item: int64> cannot be \(part of\) a key",
        ),
        (lambda a, b: a.enrich({"id": [1]}, "id"), "a dict is no table: give one of pyarrow"),
        (lambda a, b: a.enrich(None, "id"), "a NoneType is no table: give one of pyarrow"),
        (lambda a, b: a.enrich(pa.table({"id": [1]}), 3), r"'enrich' needs at least one key column: .*, got 3"),
        (lambda a, b: a.enrich(pa.table({"id": [1]}), [3]), r"'enrich' needs at least one key column: .*, got \[3\]"),
        (
            lambda a, b: a.enrich(pa.table({"id": [1], "town": ["x"]}), {"id": "id", "at": "id"}),
            "on= compares the table's column 'id' with several of the stream",
        ),
        (
            lambda a, b: a.enrich(pa.table({"id": [1], "name": ["x"]}), "id"),
            "both the stream and the table have a column 'name'",
        ),
        (lambda a, b: a.async_wait(None, capacity=0), "capacity must be a whole number, at least 1, got 0"),
        (
            lambda a, b: a.map_batches(lambda x: x).key_by("id").join(b.key_by("id")).unbounded(),
            "the columns of the left stream are not known",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_once(build: Callable[[Any, Any], Any], message: str) -> None:
    """One line that names the columns and the way out."""
    with pytest.raises(sl.JobDefinitionError, match=message):
        build(*streams())


def test_a_stream_is_enriched_from_any_table_that_arrow_can_read() -> None:
    """Those of Polars and record batches, as `from_collection` reads them."""
    left, _ = streams()
    for towns in (pl.DataFrame({"id": [1], "town": ["x"]}), pa.record_batch({"id": [1], "town": ["x"]})):
        assert left.enrich(towns, "id").schema.names[-1] == "town"  # type: ignore[union-attr]


@pytest.mark.parametrize("physical", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_a_stream_is_enriched_by_texts_however_the_table_has_them(physical: pa.DataType) -> None:
    """As those of Polars, whose texts are views: keys are equal by value, and the schema is what comes out."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    shops = env.from_collection([{"shop": "a"}, {"shop": "b"}], uid="shops")
    towns = pa.table({"shop": pa.array(["a"], physical), "town": pa.array(["x"], physical)})
    enriched = shops.enrich(towns, "shop", uid="towns")
    rows = enriched.execute_and_collect(local=True).to_arrow()
    assert rows.schema == enriched.schema
    assert rows.to_pylist() == [{"shop": "a", "town": "x"}, {"shop": "b", "town": None}]


@pytest.mark.parametrize(
    "assigner", [sl.TumblingEventTimeWindows(5), sl.SlidingEventTimeWindows(10, 5), sl.EventTimeSessionWindows(5)]
)
def test_event_time_windows_need_event_time(assigner: Any) -> None:
    """With the calls that give it."""
    left, _ = streams(timed=False)
    with pytest.raises(sl.JobDefinitionError, match="windows need event time: call assign_timestamps_and_watermarks"):
        left.key_by("id").window(assigner)


def test_a_table_is_found_from_wherever_a_task_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is one of the program's directory, as those of sources are, and may be a Path; URLs stay."""
    monkeypatch.chdir(tmp_path)
    left, _ = streams()
    specs: list[Any] = [left.enrich(path, "id").node.spec for path in (Path("t.parquet"), "t.parquet", "s3://b/t")]
    assert [spec.load.path for spec in specs] == [str(tmp_path / "t.parquet")] * 2 + ["s3://b/t"]
