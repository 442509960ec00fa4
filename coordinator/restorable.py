"""Whether a job can start from a snapshot: all state has an operator, its files are there, and what they hold can
become what the job declares.

Loads Arrow, which a coordinator does without as long as it can: import this module where a job starts from a snapshot.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from snapline.coordinator.checkpoint.restore.state_assignment import AssignmentRefused, assign_states
from snapline.coordinator.snapshots import NoSnapshot, Snapshot, damaged_files, read_state_header
from snapline.dataflow.config import DROP_STATE_COLUMNS, Configuration
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import OperatorID
from snapline.dataflow.snapshot.handles import OperatorState
from snapline.dataflow.snapshot.state_evolution import key_problem, schema_problems
from snapline.dataflow.snapshot.state_format import KEY_COLUMN, STATE_COLUMN, KeyedStateHeader, column_role
from snapline.runtime.storage.state_storages import StateStorages


def state_problems(storages: StateStorages, snapshot: Snapshot, job_graph: JobGraph) -> dict[OperatorID, str]:
    """Per operator whose keyed state cannot become what the job declares: why, and the way out. Reads headers of state
    files."""
    drop_columns = Configuration(job_graph.configuration).get_option(DROP_STATE_COLUMNS)
    declared = {node.operator_id: node for vertex in job_graph.vertices for node in vertex.operators}
    found: dict[OperatorID, str] = {}
    for operator in snapshot.metadata.operators:
        node = declared.get(operator.operator_id)
        if node is None or not node.state_schema:
            continue
        schema = pa.ipc.read_schema(pa.py_buffer(node.state_schema))
        problems: dict[str, None] = {}
        for header in _distinct_headers(storages, operator):
            keys = [field for field in schema if column_role(field) == KEY_COLUMN]
            states = pa.schema([field for field in schema if column_role(field) == STATE_COLUMN])
            unlike = key_problem(header.key_fields, keys) if keys else ""
            problems.update(dict.fromkeys([unlike] if unlike else []))
            written = pa.schema(header.state_fields)
            problems.update(dict.fromkeys(schema_problems(written, states, drop_columns=drop_columns)))
        if problems:
            found[operator.operator_id] = f"operator {node.uid!r}: {'; '.join(problems)}"
    return found


def _distinct_headers(storages: StateStorages, operator: OperatorState) -> list[KeyedStateHeader]:
    """Subtasks may hold different states, if not all of them had rows of every input."""
    found: dict[bytes, KeyedStateHeader] = {}
    for subtask in operator.subtasks.values():
        for part in subtask.managed_keyed:
            header = read_state_header(storages, part)
            found.setdefault(bytes(header.schema.serialize()), header)
    return list(found.values())


def check_restorable(storages: StateStorages, snapshot: Snapshot, job_graph: JobGraph) -> JobGraph:
    """Return the job with the max parallelism that the state has. Raises NoSnapshot when it cannot start from that;
    names the operator, for its state the column, and the way out."""
    verdict = assign_states(
        snapshot.metadata.operators,
        job_graph.vertices,
        job_graph.edges,
        allow_non_restored_state=job_graph.savepoint_restore.allow_non_restored_state,
    )
    if isinstance(verdict, AssignmentRefused):
        raise NoSnapshot(f"cannot start from {snapshot.location}: {verdict.detail}")
    missing = damaged_files(storages, snapshot)
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise NoSnapshot(
            f"cannot start from {snapshot.location}: {missing[0]}{more}; copy the snapshot again, or start from another one"
        )
    try:
        problems = state_problems(storages, snapshot, job_graph)
    except StateError as error:
        raise NoSnapshot(f"cannot start from {snapshot.location}: {error}") from error
    if problems:
        raise NoSnapshot(f"cannot start from {snapshot.location}: {'; '.join(problems.values())}")
    of_state = verdict.plan.max_parallelism
    vertices = (replace(v, max_parallelism=of_state.get(v.vertex_id, v.max_parallelism)) for v in job_graph.vertices)
    return replace(job_graph, vertices=tuple(vertices))
