"""Which snapshot `snapline transactions` takes of a job that has ended."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from snapline.commands.target import Target
from snapline.commands.transaction_commands import _snapshot
from snapline.coordinator.snapshots import NoSnapshot
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2

KEPT = "/checkpoints/job/chk-3"


def test_checkpoints_that_have_failed_since_do_not_hide_the_latest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten of them are all that the history remembers: a job whose sink had failed so often was said to have no
    checkpoint, and nobody was shown what it had left open."""
    failed = [pb.CheckpointOverview(checkpoint_id=n, status=pb.CHECKPOINT_STATUS_FAILED) for n in range(14, 4, -1)]
    savepoint = pb.CheckpointOverview(checkpoint_id=2, path="/savepoints/of-long-ago")
    found = pb.ListCheckpointsResponse(
        history=failed, latest_completed=pb.CheckpointOverview(checkpoint_id=3, path=KEPT), latest_savepoint=savepoint
    )
    ended = pb.JobDetails(overview=pb.JobOverview(status=job_pb2.JOB_STATUS_FAILED))
    client = SimpleNamespace(resolve_job=lambda name: name, get_job=lambda _: ended, list_checkpoints=lambda _: found)
    target: Any = SimpleNamespace(client=lambda: contextlib.nullcontext(client))

    def open_snapshot(path: str) -> None:
        if path != KEPT:
            raise NoSnapshot(path)

    monkeypatch.setattr("snapline.open_transactions.open_snapshot", open_snapshot)
    assert _snapshot(cast(Target, target), "orders", ends=True) == KEPT
