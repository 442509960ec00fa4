"""One coordinator process among several: gets leadership, again and again.

Each try is a ZooKeeper session of its own; what was lost with a session does not come back with it. Checks that the
cluster id is this cluster's before it stands by. The first try fails at once when ZooKeeper cannot be used, so that a
wrong setting is seen; later ones go on trying, because an ensemble that is away comes back.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

from snapline.coordinator.coordinator_config import CoordinatorConfig
from snapline.coordinator.ha.zookeeper_high_availability import claim_cluster_id
from snapline.dataflow.config import HA_STORAGE_DIR, HA_TYPE
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.leaders.leader_election import LeaderElection, Leadership
from snapline.runtime.leaders.zookeeper_session import ZooKeeperSession, ZooKeeperSettings
from snapline.runtime.logs import Logger
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.storage_probe import probe_storage

PAUSE_SECONDS = 1.0


class Candidacy:
    """One process that contends for leadership among coordinators."""

    def __init__(
        self,
        settings: ZooKeeperSettings,
        storage_url: str,
        name: str,
        logger: Logger,
        on_standby: Callable[[str], None],
    ) -> None:
        """`name` is shown to the others. `on_standby` is told who leads, when another one does; it may
        refuse to stand by, with a SnaplineError."""
        self._settings = settings
        self._storage_url = storage_url
        self._name = name
        self._logger = logger
        self._on_standby = on_standby
        self.is_patient = False
        """Whether its settings have once been good enough to stand by, or to lead: what fails now is tried again."""

    @classmethod
    def from_config(cls, config: CoordinatorConfig, logger: Logger, on_standby: Callable[[str], None]) -> Candidacy:
        """Raises SnaplineError for settings that cannot be used."""
        configuration = config.configuration
        settings = ZooKeeperSettings.from_configuration(configuration)
        directory = configuration.get_option(HA_STORAGE_DIR)
        if not directory:
            raise SnaplineError(
                f"{HA_TYPE.key} is zookeeper, and {HA_STORAGE_DIR.key} is not set: name a directory or URL"
            )
        storage = open_storage(directory, configuration)
        probe_storage(storage)
        name = f"{config.bind} on {socket.gethostname()} (pid {os.getpid()})"
        return cls(settings, storage.url, name, logger, on_standby)

    def next_leadership(self, stopping: threading.Event) -> Leadership | None:
        """Wait until this coordinator leads; None: `stopping` was set. Whoever gets it closes its session. Raises
        SnaplineError unless it `is_patient`."""
        while not stopping.is_set():
            session = ZooKeeperSession(self._settings, self._logger)
            leadership: Leadership | None = None
            try:
                session.open()
                claim_cluster_id(session, self._storage_url)
                leadership = LeaderElection(session, self._name, self._logger).contend(stopping, self._note_standby)
            except SnaplineError as error:
                if not self.is_patient:
                    raise
                self._logger.warning("cannot contend for leadership now; trying on", reason=str(error))
            finally:
                if leadership is None:
                    session.close()
            if leadership is not None:
                leadership.end_with_candidate()
                self._logger.info("this coordinator leads now", candidate=self._name)
                return leadership
            stopping.wait(PAUSE_SECONDS)
        return None

    def _note_standby(self, leader: str) -> None:
        self._on_standby(leader)
        self.is_patient = True
        self._logger.info("standing by", leader=leader)
