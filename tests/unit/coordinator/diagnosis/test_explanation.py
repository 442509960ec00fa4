"""What a job is said to wait for, from figures and stacks that were made up."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from snapline.coordinator.diagnosis.explanation import explain, suspected_task_managers, task_managers_of
from snapline.coordinator.diagnosis.stack_reading import place_of
from snapline.dataflow.ids import ExecutionAttemptID, JobVertexID, ResourceID
from snapline.dataflow.wire.messages import ThreadDump, ThreadStack
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2

ENGINE = "/opt/v/lib/python3.11/site-packages/snapline/taskmanager"
LOOP = f"TaskThread._run ({ENGINE}/threads/task_thread.py:70)"
OPERATOR = f"MapOperator.process_batch ({ENGINE}/operators/base/stateless.py:40)"
WRITE = "ParquetSink.write (/opt/v/lib/python3.11/site-packages/snapline/connectors/parquet/sink.py:9)"
SOCKET = "recv (/usr/lib/python3.11/socket.py:706)"
OWN = "enrich (/home/ann/job.py:17)"


def subtask(index: int = 0, state: str = "RUNNING", **figures: Any) -> pb.SubtaskDetails:
    return pb.SubtaskDetails(
        subtask_index=index,
        state=f"EXECUTION_STATE_{state}",
        resource_id=f"tm-{index}",
        **figures,
    )


def job(*vertices: list[pb.SubtaskDetails], status: str = "RUNNING", detail: str = "") -> pb.JobDetails:
    """A line of vertices `v0 -> v1 -> ...`, by key."""
    names = [f"v{n}" for n in range(len(vertices))]
    details = pb.JobDetails(overview=pb.JobOverview(status=f"JOB_STATUS_{status}", status_detail=detail))
    for name, subtasks in zip(names, vertices, strict=True):
        details.vertices.add(
            vertex_id=name, name=name, parallelism=len(subtasks), max_parallelism=128, subtasks=subtasks
        )
    for source, target in pairwise(names):
        details.edges.add(source=source, target=target, key_columns=["user"])
    return details


def seen(vertex: str, *frames: str, index: int = 0, count: int = 10) -> ThreadDump:
    attempt = ExecutionAttemptID("g", JobVertexID(vertex), index, 0)
    return ThreadDump("r", ResourceID("tm-0"), (ThreadStack("t", vertex, attempt, (LOOP, *frames), count),))


def explained(details: pb.JobDetails, *dumps: ThreadDump, waiting: pb.CheckpointDetails | None = None, now_ms: int = 0):
    found = explain(details, pb.ListCheckpointsResponse(), waiting, dumps, now_ms)
    return [(finding.kind, finding.summary) for finding in found.findings]


def test_a_call_that_does_not_come_back_is_named_with_its_line() -> None:
    """User code comes first, with the innermost line of the user's own."""
    details = job([subtask(backpressured_ms_per_second=900)], [subtask(step_ms=42_000, busy_ms_per_second=1000)])
    assert explained(details, seen("v1", OPERATOR, OWN, SOCKET)) == [
        (
            "user code",
            "v1 (1/1) on tm-0 has not come back from a call for 42 s; it is in user code: enrich (job.py:17)",
        )
    ]


@pytest.mark.parametrize(("awaited", "words"), [("lock", "a lock"), ("answer", "an answer")])
def test_what_a_function_waits_for_is_said(awaited: str, words: str) -> None:
    """A lock and an answer are other troubles than code that computes; a slow sink remains one."""
    details = job([subtask()], [subtask(step_ms=42_000, busy_ms_per_second=1000)])
    begins = "v1 (1/1) on tm-0 has not come back from a call for 42 s"
    asks, writes = seen("v1", OPERATOR, OWN, SOCKET), seen("v1", OPERATOR, WRITE, SOCKET)
    asks, writes = (replace(d, stacks=(replace(d.stacks[0], waits_for=awaited),)) for d in (asks, writes))
    assert explained(details, asks) == [(awaited, f"{begins}; it waits for {words} in user code: enrich (job.py:17)")]
    assert explained(details, writes) == [
        ("sink", f"{begins}; it waits for {words} in connector: recv (socket.py:706)")
    ]


