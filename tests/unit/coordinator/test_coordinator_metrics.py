"""What Prometheus is shown of jobs, whatever happens to them while it asks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pykka

from snapline.coordinator.coordinator_metrics import CoordinatorMetrics
from snapline.coordinator.job_registry import EndedJob, JobRegistry, LiveJob
from snapline.dataflow.ids import JobID
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2
from snapline.runtime.clock import ManualClock

JOB = JobID("a" * 32)


def test_a_job_that_ends_while_its_actor_is_asked_is_shown_as_ended() -> None:
    """It was in neither half: no alert saw it in that look."""
    loop = asyncio.new_event_loop()
    loop.close()  # nobody watches
    registry = JobRegistry(loop, ManualClock(), 10)
    overview = pb.JobOverview(job_id=JOB, name="ends", status=job_pb2.JOB_STATUS_FAILED)
    view = EndedJob.from_archive(pb.ArchivedJob(details=pb.JobDetails(overview=overview)))

    def ask(*_question: Any, **_options: Any) -> Any:
        registry.ended(JOB, view)
        raise pykka.ActorDeadError

    master, actor = SimpleNamespace(job_id=JOB), SimpleNamespace(ask=ask)
    registry.started(cast(LiveJob, SimpleNamespace(master=master, actor=actor)))
    nobody = cast(Any, SimpleNamespace(ask=lambda *_question, **_options: []))

    found = list(CoordinatorMetrics(nobody, registry, ManualClock(), 0).samples())

    assert 1.0 in [each.value for each in found if "failedState" in each.name]
