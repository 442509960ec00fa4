"""Leader election on ZooKeeper: whoever has the oldest candidate node leads, for as long as its session lasts.

A candidate is an ephemeral sequential node; it watches only the one before it. Leadership is granted once per session
and cannot be won again in it: after the session is over, or leadership was given up, contend with a new session.
`Leadership.fence` is added to every transaction of the leader: the ensemble itself refuses what a deposed leader sends,
whatever that one believes. A session has one candidate and ends with it: what stays behind of either would lead, for
the others, and not know it. Mirrors Flink's ZooKeeperLeaderElectionDriver on Curator's LeaderLatch, which protects the
creation of its node in the same way.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.leaders.zookeeper_session import SessionOver, ZooKeeperSession
from snapline.runtime.logs import Logger

CANDIDATES = "leader/candidates"
TABLE = "leader/table"
"""The table of leaders as the leader published it last (cluster.proto, LeaderTable)."""
SEQUENCE_DIGITS = 10
CANDIDATE = re.compile(rf"[0-9a-f]{{32}}-\d{{{SEQUENCE_DIGITS}}}")
"""The name of a candidate's node: what it has drawn, and the number that ZooKeeper gives."""
LOOK_AGAIN_SECONDS = 0.5
"""A watch that got lost costs no more than this."""
STOP_SECONDS = 0.25
"""Who stands by looks so often whether it is to stop."""


class NodeWatch:
    """Waits for the end of one node."""

    def __init__(self, session: ZooKeeperSession, path: str) -> None:
        self.path = path
        self._session = session
        self._changed = threading.Event()

    def is_there(self) -> bool:
        """Whether the node exists now; its next change ends `await_change`. Raises SessionOver, ZooKeeperError."""
        self._changed.clear()
        answer = self._session.call(lambda client: client.exists_async(self.path, watch=self.change))
        if answer.error is not None:
            raise answer.error
        return answer.value is not None

    def change(self, _: Any = None) -> None:
        """Look again at who leads. The client keeps watches by equality: one method, however often it is handed
        over."""
        self._changed.set()

    def await_change(self, seconds: float) -> bool:
        """Whether it is time to look again."""
        return self._changed.wait(seconds)


class Leadership:
    """The right to write, until the session is over."""

    def __init__(self, session: ZooKeeperSession, candidate: str) -> None:
        """`candidate`: path of the node that stands for it."""
        self.session = session
        self._candidate = candidate

    def fence(self, transaction: Any) -> None:
        """The transaction fails with NoNodeError in its first result unless we lead."""
        transaction.check(self._candidate, -1)

    def holds(self) -> bool:
        """Whether the ensemble says, now, that we lead. Raises SessionOver."""
        return self.session.get(self._candidate) is not None

    def end_with_candidate(self) -> None:
        """From now on the session ends when the candidate is removed by anybody, also while nothing is to be
        written."""
        threading.Thread(target=self._watch_candidate, name="snapline-leadership", daemon=True).start()

    def _watch_candidate(self) -> None:
        watch = NodeWatch(self.session, self._candidate)
        self.session.on_over(watch.change)
        try:
            while watch.is_there():
                watch.await_change(LOOK_AGAIN_SECONDS)
        except SnaplineError:  # the session is over, or refuses: whoever leads in it meets that, too
            return
        self.session.end("its candidate node is gone")

    def current_leader(self) -> str:
        """Whoever leads now, as far as it can be found out; for messages."""
        try:
            return leader_name(self.session)
        except Exception:  # it is only for a message
            return ""


class LeaderElection:
    """One candidate's way to leadership and its watch over it."""

    def __init__(self, session: ZooKeeperSession, name: str, logger: Logger) -> None:
        """`name` is shown to the others."""
        self._session = session
        self._name = name
        self._logger = logger
        self._directory = f"{session.settings.base}/{CANDIDATES}"
        self._token = uuid.uuid4().hex

    def contend(
        self, stopping: threading.Event, on_standby: Callable[[str], None] = lambda _: None
    ) -> Leadership | None:
        """Wait until this one leads. None: `stopping` was set. `on_standby` is told once who leads, when somebody does.
        Raises SessionOver, ZooKeeperError."""
        self._session.ensure_path(self._directory)
        mine = self._enter()
        told = False
        before: NodeWatch | None = None
        while not stopping.is_set():
            candidates = self._candidates()
            if mine not in candidates:
                raise SessionOver("the candidate node is gone")
            position = candidates.index(mine)
            if position == 0:
                return Leadership(self._session, f"{self._directory}/{mine}")
            if not told:
                told = True
                on_standby(leader_name(self._session))
            path = f"{self._directory}/{candidates[position - 1]}"
            if before is None or before.path != path:
                before = NodeWatch(self._session, path)
            self._await_change(before, stopping)
        return None

    def _enter(self) -> str:
        """Our node; the one that a lost answer was about, if there is one. A session has one: the twin of that one is
        removed."""
        prefix = f"{self._directory}/{self._token}-"
        while True:
            answer = self._session.call(
                lambda client: client.create_async(prefix, self._name.encode(), ephemeral=True, sequence=True)
            )
            if isinstance(answer.error, NoNodeError | NodeExistsError):
                self._session.ensure_path(self._directory)
                continue
            if answer.error is not None:
                raise answer.error
            mine = [name for name in self._candidates() if name.startswith(self._token)]
            if not mine:
                raise SessionOver("the candidate node is gone")
            for twin in mine[1:]:
                self._remove(f"{self._directory}/{twin}")
            return mine[0]

    def _remove(self, path: str) -> None:
        answer = self._session.transact(lambda transaction: transaction.delete(path))
        if answer.error is not None and not isinstance(answer.error, NoNodeError):
            raise answer.error

    def _candidates(self) -> list[str]:
        return _candidates_in(self._session, self._directory)

    def _await_change(self, before: NodeWatch, stopping: threading.Event) -> None:
        """Until the node before ours goes, or it is time to look again."""
        is_there, waited = before.is_there(), 0.0
        while is_there and not before.await_change(STOP_SECONDS) and waited < LOOK_AGAIN_SECONDS:
            waited += STOP_SECONDS
            if stopping.is_set() or self._session.is_over:
                return


def leader_name(session: ZooKeeperSession) -> str:
    """What the leader calls itself; empty: nobody leads."""
    directory = f"{session.settings.base}/{CANDIDATES}"
    for name in _candidates_in(session, directory):
        found = session.get(f"{directory}/{name}")
        if found is not None:
            return found[0].decode(errors="replace")
    return ""


def _candidates_in(session: ZooKeeperSession, directory: str) -> list[str]:
    """Names of the candidates' nodes, the oldest first; what else somebody has put there is none."""
    return sorted(filter(CANDIDATE.fullmatch, session.children(directory)), key=_sequence)


def _sequence(name: str) -> int:
    return int(name[-SEQUENCE_DIGITS:])
