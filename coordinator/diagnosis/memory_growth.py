"""Which TaskManagers of a job use more and more memory, and who keeps it.

Says a line only where the memory of a process grows without a break (`coordinator/resource/process_history.py`). Where
a container that a module, object or function of the user holds has grown while it was looked at, that is a leak in user
code; else it may be state that grows, or a library. No process is looked at here.
"""

from __future__ import annotations

from collections.abc import Iterable

from snapline.coordinator.diagnosis.stack_reading import is_own, words_of_frame
from snapline.dataflow.wire.messages import AllocationSite, ThreadDump
from snapline.protos import client_pb2 as pb

MIB = 1 << 20
MIN_KEPT_BYTES = 64 << 10
"""A place that has kept less while it was looked at is not named."""


def growing_task_managers(details: pb.JobDetails, registered: Iterable[pb.TaskManagerDetails]) -> set[str]:
    """The TaskManagers of the job whose memory grows without a break."""
    of_the_job = {subtask.resource_id for vertex in details.vertices for subtask in vertex.subtasks}
    return {each.resource_id for each in registered if each.memory_growth_bytes and each.resource_id in of_the_job}


def memory_findings(
    details: pb.JobDetails, registered: Iterable[pb.TaskManagerDetails], dumps: Iterable[ThreadDump]
) -> list[pb.JobFinding]:
    """One line for each TaskManager of the job whose memory grows, the one that grows most first."""
    growing = growing_task_managers(details, registered)
    heaps = {str(dump.resource_id): dump for dump in dumps if dump.types or dump.sites}
    found = []
    for each in sorted(registered, key=lambda each: -each.memory_growth_bytes):
        if each.resource_id not in growing:
            continue
        kind, who, stack = _who_keeps_it(heaps.get(each.resource_id))
        line = (
            f"the memory of {each.resource_id} has grown by {each.memory_growth_bytes // MIB} MiB in {each.memory_growth_ms // 1000} s, to "
            f"{each.process.resident_bytes // MIB} MiB{who}"
        )
        found.append(
            pb.JobFinding(kind=kind, summary=line, subtask_index=-1, resource_id=each.resource_id, stack=stack)
        )
    return found


def _who_keeps_it(heap: ThreadDump | None) -> tuple[str, str, tuple[str, ...]]:
    """The kind of the finding, its words, and the stack that has allocated most."""
    if heap is None:
        return "memory", " (snapline profile JOB --heap shows who keeps it)", ()
    sites = [site for site in heap.sites if site.bytes >= MIN_KEPT_BYTES and site.frames]
    own = [site for site in sites if is_own(site.frames[-1])]
    types = ", ".join(f"{each.name} ({each.count:,})" for each in heap.types[:3])
    top = f"; most of it: {types}" if types else ""
    if own:
        return "leak", f"; user code keeps more and more in {_kept(own[0])}{top}", tuple(own[0].frames)
    if sites:
        return "memory", f"; more and more is kept in {_kept(sites[0])}{top}", tuple(sites[0].frames)
    return "memory", top, ()


def _kept(site: AllocationSite) -> str:
    grown = f"{site.count:,} more, about {max(1, site.bytes >> 10):,} KiB, while it was looked at"
    return f"{words_of_frame(site.frames[-1])}: {grown}"
