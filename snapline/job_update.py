"""`snapline update`: another version of a job takes the place of the one that runs, or the old one goes on.

Decides the order, and what is an end. A savepoint while the job runs, and a plan: a program that does not fit is
refused and nothing has happened. Then the job stops with a second savepoint, and the new version starts from it; it has
done so when its first checkpoint is complete. One that fails before, or takes too long, is cancelled, and the old graph
starts again from the same savepoint. Sinks commit with checkpoints, so that a version without one has left nothing
behind. From the moment at which the job is asked to stop, whatever goes wrong (a new version that is refused, Ctrl-C
or another signal, a coordinator that goes away) ends with one of both running, or in a line that says where things
stand and what to type; a second signal ends the command at once, with such a line.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from snapline.client import ClusterClient, CoordinatorUnreachable, RequestRefused
from snapline.connectors.parquet.staged_rows import StagedRowsSource
from snapline.connectors.parquet.streamed_rows import StreamedRowsSource
from snapline.dataflow.config import CHECKPOINTING_RETENTION, Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.declared_payload import load_payload
from snapline.dataflow.graph.jobgraph import JobGraph, SavepointRestoreSettings
from snapline.dataflow.graph.translation import Translation
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.codec import decode_job_graph, decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.interrupts import HeldInterrupts
from snapline.plan import NEW, JobPlan, plan_job, snapshot_at_hand
from snapline.protos import checkpoint_pb2

LOOK_SECONDS = 0.2
END_SECONDS = 60.0
"""How long a version that is given up may take to end, and how long a coordinator that has gone away is asked again."""
SOON = 0.1
"""Part of the time for a first checkpoint after which it is asked for."""


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
    """Let the translated program take the job's place. Raises UpdateFailed when the old job runs on, or runs again, and
    KeyboardInterrupt, which says where things stand, for a second signal, or one before the old job is asked to
    stop."""

    def tell(line: str) -> None:
        with contextlib.suppress(OSError):  # whoever has read the lines is gone, and the job must not be
            say(line)

    if translation.job_graph.staged_directories or _sources(translation.job_graph, StreamedRowsSource):
        raise UpdateFailed(
            f"job {job_id} runs on as it was: it has a streaming DataFrame, whose query runs in its program, and after an update there is "
            "none: snapline stop, and start the program from that savepoint"
        )
    with HeldInterrupts() as held:
        try:
            with held.let_through():
                old = decode_job_graph(client.get_job_graph(job_id).job_graph)
                client.list_page(page_size=1)  # who may not see other jobs may not start one
                savepoint = client.trigger_savepoint(job_id, directory)
                tell(f"savepoint {savepoint} is compared with the new version")
                plan = plan_job(
                    translation,
                    savepoint,
                    snapshot_at_hand(savepoint),
                    allow_non_restored_state=allow_non_restored_state,
                )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"job {job_id} runs on as it was") from None
        except RequestRefused as error:
            status = decode_job_status(client.get_job(job_id).overview.status)
            if status.is_globally_terminal:
                raise UpdateFailed(
                    f"job {job_id} is {status.value}, and cannot be updated; snapline run -s SAVEPOINT SCRIPT starts the new version"
                ) from error
            raise UpdateFailed(f"job {job_id} runs on as it was: {error}") from error
        if not plan.would_start:
            raise UpdateFailed(f"job {job_id} runs on as it was: the new version cannot start from it: {plan.refusal}")
        if frame := _frame_without_rows(translation.job_graph, plan):
            raise UpdateFailed(
                f"job {job_id} runs on as it was: the DataFrame of source {frame!r} is new, and only a program that runs computes it: "
                "snapline stop, and start the program from that savepoint"
            )

        update = _Update(client, old, translation.job_graph, uuid.uuid4().hex, allow_non_restored_state, tell)
        update.savepoint = _stop(client, job_id, directory)
        tell(f"job {job_id} has stopped with savepoint {update.savepoint}")
        try:
            update.start_new(update.new_id, update.savepoint)
            tell(f"job {update.new_id} starts from it")
            with held.let_through():
                why_not = _wait_for_checkpoint(client, update.new_id, timeout_s)
        except KeyboardInterrupt:
            why_not = "was interrupted"
        except Exception as error:  # whatever it is, one of both must run
            why_not = f"cannot start: {error}"
        return update.settle(why_not)


def _frame_without_rows(job_graph: JobGraph, plan: JobPlan) -> str:
    """The source of a DataFrame that the snapshot does not know, by its uid; empty: there is none."""
    new = {operator.uid for operator in plan.operators if operator.verdict == NEW}
    found = _sources(job_graph, StagedRowsSource)
    return next((uid for uid in found if uid in new), "")


def _sources(job_graph: JobGraph, kind: type) -> list[str]:
    """The uids of the job's sources of a kind."""
    nodes = (node for vertex in job_graph.vertices for node in vertex.operators if node.is_source)
    return [node.uid for node in nodes if isinstance(getattr(load_payload(node.payload), "source", None), kind)]


