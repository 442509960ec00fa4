"""Which TaskManagers of a job run where the clock is wrong, or has leapt.

Snapline's own timers follow the monotonic clock. What goes wrong is what reads the wall clock: a user's function, event
times that a source takes from it, credentials of stores. No clock is read here.
"""

from __future__ import annotations

from collections.abc import Iterable

from snapline.protos import client_pb2 as pb

MIN_LEAP_MS = 2_000
MIN_OFFSET_MS = 10_000
"""A heartbeat of a busy process may be seconds old when it is read."""


def clock_findings(details: pb.JobDetails, registered: Iterable[pb.TaskManagerDetails]) -> list[pb.JobFinding]:
    """One line for each TaskManager of the job whose clock has leapt, or is far from the coordinator's."""
    of_the_job = {subtask.resource_id for vertex in details.vertices for subtask in vertex.subtasks}
    found = []
    for each in registered:
        if each.resource_id not in of_the_job or not each.HasField("process"):
            continue
        leap_ms, offset_ms = each.process.clock_leap_ms, each.clock_offset_ms
        if abs(leap_ms) >= MIN_LEAP_MS:
            line = f"the clock of {each.host} has leapt by {_seconds(leap_ms)} since {each.resource_id} was started"
        elif abs(offset_ms) >= MIN_OFFSET_MS:
            line = f"the clock of {each.host}, where {each.resource_id} runs, differs from the coordinator's by {_seconds(offset_ms)}"
        else:
            continue
        line += ": event times, time-outs of user code and credentials that follow the wall clock are wrong there"
        found.append(pb.JobFinding(kind="clock", summary=line, subtask_index=-1, resource_id=each.resource_id))
    return found


def _seconds(ms: int) -> str:
    return f"{ms / 1000:+,.0f} s"
