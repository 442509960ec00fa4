"""Whether a server may listen where it is told to: who can reach it can run code in it, unless callers have to show who
they are.

Decides that an address which only this machine reaches needs nothing, that any other one needs a token or TLS (both
sides of which show a certificate), that a secret there is not so short that it can be guessed, and that `--insecure` is
heeded, with a warning. Flink leaves this to its users.
"""

from __future__ import annotations

import ipaddress
import socket

from snapline.dataflow.config import (
    COORDINATOR_BIND_HOST,
    RELAY_BIND_HOST,
    SECURITY_SSL_CA,
    SECURITY_TOKEN,
    SECURITY_TOKEN_FILE,
    Configuration,
    ConfigurationError,
)
from snapline.runtime.cores.credentials import A_LONGER_SECRET, why_guessable
from snapline.runtime.rpc.security import Security


def exposure_warning(what: str, address: str, bind_host: str, configuration: Configuration, *, insecure: bool) -> str:
    """What to warn of before a `what` listens at `address` (host:port), or on `bind_host` instead of its host; empty:
    nothing. Raises ConfigurationError when everybody could use it, or guess the cluster's secret, and nobody has said
    `--insecure`."""
    host, _, port = address.rpartition(":")
    named, host = host.strip("[]"), (bind_host or host).strip("[]")
    if is_loopback(host):
        return _own_name_warning(what, host)
    secrets = _secrets(configuration)
    if not secrets and not configuration.get_option(SECURITY_SSL_CA):
        danger = f"whoever reaches {host}:{port} can run code in this {what}"
        because = f", because there is neither {SECURITY_TOKEN.key} nor {SECURITY_SSL_CA.key}"
        way_out = (
            f"run `snapline certificates DIR --host {named}` and use what it makes, or set {SECURITY_TOKEN.key} to one secret for "
            f"all processes (SNAPLINE_CONF_security__auth__token=$(openssl rand -hex 32))"
        )
    elif danger := why_guessable(secrets):
        because, way_out = "", A_LONGER_SECRET
    else:
        return ""
    if insecure:
        return f"--insecure: {danger}{because}"
    raise ConfigurationError(f"{danger}: {way_out}, or listen on 127.0.0.1, or say --insecure")


def _own_name_warning(what: str, host: str) -> str:
    """Debian gives a host's own name an address of loopback: nobody else reaches it by that name."""
    if host == "localhost" or is_address(host):
        return ""
    setting = RELAY_BIND_HOST if what == "relay" else COORDINATOR_BIND_HOST
    return (
        f"{host} is an address of loopback on this machine (see /etc/hosts), so that no other one reaches this {what}: where others are "
        f"to, set {setting.key} to 0.0.0.0"
    )


def is_address(host: str) -> bool:
    """Whether it is an address of IPv4 or IPv6, and no name.

    >>> is_address("127.0.0.1"), is_address("::1"), is_address("localhost")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _secrets(configuration: Configuration) -> tuple[str, ...]:
    """What the setting or the file says. Raises SecurityError for a file that cannot be read or says nothing."""
    tokens = {option.key: configuration.get_option(option) for option in (SECURITY_TOKEN, SECURITY_TOKEN_FILE)}
    return Security.from_configuration(Configuration(tokens)).secrets


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. A name that nobody knows is not: listening will say what is wrong with
    it."""
    if is_address(host):
        return ipaddress.ip_address(host).is_loopback
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter: it can be no name
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def names_this_machine(host: str) -> bool:
    """Whether what a request calls its host (`name:port`) is an address or `localhost`, rather than a name that
    somebody's site may have made point here.

    >>> names_this_machine("127.0.0.1:8081"), names_this_machine("localhost"), names_this_machine("evil.example:8081")
    (True, True, False)
    """
    name = host_name(host)
    return name == "localhost" or is_address(name)


def host_name(host: str) -> str:
    """The name or address in what a request calls its host.

    >>> host_name("[::1]:8081"), host_name("page.example")
    ('::1', 'page.example')
    """
    before, _, port = host.rpartition(":")
    return (before if port.isdigit() else host).strip("[]")
