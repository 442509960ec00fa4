"""What each role may ask of a coordinator, and which messages it may send.

Decides by the method that is called, before anything of the call is read, and then by each request: whoever acts for
one job names that job. Messages of streams are in `message_permissions`. A user function can read the credential of
the TaskManager that it runs in, so that credential submits nothing, registers nobody else, and reaches no client's call
but those that say which TaskManagers there are. What the roles are is in `credentials`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snapline.runtime.cores.credentials import Identity, Role

PREFIX = "/snapline.v1."
OURS = "/snapline."
"""How the methods of all packages of ours begin: what programs outside call is in one of its own."""

CALLS: Mapping[Role, tuple[str, ...]] = {
    Role.CLIENT: ("ClientService/", "LeaderRetrieval/", "ExternalTasks/"),
    Role.LAUNCHER: (
        "ClientService/ReportWorkers",
        "ClientService/GetRequiredResources",
        "ClientService/WatchRequiredResources",
        "ClientService/ListTaskManagers",
        "ClientService/DrainTaskManager",
        "LeaderRetrieval/",
    ),
    Role.TASK_MANAGER: (
        "ResourceManagerGateway/",
        "JobMasterGateway/",
        "LeaderRetrieval/",
        "ClientService/ListTaskManagers",
    ),
    Role.JOB_MASTER: ("ResourceManagerGateway/", "LeaderRetrieval/"),
    Role.RELAY: ("RelayGateway/",),
    Role.EXTERNAL: ("ExternalTasks/",),
}
"""Beginnings of the methods that a role may call; an administrator calls all."""


def refuse_call(identity: Identity, method: str) -> str:
    """Why this caller may not call the method (`/package.Service/Method`); empty: it may."""
    if identity.role is Role.ADMINISTRATOR or not method.startswith(OURS):
        return ""
    service, _, name = method.partition("/")[2].partition("/")
    called = f"{service.rpartition('.')[2]}/{name}"
    if called.startswith(CALLS[identity.role]):
        return ""
    roles = [f"a {role.value}'s credential" for role, calls in CALLS.items() if called.startswith(calls)]
    return f"a {identity} may not call {called}: {' or '.join([*roles, 'the token of the administrator'])} may"


def refuse_request(identity: Identity, request: Any) -> str:
    """Why this caller may not send a client's request; empty: it may. Who acts for one job only asks about that one."""
    if not identity.job or identity.role is not Role.CLIENT:
        return ""
    asked = str(getattr(request, "job_id", ""))
    if asked == identity.job:
        if getattr(request, "log_level", ""):
            return f"this credential is for job {identity.job} only, and processes whose log levels change serve others as well"
        if getattr(request, "log_lines", 0) or getattr(request, "heap", False):
            return (
                f"this credential is for job {identity.job} only, and the lines and containers of a TaskManager are also those of other "
                "jobs: ask with one that is for all jobs"
            )
        return ""
    return (
        f"this credential is for job {identity.job} only, and the call is about {repr(asked) if asked else 'all jobs'}"
    )
