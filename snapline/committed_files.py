"""Which files a sink has committed after which checkpoint, and how far a reader of them is.

Decides the order in which files of a sink's directory are read, and what an offset is: the newest checkpoint that is
read, and of each subtask its last file. Files of one checkpoint appear one after the other, and those of one subtask in
the order of checkpoints; so a position per subtask is exact where the number of the checkpoint alone would miss files
that appear later. Each partition of a sink, and what is put together from all subtasks, has positions of its own. A
core: it neither lists nor reads anything. Flink has no such reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SUFFIXES = {".parquet": "parquet", ".orc": "orc", ".avro": "avro", ".jsonl": "json", ".csv": "csv"}
"""Formats of files by how their names end; of text, the compression may follow."""
_NAME = re.compile(
    r"(?P<directory>(?:[^/=]+=[^/]*/)*)part-(?P<uid>.+)-(?:(?P<subtask>\d{4,})-(?P<checkpoint>\d{6,})-(?P<number>\d+)-"
    r"(?P<attempt>[0-9a-f]+)-(?P<sequence>\d{4,})|all-(?P<together>\d{6,}))(?P<suffix>\.[a-z]+)(?:\.gz|\.zst)?"
)
_JOB = re.compile(r"[0-9a-f]{32}-")
_ALL = -1
"""The subtask of files that were put together from those of all."""
Offset = dict[str, Any]
"""Spark keeps it: `{"checkpoint": newest, "files": {"<uid>/<subtask>": "<checkpoint>-<number>-<sequence>"}}`, where the
directories of partitions stand before the uid."""


@dataclass(frozen=True, order=True, slots=True)
class CommittedFile:
    """A file of a sink that is visible, in the order in which its subtask made it visible."""

    checkpoint: int
    number: int
    sequence: int
    subtask: int
    uid: str
    """With the id of the job before it."""
    name: str
    """With the directories of its partition."""
    format: str = "parquet"
    directory: str = ""
    """Those of its partition, `column=value/...`; empty: there are none."""

    @classmethod
    def parse(cls, name: str) -> CommittedFile | None:
        """From the name of a file; None for a file that no sink has committed."""
        match = _NAME.fullmatch(name)
        if match is None or match["suffix"] not in SUFFIXES:
            return None
        return cls(
            int(match["checkpoint"] or match["together"]),
            int(match["number"] or 0),
            int(match["sequence"] or 0),
            int(match["subtask"] or _ALL),
            match["uid"],
            name,
            SUFFIXES[match["suffix"]],
            match["directory"],
        )

    @property
    def place(self) -> str:
        """Return the subtask that wrote it, as offsets name it."""
        return f"{self.directory}{self.uid}/{'all' if self.subtask == _ALL else self.subtask}"

    @property
    def sink_uid(self) -> str:
        """Return the uid of its sink, without the job's id."""
        return _JOB.sub("", self.uid, count=1) if _JOB.match(self.uid) else self.uid

    @property
    def position(self) -> str:
        """Return where it stands among the files of its subtask, as offsets say it."""
        return f"{self.checkpoint}-{self.number}-{self.sequence}"

    def is_after(self, offset: Mapping[str, Any]) -> bool:
        """Whether an offset does not include it."""
        last = offset.get("files", {}).get(self.place)
        return last is None or (self.checkpoint, self.number, self.sequence) > _parsed(last)


def _parsed(position: str) -> tuple[int, ...]:
    return tuple(int(part) for part in position.split("-"))


NOTHING: Offset = {"checkpoint": 0, "files": {}}


def committed(names: Iterable[str]) -> list[CommittedFile]:
    """The files that sinks have committed, the oldest checkpoint first."""
    return sorted(file for file in map(CommittedFile.parse, names) if file is not None)


def between(files: Iterable[CommittedFile], start: Mapping[str, Any], end: Mapping[str, Any]) -> list[CommittedFile]:
    """Files after `start` that `end` includes."""
    return [file for file in files if file.is_after(start) and not file.is_after(end)]


def advance(start: Mapping[str, Any], files: Sequence[CommittedFile], most: int | None = None) -> Offset:
    """The offset behind the oldest `most` of those files that `start` does not include; None: behind all."""
    places = dict(start.get("files", {}))
    newest = int(start.get("checkpoint", 0))
    for file in [file for file in sorted(files) if file.is_after(start)][:most]:
        places[file.place] = file.position
        newest = max(newest, file.checkpoint)
    return {"checkpoint": newest, "files": places}


def missing(files: Iterable[CommittedFile], offset: Mapping[str, Any], start: Mapping[str, Any]) -> list[str]:
    """Subtasks whose last file of `offset` is not there any more, although it is after `start`."""
    there = {(file.place, file.position) for file in files}
    return [
        place
        for place, position in offset.get("files", {}).items()
        if (place, position) not in there and start.get("files", {}).get(place) != position
    ]
