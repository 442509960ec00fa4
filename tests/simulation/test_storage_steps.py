"""Storage that fails at each single step of a job's life, once: before it does anything, after it has done it, or with
the process.

The random runs draw such faults, too; here every kind of step is met, one per run: drawing an id, the file of a
TaskManager, metadata, pointer, statistics, each deletion. The oracles of the simulator judge: output as without the
fault, nothing half visible, older checkpoints usable, and no file left when the job has ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snapline.runtime.storage.storage_port import StorageError
from snapline.testing.simulated.disk import ProcessStorage
from tests.simulation.kept_runs import read_run
from tests.simulation.options import FaultOptions
from tests.simulation.simulation import Report, run_seed

RUN = Path(__file__).with_name("storage_steps.json")
"""A job with five checkpoints on one coordinator and one TaskManager."""
ORIGINAL_BEFORE, ORIGINAL_AFTER = ProcessStorage._before, ProcessStorage._after


@contextmanager
def watched(
    before: Callable[[ProcessStorage, str], None], after: Callable[[ProcessStorage, str], None] | None = None
) -> Iterator[None]:
    """Every operation passes by."""

    def observed_before(storage: ProcessStorage, path: str) -> None:
        before(storage, path)
        ORIGINAL_BEFORE(storage, path)

    def observed_after(storage: ProcessStorage, path: str) -> None:
        ORIGINAL_AFTER(storage, path)
        if after is not None:
            after(storage, path)

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(ProcessStorage, "_before", observed_before)
        patched.setattr(ProcessStorage, "_after", observed_after)
        yield


def run(*, may_leave_files: bool = False) -> Report:
    """Without other faults. The simulator counts files only when it knows of no faults."""
    options = read_run(RUN)
    if may_leave_files:
        options = replace(options, faults=FaultOptions(frozenset({"planted by the test"})))
    return run_seed(options.seed, options=options)


def steps() -> list[str]:
    """All operations of a run, in order: who, and which kind of file."""
    found: list[str] = []
    with watched(lambda storage, path: found.append(kind_of(storage, path))):
        assert run().ok
    return found


def kind_of(storage: ProcessStorage, path: str) -> str:
    """Without the numbers."""
    return re.sub(r"[0-9a-f]*\d+", "n", f"{storage._process.name}: {path}")


class Fault:
    """The `number`-th operation of a run fails, in one of three ways."""

    def __init__(self, number: int, how: str) -> None:
        self.number = number
        self.how = how
        self.seen = -1

    def before(self, storage: ProcessStorage, path: str) -> None:
        self.seen += 1
        if self.seen != self.number:
            return
        if self.how == "before":
            raise StorageError(f"/{path}: no space left on device (simulated)")
        if self.how == "killed":
            storage._process.kill_here()

    def after(self, storage: ProcessStorage, path: str) -> None:
        if self.seen == self.number and self.how == "after":
            self.seen += 1
            raise StorageError(f"{path}: done, but the answer was lost (simulated)")


def every_kind() -> list[Any]:
    """One operation of each kind: its second, which is in the middle of the job, where there is one."""
    places: dict[str, list[int]] = {}
    for number, kind in enumerate(steps()):
        places.setdefault(kind, []).append(number)
    return [pytest.param(numbers[min(1, len(numbers) - 1)], kind, id=kind) for kind, numbers in places.items()]


@pytest.mark.parametrize("how", ["before", "after", "killed"])
@pytest.mark.parametrize(("number", "kind"), every_kind())
def test_a_fault_at_any_step_of_storage_costs_no_result(number: int, kind: str, how: str) -> None:
    """A checkpoint, or an attempt, at most. What could not be deleted is deleted later, unless nobody is left who knows
    of it: a killed process, or the job that has been forgotten."""
    fault = Fault(number, how)
    with watched(fault.before, fault.after):
        report = run(may_leave_files=how == "killed" or kind.endswith(("ha/jobs/n", "ha/statistics/n")))

    assert report.ok, report.line()
