"""Programs outside as tasks of a job: real processes and streams, killed, wrong and in the way."""

from __future__ import annotations

import io
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from snapline.cli import cli
from snapline.client import ClusterClient, JobFailed, RequestRefused
from snapline.coordinator.cluster_entrypoint import ClusterEntrypoint
from snapline.coordinator.coordinator_config import CoordinatorConfig
from snapline.coordinator.rpc import external_gateway
from snapline.coordinator.rpc.external_gateway import MAX_QUEUED_FOR_PROGRAM
from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.external_tasks import external_job
from snapline.dataflow.graph.jobgraph import SavepointRestoreSettings
from snapline.dataflow.ids import JobID
from snapline.external import ExternalTask, ParticipationRefused, participate, upload
from snapline.protos import external_pb2 as pb
from snapline.protos import external_pb2_grpc
from snapline.runtime.cores.message_budget import MessageBudget
from snapline.runtime.logs import make_logger
from snapline.runtime.rpc.grpc_channels import open_channel
from snapline.runtime.rpc.security import Security
from snapline.state_reader import StateReader
from tests.services.node import NODE_IS_MISSING, NODE_MODULES, node_program

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "execution.checkpointing.interval": "100 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "50",
    "restart-strategy.fixed-delay.delay": "10 ms",
}


class Coordinator:
    """One in this process."""

    def __init__(self, directory, *, client=True, **settings):
        self.directory = directory
        self.log = io.StringIO()
        configuration = Configuration({"execution.checkpointing.dir": str(directory), **settings})
        self.entrypoint = ClusterEntrypoint(
            CoordinatorConfig("127.0.0.1:0", configuration, metrics_port=0),
            make_logger("coordinator", stream=self.log),
            on_fatal=lambda: None,
        )
        self.address = self.entrypoint.start()
        if client:
            self.client = ClusterClient(self.address, Security())

    def submit(self, name, savepoint=None, settings=SETTINGS, **tasks):
        """Submit it, and wait until programs are let in."""
        job_id = self.client.submit(external_job(JobID(uuid.uuid4().hex), name, tasks, settings, savepoint))
        self.lets_in(job_id)
        return job_id

    def lets_in(self, job_id):
        """Wait until the job has a JobMaster: before, programs are told to try again."""
        self.follow(job_id, lambda details: len(details.vertices) > 0)

    def follow(self, job_id, is_so):
        return next(details for details in self.client.watch_job(job_id) if is_so(details))

    def stop(self):
        self.client.close()
        self.entrypoint.stop()


@pytest.fixture
def coordinator(tmp_path):
    coordinator = Coordinator(tmp_path / "checkpoints", **{"external.state.max-bytes": "2 kb"})
    yield coordinator
    coordinator.stop()


@pytest.fixture
def programs():
    """Starts processes, and ends those that are left."""
    started: list[Any] = []

    def start(*command):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def counter(coordinator, job, task, output, until):
    return (
        *(sys.executable, "-m", "examples.external_counter", "--coordinator", coordinator.address, "--job", job),
        *("--task", task, "--output", str(output), "--until", str(until), "--pause", "0.003"),
    )


def node_counter(coordinator, job, task, output, until):
    options = {"coordinator": coordinator.address, "job": job, "task": task, "output": output, "until": until}
    given = (text for option, value in options.items() for text in (f"--{option}", str(value)))
    return node_program("external_counter.js", *given, "--pause", "0.003").split()


ENDLESS = 10**9
"""What a program counts to that is to be killed: the job cannot end before, however late the signal comes."""


def written(output):
    """All numbers, in the order of the files."""
    return [int(line) for file in sorted(Path(output).glob("0*")) for line in file.read_text().splitlines()]


class Raw:
    """A program that says whatever a test wants."""

    def __init__(self, coordinator, job, task, version=1):
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.kept: list[Any] = []
        self.channel = open_channel(coordinator.address, Security())
        self.call = external_pb2_grpc.ExternalTasksStub(self.channel).Participate(iter(self.said.get, None))
        self.say(register=pb.Register(protocol_version=version, job=job, task=task, host="h", pid=1))

    def say(self, **message):
        self.said.put(pb.FromProgram(**message))

    def hear(self, kind):
        """The next message of this kind; others are kept until they are asked for."""
        for message in [each for each in self.kept if each.WhichOneof("message") == kind][:1]:
            self.kept.remove(message)
            return getattr(message, kind)
        for message in self.call:
            if message.WhichOneof("message") == kind:
                return getattr(message, kind)
            self.kept.append(message)
        raise AssertionError(f"the stream ended without {kind}")

    def runs(self):
        """Until it is asked for a checkpoint."""
        self.attempt = self.hear("run_task").attempt_id
        self.kept.clear()  # what was said of the attempt before
        self.say(task_running=pb.TaskRunning(attempt_id=self.attempt))
        return self

    def acknowledge(self, checkpoint_id, *elements):
        state = [pb.NamedState(name="n", elements=elements)]
        said = pb.AcknowledgeCheckpoint(attempt_id=self.attempt, checkpoint_id=checkpoint_id, state=state)
        self.say(acknowledge_checkpoint=said)

    def close(self):
        self.said.put(None)
        self.call.cancel()
        self.channel.close()


