"""Which messages each role may send on a stream: whoever acts for one job names that job, and a TaskManager names no
resource id but its own.

Not in `permissions`: a thin client, which has no Arrow, asks about calls only. This is asked for each message.
"""

from __future__ import annotations

from typing import Any

from snapline.dataflow.wire.messages import DeclareRequiredSlots, ForTasks, RegisterJobMaster, RegisterTaskExecutor
from snapline.runtime.cores.credentials import Identity, Role


def refuse_message(identity: Identity, message: Any) -> str:
    """Why this caller may not say this on a stream; empty: it may."""
    if identity.role is Role.ADMINISTRATOR:
        return ""
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
