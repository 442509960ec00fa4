"""The block of docs/security.md for Compose, without a container engine: each service is a plain process with the
command, environment and mounted file of compose.yaml. Names of containers are addresses of this machine, and volumes
directories; what networks, users and images of containers add is not seen here."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.services.cluster import wait_until
from tests.services.zookeeper import start_ensemble
from tests.unit.docs.test_security_page import BLOCKS, ROOT

pytestmark = [pytest.mark.rare, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

DOCKER = ROOT / "deploy" / "docker"
SERVICES: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]


class Engine:
    """What stands in for the container engine."""

    def __init__(self, directory: Path, quorum: str, exported: dict[str, str]) -> None:
        """`exported`: the variables of the shell that starts the services."""
        self._directory, self._exported = directory, exported
        self._places = {"zookeeper:2181": quorum, "/var/lib/snapline": str(directory / "state"), ":9249": ":0"}
        for name in ("coordinator-1", "coordinator-2"):
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._places[f"{name}:6123"] = f"127.0.0.1:{free.getsockname()[1]}"
        (directory / "state").mkdir()
        (directory / "snapline.toml").write_text(self._here((DOCKER / "snapline.toml").read_text()))

    def _here(self, text: str) -> str:
        for there, here in self._places.items():
            text = text.replace(there, here)
        return text

    def command(self, service: str) -> list[str]:
        """What the service runs."""
        words: list[str] = SERVICES[service]["command"]
        return ["0" if word == "9249" else self._here(word) for word in words]

    def environment(self, service: str) -> dict[str, str]:
        """What the service gets of the variables of the shell, and what it mounts where the file says."""
        mounted, inside, _ = next(each for each in SERVICES[service]["volumes"] if "snapline.toml" in each).split(":")
        assert (DOCKER / mounted).is_file()
        found = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(self._directory)}
        found |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        for name, value in SERVICES[service]["environment"].items():
            needed = re.fullmatch(r"\$\{(\w+):\?.*\}", value)
            value = self._exported[needed[1]] if needed else value
            found[name] = value.replace(inside, str(self._directory / "snapline.toml"))
        return found

    def start(self, service: str) -> subprocess.Popen[bytes]:
        """The process of a service."""
        with (self._directory / f"{service}.log").open("wb") as log:
            return subprocess.Popen(
                self.command(service), env=self.environment(service), cwd=self._directory, stdout=log, stderr=log
            )

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`docker compose run cli` with these words."""
        variables = {**self.environment("cli"), **environment}
        return subprocess.run(words, env=variables, cwd=self._directory, capture_output=True, text=True, timeout=120)

    def task_managers(self) -> list[Any]:
        """Those that are registered, as a client sees them."""
        done = self.run("snapline", "cluster", "--output", "json")
        found: list[Any] = json.loads(done.stdout) if done.returncode == 0 else []
        return found


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """ZooKeeper, both coordinators, and the Spark application that brings TaskManagers."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: the page draws the token with it")
    (block,) = (block for block in BLOCKS if any("compose.yaml" in line for line in block))
    exporting, starting = (line.removeprefix("$ ") for line in block)
    assert ["docker", "compose", "--file", "deploy/docker/compose.yaml", "up", "--detach"] == shlex.split(starting)
    printed = subprocess.run(["bash", "-c", f"{exporting}; env"], check=True, capture_output=True, text=True).stdout
    exported = dict(line.split("=", 1) for line in printed.splitlines() if line.startswith("SNAPLINE_TOKEN="))
    with ExitStack() as stack:
        ensemble = start_ensemble(tmp_path / "zookeeper", nodes=1)
        stack.callback(ensemble.stop)
        made = Engine(tmp_path, ensemble.quorum, exported)
        for service in ("coordinator-1", "coordinator-2", "taskmanagers"):
            process = made.start(service)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield made


def test_its_services_make_a_cluster_that_the_token_opens(engine: Engine) -> None:
    """Four slots come; without the token, or with another, nobody is answered; and the token is in no log."""
    listed = engine.command("cli")
    wait_until(lambda: engine.run(*listed).returncode == 0, "an answer to the client", 200)
    wait_until(lambda: len(engine.task_managers()) == 2, "two TaskManagers", 200, engine.task_managers)
    token = engine.environment("cli")["SNAPLINE_CONF_security__auth__token"]
    for wrong in ("", "0" * len(token)):
        assert 0 != engine.run(*listed, SNAPLINE_CONF_security__auth__token=wrong).returncode
    for log in engine._directory.glob("*.log"):
        assert token not in log.read_text(), log
