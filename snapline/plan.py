"""`snapline plan`: what a snapshot and a job have in common, said without running anything.

Decides what is shown of each operator (its state maps, would be dropped, or it is new) and whether the job would start;
what maps is decided by `snapline.coordinator.checkpoint.restore.state_assignment`, as in the coordinator itself. Reads
`_metadata` and the headers of state files, no state. Flink has nothing like it: there, one learns it when the job
fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from snapline.coordinator.checkpoint.restore.state_assignment import (
    AssignmentRefused,
    assign_states,
    has_state,
    plan_restore,
)
from snapline.coordinator.restorable import state_problems
from snapline.coordinator.snapshots import Snapshot, damaged_files, read_snapshot, read_state_header
from snapline.dataflow.api.state import descriptor_of
from snapline.dataflow.errors import SnaplineError, StateError
from snapline.dataflow.graph.jobgraph import JobGraph, JobVertex, OperatorNode
from snapline.dataflow.graph.translation import Translation
from snapline.dataflow.ids import OperatorID
from snapline.dataflow.snapshot.handles import OperatorState, OperatorSubtaskState
from snapline.dataflow.snapshot.state_format import KeyedStateHeader
from snapline.engine_state import engine_state_problems
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import StorageError

MAPS, DROPPED, NEW = "maps", "dropped", "new"
"""What the plan says of an operator: its state maps, is dropped, or begins anew."""


@dataclass(frozen=True, slots=True)
class StateSummary:
    """One named state of an operator."""

    name: str
    kind: str
    """value, list, map, reducing, aggregating, running aggregate; timers; operator list state: split, union,
    broadcast."""
    elements: int
    """Keys that the operator holds, for keyed state; list elements, for operator state."""


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """One operator, in the snapshot, in the job, or in both."""

    uid: str
    name: str
    verdict: str
    keyed_state_bytes: int = 0
    operator_state_bytes: int = 0
    in_flight_bytes: int = 0
    states: tuple[StateSummary, ...] = ()
    snapshot_parallelism: int | None = None
    snapshot_max_parallelism: int | None = None
    job_parallelism: int | None = None
    job_max_parallelism: int | None = None
    """As it will be: a vertex that did not ask for one takes over the snapshot's."""
    problem: str = ""

    @property
    def state_size_bytes(self) -> int:
        """Return the size of all of the operator's state, in bytes."""
        return self.keyed_state_bytes + self.operator_state_bytes + self.in_flight_bytes


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What would become of a snapshot's state when a job starts from it."""

    snapshot: str
    snapshot_type: str
    snapshot_job_name: str
    checkpoint_id: int
    timestamp_ms: int
    job_name: str
    operators: tuple[OperatorPlan, ...]
    """The job's in its order, then those that would be dropped."""
    refusal: str
    """Why the job would not start from the snapshot; empty: it would."""

    @property
    def would_start(self) -> bool:
        """Whether a submission would be accepted."""
        return not self.refusal

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in the types that JSON has."""
        return {
            **asdict(self),
            "would_start": self.would_start,
            "operators": [{**asdict(each), "state_size_bytes": each.state_size_bytes} for each in self.operators],
        }


def snapshot_at_hand(path: str) -> Snapshot | None:
    """The snapshot, before there is a job: it may take a script long to say what the job is. Raises SnaplineError for
    one that cannot be read. None where the job's settings say how to reach it, or its client brings threads (and the
    script may fork)."""
    if urlsplit(path).scheme.lower() not in ("", "file"):
        return None
    return read_snapshot(StateStorages(open_storage), path)


def plan_job(
    translation: Translation, path: str, at_hand: Snapshot | None = None, *, allow_non_restored_state: bool
) -> JobPlan:
    """Read the snapshot, unless it was at hand, and hold it against the job. Raises SnaplineError for one that cannot
    be read."""
    job_graph = translation.job_graph
    storages = StateStorages(lambda url: open_storage(url, translation.configuration))
    snapshot = at_hand or read_snapshot(storages, path)
    operators = tuple(_operator_plans(storages, snapshot, job_graph, allow_non_restored_state=allow_non_restored_state))
    return JobPlan(
        snapshot=snapshot.location,
        snapshot_type=snapshot.metadata.snapshot_type.name,
        snapshot_job_name=snapshot.metadata.job_name,
        checkpoint_id=snapshot.metadata.checkpoint_id,
        timestamp_ms=snapshot.metadata.timestamp_ms,
        job_name=job_graph.name,
        operators=operators,
        refusal=_refusal(storages, snapshot, job_graph, allow_non_restored_state=allow_non_restored_state),
    )


def _refusal(
    storages: StateStorages, snapshot: Snapshot, job_graph: JobGraph, *, allow_non_restored_state: bool
) -> str:
    verdict = assign_states(
        snapshot.metadata.operators,
        job_graph.vertices,
        job_graph.edges,
        allow_non_restored_state=allow_non_restored_state,
    )
    if isinstance(verdict, AssignmentRefused):
        return verdict.detail
    hooks = snapshot.metadata.master_states  # which hooks the job has is known when they run, how many before
    if len(hooks) > len(job_graph.master_hooks) and not allow_non_restored_state:
        named = ", ".join(repr(each.hook_id) for each in hooks)
        has = len(job_graph.master_hooks) or "none"
        return (
            f"it holds state of the master hooks {named}, and the job has {has}: register them, or allow non-restored state "
            "(--allow-non-restored-state)"
        )
    damage = damaged_files(storages, snapshot)
    if damage:
        more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
        return f"the snapshot is not complete: {damage[0]}{more}; copy it again, or start from another one"
    return "; ".join(_state_problems(storages, snapshot, job_graph).values())


def _state_problems(storages: StateStorages, snapshot: Snapshot, job_graph: JobGraph) -> dict[OperatorID, str]:
    """What cannot be read is shown otherwise."""
    try:
        of_engine = engine_state_problems(storages, snapshot, job_graph)
        return {**of_engine, **state_problems(storages, snapshot, job_graph)}
    except (StorageError, StateError):
        return {}


def _operator_plans(
    storages: StateStorages, snapshot: Snapshot, job_graph: JobGraph, *, allow_non_restored_state: bool
) -> Iterable[OperatorPlan]:
    of_snapshot = {operator.operator_id: operator for operator in snapshot.metadata.operators}
    problems = _state_problems(storages, snapshot, job_graph)
    for vertex in job_graph.vertices:
        for node in vertex.operators:
            operator = of_snapshot.pop(node.operator_id, None)
            if operator is None:
                yield OperatorPlan(
                    node.uid,
                    node.name,
                    NEW,
                    job_parallelism=vertex.parallelism,
                    job_max_parallelism=vertex.max_parallelism,
                )
            else:
                yield _mapped(storages, operator, vertex, node, problems.get(node.operator_id, ""))
    for operator in of_snapshot.values():
        if has_state(operator):
            problem = "" if allow_non_restored_state else "the job has no operator with this uid"
            yield _with_state(storages, operator, verdict=DROPPED, problem=problem)


def _mapped(
    storages: StateStorages, operator: OperatorState, vertex: JobVertex, node: OperatorNode, problem: str
) -> OperatorPlan:
    verdict = plan_restore([operator], [vertex], allow_non_restored_state=True)
    max_parallelism = vertex.max_parallelism
    if isinstance(verdict, AssignmentRefused):
        problem = verdict.detail
    else:
        max_parallelism = verdict.max_parallelism.get(vertex.vertex_id, max_parallelism)
    return _with_state(
        storages,
        operator,
        verdict=MAPS,
        problem=problem,
        uid=node.uid,
        name=node.name,
        job_parallelism=vertex.parallelism,
        job_max_parallelism=max_parallelism,
    )


def _with_state(storages: StateStorages, operator: OperatorState, **known: Any) -> OperatorPlan:
    states = list(operator.subtasks.values())
    known.setdefault("uid", operator.uid or operator.operator_id)
    known.setdefault("name", operator.name)
    return OperatorPlan(
        keyed_state_bytes=sum(part.handle.state_size_bytes for state in states for part in state.managed_keyed),
        operator_state_bytes=sum(part.handle.state_size_bytes for state in states for part in state.managed_operator),
        in_flight_bytes=sum(
            part.handle.state_size_bytes for state in states for part in (*state.input_channel, *state.output_channel)
        ),
        states=(*_keyed_states(storages, states), *_operator_states(states)),
        snapshot_parallelism=operator.parallelism,
        snapshot_max_parallelism=operator.max_parallelism,
        **known,
    )


def _keyed_states(storages: StateStorages, subtasks: Iterable[OperatorSubtaskState]) -> Iterable[StateSummary]:
    """From the headers of the files, which say it without the job's code. What cannot be read is shown as such."""
    headers: list[KeyedStateHeader] = []
    try:
        for state in subtasks:
            headers += [read_state_header(storages, part) for part in state.managed_keyed]
    except SnaplineError as error:
        yield StateSummary(f"cannot be read: {error}", "keyed", 0)
        return
    keys = sum(header.row_count for header in headers if not header.is_delta)
    shown: set[str] = set()
    for header in headers:
        for field in header.state_fields:
            if field.name not in shown:
                shown.add(field.name)
                yield StateSummary(field.name, _kind_of(field), keys)
        for field in header.timer_fields:
            if field.name not in shown:
                shown.add(field.name)
                yield StateSummary(field.name, "timers", keys)


def _kind_of(field: Any) -> str:
    try:
        descriptor: Any = descriptor_of(field)
    except SnaplineError:
        return "of a kind that this release does not know"
    return str(descriptor.kind.value).replace("_", " ")


def _operator_states(subtasks: Iterable[OperatorSubtaskState]) -> Iterable[StateSummary]:
    found: dict[tuple[str, str], int] = {}
    for state in subtasks:
        for part in state.managed_operator:
            for entry in part.entries:
                key = (entry.name, entry.mode.value)
                found[key] = found.get(key, 0) + len(entry.offsets)
    for (name, mode), elements in found.items():
        yield StateSummary(name, mode, elements)
