"""`snapline update`: another version of a job takes the place of the one that runs, or the old one goes on.

Decides the order, and what is an end. A savepoint while the job runs, and a plan: a program that does not fit is
refused and nothing has happened. Then the job stops with a second savepoint, and the new version starts from it; it has
done so when its first checkpoint is complete. One that fails before, or takes too long, is cancelled, and the old graph
starts again from the same savepoint. Sinks commit with checkpoints, so that a version without one has left nothing
behind.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from snapline.client import ClusterClient
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.jobgraph import JobGraph, SavepointRestoreSettings
from snapline.dataflow.graph.translation import Translation
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.codec import decode_job_graph, decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.plan import plan_job, snapshot_at_hand

LOOK_SECONDS = 0.2
END_SECONDS = 60.0
"""How long a version that is given up may take to end."""


class UpdateFailed(SnaplineError):
    """The job is the old one; the line says why."""


@dataclass(frozen=True, slots=True)
class UpdatedJob:
    """The new version, which has completed a checkpoint."""

    job_id: str
    savepoint: str


def update_job(
    client: ClusterClient,
    job_id: str,
    translation: Translation,
    *,
    directory: str = "",
    timeout_s: float = 120.0,
    allow_non_restored_state: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> UpdatedJob:
    """Let the translated program take the job's place. Raises UpdateFailed when the old job runs on, or runs again."""
    old = decode_job_graph(client.get_job_graph(job_id).job_graph)
    savepoint = client.trigger_savepoint(job_id, directory)
    say(f"savepoint {savepoint} is compared with the new version")
    plan = plan_job(
        translation, savepoint, snapshot_at_hand(savepoint), allow_non_restored_state=allow_non_restored_state
    )
    if not plan.would_start:
        raise UpdateFailed(f"job {job_id} runs on as it was: the new version cannot start from it: {plan.refusal}")
    savepoint = client.stop_with_savepoint(job_id, directory)
    say(f"job {job_id} has stopped with savepoint {savepoint}")
    new_id = _start(client, translation.job_graph, savepoint, allow_non_restored_state=allow_non_restored_state)
    say(f"job {new_id} starts from it")
    why_not = _wait_for_checkpoint(client, new_id, timeout_s)
    if not why_not:
        return UpdatedJob(new_id, savepoint)
    _end(client, new_id)
    if client.list_checkpoints(new_id).counts.completed:
        latest = client.list_checkpoints(new_id).latest_completed.path
        raise UpdateFailed(
            f"the new version was given up ({why_not}) when it had just completed {latest}: start it from there"
        )
    back = _start(client, old, savepoint)
    raise UpdateFailed(f"the new version {why_not}; the old one goes on as job {back} from {savepoint}")


def _start(
    client: ClusterClient, job_graph: JobGraph, savepoint: str, *, allow_non_restored_state: bool = False
) -> str:
    restore = SavepointRestoreSettings(savepoint, allow_non_restored_state)
    return client.submit(replace(job_graph, job_id=JobID(uuid.uuid4().hex), savepoint_restore=restore))


def _wait_for_checkpoint(client: ClusterClient, job_id: str, timeout_s: float) -> str:
    """Until the job has completed a checkpoint, or all its rows; returns why it has not, else nothing."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        overview = client.get_job(job_id).overview
        status = decode_job_status(overview.status)
        if client.list_checkpoints(job_id).counts.completed or status is JobStatus.FINISHED:
            return ""
        if status.is_globally_terminal:
            return f"is {status.value}: {overview.failure.summary}"
        time.sleep(LOOK_SECONDS)
    found = client.explain_job(job_id).summary
    return f"has completed no checkpoint within {timeout_s:.0f} s ({found})"


def _end(client: ClusterClient, job_id: str) -> None:
    """Cancel what is given up, and wait: two versions must not write at a time."""
    until = time.monotonic() + END_SECONDS
    if not decode_job_status(client.get_job(job_id).overview.status).is_globally_terminal:
        client.cancel(job_id)
    while not decode_job_status(client.get_job(job_id).overview.status).is_globally_terminal:
        if time.monotonic() > until:
            raise UpdateFailed(
                f"the new version, job {job_id}, does not end within {END_SECONDS:.0f} s, and nothing was started in its place: snapline why "
                f"{job_id}"
            )
        time.sleep(LOOK_SECONDS)
