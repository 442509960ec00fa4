"""Finds the data files of a table, version after version, and hands them out in order.

Decides how far the state says that it has come: a version, and how many of its files were handed out; files of a
version have one order, so a restore asks for them again and goes on. What a table's versions are, and which files one
has, is asked of the table. It does not know what is in files.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

from snapline.dataflow.api.connector_api import Discovery, SourceSplit, SplitEnumerator
from snapline.dataflow.errors import ConnectorError

FILES_AT_ONCE = 1_000
"""So many files are handed out by one look; the rest of a version is for the next ones."""
VERSIONS_AT_ONCE = 200
GIVE_UP_SECONDS = 60.0
"""So long a table may not be reached before the task fails."""
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
A_MILLISECOND = dt.timedelta(milliseconds=1)
log = logging.getLogger(__name__)


class TableUnreachable(ConnectorError):
    """The table, or the catalogue that knows it, did not answer; another attempt may help."""


class TableVersions(Protocol):
    """The versions of a table, each known by a number."""

    @property
    def table(self) -> Any:
        """The table as it was looked at last."""
        ...

    def refresh(self) -> None:
        """Look at the table as it is now. Raises ConnectorError when it is gone, or is none that can be read."""
        ...

    def start(self) -> dict[str, Any]:
        """Where to begin: `at` is a version, or None for a table without one; `whole`: with everything that it has, not
        only what came with it; `done`: behind it."""
        ...

    def newest(self) -> int | None:
        """The newest version; None for a table without one."""
        ...

    def after(self, version: int | None) -> int | None:
        """The version that follows; None: there is none yet. Raises ConnectorError when it is not known any more."""
        ...

    def files(self, version: int, *, whole: bool) -> Sequence[dict[str, Any]]:
        """What splits say of its data files, in order, the same whenever it is asked. Raises ConnectorError for a
        version that does more than add rows."""
        ...


class TableEnumerator(SplitEnumerator):
    """Looks for new versions in one task of the cluster."""

    def __init__(self, versions: TableVersions, *, follow: bool, interval_ms: int, what: str) -> None:
        self._versions, self._follow, self._interval_ms, self._what = versions, follow, interval_ms, what
        self._known: tuple[int, bool, Sequence[dict[str, Any]]] | None = None
        """The files of the version that is handed out just now."""
        self._failing_since: float | None = None

    def discover(self, state: dict[str, Any]) -> Discovery:
        try:
            self._versions.refresh()
            found = self._look(state)
        except TableUnreachable as error:
            self._give_up_after_a_while(error)
            return Discovery((), state, again_after_ms=self._interval_ms)
        self._failing_since = None
        return found

    def _look(self, state: dict[str, Any]) -> Discovery:
        versions = self._versions
        if not state:
            state = {"files": 0, "done": False, **versions.start()}
            if not self._follow:
                state["until"] = versions.newest()
        elif self._follow:  # the snapshot may be of a source that ended
            state = {name: value for name, value in state.items() if name != "until"}
        at, files, done = state["at"], int(state["files"]), bool(state["done"])
        whole = bool(state.get("whole"))
        splits: list[SourceSplit] = []
        for _ in range(VERSIONS_AT_ONCE):
            if done:
                following = None if at is not None and at == state.get("until") else versions.after(at)
                if following is None:
                    break
                # Where there was none, those before may have expired unread, and the rows of all are in this one.
                at, files, done, whole = following, 0, False, at is None
            known = self._files(at, whole=whole)
            taken = known[files : files + FILES_AT_ONCE - len(splits)]
            splits += [SourceSplit(f"{at}/{files + place}", dict(file)) for place, file in enumerate(taken)]
            files += len(taken)
            done = files >= len(known)
            if len(splits) >= FILES_AT_ONCE:
                break
        is_behind = not done or (at != state.get("until") and versions.after(at) is not None)
        new = {**state, "at": at, "files": 0 if done else files, "done": done, "whole": whole and not done}
        finished = not self._follow and not is_behind
        return Discovery(splits, new, finished=finished, again_after_ms=0 if is_behind else self._interval_ms)

    def _files(self, version: int, *, whole: bool) -> Sequence[dict[str, Any]]:
        if self._known is None or self._known[:2] != (version, whole):
            self._known = (version, whole, self._versions.files(version, whole=whole))
        return self._known[2]

    def _give_up_after_a_while(self, error: ConnectorError) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= GIVE_UP_SECONDS:
            raise error
        log.warning("%s: %s; trying on", self._what, error)


def milliseconds(at: dt.datetime) -> int:
    """The first millisecond since 1970 that is not before a moment; UTC, unless it has a zone."""
    return -((EPOCH - (at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC))) // A_MILLISECOND)
