"""What a stream can do with its rows in the program itself: print them, show the first ones, hand them out."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from snapline.dataflow.api.async_methods import is_async
from snapline.dataflow.api.function_contexts import RuntimeContext
from snapline.dataflow.api.functions import CheckpointedFunction, Function
from snapline.dataflow.arguments import check_whole
from snapline.dataflow.errors import JobDefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from snapline.collecting import CollectedRows
    from snapline.stream import DataStream


def check_called(function: object, name: str) -> None:
    """Raise JobDefinitionError for what an operator of this name cannot call as it is."""
    if not callable(function):
        raise JobDefinitionError(f"operator {name!r}: {function!r} is no function: it cannot be called")
    if isinstance(function, type) and any("__call__" in vars(one) for one in function.__mro__):
        kind = function.__name__
        raise JobDefinitionError(f"operator {name!r}: {kind} is a class of functions: hand over {kind}(...)")
    if is_async(function):
        raise JobDefinitionError(
            f"operator {name!r}: {function!r} is async, and nothing awaits it: hand over a plain function; "
            "async_wait takes an AsyncFunction"
        )


def refuse_state(function: object, name: str, instead: str) -> None:
    """Raise JobDefinitionError for a function with state of its own, which nobody would ask for it here."""
    if isinstance(function, CheckpointedFunction):
        raise JobDefinitionError(
            f"{name}: snapshot_state of {type(function).__name__} is not called here, so that its state would be lost: {instead}"
        )


class Inspection(Function):
    """Shows rows to a function, and passes them on."""

    def __init__(self, function: Callable[[dict[str, Any]], object]) -> None:
        self._function = function

    def open(self, context: RuntimeContext) -> None:
        opener = getattr(self._function, "open", None)
        if callable(opener):
            opener(context)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Show each row of the batch."""
        from snapline.taskmanager.operators.base.rows import rows_of  # which a program that only builds does not need

        for row in rows_of(batch):
            self._function(row)
        return batch

    def close(self) -> None:
        closer = getattr(self._function, "close", None)
        if callable(closer):
            closer()


class StreamResults:
    """The part of DataStream that is about results."""

    def print(self, prefix: str = "") -> None:
        """Print every row on the standard output of the process that runs the task, after the prefix, if there is one,
        and the number of the subtask, if there are several.

        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> env.from_collection([{"x": 1}]).print()
        >>> _ = env.execute("print", local=True)
        {'x': 1}
        """
        from snapline.connectors.builtin.sinks import PrintSink

        stream: Any = self  # which is a DataStream
        stream.sink_to(PrintSink(prefix), name="print")

    def inspect(
        self, function: Callable[[dict[str, Any]], object] = builtins.print, *, uid: str = "", name: str = "inspect"
    ) -> DataStream:
        """Hand every row to a function that looks at it, and pass it on as it is; `print` shows it on the standard
        output of the process that runs the task.

        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> rows = env.from_collection([{"x": 1}, {"x": 2}])
        >>> rows.inspect().filter(sl.col("x") > 1).inspect(lambda row: print("kept", row)).sink_to(sl_connectors.DiscardingSink())
        DataStreamSink(...)
        >>> _ = env.execute("inspects", local=True)
        {'x': 1}
        {'x': 2}
        kept {'x': 2}
        """
        stream: Any = self  # which is a DataStream
        if not callable(function):
            raise JobDefinitionError(f"{name}: {function!r} cannot be called with a row")
        check_called(function, name)
        refuse_state(function, f"operator {name!r}", "hand it to map(...), and give the row back")
        inspected: DataStream = stream.map_batches(Inspection(function), uid=uid, name=name, schema=stream.schema)
        return inspected

    def execute_and_collect(
        self,
        job_name: str = "collect",
        *,
        limit: int | None = None,
        local: bool | None = None,
        threads: int | None = None,
    ) -> CollectedRows:
        """Run what this stream is made of, and nothing else of its environment, and hand out its rows: an iterator of
        dictionaries, or `batches()`, `to_arrow()`, `to_polars()`, `to_pandas()`, `to_spark()`. It starts from the
        snapshot that `env.restore_from` named, which stays as it is.

        `limit`: so many rows at most, after which the job is cancelled; a stream that never ends needs one. `local`,
        `threads`: as of `execute`. Raises JobDefinitionError, and JobFailed while rows are taken.

        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> list(env.from_collection([{"x": 1}, {"x": 2}]).execute_and_collect(local=True, limit=1))
        [{'x': 1}]
        """
        from snapline.collecting import collect
        from snapline.local.local_execution import is_local, threads_of

        stream: Any = self  # which is a DataStream
        return collect(stream, job_name, limit=limit, local=is_local(local, threads), threads=threads_of(threads))

    def to_dataframe(
        self, spark: Any, job_name: str = "to_dataframe", *, local: bool | None = None, threads: int | None = None
    ) -> DataFrame:
        """Run what this stream is made of, and nothing else of its environment, and return its rows as a DataFrame of
        this session, once the job has finished. They lie below the directory of checkpoints until the program ends.
        Raises JobDefinitionError for a stream that never ends and for a type that Spark has not, and JobFailed.

        >>> totals = orders.key_by("shop").running_aggregate(uid="sums", cents=sl.sum("cents"))
        >>> totals.to_dataframe(spark).groupBy("shop").max("cents").show()  # doctest: +SKIP
        """
        from snapline.local.local_execution import is_local, threads_of
        from snapline.spark.dataframes import to_dataframe

        stream: Any = self  # which is a DataStream
        return to_dataframe(stream, spark, job_name, local=is_local(local, threads), threads=threads_of(threads))

    def show(self, rows: int = 10, *, local: bool | None = None) -> None:
        """Run the stream until it has so many rows, and print them as a table with the types of its columns.

        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> env.from_collection([{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]).show(local=True)
        x      y
        int64  string
        1      a
        2      b
        2 rows
        """
        from snapline.collecting import as_text

        check_whole("show: the number of rows", rows, 0)
        with self.execute_and_collect("show", limit=rows + 1, local=local) as collected:
            table = collected.to_arrow()
        shown = table.slice(0, rows) if table.num_rows > rows else table  # one without columns has as many as asked for
        sys.stdout.write(as_text(shown, more=table.num_rows > rows) + "\n")
