"""Finds the files of a source while it runs: lists, leaves out what was found before, and hands out the rest in order.

Decides which files are new, with a memory that does not grow with files that come in their order. They have keys that
rise (the time of the last change and the path, or the path alone), and those found last are remembered by digests, in
two generations of `remember` such files each: when the newer one is full, the older one is forgotten, and every file at
or below the greatest key that had been found when it was the newer one counts as found. A file that comes behind others
is remembered beside them, and fills no generation. So a file may appear behind `remember` files that come after it in
the order; one that is further behind is never read. A listing is kept and handed out in parts, so that what waits at
the enumerator stays small. It does not know what is in files. Mirrors Flink's ContinuousFileSplitEnumerator, which
remembers every path.
"""

from __future__ import annotations

import hashlib
import logging
import time
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from snapline.connectors.files.filesystems import Location, advice, first_line, locate
from snapline.connectors.files.listing import list_files
from snapline.dataflow.api.connector_api import Discovery, SourceSplit, SplitEnumerator
from snapline.dataflow.errors import ConnectorError

if TYPE_CHECKING:
    from snapline.connectors.files.file_source import FileSource

FILES_AT_ONCE = 1_000
"""So many files are found by one look; the rest of the listing is for the next ones."""
DIGEST_BYTES, DIGEST_LENGTH = 9, 12
GIVE_UP_SECONDS = 60.0
"""So long a file system may refuse to be listed before the task fails."""
_CROWDED = 10
"""More than so many times `remember` files in a generation are worth a warning."""
Key = tuple[int, str]
NO_KEY: Key = (-1, "")
log = logging.getLogger(__name__)


def digest_of(key: Key) -> str:
    """Return what is remembered of a file."""
    return b64encode(hashlib.blake2b(f"{key[0]} {key[1]}".encode(), digest_size=DIGEST_BYTES).digest()).decode()


class SeenFiles:
    """Which files were found before."""

    def __init__(self, state: dict[str, Any], remember: int) -> None:
        """`state`: what `state()` returned, or an empty one. `remember`: so many files in order make a generation."""
        self._remember = remember
        self._floor = _key(state, "floor")
        self._middle = _key(state, "middle")
        self._greatest = _key(state, "greatest")
        self._older = frozenset(_digests(state.get("older", "")))
        self._newer = dict.fromkeys(_digests(state.get("newer", "")))
        self._risen = int(state.get("risen", len(self._newer)))
        """So many of the newer ones came in their order."""

    def is_new(self, key: Key) -> bool:
        """Return whether a file was not found before."""
        if key <= self._floor:
            return False
        if key > self._greatest:
            return True
        digest = digest_of(key)
        return digest not in self._newer and digest not in self._older

    def add(self, key: Key) -> None:
        """Remember a file that is new."""
        if key > self._greatest:  # those that came late say nothing of how far behind others may be
            if self._risen >= self._remember:
                self._floor, self._middle = self._middle, self._greatest
                self._older, self._newer, self._risen = frozenset(self._newer), {}, 0
            self._risen += 1
            self._greatest = key
        self._newer[digest_of(key)] = None

    def disorder(self) -> str:
        """Return what to say of many files that came behind others, each of which stays in the state; "" for few."""
        if len(self._newer) <= _CROWDED * self._remember:
            return ""
        return f"{len(self._newer) - self._risen} files have come behind {self._greatest} in the order"

    def state(self) -> dict[str, Any]:
        """Return what a next one goes on with, JSON-like."""
        return {
            "floor": list(self._floor),
            "middle": list(self._middle),
            "greatest": list(self._greatest),
            "older": "".join(sorted(self._older)),
            "newer": "".join(self._newer),
            "risen": self._risen,
        }


def _key(state: dict[str, Any], name: str) -> Key:
    number, path = state.get(name, NO_KEY)
    return int(number), str(path)


def _digests(text: str) -> Iterable[str]:
    return (text[start : start + DIGEST_LENGTH] for start in range(0, len(text), DIGEST_LENGTH))


