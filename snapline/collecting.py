"""`stream.execute_and_collect()` and `stream.show()`: the rows of a stream as values of the program.

Runs what the stream is made of and nothing else of its environment, which stays as it is. In a local run batches are
handed over as they come, on the caller's thread: who takes no rows makes the job wait. Elsewhere they come through
Parquet files, in a directory that the executors and this program reach, as their checkpoints complete
(`docs/decisions/0085`). Mirrors Flink's CollectResultIterator.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import differ_in_offsets_only
from snapline.dataflow.columnar.python_values import shown_values
from snapline.dataflow.config import (
    CHECKPOINTING_INTERVAL,
    CHECKPOINTS_DIRECTORY,
    COORDINATOR_ADDRESS,
    HA_TYPE,
    RESTART_STRATEGY,
)
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import SourceFunctionSpec, SourceSpec
from snapline.dataflow.graph.stream_graph import StreamGraph
from snapline.dataflow.graph.translation import uids_of
from snapline.job_handle import JobHandle
from snapline.runtime.settings import Setting

if TYPE_CHECKING:
    from snapline.environment import StreamExecutionEnvironment
    from snapline.local.local_job import LocalJob
    from snapline.stream import DataStream

COLLECT_UID = "collect"
LOOK_SECONDS = 0.2
COLLECT_INTERVAL = "1 s"
"""Between checkpoints of a job elsewhere that never ends, where nobody has said it."""


class CollectedRows:
    """The rows of a stream: an iterator of dictionaries, once; or all that are left as a table. The job is cancelled by
    `close`, at the end of a `with` block, and once `limit` rows have come.

    >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
    >>> env.from_collection([{"x": 1}, {"x": 2}]).execute_and_collect(local=True).to_arrow().to_pydict()
    {'x': [1, 2]}
    """

    def __init__(
        self, batches: Iterator[pa.RecordBatch], end: Callable[[], None], schema: pa.Schema | None, limit: int | None
    ) -> None:
        """The constructor is called by `execute_and_collect` alone. `end`: ends the job, at once or again."""
        self._end = end
        self._batches = _limited(batches, end, limit)
        self._schema = schema
        self._begun: pa.RecordBatch | None = None
        self._rows: list[dict[str, Any]] | None = None
        """Those of the batch that was begun, as soon as one of them was asked for."""
        self._taken = 0
        """How many of them were taken."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return the rows themselves, which are their own iterator."""
        return self

    def __next__(self) -> dict[str, Any]:
        """The next row. Raises JobFailed when the job has failed."""
        from snapline.taskmanager.operators.base.rows import rows_of

        while self._begun is None or self._taken == self._begun.num_rows:
            self._begun, self._rows, self._taken = next(self._batches), None, 0
        if self._rows is None:
            self._rows = rows_of(self._begun)
        self._taken += 1
        return self._rows[self._taken - 1]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What has not been taken as rows, batch by batch."""
        begun, self._begun = self._begun, None
        rest = [] if begun is None or self._taken == begun.num_rows else [begun.slice(self._taken)]
        return itertools.chain(rest, self._batches)

    def to_arrow(self) -> pa.Table:
        """All that is left as a table."""
        batches = list(self.batches())
        if not batches:
            return pa.table({}) if self._schema is None else self._schema.empty_table()
        schema = _types_of([batch.schema for batch in batches])
        return pa.Table.from_batches([_in_types_of(schema, batch) for batch in batches], schema)

    def to_polars(self) -> Any:
        """All that is left as a polars.DataFrame."""
        from importlib import import_module

        return import_module("polars").from_arrow(self.to_arrow())

    def to_pandas(self) -> Any:
        """All that is left as a pandas.DataFrame."""
        return self.to_arrow().to_pandas()

    def to_spark(self, session: Any = None) -> Any:
        """All that is left as a DataFrame of this Spark session, or of the active one."""
        from pyspark.sql import SparkSession

        from snapline.spark.frame_types import with_numbers_of_spark

        session = session or SparkSession.builder.getOrCreate()
        return session.createDataFrame(with_numbers_of_spark(self.to_arrow()))

    def close(self) -> None:
        """Take no more: cancel the job, if it still runs."""
        self._begun = None
        self._batches.close()
        self._end()  # of which a generator that has given nothing yet knows nothing

    def __enter__(self) -> CollectedRows:
        """Return the rows themselves, which are their own iterator."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the rows, and with them the job, at the end of the block."""
        self.close()


def collect(stream: DataStream, job_name: str, *, limit: int | None, local: bool, threads: int) -> CollectedRows:
    """Run the stream and hand out its rows. Raises JobDefinitionError for one that never ends, without a limit."""
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise JobDefinitionError(f"limit must be a whole number, at least 0, or None for all rows, got {limit!r}")
    environment, end = alone(stream)
    if limit is None:
        refuse_unbounded(environment.graph, "collected without a limit: give limit=...")
    elif not local and _endless_source(environment.graph):
        _have_checkpoints(environment)
    batches, close = _locally(environment, end, job_name, threads) if local else _from_files(environment, end, job_name)
    return CollectedRows(batches, close, stream.schema, limit)


