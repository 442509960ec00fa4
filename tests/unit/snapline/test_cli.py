"""The command line around its commands: exit codes, Ctrl-C, what becomes of paths."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from snapline import cli
from snapline.client import RequestRefused
from snapline.commands.target import Target
from snapline.dataflow.config import COORDINATOR_ADDRESS
from snapline.dataflow.wire.messages import JobStatus
from snapline.dataflow.wire.statuses import encode_job_status
from snapline.protos import client_pb2 as pb
from snapline.protos.checkpoint_pb2 import CheckpointMetrics


class Recording:
    """A client that notes what it was asked for; cancelling is refused, looking is interrupted."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def resolve_job(self, job: str) -> str:
        return job

    def trigger_savepoint(self, job_id: str, directory: str) -> str:
        self.asked.append(("savepoint", directory))
        return "path"

    def stop_with_savepoint(self, job_id: str, directory: str, *, drain: bool) -> str:
        self.asked.append(("stop", directory))
        return "path"

    def cancel(self, job_id: str) -> None:
        raise RequestRefused("it is FINISHED")

    def get_checkpoint(self, job_id: str, checkpoint_id: int) -> pb.CheckpointDetails:
        subtasks = [
            pb.SubtaskCheckpointDetails(
                acknowledge_timestamp_ms=at_ms,
                state_size_bytes=1_000,
                metrics=CheckpointMetrics(checkpoint_start_delay_ms=delay_ms, alignment_duration_ms=5),
            )
            for at_ms, delay_ms in ((1, 70), (0, 0))
        ]
        return pb.CheckpointDetails(vertices=[pb.VertexCheckpointDetails(name="sums", subtasks=subtasks)])

    def rescale(self, job_id: str, parallelism: int) -> None:
        raise KeyboardInterrupt

    def drain_task_manager(self, resource_id: str, *, undo: bool) -> list[str]:
        if undo:
            return []
        raise KeyboardInterrupt

    def list_task_managers(self) -> list[object]:
        return []

    def dump_threads(self, *_asked: object, **_more: object) -> pb.ThreadDumps:
        return pb.ThreadDumps()

    def get_job(self, job_id: str) -> pb.JobDetails:
        return pb.JobDetails(overview=pb.JobOverview(status=encode_job_status(JobStatus.CANCELED)))

    def list_jobs(self) -> list[object]:
        raise KeyboardInterrupt("job 'a' was cancelled")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """What the commands talk to."""
    recording = Recording()
    monkeypatch.setattr(Target, "client", lambda _: recording)
    return recording


def run(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as raised:
        cli.main(arguments)
    return int(raised.value.code or 0)


def test_a_relative_directory_is_one_of_where_the_command_was_started(client: Recording, tmp_path, monkeypatch):
    """For savepoints as for everything else; the coordinator may have another directory."""
    monkeypatch.chdir(tmp_path)

    assert [run("savepoint", "a", "here"), run("savepoint", "a"), run("stop", "a", "-p", "s3://b/c")] == [0, 0, 0]
    assert [("savepoint", str(tmp_path / "here")), ("savepoint", ""), ("stop", "s3://b/c")] == client.asked


def test_exit_codes_and_one_line_each(client: Recording, capsys):
    """1: refused; 2: not understood; 130: interrupted, with what was done about it."""
    assert run("cancel", "a") == 1
    assert run("rescale", "a", "-p", "0") == 2
    assert run("taskmanagers", "--instances", "0") == 2
    assert run("list") == 130
    lines = capsys.readouterr().err.splitlines()
    assert (lines[0], lines[-1]) == ("snapline: it is FINISHED", "snapline: interrupted: job 'a' was cancelled")


@pytest.mark.parametrize(
    "command",
    [
        ("checkpoints", "a", "--id", str(1 << 63)),
        ("logs", "a", "--lines", "99999999999999"),
        ("logs", "a", "--lines", "-1"),
        ("rescale", "a", "-p", str(1 << 40)),
        ("tap", "a", "uid", "--bytes", str(1 << 63)),
    ],
)
def test_a_number_that_no_request_has_room_for_is_an_error_of_usage(client: Recording, capsys, command):
    """The message could not be built, which was a traceback."""
    assert (run(*command), client.asked) == (2, [])
    assert f"{command[-1]} is not in the range" in capsys.readouterr().err


def test_an_interrupted_rescale_says_how_to_take_it_back(client: Recording, capsys):
    """Ctrl-C ends the command; the JobMaster goes on waiting for slots."""
    assert run("rescale", "a", "-p", "3") == 130
    assert "the rescale goes on; while it waits for slots, `snapline rescale a -p N`" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "call"), [("stop", "stop_with_savepoint"), ("savepoint", "trigger_savepoint")])
def test_an_interrupted_savepoint_says_that_it_goes_on(client: Recording, capsys, monkeypatch, command, call):
    """Nothing was said of a job that stopped a moment later, nor where its savepoint lay."""

    def interrupted(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, call, interrupted)
    assert run(command, "a") == 130
    assert "all the same; `snapline checkpoints a` names " in capsys.readouterr().err
    found = pb.ListCheckpointsResponse(latest_savepoint={"path": "/savepoints/1"})
    monkeypatch.setattr(client, "list_checkpoints", lambda _: found, raising=False)
    assert run("checkpoints", "a") == 0
    assert "latest savepoint: /savepoints/1\n" in capsys.readouterr().out


