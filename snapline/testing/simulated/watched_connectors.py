"""A source or sink under test, which runs for real while each of its calls is a step that the simulator may break.

Each reader, enumerator, writer and committer lives in a simulated process and is forgotten with it, as memory is when a
process is killed: nothing of it is closed. A source is asked with pauses, so that checkpoints and faults come between
its rows. Checks what a contract asks of every connector and no output would show: that a look for splits leaves the
state alone that it was given, and that positions and committables are JSON-like.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from snapline.dataflow.api.async_methods import refuse_async_methods
from snapline.dataflow.api.connector_answers import answer, answers
from snapline.dataflow.api.connector_api import (
    Committable,
    Committer,
    Discovery,
    GlobalCommittable,
    GlobalCommitter,
    InputStatus,
    Polled,
    Sink,
    SinkWriter,
    Source,
    SourceContextInfo,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
)
from snapline.dataflow.errors import SnaplineError
from snapline.testing.simulated.run_state import current_run
from snapline.testing.simulated.step_faults import AFTER, BEFORE

T = TypeVar("T")


class ContractError(SnaplineError):
    """A connector does what its contract forbids, whatever its output is."""


def step(name: str, work: Callable[[], T]) -> T:
    """Make one call of a connector, at which the simulator may fail it or kill the process."""
    run = current_run()
    run.at_step(name, BEFORE)
    result = work()
    run.at_step(name, AFTER)
    return result


class _InProcess:
    """What all of them have: the object under test, as long as its process lives and has not closed it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._process = current_run().process()
        self._process.workers[self] = None

    def abandon(self) -> None:
        """Forget the object, because its process is gone."""
        self._process.workers.pop(self, None)
        self.inner = None
        current_run().process_is_gone()

    def close(self) -> None:
        """Close the object, as the task does."""
        self._process.workers.pop(self, None)
        inner, self.inner = self.inner, None
        if inner is not None:
            inner.close()


class WatchedSource(Source):
    """Takes the place of a source under test."""

    def __init__(self, source: Source, real_pause_seconds: float) -> None:
        self.source = source
        self._real_pause_seconds = real_pause_seconds

    @property
    def bounded(self) -> bool:
        return self.source.bounded

    @property
    def sets_bad_rows_aside(self) -> bool:
        return self.source.sets_bad_rows_aside

    @property
    def splits_at_once(self) -> int | None:
        return self.source.splits_at_once

    def schema(self) -> pa.Schema | None:
        return self.source.schema()

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        return self.source.enumerate_splits()

    def create_enumerator(self, splits: Sequence[SourceSplit]) -> SplitEnumerator | None:
        enumerator = self.source.create_enumerator(splits)
        return None if enumerator is None else WatchedEnumerator(enumerator)

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        reader = step("create_reader", lambda: refuse_async_methods(self.source.create_reader(context)))
        return WatchedReader(reader, self._real_pause_seconds)


class WatchedEnumerator(SplitEnumerator):
    """Discovers splits, in a function that the simulator may break."""

    def __init__(self, enumerator: SplitEnumerator) -> None:
        self._enumerator = enumerator

    def discover(self, state: dict[str, Any]) -> Discovery:
        before = json.dumps(state, sort_keys=True)
        found = step(
            "discover", lambda: answer(self._enumerator.discover(state), Discovery, self._enumerator, "discover")
        )
        if json.dumps(state, sort_keys=True) != before:
            raise ContractError("discover has changed the state that it was given: return the next one in Discovery")
        _require_json("the state of a Discovery", found.state)
        return found

    def close(self) -> None:
        self._enumerator.close()


