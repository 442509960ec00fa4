"""External tasks: those of a job that has no others, a JobGraph without code, rows and edges; and operators of any job.

Decides what such a job needs: a vertex for each external task, by name, with a uid of its own, so that its state is
found again. The programs register for their task and do the work (protos/external.proto).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from snapline.dataflow.errors import JobDefinitionError, SnaplineError
from snapline.dataflow.graph.jobgraph import JobGraph, JobVertex, OperatorNode, SavepointRestoreSettings
from snapline.dataflow.graph.operator_specs import ExternalSpec
from snapline.dataflow.ids import JobID, JobVertexID, operator_id_of
from snapline.dataflow.key_groups import UPPER_BOUND_MAX_PARALLELISM

MAX_PARALLELISM = 128
"""The most programs of one task that a rescale may ask for, unless more are asked for at once."""


def external_job(
    job_id: JobID,
    name: str,
    tasks: Mapping[str, int],
    configuration: Mapping[str, str],
    savepoint_restore: SavepointRestoreSettings | None = None,
) -> JobGraph:
    """The job with so many programs of each task. Raises SnaplineError."""
    if not tasks:
        raise SnaplineError(f"job {name!r} has no external task: name at least one, and how many programs it has")
    for task, programs in tasks.items():
        if not task.strip() or not 1 <= programs <= UPPER_BOUND_MAX_PARALLELISM:
            raise SnaplineError(
                f"external task {task!r} with {programs} programs: give it a name, and one to {UPPER_BOUND_MAX_PARALLELISM} programs"
            )
    return JobGraph(
        job_id=job_id,
        name=name,
        vertices=tuple(_vertex(task, programs) for task, programs in tasks.items()),
        edges=(),
        configuration=dict(configuration),
        savepoint_restore=savepoint_restore or SavepointRestoreSettings(),
    ).without_secrets()


def external_spec(
    task: str,
    shape: str,
    *,
    input_schema: pa.Schema | None = None,
    output_schema: pa.Schema | None = None,
    key_columns: tuple[str, ...] = (),
) -> ExternalSpec:
    """An external task with rows, in a job of other operators. Raises JobDefinitionError for one without a name."""
    if not isinstance(task, str) or not task.strip():
        raise JobDefinitionError(f"external task {task!r}: give it a name, under which its programs register")
    for schema in (input_schema, output_schema):
        if schema is not None and not isinstance(schema, pa.Schema):
            raise JobDefinitionError(f"external task {task!r}: {schema!r} is no pyarrow.Schema")
    return ExternalSpec(task, shape, input_schema, output_schema, key_columns)


def _vertex(task: str, programs: int) -> JobVertex:
    operator_id = operator_id_of(task)
    operator = OperatorNode(
        operator_id=operator_id, uid=task, name=task, payload=b"", stateful=True, is_source=True, commits=True
    )
    return JobVertex(
        vertex_id=JobVertexID(str(operator_id)),
        name=task,
        parallelism=programs,
        max_parallelism=max(programs, MAX_PARALLELISM),
        operators=(operator,),
        slot_sharing_group=f"external {task}",
        is_external=True,
    )