class FoundFile:
    """One file of a listing."""

    __slots__ = ("key", "modified_ns", "size", "url")

    def __init__(self, location: Location, info: Any, *, by_time: bool) -> None:
        self.url = location.at(info.path).url
        self.size = int(info.size)
        self.modified_ns = int(info.mtime_ns or 0)
        self.key: Key = (self.modified_ns if by_time else 0, self.url)

    def split(self) -> SourceSplit:
        """Return the split that reads the file."""
        return SourceSplit(
            f"{self.url}@{self.modified_ns}", {"path": self.url, "size": self.size, "modified_ns": self.modified_ns}
        )


def find_files(source: FileSource) -> list[FoundFile]:
    """List the files that the source's paths mean, each once, in the order in which they are read.

    Raises OSError when a file system does not answer.
    """
    by_time = source.order == "modified"
    found: dict[str, FoundFile] = {}
    for path in source.paths:
        location = locate(path, source.storage_options)
        for info in list_files(location):
            file = FoundFile(location, info, by_time=by_time)
            found.setdefault(file.url, file)
    return sorted(found.values(), key=lambda file: file.key)


class FileEnumerator(SplitEnumerator):
    """Looks for new files in one task of the cluster."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._listed: deque[FoundFile] = deque()
        """What the last listing found, and no look has returned yet."""
        self._failing_since: float | None = None
        self._has_warned = False

    def discover(self, state: dict[str, Any]) -> Discovery:
        source = self._source
        if source.follow:  # the snapshot may be of a source that ended
            state = {name: value for name, value in state.items() if name != "until"}
        seen = SeenFiles(state.get("seen", {}), source.remember)
        interval_ms = source.discovery_interval_ms
        if not self._listed:
            try:
                found = find_files(source)
            except OSError as error:
                self._give_up_after_a_while(error)
                return Discovery((), state, again_after_ms=interval_ms)
            self._failing_since = None
            self._listed.extend(file for file in found if seen.is_new(file.key))
            if not source.follow and "until" not in state:
                self._require_some(found)
                state = {**state, "until": list(found[-1].key if found else NO_KEY)}
        until = _key(state, "until") if "until" in state else None
        splits = self._take(seen, until)
        ended = not source.follow and not self._listed
        again_after_ms = 0 if self._listed else interval_ms
        if splits:
            state = {**state, "seen": seen.state()}
            self._warn_of_disorder(seen)
        return Discovery(splits, state, finished=ended, again_after_ms=again_after_ms)

    def _take(self, seen: SeenFiles, until: Key | None) -> Sequence[SourceSplit]:
        splits: list[SourceSplit] = []
        while self._listed and len(splits) < FILES_AT_ONCE:
            file = self._listed.popleft()
            if seen.is_new(file.key) and (until is None or file.key <= until):
                seen.add(file.key)
                splits.append(file.split())
        return splits

    def _warn_of_disorder(self, seen: SeenFiles) -> None:
        disorder = seen.disorder()
        if disorder and not self._has_warned:
            self._has_warned = True
            paths, remember = ", ".join(self._source.paths), self._source.remember
            log.warning(
                "FileSource: %s: %s, and each checkpoint holds 12 bytes for each of them until twice remember=%d files come after "
                "that one: take the order ('modified' or 'path') in which files appear, and give none a time in the future",
                paths, disorder, remember,
            )  # fmt: skip

    def _require_some(self, found: Sequence[FoundFile]) -> None:
        """Raise ConnectorError for a listing without files: there were some when the job was submitted."""
        if not found and not self._source.ignore_missing:
            raise ConnectorError(
                f"FileSource: no file matches {', '.join(self._source.paths)} in the cluster, and one did where the job was submitted; files "
                "must be there on every machine, and stay (ignore_missing=True ends without rows)"
            )

    def _give_up_after_a_while(self, error: OSError) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        paths = ", ".join(self._source.paths)
        if now - self._failing_since >= GIVE_UP_SECONDS:
            raise ConnectorError(f"FileSource: cannot list {paths}: {first_line(error)}; {advice(error)}") from error
        log.warning("FileSource: cannot list %s: %s; trying on", paths, first_line(error))
