"""What sessions of Spark say of themselves, classic ones and those of Connect, over sessions that a test plays."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from snapline.spark import spark_hosts
from snapline.spark.executor import TaskManagerExit, TaskManagerLaunch
from snapline.spark.spark_hosts import ConnectHost, ContextHost, NoSpark

LAUNCH = TaskManagerLaunch("tm-0", "127.0.0.1:1", 1, (3, 11))


class PlayedSession:
    """A Connect session that runs a function of `mapInArrow` in this process."""

    def __init__(self, server: str = "localhost", **conf: str) -> None:
        self._conf = {key.replace("_", "."): value for key, value in conf.items()}
        self.conf = SimpleNamespace(get=self._conf.get, getAll=self._conf)
        self.client = SimpleNamespace(host=server)
        self.calls: list[tuple[str, ...]] = []

    def addTag(self, tag: str) -> None:
        self.calls.append(("add", tag))

    def removeTag(self, tag: str) -> None:
        self.calls.append(("remove", tag))

    def interruptTag(self, tag: str) -> None:
        self.calls.append(("interrupt", tag))

    def range(self, *numbers: int) -> Any:
        rows = pa.RecordBatch.from_pydict({"id": list(range(*numbers[:3]))})

        def map_in_arrow(function: Any, schema: str) -> Any:
            found = pa.Table.from_batches(list(function(iter([rows]))))
            assert found.column_names == [column.split()[0] for column in schema.split(", ")]
            return SimpleNamespace(collect=lambda: [SimpleNamespace(**row) for row in found.to_pylist()])

        return SimpleNamespace(mapInArrow=map_in_arrow)


def test_a_task_manager_is_a_tagged_job_on_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tag is that of its thread while it runs; the end of the body is a row."""
    ended = TaskManagerExit("tm-0", "stopped", "told to")
    monkeypatch.setattr(spark_hosts, "run", lambda launch: iter([ended]))
    session = PlayedSession()
    host = ConnectHost(session)
    assert host.run_task_manager(LAUNCH, "snapline-tm-0") == [ended]
    host.cancel("snapline-tm-0")
    assert session.calls == [(verb, "snapline-tm-0") for verb in ("add", "remove", "interrupt")]


@pytest.mark.parametrize(
    ("conf", "cores"),
    [
        ({"spark_master": "local"}, 1),
        ({"spark_master": "local[3,8]"}, 3),
        ({"spark_master": "local[*]"}, None),
        ({"spark_master": "local-cluster[2,3,512]"}, 6),
        ({"spark_master": "yarn", "spark_executor_instances": "4", "spark_executor_cores": "2"}, 8),
        ({"spark_master": "yarn", "spark_executor_instances": "4", "spark_dynamicAllocation_enabled": "true"}, None),
        ({"spark_master": "k8s://x"}, None),
    ],
)
def test_cores_are_what_settings_say(conf: dict[str, str], cores: int | None) -> None:
    """A Connect session has no other way to know, and guesses nothing."""
    assert ConnectHost(PlayedSession(**conf)).cores == cores


@pytest.mark.parametrize(
    ("server", "conf", "host"),
    [
        ("localhost", {"spark_master": "local[2]"}, "127.0.0.1"),
        ("127.0.0.1", {"spark_master": "spark://10.0.0.9:7077", "spark_driver_host": "10.0.0.1"}, "10.0.0.1"),
    ],
)
def test_executors_reach_the_coordinator_where_this_program_is(server: str, conf: dict[str, str], host: str) -> None:
    """On loopback when all is here, else at the address of this machine."""
    assert ConnectHost(PlayedSession(server, **conf)).coordinator_host() == host


@pytest.mark.parametrize(("at_once", "cores"), [(1, 1), (16, 16), (0, 2)])
def test_a_classic_session_has_as_many_cores_as_tasks_run_at_once(at_once: int, cores: int) -> None:
    """What a user sets as the default parallelism of shuffles is no number of cores, nor is one a task's with
    `spark.task.cpus`: TaskManagers were started that waited for ever, while their job lacked the slots."""
    profiles = SimpleNamespace(defaultResourceProfile=lambda: "default")
    scheduler = SimpleNamespace(
        resourceProfileManager=lambda: profiles, maxNumConcurrentTasks=lambda _: at_once, defaultParallelism=lambda: 200
    )
    context: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scheduler), defaultParallelism=200)
    assert ContextHost(context).cores == cores


def test_a_java_process_that_was_killed_is_noticed() -> None:
    """At the next look, whatever PySpark waits for."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        host = ContextHost(SimpleNamespace(_gateway=SimpleNamespace(proc=process)))  # type: ignore[arg-type]
        assert host.is_alive()
        process.kill()
        process.wait()
        assert not host.is_alive()


class Taking:
    """A session, or its context, that takes files."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.addFile = self.addArchive = self.taken.append
        self.addArtifacts = lambda path, **_: self.taken.append(path)


@pytest.mark.parametrize("host_of", [ContextHost, ConnectHost])
def test_executors_keep_the_first_file_of_a_name_and_so_another_is_refused(tmp_path: Path, host_of: Any) -> None:
    """A file that was changed between two jobs of a session reached nobody, and the second job worked with the first
    one's; another file of that name ended in a traceback of Java."""
    session, rates, model = Taking(), tmp_path / "rates.csv", tmp_path / "model.zip"
    rates.write_text("1")
    model.write_text("1")
    for _ in range(2):
        host_of(session).add_file(rates)
        host_of(session).add_archive(model, "model")
    rates.write_text("2")
    model.write_text("2")
    with pytest.raises(NoSpark, match=r"rates\.csv was added .* another 'rates\.csv' .*: give this one another name"):
        host_of(session).add_file(rates)
    with pytest.raises(NoSpark, match="another 'model'"):
        host_of(session).add_archive(model, "model")
    assert session.taken == [str(rates), f"{model}#model"] * 2
    host_of(Taking()).add_file(rates)


def test_a_server_that_is_gone_is_noticed() -> None:
    """At once, where PySpark would ask it again for ten minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        session = PlayedSession()
        session.client._builder = SimpleNamespace(endpoint=endpoint)
        assert ConnectHost(session).is_alive()
    assert not ConnectHost(session).is_alive()
