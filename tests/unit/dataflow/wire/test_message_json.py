"""Messages as JSON."""

from __future__ import annotations

import json

from snapline.dataflow.wire.message_json import message_as_dict
from snapline.protos import client_pb2 as pb


def test_zeros_are_there_and_64_bit_numbers_are_numbers() -> None:
    """A program reads `restarts` and compares times without a special case."""
    job = pb.JobOverview(
        job_id="a", start_time_ms=1_800_000_000_000, subtasks_by_state={"RUNNING": 2}, status="JOB_STATUS_RUNNING"
    )
    assert json.loads(json.dumps(message_as_dict(job))) == {
        "job_id": "a",
        "name": "",
        "status": "JOB_STATUS_RUNNING",
        "start_time_ms": 1_800_000_000_000,
        "end_time_ms": 0,
        "restarts": 0,
        "subtasks_by_state": {"RUNNING": 2},
        "failure": None,
        "latest_completed_checkpoint_id": 0,
        "status_detail": "",
    }


def test_lists_and_messages_within_are_there_too() -> None:
    """Empty ones as empty lists, those that are not set as null."""
    found = message_as_dict(pb.JobDetails(vertices=[pb.VertexDetails(name="v", subtasks=[pb.SubtaskDetails()])]))
    assert found["vertices"][0]["subtasks"][0]["records_in"] == 0
    assert (found["edges"], found["overview"], found["checkpoint_counts"]) == ([], None, None)
