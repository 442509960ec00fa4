"""One TaskManager as the body of a process that is used again."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from snapline.taskmanager import task_manager
from snapline.taskmanager.task_manager_config import TaskManagerConfig
from snapline.taskmanager.task_manager_process import SWITCH_SECONDS, run_task_manager


def test_threads_hand_pythons_lock_over_sooner_as_long_as_a_task_manager_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task does not wait 5 ms for each thread that computes; Spark gets its process back as it was."""
    seen: list[float] = []
    manager = SimpleNamespace(
        start=lambda: seen.append(sys.getswitchinterval()),
        request_shutdown=lambda reason: None,
        stop=list,
        outcome=SimpleNamespace(clean=True, detail=""),
    )

    def create(config: object, logger: object, recent: object, *, on_ended: object) -> SimpleNamespace:
        on_ended()  # type: ignore[operator]
        return manager

    monkeypatch.setattr(task_manager, "TaskManager", create)
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    before = sys.getswitchinterval()
    run_task_manager(TaskManagerConfig(resource_id="tm-1", coordinator_address="127.0.0.1:1", slots=1))
    assert ([SWITCH_SECONDS], before) == (seen, sys.getswitchinterval())
