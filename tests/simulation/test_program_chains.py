"""Jobs whose source, operator and sink are programs outside, under faults: some seeds of the simulator, and mistakes
that its oracles find."""

from __future__ import annotations

from snapline.external.conversation import Conversation
from snapline.taskmanager.operators.external.external_operators import ExternalOperator
from snapline.testing.simulated.world import Violation
from tests.simulation.program_chains import ChainRun, Filing, Numbering

SEEDS = range(6)


def test_every_row_goes_from_the_source_into_one_file():
    """They stall, die, answer twice, decline and lie; the job restarts, is rescaled, and goes on from savepoints."""
    runs = [ChainRun(seed) for seed in SEEDS]
    for run in runs:
        run.perform()
    assert sum(run.savepoints for run in runs) >= len(SEEDS)
    assert sum(run.attempts for run in runs) > sum(run.savepoints for run in runs) + len(SEEDS)


def found():
    """Whether some seed contradicts an oracle."""
    for seed in SEEDS:
        try:
            ChainRun(seed).perform()
        except Violation:
            return True
    return False


def test_a_source_that_forgets_where_it_was_is_found(monkeypatch):
    """Its rows come a second time."""
    snapshot = Numbering.snapshot
    behind = {"keys": [b"0 1"]}
    monkeypatch.setattr(Numbering, "snapshot", lambda self, number: {**snapshot(self, number), **behind})
    assert found()


def test_files_that_are_written_too_early_are_found(monkeypatch):
    """A sink that does not wait for the checkpoint writes rows that come again."""
    process = Filing.process

    def early(self, rows):
        process(self, rows)
        self._write(f"early-{id(rows)}-{len(self._run.files)}", self._rows)
        self._rows = []

    monkeypatch.setattr(Filing, "process", early)
    assert found()


def test_a_job_that_ends_before_its_sink_has_heard_of_the_last_checkpoint_is_found(monkeypatch):
    """Its last file is written by nobody."""

    def settle(self, checkpoint_id):
        self._program.place.settle(checkpoint_id, is_complete=True)

    monkeypatch.setattr(ExternalOperator, "notify_checkpoint_complete", settle)
    assert found()


def test_an_answer_to_the_barrier_before_the_rows_is_found(monkeypatch):
    """What a source puts out after its answer, although its state covers it, is lost with the attempt."""
    handle = Conversation.handle

    def too_early(self, message):
        answers = handle(self, message)
        if message.HasField("trigger_checkpoint") and isinstance(self._task, Numbering):
            self._task.work()  # which the state does not cover
            self._emitted.clear()
        return answers

    monkeypatch.setattr(Conversation, "handle", too_early)
    assert found()
