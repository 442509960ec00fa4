"""`snapline up` and `snapline down`: a whole cluster on this machine for a trial, as processes of their own.

One ZooKeeper (from the jars that PySpark brings), two coordinators of which one leads, Spark's standalone master and
worker, and a Spark application that brings TaskManagers. Everything listens on loopback and lies below one directory:
settings, logs, checkpoints, and which processes were started. `down` ends those processes and no others: a process
counts only while its start time is the one that was noted.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from snapline.client import ClusterClient
from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.absolute_paths import absolute_path
from snapline.spark.java import ensure_java

HOST = "127.0.0.1"
START_SECONDS = 300.0
STOP_SECONDS = 20.0
LOOK_SECONDS = 0.1
SETTINGS_FILE, PROCESSES_FILE = "snapline.toml", "processes.json"
JAVA_OPTIONS = ("-Xmx96m", "-XX:+UseSerialGC", "-Dzookeeper.4lw.commands.whitelist=srvr")


class TrialError(SnaplineError):
    """The trial cluster cannot be started, or is in another state than was thought."""


@dataclass(frozen=True, slots=True)
class TrialProcess:
    """One process that was started."""

    name: str
    pid: int
    started: str
    """What the system says of its start: another process with the same number has another one."""
    address: str
    log: str

    @property
    def is_alive(self) -> bool:
        """Whether it is still this process that runs."""
        return bool(self.started) and _start_of(self.pid) == self.started


class TrialCluster:
    """The processes below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = absolute_path(directory)

    @property
    def settings_file(self) -> Path:
        """What `SNAPLINE_CONFIG` has to name, for jobs and commands to find the cluster."""
        return self.directory / SETTINGS_FILE

    @property
    def down_command(self) -> str:
        """What ends this cluster and no other one."""
        return f"snapline down --directory {shlex.quote(str(self.directory))}"

    def processes(self) -> list[TrialProcess]:
        """Those that were started and not ended by `down`, dead or alive. Raises TrialError for a damaged file."""
        path = self.directory / PROCESSES_FILE
        try:
            return [TrialProcess(**each) for each in json.loads(path.read_text())]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (ValueError, TypeError) as error:
            raise TrialError(f"{path} is damaged ({error}): end what it names by hand, and remove it") from None

    def up(self, task_managers: int, slots: int, say: Callable[[str], None]) -> list[TrialProcess]:
        """Start everything, and wait until the TaskManagers are there. Raises TrialError, and everything has ended
        again."""
        if any(each.is_alive for each in self.processes()):
            raise TrialError(f"a trial cluster runs already below {self.directory}: {self.down_command} ends it")
        for folder in ("logs", "zookeeper", "spark", "ha", "checkpoints", "savepoints"):
            try:
                (self.directory / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise TrialError(
                    f"cannot make {error.filename}: {error.strerror}; choose another --directory"
                ) from None
        (self.directory / PROCESSES_FILE).unlink(missing_ok=True)  # of a cluster that ended with its machine
        zookeeper, first, second, page, other_page, master, spark_page = _free_ports(7)
        settings = self._write_settings(f"{HOST}:{zookeeper}")
        try:
            self._start_zookeeper(zookeeper)
            say("ZooKeeper serves")
            for number, port, web in ((1, first, page), (2, second, other_page)):
                command = [
                    sys.executable,
                    "-m",
                    "snapline.coordinator",
                    "--bind",
                    f"{HOST}:{port}",
                    "-D",
                    f"web.port={web}",
                ]
                self._start(f"coordinator-{number}", command, f"http://{HOST}:{web}")
            self._wait(lambda: _task_managers(settings) is not None, "a coordinator that leads")
            say("a coordinator leads, another one stands by")
            self._start_spark(master, spark_page, task_managers * slots)
            say("Spark's master and worker run; TaskManagers are on their way")
            command = [sys.executable, "-m", "snapline.cli", "taskmanagers"]
            command += ["--instances", str(task_managers), "--slots", str(slots)]
            self._start("taskmanagers", command, "", MASTER=f"spark://{HOST}:{master}")
            self._wait(lambda: (_task_managers(settings) or 0) >= task_managers, f"{task_managers} TaskManagers")
        except BaseException:
            self.down()
            raise
        return self.processes()

    def down(self) -> list[str]:
        """End what was started, the last one first; names of those that still ran. Their data stays."""
        processes = self.processes()
        running = [each for each in reversed(processes) if each.is_alive]
        for each in running:
            _signal(each, signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        while any(each.is_alive for each in running) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        for each in running:
            if each.is_alive:
                _signal(each, signal.SIGKILL)
        (self.directory / PROCESSES_FILE).unlink(missing_ok=True)
        return [each.name for each in running]

    # --- parts --------------------------------------------------------------------------------------------------------

    def _write_settings(self, quorum: str) -> Configuration:
        settings = {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": quorum,
            "high-availability.zookeeper.client.session-timeout": "5 s",
            "high-availability.cluster-id": "trial",
            "high-availability.storageDir": str(self.directory / "ha"),
            "execution.checkpointing.dir": str(self.directory / "checkpoints"),
            "execution.checkpointing.savepoint-dir": str(self.directory / "savepoints"),
            "execution.checkpointing.interval": "10 s",
            "heartbeat.interval": "2 s",
        }
        lines = [f'"{key}" = {json.dumps(value)}\n' for key, value in settings.items()]
        self.settings_file.write_text("".join(lines))
        self.settings_file.chmod(0o600)
        return Configuration(settings)

    def _start_zookeeper(self, port: int) -> None:
        folder = self.directory / "zookeeper"
        lines = [
            f"dataDir={folder}",
            f"clientPortAddress={HOST}",
            f"clientPort={port}",
            "admin.enableServer=false",
            "tickTime=1000",
        ]
        (folder / "zoo.cfg").write_text("\n".join([*lines, "maxSessionTimeout=60000", ""]))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = [
            str(ensure_java().java),
            *JAVA_OPTIONS,
            "-cp",
            f"{_pyspark() / 'jars'}/*",
            main,
            str(folder / "zoo.cfg"),
        ]
        self._start("zookeeper", command, f"{HOST}:{port}")
        self._wait(lambda: _serves(port), "ZooKeeper to serve")

    def _start_spark(self, port: int, web: int, cores: int) -> None:
        spark_class = str(_pyspark() / "bin" / "spark-class")
        at, folder = f"spark://{HOST}:{port}", self.directory / "spark"
        local = {"SPARK_LOCAL_IP": HOST, "SPARK_LOCAL_DIRS": str(folder)}
        master = [spark_class, "org.apache.spark.deploy.master.Master", "--host", HOST, "--port", str(port)]
        self._start("spark-master", [*master, "--webui-port", str(web)], at, **local)
        self._wait(lambda: _is_open(port), "Spark's master")
        worker = [spark_class, "org.apache.spark.deploy.worker.Worker", "--host", HOST, "--webui-port", "0"]
        worker += ["--cores", str(cores), "--memory", "4g", "--work-dir", str(folder / "work"), at]
        self._start("spark-worker", worker, f"http://{HOST}:{web}", **local)

    def _start(self, name: str, command: Sequence[str], address: str, **variables: str) -> None:
        """Start one process in a group of its own, which the terminal's keys do not reach, and note it. All are of one
        session, since Linux shares the processors between sessions."""
        log = self.directory / "logs" / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                env=self._environment(variables),
                process_group=0,
            )
        started = TrialProcess(name, process.pid, _start_of(process.pid), address, str(log))
        noted = [asdict(each) for each in [*self.processes(), started]]
        path = self.directory / PROCESSES_FILE
        staged = path.with_suffix(".new")
        staged.write_text(json.dumps(noted, indent=2))
        staged.replace(path)

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_", "SNAPLINE_"))
        }
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        return {**kept, "PYTHONPATH": paths, "SNAPLINE_CONFIG": str(self.settings_file), **variables}

    def _wait(self, is_there: Callable[[], bool], what: str) -> None:
        """Until it is there. Raises TrialError with the last line of the log of a process that has ended."""
        until = time.monotonic() + START_SECONDS
        while not is_there():
            for each in self.processes():
                if not each.is_alive:
                    raise TrialError(f"waited for {what}, and {each.name} ended: {_last_line(each.log)}")
            if time.monotonic() > until:
                raise TrialError(f"waited {START_SECONDS:.0f} s for {what}: the logs are in {self.directory / 'logs'}")
            time.sleep(LOOK_SECONDS)


def _task_managers(settings: Configuration) -> int | None:
    """How many are registered with the coordinator that leads; None: none answers."""
    try:
        with ClusterClient.from_configuration(settings) as client:
            return len(client.list_task_managers())
    except SnaplineError:
        return None


def _serves(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(b"srvr")
            return b"Mode" in connection.recv(4096)
    except OSError:
        return False


def _is_open(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=2).close()
    except OSError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _start_of(pid: int) -> str:
    """When a process was started, as its system counts; empty: it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _signal(process: TrialProcess, number: signal.Signals) -> None:
    """To the process and what it has started."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _last_line(log: str) -> str:
    lines = Path(log).read_text(errors="replace").strip().splitlines()
    return f"{lines[-1][:300] if lines else 'it said nothing'} ({log})"


def _pyspark() -> Path:
    try:
        import pyspark
    except ImportError:
        raise TrialError("PySpark is not installed: pip install 'snapline[spark,web]'") from None
    return Path(pyspark.__file__).parent
