"""One session with a ZooKeeper ensemble: connect, ask, and know when it is over.

A session is never followed by another one behind the caller's back: what was owned in it (leadership) ended with it, so
whoever wants to go on opens a new one. A connection that breaks pauses: calls wait and are sent again until it is back,
or the session is over, because the servers say so or because nobody was reached for as long as the session lasts. Calls
that were sent again may have worked the first time; `Answer.repeated` says that this happened. Mirrors what Flink
builds on Curator.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.hosts import collect_hosts
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from snapline.dataflow.config import (
    HA_CLUSTER_ID,
    HA_ZOOKEEPER_ACL,
    HA_ZOOKEEPER_CONNECTION_TIMEOUT,
    HA_ZOOKEEPER_CREDENTIALS,
    HA_ZOOKEEPER_QUORUM,
    HA_ZOOKEEPER_ROOT,
    HA_ZOOKEEPER_SESSION_TIMEOUT,
    HA_ZOOKEEPER_SSL_CA,
    HA_ZOOKEEPER_SSL_CERTIFICATE,
    HA_ZOOKEEPER_SSL_KEY,
    Configuration,
)
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import Logger
from snapline.runtime.rpc.exposure import is_loopback

AGAIN_SECONDS = 0.05
"""Pause before a call whose connection broke is sent again."""
LOOK_SECONDS = 0.2
"""How often a waiting call looks whether the session is over."""


class ZooKeeperError(SnaplineError):
    """ZooKeeper cannot be used as it is configured; names the setting."""


class SessionOver(SnaplineError):
    """The session has ended; nothing that is sent in it has an effect any more."""


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Where the ensemble is and how it is talked to."""

    quorum: str
    root: str = "/snapline"
    cluster_id: str = "default"
    session_timeout_ms: int = 10_000
    connection_timeout_ms: int = 15_000
    creator_only: bool = False
    credentials: str = ""
    ca_file: str = ""
    """Set: TLS to the ensemble."""
    certificate_file: str = ""
    key_file: str = ""

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> ZooKeeperSettings:
        """Raises SnaplineError for settings that cannot be used."""
        credentials = configuration.get_option(HA_ZOOKEEPER_CREDENTIALS)
        acl = configuration.get_option(HA_ZOOKEEPER_ACL)
        settings = cls(
            quorum=configuration.get_option(HA_ZOOKEEPER_QUORUM),
            root=configuration.get_option(HA_ZOOKEEPER_ROOT),
            cluster_id=configuration.get_option(HA_CLUSTER_ID),
            session_timeout_ms=configuration.get_option(HA_ZOOKEEPER_SESSION_TIMEOUT),
            connection_timeout_ms=configuration.get_option(HA_ZOOKEEPER_CONNECTION_TIMEOUT),
            creator_only=acl == "creator" or (acl == "auto" and bool(credentials)),
            credentials=credentials,
            ca_file=configuration.get_option(HA_ZOOKEEPER_SSL_CA),
            certificate_file=configuration.get_option(HA_ZOOKEEPER_SSL_CERTIFICATE),
            key_file=configuration.get_option(HA_ZOOKEEPER_SSL_KEY),
        )
        settings.check()
        return settings

    @property
    def base(self) -> str:
        """The node that everything of this cluster lies below."""
        return f"{self.root.rstrip('/')}/{self.cluster_id}"

    @property
    def servers(self) -> list[str]:
        """Return the servers of the quorum, each with its port, which is ZooKeeper's where none is given."""
        return [f"{host}:{port}" for host, port in collect_hosts(self.quorum)[0]]

    def check(self) -> None:
        """Raise ZooKeeperError for what can be seen without a connection."""
        if not self.quorum:
            raise ZooKeeperError(
                f"high-availability.type is zookeeper, and {HA_ZOOKEEPER_QUORUM.key} is not set: give host:port,host:port"
            )
        try:
            collect_hosts(self.quorum)
        except ValueError as error:
            raise self._unusable_quorum(error) from error
        if not self.root.startswith("/"):
            raise ZooKeeperError(f"{HA_ZOOKEEPER_ROOT.key} must begin with '/': {self.root!r}")
        if not self.cluster_id or "/" in self.cluster_id:
            raise ZooKeeperError(f"{HA_CLUSTER_ID.key} must be one name without '/': {self.cluster_id!r}")
        if self.creator_only and not self.credentials:
            raise ZooKeeperError(
                f"{HA_ZOOKEEPER_ACL.key} is creator, and {HA_ZOOKEEPER_CREDENTIALS.key} is not set: nobody could read the nodes"
            )
        if self.credentials and ":" not in self.credentials:
            raise ZooKeeperError(f"{HA_ZOOKEEPER_CREDENTIALS.key} must be user:password")
        self._check_tls()

    def _check_tls(self) -> None:
        """Digest credentials travel as they are, and a certificate without an authority would not be shown."""
        if bool(self.certificate_file) != bool(self.key_file):
            raise ZooKeeperError(f"{HA_ZOOKEEPER_SSL_CERTIFICATE.key} and {HA_ZOOKEEPER_SSL_KEY.key} belong together")
        if self.certificate_file and not self.ca_file:
            raise ZooKeeperError(f"{HA_ZOOKEEPER_SSL_CA.key} is not set, and there is a certificate for ZooKeeper")
        for option, path in (
            (HA_ZOOKEEPER_SSL_CA, self.ca_file),
            (HA_ZOOKEEPER_SSL_CERTIFICATE, self.certificate_file),
            (HA_ZOOKEEPER_SSL_KEY, self.key_file),
        ):
            if path and not Path(path).is_file():
                raise ZooKeeperError(f"{option.key}: there is no file {path}")
        hosts = [server.rpartition(":")[0] for server in self.servers]
        if self.credentials and not self.ca_file and not all(is_loopback(host) for host in hosts):
            raise ZooKeeperError(
                f"{HA_ZOOKEEPER_CREDENTIALS.key} would travel to {self.quorum} as plain text: set {HA_ZOOKEEPER_SSL_CA.key}"
            )

    def client(self) -> KazooClient:
        """Return a client of kazoo that is not started yet."""
        acl = [make_acl("auth", "", all=True)] if self.creator_only else OPEN_ACL_UNSAFE
        quiet = logging.getLogger("kazoo.snapline")
        quiet.setLevel(logging.CRITICAL)  # what matters is said by whoever holds the session
        return KazooClient(
            hosts=self.quorum,
            timeout=self.session_timeout_ms / 1000,
            default_acl=acl,
            auth_data=[("digest", self.credentials)] if self.credentials else None,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 1.0},
            logger=quiet,
            use_ssl=bool(self.ca_file),
            check_hostname=bool(self.ca_file),
            ca=self.ca_file or None,
            certfile=self.certificate_file or None,
            keyfile=self.key_file or None,
        )

    def connect(self, client: KazooClient) -> None:
        """Start the client and wait for its session. Raises ZooKeeperError."""
        seconds = self.connection_timeout_ms / 1000
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the chroot; said below
                client.start(timeout=seconds)
        except KazooTimeoutError as error:
            tls = f", and the certificates ({HA_ZOOKEEPER_SSL_CA.key})" if self.ca_file else ""
            raise ZooKeeperError(
                f"no ZooKeeper server answers at {self.quorum} within {seconds:g} s "
                f"({HA_ZOOKEEPER_CONNECTION_TIMEOUT.key}): check {HA_ZOOKEEPER_QUORUM.key}, and that the ensemble has a majority{tls}"
            ) from error
        except (ValueError, OSError) as error:
            raise self._unusable_quorum(error) from error

    def _unusable_quorum(self, error: Exception) -> ZooKeeperError:
        return ZooKeeperError(
            f"{HA_ZOOKEEPER_QUORUM.key} cannot be used: {self.quorum!r} ({error}); give host:port,host:port"
        )

    def no_chroot(self) -> ZooKeeperError:
        """The ensemble is there, and the part of it that is ours is not."""
        chroot = "/" + self.quorum.partition("/")[2]
        return ZooKeeperError(
            f"ZooKeeper has no node {chroot}, which {HA_ZOOKEEPER_QUORUM.key} names as chroot: create it, or correct the setting"
        )


