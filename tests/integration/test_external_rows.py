"""Programs outside as source, operator and sink of a job: real processes and streams, killed, wrong and in the way."""

from __future__ import annotations

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from itertools import accumulate
from pathlib import Path
from typing import Any

import grpc
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from examples.external_rows import KEYS, NUMBERS, TOTALS, Files, Numbers, Totals
from snapline.cli import cli
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.connectors.files.file_sink import FileSink
from snapline.external import participate, participation
from snapline.protos import external_pb2 as pb
from snapline.protos import external_pb2_grpc
from snapline.runtime.rpc.grpc_channels import open_channel
from snapline.runtime.rpc.security import Security
from snapline.state_reader import StateReader, StateReadError
from tests.services.cluster import LocalCluster
from tests.services.node import NODE_IS_MISSING, node_program

ROOT = Path(__file__).resolve().parents[2]
UNTIL = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    settings = {"heartbeat.interval": "100 ms", "heartbeat.timeout": "6 s", "external.state.max-bytes": "2 mb"}
    with LocalCluster(tmp_path_factory.mktemp("cluster"), (3, 3), settings) as cluster:
        yield cluster


class Programs:
    """Programs in threads of this process, and one in a process that can be killed."""

    def __init__(self, cluster, job, output):
        self.cluster, self.job, self.output = cluster, job, output
        self.threads: list[threading.Thread] = []
        self.said: list[str] = []
        self.processes: list[Any] = []

    def start(self, task_name, task):
        arguments = {"job": self.job, "task_name": task_name, "coordinator": self.cluster.address, "retry_pause": 0.05}
        thread = threading.Thread(target=lambda: self.said.append(participate(task, **arguments)))
        self.threads.append(thread)
        thread.start()

    def start_process(self, task_name):
        command = [sys.executable, "-m", "examples.external_rows", task_name, "--coordinator", self.cluster.address]
        command += ["--job", self.job, "--output", str(self.output), "--until", str(UNTIL)]
        return self.run(command)

    def run(self, command):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.processes.append(
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, process_group=0)
        )
        return self.processes[-1]

    def join(self):
        for thread in self.threads:
            thread.join()
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture
def programs(cluster, tmp_path, request):
    made = Programs(cluster, request.node.name, tmp_path / "out")
    yield made
    for job in cluster.client.list_jobs():
        if job.name == made.job:
            try:
                cluster.client.cancel(job.job_id)
            except Exception as error:
                print(error)  # it has ended
    made.join()


class Held(Numbers):
    """Does not come to its end before it may."""

    def __init__(self, pause, may_end):
        super().__init__(UNTIL, pause)
        self.may_end = may_end

    def work(self):
        return super().work() if self.may_end.is_set() or max(self._next.values()) < UNTIL // 2 else self._pause


def external_job(cluster, parallelism):
    env = cluster.environment(parallelism, "100 ms")
    numbers = env.from_external("numbers", NUMBERS, uid="numbers")
    numbers.key_by("key").via_external("totals", TOTALS, uid="totals").to_external("files", uid="files")
    return env


def expected():
    return sorted(
        (key, number, total) for key in range(KEYS) for number, total in enumerate(accumulate(range(1, UNTIL + 1)), 1)
    )


def written(output):
    rows = [json.loads(line) for file in sorted(output.glob("[!.]*")) for line in file.read_text().splitlines()]
    return sorted((row["key"], row["number"], row["total"]) for row in rows)


def look_at_the_state(path):
    """Every key of the source and of the operator is there, and who asks for rows hears that these are bytes."""
    listed = CliRunner().invoke(cli, ["state", "ls", path])
    assert 0 == listed.exit_code, listed.output
    lists = {each.uid: each.elements for each in StateReader(path).lists()}
    assert {"files", "numbers", "totals"} == set(lists)
    assert list(range(KEYS)) == sorted(json.loads(each)[0] for each in lists["numbers"]["keys"])
    by_key = lists["totals"]["snapline:by-key:totals"]
    assert list(range(KEYS)) == sorted(json.loads(each[4:])[0] for each in by_key)
    assert "snapline:by-key:totals" in listed.output
    with pytest.raises(StateReadError, match="no keyed state of 'totals', but lists whose bytes only their writer"):
        StateReader(path).table("totals")


def test_source_operator_and_sink_are_programs(cluster, programs):
    """Nothing goes wrong, and each row is there once."""
    job_id = cluster.submit(external_job(cluster, 1), programs.job)
    programs.start("numbers", Numbers(UNTIL, 0.0))
    programs.start("totals", Totals())
    programs.start("files", Files(programs.output))
    cluster.client.wait(job_id)
    assert expected() == written(programs.output)


