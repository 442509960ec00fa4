"""Keyed streams in windows: what is computed of a window, and what happens to late rows.

Mirrors Flink's WindowedStream. Windows of event time need a stream that has it; windows of processing time and counts
do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import pyarrow as pa

from snapline.aggregates import AggregateToDo, with_computed
from snapline.dataflow.api.aggregate_types import WINDOW_TIME, has_order, is_compared, result_type, window_time_of
from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.functions import ProcessWindowFunction
from snapline.dataflow.api.triggers import EARLY_TRIGGERS, EarlyTrigger, PurgingTrigger
from snapline.dataflow.api.windows import (
    BY_CLOCK,
    GlobalWindows,
    PaneAssigner,
    PaneGeometry,
    RowsBy,
    SessionAssigner,
    TimeWindow,
    WindowAssigner,
)
from snapline.dataflow.arguments import check_milliseconds
from snapline.dataflow.columnar.arrow_columns import plain_type
from snapline.dataflow.columnar.column_types import kept_schema
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import WindowAggregateSpec, WindowProcessSpec
from snapline.keyed import KeyedStream, computing, key_fields_of, refuse_replaced
from snapline.stream import DataStream
from snapline.stream_results import check_called


def windowed(keyed: KeyedStream, assigner: WindowAssigner) -> WindowedStream:
    """KeyedStream.window. JobDefinitionError for what is no assigner, or without event time where it takes some."""
    known = (*get_args(PaneAssigner), *get_args(SessionAssigner), GlobalWindows)
    if not isinstance(assigner, known):
        raise JobDefinitionError(f"{assigner!r} is no window: one of {', '.join(kind.__name__ for kind in known)}")
    if not isinstance(assigner, (*BY_CLOCK, GlobalWindows)) and not keyed.stream.event_time_column:
        raise JobDefinitionError(
            "windows need event time: call assign_timestamps_and_watermarks(...), or give from_source a strategy; a "
            "map_batches whose schema lacks the event-time column drops it, and a key that is computed in its place"
        )
    return WindowedStream(keyed, assigner)


@dataclass(frozen=True)
class WindowedStream:
    """A keyed stream in windows (Flink: WindowedStream). What is computed of a window decides the result's columns.

    >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
    >>> minutes.aggregate(uid="minutes", n=sl.count()).event_time_column
    'window_end'
    """

    keyed: KeyedStream
    assigner: WindowAssigner
    allowed_lateness_ms: int = 0
    late_tag: str = ""
    early_trigger: EarlyTrigger | None = None

    def allowed_lateness(self, lateness_ms: int) -> WindowedStream:
        """Keep windows this many milliseconds after their end, and emit them again for late rows. Raises
        JobDefinitionError for less than 0.

        >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
        >>> _ = minutes.allowed_lateness(5_000).aggregate(uid="minutes", n=sl.count())
        """
        check_milliseconds("allowed lateness", lateness_ms, least=0)
        return replace(self, allowed_lateness_ms=lateness_ms)

    def side_output_late_data(self, tag: str) -> WindowedStream:
        """Send rows that come too late to the side output `tag` instead of dropping them. Raises JobDefinitionError for
        what is no name.

        >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000)).side_output_late_data("late")
        >>> late = minutes.aggregate(uid="minutes", n=sl.count()).get_side_output("late")
        """
        given: object = tag
        if not isinstance(given, str) or not given:
            raise JobDefinitionError(f"side_output_late_data: the tag of a side output is a name, not {tag!r}")
        return replace(self, late_tag=tag)

    def trigger(self, trigger: EarlyTrigger) -> WindowedStream:
        """Emit results also before the window is over: every so often, after so many rows, or when none come.

        The result at the end of the window comes all the same; with `PurgingTrigger` it has only what came since the
        one before. Raises JobDefinitionError for what is no trigger, for GlobalWindows, which are given theirs, and for
        sliding windows, which share their rows.

        >>> hours = orders.key_by("shop").window(sl.TumblingEventTimeWindows(3_600_000))
        >>> _ = hours.trigger(sl.ContinuousProcessingTimeTrigger(1_000)).aggregate(uid="hours", n=sl.count())
        """
        given: object = trigger
        if not isinstance(given, (*EARLY_TRIGGERS, PurgingTrigger)):
            known = ", ".join(kind.__name__ for kind in (*EARLY_TRIGGERS, PurgingTrigger))
            raise JobDefinitionError(f"{trigger!r} is no trigger: one of {known}")
        if isinstance(self.assigner, GlobalWindows):
            raise JobDefinitionError("GlobalWindows(trigger) has its trigger already: time windows take another one")
        if isinstance(self.assigner, get_args(PaneAssigner)):
            geometry = PaneGeometry.of(self.assigner)
            if geometry.slide_ms != geometry.size_ms:
                raise JobDefinitionError(
                    "sliding windows share their rows, and so take no trigger: take tumbling windows or sessions, or a shorter slide"
                )
        return replace(self, early_trigger=trigger)

    def aggregate(self, *, uid: str = "", name: str = "window", **aggregates: AggregateToDo) -> DataStream:
        """One row per key and window: key columns, window_start and window_end (not for count windows), and a column
        per keyword. Raises JobDefinitionError for a column that is not there or that cannot be aggregated so.

        >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
        >>> _ = minutes.aggregate(uid="minutes", orders=sl.count(), cents=sl.sum("cents"), dearest=sl.max("cents"))
        """
        beside = () if isinstance(self.assigner, GlobalWindows) else ("window_start", "window_end")
        if taken := [column for column in self.keyed.key_columns if column in beside]:
            raise JobDefinitionError(
                f"{name!r}: the result has a column {taken[0]!r} of its own windows, beside the key of that name: key by it "
                f"under another one, key_by(sl.col({taken[0]!r}).alias('of_{taken[0]}'))"
            )
        computed, plain = with_computed(aggregates)
        if computed:
            return replace(self, keyed=computing(self.keyed, computed, name)).aggregate(uid=uid, name=name, **plain)
        chosen = self.keyed.named_aggregates(plain, name, beside)
        stream = self.keyed.stream
        spec = WindowAggregateSpec(
            self.keyed.key_columns,
            stream.event_time_column,
            self.assigner,
            chosen,
            self.allowed_lateness_ms,
            self.late_tag,
            stream.schema,
            self.early_trigger,
        )
        schema = None
        if stream.schema is not None:
            keys = [field.with_type(plain_type(field.type)) for field in key_fields_of(self.keyed)]  # as state has them
            results = [pa.field(one.name, result_type(one, stream.schema)) for one in chosen]
            schema = pa.schema([*keys, *self._window_fields(), *results])
        added = stream.add_operator(name, spec, uid, schema=schema, stateful=True, key_columns=self.keyed.key_columns)
        return replace(added, event_time_column="" if isinstance(self.assigner, GlobalWindows) else "window_end")

    def _window_fields(self) -> list[pa.Field]:
        """The times of the windows in a result; the columns of the stream have to be known."""
        if isinstance(self.assigner, GlobalWindows):
            return []
        stream, kind = self.keyed.stream, WINDOW_TIME
        if stream.schema is not None and not isinstance(self.assigner, BY_CLOCK):
            kind = window_time_of(stream.schema.field(stream.event_time_column).type)
        return [pa.field(name, kind) for name in ("window_start", "window_end")]

    def _schema_of_rows(self) -> pa.Schema | None:
        """That of whole rows of a window with the window's times."""
        schema = self.keyed.stream.schema
        if schema is None:
            return None
        fields = kept_schema(schema)
        return pa.schema([*fields, *(field for field in self._window_fields() if field.name not in schema.names)])

    def process(
        self,
        function: ProcessWindowFunction,
        *,
        uid: str = "",
        name: str = "window",
        schema: pa.Schema | None = None,
        event_time_column: str = "",
    ) -> DataStream:
        """All rows of a key's window at once, as dictionaries, for a ProcessWindowFunction. `event_time_column`: which
        column of the result is event time.

        >>> class Spread(sl.ProcessWindowFunction):
        ...     def process(self, key, context, rows):
        ...         cents = [row["cents"] for row in rows]
        ...         yield {"shop": key, "spread": max(cents) - min(cents)}
        >>> _ = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000)).process(Spread(), uid="spread")
        """
        return self._process(function, "rows", uid, name, schema, event_time_column)

    def process_batches(
        self,
        function: Callable[[Any, TimeWindow, pa.RecordBatch], Any],
        *,
        uid: str = "",
        name: str = "window",
        schema: pa.Schema | None = None,
        event_time_column: str = "",
    ) -> DataStream:
        """All rows of a key's window in one batch: `function(key, window, batch) -> RecordBatch | iterable of them |
        None`.

        >>> def largest(shop, window, batch):
        ...     return batch.sort_by([("cents", "descending")]).slice(0, 3)
        >>> windows = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
        >>> _ = windows.process_batches(largest, uid="largest", schema=orders.schema)
        """
        return self._process(function, "batches", uid, name, schema, event_time_column)

    def reduce(self, function: Callable[[Row, Row], Row], *, uid: str = "", name: str = "window") -> DataStream:
        """Combine the rows of a window two by two, as they come; the result has their columns, window_start and
        window_end.

        >>> def dearer(one, other):
        ...     return one if one["cents"] >= other["cents"] else other
        >>> _ = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000)).reduce(dearer, uid="dearest")
        """
        return self._process(function, "reduce", uid, name, self._schema_of_rows(), "", declares=False)

    def max_by(self, column: str, *, ties: str = "first", uid: str = "", name: str = "window") -> DataStream:
        """The row of each key and window with the greatest value of `column`, with window_start and window_end beside
        its columns.

        Parameters: `column` holds numbers, booleans, times, decimals, texts or bytes (by their bytes); `ties` says
        which of rows with equal values stay: `"first"` or `"last"` (in the order of their arrival), or `"all"`. Rows
        whose value is null or NaN are left out. Windows hold nothing but the rows that may still be in the result. The
        event time of the result is `window_end`; rows that bring such a column keep theirs, and have no event time.
        Raises JobDefinitionError for a column that is not there or has no order. Mirrors Flink's
        `WindowedStream.maxBy(field, first)`.

        >>> _ = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000)).max_by("cents", uid="dearest")
        """
        return self._rows_by(RowsBy(column, largest=True, ties=ties), uid, name)

    def min_by(self, column: str, *, ties: str = "first", uid: str = "", name: str = "window") -> DataStream:
        """The row of each key and window with the least value of `column`; see `max_by`, which says all else.

        >>> _ = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000)).min_by("cents", ties="all", uid="cheapest")
        """
        return self._rows_by(RowsBy(column, largest=False, ties=ties), uid, name)

    def _rows_by(self, by: RowsBy, uid: str, name: str) -> DataStream:
        schema = self.keyed.stream.schema
        self.keyed.stream.check_columns([by.column], f"column of {name!r}")
        refuse_replaced(self.keyed, [by.column], name)
        kind = None if schema is None else schema.field(by.column).type
        if kind is not None and not has_order(kind) and not is_compared(kind):
            raise JobDefinitionError(
                f"column {by.column!r} is {kind}, which has no greatest value here; order by another column"
            )
        own_end = not isinstance(self.assigner, GlobalWindows) and not (schema and "window_end" in schema.names)
        time_column = "window_end" if own_end else ""  # rows with such a column keep theirs, which lies behind
        added = self._process(by, "rows_by", uid, name, self._schema_of_rows(), "", declares=False)
        return replace(added, event_time_column=time_column)

    def _process(
        self,
        function: Any,
        form: str,
        uid: str,
        name: str,
        schema: pa.Schema | None,
        event_time_column: str,
        *,
        declares: bool = True,
    ) -> DataStream:
        """`declares`: the schema is what the user says that the function gives."""
        if form == "rows" and not isinstance(function, type) and not hasattr(function, "process"):
            raise JobDefinitionError(f"operator {name!r}: {type(function).__name__} has no method 'process'")
        if form in ("batches", "reduce"):
            check_called(function, name)
        stream = self.keyed.stream
        spec = WindowProcessSpec(
            self.keyed.key_columns,
            stream.event_time_column,
            self.assigner,
            function,
            form,
            schema if declares else None,
            self.allowed_lateness_ms,
            self.late_tag,
            stream.schema,
            self.early_trigger,
        )
        added = stream.add_operator(name, spec, uid, schema=schema, stateful=True, key_columns=self.keyed.key_columns)
        if event_time_column:
            added.check_columns([event_time_column], f"event_time_column of {name!r}")
        return replace(added, event_time_column=event_time_column)