def alone(stream: DataStream) -> tuple[StreamExecutionEnvironment, DataStream]:
    """The stream in an environment of its own, without what it does not need. It starts from the same snapshot, which
    stays, and leaves the state of what it does not need behind."""
    environment, places = part_of(stream.environment, (edge.source for edge in stream.edges))
    restore, is_part = environment.savepoint_restore, len(places) < len(stream.environment.graph.nodes)
    environment.savepoint_restore = replace(
        restore, claim=False, allow_non_restored_state=restore.allow_non_restored_state or is_part
    )
    edges = tuple(replace(edge, source=places[edge.source]) for edge in stream.edges)
    return environment, replace(stream, environment=environment, edges=edges)


def part_of(
    whole: StreamExecutionEnvironment, numbers: Iterable[int]
) -> tuple[StreamExecutionEnvironment, dict[int, int]]:
    """An environment with these operators and what they read, under the uids that they have in the whole one; and
    where each operator lies in it."""
    nodes = whole.graph.nodes
    needed: set[int] = set()
    waiting = list(numbers)
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting += [edge.source for edge in nodes[number].inputs]
    places = {number: place for place, number in enumerate(sorted(needed))}
    uids = uids_of(whole.graph)
    graph = StreamGraph(
        [
            replace(
                nodes[number],
                node_id=place,
                uid=nodes[number].uid,
                inputs=tuple(replace(edge, source=places[edge.source]) for edge in nodes[number].inputs),
            )
            for number, place in places.items()
        ],
        {place: uids[number] for number, place in places.items()},
    )
    environment = type(whole)(whole.explicit, whole.weaker)
    environment.graph, environment.python_modules = graph, whole.python_modules
    environment.savepoint_restore, environment.goes_on = whole.savepoint_restore, whole.goes_on
    environment.job_files = whole.job_files
    sources = [node.spec.source for node in graph.nodes if isinstance(node.spec, SourceSpec)]
    environment.streamed_frames = [each for each in whole.streamed_frames if each.source in sources]
    return environment, places


def refuse_unbounded(graph: StreamGraph, for_what: str) -> None:
    """Raise JobDefinitionError that names a source which has no end; `for_what`: what needs one, and the way out."""
    if source := _endless_source(graph):
        raise JobDefinitionError(f"{source}, so its rows cannot be {for_what}")


def _endless_source(graph: StreamGraph) -> str:
    """The first source that has no end, and why it has none; empty where all have one."""
    for node in graph.nodes:
        endless = isinstance(node.spec, SourceSpec) and not node.spec.source.bounded
        if endless or isinstance(node.spec, SourceFunctionSpec):
            why = "never ends" if endless else "is a function that may never end"
            return f"source {node.uid or node.name!r} {why}"
    return ""


def _have_checkpoints(environment: StreamExecutionEnvironment) -> None:
    """Files appear with checkpoints, and a job that never ends would show none without. A failure ends it all the same,
    as one without checkpoints."""
    if not environment.configuration.get_option(CHECKPOINTING_INTERVAL):
        environment.weaker[CHECKPOINTING_INTERVAL.key] = Setting(COLLECT_INTERVAL, "execute_and_collect")
        environment.weaker.setdefault(RESTART_STRATEGY.key, Setting("none", "execute_and_collect"))


def _types_of(schemas: list[pa.Schema]) -> pa.Schema:
    """The first one; a column that has only nulls there has the type of the first batch that has others."""
    schema = schemas[0]
    for other in schemas:
        if pa.null() in schema.types and other.names == schema.names:
            schema = _with_types_for_nulls(schema, other)
    return schema


