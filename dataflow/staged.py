"""How directories and files are called whose rows were computed once for one job, and that go with it.

The coordinator deletes what a job names as staged only when its name has this form, and in it only files of these
forms: a job graph is no reason to delete anything else.
"""

from __future__ import annotations

import re

STAGED_PREFIX = "snapline-staged-"
STAGED_MANIFEST = "_rows.json"
_DIRECTORY = re.compile(rf"{STAGED_PREFIX}[0-9a-f]{{32}}")
_FILE = re.compile(
    r"(rows/)?(part-[0-9a-f-]+\.parquet(\.inprogress)?|_rows(-[0-9a-f]+)?\.json)"  # of a frame, or of micro-batches
    r"|(batches|claims|ends)/\d{12}\.json|query/.+"  # which these, and the log of Spark's query, belong to
)


def is_staged_directory(location: str) -> bool:
    """Whether a directory of this path or URL holds rows that were staged for a job.

    >>> is_staged_directory("s3://bucket/snapline-staged-" + "0" * 32), is_staged_directory("/home/me")
    (True, False)
    """
    return _DIRECTORY.fullmatch(location.rstrip("/").rpartition("/")[2]) is not None


def is_staged_file(name: str) -> bool:
    """Whether a file in such a directory was written for the job.

    >>> is_staged_file("part-00001-0a1b.parquet"), is_staged_file("query/offsets/0"), is_staged_file("notes.txt")
    (True, True, False)
    """
    return _FILE.fullmatch(name) is not None