@pytest.fixture
def raw(coordinator):
    opened = []

    def connect(*arguments, **options):
        opened.append(Raw(coordinator, *arguments, **options))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def test_two_programs_one_of_which_is_killed_write_each_number_once(coordinator, programs, tmp_path):
    """Kill -9 between checkpoints: both go back to one cut, and the files have no hole and no repetition."""
    job_id = coordinator.submit("fleet", orders=1, payments=1)
    first = programs(*counter(coordinator, "fleet", "orders", tmp_path / "orders", ENDLESS))
    second = programs(*counter(coordinator, "fleet", "payments", tmp_path / "payments", 400))
    coordinator.follow(job_id, lambda details: details.checkpoint_counts.completed >= 3)
    first.send_signal(signal.SIGKILL)
    programs(*counter(coordinator, "fleet", "orders", tmp_path / "orders", 400))
    details = coordinator.client.wait(job_id)
    assert details.overview.restarts >= 1
    assert details.checkpoint_counts.restored >= 1
    counted = written(tmp_path / "orders")
    assert counted == list(range(1, max(400, len(counted)) + 1))
    assert written(tmp_path / "payments") == list(range(1, 401))
    assert second.wait(20) == 0
    assert "is FINISHED" in second.stdout.read()


@pytest.mark.skipif(bool(NODE_IS_MISSING), reason=NODE_IS_MISSING)
def test_a_node_program_takes_part_with_a_python_one(coordinator, programs, tmp_path):
    """Kill -9 of the Node program, and then of the Python one: each number is in the files of each exactly once."""
    job_id = coordinator.submit("fleet", node=1, python=1)
    node = programs(*node_counter(coordinator, "fleet", "node", tmp_path / "node", ENDLESS))
    python = programs(*counter(coordinator, "fleet", "python", tmp_path / "python", ENDLESS))
    coordinator.follow(job_id, lambda details: details.checkpoint_counts.completed >= 2)
    node.send_signal(signal.SIGKILL)
    programs(*node_counter(coordinator, "fleet", "node", tmp_path / "node", 500))
    restored = coordinator.follow(job_id, lambda details: details.checkpoint_counts.restored >= 1)
    completed = restored.checkpoint_counts.completed  # another one only when both run again
    coordinator.follow(job_id, lambda details: details.checkpoint_counts.completed > completed)
    python.send_signal(signal.SIGKILL)
    programs(*counter(coordinator, "fleet", "python", tmp_path / "python", 500))
    details = coordinator.client.wait(job_id)
    assert details.overview.restarts >= 2
    for each in ("node", "python"):
        counted = written(tmp_path / each)
        assert counted == list(range(1, max(500, len(counted)) + 1))


def test_a_program_that_is_wrong_is_told_so_and_harms_nobody(coordinator, raw, tmp_path):
    """Another version, registered twice, no such job or task, a checkpoint that nobody asked for, and one too many: a
    line for each, while the other program takes part in checkpoints."""
    job_id = coordinator.submit("fleet", good=1, bad=1)
    good, bad = raw("fleet", "good"), raw("fleet", "bad")
    assert "speaks version 9 of" in raw("fleet", "good", version=9).hear("rejected").detail
    assert "it has 'bad', 'good'" in raw("fleet", "none").hear("rejected").detail
    unknown = raw("elsewhere", "good").hear("rejected")
    assert (unknown.reason, unknown.try_again) == (pb.REJECTION_REASON_UNKNOWN_JOB, True)
    good.runs()
    bad.runs()
    assert "all programs that its external task 'good' needs" in raw("fleet", "good").hear("rejected").detail
    bad.acknowledge(99)
    assert "checkpoint 99, which the program was not asked for" in bad.hear("complaint").detail
    for number in (1, 2):
        for each in (good, bad):
            each.acknowledge(each.hear("trigger_checkpoint").checkpoint_id, b"x")
        assert good.hear("notify_checkpoint_complete").checkpoint_id == number
    bad.say(register=pb.Register(protocol_version=1, job="fleet", task="bad"))
    with pytest.raises(grpc.RpcError) as refused:
        bad.hear("goodbye")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Register was said already" in str(refused.value.details())
    assert coordinator.client.get_job(job_id).overview.latest_completed_checkpoint_id >= 2


