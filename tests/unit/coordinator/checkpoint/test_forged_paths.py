"""State handles that name files which no task of the job wrote: nothing is deleted, and nothing is completed with
them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snapline.coordinator.checkpoint.abandoned_files import may_be_deleted, may_be_shared
from snapline.coordinator.checkpoint.effects import (
    CheckpointRequestFailed,
    DiscardCheckpoint,
    DiscardState,
    MessageRefused,
    RemoveCompletedCheckpoint,
    StoreCompletedCheckpoint,
)
from snapline.coordinator.checkpoint.events import (
    AbortPendingCheckpoints,
    CheckpointIdCountSet,
    CheckpointIdDrawn,
    CheckpointRequested,
    CheckpointRequestID,
    CheckpointStored,
    CompletedCheckpointRemoved,
    RestoreSavepoint,
)
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from snapline.dataflow.snapshot.handles import CheckpointMetadata, OperatorState, OperatorStateMode
from tests.unit.coordinator.checkpoint.small_job import JOB, Coordinator, attempt, keyed, listed, snapshot

FOREIGN = (
    "/etc/passwd",
    "file:///base/other-job/chk-1/_metadata",
    "file:/base/other-job/chk-1/segment-tm-0",
    "../other-job/chk-1/segment-tm-0",
    "chk-1/../chk-3/segment-tm-0",
    "chk-3/segment-tm-0",
    "shared/segment-tm-3-0",
    "savepoint-1f/segment-tm-1-0",
)
"""For checkpoint 1 of a job."""

KEYS = KeyGroupRange(0, 3)
"""Of the first of two subtasks."""


def abort(job: Coordinator) -> None:
    job.tell(AbortPendingCheckpoints(CheckpointFailureReason.CHECKPOINT_EXPIRED))


@pytest.mark.parametrize("path", FOREIGN)
def test_a_late_acknowledgement_deletes_no_foreign_file(path: str) -> None:
    """Checkpoint 1 was aborted: its own files go, whatever else is named stays."""
    job = Coordinator()
    job.trigger("a", 1)
    abort(job)

    effects = job.acknowledge(1, job.tasks[0], state=snapshot(src=keyed(path), own=keyed("chk-1/segment-tm-0")))

    assert [effect.paths for effect in effects if isinstance(effect, DiscardState)] == [("chk-1/segment-tm-0",)]


@pytest.mark.parametrize("path", FOREIGN)
def test_an_aborted_checkpoint_deletes_no_foreign_file(path: str) -> None:
    """Checkpoint 1 is aborted after one task named a file of its own and one of somebody else."""
    job = Coordinator()
    job.trigger("a", 1)
    job.acknowledge(1, job.tasks[0], state=snapshot(src=keyed(path), own=keyed("shared/segment-tm-1-0")))

    effects = job.tell(AbortPendingCheckpoints(CheckpointFailureReason.CHECKPOINT_EXPIRED))

    assert [effect.paths for effect in effects if isinstance(effect, DiscardCheckpoint)] == [("shared/segment-tm-1-0",)]


@pytest.mark.parametrize("path", FOREIGN[:5])
def test_a_checkpoint_with_state_outside_of_its_job_does_not_complete(path: str) -> None:
    """It would be read at the next restart, and deleted when it is subsumed."""
    job = Coordinator()
    job.trigger("a", 1)

    job.acknowledge(1, *job.tasks[1:])
    effects = job.acknowledge(1, job.tasks[0], state=snapshot(src=keyed(path, KEYS, shared_key="k")))

    assert not any(isinstance(effect, StoreCompletedCheckpoint) for effect in effects)
    assert [(e.reason, e.detail) for e in effects if isinstance(e, CheckpointRequestFailed)] == [
        (
            CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
            f"a task says that its state lies in {path}, which is outside of the job's directory",
        )
    ]


def test_a_second_upload_of_shared_state_deletes_nothing_that_is_needed() -> None:
    """A task names, as its duplicate, the file in which another one's state lies."""
    job = Coordinator()
    job.trigger("a", 1)
    job.acknowledge(1, *job.tasks[1:])
    job.acknowledge(1, job.tasks[0], state=snapshot(src=keyed("shared/segment-tm-1-0", KEYS, shared_key="k")))
    job.tell(CheckpointStored(CheckpointID(1)))
    job.trigger("b", 2)
    job.acknowledge(2, job.tasks[1])
    job.acknowledge(2, job.tasks[2], state=snapshot(sink=keyed("chk-2/needed")))
    (store,) = [
        effect
        for effect in job.acknowledge(2, job.tasks[0], state=snapshot(src=keyed("chk-2/needed", KEYS, shared_key="k")))
        if isinstance(effect, StoreCompletedCheckpoint)
    ]
    assert "chk-2/needed" in store.checkpoint.file_paths()

    effects = job.tell(CheckpointStored(CheckpointID(2)))

    assert [effect.paths for effect in effects if isinstance(effect, DiscardState)] == []


