"""Proof that something in a storage or in ZooKeeper was written by who holds a key that does not lie there.

Decides what a signature is (HMAC-SHA-256 over the name under which something is stored and its bytes, behind a mark, at
the end) and what is refused: another key, another name, other bytes, and nothing at all where a key is asked for.
Whoever can write to the storage but does not hold the key can remove what is there or put an older version back, not
write what a coordinator would run. Flink has no counterpart.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from snapline.dataflow.config import SECURITY_ADOPT_UNSIGNED, SECURITY_STORAGE_SECRETS, Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.cores.credentials import (
    derive_key,
    is_credential,
    is_signed_by_leaders,
    leaders_public_key,
    sign_for_leaders,
)

MARK = b"\x00snapline-signed-1\x00"
DIGEST_BYTES = hashlib.sha256().digest_size
SEAL_BYTES = len(MARK) + DIGEST_BYTES
"""How many bytes a seal adds to what is sealed."""


class NotSigned(SnaplineError, ValueError):
    """Something was not written by who holds one of the keys."""


@dataclass(frozen=True, repr=False)
class Signer:
    """Seals what is stored and opens it again. Without keys it seals nothing and opens everything."""

    keys: tuple[bytes, ...] = ()
    """The first one signs; all of them are accepted, so that keys can be changed."""
    adopts_unsigned: bool = False
    """Whether something without any seal is accepted, as from before there were keys."""

    @classmethod
    @lru_cache(maxsize=4)
    def of_slots(cls, tokens: tuple[str, ...]) -> Signer:
        """Return the signer of the slots that coordinators give away; only who has a secret itself has its key, and who
        has credentials alone believes nobody."""
        keys = tuple(derive_key(token, "slots") for token in tokens if not is_credential(token))
        return cls(keys or ((os.urandom(DIGEST_BYTES),) if tokens else ()))

    @classmethod
    def of_storage(cls, configuration: Configuration) -> Signer:
        """Return the signer of what coordinators store, by `security.storage.secrets`."""
        secrets = [
            each.strip() for each in configuration.get_option(SECURITY_STORAGE_SECRETS).split(",") if each.strip()
        ]
        keys = tuple(derive_key(secret, "storage") for secret in secrets)
        return cls(keys, configuration.get_option(SECURITY_ADOPT_UNSIGNED))

    def __repr__(self) -> str:
        """Say how many keys there are, not which."""
        return f"Signer({len(self.keys)} keys)"

    def seal(self, name: str, data: bytes) -> bytes:
        """Return the data with a signature behind it, which is true for this name only."""
        return data + MARK + _sign(self.keys[0], name, data) if self.keys else data

    def sign(self, name: str, data: bytes) -> bytes:
        """Return the signature alone, for who has a place of its own for it; empty without keys."""
        return _sign(self.keys[0], name, data) if self.keys else b""

    def is_signed(self, name: str, data: bytes, signature: bytes) -> bool:
        """Whether the signature is true for this name and data, or there is no key to tell."""
        return not self.keys or _is_signed_by_any(self.keys, name, data, signature)

    def open(self, name: str, sealed: bytes) -> bytes:
        """Return the data that was sealed under this name. Raises NotSigned."""
        is_sealed = len(sealed) >= SEAL_BYTES and sealed[-SEAL_BYTES:].startswith(MARK)
        data = sealed[:-SEAL_BYTES] if is_sealed else sealed
        if not self.keys or (self.adopts_unsigned and not is_sealed):
            return data
        if not is_sealed:
            raise NotSigned(
                f"is not signed, and {SECURITY_STORAGE_SECRETS.key} is set: if it is from before the keys were, start one "
                f"coordinator with {SECURITY_ADOPT_UNSIGNED.key}: true"
            )
        if not _is_signed_by_any(self.keys, name, data, sealed[-DIGEST_BYTES:]):
            raise NotSigned(
                f"is signed with another key, or was changed: {SECURITY_STORAGE_SECRETS.key} has to name the key that it was "
                "written with, besides the present one"
            )
        return data


@dataclass(frozen=True, repr=False)
class LeaderSigner:
    """Signs the table of leaders, where the cluster's secret is, and looks who signed it, with a credential as well.
    Without tokens it signs nothing and believes everything."""

    tokens: tuple[str, ...] = ()
    """Secrets or credentials: the first secret signs, what any of them proves is accepted."""

    def __repr__(self) -> str:
        """Say how many tokens there are, not which."""
        return f"LeaderSigner({len(self.tokens)} tokens)"

    def sign(self, name: str, data: bytes) -> bytes:
        """Return the signature; empty without tokens. Raises ValueError for a credential."""
        secrets = [token for token in self.tokens if not is_credential(token)]
        return sign_for_leaders([*secrets, *self.tokens][0], _named(name, data)) if self.tokens else b""

    def is_signed(self, name: str, data: bytes, signature: bytes) -> bool:
        """Whether the signature is true for this name and data, or there is no token to tell."""
        said = _named(name, data)
        return not self.tokens or any(
            is_signed_by_leaders(leaders_public_key(token), said, signature) for token in self.tokens
        )


UNSIGNED = Signer()
"""Signs nothing and opens everything, for stores that nobody else can write to."""


def _is_signed_by_any(keys: Sequence[bytes], name: str, data: bytes, signature: bytes) -> bool:
    return any(hmac.compare_digest(_sign(key, name, data), signature) for key in keys)


def _sign(key: bytes, name: str, data: bytes) -> bytes:
    return hmac.digest(key, _named(name, data), "sha256")


def _named(name: str, data: bytes) -> bytes:
    return b"%d:%s" % (len(name.encode()), name.encode()) + data
