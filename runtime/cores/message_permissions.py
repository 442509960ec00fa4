"""Which messages each role may send on a stream: whoever acts for one job names that job, and a TaskManager names no
resource id but its own.

Not in `permissions`: a thin client, which has no Arrow, asks about calls only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    DeclareRequiredSlots,
    ForTasks,
    RegisterJobMaster,
    RegisterTaskExecutor,
)
from snapline.runtime.cores.credentials import Identity, Role


def refuse_messages(identity: Identity, messages: Iterable[Any]) -> str:
    """Why this caller may not say the first of these that it may not say on a stream; empty: it may say all.

    An acknowledgement, of which each subtask of a job sends one for each checkpoint, names nothing but its job, and is
    passed without a call.

    >>> from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID, JobVertexID
    >>> attempt = ExecutionAttemptID("graph", JobVertexID("a" * 32), 0, 0)
    >>> message = AcknowledgeCheckpoint(JobID("job-2"), attempt, CheckpointID(1))
    >>> refuse_messages(Identity(Role.TASK_MANAGER), [message])
    ''
    >>> refuse_messages(Identity(Role.TASK_MANAGER, job="job-1"), [message])
    'a taskmanager for job job-1 may not send AcknowledgeCheckpoint of job job-2'
    """
    if identity.role is Role.ADMINISTRATOR:
        return ""
    job = identity.job
    for message in messages:
        if type(message) is AcknowledgeCheckpoint and (not job or message.job_id == job):
            continue
        line = _refuse_message(identity, message)
        if line:
            return line
    return ""


def _refuse_message(identity: Identity, message: Any) -> str:
    if type(message) is ForTasks:
        message = message.template
    is_of_job_master = isinstance(message, (RegisterJobMaster, DeclareRequiredSlots))
    if is_of_job_master and identity.role is not Role.JOB_MASTER:
        return f"a {identity} may not send {type(message).__name__}: JobMasters do"
    if isinstance(message, RegisterTaskExecutor) and identity.role is not Role.TASK_MANAGER:
        return f"a {identity} may not register a TaskManager"
    said = message.info if hasattr(message, "info") else message
    resource_id, job = str(getattr(said, "resource_id", "")), str(getattr(message, "job_id", ""))
    if identity.name and resource_id and identity.role is Role.TASK_MANAGER and resource_id != identity.name:
        return f"a {identity} may not send {type(message).__name__} of {resource_id}"
    if identity.job and job and job != identity.job:
        return f"a {identity} may not send {type(message).__name__} of job {job}"
    return ""