def test_what_comes_late_for_an_aborted_savepoint_goes_from_its_directory() -> None:
    """A savepoint lies where its user wanted it, outside of the job's directory."""
    job = Coordinator()
    request = CheckpointRequestID("s")
    job.tell(CheckpointRequested(request, SnapshotType.SAVEPOINT, "s3://bucket/savepoint-1"))
    job.tell(CheckpointIdDrawn(request, CheckpointID(1)))
    abort(job)

    state = snapshot(src=keyed("s3://bucket/savepoint-1/segment-tm-0"), sink=keyed("s3://bucket/savepoint-2/_metadata"))
    effects = job.acknowledge(1, job.tasks[0], state=state)

    assert [effect.paths for effect in effects if isinstance(effect, DiscardState)] == [
        ("s3://bucket/savepoint-1/segment-tm-0",)
    ]


def test_which_files_a_task_can_have_written() -> None:
    """Those of the checkpoint, wherever it lies, and shared ones of its number; never those of another one."""
    one = CheckpointID(1)
    written = ("chk-1/a", "chk-1/a/b", "shared/segment-tm-1-0", "state-of-an-old-version")

    assert [path for path in (*written, *FOREIGN) if may_be_deleted(path, one)] == list(written)
    assert may_be_deleted("/savepoints/s-1/x", one, "/savepoints/s-1/")
    assert not may_be_deleted("/savepoints/s-1/../s-2/x", one, "/savepoints/s-1")
    assert not may_be_deleted("/savepoints/s-1", one, "/savepoints/s-1")
    assert [path for path in (*written, *FOREIGN) if may_be_shared(path)] == [
        "shared/segment-tm-1-0",
        "state-of-an-old-version",
        "shared/segment-tm-3-0",
    ]


def test_a_claimed_snapshot_deletes_only_what_tasks_have_written() -> None:
    """A savepoint that was planted can name any file: when its state was replaced, the file was deleted."""
    shared = "file:///ckpt/other/shared/segment-tm-7-0"
    foreign = ("/etc/snapline/token", "/home/me/.ssh/id_rsa", "file:///ckpt/other/chk-7/../../../segment-x", shared)
    ranges = [compute_key_group_range_for_operator_index(8, len(foreign), n) for n in range(len(foreign))]
    subtasks = {n: keyed(path, ranges[n], shared_key=f"k{n}") for n, path in enumerate(foreign)}
    named = OperatorState(OperatorID("src"), "src", "src", len(foreign), 8, subtasks)
    metadata = CheckpointMetadata(JOB, "job", CheckpointID(7), 0, SnapshotType.CHECKPOINT, (named,))
    job = Coordinator()
    request = CheckpointRequestID("restore")
    job.tell(RestoreSavepoint(request, metadata, "file:///ckpt/other/chk-7", claim=True))
    job.tell(CheckpointIdCountSet(request))
    job.tell(CheckpointStored(CheckpointID(7)))

    deleted: list[str] = []
    for number in range(8, 12):
        job.trigger(str(number), number)
        job.acknowledge(number)
        for effect in job.tell(CheckpointStored(CheckpointID(number))):
            deleted += effect.paths if isinstance(effect, DiscardState) else ()
            if isinstance(effect, RemoveCompletedCheckpoint):
                removed = job.tell(CompletedCheckpointRemoved(effect.checkpoint.checkpoint_id))
                deleted += [path for each in removed if isinstance(each, DiscardState) for path in each.paths]

    assert deleted == [shared]


def test_nobody_who_acknowledges_deletes_the_metadata_of_a_checkpoint() -> None:
    """A stranger names it as its state, before and after the checkpoint is complete: no leader could start the job
    from that checkpoint any more."""
    job = Coordinator()
    stranger, lie = attempt("gone"), snapshot(src=keyed("chk-1/_metadata"))
    job.trigger("a", 1)
    effects = job.acknowledge(1, stranger, state=lie)
    effects += job.acknowledge(1)
    effects += job.tell(CheckpointStored(CheckpointID(1)))
    effects += job.acknowledge(1, stranger, state=lie)

    assert {effect.paths for effect in effects if isinstance(effect, DiscardState)} == {()}


def test_files_of_a_checkpoint_that_may_yet_be_taken_are_not_deleted() -> None:
    """A deletion that fails is tried again for seconds: by then the checkpoint, which a stranger has acknowledged
    before it was triggered, was complete, and had lost the files of others that he named. Of one that was passed over
    they go."""
    job = Coordinator()
    job.trigger("a", 4)
    deleted = {}
    for number in (3, 5):
        (refused, discarded) = job.acknowledge(
            number, attempt("gone"), state=snapshot(src=keyed(f"chk-{number}/segment-tm-{number}-0"))
        )
        assert isinstance(refused, MessageRefused) and isinstance(discarded, DiscardState)
        deleted[number] = discarded.paths

    assert deleted == {3: ("chk-3/segment-tm-3-0",), 5: ()}


def test_of_a_stranger_to_a_checkpoint_nothing_is_kept_but_names_of_files() -> None:
    """A thousand acknowledgements of tasks that there are not were kept until the checkpoint was decided, with all
    that travelled in them: gigabytes."""
    job = Coordinator()
    job.trigger("a", 1)
    files = keyed("chk-1/segment-tm-1-0").managed_keyed
    state = replace(listed(OperatorStateMode.UNION, b"x" * 1000), managed_keyed=files)

    job.acknowledge(1, attempt("gone"), state=snapshot(src=state))

    assert {CheckpointID(1): {"chk-1/segment-tm-1-0": None}} == job.core.publication._strays