def test_an_interrupted_submission_cancels_its_job(client: Recording, capsys, monkeypatch, tmp_path):
    """As that of `execute`, and as the guide says; the command ended alone, and the job went on without a word."""
    cancelled: list[str] = []

    def interrupted(job_id: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "submit_declared", lambda _: "a", raising=False)
    monkeypatch.setattr(client, "wait", interrupted, raising=False)
    monkeypatch.setattr(client, "cancel", cancelled.append)
    (tmp_path / "job.json").write_text('{"name": "orders"}')
    assert (run("submit", str(tmp_path / "job.json")), cancelled) == (130, ["a"])
    assert "interrupted: job 'orders' (a) is cancelled" in capsys.readouterr().err


def test_an_interrupted_drain_says_how_to_take_it_back(client: Recording, capsys, monkeypatch):
    """It waits for slots elsewhere, and says so before; not of a TaskManager that is not there, which is refused. Jobs
    leave one after the other, and those that were not asked yet stay."""
    run("taskmanagers", "drain", "tm-9")
    assert "gets no new tasks" not in capsys.readouterr().err
    monkeypatch.setattr(client, "list_task_managers", lambda: [pb.TaskManagerDetails(resource_id="tm-1")])
    assert run("taskmanagers", "drain", "tm-1") == 130
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "tm-1 gets no new tasks; its jobs leave it once there are slots elsewhere"
    assert "the same command again moves them, and `snapline taskmanagers drain --undo tm-1`" in last
    assert (run("taskmanagers", "drain", "--undo", "tm-1"), capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize(
    ("before", "behind", "expected"),
    [(["-m", "a:1"], [], "a:1"), ([], ["-m", "b:1"], "b:1"), (["-m", "a:1"], ["-m", "b:1"], "b:1")],
)
def test_a_drain_goes_to_the_coordinator_that_is_named(client: Recording, monkeypatch, before, behind, expected):
    """Said before the word `drain` it was left out of account, and another cluster was asked."""
    asked: list[str] = []

    def client_of(target: Target) -> Recording:
        asked.append(target.configuration[COORDINATOR_ADDRESS.key])
        return client

    monkeypatch.setattr(Target, "client", client_of)
    run("taskmanagers", *before, "drain", "tm-1", "--undo", *behind)
    assert asked == [expected]


def test_the_table_of_task_managers_shows_what_an_upgrade_goes_by(client: Recording, capsys, monkeypatch):
    """Which are old, and which have been drained and may be stopped."""
    found = [
        pb.TaskManagerDetails(resource_id="tm-1", version="0.1.0", slots=2, draining=True),
        pb.TaskManagerDetails(resource_id="tm-2", version="0.2.0", slots=2, free_slots=1),
    ]
    monkeypatch.setattr(client, "list_task_managers", lambda: found)
    monkeypatch.setattr(client, "overview", pb.ClusterOverview, raising=False)
    assert run("cluster") == 0
    _, names, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert names[:8] == ["RESOURCE", "ID", "HOST", "PID", "EXECUTOR", "VERSION", "SLOTS", "FREE"]
    assert [(row[0], row[2:5]) for row in rows] == [
        ("tm-1", ["0.1.0", "2", "draining"]),
        ("tm-2", ["0.2.0", "2", "1"]),
    ]


@pytest.mark.parametrize("asked", [("stack",), ("logs",), ("profile", "--seconds", "1"), ("profile", "--heap")])
def test_a_job_that_has_ended_has_no_threads_to_look_at(client: Recording, capsys, tmp_path, monkeypatch, asked):
    """One line says so; no profile of nothing takes the place of a file."""
    monkeypatch.chdir(tmp_path)
    assert run(*asked, "a") == 1
    assert capsys.readouterr().err == "snapline: no TaskManager runs a task of job a: it is CANCELED\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asked", [("stack",), ("logs",), ("profile", "--seconds", "1"), ("profile", "--heap")])
