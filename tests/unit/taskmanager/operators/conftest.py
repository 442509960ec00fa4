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
    yield from _with(request.param)


RARE = [pytest.param(described, marks=pytest.mark.rare) for described in ("hashmap, incremental", "rocksdb")]
"""Both backends and both kinds of checkpoints are in the other two."""


@pytest.fixture(scope="module", params=["hashmap", "rocksdb, incremental", *RARE])
def state_backend_and_checkpoints(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same, with incremental checkpoints, too."""
    yield from _with(request.param)


def _with(described: str) -> Iterator[None]:
    if "rocksdb" in described:
        BACKEND.update({"state.backend.type": "rocksdb", "state.backend.rocksdb.memory.fixed-per-slot": "1 kb"})
    if "incremental" in described:
        BACKEND["execution.checkpointing.incremental"] = "true"
    yield
    BACKEND.clear()
