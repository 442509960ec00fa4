"""What a process shows to others and asks of them: tokens and certificates, from settings or from files.

Decides when files are read again: each time somebody dials, listens or is called, when one of them has changed, so that
new ones count without a restart. Files that cannot be used at that moment, such as a certificate whose key is not there
yet, are looked at again the next time, and those before stay in use. Which process shows which credential is decided by
`acting_as`: a process with the cluster's secret sends a credential of its role instead.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from snapline.dataflow.config import (
    SECURITY_SSL_CA,
    SECURITY_SSL_CERTIFICATE,
    SECURITY_SSL_KEY,
    SECURITY_TOKEN,
    SECURITY_TOKEN_FILE,
    Configuration,
)
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.cores.credentials import (
    ADMINISTRATOR,
    Identity,
    Role,
    exchange_secret,
    identify,
    is_credential,
    leaders_public_key,
    sign_credential,
    split_tokens,
    why_guessable,
)
from snapline.runtime.signing import LeaderSigner, Signer

TOKEN_METADATA_KEY = "snapline-token"  # noqa: S105 - the name of a header
TOKEN_SETTINGS = frozenset({SECURITY_TOKEN.key, SECURITY_TOKEN_FILE.key})
"""Settings that whoever starts TaskManagers keeps from them: they get credentials."""


READS_AT_MOST = 10
"""So often files that change while they are read are read again."""


class SecurityError(SnaplineError):
    """A certificate, key or token cannot be used; names the file and the setting."""


@dataclass(frozen=True)
class Security:
    """What both ends of a channel have to agree on."""

    token: str = ""
    """Secrets or credentials, separated by commas: the first is shown, all are accepted; empty: none is asked for."""
    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    identity: Identity = ADMINISTRATOR
    """Whom this process shows itself as."""
    files: SecurityFiles | None = field(default=None, compare=False)
    """Where the above is from; None: it never changes."""

    @property
    def tls(self) -> bool:
        """Whether channels are encrypted; then both sides show a certificate."""
        return bool(self.ca)

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> Security:
        """Reads the files. Raises SecurityError naming the one that cannot be read, or the one that is missing."""
        files = SecurityFiles(configuration)
        return files.read() if files.paths else files.settle(cls(configuration.get_option(SECURITY_TOKEN)))

    def current(self) -> Security:
        """Return this with what the files say now."""
        if self.files is None:
            return self
        return replace(self.files.current(), identity=self.identity, files=self.files)

    def acting_as(self, identity: Identity) -> Security:
        """Return this for a process of that role: what it shows opens no more than the role needs. Raises SecurityError
        for what no credential can say, and for what is none."""
        acting = replace(self, identity=identity)
        try:
            list(acting.shown)
        except ValueError as error:
            raise SecurityError(str(error)) from error
        return acting

    def __repr__(self) -> str:
        """Says what is on, not what it is."""
        return f"Security(token={'set' if self.token else 'none'}, tls={self.tls})"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return what callers may have their tokens from."""
        return split_tokens(self.token)

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the credentials of this process, the one that it shows first."""
        if self.identity == ADMINISTRATOR:
            return self.secrets
        return tuple(sign_credential(secret, self.identity) for secret in self.secrets)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a client sends with each call, as of now."""
        return tuple((TOKEN_METADATA_KEY, token) for token in self.current().shown[:1])

    @property
    def signer(self) -> LeaderSigner:
        """Return what the table of leaders is signed with, as of now."""
        return LeaderSigner(self.current().secrets)

    @property
    def slot_signer(self) -> Signer:
        """Return what the slots that coordinators give to jobs are signed with, as of now."""
        return Signer.of_slots(self.current().secrets)

    @property
    def exchange_secrets(self) -> tuple[str, ...]:
        """Return what TaskManagers show each other, as of now, and accept: the first is shown."""
        return tuple(exchange_secret(token) for token in self.current().secrets)

    def server_context(self) -> ssl.SSLContext:
        """Return what a server of Python's own shows and asks for: both sides show a certificate."""
        return self._context(ssl.Purpose.CLIENT_AUTH)

    def client_context(self) -> ssl.SSLContext:
        """Return what a client of Python's own shows and asks for: both sides show a certificate."""
        return self._context(ssl.Purpose.SERVER_AUTH)

    def _context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        # Python takes ASCII alone, and what stands between certificates may be anything
        context = ssl.create_default_context(purpose, cadata=self.ca.decode("ascii", errors="ignore"))
        context.verify_mode = ssl.CERT_REQUIRED
        # Python 3.13 refuses authorities that do not say what their key is for; gRPC and Python before take them
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        with _as_file(self.certificate + b"\n" + self.key) as pair:  # there is no way to load a key but from a file
            context.load_cert_chain(pair)
        return context

    def identify(self, metadata: Iterable[tuple[Any, Any]]) -> Identity:
        """Return who has sent this with a call. Raises CredentialRefused."""
        secrets = self.current().secrets
        if not secrets:
            return ADMINISTRATOR
        given = next((value for key, value in metadata if key == TOKEN_METADATA_KEY), "")
        return self.identify_token(given.decode(errors="replace") if isinstance(given, bytes) else str(given))

    def identify_token(self, token: str) -> Identity:
        """Return who shows this token. Raises CredentialRefused."""
        secrets = self.current().secrets
        return identify(secrets, token, time.time()) if secrets else ADMINISTRATOR


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """The path of a file with this content: in memory where there is such a one, because a disk may be full."""
    in_memory = getattr(os, "memfd_create", None)
    if in_memory is not None:
        with os.fdopen(in_memory("pair"), "wb", buffering=0) as file:
            file.write(content)
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.TemporaryDirectory() as directory:
        pair = Path(directory) / "pair.pem"
        pair.touch(0o600)
        pair.write_bytes(content)
        yield str(pair)