def _stop(client: ClusterClient, job_id: str, directory: str) -> str:
    """Stop the old job and return its savepoint, whatever becomes of the coordinator meanwhile: who was asked may have
    stopped the job without being able to say so, and the next leader may have it run again."""
    trigger_id = uuid.uuid4().hex
    manual = "snapline list says whether it runs; if not, snapline checkpoints"
    manual += f" {job_id} names its savepoint, and snapline run -s SAVEPOINT SCRIPT starts from it"
    until = 0.0
    try:
        while True:
            try:
                return client.stop_with_savepoint(job_id, directory, trigger_id=trigger_id)
            except SnaplineError as error:
                if savepoint := _patiently(lambda: _savepoint_of_stopped(client, job_id)):
                    return savepoint
                status = decode_job_status(_patiently(lambda: client.get_job(job_id)).overview.status)
                if status.is_globally_terminal:
                    raise UpdateFailed(f"job {job_id} is {status.value} without a savepoint: {error}") from error
                is_away = isinstance(error, CoordinatorUnreachable)
                if is_away and not until:
                    until = time.monotonic() + END_SECONDS
                if time.monotonic() >= until:  # until then the next coordinator may have to start the job first
                    if is_away:
                        raise
                    raise UpdateFailed(f"job {job_id} runs on as it was: {error}") from error
                if not is_away:  # what was refused under an id stays so
                    trigger_id = uuid.uuid4().hex
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"job {job_id} was asked to stop, and may do so: {manual}") from None
    except UpdateFailed:
        raise
    except SnaplineError as error:
        raise UpdateFailed(f"job {job_id} was asked to stop, and then: {error}: {manual}") from error


def _savepoint_of_stopped(client: ClusterClient, job_id: str) -> str:
    """Where the job has stopped with a savepoint; empty: it runs, or has ended otherwise."""
    if decode_job_status(client.get_job(job_id).overview.status) is not JobStatus.FINISHED:
        return ""
    found = client.list_checkpoints(job_id)
    latest = found.latest_savepoint
    is_of_stop = latest.snapshot_type == checkpoint_pb2.SNAPSHOT_TYPE_SAVEPOINT_SUSPEND
    return latest.path if is_of_stop and latest.checkpoint_id >= found.latest_completed.checkpoint_id else ""


