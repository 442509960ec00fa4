"""Programs outside under faults: some seeds of the simulator, and mistakes that its oracles must find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snapline.coordinator.external.external_program import ExternalProgram
from snapline.testing.simulated.world import Violation
from tests.simulation.external_programs import Counter, Run

SEEDS = range(20)


@pytest.mark.parametrize("first", SEEDS[::10])
def test_programs_that_fail_write_each_number_once(first):
    """They stall, die, lose their streams, answer late, twice and wrongly, and so does their coordinator."""
    for seed in range(first, first + 10):
        Run(seed).perform()


def found(seeds=SEEDS):
    """Whether some seed contradicts an oracle."""
    for seed in seeds:
        try:
            Run(seed).perform()
        except Violation:
            return True
    return False


def test_an_effect_before_its_checkpoint_is_complete_is_found(monkeypatch):
    """A program that writes when it is asked for a snapshot writes numbers that are counted again."""
    snapshot = Counter.snapshot

    def hasty(self, checkpoint_id):
        state = snapshot(self, checkpoint_id)
        self._write(self.next - 1)
        return state

    monkeypatch.setattr(Counter, "snapshot", hasty)
    assert found()


def test_a_finished_task_that_begins_anew_is_found(monkeypatch):
    """What the gateway does for a task that had finished is needed."""
    run = ExternalProgram._run

    def forgetful(self, task):
        state = replace(task.restore_state, is_task_finished=False)
        run(self, replace(task, restore_state=state))

    monkeypatch.setattr(ExternalProgram, "_run", forgetful)
    assert found(range(200))


def test_state_that_is_lost_is_found(monkeypatch):
    """A gateway that gives a program nothing to begin with sends it back behind what was durable."""
    monkeypatch.setattr("snapline.coordinator.external.external_program.named_states", lambda *_: [])
    assert found()