def test_what_a_program_says_wrong_is_one_line_a_second(coordinator, raw, monkeypatch):
    """It is told each time; the log had nine megabytes of it after four seconds, and what it sends had no budget."""
    counted = []

    class Counted(MessageBudget):
        def spend(self, messages, now_s):
            counted.append(messages)
            return super().spend(messages, now_s)

    monkeypatch.setattr(external_gateway, "MessageBudget", Counted)
    coordinator.submit("fleet", bad=1)
    bad = raw("fleet", "bad").runs()
    for _ in range(500):
        bad.say(task_running=pb.TaskRunning(attempt_id="nope"))
    assert 500 == sum(message.HasField("complaint") for message in itertools.islice(complaints(bad), 500))
    lines = [line for line in coordinator.log.getvalue().splitlines() if "'nope'" in line]
    assert 0 < len(lines) < 250
    assert "127.0.0.1" in lines[0] and '"resource_id":"external-' in lines[0]
    assert sum(counted) >= 500


def complaints(program):
    """What the program is told, without what it is asked."""
    return (message for message in program.call if message.HasField("complaint"))


def test_state_over_the_limit_fails_the_checkpoint_and_says_how_much(coordinator, raw):
    """The line has both sizes and the setting, for the program and in the checkpoint's failure."""
    job_id = coordinator.submit(
        "fleet", settings={**SETTINGS, "execution.checkpointing.tolerable-failed-checkpoints": "9"}, fat=1
    )
    fat = raw("fleet", "fat").runs()
    fat.acknowledge(fat.hear("trigger_checkpoint").checkpoint_id, b"x" * 3_000)
    assert "has 3033 bytes, and 2048 are allowed (external.state.max-bytes" in fat.hear("complaint").detail
    failed = coordinator.client.list_checkpoints(job_id).latest_failed
    assert "has 3033 bytes, and 2048 are allowed" in failed.failure.message


def test_a_program_that_hangs_is_given_up(tmp_path):
    """It has not answered heartbeats for as long as they may be missing: its attempt is over, and another program goes
    on from the state that it had."""
    coordinator = Coordinator(tmp_path, **{"heartbeat.interval": "50 ms", "heartbeat.timeout": "400 ms"})
    job_id = coordinator.submit("fleet", orders=1)
    stuck = Raw(coordinator, "fleet", "orders").runs()
    try:
        stuck.acknowledge(stuck.hear("trigger_checkpoint").checkpoint_id, b"7")
        assert "no heartbeat for 400 ms" in stuck.hear("goodbye").reason
        adder = Adder()
        said, thread = in_thread(coordinator, "fleet", adder)
        details = coordinator.follow(job_id, lambda details: details.checkpoint_counts.restored >= 1)
        assert "no heartbeat for 400 ms" in details.failures[0].failure.summary
        coordinator.client.cancel(job_id)
        assert "is CANCELED" in said.get(timeout=20)
        thread.join()
    finally:
        stuck.close()
        coordinator.stop()


def test_a_program_that_does_not_read_loses_its_stream_alone(coordinator, raw):
    """It talks nonsense and hears no complaint: the bound of what waits for it ends its stream, not the other one's."""
    coordinator.submit("fleet", good=1, bad=1)
    good, bad = raw("fleet", "good"), raw("fleet", "bad")
    good.runs(), bad.runs()
    unread = pb.FromProgram(task_running=pb.TaskRunning(attempt_id="x" * 900))
    for _ in range(2 * MAX_QUEUED_FOR_PROGRAM):
        bad.said.put(unread)
    assert good.hear("cancel_task").attempt_id == good.attempt  # all go back to one cut
    with pytest.raises(grpc.RpcError) as refused:
        bad.hear("goodbye")
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    good.say(task_canceled=pb.TaskCanceled(attempt_id=good.attempt))
    raw("fleet", "bad").runs()
    assert good.runs().hear("trigger_checkpoint").checkpoint_id > 0


