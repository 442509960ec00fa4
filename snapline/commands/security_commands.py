"""`snapline credential` and `snapline certificates`: what processes of a cluster show each other, made in one step."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import click

from snapline.commands.printing import echo
from snapline.commands.target import token_instead
from snapline.dataflow.config import SECURITY_TOKEN, Configuration, parse_duration_ms
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.cores.credentials import A_LONGER_SECRET, Identity, Role, sign_credential, why_guessable
from snapline.runtime.rpc.exposure import is_address
from snapline.runtime.rpc.security import Security, check_secret
from snapline.runtime.settings import default_layers, resolve

ROLES = [role.value for role in Role if role is not Role.ADMINISTRATOR]
EXCHANGE_NAME = "snapline-taskmanager"
"""The name in the certificate of all TaskManagers, which get their addresses when they start."""
PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700


@click.command("credential")
@click.option("--role", type=click.Choice(ROLES), required=True, help="what its holder may do")
@click.option("--job", default="", metavar="ID", help="the only job that it is for")
@click.option("--name", default="", metavar="ID", help="the only resource id that it registers (TaskManagers)")
@click.option("--expires", default="", metavar="DURATION", help="such as 30 d; without it never")
@click.option("--token", default="", help="the cluster's secret (setting security.auth.token)")
def credential(role: str, job: str, name: str, expires: str, token: str) -> None:
    """Print a credential that opens less than the cluster's secret, from which it is made: `snapline credential --role
    client --job ID --expires '30 d'`."""
    layers = default_layers(os.environ)
    given = token_instead(token, layers) if token else {}
    configuration = resolve(layers, given)
    echo(make_credential(configuration, Identity(Role(role), job, name), expires))


def make_credential(configuration: Configuration, identity: Identity, expires: str) -> str:
    """Return a credential of this identity, made from the cluster's secret. Raises SnaplineError without one, for one
    that could be guessed, and for an end that would be now."""
    security = Security.from_configuration(configuration)
    if not security.secrets:
        raise SnaplineError(f"{SECURITY_TOKEN.key} is not set: a credential is made from the cluster's secret")
    check_secret(security)
    secret = security.secrets[0]
    if danger := why_guessable([secret]):
        raise SnaplineError(f"{danger}; {A_LONGER_SECRET}")
    try:
        lasts_s = parse_duration_ms(expires) // 1000 if expires else None
        if lasts_s == 0:
            raise ValueError(f"with --expires {expires!r} it would have expired when it is made: say a second or more")
        ends_s = 0 if lasts_s is None else int(time.time()) + lasts_s
        return sign_credential(secret, Identity(identity.role, identity.job, identity.name, ends_s))
    except ValueError as error:
        raise SnaplineError(f"no credential: {error}") from error


@click.command("certificates")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--host", "hosts", multiple=True, required=True, help="name or address of a coordinator or relay")
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="how long they are good")
def certificates(directory: Path, hosts: tuple[str, ...], days: int) -> None:
    """Make a cluster's authority, certificates, secrets and settings in one step: `snapline certificates DIR --host
    10.0.0.1`.

    DIR gets one directory for each kind of process, to be copied to its machines as it is. Said again it keeps the
    authority and the secrets, and renews the certificates. ca.key and token stay where they are.
    """
    try:
        made = make_certificates(directory, hosts, days)
    except OSError as error:
        raise SnaplineError(f"no certificates below {directory}: {error.strerror}: {error.filename}") from error
    for each in made:
        echo(str(each))


def make_certificates(directory: Path, hosts: Sequence[str], days: int) -> list[Path]:
    """Return the settings files of coordinator, relay, TaskManager and client. Raises SnaplineError."""
    import shutil

    if shutil.which("openssl") is None:
        raise SnaplineError("openssl is not installed: certificates are made with it")
    for host in hosts:
        if not _is_host(host):
            raise SnaplineError(
                f"--host {host!r} is no name or address: say it without a port, and other letters in punycode"
            )
    directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    authority = directory / "ca.pem"
    if authority.exists() and not (directory / "ca.key").exists():
        raise SnaplineError(
            f"{directory / 'ca.key'} is not there, which renews certificates of {authority}: put it back, or begin in another directory"
        )
    if not authority.exists():
        _run_openssl(
            directory, ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=snapline authority",
                        "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-days", "3650", "-keyout", "ca.key", "-out", "ca.pem"]
        )  # fmt: skip
    token = _keep(directory / "token")
    storage = _keep(directory / "coordinator" / "storage-secret")
    served = [f"IP:{host}" if is_address(host) else f"DNS:{host}" for host in hosts]
    local = ["DNS:localhost", "IP:127.0.0.1"]
    written = []
    for role, names in {
        Role.ADMINISTRATOR: [*served, *local],
        Role.RELAY: [*served, *local],
        Role.TASK_MANAGER: [f"DNS:{EXCHANGE_NAME}"],
        Role.CLIENT: ["DNS:snapline-client"],
    }.items():
        kind = "coordinator" if role is Role.ADMINISTRATOR else role.value
        place = directory / kind
        place.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
        shown = token if role in (Role.ADMINISTRATOR, Role.RELAY) else sign_credential(token, Identity(role))
        _write(place / "token", shown + "\n")
        _write(place / "ca.pem", authority.read_text())
        _sign(directory, place, kind, names, days)
        settings = {
            "security.auth.file": str(place.absolute() / "token"),
            "security.ssl.ca-file": str(place.absolute() / "ca.pem"),
            "security.ssl.certificate-file": str(place.absolute() / "certificate.pem"),
            "security.ssl.key-file": str(place.absolute() / "key.pem"),
            "security.ssl.exchange.hostname": EXCHANGE_NAME,
        }
        if role is Role.ADMINISTRATOR:
            settings["security.storage.secrets"] = storage
        lines = (f'"{key}" = {json.dumps(settings[key], ensure_ascii=False)}\n' for key in sorted(settings))
        _write(place / "snapline.toml", "".join(lines))
        written.append(place / "snapline.toml")
    return written


def _is_host(host: str) -> bool:
    return is_address(host) or re.fullmatch(r"(\*\.)?(?=.*[A-Za-z])\w[\w.-]{0,252}", host, re.ASCII) is not None


def _sign(directory: Path, place: Path, kind: str, names: Sequence[str], days: int) -> None:
    """Make a key, and a certificate of the authority for it; both are there at once."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=place) as scratch:
        here = Path(scratch)
        (here / "extensions").write_text(
            f"subjectAltName={','.join(names)}\nextendedKeyUsage=serverAuth,clientAuth\nkeyUsage=critical,digitalSignature\n"
            "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        _run_openssl(
            here, ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN=snapline {kind}", "-keyout",
                   "key.pem", "-out", "request"]
        )  # fmt: skip
        authority = directory.absolute()
        _run_openssl(
            here, ["x509", "-req", "-in", "request", "-CA", str(authority / "ca.pem"), "-CAkey", str(authority / "ca.key"),
                   "-set_serial", str(secrets.randbits(120)), "-days", str(days), "-extfile", "extensions", "-out", "certificate.pem"]
        )  # fmt: skip
        for name in ("key.pem", "certificate.pem"):
            (here / name).chmod(PRIVATE_FILE)
            (here / name).replace(place / name)


def _run_openssl(directory: Path, arguments: list[str]) -> None:
    import subprocess

    try:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, umask=0o077)
    except subprocess.CalledProcessError as error:
        line = error.stderr.decode(errors="replace").strip().splitlines()
        raise SnaplineError(f"openssl {arguments[0]} failed: {line[-1] if line else 'no reason given'}") from error


def _keep(path: Path) -> str:
    """Return the secret that lies there, after drawing one if there was none."""
    if not path.exists():
        path.parent.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
        _write(path, secrets.token_hex(32) + "\n")
    return path.read_text().strip()


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    with os.fdopen(
        os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "w", encoding="utf-8"
    ) as file:
        file.write(text)
    temporary.replace(path)
