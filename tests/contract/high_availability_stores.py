"""The implementations that the high availability contract is tested against.

Each opens the stores of one coordinator over a place that outlives it; an adapter for another service joins by adding
itself to `PLACES`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from snapline.coordinator.ha.embedded import EmbeddedHighAvailability
from snapline.coordinator.ha.high_availability import HighAvailability
from snapline.coordinator.ha.zookeeper_high_availability import ZooKeeperHighAvailability
from snapline.dataflow.ids import JobID, LeaderSessionID
from snapline.runtime.leaders.leader_election import LeaderElection
from snapline.runtime.leaders.zookeeper_session import ZooKeeperSession, ZooKeeperSettings
from snapline.runtime.logs import silent_logger
from snapline.runtime.signing import UNSIGNED, Signer
from snapline.runtime.storage.local_storage import LocalStorage
from snapline.runtime.storage.memory_storage import MemoryStorage
from tests.services.zookeeper import ZooKeeperEnsemble, expire_session


class Place(Protocol):
    """Where the stores lie."""

    signer: Signer
    """What coordinators that lead from now on sign with."""

    def lead(self, session: str) -> HighAvailability:
        """A coordinator takes over here; those before it have lost their leadership."""
        ...

    def damage_job_graph(self, job_id: JobID) -> list[str]:
        """Cut the graph of this job short, and leave what else may lie there; the names of all that is no job graph
        then."""
        ...

    def close(self) -> None:
        """Nobody leads any more."""
        ...


class StoragePlace:
    """One storage, coordinators one after another."""

    def __init__(self, storage: LocalStorage | MemoryStorage) -> None:
        self._storage = storage
        self.signer = UNSIGNED

    def lead(self, session: str) -> HighAvailability:
        return EmbeddedHighAvailability(self._storage, LeaderSessionID(session), durable=True, signer=self.signer)

    def damage_job_graph(self, job_id: JobID) -> list[str]:
        whole = self._storage.get(f"jobs/{job_id}")
        others = [path for path, _ in self._storage.list("jobs") if path != f"jobs/{job_id}"]
        self._storage.put(f"jobs/{job_id}", whole[:20])
        self._storage.put("jobs/.DS_Store", b"\0\0\0\1Bud1")
        self._storage.put("jobs/copy", self._storage.get(others[0]))
        self._storage.put("leaders/.DS_Store", b"\0\0\0\1Bud1")
        return sorted([".DS_Store", "copy", job_id])

    def close(self) -> None:
        pass


class ZooKeeperPlace:
    """One cluster id on a real ensemble; the session of whoever led before expires."""

    def __init__(self, path: Path, ensemble: ZooKeeperEnsemble, session_timeout_ms: int = 10_000) -> None:
        self.ensemble = ensemble
        self.storage = LocalStorage(str(path))
        self.settings = ZooKeeperSettings(
            ensemble.quorum, cluster_id=uuid.uuid4().hex, session_timeout_ms=session_timeout_ms
        )
        self.sessions: list[ZooKeeperSession] = []
        self.signer = UNSIGNED

    def lead(self, session: str) -> ZooKeeperHighAvailability:
        for before in self.sessions:
            if not before.is_over:
                expire_session(before.client, self.ensemble.quorum)
        opened = ZooKeeperSession(self.settings, silent_logger())
        self.sessions.append(opened)
        opened.open()
        leadership = LeaderElection(opened, session, silent_logger()).contend(threading.Event())
        assert leadership is not None
        return ZooKeeperHighAvailability(leadership, self.storage, self.signer)

    def damage_job_graph(self, job_id: JobID) -> list[str]:
        ((path, size),) = [each for each in self.storage.list("jobs") if each[0].startswith(f"jobs/{job_id}-")]
        self.storage.put(path, self.storage.get(path)[: size // 2])
        return [job_id]

    def close(self) -> None:
        for session in self.sessions:
            session.close()


PLACES: dict[str, Callable[[Path], Place]] = {
    "memory": lambda _: StoragePlace(MemoryStorage()),
    "local disk": lambda path: StoragePlace(LocalStorage(str(path))),
}
"""Those that need no server."""
