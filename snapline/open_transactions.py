"""What a snapshot holds as pre-committed, and its end by hand: for a job that is lost and will not be restored.

Decides what is left open (the committables of every sink with two phases, in the order of checkpoints), and that each
sink ends its own by the very committer that the job would use: so commits may be repeated, and a job that is restored
later finds its work done. The snapshot says what is open, and the job's program how the outside system is reached;
nothing of the job runs.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snapline.coordinator.snapshots import Snapshot, read_elements, read_snapshot
from snapline.dataflow.api.connector_api import Committable, GlobalCommittable, Sink
from snapline.dataflow.api.state import serializer_named
from snapline.dataflow.api.two_phase_commit import STATE_NAME, TwoPhaseCommitSinkFunction
from snapline.dataflow.api.user_metrics import MetricGroup
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.declared_payload import load_payload
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.graph.operator_specs import GlobalCommitterSpec, SinkFunctionSpec, SinkSpec
from snapline.dataflow.ids import OperatorID
from snapline.dataflow.snapshot.handles import OperatorState
from snapline.runtime.settings import default_layers, resolve
from snapline.runtime.signing import Signer
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.taskmanager.operators.sinks.sink_operator import COMMITTABLES_STATE

MAX_NUMBER = (1 << 63) - 1
"""No checkpoint has a greater id, and no transaction more rows."""


class TransactionError(SnaplineError):
    """What is open cannot be ended so; names the sink and the way out."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """What one sink pre-committed for one checkpoint."""

    operator_id: OperatorID
    uid: str
    job_id: str
    sink_uid: str
    checkpoint_id: int
    is_together: bool
    """Whether one committer serves all subtasks of the sink, and commits all of it at once."""
    committables: tuple[Any, ...]
    """Data of Committables, or the handles of a TwoPhaseCommitSinkFunction."""

    @property
    def rows(self) -> int | None:
        """How many rows it has, as far as its committables tell."""
        told = [
            part["rows"]
            for each in self.committables
            if isinstance(each, Mapping)
            for part in (each, *each.get("files", ()))
            if isinstance(part.get("rows"), int | list)  # their number, or themselves
        ]
        return sum(each if isinstance(each, int) else len(each) for each in told) if told else None

    @property
    def what(self) -> str:
        """Which transaction, file or table it is, in a few words."""
        first = self.committables[0]
        if isinstance(first, Mapping):
            names = ("transactional_id", "transaction", "table", "target", "marker")
            return next((str(first[name]) for name in names if name in first), str(dict(first)))
        return str(first)


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """A SourceContextInfo of a process that is no task."""

    job_id: str
    operator_uid: str
    execution_attempt: str
    metrics: MetricGroup
    subtask_index: int = 0
    parallelism: int = 1
    attempt_number: int = 0


def open_snapshot(path: str) -> tuple[StateStorages, Snapshot]:
    """The snapshot in this directory, signed where this process has the keys. Raises SnaplineError when there is
    none."""
    configuration = resolve(default_layers(os.environ))
    storages = StateStorages(lambda url: open_storage(url, configuration))
    return storages, read_snapshot(storages, path, Signer.of_storage(configuration))


def open_transactions(storages: StateStorages, snapshot: Snapshot) -> list[OpenTransaction]:
    """What is pre-committed in the snapshot, by sink and checkpoint; some of it may be committed by now. Raises
    TransactionError for what no sink has written."""
    found: list[OpenTransaction] = []
    for operator in snapshot.metadata.operators:
        try:
            found += _open_of(storages, snapshot, operator)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise TransactionError(
                f"{snapshot.location} holds, as what sink {operator.uid!r} has pre-committed, what no sink has written "
                f"({type(error).__name__}): take another snapshot of the job"
            ) from error
    return found


def _open_of(storages: StateStorages, snapshot: Snapshot, operator: OperatorState) -> list[OpenTransaction]:
    """What one operator has pre-committed. Raises whatever its elements let Python raise when they are none."""
    held: dict[tuple[str, str, int], list[Any]] = {}
    together = False
    for element in _elements(storages, operator, COMMITTABLES_STATE):
        together = together or "sink_uid" in element
        if not isinstance(element["data"], Mapping):
            raise TypeError(f"{element['data']!r} is no committable")
        job_id, sink_uid = element.get("job_id", snapshot.metadata.job_id), element.get("sink_uid", operator.uid)
        # What tells a committer to clean up after lost attempts is no output.
        if "sweep" not in element["data"]:
            held.setdefault((job_id, sink_uid, element["checkpoint_id"]), []).append(element["data"])
    for element in _elements(storages, operator, STATE_NAME):
        for checkpoint_id, handle, _ in element["pending"]:
            held.setdefault((snapshot.metadata.job_id, operator.uid, checkpoint_id), []).append(handle)
    for job_id, sink_uid, checkpoint_id in held:
        of_types = (type(job_id), type(sink_uid), type(checkpoint_id)) == (str, str, int)
        if not of_types or not 0 <= checkpoint_id <= MAX_NUMBER:
            raise TypeError(f"{(job_id, sink_uid, checkpoint_id)} name no transaction")
    found = [
        OpenTransaction(operator.operator_id, operator.uid, *whose, together, tuple(data))
        for whose, data in sorted(held.items(), key=lambda each: each[0])
    ]
    for each in found:
        rows, _ = each.rows or 0, each.what  # whoever lists them asks for both, and both may raise
        if abs(rows) > MAX_NUMBER:
            raise ValueError("more rows than can be counted")
    return found


def end_transactions(
    transactions: Sequence[OpenTransaction], job_graph: JobGraph, *, commit: bool
) -> Iterator[tuple[OpenTransaction, bool]]:
    """Commit them, or abort them; yields each when it is done, and whether anything was left to do, as far as the sink
    can tell. Raises TransactionError before the first when the program lacks a sink, and for what a committer cannot
    end."""
    ends = {each.operator_id: _end_of(each, job_graph) for each in transactions}
    for each in sorted(transactions, key=lambda each: (each.uid, each.checkpoint_id)):
        try:
            was_open = _end(ends[each.operator_id], each, commit=commit)
        except SnaplineError:
            raise
        except Exception as error:  # what is in a snapshot may be anything, and so may a committer of somebody's own
            raise TransactionError(
                f"sink {each.uid!r} could not {'commit' if commit else 'abort'} what it has of checkpoint {each.checkpoint_id}: "
                f"{type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        yield each, was_open


def _end(end: Sink | TwoPhaseCommitSinkFunction, transaction: OpenTransaction, *, commit: bool) -> bool:
    if not isinstance(end, TwoPhaseCommitSinkFunction):
        return _end_by_committer(end, transaction, commit=commit)
    for handle in transaction.committables:
        (end.recover_and_commit if commit else end.recover_and_abort)(handle)
    return True


def _end_by_committer(sink: Sink, transaction: OpenTransaction, *, commit: bool) -> bool:
    """Returns False when the outside system says that it was committed already, or that there was nothing to abort."""
    where = _Elsewhere(
        transaction.job_id, transaction.sink_uid, f"by-hand-{uuid.uuid4().hex}", MetricGroup(transaction.sink_uid)
    )
    committables = tuple(Committable(data) for data in transaction.committables)
    if transaction.is_together:
        together = GlobalCommittable(
            transaction.job_id, transaction.sink_uid, transaction.checkpoint_id, committables, may_repeat=True
        )
        of_all = sink.create_global_committer(where)
        try:
            last = of_all.last_committed(transaction.job_id, transaction.sink_uid)
            if last is not None and last >= transaction.checkpoint_id:
                return False
            return _has_ended(of_all.commit(together) if commit else of_all.abort(together))
        finally:
            of_all.close()
    committer = sink.create_committer(where)
    if committer is None:
        raise TransactionError(f"sink {transaction.uid!r} of the program has no committer, and had one in the snapshot")
    try:
        return _has_ended(committer.commit(committables) if commit else committer.abort(committables))
    finally:
        committer.close()


def _has_ended(said: bool | None) -> bool:
    """What a committer says of an end; most say nothing."""
    return said is not False


def _end_of(transaction: OpenTransaction, job_graph: JobGraph) -> Sink | TwoPhaseCommitSinkFunction:
    """The sink in the program that made the transaction."""
    nodes = {node.operator_id: node for vertex in job_graph.vertices for node in vertex.operators}
    node = nodes.get(transaction.operator_id)
    if node is not None:
        spec = load_payload(node.payload)
        if isinstance(spec, SinkFunctionSpec) and isinstance(spec.function, TwoPhaseCommitSinkFunction):
            return spec.function
        if isinstance(spec, GlobalCommitterSpec if transaction.is_together else SinkSpec):
            return spec.sink
    there = ", ".join(sorted(repr(each.uid) for each in nodes.values() if each.commits)) or "none"
    raise TransactionError(
        f"the program has no sink {transaction.uid!r} as the snapshot knows it; its sinks are {there}: give the program that took it"
    )


def _elements(storages: StateStorages, operator: OperatorState, name: str) -> Iterator[Any]:
    loads = serializer_named("json").loads
    for index in sorted(operator.subtasks):
        for part in operator.subtasks[index].managed_operator:
            for entry, elements in read_elements(storages, part):
                if entry.name == name:
                    yield from map(loads, elements)
