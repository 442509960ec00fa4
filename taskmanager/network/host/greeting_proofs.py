"""How two TaskManagers of a host show each other that they know the cluster's secret, and do not show the secret.

Each side sends a number that it draws, and then an HMAC of both numbers, of the address under which the one listens and
of what the other asks for. So a process that listens in the place of a TaskManager learns nothing that opens anything,
and what it hands on to another TaskManager, or keeps for later, is no proof there. Mirrors the challenge and response
of SCRAM (RFC 5802), whose salted passwords are not needed, because the secret is no password.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence

from snapline.taskmanager.network.flight.frames import ProtocolError

NONCE_BYTES = 32
PROOF_BYTES = 32
WHO_CONNECTS, WHO_LISTENS = b"who connects", b"who listens"


def drawn() -> bytes:
    """A number that nobody foresees."""
    return os.urandom(NONCE_BYTES)


def parted(message: bytes) -> tuple[bytes, bytes]:
    """The number at the beginning of a message, and the rest of it. Raises ProtocolError.

    >>> parted(b"n" * 32 + b"rest")[1]
    b'rest'
    """
    if len(message) < NONCE_BYTES:
        raise ProtocolError(f"{len(message)} bytes where a number of {NONCE_BYTES} is expected")
    return message[:NONCE_BYTES], message[NONCE_BYTES:]


def proof_of(secret: str, side: bytes, numbers: bytes, address: str, asked: bytes) -> bytes:
    """What shows that a side knows the secret. `numbers`: that of who connects, then that of who listens.

    >>> len(proof_of("secret", WHO_LISTENS, bytes(64), "10.0.0.1:4711", b"an edge"))
    32
    """
    return hmac.digest(secret.encode(), b"\0".join((side, numbers, address.encode(), asked)), "sha256")


def knows_one(proofs: bytes, secrets: Sequence[str], side: bytes, numbers: bytes, address: str, asked: bytes) -> bool:
    """Whether one of the proofs, which lie one after the other, is of one of the secrets.

    >>> shown = proof_of("old", WHO_LISTENS, bytes(64), "10.0.0.1:4711", b"an edge")
    >>> knows_one(shown, ["new", "old"], WHO_LISTENS, bytes(64), "10.0.0.1:4711", b"an edge")
    True
    >>> knows_one(shown, ["new", "old"], WHO_CONNECTS, bytes(64), "10.0.0.1:4711", b"an edge")
    False
    """
    shown = [proofs[at : at + PROOF_BYTES] for at in range(0, len(proofs), PROOF_BYTES)]
    expected = [proof_of(secret, side, numbers, address, asked) for secret in secrets]
    return any(hmac.compare_digest(each, other) for each in shown for other in expected)
