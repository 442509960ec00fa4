"""Who a caller is: which role it has, for which job, and the credential that proves it.

Decides how credentials look and what makes one good. The secret of a cluster is the administrator's credential. From it
others are signed with HMAC-SHA-256, so that a process can be given one that opens less: a role, optionally one job, one
name (the resource id of a TaskManager) and an end. Only who has the secret can sign or check one, so it stays on
coordinators and relays; but from a launcher's, and from one of TaskManagers without a name, whoever holds it can make
one for a single TaskManager (as macaroons are narrowed: Birgisson et al., NDSS 2014), which is what a launcher hands
on. A credential also carries what processes without the secret need: the public key of the table
of leaders, which only who has the secret can sign (Ed25519, RFC 8032), and, for TaskManagers, the secret of the
exchange between them. What a role may do is in `permissions`. Flink has no counterpart.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from snapline.dataflow.errors import SnaplineError

MARK = "snapline:2:"
"""How every credential begins; the secret of a cluster must not."""
MARKS = (MARK, "snapline:1:")
"""That of now, and of credentials that an earlier Snapline made, which are refused."""
OF_EARLIER = (
    "the credential in security.auth.token was made by an earlier Snapline: make another with `snapline credential`"
)
NO_CREDENTIAL = "security.auth.token begins like a credential and is none: was it cut short?"
LEAST_SECRET = 16
"""The fewest characters of a secret from which credentials are made: whoever holds one can try all shorter ones."""
A_LONGER_SECRET = f"take one of {LEAST_SECRET} or more, such as `snapline certificates` or `openssl rand -hex 32` makes"
PUBLIC_KEY_BYTES = 32
FIELDS = 7
"""The number of fields behind the mark: role, job, name, expiry, signature, public key of the leaders, secret of the
exchange."""


class Role(Enum):
    """What kind of process calls."""

    ADMINISTRATOR = "administrator"
    """Who has the cluster's secret, or any caller of a cluster that asks for none."""
    CLIENT = "client"
    LAUNCHER = "launcher"
    """Who starts TaskManagers, and makes their credentials from its own."""
    TASK_MANAGER = "taskmanager"
    RELAY = "relay"
    JOB_MASTER = "jobmaster"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class Identity:
    """Say who a caller is."""

    role: Role
    job: str = ""
    """The only job that it acts for; empty: any."""
    name: str = ""
    """The only resource id that it registers; empty: any."""
    expires_s: int = 0
    """Since the epoch; 0: never."""

    def __str__(self) -> str:
        """Say it as it is logged."""
        job = f" for job {self.job}" if self.job else ""
        name = f" {self.name}" if self.name else ""
        return f"{self.role.value}{name}{job}"


ADMINISTRATOR = Identity(Role.ADMINISTRATOR)
_NARROWED = (Role.TASK_MANAGER, Role.LAUNCHER)
"""From credentials of these roles, without a name, those of single TaskManagers can be made."""


class CredentialRefused(SnaplineError):
    """The credential proves nothing here; says why."""


def split_tokens(setting: str) -> tuple[str, ...]:
    """Return the tokens of `security.auth.token` or of a token file: one a line, or separated by commas."""
    return tuple(each.strip() for each in setting.replace("\n", ",").split(",") if each.strip())


def why_guessable(secrets: Sequence[str]) -> str:
    """Why whoever has a credential could find out the secret that it is made from; empty: not by trying.

    >>> why_guessable(["correct horse battery staple"]), why_guessable(["open sesame"])[:60]
    ('', "the cluster's secret (security.auth.token) has 11 characters")
    """
    length = min((len(secret) for secret in secrets if not is_credential(secret)), default=LEAST_SECRET)
    if length >= LEAST_SECRET:
        return ""
    return (
        f"the cluster's secret (security.auth.token) has {length} characters: who has a credential could try all of that "
        "length until it fits"
    )


def is_credential(token: str) -> bool:
    """Whether it opens less than the cluster's secret does."""
    return token.startswith(MARKS)


def sign_credential(secret: str, identity: Identity) -> str:
    """Return the credential of this identity. What is one already stays as it is, except that from one of a launcher,
    or of TaskManagers without a name, that of the TaskManager with the identity's name is made. Raises ValueError for
    what no credential can say."""
    if is_credential(secret):
        return _narrow(secret, identity)
    if identity.role is Role.ADMINISTRATOR:
        raise ValueError("the administrator's credential is the secret itself")
    _check_name(identity)
    said = _said(identity)
    exchange = exchange_secret(secret) if identity.role in _NARROWED else ""
    return f"{MARK}{said}:{_signature(secret, said)}:{leaders_public_key(secret).hex()}:{exchange}"


def identify(secrets: Sequence[str], token: str, now_s: float) -> Identity:
    """Return who shows this token, to a process that has these secrets. Raises CredentialRefused."""
    if not is_credential(token):
        if any(hmac.compare_digest(token.encode(), secret.encode()) for secret in secrets):
            return ADMINISTRATOR
        raise CredentialRefused("the call carries no or another token: set security.auth.token to the cluster's")
    if not token.startswith(MARK):
        raise CredentialRefused(OF_EARLIER)
    said, _, proof = token.removeprefix(MARK).rpartition(":")[0].rpartition(":")[0].rpartition(":")
    parts = said.split(":")
    signatures = [each for secret in secrets if not is_credential(secret) for each in _signatures(secret, parts)]
    if not any(hmac.compare_digest(signature.encode(), proof.encode()) for signature in signatures):
        raise CredentialRefused("the credential was not made with this cluster's security.auth.token, or was changed")
    role, job, name, expires = parts  # signed: so we wrote it, but for the name of one that was narrowed
    identity = Identity(Role(role), job, name, int(expires))
    if identity.expires_s and now_s >= identity.expires_s:
        raise CredentialRefused(
            f"the credential of this {identity} has expired: make another with `snapline credential`"
        )
    return identity