def test_kills_and_another_parallelism_leave_the_output_as_it_is(cluster, programs, tmp_path):
    """Signal 9 to the operator's program, then to a TaskManager; then a savepoint, and three of each where two were."""
    job_id, may_end = cluster.submit(external_job(cluster, 2), programs.job), threading.Event()
    for _ in range(2):
        programs.start("numbers", Held(0.02, may_end))
        programs.start("files", Files(programs.output))
    programs.start("totals", Totals())
    killed = programs.start_process("totals")
    cluster.wait_for_checkpoints(job_id, 2)
    killed.send_signal(signal.SIGKILL)
    programs.start("totals", Totals())
    cluster.follow(job_id, lambda details: details.checkpoint_counts.restored >= 1)
    running = cluster.follow(job_id, lambda details: details.overview.subtasks_by_state.get("RUNNING") == 6)
    cluster.on(running.vertices[0].subtasks[0].resource_id).kill()
    restored = cluster.follow(job_id, lambda details: details.checkpoint_counts.restored >= 2)
    cluster.wait_for_checkpoints(job_id, restored.checkpoint_counts.completed + 1)
    path = cluster.client.stop_with_savepoint(job_id, str(tmp_path / "savepoint"))
    programs.join()
    look_at_the_state(path)
    may_end.set()
    env = external_job(cluster, 3)
    env.restore_from(path)
    again = cluster.submit(env, programs.job)
    for _ in range(3):
        programs.start("numbers", Held(0.0, may_end))
        programs.start("totals", Totals())
        programs.start("files", Files(programs.output))
    cluster.client.wait(again)
    assert expected() == written(programs.output)


@pytest.mark.skipif(bool(NODE_IS_MISSING), reason=NODE_IS_MISSING)
def test_a_node_program_is_an_operator_of_a_python_job(cluster, programs):
    """Signal 9 to the Node program in the middle: each key's totals are there once, and right."""
    env = cluster.environment(1, "100 ms")
    rows = (
        env.from_external("numbers", NUMBERS, uid="numbers").key_by("key").via_external("totals", TOTALS, uid="totals")
    )
    rows.sink_to(FileSink(str(programs.output)), uid="files")
    job_id, may_end = cluster.submit(env, programs.job), threading.Event()
    programs.start("numbers", Held(0.02, may_end))
    command = node_program("external_totals.js", "--coordinator", cluster.address, "--job", programs.job)
    killed = programs.run(shlex.split(command))
    cluster.wait_for_checkpoints(job_id, 3)
    os.killpg(killed.pid, signal.SIGKILL)
    programs.run(shlex.split(command))
    may_end.set()
    cluster.client.wait(job_id)
    assert cluster.client.get_job(job_id).overview.restarts >= 1
    table = ds.dataset(programs.output, format="parquet").to_table().to_pylist()
    assert expected() == sorted((row["key"], row["number"], row["total"]) for row in table)


class Raw:
    """A program that says whatever a test wants, at a TaskManager."""

    def __init__(self, cluster, job, task):
        self.address, self.job, self.task = cluster.address, job, task
        self.has_pulse = True
        self.open()

    def open(self):
        """At the TaskManager that the coordinator names, as soon as the task is on one."""
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        at_coordinator = open_channel(self.address, Security())
        register = pb.Register(protocol_version=1, job=self.job, task=self.task, host="h", pid=1)
        while True:
            call = external_pb2_grpc.ExternalTasksStub(at_coordinator).Participate(
                iter([pb.FromProgram(register=register)])
            )
            rejected = next(message.rejected for message in call if message.HasField("rejected"))
            if rejected.ticket:
                break
        at_coordinator.close()
        register.ticket = rejected.ticket
        self.register = register
        self.channel = open_channel(rejected.address, Security())
        self.call = participation._exchange(self.channel, rejected.ticket, iter(self.said.get, None))
        self.kept: list[Any] = []
        self.heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        try:
            for message in self.call:
                if not message.HasField("heartbeat"):
                    self.heard.put(message)
                elif self.has_pulse:
                    self.say(heartbeat=pb.Heartbeat())
        except grpc.RpcError:
            return  # it was closed

    def say(self, **message):
        self.said.put(pb.FromProgram(**message))

    def hear(self, *kinds):
        """The next message of one of these kinds; others are kept until they are asked for."""
        while not (found := [each for each in self.kept if each.WhichOneof("message") in kinds]):
            self.kept.append(self.heard.get(timeout=60))
        self.kept.remove(found[0])
        return getattr(found[0], found[0].WhichOneof("message"))

    def runs(self):
        """Until it is let in: after a failure, the next attempt may not be there yet."""
        self.say(register=self.register)
        while isinstance(self.hear("registered", "rejected"), pb.Rejected):
            self.close()
            self.open()
            self.say(register=self.register)
        self.attempt = self.hear("run_task").attempt_id
        self.say(task_running=pb.TaskRunning(attempt_id=self.attempt))
        return self

    def acknowledge(self, checkpoint_id, *elements):
        state = [pb.NamedState(name="n", elements=elements)]
        said = pb.AcknowledgeCheckpoint(attempt_id=self.attempt, checkpoint_id=checkpoint_id, state=state)
        self.say(acknowledge_checkpoint=said)

    def close(self):
        self.said.put(None)
        self.call.cancel()
        self.reader.join()
        self.channel.close()