def test_when_no_task_manager_answers_there_is_nothing_to_look_at(
    client: Recording, capsys, tmp_path, monkeypatch, asked
):
    """It ended with 0, and with a profile of nothing; of several, those that answer are shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client, "dump_threads", lambda *_, **__: pb.ThreadDumps(silent=["tm-1", "tm-2"]))
    assert run(*asked, "a") == 1
    assert capsys.readouterr().err.startswith("snapline: no TaskManager has answered: tm-1, tm-2 did not")
    assert list(tmp_path.iterdir()) == []
    some = pb.ThreadDumps(silent=["tm-1"])
    some.dumps.add(resource_id="tm-3")
    monkeypatch.setattr(client, "dump_threads", lambda *_, **__: some)
    assert run(*asked, "a") == 0
    assert capsys.readouterr().err == "TaskManager tm-1 did not answer\n"


def test_what_is_neither_a_job_nor_a_task_manager_is_looked_for_among_both(client: Recording, capsys, monkeypatch):
    """`snapline stack` and its like take either, and somebody who mistypes a TaskManager does not look for a job."""

    def resolve_job(text: str) -> str:
        raise RequestRefused(f"there is no job with {text!r}; jobs here: none")

    monkeypatch.setattr(client, "resolve_job", resolve_job)
    monkeypatch.setattr(client, "list_task_managers", lambda: [pb.TaskManagerDetails(resource_id="tm-1")])

    assert run("stack", "tm-9") == 1
    assert capsys.readouterr().err == (
        "snapline: there is no job with 'tm-9'; jobs here: none; TaskManagers, of which it is none: tm-1\n"
    )


def test_one_checkpoint_is_shown_task_by_task(client: Recording, capsys):
    """Where its time went; the slowest subtask counts."""
    assert run("checkpoints", "a", "--id", "7") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "TASK"
    assert " ".join(row.split()) == "sums 1/2 70 ms 5 ms 0 ms 0 ms 2,000 B"


def test_a_program_knows_the_options_of_the_command_that_runs_it(tmp_path, monkeypatch):
    """As where its settings are from; what the user's environment says is from there."""
    monkeypatch.setattr("sys.argv", ["snapline"])
    monkeypatch.setattr("sys.path", [*sys.path])
    own = {"SNAPLINE_CONF_parallelism__default": "2", "SNAPLINE_CONF_security__auth__file": "/instead/of/it"}
    monkeypatch.setattr("os.environ", {**os.environ, **own})
    script = tmp_path / "job.py"
    script.write_text(
        "import json, pathlib, snapline\n"
        "origins = snapline.StreamExecutionEnvironment.get_execution_environment().configuration.origins\n"
        f"pathlib.Path({str(tmp_path / 'origins')!r}).write_text(json.dumps(dict(origins)))\n"
    )
    assert run("run", "-m", "127.0.0.1:1", "--token", "s3cret", "--drop-state-columns", str(script)) == 0
    assert json.loads((tmp_path / "origins").read_text()) == {
        "jobmanager.rpc.address": "--coordinator",
        "security.auth.token": "--token",
        "security.auth.file": "--token",
        "state.schema-evolution.drop-columns": "--drop-state-columns",
        "parallelism.default": "environment variable SNAPLINE_CONF_parallelism__default",
    }


@pytest.mark.parametrize("command", [("run", "job.py"), ("taskmanagers",)])
def test_what_answers_nothing_itself_has_no_json(command: tuple[str, ...], tmp_path, monkeypatch, capsys):
    """What a script prints is its own, and TaskManagers log."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("")
    assert run(*command, "-o", "json") == 2
    assert "No such option" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_coordinators_help_is_its_own(option: str, capsys):
    """And not that of the command which passes everything on."""
    assert run("coordinator", option) == 0
    assert "--checkpoint-dir DIR" in capsys.readouterr().out


def test_a_script_that_fails_is_no_fault_of_ours(tmp_path: Path, capsys, monkeypatch):
    """Exit code 1, and no frame of the command line."""
    monkeypatch.setattr("sys.argv", ["snapline"])
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("os.environ", {**os.environ})
    script = tmp_path / "job.py"
    script.write_text("1 / 0\n")

    assert run("run", "-m", "127.0.0.1:1", str(script)) == 1
    assert f"snapline: {script} failed: ZeroDivisionError: division by zero" in (said := capsys.readouterr().err)
    assert "snapline/cli.py" not in said and "snapline/commands" not in said


def test_an_address_that_contradicts_high_availability_is_refused(monkeypatch, tmp_path, capsys):
    """ZooKeeper says who leads: the address was ignored, and a job of another cluster could be cancelled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SNAPLINE_CONF_high_availability__type", "zookeeper")

    assert run("cancel", "-m", "127.0.0.1:1", "job") == 1
    assert capsys.readouterr().err == (
        "snapline: --coordinator 127.0.0.1:1 contradicts high-availability.type = zookeeper (from environment variable "
        "SNAPLINE_CONF_high_availability__type), which says who leads: leave one of them out "
        "(SNAPLINE_CONF_high_availability__type=NONE for this command)\n"
    )


def test_a_trial_cluster_below_a_file_is_refused(tmp_path: Path, capsys):
    """A directory that cannot be made is one line with the way out, before any process is started."""
    (tmp_path / "file").touch()

    assert run("up", "--directory", str(tmp_path / "file" / "x")) == 1
    expected = f"snapline: cannot make {tmp_path}/file/x/logs: Not a directory; choose another --directory\n"
    assert capsys.readouterr().err == expected


def test_a_profile_that_cannot_be_written_is_refused_before_anybody_waits(tmp_path: Path, capsys):
    """The directory of the file is looked at first, and then the job for as long as was asked."""
    file = tmp_path / "no" / "profile.html"

    assert run("profile", "job", "-m", "127.0.0.1:1", "--file", str(file)) == 1
    assert capsys.readouterr().err == f"snapline: --file: cannot write {file}: there is no directory {file.parent}\n"
