"""How long the table of leaders in ZooKeeper is followed without a change: nothing grows meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from snapline.runtime.leaders import zookeeper_leader_retrieval as retrieval
from snapline.runtime.leaders.leader_retrieval import LeaderAddress, LeaderTable, seal_leader_table
from snapline.runtime.leaders.zookeeper_session import Answer, ZooKeeperSettings
from snapline.runtime.logs import silent_logger
from snapline.runtime.rpc.security import Security


class QuietSession:
    """A session in which nothing changes; it ends after so many looks."""

    def __init__(self, looks: int, data: bytes) -> None:
        self.settings = ZooKeeperSettings("127.0.0.1:2181")
        self.watches: set[Any] = set()
        self._looks, self._data = looks, data

    @property
    def is_over(self) -> bool:
        return self._looks <= 0

    def on_over(self, callback: Any) -> None:
        """Nobody is told; the session says so itself."""

    def call(self, send: Any) -> Answer:
        """The client keeps watches that have not fired in a set, as kazoo does."""
        self._looks -= 1
        send(SimpleNamespace(get_async=lambda path, watch: self.watches.add(watch)))
        return Answer((self._data, None))


def test_a_table_that_does_not_change_is_watched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch is kept until it fires, so that another one with each look would stay as long as the process lives."""
    security = Security()
    table = LeaderTable(LeaderAddress("127.0.0.1:6123"))
    session: Any = QuietSession(20, seal_leader_table(table, security.signer))
    told: list[LeaderTable] = []
    monkeypatch.setattr(retrieval, "LOOK_SECONDS", 0)
    following = retrieval.ZooKeeperLeaderRetrieval(session.settings, security, told.append, silent_logger())
    following._follow(session)
    assert told == [table]
    assert len(session.watches) == 1


def test_an_error_about_a_node_does_not_end_the_search_for_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has removed nodes while they were looked for: whoever did not look again would follow no leader more."""
    opened: list[Any] = []

    class Removed:
        def __init__(self, *_: Any) -> None:
            opened.append(self)

        def open(self) -> None:
            if len(opened) == 2:
                following.stop()
            raise NoNodeError

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr(retrieval, "ZooKeeperSession", Removed)
    monkeypatch.setattr(retrieval, "PAUSE_SECONDS", 0)
    settings = ZooKeeperSettings("127.0.0.1:2181")
    following = retrieval.ZooKeeperLeaderRetrieval(settings, Security(), lambda _: None, silent_logger())

    following._run()

    assert len(opened) == 2
