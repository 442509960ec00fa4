"""Who may listen where without asking callers who they are."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from snapline.dataflow.config import Configuration, ConfigurationError
from snapline.runtime.rpc.exposure import exposure_warning, is_loopback
from snapline.runtime.rpc.security import SecurityError

NONE = Configuration()
TOKEN = Configuration({"security.auth.token": "sixteen letters!"})
TLS = Configuration({"security.ssl.ca-file": "/ca.pem"})


@pytest.mark.parametrize(
    ("address", "bind_host", "configuration"),
    [
        ("127.0.0.1:6123", "", NONE),
        ("127.3.2.1:6123", "", NONE),
        ("[::1]:6123", "", NONE),
        ("localhost:6123", "", NONE),
        ("10.0.0.1:6123", "127.0.0.1", NONE),
        ("10.0.0.1:6123", "", TOKEN),
        ("10.0.0.1:6123", "0.0.0.0", TLS),
    ],
)
def test_where_nothing_is_to_be_said(address: str, bind_host: str, configuration: Configuration) -> None:
    """On this machine alone, or where callers show who they are."""
    assert exposure_warning("coordinator", address, bind_host, configuration, insecure=False) == ""


@pytest.mark.parametrize(
    ("address", "bind_host"), [("10.0.0.1:6123", ""), ("[2001:db8::1]:6123", ""), ("127.0.0.1:6123", "0.0.0.0")]
)
def test_an_address_that_others_reach_needs_a_token(address: str, bind_host: str) -> None:
    """One SubmitJob would run code there. `--insecure` is heeded, and warned of."""
    with pytest.raises(
        ConfigurationError,
        match=r"can run code in this coordinator: run `snapline certificates DIR --host \S+` .* set security\.auth\.token",
    ):
        exposure_warning("coordinator", address, bind_host, NONE, insecure=False)

    assert "can run code" in exposure_warning("coordinator", address, bind_host, NONE, insecure=True)


@pytest.mark.parametrize(("what", "setting"), [("coordinator", "jobmanager.bind-host"), ("relay", "relay.bind-host")])
def test_a_name_that_is_loopback_on_its_own_host_is_warned_of(
    what: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's /etc/hosts makes one of each host's name: nobody else came, and nothing said why."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    warning = exposure_warning(what, "orion:6123", "", NONE, insecure=False)
    assert warning.startswith("orion is an address of loopback on this machine (see /etc/hosts), so that no other one")
    assert warning.endswith(f"reaches this {what}: where others are to, set {setting} to 0.0.0.0")
    assert exposure_warning(what, "orion:6123", "0.0.0.0", TOKEN, insecure=False) == ""


@pytest.mark.parametrize("more", [{}, {"security.ssl.ca-file": "/ca.pem"}], ids=["token", "token and TLS"])
@pytest.mark.parametrize("tokens", ["fifteen letters", "sixteen letters!,old"])
def test_a_secret_that_can_be_guessed_is_refused_where_others_come(
    tmp_path: Path, tokens: str, more: dict[str, str]
) -> None:
    """Every TaskManager, and so every function of a user, has a credential that is made from it, TLS or not, and can
    try secrets until one makes the same. It was refused by the command that makes credentials alone."""
    (tmp_path / "token").write_text(tokens.replace(",", "\n"))
    said = Configuration({"security.auth.token": tokens, **more})
    in_a_file = Configuration({"security.auth.file": str(tmp_path / "token"), **more})

    for configuration in (said, in_a_file):
        assert exposure_warning("coordinator", "127.0.0.1:6123", "", configuration, insecure=False) == ""
        with pytest.raises(
            ConfigurationError, match=r"has (15|3) characters: .* take one of 16 or more.* or say --insec"
        ):
            exposure_warning("coordinator", "10.0.0.1:6123", "", configuration, insecure=False)
        warning = exposure_warning("coordinator", "10.0.0.1:6123", "", configuration, insecure=True)
        assert warning.startswith("--insecure: the cluster's secret (security.auth.token) has ")


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Before anything listens, and so is one that says nothing."""
    configuration = Configuration({"security.auth.file": str(tmp_path / "token")})

    with pytest.raises(SecurityError, match=r"security\.auth\.file: cannot read .*token: No such file"):
        exposure_warning("relay", "10.0.0.1:6123", "", configuration, insecure=False)
    (tmp_path / "token").write_text("\n")
    with pytest.raises(SecurityError, match=r"security\.auth\.file: .*token names no token"):
        exposure_warning("relay", "10.0.0.1:6123", "", configuration, insecure=False)


def test_a_name_is_loopback_when_all_its_addresses_are() -> None:
    """A name that nobody knows is not, nor what can be no name, with a slip in it."""
    assert [is_loopback(host) for host in ("localhost", "no-such-name.invalid", "no..name", "::1", "::")] == [
        True,
        False,
        False,
        True,
        False,
    ]
