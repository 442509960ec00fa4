"""TaskManagers and what their processes use, in words and as rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snapline.protos import client_pb2 as pb
from snapline.protos import cluster_pb2

if TYPE_CHECKING:
    from snapline.client import ClusterClient

PROCESS_COLUMNS = (
    "RESOURCE ID", "HOST", "PID", "EXECUTOR", "VERSION", "SLOTS", "FREE", "MEMORY", "CPU", "THREADS", "FILES"
)  # fmt: skip
MIB = 1 << 20


def seen_task_managers(client: ClusterClient) -> list[pb.TaskManagerDetails]:
    """The registered ones; none for who has a credential for one job, and is not told who else is there."""
    from snapline.client import RequestRefused

    try:
        return client.list_task_managers()
    except RequestRefused:
        return []


def process_row(each: pb.TaskManagerDetails) -> list[str]:
    """One registered TaskManager; what its process has not said is a dash.

    >>> row = process_row(pb.TaskManagerDetails(resource_id="tm-1", slots=2))
    >>> row[0], row[-1]
    ('tm-1', '-')
    """
    free = "draining" if each.draining else str(each.free_slots)
    known = [each.resource_id, each.host, str(each.pid), each.executor_id, each.version, str(each.slots), free]
    if not each.HasField("process"):
        return [*known, "-", "-", "-", "-"]
    used = each.process
    memory = f"{used.resident_bytes // MIB} MiB"
    if each.memory_growth_bytes:
        memory += f" (+{each.memory_growth_bytes // MIB} in {each.memory_growth_ms // 1000} s)"
    return [*known, memory, f"{used.cpu_ms_per_second / 10:.0f} %", str(used.threads), str(used.open_files)]


def words_of_process(used: cluster_pb2.ProcessFigures) -> tuple[str, ...]:
    """What a process uses, in words.

    >>> words_of_process(cluster_pb2.ProcessFigures(resident_bytes=2 << 20, cpu_ms_per_second=30, threads=4, open_files=9))
    ('2 MiB', '3 % of a core', '4 threads', '9 open files')
    """
    return (
        f"{used.resident_bytes // MIB} MiB",
        f"{used.cpu_ms_per_second / 10:.0f} % of a core",
        f"{used.threads} threads",
        f"{used.open_files} open files",
    )
