"""What committers of tables share, whichever format the table has: races with other writers, and the files of a
checkpoint."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from snapline.connectors.files.output_files import open_output
from snapline.dataflow.api.user_metrics import Counter
from snapline.dataflow.errors import ConnectorError

LOST_RACES_MAX = 100
"""So many commits of others may come between one of ours and the look before it."""


def commit_against_others(attempt: Callable[[], bool], table: str, checkpoint_id: int, retries: Counter) -> None:
    """Commit onto the table as it is, again and again while `attempt` says that somebody else was faster, which is
    counted. Raises ConnectorError after LOST_RACES_MAX of them, and whatever the attempt raises."""
    for _ in range(LOST_RACES_MAX):
        if attempt():
            return
        retries.inc()
    raise ConnectorError(
        f"{table}: others committed {LOST_RACES_MAX} times between a look at the table and the commit of checkpoint "
        f"{checkpoint_id}; let fewer jobs write it, or take longer checkpoint intervals"
    )


def path_of(directory: str, file: Mapping[str, Any]) -> str:
    """Where a data file lies that a checkpoint names. Raises ConnectorError for a path that no writer of tables gives:
    a snapshot that was made up must not lead to other files."""
    path = file["path"]
    if (
        not isinstance(path, str)
        or {"", ".", ".."} & {*path.split("/")}
        or not posixpath.basename(path).startswith("part-")
    ):
        raise ConnectorError(
            f"the snapshot names {path!r:.300} as a data file of {directory}, which no sink has written: it was changed; take another one"
        )
    return f"{directory}/{path}"


def delete_files(directory: str, options: Mapping[str, str], written: Iterable[Mapping[str, Any]]) -> None:
    """Delete files that were written for a commit which will not come."""
    files, location = open_output(directory, options)
    for path in [path_of(location.path, file) for file in written]:
        files.delete(path)


def require_files(directory: str, options: Mapping[str, str], written: Iterable[Mapping[str, Any]], what: str) -> None:
    """Raise ConnectorError when a file that a checkpoint holds is gone: then its rows are lost."""
    files, location = open_output(directory, options)
    for file in written:
        if not files.exists(path_of(location.path, file)):
            raise ConnectorError(
                f"{what}: {file['path']} is gone, and with it {file['rows']} rows that were never committed; VACUUM "
                "or another clean-up has removed it, or a person. Start from an earlier snapshot, or without this one's output"
            )
