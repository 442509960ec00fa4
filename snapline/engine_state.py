"""Whether the engine's own operators take the state of a snapshot: windows, joins and running aggregates, tried without
a row.

The coordinator knows what user functions declare, not what windows keep. Here, where operators can be built, each is
restored from the headers of its files alone, for no key group at all; what it refuses then it would refuse in its task.
User code does not run: operators that call any are left to the coordinator's check. What cannot be read from here is
left to it, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from snapline.coordinator.snapshots import NoSnapshot, Snapshot, read_blob_range, read_elements, read_snapshot
from snapline.dataflow.config import DROP_STATE_COLUMNS, Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.jobgraph import JobGraph, JobVertex, OperatorNode
from snapline.dataflow.graph.operator_specs import (
    IntervalJoinSpec,
    RunningAggregateSpec,
    TemporalJoinSpec,
    WindowAggregateSpec,
    WindowJoinSpec,
)
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID
from snapline.dataflow.key_groups import EMPTY_KEY_GROUP_RANGE, KeyGroupRange
from snapline.dataflow.snapshot.handles import KeyedStateHandle, OperatorState
from snapline.runtime.cores.machine import InvariantViolation
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import StorageError

_OWN = (RunningAggregateSpec, WindowAggregateSpec, WindowJoinSpec, IntervalJoinSpec, TemporalJoinSpec)


def check_engine_state(job_graph: JobGraph) -> None:
    """Before a job is submitted that starts from a snapshot. Raises NoSnapshot that names the operator and what
    differs."""
    if not job_graph.savepoint_restore.path:
        return
    configuration = Configuration(job_graph.configuration)
    storages = StateStorages(lambda url: open_storage(url, configuration))
    try:
        snapshot = read_snapshot(storages, job_graph.savepoint_restore.path)
        problems = engine_state_problems(storages, snapshot, job_graph)
    except SnaplineError:  # the coordinator reaches it, or says why not
        return
    if problems:
        raise NoSnapshot(f"cannot start from {snapshot.location}: {'; '.join(problems.values())}")


def engine_state_problems(storages: StateStorages, snapshot: Snapshot, job_graph: JobGraph) -> dict[OperatorID, str]:
    """Per operator of ours that would refuse its keyed state: why. Reads headers of state files."""
    states = {operator.operator_id: operator for operator in snapshot.metadata.operators}
    found: dict[OperatorID, str] = {}
    for vertex in job_graph.vertices:
        for node in vertex.operators:
            state = states.get(node.operator_id)
            files = [] if state is None else list(_files(storages, state))
            if (
                state is not None
                and files
                and (refusal := _refusal(_Tried(job_graph, vertex, node, state, tuple(files), _lists(storages, state))))
            ):
                found[node.operator_id] = refusal
    return found


@dataclass(frozen=True, slots=True)
class _Header:
    """A file of which nothing but its header will be read."""

    storages: StateStorages
    handle: KeyedStateHandle

    @property
    def key_group_range(self) -> KeyGroupRange:
        return self.handle.key_group_range

    @property
    def size(self) -> int:
        return self.handle.handle.state_size_bytes

    def read_range(self, offset: int, size: int) -> bytes:
        return read_blob_range(self.storages, self.handle.handle, offset, size)


def _files(storages: StateStorages, operator: OperatorState) -> Iterator[_Header]:
    for subtask in operator.subtasks.values():
        yield from (_Header(storages, handle) for handle in subtask.managed_keyed)


def _lists(storages: StateStorages, operator: OperatorState) -> dict[str, tuple[bytes, ...]]:
    """The elements of all subtasks."""
    found: dict[str, tuple[bytes, ...]] = {}
    for subtask in operator.subtasks.values():
        for part in subtask.managed_operator:
            for entry, elements in read_elements(storages, part):
                found[entry.name] = (*found.get(entry.name, ()), *elements)
    return found


@dataclass(frozen=True, slots=True)
class _Tried:
    """An operator, and what there is of its state."""

    job_graph: JobGraph
    vertex: JobVertex
    node: OperatorNode
    state: OperatorState
    files: tuple[_Header, ...]
    lists: dict[str, tuple[bytes, ...]]


def _refusal(tried: _Tried) -> str:
    from snapline.taskmanager.operators.base.operator_contract import (  # these bring a compiler
        OperatorContext,
        RestoredState,
    )
    from snapline.taskmanager.operators.factory import create_operator, load_spec
    from snapline.taskmanager.task.processing_time import TaskProcessingTime

    node = tried.node
    spec = load_spec(node.payload, node.uid)
    if not isinstance(spec, _OWN):
        return ""
    operator = create_operator(spec, _unused)
    context = OperatorContext(
        job_id=JobID("plan"),
        operator_id=node.operator_id,
        operator_uid=node.uid,
        operator_name=node.name,
        task_name=tried.vertex.name,
        subtask_index=0,
        parallelism=1,
        max_parallelism=tried.state.max_parallelism,
        attempt_number=0,
        execution_attempt="plan",
        key_group_range=EMPTY_KEY_GROUP_RANGE,
        processing_time=TaskProcessingTime(),
        configuration={DROP_STATE_COLUMNS.key: tried.job_graph.configuration.get(DROP_STATE_COLUMNS.key, "false")},
        wake_up=_unused,
        open_segment_space=_unused,
    )
    operator.setup(context, _NoOutput())
    try:
        operator.initialize_state(RestoredState(CheckpointID(1), tried.files, tried.lists))
    except StorageError:
        raise
    except SnaplineError as error:
        text = str(error)
        return text if f"{node.uid!r}" in text else f"operator {node.uid!r}: {text}"
    return ""


def _unused(*_: Any) -> Any:
    raise InvariantViolation("an operator without rows asked for something of its task")


class _NoOutput:
    """Nothing is emitted without rows."""

    emit_batch = emit_side = emit_watermark = emit_watermark_status = staticmethod(_unused)
