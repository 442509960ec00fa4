"""docs/security.md is followed word by word: what can be executed here is, the rest is compared with what is there."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from snapline.dataflow.config import OPTIONS, check_key
from tests.services.cluster import wait_until

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "security.md").read_text()
BLOCKS = [block.strip().splitlines() for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)]
COMMANDS = [line.removeprefix("$ ") for block in BLOCKS for line in block]
BOUNDS = re.findall(r"^\| [^|]* \| ([^|]*) \| `([^`|]*)` \| `([^`|]*)` \|$", PAGE, re.MULTILINE)


def test_the_first_block_is_a_secure_cluster(tmp_path: Path) -> None:
    """Executed as it stands, but for the port: the certificates are made, the coordinator starts with them, a client
    with its own files lists its jobs, one without any is refused, and a credential is printed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: certificates cannot be made")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    made, started, listed, credential = (command.replace("6123", port) for command in BLOCKS_OF_THE_START)

    def shell(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )

    assert 0 == shell(made).returncode
    coordinator = subprocess.Popen(
        ["bash", "-c", f"exec env {started.removesuffix(' &')}"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: coordinator.poll() is not None or shell(listed).returncode == 0, "an answer to the client")
        assert coordinator.poll() is None
        assert 0 != shell(listed.partition(" ")[2]).returncode
        printed = shell(credential)
        assert printed.stdout.startswith("snapline:"), printed.stderr
    finally:
        coordinator.terminate()
        coordinator.wait()


def test_the_block_for_systemd_starts_a_secure_coordinator(tmp_path: Path) -> None:
    """Executed as it stands, but that /etc lies in a directory of the test, nobody becomes another user, and what the
    unit says is started by hand: a client with its own files lists its jobs."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: certificates cannot be made")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "etc" / "systemd" / "system").mkdir(parents=True)
    made, _, listed, _ = BLOCKS_OF_THE_START
    *installing, enabling = (line.removeprefix("$ sudo ") for line in BLOCKS[1])
    assert "systemctl enable --now snapline-coordinator" == enabling
    steps = "\n".join(
        [
            "set -e",
            made,
            *(step.replace("-o snapline ", "").replace("/etc/", f"{tmp_path}/etc/") for step in installing),
        ]
    )
    subprocess.run(["bash", "-c", steps], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=60)
    unit = (tmp_path / "etc" / "systemd" / "system" / "snapline-coordinator.service").read_text()
    unit = unit.replace("/etc/", f"{tmp_path}/etc/").replace("0.0.0.0", "127.0.0.1")
    said = re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE)
    [file] = [value for key, value in said if key == "EnvironmentFile"]
    assert Path(file).is_file()
    variables = [value.partition("=")[::2] for key, value in said if key == "Environment"]
    [start] = [value for key, value in said if key == "ExecStart"]
    program, *arguments = start.replace("%H:6123", address).replace("9249", "0").split()
    coordinator = subprocess.Popen(
        [Path(program).name, *arguments],
        cwd=tmp_path,
        env={**environment, **dict(variables)},
        stderr=subprocess.DEVNULL,
    )

    def answers() -> bool:
        asking = listed.replace("127.0.0.1:6123", address)
        done = subprocess.run(["bash", "-c", asking], cwd=tmp_path, env=environment, capture_output=True, timeout=60)
        return done.returncode == 0

    try:
        wait_until(lambda: coordinator.poll() is not None or answers(), "an answer to the client")
        assert coordinator.poll() is None
    finally:
        coordinator.terminate()
        coordinator.wait()


BLOCKS_OF_THE_START = [line.removeprefix("$ ") for line in BLOCKS[0]]


def test_certificates_are_renewed_by_the_command_of_the_page(tmp_path: Path) -> None:
    """Said again it keeps authority and secrets, and makes new certificates."""
    (renewing,) = BLOCKS[-1]
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: certificates cannot be made")
    kept, changed = ("ca.pem", "token", "coordinator/storage-secret"), ("coordinator/certificate.pem",)
    found = []
    for _ in range(2):
        command = [str(Path(sys.executable).parent / "snapline"), *shlex.split(renewing)[2:]]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
        found.append({name: (tmp_path / "pki" / name).read_bytes() for name in (*kept, *changed)})
    assert [found[0][name] for name in kept] == [found[1][name] for name in kept]
    assert all(found[0][name] != found[1][name] for name in changed)


def test_every_other_command_names_what_is_there() -> None:
    """Files of the checkout, settings, variables of Compose, and values of the chart."""
    for word in (word for command in COMMANDS for word in shlex.split(command)):
        if word.startswith("deploy/") and not word.endswith("/"):
            assert (ROOT / word).exists(), word
        if word.startswith("spark.snapline."):
            check_key(word.removeprefix("spark.snapline.").partition("=")[0])
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "snapline" / "values.yaml").read_text())
    assert {name for command in COMMANDS for name in re.findall(r"--set ([\w.]+)=", command)} == {
        "image",
        "tokenSecret",
        "tls.enabled",
    }
    assert "snapline-token" == values["tokenSecret"] and "image" in values
    secrets = {name for name in values["tls"].values() if str(name).endswith("-tls")}
    (loop,) = (command for command in COMMANDS if "kubectl create secret generic snapline-$kind-tls" in command)
    kinds = loop.partition(" in ")[2].partition(";")[0].split()
    assert secrets == {f"snapline-{kind}-tls" for kind in kinds}
    assert "SNAPLINE_TOKEN" in (ROOT / "deploy" / "docker" / "compose.yaml").read_text()
    unit = (ROOT / "deploy" / "systemd" / "snapline-coordinator.service").read_text()
    for path in ("/etc/snapline/snapline.toml", "/etc/snapline/secrets.env"):
        assert path in unit and any(path in command for command in COMMANDS)
    assert {"certificates", "coordinator", "list", "credential"} <= {word for c in COMMANDS for word in shlex.split(c)}


@pytest.mark.parametrize(("bound", "where", "shown_by"), BOUNDS, ids=[where for _, where, _ in BOUNDS])
def test_every_bound_is_what_the_page_says(bound: str, where: str, shown_by: str) -> None:
    """A constant or the default of a setting; the test that shows it is there."""
    assert (ROOT / shown_by).exists()
    if where in OPTIONS:
        assert bound == str(OPTIONS[where].default)
        return
    module, _, name = where.rpartition(".")
    value = getattr(importlib.import_module(f"snapline.{module}"), name)
    assert callable(value) or bound == str(value)


def test_the_table_of_bounds_is_read() -> None:
    """A table that no row of is found would be right in any case."""
    assert 25 <= len(BOUNDS)


def test_every_attack_of_the_table_names_a_test_that_is_there() -> None:
    """By its path."""
    section = PAGE.partition("## What is protected")[2].partition("## What has a bound")[0]
    named = [
        name
        for line in section.splitlines()
        if line.startswith("| ")
        for name in re.findall(r"`([^`]*)`", line.rpartition(" | ")[2])
    ]
    paths = [name for name in named if "/" in name and " " not in name]
    assert 40 <= len(paths)
    assert [] == [path for path in paths if not (ROOT / path).exists()]
