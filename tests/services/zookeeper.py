"""A real ZooKeeper ensemble for tests, and ways to hurt it and the sessions on it."""

from __future__ import annotations

from pathlib import Path

from kazoo.client import KazooClient

from deploy.zookeeper_ensemble import ZooKeeperEnsemble

__all__ = ["ZooKeeperEnsemble", "expire_session", "start_ensemble"]


def start_ensemble(directory: Path, nodes: int = 3) -> ZooKeeperEnsemble:
    """It serves when this returns; `stop` it."""
    return ZooKeeperEnsemble(directory, nodes).__enter__()


def expire_session(client: KazooClient, quorum: str) -> None:
    """End the client's session as the servers do when nothing was heard for the timeout: its ephemeral nodes go, and
    the client is told that its session is over. A second connection in the same session closes it."""
    other = KazooClient(quorum, client_id=client.client_id)
    other.start(timeout=15)
    other.stop()
    other.close()
