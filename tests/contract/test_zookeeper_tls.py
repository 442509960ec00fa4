"""ZooKeeper over TLS, with nodes that only their creator may touch: who listens or writes there gets nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from deploy.zookeeper_ensemble import ZooKeeperEnsemble, free_ports
from snapline.dataflow.config import Configuration
from snapline.runtime.leaders.zookeeper_session import ZooKeeperError, ZooKeeperSession, ZooKeeperSettings
from snapline.runtime.logs import silent_logger
from tests.services.certificates import Authority, why_not

pytestmark = [pytest.mark.zookeeper, pytest.mark.skipif(bool(why_not()), reason=why_not())]
TABLE = "leaders"


class SecureServer:
    """One server that speaks TLS on a port of its own, and asks for certificates."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        both = directory / "both.pem"
        both.write_text((directory / "node.pem").read_text() + (directory / "node.key").read_text())
        [port] = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        settings = [
            f"secureClientPort={port}",
            "secureClientPortAddress=127.0.0.1",
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"ssl.keyStore.location={both}",
            "ssl.keyStore.type=PEM",
            f"ssl.trustStore.location={directory / 'ca.pem'}",
            "ssl.trustStore.type=PEM",
            "ssl.hostnameVerification=false",
        ]
        self.ensemble = ZooKeeperEnsemble(directory, 1, settings)

    def configuration(self, **changed: str) -> Configuration:
        """As a coordinator has it."""
        prefix = "high-availability.zookeeper."
        tls = self.authority.settings
        return Configuration(
            {
                f"{prefix}quorum": self.address,
                f"{prefix}path.root": f"/{uuid.uuid4().hex}",
                f"{prefix}client.connection-timeout": "10 s",
                f"{prefix}client.credentials": "snapline:secret",
                **{
                    f"{prefix}client.ssl.{name}": tls[f"security.ssl.{name}"]
                    for name in ("ca-file", "certificate-file", "key-file")
                },
                **changed,
            }
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    """It serves, on its secure port and on its plain one."""
    server = SecureServer(tmp_path_factory.mktemp("zookeeper"))
    with server.ensemble:
        yield server


def opened(settings: ZooKeeperSettings) -> ZooKeeperSession:
    session = ZooKeeperSession(settings, silent_logger())
    session.open()
    return session


def test_what_a_coordinator_writes_is_its_own(server: SecureServer) -> None:
    """With credentials the access list is the creator's without being asked for: a stranger on the plain port, which
    this server has as well, neither reads nor rewrites the table of leaders."""
    settings = ZooKeeperSettings.from_configuration(server.configuration())
    session = opened(settings)
    path = f"{settings.base}/{TABLE}"
    session.client.create(path, b"who leads")
    stranger = KazooClient(server.ensemble.quorum)
    stranger.start(timeout=15)

    with pytest.raises(NoAuthError):
        stranger.get(path)
    with pytest.raises(NoAuthError):
        stranger.set(path, b"follow me")

    friend = opened(settings)
    assert (b"who leads", True) == (friend.client.get(path)[0], settings.creator_only)
    stranger.stop()
    stranger.close()
    friend.close()
    session.close()


def test_a_server_of_another_authority_gets_nothing(server: SecureServer, tmp_path: Path) -> None:
    """Not even the credentials; the line names the settings of the certificates."""
    settings = ZooKeeperSettings.from_configuration(server.configuration())
    others = Authority(tmp_path)
    wrong = replace(settings, ca_file=str(others.directory / "ca.pem"), connection_timeout_ms=1_000)

    with pytest.raises(ZooKeeperError, match=r"no ZooKeeper server answers .*ssl\.ca-file"):
        opened(wrong)
