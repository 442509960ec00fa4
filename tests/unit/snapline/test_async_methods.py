"""A function or method that is `async def` where nothing awaits it is refused, before a row is lost by it."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import DiscardingSink
from snapline.testing import SimulationError, check_sink


def numbers() -> sl.DataStream:
    """Five rows."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    return env.from_collection([{"n": n} for n in range(5)], uid="numbers")


async def kept(row: Any) -> bool:
    """Is true when it is not awaited, as every object."""
    return row["n"] > 2


async def rows_of(row: Any) -> Any:
    """Never puts anything out."""
    yield row


class Called:
    """Is called as a function."""

    async def __call__(self, row: Any) -> Any:
        return row


@pytest.mark.parametrize("method", ["map", "flat_map", "filter_rows", "filter", "map_batches", "inspect"])
@pytest.mark.parametrize("function", [kept, rows_of, Called(), functools.partial(kept)])
def test_an_async_function_is_refused_where_rows_are_not_awaited(method: str, function: Any) -> None:
    """A filter kept every row, and what looked at rows never ran."""
    with pytest.raises(sl.JobDefinitionError, match=f"{method}.* is async, and nothing awaits it"):
        getattr(numbers(), method)(function, uid="odd")


class Opened(sl.KeyedProcessFunction):
    """Would not be opened."""

    async def open(self, context: Any) -> None: ...  # type: ignore[override]

    def process_element(self, row: Any, context: Any) -> Any:
        yield row


class Invoked(sl.SinkFunction):
    """Would not write."""

    async def invoke(self, value: Any) -> None: ...  # type: ignore[override]


class Kept:
    """Would not have its state in a snapshot."""

    def __call__(self, row: Any) -> Any:
        return row

    async def snapshot_state(self, context: Any) -> None: ...


class Closed(sl.AsyncFunction):
    """Only its requests are awaited."""

    async def async_invoke(self, row: Any) -> Any:
        return [row]

    async def close(self) -> None: ...  # type: ignore[override]


def test_async_methods_of_functions_are_refused() -> None:
    """They were called, and did nothing."""
    with pytest.raises(sl.JobDefinitionError, match=r"operator 'process': Opened.open is `async def`, and nothing"):
        numbers().key_by("n").process(Opened(), uid="odd")
    with pytest.raises(sl.JobDefinitionError, match=r"Invoked.invoke is `async def`"):
        numbers().add_sink(Invoked(), uid="odd")
    with pytest.raises(sl.JobDefinitionError, match=r"Kept.snapshot_state is `async def`"):
        numbers().map(Kept(), uid="odd")
    with pytest.raises(sl.JobDefinitionError, match=r"Closed.close is `async def`"):
        numbers().async_wait(Closed(), uid="odd")
    with pytest.raises(sl.InvalidArgument, match=r"retry_if_result of a retry strategy is a function, no `async def`"):
        sl.AsyncRetryStrategy.fixed_delay(2, 10, retry_if_result=kept)  # type: ignore[arg-type]


class Writer(sl.SinkWriter):
    """Keeps nothing."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def prepare_commit(self, checkpoint_id: int) -> list[sl.Committable]:
        return []


class AsyncWriter(Writer):
    """Would not write."""

    async def write(self, batch: pa.RecordBatch) -> None: ...  # type: ignore[override]


class AsyncCommitter(sl.Committer):
    """Would not commit."""

    async def commit(self, committables: Any) -> None: ...  # type: ignore[override]


class Odd(sl.Sink):
    """Has the parts that it is given."""

    def __init__(self, writer: Any, committer: Any = None) -> None:
        self.writer, self.committer = writer, committer

    def create_writer(self, context: Any, restored: Any) -> sl.SinkWriter:
        return self.writer()

    def create_committer(self, context: Any) -> sl.Committer | None:
        return self.committer and self.committer()


class AsyncValidation(DiscardingSink):
    """Would not look at its target."""

    async def validate(self) -> None: ...  # type: ignore[override]


@pytest.mark.filterwarnings("ignore:coroutine")
def test_async_methods_of_sinks_are_refused() -> None:
    """The job finished, and nothing was in the target."""
    for parts, method in (((AsyncWriter,), "AsyncWriter.write"), ((Writer, AsyncCommitter), "AsyncCommitter.commit")):
        stream = numbers()
        stream.sink_to(Odd(*parts), uid="odd")
        with pytest.raises(sl.JobFailed, match=f"uid 'odd'.*ConnectorError: {method} is `async def`"):
            stream.environment.execute("odd", local=True)
        with pytest.raises(SimulationError, match=f"{method} is `async def`"):
            check_sink(lambda parts=parts: Odd(*parts), list, runs=1)  # type: ignore[misc]
    with pytest.raises(sl.JobDefinitionError, match=r"AsyncValidation.validate is `async def`"):
        numbers().sink_to(AsyncValidation(), uid="odd")


class AsyncReader(sl.SourceReader):
    """Would never have a split."""

    async def add_splits(self, splits: Any) -> None: ...  # type: ignore[override]

    def poll_next(self, now_ms: int) -> sl.Polled:
        return sl.Polled(sl.InputStatus.END_OF_INPUT)

    def snapshot_splits(self, checkpoint_id: int) -> list[sl.SourceSplit]:
        return []


class OddSource(sl.Source):
    """Has one split."""

    def enumerate_splits(self) -> list[sl.SourceSplit]:
        return [sl.SourceSplit("all")]

    def create_reader(self, context: Any) -> sl.SourceReader:
        return AsyncReader()


def test_async_methods_of_readers_are_refused() -> None:
    """The job finished without a row."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    env.from_source(OddSource(), uid="odd").sink_to(DiscardingSink(), uid="sink")
    with pytest.raises(sl.JobFailed, match=r"AsyncReader.add_splits is `async def`"):
        env.execute("odd", local=True)


class Yielding(sl.SourceFunction):
    """Hands its rows to nobody."""

    def run(self, context: Any) -> Any:
        yield {"n": 1}

    def cancel(self) -> None: ...


class YieldingSink(sl.SinkFunction):
    """Would not write."""

    def invoke(self, value: Any) -> Any:
        yield value


def test_generators_are_refused_whose_rows_nobody_takes() -> None:
    """Whoever wrote a source as a generator had a job that finished without a row, and without a word."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(sl.JobDefinitionError, match=r"Yielding.run has a `yield`.*emits by context.collect\(row\)"):
        env.add_source(Yielding(), uid="odd")
    with pytest.raises(sl.JobDefinitionError, match=r"YieldingSink.invoke has a `yield`"):
        numbers().add_sink(YieldingSink(), uid="odd")
