"""Which folder is told to which world."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.scenarios.coordinator_world import CoordinatorWorld
from tests.scenarios.transcript import World

WORLDS: dict[str, Callable[[], World]] = {"coordinator": CoordinatorWorld}
FOLDER = Path(__file__).parent


def world_of(path: Path) -> Callable[[], World]:
    """The world of a transcript."""
    return WORLDS[path.resolve().parent.name]
