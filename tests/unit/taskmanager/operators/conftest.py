"""Every test of tasks begins with an empty outside world."""

from __future__ import annotations

import pytest

from tests.unit.taskmanager.task.local_job import Outside


@pytest.fixture(autouse=True)
def empty_world() -> None:
    Outside.reset()
