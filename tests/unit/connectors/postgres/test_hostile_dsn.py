"""A dsn names a server, and nothing that libpq would load or write: a declared job brings no code, and brings one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from snapline.connectors.postgres.postgres_table import connect
from snapline.connectors.postgres.replication import open_connection
from snapline.dataflow.errors import ConnectorError
from tests.services.answering import answering


@pytest.fixture
def server() -> Iterator[str]:
    """The address of what says yes to TLS, and no more: libpq looks for the client's key then."""

    def say_yes(connection: socket.socket) -> None:
        connection.recv(8)
        connection.sendall(b"S")
        connection.recv(1_000)

    with answering(say_yes) as port:
        yield f"host=127.0.0.1 port={port} dbname=shop user=u sslmode=require"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Any certificate: without one libpq asks for no key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    )  # fmt: skip
    path = tmp_path / "certificate.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return path


def test_no_library_is_loaded_as_a_key(server: str, certificate: Path, tmp_path: Path) -> None:
    """Libpq takes what stands before a colon for an engine of OpenSSL, and loads it, wherever it lies."""
    dsn = f"{server} sslcert={certificate} sslkey={tmp_path / 'evil.so'}:key"
    for reach in (connect, lambda each: open_connection(each, "reader")):
        with pytest.raises(
            ConnectorError, match=r"^sslkey= of dsn= has a colon, so that it names a library that would"
        ):
            reach(dsn)


@pytest.mark.parametrize("name", ["servicefile", "sslkeylogfile"])
def test_a_dsn_names_no_other_files_of_settings_or_secrets(name: str, server: str, tmp_path: Path) -> None:
    """A file of services could say the key that a dsn may not (libpq before 19 does not know the word); the other one
    would be written."""
    with pytest.raises(ConnectorError, match=f'^dsn= may not have {name}=|invalid connection option "{name}"'):
        connect(f"{server} {name}={tmp_path / 'a_file'}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "dsn",
    [
        "host=127.0.0.1 user=u password=its secret dbname=d",
        "host=127.0.0.1 user=u password='its-secret dbname=d",
        "postgresql://u:its%secret@127.0.0.1/d",
        "postgresql://u:its/secret@127.0.0.1/d",
        "postgresql://u:its@secret@127.0.0.1/d",
    ],
)
def test_a_dsn_that_cannot_be_read_is_not_shown(dsn: str) -> None:
    """Libpq quotes what it does not understand, which is the rest of a password with a letter that has a meaning."""
    for reach in (connect, lambda each: open_connection(each, "reader")):
        with pytest.raises(ConnectorError, match=r"dsn that cannot be read.* in a password as %40") as raised:
            reach(dsn)
        assert "secret" not in str(raised.value) and "its" not in str(raised.value)
