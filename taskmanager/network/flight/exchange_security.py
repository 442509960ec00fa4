"""How the exchange between TaskManagers is protected: what Flight is given of the cluster's token and certificates.

Decides that Flight is encrypted whenever the control plane is, with the same certificates and both sides showing
theirs, so that what TaskManagers show each other, a secret derived from the cluster's, does not leave in plaintext.
Which name the other side's certificate has to carry is a setting, because executors get their addresses when they
start. gRPC is not imported here: the process may still fork. Mirrors security.ssl.internal.* of Flink, which checks no
names there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from snapline.dataflow.config import SECURITY_SSL_EXCHANGE_HOSTNAME, Configuration
from snapline.runtime.rpc.security import Security


@dataclass(frozen=True)
class ExchangeSecurity:
    """What both ends of an exchange have to agree on."""

    tokens: tuple[str, ...] = field(default=(), repr=False)
    """Callers must have one of them, and this exchange calls with the first; empty: none."""
    ca: bytes = field(default=b"", repr=False)
    """PEM, as the next two; empty: no TLS."""
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    hostname: str = ""
    """That the certificate of a peer has to carry; empty: the peer's address."""
    source: Security | None = field(default=None, repr=False, compare=False)
    """Where the above is from; None: it never changes."""

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> ExchangeSecurity:
        """Reads the files. Raises SecurityError."""
        hostname = configuration.get_option(SECURITY_SSL_EXCHANGE_HOSTNAME)
        return cls._of(Security.from_configuration(configuration), hostname)

    @classmethod
    def _of(cls, security: Security, hostname: str) -> ExchangeSecurity:
        return cls(security.exchange_secrets, security.ca, security.certificate, security.key, hostname, security)

    def current(self) -> ExchangeSecurity:
        """Return this with what the files say now."""
        return self if self.source is None else self._of(self.source.current(), self.hostname)

    @property
    def of_sockets(self) -> Security:
        """Return the certificates for a socket of Python's own."""
        return Security(ca=self.ca, certificate=self.certificate, key=self.key)

    def location(self, host: str, port: int) -> str:
        """The URL of a server."""
        scheme = "grpc+tls" if self.ca else "grpc"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def server_options(self) -> dict[str, Any]:
        """Return the keyword arguments that a FlightServerBase is created with."""
        if not self.ca:
            return {}
        pair = (self.certificate, self.key)
        return {"tls_certificates": [pair], "verify_client": True, "root_certificates": self.ca}

    @property
    def client_options(self) -> dict[str, Any]:
        """Return the keyword arguments that a FlightClient is created with."""
        if not self.ca:
            return {}
        name = {"override_hostname": self.hostname} if self.hostname else {}
        return {"tls_root_certs": self.ca, "cert_chain": self.certificate, "private_key": self.key, **name}