def test_a_job_of_programs_is_listed_and_says_whom_it_waits_for(coordinator, raw):
    """Submitted by command, without code; missing programs stand in its status, and those that are there as tasks."""
    result = CliRunner().invoke(
        cli,
        [
            "external",
            "submit",
            "fleet",
            "--task",
            "orders=2",
            "-D",
            "execution.checkpointing.interval=100 ms",
            "-m",
            coordinator.address,
        ],
    )
    job_id = result.output.strip()
    coordinator.lets_in(job_id)
    first = raw("fleet", "orders")
    first.hear("registered")
    waits = coordinator.follow(job_id, lambda details: "1 of 2" in details.overview.status_detail)
    assert waits.overview.status_detail == "waiting for slots: external task 'orders' has 1 of 2 programs"
    second = raw("fleet", "orders")
    first.runs(), second.runs()
    details = coordinator.follow(job_id, lambda details: details.overview.subtasks_by_state.get("RUNNING") == 2)
    assert {each.resource_id[:9] for each in details.vertices[0].subtasks} == {"external-"}
    assert coordinator.client.required_resources().required_slots == 0


def test_a_program_waits_for_a_job_that_begins_though_another_of_its_name_has_ended(coordinator, raw, monkeypatch):
    """The second job is accepted, and its JobMaster begins only after the program has asked for it."""
    first = coordinator.submit("fleet", orders=1)
    coordinator.client.cancel(first)
    coordinator.follow(first, lambda details: details.overview.end_time_ms > 0)
    registry, asked = coordinator.entrypoint._registry, threading.Event()
    started, find = registry.started, registry.find_for_program

    def find_and_tell(*asked_for):
        found = find(*asked_for)
        asked.set()
        return found

    monkeypatch.setattr(registry, "find_for_program", find_and_tell)
    monkeypatch.setattr(registry, "started", lambda job: (asked.wait(60), started(job)))
    coordinator.client.submit(external_job(JobID(uuid.uuid4().hex), "fleet", {"orders": 1}, SETTINGS))
    early = raw("fleet", "orders").hear("rejected")
    assert early.detail == "job 'fleet' is just beginning: try again"
    assert early.try_again


def test_a_program_that_asks_while_the_coordinator_stops_tries_again(coordinator, raw):
    """The Dispatcher is gone and cannot say whether another job of the name has come: the next leader will."""
    first = coordinator.submit("fleet", orders=1)
    coordinator.client.cancel(first)
    coordinator.follow(first, lambda details: details.overview.end_time_ms > 0)
    coordinator.entrypoint._dispatcher.stop()
    assert raw("fleet", "orders").hear("rejected").try_again


