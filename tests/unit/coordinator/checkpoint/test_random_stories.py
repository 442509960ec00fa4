"""Random stories against the oracles of `random_world`."""

from __future__ import annotations

import pytest

from snapline.coordinator.checkpoint.publication import CheckpointPublication
from tests.unit.coordinator.checkpoint.random_world import RandomWorld


@pytest.mark.parametrize("block", range(10))
def test_random_story(block: int) -> None:
    """Safety at every step, liveness at the end; a failure names its seed."""
    for seed in range(block * 25, block * 25 + 25):
        world = RandomWorld(seed)
        try:
            for _ in range(250):
                world.step()
            world.live()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


def test_oracles_catch_a_broken_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: files of late acknowledgements are deleted without asking who needs them."""
    monkeypatch.setattr(
        CheckpointPublication,
        "paths_of_late_state",
        lambda _self, _id, _outcome, _location, state: tuple(
            handle.path for operator in state.operators.values() for handle in operator.stream_handles
        ),
    )

    with pytest.raises(AssertionError, match="oracle"):
        for seed in range(100):
            world = RandomWorld(seed)
            for _ in range(250):
                world.step()
