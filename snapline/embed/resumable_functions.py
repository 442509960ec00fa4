"""`resumable`: what a user gives to `mapInArrow`, `mapPartitions` and `foreachPartition`.

Decides which kinds of functions there are: a class with state, and a plain generator without any. It does not know when
checkpoints are taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from snapline.dataflow.arguments import check_milliseconds, check_whole
from snapline.dataflow.config import CHECKPOINTING_INTERVAL, CHECKPOINTS_DIRECTORY, Configuration, ConfigurationError
from snapline.embed.partition_log import PartitionLog, PartitionProgress, ResumableError, read_progress
from snapline.embed.partition_run import PartitionRun, RunSettings, outputs_of
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.storage_port import Storage

DEFAULT_INTERVAL_MS = 10_000


class ResumableFunction(ABC):
    """A function with state over the batches or rows of a partition, for `resumable`.

    >>> class Numbered(sl.ResumableFunction):
    ...     seen = 0
    ...     def process(self, batch):
    ...         numbers = pa.array(range(self.seen, self.seen + batch.num_rows))
    ...         self.seen += batch.num_rows
    ...         return batch.append_column("number", numbers)
    ...     def snapshot(self):
    ...         return self.seen
    ...     def restore(self, state):
    ...         self.seen = state
    >>> numbered = sl.resumable(Numbered(), uid="numbered", directory=f"{tmp}/progress")
    >>> [batch.to_pydict() for batch in numbered(iter([pa.RecordBatch.from_pydict({"x": [5, 6]})]))]
    [{'x': [5, 6], 'number': [0, 1]}]
    """

    @abstractmethod
    def process(self, item: Any) -> Any:
        """A batch in `mapInArrow`, a row elsewhere; returns a batch, an iterable of batches or rows, or None."""

    @abstractmethod
    def snapshot(self) -> Any:
        """The state after all that was processed: numbers, strings, lists and dictionaries."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Take over what `snapshot` returned; called before the first `process` when a partition goes on."""


class Resumable:
    """What `resumable` returns: a function over the rows of a partition, with a look at its progress.

    >>> same = sl.resumable(lambda rows: (row for row in rows), uid="same", directory=f"{tmp}/same")
    >>> list(same(iter([1, 2]))), same.progress()[0].rows_out
    ([1, 2], 2)
    >>> same.clear()
    """

    def __init__(
        self,
        function: ResumableFunction | Callable[[Iterator[Any]], Iterable[Any]],
        directory: str,
        settings: Mapping[str, str],
        run_settings: RunSettings,
    ) -> None:
        """The constructor is called by `resumable` alone."""
        self._function = function
        self.directory = directory
        self._settings = dict(settings)
        self._run_settings = run_settings
        self.__name__ = run_settings.uid

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        """In a task of Spark: go on with its partition."""
        partition, attempt = _place()
        function = self._function
        log = PartitionLog(self._storage(), self._run_settings.uid, partition)
        is_class = isinstance(function, ResumableFunction)
        snapshot = function.snapshot if isinstance(function, ResumableFunction) else lambda: None
        run = PartitionRun(log, self._run_settings, iter(rows), attempt, snapshot)
        yield from run.skip()
        found = run.checkpoint
        if found is not None and found.progress.is_finished:
            return
        if isinstance(function, ResumableFunction):
            self._restore(function, partition, found)
        outputs = _each(function, run.feed()) if is_class else function(run.feed())  # type: ignore[operator]
        for output in outputs_of(outputs):
            run.keep(output)
            yield output
        run.finish()

    def progress(self) -> list[PartitionProgress]:
        """How far each partition is that has taken a checkpoint, while the action runs and after it."""
        return read_progress(self._storage())

    def clear(self) -> None:
        """Forget all progress: when the action is over, or to start from the beginning."""
        self._storage().delete_prefix("")

    def _storage(self) -> Storage:
        return open_storage(self.directory, Configuration(self._settings))

    def _restore(self, function: ResumableFunction, partition: int, found: Any) -> None:
        if found is None:
            return
        try:
            function.restore(found.state)
        except Exception as error:
            raise ResumableError(
                f"{self._run_settings.uid}: partition {partition}: restore() cannot take the state of its checkpoint: "
                f"{type(error).__name__}: {error}; clear() the progress, or let restore() read what snapshot() returned"
            ) from error


