"""What a stream can do with its rows in the program itself: print them, show the first ones, hand them out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snapline.collecting import CollectedRows


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

    def execute_and_collect(
        self,
        job_name: str = "collect",
        *,
        limit: int | None = None,
        local: bool | None = None,
        threads: int | None = None,
    ) -> CollectedRows:
        """Run what this stream is made of, and nothing else of its environment, and hand out its rows: an iterator of
        dictionaries, or `batches()`, `to_arrow()`, `to_polars()`, `to_pandas()`, `to_spark()`.

        `limit`: so many rows at most, after which the job is cancelled; a stream that never ends needs one. `local`,
        `threads`: as of `execute`. Raises JobDefinitionError, and JobFailed while rows are taken.

        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> list(env.from_collection([{"x": 1}, {"x": 2}]).execute_and_collect(local=True, limit=1))
        [{'x': 1}]
        """
        from snapline.collecting import collect
        from snapline.local.local_execution import is_local, threads_of

        stream: Any = self  # which is a DataStream
        return collect(stream, job_name, limit=limit, local=is_local(local), threads=threads_of(threads))

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

        with self.execute_and_collect("show", limit=rows + 1, local=local) as collected:
            table = collected.to_arrow()
        sys.stdout.write(as_text(table.slice(0, rows), more=table.num_rows > rows) + "\n")