@pytest.fixture
def raw(cluster):
    opened = []

    def connect(job, task):
        opened.append(Raw(cluster, job, task))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def test_a_program_that_is_wrong_is_told_so_and_harms_no_other_task(cluster, programs, raw):
    """Another version, twice on a stream, a checkpoint that nobody asked for, state over the limit, silence: one line
    each, while the other program goes on."""
    settings = {"execution__checkpointing__tolerable_failed_checkpoints": "100"}
    env = cluster.environment(1, "100 ms", **settings)
    env.from_external("good", NUMBERS, uid="good").sink_to(DiscardingSink(), uid="nowhere")
    env.from_external("bad", NUMBERS, uid="bad").sink_to(DiscardingSink(), uid="nothing")
    job_id = cluster.submit(env, programs.job)
    good, bad = raw(programs.job, "good"), raw(programs.job, "bad")
    other = raw(programs.job, "bad")
    other.register.protocol_version = 9
    other.say(register=other.register)
    assert "speaks version 9 of external.proto, and this TaskManager 1" in other.hear("rejected").detail
    good.runs(), bad.runs()
    second = raw(programs.job, "bad")
    second.say(register=second.register)
    assert "has all programs that it needs here: try again" in second.hear("rejected").detail
    bad.acknowledge(99)
    assert "checkpoint 99, which the program was not asked for" in bad.hear("complaint").detail
    number = bad.hear("trigger_checkpoint").checkpoint_id
    bad.acknowledge(number, b"x" * 3_000_000)
    assert "has 3000033 bytes, and 2097152 are allowed (external.state.max-bytes" in bad.hear("complaint").detail
    good.acknowledge(good.hear("trigger_checkpoint").checkpoint_id)
    failed = cluster.follow(job_id, lambda details: details.checkpoint_counts.failed >= 1)
    assert failed.overview.restarts == 0
    assert "has 3000033 bytes" in cluster.client.list_checkpoints(job_id).latest_failed.failure.message
    bad.say(register=bad.register)
    assert "Register was said already" in bad.hear("goodbye").reason
    details = cluster.follow(job_id, lambda details: details.overview.restarts >= 1)
    assert "external task 'bad' (1/1): Register was said already" in details.failures[0].failure.summary
    silent = raw(programs.job, "bad").runs()
    silent.has_pulse = False
    good.acknowledge(good.hear("trigger_checkpoint").checkpoint_id)
    assert "no heartbeat for 6000 ms" in silent.hear("goodbye").reason
    cluster.client.cancel(job_id)
    assert "the attempt is over" in good.hear("goodbye").reason


def test_a_program_that_has_a_heartbeat_and_no_answer_fails_its_task(cluster, programs, raw):
    """After the time that a checkpoint may take; the next attempt answers, and the job goes on."""
    settings = {"execution__checkpointing__timeout": "500 ms", "restart-strategy__fixed-delay__attempts": "1000"}
    settings["execution__checkpointing__tolerable_failed_checkpoints"] = "1000"
    env = cluster.environment(1, "100 ms", **settings)
    env.from_external("mute", NUMBERS, uid="mute").sink_to(DiscardingSink(), uid="nowhere")
    job_id = cluster.submit(env, programs.job)
    mute = raw(programs.job, "mute").runs()
    mute.hear("trigger_checkpoint")
    details = cluster.follow(job_id, lambda details: details.overview.restarts >= 1)
    summary = details.failures[0].failure.summary
    assert "'mute' (1/1) has not answered checkpoint 1 within 500 ms (execution.checkpointing.timeout)" in summary
    again = raw(programs.job, "mute").runs()
    while not cluster.client.get_job(job_id).overview.latest_completed_checkpoint_id:
        again.acknowledge(again.hear("trigger_checkpoint").checkpoint_id)
    cluster.client.cancel(job_id)