def leaders_public_key(token: str) -> bytes:
    """Return the key that proves who wrote the table of leaders, from a secret or a credential. Raises ValueError."""
    if not is_credential(token):
        return _public_key(token)
    digits = _fields(token)[5]
    try:
        key = bytes.fromhex(digits)
    except ValueError:
        raise ValueError(NO_CREDENTIAL) from None
    if len(key) != PUBLIC_KEY_BYTES:
        raise ValueError(NO_CREDENTIAL)
    return key


def sign_for_leaders(secret: str, said: bytes) -> bytes:
    """Return the signature of what the table of leaders says; only who has the secret can make one. Raises
    ValueError."""
    if is_credential(secret):
        raise ValueError("a credential signs no table of leaders: coordinators have the secret")
    return _private_key(secret).sign(said)


def is_signed_by_leaders(public_key: bytes, said: bytes, signature: bytes) -> bool:
    """Whether who has the secret of this public key has signed it."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, said)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=8)
def _private_key(secret: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # only where there is a secret

    return Ed25519PrivateKey.from_private_bytes(derive_key(secret, "leaders"))


@lru_cache(maxsize=8)
def _public_key(secret: str) -> bytes:
    key: bytes = _private_key(secret).public_key().public_bytes_raw()
    return key


def exchange_secret(token: str) -> str:
    """Return what TaskManagers show each other, from a secret or a TaskManager's credential. Raises ValueError."""
    return _fields(token)[6] if is_credential(token) else derive_key(token, "exchange").hex()


def derive_key(secret: str, purpose: str) -> bytes:
    """Return a key for one purpose, from which neither the secret nor the key of another purpose can be told."""
    return hmac.digest(secret.encode(), f"snapline {purpose}".encode(), hashlib.sha256)


def _said(identity: Identity) -> str:
    return f"{identity.role.value}:{identity.job}:{identity.name}:{identity.expires_s}"


def _signature(secret: str, said: str) -> str:
    return hmac.digest(derive_key(secret, "roles"), said.encode(), hashlib.sha256).hex()


def _signatures(secret: str, parts: Sequence[str]) -> list[str]:
    """Those that prove this: of the secret, and of the credentials that one of a TaskManager can be made from."""
    signatures = [_signature(secret, ":".join(parts))]
    if len(parts) == 4 and parts[0] == Role.TASK_MANAGER.value and parts[2]:
        _, job, name, expires = parts
        wide = [_signature(secret, f"{role.value}:{job}::{expires}") for role in _NARROWED]
        signatures += [_narrowed_signature(signature, name) for signature in wide]
    return signatures


def _narrowed_signature(signature: str, name: str) -> str:
    return hmac.digest(signature.encode(), name.encode(), hashlib.sha256).hex()


def _narrow(credential: str, identity: Identity) -> str:
    """The credential of the TaskManager with the identity's name, if it can be made from this one."""
    role, job, name, expires, signature, *shared = _fields(credential)
    can_be = any(role == wide.value for wide in _NARROWED) and not name
    if not can_be or identity.role is not Role.TASK_MANAGER or not identity.name:
        return credential
    _check_name(identity)
    said = f"{identity.role.value}:{job}:{identity.name}:{expires}:{_narrowed_signature(signature, identity.name)}"
    return f"{MARK}{said}:{':'.join(shared)}"


def _check_name(identity: Identity) -> None:
    if any(sign in identity.job + identity.name for sign in ":,\n") or not (identity.job + identity.name).isascii():
        raise ValueError(f"no job or name of a credential: {identity.job or identity.name!r}")


def _fields(credential: str) -> list[str]:
    if not credential.startswith(MARK):
        raise ValueError(OF_EARLIER)
    fields = credential.removeprefix(MARK).split(":")
    if len(fields) != FIELDS:
        raise ValueError(NO_CREDENTIAL)
    return fields


def sign_ticket(allocation_id: str, job_id: str, task: str, attempt_id: str) -> str:
    """Return what lets a program outside in at a TaskManager, as this attempt of this task of this job, in the slot of
    this allocation. Only coordinators and that TaskManager know the allocation's id; who has the ticket can do nothing
    else with it."""
    said = f"{job_id}:{task.encode().hex()}"
    proof = hmac.digest(derive_key(allocation_id, "programs"), f"{said}:{attempt_id}".encode(), hashlib.sha256)
    return f"{said}:{proof.hex()}"


def named_in_ticket(ticket: str) -> tuple[str, str]:
    """Return the job id and the task that a ticket says it is for, whether or not it proves that; empty: none."""
    job_id, _, rest = ticket.partition(":")
    try:
        return job_id, bytes.fromhex(rest.partition(":")[0]).decode()
    except ValueError:
        return "", ""
