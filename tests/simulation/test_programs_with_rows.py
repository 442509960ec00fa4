"""Programs outside that are operators, under faults: some seeds of the simulator, and mistakes that its oracles
find."""

from __future__ import annotations

from snapline.external.conversation import Conversation
from snapline.protos import external_pb2 as pb
from snapline.taskmanager.operators.external.external_operators import ExternalOperator
from snapline.testing.simulated.world import Violation
from tests.simulation.programs_with_rows import Run

SEEDS = range(8)


def test_programs_that_fail_answer_each_row_once():
    """They stall, die, answer twice and late, decline and lie; the job restarts and is rescaled."""
    for seed in SEEDS:
        Run(seed).perform()


def found():
    """Whether some seed contradicts an oracle."""
    for seed in SEEDS:
        try:
            Run(seed).perform()
        except Violation:
            return True
    return False


def test_state_that_is_lost_is_found(monkeypatch):
    """An operator that gives a program nothing to begin with counts from 1 again."""
    monkeypatch.setattr("snapline.taskmanager.operators.external.external_operators.states_of_lists", lambda *_: [])
    assert found()


def test_rows_that_come_behind_their_barrier_are_found(monkeypatch):
    """A program whose state covers rows that it puts out later loses them with its attempt."""
    handle = Conversation.handle
    held: dict[Conversation, list[pb.FromProgram]] = {}

    def late(self, message):
        answers = handle(self, message)
        if message.HasField("rows"):
            held.setdefault(self, []).extend(answer for answer in answers if answer.HasField("rows"))
            return [answer for answer in answers if not answer.HasField("rows")]
        return [*answers, *held.pop(self, [])] if message.HasField("trigger_checkpoint") else answers

    monkeypatch.setattr(Conversation, "handle", late)
    assert found()


def test_watermarks_that_pass_rows_are_found(monkeypatch):
    """A watermark that does not go through the program makes its rows late."""
    monkeypatch.setattr(ExternalOperator, "process_watermark", lambda self, mark: self.output.emit_watermark(mark))
    assert found()
