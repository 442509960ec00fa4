"""Every test of tasks begins with an empty outside world."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.taskmanager.operators.harness import BACKEND
from tests.unit.taskmanager.task.local_job import Outside


@pytest.fixture(autouse=True)
def empty_world() -> None:
    Outside.reset()


@pytest.fixture(scope="module", params=["hashmap", "rocksdb"])
def state_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test of the module on both backends; on the second with room for a few keys only."""
    BACKEND.update(
        {"state.backend.type": request.param, "state.backend.rocksdb.memory.fixed-per-slot": "1 kb"}
        if request.param == "rocksdb"
        else {}
    )
    yield
    BACKEND.clear()