class Adder(ExternalTask):
    """Holds numbers, one element each, and a checkpoint covers them all."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)
        self.begun: queue.SimpleQueue[list[int]] = queue.SimpleQueue()

    def begin(self, context):
        if context.restored_checkpoint_id:
            self.numbers = [int(element) for element in context.state.get("numbers", [])]
        self.begun.put(list(self.numbers))

    def snapshot(self, checkpoint_id):
        return {"numbers": [str(number).encode() for number in self.numbers]}


def in_thread(coordinator, job, task, name="orders"):
    """The task takes part on a thread of its own; its last word comes out."""
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    arguments: dict[str, Any] = {"job": job, "task_name": name, "coordinator": coordinator.address, "retry_pause": 0.05}
    thread = threading.Thread(target=lambda: said.put(participate(task, **arguments)))
    thread.start()
    return said, thread


def test_a_savepoint_restores_at_another_number_of_programs(coordinator, tmp_path):
    """Stop with a savepoint, start three programs from what two had; each element is in one of them. And a rescale of
    the running job back to two."""
    job_id = coordinator.submit("fleet", orders=2)
    adders = [Adder(1, 2, 3), Adder(4, 5, 6)]
    words = [in_thread(coordinator, "fleet", adder) for adder in adders]
    coordinator.follow(job_id, lambda details: details.checkpoint_counts.completed >= 1)
    path = coordinator.client.stop_with_savepoint(job_id, str(tmp_path / "savepoints"))
    for said, thread in words:
        assert "is FINISHED" in said.get(timeout=20)
        thread.join()
    listed = CliRunner().invoke(cli, ["state", "ls", path, "-o", "json"])
    assert json.loads(listed.output) == [
        {
            "uid": "orders",
            "name": "orders",
            "parallelism": 2,
            "lists": [{"name": "numbers", "mode": "split", "elements": 6, "size_bytes": 6}],
        }
    ]
    job_id = coordinator.submit("again", SavepointRestoreSettings(path), orders=3)
    adders = [Adder() for _ in range(3)]
    words = [in_thread(coordinator, "again", adder) for adder in adders]
    assert sorted(number for adder in adders for number in adder.begun.get(timeout=20)) == [1, 2, 3, 4, 5, 6]
    coordinator.follow(job_id, lambda details: details.checkpoint_counts.completed >= 1)
    coordinator.client.rescale(job_id, parallelism=2)
    coordinator.follow(
        job_id,
        lambda details: details.vertices[0].parallelism == 2 and details.overview.subtasks_by_state.get("RUNNING") == 2,
    )
    coordinator.client.cancel(job_id)
    with pytest.raises(JobFailed):
        coordinator.client.wait(job_id)
    for said, thread in words:
        assert "is CANCELED" in said.get(timeout=20)
        thread.join()


class Keeper(ExternalTask):
    """Keeps one element of more bytes than may be sent, in a file of the checkpoint."""

    def __init__(self, letter=""):
        self.value = letter.encode() * 5_000
        self.begun: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()

    def begin(self, context):
        found = [each.read() for each in context.uploaded.get("values", [])]
        if context.restored_checkpoint_id:
            self.value = b"".join(found)
        self.begun.put(found)

    def snapshot(self, checkpoint_id):
        return {"values": [upload(self.upload_location, "value.bin", self.value)]} if self.value else {}


def test_state_that_was_uploaded_is_in_savepoints_and_goes_with_its_checkpoint(coordinator, tmp_path):
    """Two programs upload more than they may send; a savepoint has the files, `snapline state` and a reader find them,
    and three programs begin with them. Files of checkpoints that are not kept are deleted."""
    job_id = coordinator.submit("fleet", orders=2)
    words = [in_thread(coordinator, "fleet", Keeper(letter)) for letter in "ab"]
    coordinator.follow(job_id, lambda details: details.checkpoint_counts.completed >= 3)
    path = coordinator.client.stop_with_savepoint(job_id, str(tmp_path / "savepoints"))
    for said, thread in words:
        assert "is FINISHED" in said.get(timeout=20)
        thread.join()
    assert len(list(Path(path).rglob("value.bin"))) == 2
    assert list((tmp_path / "checkpoints").rglob("value.bin")) == []  # the job is over
    listed = CliRunner().invoke(cli, ["state", "ls", path, "-o", "json"])
    (state,) = json.loads(listed.output)[0]["lists"]
    assert (state["elements"], state["size_bytes"]) == (2, 10_000)
    (lists,) = StateReader(path).lists()
    assert sorted(lists.elements["values"]) == [b"a" * 5_000, b"b" * 5_000]
    moved = tmp_path / "moved"
    Path(path).rename(moved)
    gone = next(moved.rglob("value.bin"))
    gone.rename(tmp_path / "gone")
    with pytest.raises(RequestRefused, match=r"value\.bin is missing"):
        coordinator.submit("again", SavepointRestoreSettings(str(moved)), orders=3)
    (tmp_path / "gone").rename(gone)
    job_id = coordinator.submit("again", SavepointRestoreSettings(str(moved)), orders=3)
    keepers = [Keeper() for _ in range(3)]
    words = [in_thread(coordinator, "again", keeper) for keeper in keepers]
    found = [element for keeper in keepers for element in keeper.begun.get(timeout=20)]
    assert sorted(found) == [b"a" * 5_000, b"b" * 5_000]
    coordinator.follow(job_id, lambda details: details.checkpoint_counts.completed >= 1)
    coordinator.client.cancel(job_id)
    for _, thread in words:
        thread.join()


@pytest.mark.parametrize(
    "command",
    [counter, pytest.param(node_counter, marks=pytest.mark.skipif(bool(NODE_IS_MISSING), reason=NODE_IS_MISSING))],
)
def test_a_program_that_cannot_be_rescaled_fails_its_job_for_good(coordinator, programs, tmp_path, command):
    """The counters of the examples are one counter each: two of them do not become one, and no restart helps."""
    job_id = coordinator.submit("fleet", orders=2)
    for name in ("a", "b"):
        programs(*command(coordinator, "fleet", "orders", tmp_path / name, ENDLESS))
    coordinator.follow(job_id, lambda details: details.checkpoint_counts.completed >= 1)
    with suppress(SnaplineError):
        coordinator.client.rescale(job_id, parallelism=1)
    with pytest.raises(JobFailed, match="this program holds one counter"):
        coordinator.client.wait(job_id)


UPLOADS = """
const fs = require('node:fs');
const { participate } = require(process.argv[2]);
const task = {
  begin({ uploaded }) { for (const { file, size } of uploaded.get('v') || []) console.log(size, fs.readFileSync(file, 'utf8')); },
  snapshot(checkpointId, location) {
    if (!location.startsWith('/')) throw new Error(`${location} is no path`);
    fs.mkdirSync(location, { recursive: true });
    fs.writeFileSync(`${location}/v.txt`, 'node');
    return { v: [{ file: 'v.txt', offset: 0, size: 4 }] };
  },
  complete() {}, aborted() {}, end() {},
};
participate(task, { job: 'fleet', taskName: 'orders', coordinator: process.argv[3], retryPauseMs: 50 });
"""


@pytest.mark.skipif(bool(NODE_IS_MISSING), reason=NODE_IS_MISSING)
def test_a_node_program_uploads_its_state(coordinator, programs, tmp_path):
    """Killed, the next one finds it."""
    script = tmp_path / "uploads.js"
    script.write_text(UPLOADS)
    client = ROOT / "clients" / "node" / "snapline_external.js"
    command = ("env", f"NODE_PATH={NODE_MODULES}", "node", str(script), str(client), coordinator.address)
    job_id = coordinator.submit("fleet", orders=1)
    first = programs(*command)
    coordinator.follow(job_id, lambda details: details.checkpoint_counts.completed >= 1)
    first.kill()
    assert programs(*command).stdout.readline() == "4 node\n"
    assert not (ROOT / "file:").exists()


NO_BYTES = """
const { participate } = require(process.argv[2]);
const task = { begin() {}, snapshot() { return { v: GIVEN }; }, complete() {}, aborted() {}, end() {} };
participate(task, { job: 'fleet', taskName: 'orders', coordinator: process.argv[3], retryPauseMs: 50 });
"""


@pytest.mark.skipif(bool(NODE_IS_MISSING), reason=NODE_IS_MISSING)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("['orders12']", "an element of state 'v' is a string, and has to be bytes"),
        ("[new ArrayBuffer(4)]", "an element of state 'v' is an object, and has to be bytes"),
        ("[[7, 'x']]", "an element of state 'v' is an array, and has to be bytes"),
        ("'abc'", "state 'v' has to be an array of elements"),
    ],
)
def test_a_state_of_a_node_program_that_is_no_bytes_is_refused(coordinator, programs, tmp_path, given, says):
    """A text was taken for Base64 and came back as other bytes after a restart; other things came back as nothing."""
    script = tmp_path / "no_bytes.js"
    script.write_text(NO_BYTES.replace("GIVEN", given))
    client = ROOT / "clients" / "node" / "snapline_external.js"
    job_id = coordinator.submit("fleet", orders=1)
    programs("env", f"NODE_PATH={NODE_MODULES}", "node", str(script), str(client), coordinator.address)
    with pytest.raises(JobFailed, match=says):
        coordinator.client.wait(job_id)


def test_a_client_that_will_never_be_let_in_says_so(coordinator):
    """A task that the job does not have is no reason to wait."""
    coordinator.submit("fleet", orders=1)
    with pytest.raises(ParticipationRefused, match="job 'fleet' has no external task 'x'; it has 'orders'"):
        participate(ExternalTask(), job="fleet", task_name="x", coordinator=coordinator.address)


def test_a_program_without_the_token_is_refused_for_good(tmp_path, programs):
    """Another try would end the same way: both clients say why, and stop; with the token, the program is let in."""
    coordinator = Coordinator(tmp_path / "checkpoints", client=False, **{"security.auth.token": "secret"})
    try:
        arguments: dict[str, Any] = {"job": "none", "task_name": "orders", "coordinator": coordinator.address}
        with pytest.raises(ParticipationRefused, match=r"refuses the stream: UNAUTHENTICATED: .* security.auth.token"):
            participate(ExternalTask(), **arguments)
        with pytest.raises(ParticipationRefused, match="has not let the program in for 0 s: no job 'none' runs here"):
            participate(ExternalTask(), **arguments, settings={"security.auth.token": "secret"}, give_up_after=0)
        if not NODE_IS_MISSING:
            assert programs(*node_counter(coordinator, "none", "orders", tmp_path / "out", 1)).wait(20) == 1
    finally:
        coordinator.entrypoint.stop()
