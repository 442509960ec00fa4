"""What one TaskManager is started with, how it ended, and which of its addresses the coordinator can reach."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from snapline.dataflow.config import SECURITY_TOKEN, Configuration
from snapline.dataflow.errors import SnaplineError


@dataclass(frozen=True)
class TaskManagerConfig:
    """What one TaskManager is started with."""

    resource_id: str
    """One incarnation; never used twice."""
    coordinator_address: str
    """host:port; several, separated by commas, where several coordinators stand by."""
    slots: int
    token: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    executor_id: str = ""
    log_url: str = ""
    bind_host: str = ""
    """Where the data server listens; empty: the address from which the coordinator is reached."""
    stays_when_idle: bool = False
    """Whether the TaskManager is kept while no job needs it."""
    failures_are_told: bool = False
    """Whether somebody else says why tasks fail, on the console that is written to."""

    @property
    def configuration(self) -> Configuration:
        """Settings with the token. Raises ConfigurationError."""
        configuration = Configuration(self.settings)
        return configuration.with_values({SECURITY_TOKEN.key: self.token}) if self.token else configuration

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of all coordinators."""
        return tuple(address.strip() for address in self.coordinator_address.split(",") if address.strip())


@dataclass(frozen=True)
class TaskManagerOutcome:
    """How a TaskManager ended, and whether that was in order."""

    clean: bool
    """Told to, or not needed; False: it could not go on."""
    detail: str


def host_towards(addresses: Sequence[str]) -> str:
    """The address of this machine from which packets to the first of these leave that is known; no packet is sent: one
    that stands by may be gone with its name. Raises SnaplineError."""
    reasons = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            family, _, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
        except (OSError, ValueError) as error:
            reasons.append(f"{address!r} ({error})")
    raise SnaplineError(f"not the address of a coordinator: {', '.join(reasons) or 'there is none'}")