def test_a_chain_is_called_a_sink_only_by_who_sees_its_connector() -> None:
    """`snapline status` looks at no stack: of a function and a sink in one task it does not know which is slow."""
    details = job([subtask()], [subtask(step_ms=42_000, busy_ms_per_second=1000)])
    details.vertices[1].operator_uids.extend(["enriched", "written"])
    said = "v1 (1/1) on tm-0 has not come back from a call for 42 s"
    assert explained(details) == [("busy", said)]
    assert explained(details, seen("v1", OPERATOR, WRITE, SOCKET)) == [
        ("sink", f"{said}; it is in connector: recv (socket.py:706)")
    ]
    del details.vertices[1].operator_uids[:-1]
    assert explained(details) == [("sink", said)]


def test_requests_that_are_not_answered_are_said() -> None:
    """The thread of the task is in no call: it waits for room for the next request."""
    full = subtask(busy_ms_per_second=1000, records_in_per_second=3, awaits="the answers to 100 requests of ask")
    details = job([subtask(backpressured_ms_per_second=900)], [full], [subtask()])
    turns = f"Turns.wait ({ENGINE}/threads/turns.py:70)"
    assert explained(details, seen("v1", turns)) == [
        (
            "answer",
            "v1 (1/1) on tm-0 is busy 100 % of the time and back-pressures v0: it takes 3 rows/s; it waits for the answers to 100 requests of ask",
        )
    ]


def test_a_library_that_is_being_loaded_is_no_slow_sink() -> None:
    """The first batch may load one for seconds, on a busy machine or from a slow disk."""
    details = job([subtask()], [subtask(step_ms=4_000, busy_ms_per_second=1000)])
    assert explained(details, seen("v1", OPERATOR, "_find_and_load (<frozen importlib._bootstrap>:1176)")) == [
        ("loading", "v1 (1/1) on tm-0 has not come back from a call for 4 s; it loads a library")
    ]


def test_a_slow_sink_is_the_root_of_back_pressure() -> None:
    """Busy without being back-pressured itself; whom it holds up is named."""
    details = job(
        [subtask(backpressured_ms_per_second=950)],
        [subtask(backpressured_ms_per_second=900, busy_ms_per_second=50)],
        [subtask(busy_ms_per_second=990, records_in_per_second=1200)],
    )
    assert explained(details, seen("v2", OPERATOR, WRITE, SOCKET)) == [
        (
            "sink",
            "v2 (1/1) on tm-0 is busy 99 % of the time and back-pressures v0, v1: it takes 1,200 rows/s; it is in connector: recv (socket.py:706)",
        )
    ]


def test_a_source_that_can_do_no_more_is_named() -> None:
    """Nobody is back-pressured, and the job is as fast as this subtask."""
    details = job([subtask(busy_ms_per_second=1000, records_in_per_second=420)], [subtask(busy_ms_per_second=20)])
    assert explained(details, seen("v0", OPERATOR, OWN)) == [
        (
            "user code",
            "v0 (1/1) on tm-0 is busy 100 % of the time: it takes 420 rows/s; it is in user code: enrich (job.py:17)",
        )
    ]


def test_a_skewed_key_is_named_by_its_key_groups() -> None:
    """The subtask that gets most of the rows, and which key groups are its own."""
    rates = (10, 900, 20, 15)
    hot = [subtask(n, busy_ms_per_second=rate, records_in_per_second=rate) for n, rate in enumerate(rates)]
    assert explained(job([subtask()], hot)) == [
        (
            "skew",
            "v1 (2/4) on tm-1 gets 95 % of the rows, 900 a second: its keys (user) in the key groups 32 to 63 are skewed",
        )
    ]


def test_that_a_key_is_skewed_is_said_before_how_busy_its_subtask_is() -> None:
    """The one is the cause of the other; of a subtask that others hold up, how busy they are is said first."""
    rates = (10, 990, 20, 15)
    hot = [subtask(n, busy_ms_per_second=rate, records_in_per_second=rate) for n, rate in enumerate(rates)]
    held_up = [subtask(backpressured_ms_per_second=900)]
    assert [kind for kind, _ in explained(job(held_up, hot))] == ["skew", "sink"]
    warm = [subtask(n, busy_ms_per_second=min(rate, 600), records_in_per_second=rate) for n, rate in enumerate(rates)]
    sink = [subtask(busy_ms_per_second=990)]
    assert [kind for kind, _ in explained(job(held_up, warm, sink))] == ["sink", "skew"]


def test_even_subtasks_are_no_skew() -> None:
    """However busy all of them are."""
    even = [subtask(n, busy_ms_per_second=900, records_in_per_second=500 + n) for n in range(4)]
    assert explained(job([subtask()], even)) == []


