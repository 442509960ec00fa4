"""Leader retrieval on ZooKeeper: follows the table of leaders that the leading coordinator writes there.

Reports the same tables as `snapline.runtime.leaders.leader_retrieval` does over gRPC, each once. A table stays true
until the next leader writes its own: who dials into it meanwhile is refused or finds nobody, and tries again. ZooKeeper
that is away changes nothing for who knows its leaders already. Mirrors Flink's ZooKeeperLeaderRetrievalDriver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import KazooException, NoNodeError

from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.leaders.leader_election import TABLE
from snapline.runtime.leaders.leader_retrieval import LeaderTable, open_leader_table
from snapline.runtime.leaders.zookeeper_session import ZooKeeperError, ZooKeeperSession, ZooKeeperSettings
from snapline.runtime.logs import Logger, silent_logger
from snapline.runtime.rpc.security import Security
from snapline.runtime.signing import NotSigned

PAUSE_SECONDS = 1.0
"""After a session that could not be opened, or ended."""
LOOK_SECONDS = 60.0
"""A change of the table, the end of the session and `stop` are heard of at once; a watch that got lost, after this."""


class ZooKeeperLeaderRetrieval:
    """One thread that follows the table of leaders."""

    def __init__(
        self, settings: ZooKeeperSettings, security: Security, on_table: Callable[[LeaderTable], None], logger: Logger
    ) -> None:
        """Follow the table of leaders that was signed with what `security` has then; others are not followed."""
        self._settings = settings
        self._security = security
        self._on_table = on_table
        self._logger = logger
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self._last: LeaderTable | None = None
        self._thread = threading.Thread(target=self._run, name="snapline-leader-retrieval", daemon=True)

    def start(self) -> None:
        """Begin to follow who leads, on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread that follows who leads. Idempotent."""
        self._stopping.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            session = ZooKeeperSession(self._settings, self._logger)
            try:
                session.open()
                self._follow(session)
            except (SnaplineError, KazooException) as error:
                reason = str(error) or type(error).__name__
                self._logger.warning("leaders cannot be looked up in ZooKeeper; trying on", reason=reason)
            finally:
                session.close()
            self._stopping.wait(PAUSE_SECONDS)

    def _follow(self, session: ZooKeeperSession) -> None:
        """Follow the table of leaders until the session ends."""
        session.on_over(self._look_again)
        while not self._stopping.is_set() and not session.is_over:
            self._changed.clear()
            data = _read(session, self._look_again)
            if data is not None:
                table = self._open(data)
                if table is not None and table != self._last:
                    self._last = table
                    self._on_table(table)
            if self._stopping.is_set() or session.is_over:
                return
            self._changed.wait(LOOK_SECONDS)

    def _look_again(self, _: Any) -> None:
        """Read the table once more. The client keeps watches by equality: one method, however often it is handed
        over."""
        self._changed.set()

    def _open(self, data: bytes) -> LeaderTable | None:
        """Decode the table; None when it was not written by a coordinator of this cluster."""
        try:
            return open_leader_table(data, self._security.signer)
        except NotSigned as error:
            self._logger.warning("leaders in ZooKeeper are not followed", reason=str(error))
            return None


def _read(session: ZooKeeperSession, watch: Callable[[Any], None]) -> bytes | None:
    """The table now; `watch` is called when it changes, or comes to be."""
    path = f"{session.settings.base}/{TABLE}"
    while True:
        answer = session.call(lambda client: client.get_async(path, watch=watch))
        if answer.error is None:
            return bytes(answer.value[0])
        if not isinstance(answer.error, NoNodeError):
            raise answer.error
        answer = session.call(lambda client: client.exists_async(path, watch=watch))
        if answer.error is not None:
            raise answer.error
        if answer.value is None:
            return None


def leading_coordinator(configuration: Configuration) -> str:
    """Where the leading coordinator is, as ZooKeeper says now. Raises SnaplineError."""
    settings = ZooKeeperSettings.from_configuration(configuration)
    session = ZooKeeperSession(settings, silent_logger())
    session.open()
    try:
        found = session.get(f"{settings.base}/{TABLE}")
    finally:
        session.close()
    signer = Security.from_configuration(configuration).signer
    table = LeaderTable() if found is None else open_leader_table(found[0], signer)
    if not table.resource_manager.address:
        raise ZooKeeperError(
            f"no coordinator has led the cluster {settings.cluster_id!r} below {settings.root} yet: start one, or check "
            "high-availability.cluster-id and high-availability.zookeeper.path.root"
        )
    return table.resource_manager.address
