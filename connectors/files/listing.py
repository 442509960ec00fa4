"""Which files a path, a directory or a glob means on a file system, with their sizes and times.

Decides that names which begin with `_` or `.` are hidden, as for Spark and Hive (unfinished files, markers, checksums),
that `**` stands for any number of directories, and that a path which is there as it is written is no glob. It does not
know formats, nor in which order files are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from pyarrow import fs

from snapline.connectors.files.filesystems import Location
from snapline.dataflow.errors import ConnectorError

GLOB_CHARACTERS = re.compile(r"[*?\[]")


def is_hidden(name: str) -> bool:
    """Return whether Spark and Hive would leave out a file or directory of this name. The directory of a partition, by
    a column that begins with `_`, Spark does not."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def files_below(filesystem: Any, directory: str, *, recursive: bool = True, hidden: bool = False) -> list[Any]:
    """Return what is known of each file below a directory, in the order of paths. Raises ConnectorError for a name that
    is no UTF-8, which Arrow cannot read."""
    infos = filesystem.get_file_info(fs.FileSelector(directory, recursive=recursive))
    start = len(directory.rstrip("/")) + 1
    try:
        found = [
            info
            for info in infos
            if info.type == fs.FileType.File and (hidden or not any(map(is_hidden, info.path[start:].split("/"))))
        ]
    except UnicodeDecodeError as unreadable:
        raise ConnectorError(f"{unreadable.object!r} has a name that is no UTF-8: rename it, or move it away") from None
    return sorted(found, key=lambda info: info.path)


def glob_base(path: str) -> str | None:
    """Return the directory in front of the first `*`, `?` or `[`; None for a path without any."""
    first = GLOB_CHARACTERS.search(path)
    return None if first is None else path[: first.start()].rpartition("/")[0]


def files_matching(filesystem: Any, path: str) -> list[Any]:
    """Return what is known of each file that a glob means, in the order of paths."""
    base = glob_base(path) or ""
    pattern = path[len(base) :].strip("/").split("/")
    hidden = any(is_hidden(part) for part in pattern)
    return [
        info
        for info in files_below(filesystem, base or "/", recursive=len(pattern) > 1, hidden=hidden)
        if _matches(info.path[len(base) :].strip("/").split("/"), pattern)
    ]


def list_files(location: Location) -> list[Any]:
    """Return what is known of each file that a path means; nothing when there is none, or no directory yet.

    Raises OSError when the file system does not answer.
    """
    filesystem, path = location.filesystem, location.path
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.File:
        return [info]
    if info.type == fs.FileType.Directory:
        return files_below(filesystem, path)
    base = glob_base(path)
    if base is None or filesystem.get_file_info(base or "/").type != fs.FileType.Directory:
        return []
    return files_matching(filesystem, path)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[skip:], pattern[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
