"""Sinks of simulated runs, and what readers of them would see.

A sink of Snapline's is replaced by `CheckedSink`, which is a full two-phase one, and commits together if that does. A
sink of the user's runs for real, and is watched: of a two-phase one, rows are visible when their transaction is
committed for the first time; of any other, when they are written, because nobody can take them back. Who wants to see
what lies in the target itself says so to `simulate`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from snapline.dataflow.api.connector_api import (
    Committable,
    Committer,
    GlobalCommittable,
    GlobalCommitter,
    Sink,
    SinkWriter,
    SourceContextInfo,
)
from snapline.dataflow.api.two_phase_commit import SinkFunction, TwoPhaseCommitSinkFunction
from snapline.testing.simulated.run_state import current_run


class SimulatedCommitFailure(RuntimeError):
    """A commit fails because the simulator says so, before or after it was done."""


class CheckedSink(Sink):
    """Takes the place of a sink of Snapline's."""

    def __init__(self, uid: str, *, commits_together: bool = False) -> None:
        self.uid = uid
        self._commits_together = commits_together

    @property
    def commits_together(self) -> bool:
        return self._commits_together

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        return _CheckedWriter()

    def create_committer(self, context: SourceContextInfo) -> Committer:
        return _CheckedCommitter(self.uid)

    def create_global_committer(self, context: SourceContextInfo) -> GlobalCommitter:
        return _CheckedGlobalCommitter()


class _CheckedWriter(SinkWriter):
    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        if not self._batches:
            return ()
        run = current_run()
        place = next(run.numbers)
        run.staged[place], self._batches = self._batches, []
        return (Committable({"place": place}),)


class _CheckedCommitter(Committer):
    def __init__(self, uid: str) -> None:
        self._uid = uid

    def commit(self, committables: Sequence[Committable]) -> None:
        run = current_run()
        for committable in committables:  # what is not there any more was committed before
            for batch in run.staged.pop(committable.data["place"], ()):
                run.show(self._uid, batch)


class _CheckedGlobalCommitter(GlobalCommitter):
    def last_committed(self, job_id: str, sink_uid: str) -> int | None:
        return current_run().noted.get((job_id, sink_uid))

    def commit(self, together: GlobalCommittable) -> None:
        run, transactions = current_run(), (together.job_id, together.sink_uid)
        if together.checkpoint_id > run.noted.get(transactions, 0):
            run.noted[transactions] = together.checkpoint_id
            _CheckedCommitter(together.sink_uid).commit(together.committables)


def watch_sink(uid: str, sink: Any) -> None:
    """Watch a sink of the user's, as it was unpickled for one task."""
    if isinstance(sink, Sink):
        _watch_two_methods(uid, sink)
    elif isinstance(sink, TwoPhaseCommitSinkFunction):
        _watch_transactions(uid, sink)
    elif isinstance(sink, SinkFunction):
        _put(sink, "invoke", _shown_when_written(uid, sink.invoke))


def _put(target: Any, name: str, value: Callable[..., Any]) -> None:
    """Set an attribute of one object, also of a frozen one."""
    object.__setattr__(target, name, value)


def _shown_when_written(uid: str, write: Callable[[Any], Any]) -> Callable[[Any], None]:
    def shown(value: Any) -> None:
        write(value)
        current_run().show(uid, value)

    return shown


def _failing(uid: str, commit: Callable[[], Any]) -> None:
    """Commit, and fail before or after it if the run says so."""
    fault = current_run().commit_fault(uid)
    if fault == "before":
        raise SimulatedCommitFailure(f"the commit of {uid!r} failed before anything was done (simulated)")
    commit()
    if fault == "after":
        raise SimulatedCommitFailure(f"the commit of {uid!r} was done, and its answer was lost (simulated)")


def _text(handle: Any) -> str:
    """What stands for a transaction or committable, which is JSON-like."""
    return json.dumps(handle, sort_keys=True, default=repr)


_written: dict[tuple[str, str], list[Any]] = {}
"""Rows of transactions that are not committed, by sink and transaction; they outlive the task that wrote them."""


def forget_transactions() -> None:
    """Forget what lies in transactions, because the run is over."""
    _written.clear()


def _commit(uid: str, handle: Any) -> None:
    for value in _written.pop((uid, _text(handle)), ()):
        current_run().show(uid, value)


def _watch_transactions(uid: str, sink: TwoPhaseCommitSinkFunction) -> None:
    invoke, pre_commit = sink.invoke_transaction, sink.pre_commit
    commit, recover = sink.commit, sink.recover_and_commit
    overrides_recovery = type(sink).recover_and_commit is not TwoPhaseCommitSinkFunction.recover_and_commit
    values: list[Any] = []

    def invoked(transaction: Any, value: Any) -> None:
        invoke(transaction, value)
        values.append(value)

    def pre_committed(transaction: Any) -> None:
        """Note what is in the transaction, whose handle may have changed with each value, but changes no more."""
        pre_commit(transaction)
        _written[uid, _text(transaction)] = values[:]
        values.clear()

    def committed(transaction: Any) -> None:
        _failing(uid, lambda: commit(transaction))
        _commit(uid, transaction)

    def recovered(transaction: Any) -> None:
        recover(transaction)
        _commit(uid, transaction)

    _put(sink, "invoke_transaction", invoked)
    _put(sink, "pre_commit", pre_committed)
    _put(sink, "commit", committed)
    if overrides_recovery:
        _put(sink, "recover_and_commit", recovered)


def _watch_two_methods(uid: str, sink: Sink) -> None:
    create_writer, create_committer = sink.create_writer, sink.create_committer
    create_global_committer = sink.create_global_committer
    is_two_phase = sink.two_phase

    def writer_of(context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        writer = create_writer(context, restored)
        if is_two_phase:
            _watch_writer(uid, writer)
        else:
            _put(writer, "write", _shown_when_written(uid, writer.write))
        return writer

    def committer_of(context: SourceContextInfo) -> Committer | None:
        committer = create_committer(context)
        if committer is not None:
            _watch_committer(uid, committer)
        return committer

    def global_committer_of(context: SourceContextInfo) -> GlobalCommitter:
        committer = create_global_committer(context)
        _watch_global_committer(committer)
        return committer

    _put(sink, "create_writer", writer_of)
    _put(sink, "create_committer", committer_of)
    _put(sink, "create_global_committer", global_committer_of)


def _watch_writer(uid: str, writer: SinkWriter) -> None:
    write, prepare_commit = writer.write, writer.prepare_commit
    batches: list[pa.RecordBatch] = []

    def written(batch: pa.RecordBatch) -> None:
        write(batch)
        batches.append(batch)

    def prepared(checkpoint_id: int) -> Sequence[Committable]:
        committables = list(prepare_commit(checkpoint_id))
        if committables:
            _written[uid, _text(committables[0].data)] = batches[:]
            batches.clear()
        return committables

    _put(writer, "write", written)
    _put(writer, "prepare_commit", prepared)


def _watch_committer(uid: str, committer: Committer) -> None:
    commit = committer.commit

    def committed(committables: Sequence[Committable]) -> None:
        _failing(uid, lambda: commit(committables))
        for committable in committables:
            _commit(uid, committable.data)

    _put(committer, "commit", committed)


def _watch_global_committer(committer: GlobalCommitter) -> None:
    commit = committer.commit

    def committed(together: GlobalCommittable) -> None:
        _failing(together.sink_uid, lambda: commit(together))
        for committable in together.committables:
            _commit(together.sink_uid, committable.data)

    _put(committer, "commit", committed)
