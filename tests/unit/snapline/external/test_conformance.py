"""The conformance suite for programs outside: our own clients pass it, and programs that are wrong do not."""

from __future__ import annotations

import signal
import subprocess
import threading

import pytest

from examples.external_rows import Files, Numbers, Totals
from snapline.external import ExternalTask, ParticipationRefused, participate, participation
from snapline.external import check as check_module
from snapline.external.check import check, main
from snapline.external.conversation import Conversation
from snapline.protos import external_pb2 as pb
from tests.services.node import NODE_IS_MISSING, NODE_MODULES, ROOT, node_program


class Plain(ExternalTask):
    """It has a little state."""

    def snapshot(self, checkpoint_id):
        return {"n": [b"1", b"2"]}


def tried(timeout, command="", patience=20.0, task=None, shape="alone"):
    """What the suite says of a Python program in this process, or of the command."""
    said: list[str] = []
    programs: list[threading.Thread] = []

    def say(line):
        said.append(line)
        if not programs and not command:
            address = line.split()[2]
            programs.append(threading.Thread(target=program, args=(address,)))
            programs[0].start()

    def program(address):
        try:
            options = {"coordinator": address, "retry_pause": 0.01, "give_up_after": patience}
            participate(task or Plain(), job="conformance", task_name="task", **options)
        except ParticipationRefused as refused:
            said.append(f"refused: {refused}")

    holds = check("127.0.0.1:0", timeout, command, say, shape=shape)
    for thread in programs:
        thread.join()
    return holds, said[1:]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--address", "nonsense"], "--address nonsense: say host:port"),
        (["--address", "192.0.2.1:7000"], "cannot listen at 192.0.2.1:7000"),
        (
            ["--address", "127.0.0.1:0", "--run", "there-is-no-such-program {address}"],
            "--run: there is no program 'there-is-no-such-program'",
        ),
        (["--address", "127.0.0.1:0", "--run", "'"], "--run: No closing quotation"),
        (["--shape", "operator", "--columns", "a=b"], "--columns a=b: say NAME:TYPE"),
        (["--shape", "operator", "--columns", "a:nothing"], "--columns a:nothing: "),
    ],
)
def test_what_the_suite_cannot_do_is_one_line(capsys, arguments, said):
    """And a usage error, not a program that fails."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(lines) == 1 and said in lines[0]


def test_a_program_that_ends_at_once_is_said_to_have_ended():
    """The suite does not wait for it."""
    assert tried(60, "false") == (
        False,
        ["FAILED  it registers first, and for its task: it has ended with exit code 1"],
    )


def test_the_python_client_conforms():
    """Every rule holds, and each has a line."""
    holds, said = tried(20)
    assert holds, said
    assert [line[:8] for line in said] == ["ok      "] * 14


@pytest.mark.skipif(bool(NODE_IS_MISSING), reason=NODE_IS_MISSING)
def test_the_client_for_node_conforms(tmp_path, monkeypatch):
    """Started by the suite itself, as `--run` does."""
    command = node_program("external_counter.js", "--job", "conformance", "--output", str(tmp_path))
    holds, said = tried(20, f"{command} --coordinator {{address}}")
    assert holds, said


NODE_PROGRAM = """
const { participate } = require(process.argv[2]);
const plain = { begin() {}, snapshot() { return { v: [Buffer.from('x')] }; }, process() {}, complete() {}, aborted() {}, end() {} };
participate({ ...plain, GIVEN }, { job: 'conformance', taskName: 'task', coordinator: process.argv[3], retryPauseMs: 50 });
"""


def node_task(tmp_path, given):
    """The command of a program in Node with these parts of a task."""
    script = tmp_path / "program.js"
    script.write_text(NODE_PROGRAM.replace("GIVEN", given))
    return (
        f"env NODE_PATH={NODE_MODULES} node {script} {ROOT / 'clients' / 'node' / 'snapline_external.js'} {{address}}"
    )


@pytest.mark.skipif(bool(NODE_IS_MISSING), reason=NODE_IS_MISSING)
def test_an_end_that_throws_ends_the_attempt_and_not_the_program_in_node(tmp_path):
    """What it threw was an unhandled rejection, with which Node ended the process."""
    holds, said = tried(20, node_task(tmp_path, "end() { throw new Error('cannot close'); }"))
    assert holds, said


@pytest.mark.skipif(bool(NODE_IS_MISSING), reason=NODE_IS_MISSING)
def test_a_redistribution_that_there_is_not_fails_a_task_in_node(tmp_path):
    """A word that was misspelled was taken for split: after a rescale each task had a part of the state."""
    holds, said = tried(20, node_task(tmp_path, "redistribution: { v: 'unoin' }"))
    assert not holds
    assert "state 'v' has the redistribution 'unoin': choose from split, union, broadcast, by_key" in said[-1]


@pytest.mark.parametrize(
    ("shape", "task", "rules"), [("source", Numbers(10**6, 0.01), 8), ("operator", Totals(), 10), ("sink", Files, 10)]
)
def test_the_python_client_conforms_with_rows(tmp_path, shape, task, rules):
    """As a source, an operator and a sink, with the programs of the example."""
    holds, said = tried(20, task=task(tmp_path) if shape == "sink" else task, shape=shape)
    assert holds, said
    assert [line[:8] for line in said] == ["ok      "] * rules


@pytest.mark.skipif(bool(NODE_IS_MISSING), reason=NODE_IS_MISSING)
def test_the_client_for_node_conforms_as_an_operator():
    """Its rows are read and written with apache-arrow."""
    command = node_program("external_totals.js", "--job", "conformance", "--task", "task")
    holds, said = tried(20, f"{command} --coordinator {{address}}", shape="operator")
    assert holds, said


class AnswersUnasked(Conversation):
    def handle(self, message):
        unasked = pb.AcknowledgeCheckpoint(attempt_id=message.run_task.attempt_id, checkpoint_id=70)
        extra = [pb.FromProgram(acknowledge_checkpoint=unasked)] if message.HasField("run_task") else []
        return super().handle(message) + extra


class SaysNothingOfRows(Conversation):
    def handle(self, message):
        return [each for each in super().handle(message) if not each.HasField("rows_processed")]


class ChangesWatermarks(Conversation):
    def handle(self, message):
        answers = super().handle(message)
        for answer in answers:
            if answer.HasField("watermark"):
                answer.watermark.timestamp_ms += 1
        return answers


@pytest.mark.parametrize(
    ("wrong", "rule", "why"),
    [
        (SaysNothingOfRows, "it processes rows in their order", "it has not said RowsProcessed of all rows within 1 s"),
        (ChangesWatermarks, "it says a watermark back", "watermark 1001 answers none"),
        (AnswersUnasked, "it ", "checkpoint 70, which the program was not asked for"),
    ],
)
def test_a_program_that_is_wrong_about_rows_does_not_pass(monkeypatch, wrong, rule, why):
    """The suite names the rule and what was wrong."""
    monkeypatch.setattr(participation, "Conversation", wrong)
    holds, said = tried(1.0 if "within" in why else 20.0, patience=0.0, task=Totals(), shape="operator")
    last = next(line for line in said if line.startswith("FAILED"))
    assert not holds
    assert last.startswith(f"FAILED  {rule}"), last
    assert why in last


class AnswersTwice(Conversation):
    def handle(self, message):
        answers = super().handle(message)
        return answers * (2 if message.HasField("trigger_checkpoint") else 1)


class HasNoPulse(Conversation):
    def handle(self, message):
        return [] if message.HasField("heartbeat") else super().handle(message)


class GoesOn(Conversation):
    def handle(self, message):
        return [] if message.HasField("cancel_task") else super().handle(message)


class LivesInThePast(Conversation):
    """It answers everything with the id of its first attempt."""

    first = ""

    def handle(self, message):
        type(self).first = type(self).first or message.run_task.attempt_id
        answers = super().handle(message)
        for answer in answers:
            if answer.HasField("task_running"):
                answer.task_running.attempt_id = self.first
        return answers


@pytest.mark.parametrize(
    ("wrong", "rule", "why"),
    [
        (AnswersTwice, "it answers checkpoints that follow closely", "second answer to checkpoint"),
        (HasNoPulse, "it answers a heartbeat", "it has not said Heartbeat within 2 s"),
        (GoesOn, "it ends an attempt that is cancelled", "it has not said that the attempt is CANCELED within 2 s"),
        (LivesInThePast, "it begins again with the state", "task_running names attempt"),
        (AnswersUnasked, "it answers a checkpoint", "checkpoint 70, which the program was not asked for"),
    ],
)
def test_a_program_that_is_wrong_does_not_pass(monkeypatch, wrong, rule, why):
    """The suite names the rule and what was wrong, in one line, and ends."""
    monkeypatch.setattr(participation, "Conversation", wrong)
    holds, said = tried(2.0 if "within" in why else 20.0, patience=0.0)
    last = next(line for line in said if line.startswith("FAILED"))
    assert not holds
    assert last.startswith(f"FAILED  {rule}"), last
    assert why in last


def test_a_program_that_does_not_end_is_ended(monkeypatch):
    """The suite waited for ever for one that ignores SIGTERM."""
    monkeypatch.setattr(check_module, "PATIENCE_WITH_TERM_SECONDS", 0.1)
    started = []

    class Started(subprocess.Popen):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, stdout=subprocess.PIPE, **keywords)  # type: ignore[call-overload]
            self.stdout.readline()  # type: ignore[union-attr]  # it ignores the signal from here on
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Started)
    assert not check("127.0.0.1:0", 0.1, "sh -c \"trap '' TERM; echo; exec sleep 600\"", lambda _: None)
    assert started[0].returncode == -signal.SIGKILL