def _each(function: Any, items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        yield from outputs_of(function.process(item))


def _place() -> tuple[int, int]:
    """Number of the partition, and of the attempt; the first of both outside of Spark."""
    try:
        from pyspark import TaskContext
    except ImportError:
        return 0, 0
    context = TaskContext.get()
    return (0, 0) if context is None else (context.partitionId(), context.attemptNumber())


def resumable(
    function: ResumableFunction | Callable[[Iterator[Any]], Iterable[Any]],
    *,
    uid: str,
    directory: str | None = None,
    interval_ms: int | None = None,
    rows_per_partition: int | Sequence[int] | None = None,
    conf: Mapping[str, str] | None = None,
) -> Resumable:
    """Let a function over partitions go on where it was: after a lost executor, and in a driver that was started again
    with the same `uid`. `function`: a ResumableFunction, or a generator over the batches or rows of a partition that
    keeps nothing between two of them. Output so far, state and position are written below `directory` every
    `interval_ms` (without them: as the settings of checkpoints say, else every 10 s; 0: after each piece of input).
    `rows_per_partition` is for the remaining time in `progress()`. Raises ConfigurationError without a directory, and
    InvalidArgument for a number that is none.

    >>> def doubled(batches):
    ...     for batch in batches:
    ...         yield pa.RecordBatch.from_pydict({"y": pc.multiply(batch["x"], 2)})
    >>> scored = sl.resumable(doubled, uid="doubled", directory=f"{tmp}/doubled", rows_per_partition=2)
    >>> [batch["y"].to_pylist() for batch in scored(iter([pa.RecordBatch.from_pydict({"x": [5, 6]})]))]
    [[10, 12]]
    >>> [(each.rows, each.is_finished) for each in scored.progress()]
    [(2, True)]
    >>> frame.mapInArrow(scored, "y long").write.parquet("scores")  # doctest: +SKIP
    """
    from snapline.environment import StreamExecutionEnvironment, absolute_path

    if isinstance(function, type):
        raise ConfigurationError(f"resumable({function.__name__}): it is a class: hand over {function.__name__}(...)")
    if not callable(function) and not isinstance(function, ResumableFunction):
        raise ConfigurationError(f"resumable({function!r}): give a ResumableFunction or a generator function")
    if not isinstance(uid, str) or not uid or "/" in uid:
        raise ConfigurationError(
            f"resumable(uid={uid!r}): give a name without slashes, by which the progress is found again"
        )
    if interval_ms is not None:
        check_milliseconds(f"resumable({uid!r}): interval_ms", interval_ms, least=0)
    given: Any = rows_per_partition
    expected = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else given
    for each in expected if isinstance(expected, tuple) else () if expected is None else (expected,):
        check_whole(f"resumable({uid!r}): rows_per_partition", each, 0)
    configuration = StreamExecutionEnvironment.get_execution_environment(conf).configuration
    base = absolute_path(directory) if directory else configuration.get_option(CHECKPOINTS_DIRECTORY)
    if not base:
        raise ConfigurationError(
            f"resumable({uid!r}): give directory=..., or set {CHECKPOINTS_DIRECTORY.key}: a path or URL that executors reach"
        )
    chosen = (
        (configuration.get_option(CHECKPOINTING_INTERVAL) or DEFAULT_INTERVAL_MS)
        if interval_ms is None
        else interval_ms
    )
    settings = {key: value for key, value in configuration.items() if key.startswith("s3.")}
    return Resumable(
        function,
        f"{base.rstrip('/')}/resumable-{uid}",
        settings,
        RunSettings(
            uid,
            chosen / 1000,
            expected,
        ),
    )