class WatchedReader(_InProcess, SourceReader):
    """Reads as the reader under test does, with pauses."""

    def __init__(self, reader: SourceReader, real_pause_seconds: float) -> None:
        super().__init__(reader)
        self._real_pause_seconds = real_pause_seconds
        self._resume_at_ms: int | None = None

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        step("add_splits", lambda: self.inner.add_splits(splits))

    def poll_next(self, now_ms: int) -> Polled:
        if self._resume_at_ms is not None and now_ms < self._resume_at_ms:
            return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=self._resume_at_ms)
        self._resume_at_ms = None
        polled = step("poll_next", lambda: answer(self.inner.poll_next(now_ms), Polled, self.inner, "poll_next"))
        run = current_run()
        if polled.batch is not None and polled.status is not InputStatus.END_OF_INPUT:
            self._resume_at_ms = now_ms + run.rng.randint(0, run.pause_ms)
        elif polled.batch is None and polled.status is InputStatus.NOTHING_AVAILABLE and self._real_pause_seconds:
            time.sleep(self._real_pause_seconds)
        return polled

    def pause_splits(self, split_ids: Sequence[str]) -> None:
        self.inner.pause_splits(split_ids)

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        splits: Sequence[SourceSplit] = step(
            "snapshot_splits",
            lambda: answers(self.inner.snapshot_splits(checkpoint_id), SourceSplit, self.inner, "snapshot_splits"),
        )
        for split in splits:
            _require_json(f"the position of split {split.split_id!r}", split.position)
            _require_json(f"the description of split {split.split_id!r}", split.description)
        return splits

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        step("notify_checkpoint_complete", lambda: self.inner.notify_checkpoint_complete(checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        step("notify_checkpoint_aborted", lambda: self.inner.notify_checkpoint_aborted(checkpoint_id))


class WatchedSink(Sink):
    """Takes the place of a sink under test."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    @property
    def two_phase(self) -> bool:
        return self.sink.two_phase

    @property
    def commits_together(self) -> bool:
        return self.sink.commits_together

    def validate(self) -> None:
        self.sink.validate()

    def before_writing(self, stream: Any) -> Any:
        return self.sink.before_writing(stream)

    def before_committing(self, committables: Any) -> Any:
        return self.sink.before_committing(committables)

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        return WatchedWriter(
            step("create_writer", lambda: refuse_async_methods(self.sink.create_writer(context, restored)))
        )

    def create_committer(self, context: SourceContextInfo) -> Committer | None:
        committer = step("create_committer", lambda: refuse_async_methods(self.sink.create_committer(context)))
        return None if committer is None else WatchedCommitter(committer)

    def create_global_committer(self, context: SourceContextInfo) -> GlobalCommitter:
        return WatchedGlobalCommitter(
            step("create_global_committer", lambda: refuse_async_methods(self.sink.create_global_committer(context)))
        )


class WatchedWriter(_InProcess, SinkWriter):
    """Writes, as the writer under test does."""

    def write(self, batch: pa.RecordBatch) -> None:
        step("write", lambda: self.inner.write(batch))

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        committables: Sequence[Committable] = step(
            "prepare_commit",
            lambda: answers(self.inner.prepare_commit(checkpoint_id), Committable, self.inner, "prepare_commit"),
        )
        for committable in committables:
            _require_json("a committable", committable.data)
        return committables

    def snapshot_state(self, checkpoint_id: int) -> Sequence[dict[str, Any]]:
        return step(
            "snapshot_state",
            lambda: answers(self.inner.snapshot_state(checkpoint_id), dict, self.inner, "snapshot_state"),
        )


class WatchedCommitter(_InProcess, Committer):
    """Commits what its subtask has written."""

    def commit(self, committables: Sequence[Committable]) -> None:
        step("commit", lambda: self.inner.commit(committables))

    def restored_from(self, checkpoint_id: int) -> None:
        step("restored_from", lambda: self.inner.restored_from(checkpoint_id))

    def clean_up(self, committed_and_pending: Sequence[Committable]) -> None:
        step("clean_up", lambda: self.inner.clean_up(committed_and_pending))


class WatchedGlobalCommitter(_InProcess, GlobalCommitter):
    """Commits what all subtasks have written."""

    def last_committed(self, job_id: str, sink_uid: str) -> int | None:
        last: int | None = step("last_committed", lambda: self.inner.last_committed(job_id, sink_uid))
        return last

    def commit(self, together: GlobalCommittable) -> None:
        step("commit", lambda: self.inner.commit(together))

    def clean_up(self) -> None:
        step("clean_up", self.inner.clean_up)


def _require_json(what: str, value: Any) -> None:
    try:
        same = json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        same = False
    if not same:
        raise ContractError(f"{what} is not JSON-like, so that a snapshot cannot hold it: {value!r}")
