"""What a seal proves, and what is refused."""

from __future__ import annotations

import pytest

from snapline.dataflow.config import Configuration
from snapline.dataflow.ids import LeaderSessionID
from snapline.runtime.cores.credentials import Identity, Role, sign_credential
from snapline.runtime.leaders.leader_retrieval import (
    LeaderAddress,
    LeaderTable,
    open_leader_table,
    seal_leader_table,
)
from snapline.runtime.signing import SEAL_BYTES, UNSIGNED, LeaderSigner, NotSigned, Signer

OURS = Signer((b"ours",))


def test_what_was_sealed_opens_to_the_same_bytes() -> None:
    """Empty data has a seal, too, and who has no key still finds the data in front of it."""
    for data in (b"", b"graph", b"x" * 1_000):
        sealed = OURS.seal("jobs/1", data)
        assert len(sealed) == len(data) + SEAL_BYTES
        assert OURS.open("jobs/1", sealed) == data
        assert UNSIGNED.open("jobs/1", sealed) == data
        assert UNSIGNED.seal("jobs/1", data) == data


def test_every_flipped_bit_is_found() -> None:
    """In the data, in the mark and in the signature: each byte is changed in turn."""
    sealed = OURS.seal("jobs/1", b"a graph")
    for index in range(len(sealed)):
        changed = bytearray(sealed)
        changed[index] ^= 1
        with pytest.raises(NotSigned):
            OURS.open("jobs/1", bytes(changed))


@pytest.mark.parametrize(
    ("signer", "name", "sealed"),
    [
        (OURS, "jobs/2", OURS.seal("jobs/1", b"a graph")),
        (Signer((b"theirs",)), "jobs/1", OURS.seal("jobs/1", b"a graph")),
        (OURS, "jobs/1", b"a graph"),
        (Signer((b"ours",), adopts_unsigned=True), "jobs/1", Signer((b"theirs",)).seal("jobs/1", b"a graph")),
    ],
    ids=["another name", "another key", "no seal", "adopting does not take another key"],
)
def test_what_we_did_not_seal_is_refused(signer: Signer, name: str, sealed: bytes) -> None:
    """The message says which setting to look at."""
    with pytest.raises(NotSigned, match=r"security\.storage\.secrets"):
        signer.open(name, sealed)


def test_secrets_come_from_the_settings() -> None:
    """The first one signs, the others are accepted; nothing of them is shown."""
    both = Signer.of_storage(Configuration({"security.storage.secrets": "new, old"}))
    old = Signer.of_storage(Configuration({"security.storage.secrets": "old"}))

    assert both.open("n", old.seal("n", b"data")) == b"data"
    with pytest.raises(NotSigned):
        old.open("n", both.seal("n", b"data"))
    assert repr(both) == "Signer(2 keys)"


def test_a_table_of_leaders_is_followed_when_a_coordinator_wrote_it() -> None:
    """Who can write to ZooKeeper but does not have the token cannot send TaskManagers, and their token, elsewhere."""
    table = LeaderTable(LeaderAddress("127.0.0.1:6123", LeaderSessionID("s")))
    signer = LeaderSigner(("the token",))
    credential = sign_credential("the token", Identity(Role.EXTERNAL, "job"))
    with_credential = LeaderSigner((credential,))
    sealed = seal_leader_table(table, signer)

    assert open_leader_table(sealed, signer) == open_leader_table(sealed, with_credential) == table
    assert open_leader_table(sealed, LeaderSigner(("new", "the token"))) == table
    for forger in (LeaderSigner(), LeaderSigner(("another",))):
        with pytest.raises(NotSigned, match=r"this cluster's security\.auth\.token"):
            open_leader_table(seal_leader_table(table, forger), signer)
    with pytest.raises(ValueError, match="a credential signs no table"):
        seal_leader_table(table, with_credential)
    assert open_leader_table(seal_leader_table(table, LeaderSigner((credential, "the token"))), signer) == table
    assert "the token" not in repr(signer)


def test_what_is_no_table_of_leaders_is_an_error_of_ours() -> None:
    """Whoever may write to ZooKeeper gave each command, and each call of a standby, a traceback by it."""
    with pytest.raises(NotSigned, match="table of leaders is none"):
        open_leader_table(b"\xff\xff\xff", LeaderSigner())
