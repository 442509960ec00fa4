"""Which files in a job's checkpoint directory nobody will ever ask for: those of uploads whose task, TaskManager or leader died in between.

A file that a living coordinator knows of is deleted by name (`publication`); these it never heard of. Only files of the two
shapes that tasks write are ever named here, and only of checkpoints whose number is too old to be taken any more: savepoints, a
checkpoint with its metadata, and whatever else lies there are their owner's. Flink leaves such files to its users.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from dataflow.ids import CheckpointID

_OWN_FILE = re.compile(r"(?P<location>chk-(?P<checkpoint>\d+))/.+")
_SHARED_FILE = re.compile(r"shared/segment-.+-(?P<checkpoint>\d+)-\d+")
_METADATA = "_metadata"


def leftovers(
    files: Iterable[str], kept_files: Collection[str], kept_locations: Collection[str], before: CheckpointID
) -> list[str]:
    """The files among `files` (relative to the job's directory) of checkpoints with a number below `before` that neither are
    among the kept ones nor lie in the directory of a kept or complete checkpoint."""
    there = list(files)
    complete = {file.removesuffix(f"/{_METADATA}") for file in there if file.endswith(f"/{_METADATA}")}
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