@dataclass(slots=True)
class _Update:
    """Both versions, from the moment at which the old one has stopped."""

    client: ClusterClient
    old: JobGraph
    new: JobGraph
    new_id: str
    allow_non_restored_state: bool
    tell: Callable[[str], None]
    savepoint: str = ""

    def start_new(self, job_id: str, snapshot: str) -> None:
        """Start the new version from the snapshot."""
        _start(self.client, self.new, job_id, snapshot, allow_non_restored_state=self.allow_non_restored_state)

    def settle(self, why_not: str) -> UpdatedJob:
        """See which version it is, and let it run. `why_not`: what speaks against the new one, if anything."""
        client, new_id = self.client, self.new_id
        try:
            if not why_not or (_is_known(client, new_id) and _has_completed(client, new_id)):
                return UpdatedJob(new_id, self.savepoint)
            self.tell(f"the new version {why_not}: the old one is brought back")
            return self._go_back(why_not)
        except UpdateFailed:
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"the new version {why_not}, and the old one may not run{self._manual}") from None
        except Exception as error:
            raise UpdateFailed(
                f"the new version {why_not}, and the old one cannot start: {error}{self._manual}"
            ) from error

    @property
    def _manual(self) -> str:
        return f": look at snapline list, and start one of them from {self.savepoint} if neither runs: snapline run -s {self.savepoint} SCRIPT"

    def _go_back(self, why_not: str) -> UpdatedJob:
        """End the new version, where there is one, and start the old one again, for which UpdateFailed is raised; or
        the new one, when it has come to work meanwhile."""
        client, new_id, another = self.client, self.new_id, uuid.uuid4().hex
        if _is_known(client, new_id):
            if _end(client, new_id) is JobStatus.FINISHED:
                return UpdatedJob(new_id, self.savepoint)
            if _has_completed(client, new_id):
                return self._go_on(why_not, another)
        _start(client, self.old, another, self.savepoint)
        raise UpdateFailed(f"the new version {why_not}; the old one goes on as job {another} from {self.savepoint}")

    def _go_on(self, why_not: str, another: str) -> UpdatedJob:
        """The new version has completed a checkpoint while it was given up: its sinks have committed, so that only the
        new one can go on, from there."""
        if Configuration(self.new.configuration).get_option(CHECKPOINTING_RETENTION) != "RETAIN_ON_CANCELLATION":
            raise UpdateFailed(
                f"the new version {why_not} and was cancelled when it had just completed a checkpoint, which went with it: neither runs, and "
                f"the rows of that checkpoint come twice from here: snapline run -s {self.savepoint} SCRIPT"
            )
        latest = _patiently(lambda: self.client.list_checkpoints(self.new_id)).latest_completed.path
        self.start_new(another, latest)
        self.tell(f"the new version had just completed {latest}: it goes on from there")
        return UpdatedJob(another, latest)


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
    """Until the job has completed a checkpoint, or all its rows; returns why it has not, else nothing. One that does
    not come soon is asked for: its own may be hours away."""
    until = time.monotonic() + timeout_s
    soon = time.monotonic() + timeout_s * SOON
    while time.monotonic() < until:
        overview = _patiently(lambda: client.get_job(job_id)).overview
        status = decode_job_status(overview.status)
        if _has_completed(client, job_id) or status is JobStatus.FINISHED:
            return ""
        if status.is_globally_terminal:
            return f"is {status.value}: {overview.failure.summary}"
        if time.monotonic() > soon and {*overview.subtasks_by_state} <= {"RUNNING", "FINISHED"}:
            with contextlib.suppress(SnaplineError):  # it fails meanwhile, or takes too long, which is seen here
                client.trigger_checkpoint(job_id, timeout_s=until - time.monotonic())
        time.sleep(LOOK_SECONDS)
    found = _patiently(lambda: client.explain_job(job_id)).summary
    return f"has completed no checkpoint within {timeout_s:.0f} s ({found})"


def _end(client: ClusterClient, job_id: str) -> JobStatus:
    """Cancel what is given up, and wait: two versions must not write at a time. Returns how it has ended."""
    until = time.monotonic() + END_SECONDS

    def status() -> JobStatus:
        return decode_job_status(client.get_job(job_id).overview.status)

    is_cancelled, why = False, ""
    while not (now := _patiently(status)).is_globally_terminal:
        if not is_cancelled:
            try:
                _patiently(lambda: client.cancel(job_id))
                is_cancelled = True
            except RequestRefused as error:  # it has just ended, or cannot be asked yet
                why = f" ({error})"
        if time.monotonic() > until:
            raise UpdateFailed(
                f"the new version, job {job_id}, does not end within {END_SECONDS:.0f} s{why}, and nothing was started in its place: snapline why "
                f"{job_id}"
            )
        time.sleep(LOOK_SECONDS)
    return now
