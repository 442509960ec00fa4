"""Which files in a job's checkpoint directory nobody will ever ask for: those of uploads whose task, TaskManager or
leader died in between.

A file that a living coordinator knows of is deleted by name (`publication`); these it never heard of. Only files of the
two shapes that tasks write are ever named here, and only of checkpoints whose number is too old to be taken any more:
savepoints, a checkpoint with its metadata, and whatever else lies there are their owner's. A coordinator that was
killed between the metadata of a checkpoint and its pointer leaves one that nothing points to (an orphan): it goes, too,
when the metadata itself says that this job took it. Flink leaves such files to its users.

What a task says of its files is no reason to delete one that it cannot have written: `may_be_deleted` keeps to the
job's directory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.urls import is_absolute

_OWN_FILE = re.compile(r"(?P<location>chk-(?P<checkpoint>\d+))/.+")
_SHARED_FILE = re.compile(r"shared/segment-.+-(?P<checkpoint>\d+)-\d+")
_CHECKPOINT = re.compile(r"(?P<base>.*)/(?P<job>[^/]+)/chk-\d+")
_JOB = re.compile(r"[0-9a-f]{32}")
_OF_A_CHECKPOINT = re.compile(r"(chk-\d+/segment-[^/]+|shared/segment-[^/]+-\d+-\d+)")
_WRITTEN_ELSEWHERE = re.compile(r".+/segment-[^/]+")
_METADATA = "_metadata"


def checkpoint_of_shared_file(path: str) -> CheckpointID | None:
    """The checkpoint that a task wrote this shared file for; None: no task did."""
    match = _SHARED_FILE.fullmatch(path)
    return None if match is None else CheckpointID(int(match["checkpoint"]))


def is_below(path: str) -> bool:
    """Whether a path leads below the directory that it is relative to, as those that tasks make up for themselves
    do."""
    return not is_absolute(path) and all(part not in ("", ".", "..") for part in path.split("/"))


def may_be_deleted(path: str, checkpoint_id: CheckpointID, location: str = "") -> bool:
    """Whether a task can have written this file for this checkpoint: below the checkpoint's directory, or below the
    job's and not for another checkpoint. Whatever else a message names is somebody else's, and stays, as does the
    metadata of a checkpoint, which coordinators write."""
    if path.rpartition("/")[2] == _METADATA:
        return False
    inside = path.removeprefix(f"{location.rstrip('/')}/") if location else path
    if inside != path:
        return is_below(inside)
    own = _OWN_FILE.fullmatch(path)
    written_for = checkpoint_of_shared_file(path) if own is None else int(own["checkpoint"])
    if written_for is None:
        return may_be_shared(path)
    return is_below(path) and written_for == checkpoint_id


def may_be_shared(path: str) -> bool:
    """Whether incremental checkpoints of the job can have shared this file: in the job's directory, or where it has
    shared ones. Whatever else lies below that directory, such as a savepoint, is its owner's."""
    return is_below(path) and ("/" not in path or path.startswith("shared/"))


def may_be_claimed(path: str) -> bool:
    """Whether a job that was started from somebody else's snapshot, and owns it, may delete this file of it: its name
    is one that tasks give. Snapshots can name any file that there is."""
    return _WRITTEN_ELSEWHERE.fullmatch(path) is not None and ".." not in path.split("/")


def root_of_adopted(path: str, location: str) -> str | None:
    """The directory in which a file has to be, behind no link that leads out, when the snapshot that is adopted in
    `location` names it. None: the snapshot may not name the file at all.

    A savepoint has its files in its own directory. A checkpoint, `<base>/<job>/chk-<n>`, may share files that tasks
    have written for other checkpoints, of its own job and of one whose checkpoint it was started from. Both paths are
    spelled alike and without escapes."""
    if not path.isprintable():  # some characters vanish where a URL is read
        return None
    if path.startswith(f"{location}/"):
        return location if is_below(path[len(location) + 1 :]) else None
    checkpoint = _CHECKPOINT.fullmatch(location)
    if checkpoint is None or not path.startswith(f"{checkpoint['base']}/"):
        return None
    job, _, inside = path[len(checkpoint["base"]) + 1 :].partition("/")
    is_job = job == checkpoint["job"] or _JOB.fullmatch(job) is not None
    return checkpoint["base"] if is_job and _OF_A_CHECKPOINT.fullmatch(inside) else None


def suspects(files: Iterable[str], kept_locations: Collection[str], before: CheckpointID) -> list[str]:
    """Directories of checkpoints that have their metadata and are not kept: orphans, or what an earlier job left for
    its user."""
    found = []
    for file in files:
        own = _OWN_FILE.fullmatch(file)
        if own is not None and file.endswith(f"/{_METADATA}") and int(own["checkpoint"]) < before:
            found.append(own["location"])
    return [location for location in found if location not in kept_locations]


def leftovers(
    files: Iterable[str],
    kept_files: Collection[str],
    kept_locations: Collection[str],
    before: CheckpointID,
    orphans: Collection[str] = (),
) -> list[str]:
    """The files among `files` (relative to the job's directory) of checkpoints with a number below `before` that
    neither are among the kept ones nor lie in the directory of a kept or complete checkpoint, unless that is one of the
    orphans. Metadata first: what is half deleted is no checkpoint any more."""
    there = sorted(files, key=lambda file: not file.endswith(f"/{_METADATA}"))
    complete = {file.removesuffix(f"/{_METADATA}") for file in there if file.endswith(f"/{_METADATA}")}
    complete -= set(orphans)
    found = []
    for file in there:
        own = _OWN_FILE.fullmatch(file)
        match = own or _SHARED_FILE.fullmatch(file)
        if match is None or int(match["checkpoint"]) >= before or file in kept_files:
            continue
        if own is not None and (own["location"] in kept_locations or own["location"] in complete):
            continue
        found.append(file)
    return found
