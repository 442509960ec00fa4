"""What is said of processes: memory that grows, clocks that have leapt, a leader that is new, a snapshot that is being
written."""

from __future__ import annotations

from typing import Any

from snapline.coordinator.diagnosis.explanation import explain
from snapline.coordinator.diagnosis.memory_growth import growing_task_managers
from snapline.dataflow.ids import ResourceID
from snapline.dataflow.wire.messages import AllocationSite, HeapType, ThreadDump, ThreadStack
from snapline.protos import client_pb2 as pb
from snapline.protos import cluster_pb2
from tests.unit.coordinator.diagnosis.test_explanation import ENGINE, LOOP, job, subtask

MIB = 1 << 20
OWN = "job.SEEN (/home/ann/job.py:21)"


def process(resource_id: str = "tm-0", clock_leap_ms: int = 0, **figures: Any) -> pb.TaskManagerDetails:
    used = cluster_pb2.ProcessFigures(resident_bytes=900 * MIB, clock_leap_ms=clock_leap_ms)
    return pb.TaskManagerDetails(resource_id=resource_id, host="h1", process=used, **figures)


GROWING = process(memory_growth_bytes=310 * MIB, memory_growth_ms=40_000)


def said(*dumps: ThreadDump, registered: tuple[pb.TaskManagerDetails, ...] = (), **more: Any) -> list[tuple[str, str]]:
    found = explain(
        job([subtask()]), pb.ListCheckpointsResponse(), more.pop("waiting", None), dumps, 60_000, registered, **more
    )
    return [(finding.kind, finding.summary) for finding in found.findings]


def heap(*frames: str, kept: int = 5 * MIB) -> ThreadDump:
    types = (HeapType("bytes", 15_000, 300 * MIB), HeapType("list", 12, 1 * MIB))
    return ThreadDump("r", ResourceID("tm-0"), (), 1, types, (AllocationSite(frames, 250, kept),))


def test_a_leak_is_named_with_what_keeps_more_and_more() -> None:
    """A container that the user's module holds; the types that take most are named, too."""
    assert said(heap(OWN), registered=(GROWING,)) == [
        (
            "leak",
            "the memory of tm-0 has grown by 310 MiB in 40 s, to 900 MiB; user code keeps more and more in job.SEEN (job.py:21): 250 more, about 5,120 KiB, while it was looked at; most of it: bytes (15,000), list (12)",
        )
    ]


def test_memory_that_the_engine_keeps_is_no_leak_of_the_user() -> None:
    """State that grows with its keys, for example."""
    index = f"KeyIndex.slots ({ENGINE}/state/index/key_index.py:9)"
    ((kind, line),) = said(heap(index), registered=(GROWING,))
    assert kind == "memory" and "more and more is kept in KeyIndex.slots (key_index.py:9)" in line


def test_growth_alone_says_how_to_see_more() -> None:
    """Without a look at the heap; little that was kept names nobody; other jobs' TaskManagers do not matter."""
    begin = "the memory of tm-0 has grown by 310 MiB in 40 s, to 900 MiB"
    assert said(registered=(GROWING,)) == [("memory", f"{begin} (snapline profile JOB --heap shows who keeps it)")]
    ((_, line),) = said(heap(OWN, kept=100), registered=(GROWING,))
    assert line == f"{begin}; most of it: bytes (15,000), list (12)"
    other = process("tm-9", memory_growth_bytes=310 * MIB)
    assert growing_task_managers(job([subtask()]), [GROWING, other]) == {"tm-0"}
    assert said(registered=(other, process())) == []


def test_a_clock_that_has_leapt_is_named() -> None:
    """By the process itself, or because it is far from the coordinator's."""
    tail = ": event times, time-outs of user code and credentials that follow the wall clock are wrong there"
    assert said(registered=(process(clock_leap_ms=-3_600_000),)) == [
        ("clock", f"the clock of h1 has leapt by -3,600 s since tm-0 was started{tail}")
    ]
    assert said(registered=(process(clock_offset_ms=95_000),)) == [
        ("clock", f"the clock of h1, where tm-0 runs, differs from the coordinator's by +95 s{tail}")
    ]
    assert said(registered=(process(clock_offset_ms=4_000, clock_leap_ms=900),)) == []


def test_a_new_leader_is_named_for_a_while() -> None:
    """Not for a job that began under it."""
    line = "the leader has changed: this coordinator leads since 20 s, and has taken the job over"
    assert said(leads_since_ms=40_000) == [("leader", line)]
    details = job([subtask()])
    details.overview.start_time_ms = 50_000
    assert not explain(details, pb.ListCheckpointsResponse(), None, (), 60_000, (), 40_000).findings
    assert not explain(job([subtask()]), pb.ListCheckpointsResponse(), None, (), 600_000, (), 40_000).findings


def test_a_checkpoint_that_waits_for_the_storage_says_so() -> None:
    """The task itself is idle, a thread beside it writes; or all have acknowledged, and the coordinator writes."""
    waiting = pb.CheckpointDetails(overview=pb.CheckpointOverview(checkpoint_id=7, trigger_timestamp_ms=50_000))
    acknowledged = waiting.vertices.add(vertex_id="v0", name="v0").subtasks.add()
    put = f"put ({ENGINE.replace('taskmanager', 'runtime/storage')}/object_storage.py:88)"
    pool = "_worker (/usr/lib/python3.11/concurrent/futures/thread.py:81)"
    writing = ThreadStack("snapshot-upload_0", "", None, (pool, put), 10)
    idle = ThreadStack("snapshot-upload_1", "", None, (pool,), 10)
    dump = ThreadDump("r", ResourceID("tm-0"), (idle, writing, ThreadStack("t", "v0", None, (LOOP,), 10)))
    assert said(dump, waiting=waiting) == [
        (
            "storage",
            "checkpoint 7 waits for v0 (1) since 10 s; its snapshot is being written to the storage: put (object_storage.py:88)",
        )
    ]
    assert said(waiting=waiting) == [("checkpoint", "checkpoint 7 waits for v0 (1) since 10 s")]
    acknowledged.acknowledge_timestamp_ms = 51_000
    assert said(waiting=waiting) == [
        ("storage", "checkpoint 7 has all acknowledgements, and the coordinator stores its metadata since 10 s")
    ]