@pytest.mark.parametrize("rates", [(100, 300, 300), (300, 100, 100, 300, 300), (1, 1, 1, 300, 300, 300, 300, 300)])
def test_what_most_subtasks_get_is_no_skew(rates: tuple[int, ...]) -> None:
    """The subtask in the middle has as many rows as the hottest one: a few have less, because they have fewer keys."""
    busy = [subtask(n, busy_ms_per_second=900, records_in_per_second=rate) for n, rate in enumerate(rates)]
    assert explained(job([subtask()], busy)) == []


def test_a_checkpoint_says_whom_it_waits_for() -> None:
    """After five seconds, or three times what is usual."""
    waiting = pb.CheckpointDetails(overview=pb.CheckpointOverview(checkpoint_id=7, trigger_timestamp_ms=1_000))
    vertex = waiting.vertices.add(vertex_id="v1", name="v1")
    vertex.subtasks.add(subtask_index=0, acknowledge_timestamp_ms=2_000)
    vertex.subtasks.add(subtask_index=1)
    details = job([subtask()], [subtask(), subtask(1)])
    assert explained(details, waiting=waiting, now_ms=4_000) == []
    assert explained(details, seen("v1", OPERATOR, OWN, index=1), waiting=waiting, now_ms=31_000) == [
        ("checkpoint", "checkpoint 7 waits for v1 (2) since 30 s; it is in user code: enrich (job.py:17)")
    ]
    assert suspected_task_managers(details, waiting) == {"tm-1"}


def test_checkpoints_that_cannot_be_triggered_are_named() -> None:
    """With a coordinator that draws no ids, nothing held the job up, and its output was not visible for ever."""
    refused = pb.ListCheckpointsResponse(refusal="No checkpoint id could be drawn: the directory is read-only")
    running, failing = (job([subtask()], status=status) for status in ("RUNNING", "FAILING"))
    assert [each.summary for each in explain(running, refused, None, (), 0).findings] == [
        "no checkpoint can be triggered: No checkpoint id could be drawn: the directory is read-only"
    ]
    assert "checkpoint" not in [each.kind for each in explain(failing, refused, None, (), 0).findings]


def test_a_job_without_slots_says_what_it_waits_for() -> None:
    """What the ResourceManager has said, rejected TaskManagers included."""
    detail = "waiting for slots: 4 required, 1 available; TaskManager b has Snapline 0.3.0"
    details = job([subtask(state="SCHEDULED")], status="CREATED", detail=detail)
    assert explained(details) == [("slots", f"the job is CREATED: {detail}")]
    assert task_managers_of(details) == set()


def test_a_job_that_restarts_names_its_last_failure() -> None:
    """With the task."""
    details = job([subtask(state="CANCELED")], status="RESTARTING")
    details.overview.restarts = 3
    details.failures.add(task_name="v0 (1/1)", failure=job_pb2.SerializedFailure(summary="ZeroDivisionError"))
    assert explained(details) == [
        ("failure", "the job is RESTARTING, after 3 restarts; last failure of v0 (1/1): ZeroDivisionError")
    ]


def test_a_source_without_watermarks_is_named() -> None:
    """Windows behind it wait, although rows come."""
    quiet = [subtask(0, watermark_ms=5_000), subtask(1, watermark_ms=-(2**63))]
    (found,) = explained(job(quiet))
    assert found[0] == "watermark" and found[1].startswith("v0 (2/2) on tm-1 has no watermark yet")


def test_a_healthy_job_is_said_to_be_healthy() -> None:
    """With the busiest subtask, so that a person knows where it will end."""
    healthy = job([subtask(busy_ms_per_second=120)], [subtask(busy_ms_per_second=340)])
    found = explain(healthy, pb.ListCheckpointsResponse(), None, (), 0)
    assert found.summary == "nothing holds the job up; the busiest subtask is v1 (1/1) on tm-0, 34 % of the time"
    assert list(found.findings) == []


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ((f"Turns.begin ({ENGINE}/threads/turns.py:190)",), "waiting"),
        (
            (f"LocalStorage.write ({ENGINE.replace('taskmanager', 'runtime/storage')}/local_storage.py:9)", SOCKET),
            "storage",
        ),
        ((OPERATOR, "compute (/opt/v/lib/python3.11/site-packages/pyarrow/compute.py:8)"), "user code"),
        ((OPERATOR,), "engine"),
        ((OPERATOR, "_find_and_load (<frozen importlib._bootstrap>:1027)"), "loading"),
    ],
)
def test_a_stack_says_whose_code_a_thread_is_in(frames: tuple[str, ...], kind: str) -> None:
    """What the engine has called last decides."""
    place = place_of(seen("v", *frames).stacks)
    assert place is not None and place.kind == kind
