"""Where a sink of files stages what is not committed, and how its files are called.

Decides names alone: staged files lie in `<path>/_staging/<job>/`, committed ones tell job, sink, subtask, checkpoint
and attempt, so that no two ever share one and a commit that is repeated finds its work done; `is_orphan` says which
staged files lost attempts left behind.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from snapline.dataflow.api.connector_api import SourceContextInfo
from snapline.dataflow.errors import ConnectorError

STAGING = "_staging"
IN_PROGRESS = ".inprogress"
STAGED = ".staged"
NAME_LENGTH_MAX = 40
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
DIRECTORY_BYTES_MAX = 255
"""What file systems take as a name; object stores take more, and their files are copied to file systems."""
SHORTENED = 60
"""So many letters remain of what is too long for the name of a directory."""
_FINAL = re.compile(r"part-.+-\d{4,}-\d{6,}-\d+-[0-9a-f]+-\d{4,}(.*)")
_ASCII = re.compile(r"[\x00-\x7f]+")
_NOT_IN_NAMES = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^]""")
"""What Hive and Spark escape. Readers look for a column by its name as it is, whatever its letters are."""


@dataclass(frozen=True, slots=True)
class StagedName:
    """`<uid>-<subtask>-<attempt number>-<attempt>-<sequence>` and a suffix; the last four never contain a hyphen."""

    uid: str
    subtask: int
    attempt_number: int
    attempt: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.uid}-{self.subtask}-{self.attempt_number}-{self.attempt}-{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> StagedName | None:
        """None for a name that is not one of ours."""
        match = re.fullmatch(r"(.+)-(\d+)-(\d+)-([0-9a-f]+)-(\d+)(?:\.\w+)", text)
        if match is None:
            return None
        uid, subtask, attempt_number, attempt, sequence = match.groups()
        return cls(uid, int(subtask), int(attempt_number), attempt, int(sequence))


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Where one subtask of a sink works, and how its files are called."""

    directory: str
    staging: str
    job: str
    uid: str
    subtask: int
    parallelism: int
    attempt_number: int
    attempt: str
    """Stands for the execution graph of the attempt; each leader of the job that restarts it has another one."""

    @classmethod
    def of(cls, directory: str, context: SourceContextInfo) -> SinkPlace:
        """From the context of a writer or committer."""
        job, graph = file_name(context.job_id), context.execution_attempt.rsplit("_", 2)[0]
        return cls(
            directory=directory,
            staging=f"{directory}/{STAGING}/{job}",
            job=job,
            uid=file_name(context.operator_uid),
            subtask=context.subtask_index,
            parallelism=context.parallelism,
            attempt_number=context.attempt_number,
            attempt=hashlib.blake2b(graph.encode(), digest_size=6).hexdigest(),
        )

    def staged(self, sequence: int) -> str:
        """Name, without suffix, of the n-th file that this attempt writes."""
        return str(StagedName(self.uid, self.subtask, self.attempt_number, self.attempt, sequence))

    def final(self, checkpoint_id: int, sequence: int, suffix: str) -> str:
        """Name of a committed file; ordered by subtask, then by time."""
        where = f"{self.job}-{self.uid}-{self.subtask:04d}-{checkpoint_id:06d}"
        return f"part-{where}-{self.attempt_number}-{self.attempt}-{sequence:04d}{suffix}"

    @property
    def sweep(self) -> str:
        """What no other attempt of the subtask has."""
        return f"{self.attempt_number}-{self.attempt}"

    def of_sweep(self, uid: str, sweep: Mapping[str, Any]) -> SinkPlace:
        """The place of the attempt that handed this out."""
        number, _, attempt = str(sweep["sweep"]).partition("-")
        subtask, parallelism = sweep["subtask"], sweep["parallelism"]
        return replace(
            self, uid=uid, subtask=subtask, parallelism=parallelism, attempt_number=int(number), attempt=attempt
        )

    def is_orphan(self, name: str, there: frozenset[StagedName | None]) -> bool:
        """Whether a staged file belongs to an earlier attempt of this subtask, or of one that this one stands for since
        the parallelism was lowered. One of a later attempt has taken the place of this one. `there`: what was staged
        when this attempt began; what another execution graph has staged since then is of a leader that has taken the
        job over."""
        staged = StagedName.parse(name)
        return (
            staged is not None
            and staged.uid == self.uid
            and staged.subtask % self.parallelism == self.subtask
            and (staged in there if staged.attempt != self.attempt else staged.attempt_number < self.attempt_number)
        )


def is_of_sink(uid: str, staged: object, target: object) -> bool:
    """Whether a sink with this name has given these to a file, where it is staged and where it becomes visible. What a
    snapshot names may be made up; the sink's path may be another one than that of the job which took it."""
    if not (isinstance(staged, str) and isinstance(target, str)):
        return False
    directory, _, name = staged.rpartition(f"/{STAGING}/")
    file = StagedName.parse(name.partition("/")[2])
    return (
        file is not None
        and file.uid == uid
        and staged.endswith(STAGED)
        and target.startswith(f"{directory}/")
        and posixpath.basename(target).startswith("part-")
        and not {"", ".", ".."} & {*name.split("/"), *target.removeprefix(f"{directory}/").split("/")}
    )


def suffix_of(target: str, unknown: str) -> str:
    """What the name of a committed file ends with, by its format; `unknown` where it is no name of a subtask's file."""
    match = _FINAL.fullmatch(posixpath.basename(target))
    return unknown if match is None else match[1]


def file_name(text: str) -> str:
    """The text itself where it can be a file name, else something like it that differs from all others."""
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:NAME_LENGTH_MAX] or "sink"
    return slug if slug == text else f"{slug}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def partition_directory(columns: tuple[str, ...], values: tuple[object, ...], safe: str = " :+,@") -> str:
    """`column=value/...`, as Hive, Spark, polars and DuckDB write and read it. Raises ConnectorError for a value that
    has no name of a directory: one that is too long, an empty text, which ends every reader of Spark, and the text that
    stands for null. `safe`: signs that are written as they are."""
    parts = []
    for column, value in zip(columns, values, strict=True):
        if value in ("", NULL_PARTITION):
            raise ConnectorError(
                f"partition_by: column {column!r} is {value!r} in a row, which a directory cannot say (Hive takes it for null, and Spark "
                "cannot read what has such a directory); make it null or another text before the sink"
            )
        name = _name_in_path(column)
        said = str(value).lower() if isinstance(value, bool) else str(value)
        part = f"{name}={NULL_PARTITION if value is None else _signs_escaped(said, safe)}"
        if len(part.encode()) > DIRECTORY_BYTES_MAX:
            raise ConnectorError(
                f"partition_by: a value of column {column!r} that begins with {str(value)[:40]!r} makes the name of a directory of "
                f"{len(part.encode())} bytes, and file systems take {DIRECTORY_BYTES_MAX}: shorten it before the sink, or partition by "
                "another column"
            )
        parts.append(part)
    return "/".join(parts)


def table_directory(values: Iterable[tuple[str, str | None]]) -> str:
    """`column=value/...` for data files of a table whose readers do not look at paths: all that counts is that two
    directories are different when values are."""
    parts = []
    for column, text in values:
        value = NULL_PARTITION if text is None else quote(text, safe="")
        if text == NULL_PARTITION:
            value = f"%{ord(text[0]):X}{text[1:]}"
        part = f"{_name_in_path(column)}={value}"
        if len(part.encode()) > DIRECTORY_BYTES_MAX:
            part = f"{part[:SHORTENED]}-{hashlib.blake2b(part.encode(), digest_size=12).hexdigest()}"
        parts.append(part)
    return "/".join(parts)


def _signs_escaped(value: str, safe: str) -> str:
    """The value with its signs escaped, and not its letters: Spark takes each escaped byte for a letter."""
    return _ASCII.sub(lambda found: quote(found[0], safe=safe), value)


def _name_in_path(column: str) -> str:
    return _NOT_IN_NAMES.sub(lambda found: quote(found[0], safe=""), column)