def _with_types_for_nulls(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    pairs = zip(schema, other, strict=True)
    return pa.schema([there if pa.types.is_null(here.type) else here for here, there in pairs], schema.metadata)


def _in_types_of(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with texts as the first one had them. Raises JobDefinitionError for other columns."""
    if batch.schema.equals(schema):
        return batch
    if pa.null() in batch.schema.types and batch.schema.names == schema.names:
        batch = batch.cast(_with_types_for_nulls(batch.schema, schema))
    if not differ_in_offsets_only(batch.schema, schema):
        raise JobDefinitionError(
            f"rows of this stream have different columns, which make no table: {_describe(schema)} and {_describe(batch.schema)}; "
            "take them as rows or by batches(), or give the operators before a union the same schema="
        )
    return batch.cast(schema)


def _describe(schema: pa.Schema) -> str:
    """Names and types in one line."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _limited(batches: Iterator[pa.RecordBatch], end: Callable[[], None], limit: int | None) -> Any:
    left = limit
    try:
        if left == 0:
            return
        for batch in batches:
            if left is None:
                yield batch
                continue
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                return
    finally:
        end()


# --- in this process --------------------------------------------------------------------------------------------------


def _locally(
    environment: StreamExecutionEnvironment, end: DataStream, job_name: str, threads: int
) -> tuple[Iterator[pa.RecordBatch], Callable[[], None]]:
    from snapline.execution import queries_of
    from snapline.local.collect_sink import ProcessCollectSink, close_collected, open_collected
    from snapline.local.local_execution import open_local_job, result_of_local, teller_of
    from snapline.rows_read import RowsRead

    number, collected = open_collected()
    has_checkpoints = bool(environment.configuration.get_option(CHECKPOINTING_INTERVAL))
    end.sink_to(ProcessCollectSink(number, has_checkpoints=has_checkpoints), uid=COLLECT_UID)
    job: LocalJob = open_local_job(environment, job_name, threads)
    read = RowsRead()
    note = teller_of(read)

    def batches() -> Generator[pa.RecordBatch]:
        try:
            with job, queries_of(environment, job.job_graph.job_id):
                try:
                    while not job.has_ended:
                        collected.is_asked.set()
                        job.run(until=lambda: bool(collected.batches), on_change=note)
                        collected.is_asked.clear()
                        while collected.batches:
                            yield collected.batches.popleft()
                finally:
                    collected.is_asked.set()
                result_of_local(job, read)
        finally:
            close_collected(number)

    rows = batches()

    def end_job() -> None:
        rows.close()
        job.close()
        close_collected(number)

    return rows, end_job


# --- on Spark and at a service ----------------------------------------------------------------------------------------


def _from_files(
    environment: StreamExecutionEnvironment, end: DataStream, job_name: str
) -> tuple[Iterator[pa.RecordBatch], Callable[[], None]]:
    import shutil
    import tempfile

    from snapline.connectors.parquet import ParquetSink

    with _shared_place(environment, job_name) as (base, is_here):
        if "://" in base or not (base or is_here):
            raise JobDefinitionError(
                f"collecting from a cluster goes through files: set {CHECKPOINTS_DIRECTORY.key} to a directory that executors and this "
                "program have in common, or write to a sink and read that"
            )
        directory = Path(base or tempfile.mkdtemp(prefix="snapline-collect-")) / f"collect-{uuid.uuid4().hex}"

        def remove() -> None:
            shutil.rmtree(directory, ignore_errors=True)
            if not base:
                with suppress(OSError):
                    directory.parent.rmdir()

        environment.goes_on = False  # the rows of another job lie elsewhere
        if environment.configuration.get_option(HA_TYPE) != "zookeeper":  # nobody goes on with rows that are collected
            environment.configure(HA_TYPE.key, "NONE")
        try:
            end.sink_to(ParquetSink(directory, schema=end.schema), uid=COLLECT_UID)
            job = environment.execute_async(job_name, local=False)
        except BaseException:
            remove()
            raise

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from _as_they_come(job, directory)
            job.wait()
        finally:
            end_job()

    def end_job() -> None:
        job.cancel()
        remove()

    return batches(), end_job


@contextmanager
def _shared_place(environment: StreamExecutionEnvironment, job_name: str) -> Iterator[tuple[str, bool]]:
    """The directory of checkpoints, empty where none is set, and whether all of the job runs on this machine. Within,
    the session of Spark is open that says so, where one had to be asked."""
    from snapline.execution import translates_only
    from snapline.session import open_spark, stop_spark
    from snapline.spark.spark_hosts import LOOPBACK_MASTERS

    configuration = environment.configuration
    base = configuration.get_option(CHECKPOINTS_DIRECTORY)
    is_service = COORDINATOR_ADDRESS.key in configuration or configuration.get_option(HA_TYPE) == "zookeeper"
    if base or is_service or translates_only():
        yield base, not is_service
        return
    spark = open_spark(job_name, for_cluster=True)
    try:
        base = environment.configuration_with(spark.settings).get_option(CHECKPOINTS_DIRECTORY)
        yield base, spark.host.master.startswith(LOOPBACK_MASTERS)
    finally:
        if spark.ours:
            stop_spark(spark)


def _as_they_come(job: JobHandle, directory: Path) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    read: set[Path] = set()
    while True:
        has_ended = job.has_ended
        for file in sorted(set(directory.glob("*.parquet")) - read):
            read.add(file)
            yield from (batch for batch in pq.ParquetFile(file).iter_batches() if batch.num_rows)
        if has_ended:
            return
        time.sleep(LOOK_SECONDS)


# --- for people -------------------------------------------------------------------------------------------------------

WIDEST = 32
"""The most characters that a cell of a printed table has."""


def as_text(table: pa.Table, *, more: bool) -> str:
    """A table with a header and, at the end, whether there are more rows."""
    values = (itertools.chain.from_iterable(map(shown_values, column.chunks)) for column in table.columns)
    columns = [[name, *map(_cell, each)] for name, each in zip(table.column_names, values, strict=True)]
    kinds = [str(field.type) for field in table.schema]
    for column, kind in zip(columns, kinds, strict=True):
        column.insert(1, kind)
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]
    return "\n".join([*lines, "..." if more else f"{table.num_rows} rows"])


def _cell(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."