class SecurityFiles:
    """The files that settings name, and what was read from them last. Thread-safe."""

    def __init__(self, configuration: Configuration) -> None:
        """Reads nothing yet. Raises SecurityError when settings are missing."""
        tls = (SECURITY_SSL_CA, SECURITY_SSL_CERTIFICATE, SECURITY_SSL_KEY)
        self._token = configuration.get_option(SECURITY_TOKEN)
        self.paths = {
            each.key: path for each in (*tls, SECURITY_TOKEN_FILE) if (path := configuration.get_option(each))
        }
        self._tls = [option.key for option in tls if option.key in self.paths]
        for option in tls if self._tls else ():
            if option.key not in self.paths:
                raise SecurityError(f"{option.key} is not set; TLS needs {', '.join(o.key for o in tls)}")
        if self._token and SECURITY_TOKEN_FILE.key in self.paths:
            raise SecurityError(f"{SECURITY_TOKEN.key} and {SECURITY_TOKEN_FILE.key} are both set: leave one out")
        self._lock = threading.Lock()
        self._last: tuple[object, Security] = (None, Security())

    def read(self) -> Security:
        """Read all files. Raises SecurityError naming the one that cannot be used."""
        state, contents = self._consistent()
        token = self._token
        if SECURITY_TOKEN_FILE.key in contents:
            token = contents[SECURITY_TOKEN_FILE.key].decode(errors="replace")
            if not split_tokens(token):
                raise SecurityError(f"{SECURITY_TOKEN_FILE.key}: {self.paths[SECURITY_TOKEN_FILE.key]} names no token")
        ca, certificate, key = (contents[each] for each in self._tls) if self._tls else (b"", b"", b"")
        read = self.settle(Security(",".join(split_tokens(token)), ca, certificate, key, files=self))
        with self._lock:
            before, last = self._last
            if before is not None and why_guessable(read.secrets) and not why_guessable(last.secrets):
                read = replace(read, token=last.token)  # a server that is exposed would not have started with it
            self._last = (state, read)
        return read

    def _consistent(self) -> tuple[object, dict[str, bytes]]:
        """What the files say, of one moment: while somebody changes them, a new certificate could come with the key of
        the old one, and who connected then was cut off."""
        for _ in range(READS_AT_MOST):
            state = self._state()
            contents = {key: self._read(key, path) for key, path in self.paths.items()}
            if self._tls:
                self._check_authority()
                self._check_pair()
            if state == self._state():
                return state, contents
        raise SecurityError(f"{', '.join(self.paths)}: the files are changed all the time")

    def current(self) -> Security:
        """Return what the files say, or what they said before if they cannot be used now."""
        with self._lock:
            state, last = self._last
        if state == self._state():
            return last
        try:
            return self.read()
        except SecurityError:  # somebody is in the middle of changing them
            return last

    @staticmethod
    def settle(security: Security) -> Security:
        """Return what was read, if its tokens make sense. Raises SecurityError."""
        for token in security.secrets:
            if not (token.isascii() and token.isprintable()):
                raise SecurityError(
                    f"a secret in {SECURITY_TOKEN.key} or {SECURITY_TOKEN_FILE.key} has a sign that no call can carry: take "
                    "printable ASCII, such as `openssl rand -hex 32` makes"
                )
            try:
                if is_credential(token):
                    leaders_public_key(token)
            except ValueError as error:
                raise SecurityError(str(error)) from error
        return security

    def _state(self) -> tuple[object, ...]:
        found: list[object] = []
        for path in self.paths.values():
            try:
                status = Path(path).stat()
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
            except OSError:
                found.append(None)
        return tuple(found)

    @staticmethod
    def _read(key: str, path: str) -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise SecurityError(f"{key}: cannot read {path}: {error.strerror}") from error

    def _check_authority(self) -> None:
        """The file has a certificate: with an empty one nothing would be encrypted, and nobody asked for one."""
        path = self.paths[SECURITY_SSL_CA.key]
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except (ssl.SSLError, OSError) as error:
            raise SecurityError(f"{SECURITY_SSL_CA.key}: {path} has no certificate of an authority in PEM") from error

    def _check_pair(self) -> None:
        """The key is that of the certificate; gRPC would say so to the first caller only."""
        certificate, key = (self.paths[option.key] for option in (SECURITY_SSL_CERTIFICATE, SECURITY_SSL_KEY))

        def refuse() -> str:
            raise SecurityError(
                f"{SECURITY_SSL_KEY.key}: {key} is encrypted, and nobody is asked for its passphrase: `openssl pkey` writes it in the clear"
            )

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, refuse)
        except (ssl.SSLError, OSError) as error:
            line = str(error).partition("(")[0].strip() or "not PEM"
            raise SecurityError(
                f"{key} is not the key of {certificate}, or one of them is no PEM file: {line}"
            ) from error


def check_secret(security: Security) -> None:
    """Raise SecurityError for a process that has to know who its callers are, and could not tell."""
    if security.secrets and all(is_credential(token) for token in security.secrets):
        raise SecurityError(
            f"{SECURITY_TOKEN.key} is a credential: coordinators and relays need the cluster's secret itself, to tell who calls"
        )


def settings_of_token(token: str) -> dict[str, str]:
    """Return the settings with which a process takes this token, whatever else it reads settings from; empty: none."""
    return {SECURITY_TOKEN.key: token, SECURITY_TOKEN_FILE.key: ""} if token else {}


def configured_token(configuration: Configuration) -> str:
    """Return what `security.auth.token` says, or the file that `security.auth.file` names. Raises SecurityError."""
    return Security.from_configuration(configuration).token


def task_manager_token(token: str, resource_id: str) -> str:
    """Return what a TaskManager is given in place of the cluster's token: credentials for its resource id alone."""
    return ",".join(Security(token).acting_as(Identity(Role.TASK_MANAGER, name=resource_id)).shown)
