"""`snapline update`: another version of a job takes the place of the one that runs, or the old one goes on.

Decides the order, and what is an end. A savepoint while the job runs, and a plan: a program that does not fit is
refused and nothing has happened. Then the job stops with a second savepoint, and the new version starts from it; it has
done so when its first checkpoint is complete. One that fails before, or takes too long, is cancelled, and the old graph
starts again from the same savepoint. Sinks commit with checkpoints, so that a version without one has left nothing
behind. From the moment at which the job stops, whatever goes wrong (a new version that is refused, Ctrl-C, a
coordinator that goes away) ends with one of both running; a second Ctrl-C ends the command at once.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from snapline.client import ClusterClient, CoordinatorUnreachable
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.jobgraph import JobGraph, SavepointRestoreSettings
from snapline.dataflow.graph.translation import Translation
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.codec import decode_job_graph, decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.interrupts import interrupt_waits
from snapline.plan import plan_job, snapshot_at_hand

LOOK_SECONDS = 0.2
END_SECONDS = 60.0
"""How long a version that is given up may take to end, and how long a coordinator that has gone away is asked again."""


T = TypeVar("T")


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

    def tell(line: str) -> None:
        with contextlib.suppress(OSError):  # whoever has read the lines is gone, and the job must not be
            say(line)

    new_id, savepoint = uuid.uuid4().hex, ""
    try:
        with interrupt_waits():
            savepoint = client.stop_with_savepoint(job_id, directory)
            tell(f"job {job_id} has stopped with savepoint {savepoint}")
            _start(client, translation.job_graph, new_id, savepoint, allow_non_restored_state=allow_non_restored_state)
            tell(f"job {new_id} starts from it")
        why_not = _wait_for_checkpoint(client, new_id, timeout_s)
    except (SnaplineError, KeyboardInterrupt) as error:
        if not savepoint:
            raise
        why_not = "was interrupted" if isinstance(error, KeyboardInterrupt) else f"cannot start: {error}"
    if not why_not or (_is_known(client, new_id) and _has_completed(client, new_id)):
        return UpdatedJob(new_id, savepoint)
    tell(f"the new version {why_not}: the old one is brought back")
    with interrupt_waits():
        raise UpdateFailed(_go_back(client, old, new_id, savepoint, why_not))


def _go_back(client: ClusterClient, old: JobGraph, new_id: str, savepoint: str, why_not: str) -> str:
    """End the new version, where there is one, and start the old one again; returns what has become of both."""
    back = uuid.uuid4().hex
    try:
        if _is_known(client, new_id):
            _end(client, new_id)
            if _has_completed(client, new_id):
                latest = client.list_checkpoints(new_id).latest_completed.path
                return (
                    f"the new version was given up ({why_not}) when it had just completed {latest}: start it from there"
                )
        _start(client, old, back, savepoint)
    except (SnaplineError, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        line = (
            f"the new version {why_not}, and the old one {'may not run' if interrupted else f'cannot start: {error}'}"
        )
        line += f": look at snapline list, and start one of them from {savepoint}"
        if interrupted:
            raise KeyboardInterrupt(line) from None
        raise UpdateFailed(line) from error
    return f"the new version {why_not}; the old one goes on as job {back} from {savepoint}"


def _start(
    client: ClusterClient, job_graph: JobGraph, job_id: str, savepoint: str, *, allow_non_restored_state: bool = False
) -> None:
    restore = SavepointRestoreSettings(savepoint, allow_non_restored_state)
    graph = replace(job_graph, job_id=JobID(job_id), savepoint_restore=restore)

    def submit() -> None:
        if not _is_known(client, job_id):  # a coordinator that went away may have accepted it
            client.submit(graph)

    _patiently(submit)


def _is_known(client: ClusterClient, job_id: str) -> bool:
    return any(job.job_id == job_id for job in _patiently(client.list_jobs))


def _has_completed(client: ClusterClient, job_id: str) -> bool:
    """Whether the job has a checkpoint, with which its sinks have committed."""
    return bool(_patiently(lambda: client.list_checkpoints(job_id)).counts.completed)


def _patiently(call: Callable[[], T]) -> T:
    """Call until a coordinator answers; after the death of one, that may be another one some seconds later."""
    until = time.monotonic() + END_SECONDS
    while True:
        try:
            return call()
        except CoordinatorUnreachable:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_SECONDS)


def _wait_for_checkpoint(client: ClusterClient, job_id: str, timeout_s: float) -> str:
    """Until the job has completed a checkpoint, or all its rows; returns why it has not, else nothing."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        overview = _patiently(lambda: client.get_job(job_id)).overview
        status = decode_job_status(overview.status)
        if _has_completed(client, job_id) or status is JobStatus.FINISHED:
            return ""
        if status.is_globally_terminal:
            return f"is {status.value}: {overview.failure.summary}"
        time.sleep(LOOK_SECONDS)
    found = _patiently(lambda: client.explain_job(job_id)).summary
    return f"has completed no checkpoint within {timeout_s:.0f} s ({found})"


def _end(client: ClusterClient, job_id: str) -> None:
    """Cancel what is given up, and wait: two versions must not write at a time."""
    until = time.monotonic() + END_SECONDS

    def has_ended() -> bool:
        return decode_job_status(client.get_job(job_id).overview.status).is_globally_terminal

    if not _patiently(has_ended):
        _patiently(lambda: client.cancel(job_id))
    while not _patiently(has_ended):
        if time.monotonic() > until:
            raise UpdateFailed(
                f"the new version, job {job_id}, does not end within {END_SECONDS:.0f} s, and nothing was started in its place: snapline why "
                f"{job_id}"
            )
        time.sleep(LOOK_SECONDS)
