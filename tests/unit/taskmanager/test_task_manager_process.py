"""One TaskManager as the body of a process that is used again."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import pytest

from snapline.taskmanager import task_manager
from snapline.taskmanager.task_manager_config import TaskManagerConfig
from snapline.taskmanager.task_manager_process import GC_THRESHOLDS, SWITCH_SECONDS, run_task_manager


def how_python_runs() -> tuple[float, tuple[int, int, int]]:
    """How long a thread keeps Python's lock, and how seldom cycles are looked for."""
    return sys.getswitchinterval(), gc.get_threshold()


def test_python_runs_in_another_way_as_long_as_a_task_manager_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task does not wait 5 ms for each thread that computes, nor for looks at all of its rows; Spark gets its process
    back as it was."""
    seen: list[object] = []
    manager = SimpleNamespace(
        start=lambda: seen.append(how_python_runs()),
        request_shutdown=lambda reason: None,
        stop=list,
        outcome=SimpleNamespace(clean=True, detail=""),
    )

    def create(config: object, logger: object, recent: object, *, on_ended: object) -> SimpleNamespace:
        on_ended()  # type: ignore[operator]
        return manager

    monkeypatch.setattr(task_manager, "TaskManager", create)
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    before = how_python_runs()
    run_task_manager(TaskManagerConfig(resource_id="tm-1", coordinator_address="127.0.0.1:1", slots=1))
    assert ([(SWITCH_SECONDS, GC_THRESHOLDS)], before) == (seen, how_python_runs())
