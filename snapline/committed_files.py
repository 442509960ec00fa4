"""Which files a sink has committed after which checkpoint, and how far a reader of them is.

Decides the order in which files of a sink's directory are read, and what an offset is: the newest checkpoint that is
read, and of each subtask its last file. Files of one checkpoint appear one after the other, and those of one subtask in
the order of checkpoints; so a position per subtask is exact where the number of the checkpoint alone would miss files
that appear later. A core: it neither lists nor reads anything. Flink has no such reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(
    r"part-(?P<uid>.+)-(?P<subtask>\d{4,})-(?P<checkpoint>\d{6,})-(?P<number>\d+)-(?P<attempt>[0-9a-f]+)-(?P<sequence>\d{4,})"
    r"\.parquet"
)
Offset = dict[str, Any]
"""Spark keeps it: `{"checkpoint": newest, "files": {"<uid>/<subtask>": "<checkpoint>-<number>-<sequence>"}}`."""


@dataclass(frozen=True, order=True, slots=True)
class CommittedFile:
    """A file of a sink that is visible, in the order in which its subtask made it visible."""

    checkpoint: int
    number: int
    sequence: int
    subtask: int
    uid: str
    name: str

    @classmethod
    def parse(cls, name: str) -> CommittedFile | None:
        """From the name of a file; None for a file that no sink has committed."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        return cls(
            int(match["checkpoint"]),
            int(match["number"]),
            int(match["sequence"]),
            int(match["subtask"]),
            match["uid"],
            name,
        )

    @property
    def place(self) -> str:
        """Return the subtask that wrote it, as offsets name it."""
        return f"{self.uid}/{self.subtask}"

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