def no_permission(path: str) -> ZooKeeperError:
    """Why, and what to look at."""
    return ZooKeeperError(
        f"ZooKeeper refuses access to {path}: check {HA_ZOOKEEPER_CREDENTIALS.key} and the access list of the node "
        f"({HA_ZOOKEEPER_ACL.key})"
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned, or the error about a node that it ended with."""

    value: Any = None
    error: Exception | None = None
    repeated: bool = False
    """Whether the call was sent more than once: an earlier one may have had its effect."""


class ZooKeeperSession:
    """One session with ZooKeeper, which ends once and is never revived. Thread-safe."""

    def __init__(self, settings: ZooKeeperSettings, logger: Logger) -> None:
        self.settings = settings
        self._logger = logger
        self.client = settings.client()
        self._lock = threading.Lock()
        self._stopping = threading.Lock()
        self._over = threading.Event()
        self._reason = ""
        self._on_over: list[Callable[[str], None]] = []
        self._suspended: threading.Timer | None = None

    def open(self) -> None:
        """Connect, and check that the place is there and ours. Raises ZooKeeperError, SessionOver."""
        self.client.add_listener(self._state_changed)
        try:
            self.settings.connect(self.client)
            answer = self.call(lambda client: client.exists_async("/"))
            if answer.error is not None:
                raise answer.error
            if answer.value is None:
                raise self.settings.no_chroot()
            self.ensure_path(self.settings.base)
            self.children(self.settings.base)  # which is refused where the nodes are somebody else's
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the session: what was owned in it is free at once. Idempotent."""
        self.end("it was closed")
        self._stop_client()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, as far as can be known here."""
        return self._over.is_set()

    @property
    def reason(self) -> str:
        """Return why the session is over."""
        return self._reason

    def on_over(self, callback: Callable[[str], None]) -> None:
        """Call with the reason when it ends, once, on whatever thread; at once when it has."""
        with self._lock:
            if not self._over.is_set():
                self._on_over.append(callback)
                return
        callback(self._reason)

    # --- asking -------------------------------------------------------------------------------------------------------

    def call(self, send: Callable[[KazooClient], Any]) -> Answer:
        """Send until there is an answer. `send` returns kazoo's asynchronous result. Errors about nodes (missing, there
        already, of another version) come back in the answer. Raises SessionOver, ZooKeeperError."""
        repeated = False
        while True:
            self._check()
            try:
                return Answer(self._await(send(self.client)), repeated=repeated)
            except (ConnectionLoss, OperationTimeoutError):
                repeated = True
                self._over.wait(AGAIN_SECONDS)
            except (SessionExpiredError, ConnectionClosedError) as error:
                self.end("ZooKeeper says that it has expired")
                raise SessionOver(f"the ZooKeeper session is over: {self._reason}") from error
            except (NoAuthError, AuthFailedError, InvalidACLError) as error:
                raise no_permission(self.settings.base) from error
            except Exception as error:  # errors about nodes; the caller knows which it expects
                return Answer(error=error, repeated=repeated)

    def transact(self, build: Callable[[Any], None]) -> Answer:
        """All of the operations that `build` adds to a transaction, or none. The answer's value is the list of their
        results; its error the first that an operation met."""

        def send(client: KazooClient) -> Any:
            transaction = client.transaction()
            build(transaction)
            return transaction.commit_async()

        answer = self.call(send)
        if answer.error is not None:
            return answer
        failed = [result for result in answer.value if isinstance(result, Exception)]
        if not failed:
            return answer
        culprit = next((e for e in failed if not isinstance(e, RolledBackError | RuntimeInconsistency)), failed[0])
        if isinstance(culprit, NoAuthError):
            raise no_permission(self.settings.base) from culprit
        return Answer(answer.value, culprit, answer.repeated)

    def ensure_path(self, path: str) -> None:
        """Create the node and those above it where they are missing; an administrator may have made some of them, in a
        place where nobody else may."""
        parts = path.strip("/").split("/")
        for length in range(1, len(parts) + 1):
            node = "/" + "/".join(parts[:length])
            answer = self.call(partial(_exists, node))
            if answer.error is None and answer.value is None:
                answer = self.call(partial(_create, node))
            if answer.error is not None and not isinstance(answer.error, NodeExistsError):
                raise answer.error

    def children(self, path: str) -> Sequence[str]:
        """Names of the nodes below; none when the node itself is missing."""
        answer = self.call(lambda client: client.get_children_async(path))
        if isinstance(answer.error, NoNodeError):
            return ()
        if answer.error is not None:
            raise answer.error
        return sorted(answer.value)

    def get(self, path: str) -> tuple[bytes, int] | None:
        """Value and version of the node; None when it is missing."""
        answer = self.call(lambda client: client.get_async(path))
        if isinstance(answer.error, NoNodeError):
            return None
        if answer.error is not None:
            raise answer.error
        value, stat = answer.value
        return value, stat.version

    def _await(self, result: Any) -> Any:
        while not result.ready():
            result.wait(LOOK_SECONDS)
            if not result.ready():
                self._check()
        return result.get()

    def _check(self) -> None:
        if self._over.is_set():
            raise SessionOver(f"the ZooKeeper session is over: {self._reason}")

    # --- the end ------------------------------------------------------------------------------------------------------

    def _state_changed(self, state: str) -> None:
        """Take a state of the connection, on kazoo's thread."""
        with self._lock:
            timer, self._suspended = self._suspended, None
        if timer is not None:
            timer.cancel()
        if state == KazooState.LOST:
            self.end("ZooKeeper says that it has expired")
        elif state == KazooState.SUSPENDED and not self._over.is_set():
            self._logger.warning(
                "connection to ZooKeeper is suspended", session_timeout_ms=self.settings.session_timeout_ms
            )
            seconds = self.settings.session_timeout_ms / 1000
            timer = threading.Timer(seconds, self.end, (f"no ZooKeeper server was reached for {seconds:g} s",))
            timer.daemon = True
            with self._lock:
                self._suspended = timer
            timer.start()

    def end(self, reason: str) -> None:
        """End the session for this reason: what was owned in it is free as soon as ZooKeeper can be told.
        Idempotent."""
        with self._lock:
            if self._over.is_set():
                return
            self._reason = reason
            self._over.set()
            timer, self._suspended = self._suspended, None
            callbacks, self._on_over = self._on_over, []
        if timer is not None:
            timer.cancel()
        # Not on this thread, which is one of the client's; and not left to live on: a connection that comes back would
        # keep the session, and with it our candidate, alive
        threading.Thread(target=self._stop_client, name="snapline-zookeeper-end", daemon=True).start()
        for callback in callbacks:
            callback(reason)

    def _stop_client(self) -> None:
        with self._stopping:
            try:
                self.client.stop()
                self.client.close()
            except Exception as error:  # the connection may be in any state
                self._logger.debug("ZooKeeper session did not close in order", reason=repr(error))


def _exists(node: str, client: KazooClient) -> Any:
    return client.exists_async(node)


def _create(node: str, client: KazooClient) -> Any:
    return client.create_async(node, b"")
