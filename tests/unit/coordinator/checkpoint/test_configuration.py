"""Settings that contradict each other are named."""

from __future__ import annotations

import pytest

from snapline.coordinator.checkpoint.configuration import (
    CheckpointCoordinatorConfiguration,
    CheckpointingConfigurationError,
)
from snapline.coordinator.checkpoint.failure_manager import UNLIMITED_TOLERABLE_FAILURES
from snapline.coordinator.checkpoint.properties import CheckpointRetentionPolicy
from snapline.dataflow.config import Configuration


def test_settings_of_a_job() -> None:
    """Every setting arrives under its own name."""
    made = CheckpointCoordinatorConfiguration.from_configuration(
        Configuration(
            {
                "execution.checkpointing.interval": "2 s",
                "execution.checkpointing.min-pause": "5 s",
                "execution.checkpointing.tolerable-failed-checkpoints": "-1",
                "execution.checkpointing.externalized-checkpoint-retention": "DELETE_ON_CANCELLATION",
                "execution.checkpointing.unaligned.enabled": "true",
                "execution.checkpointing.aligned-checkpoint-timeout": "300 ms",
            }
        )
    )

    assert made.effective_interval_ms == 5_000
    assert made.tolerable_failures == UNLIMITED_TOLERABLE_FAILURES
    assert made.retention is CheckpointRetentionPolicy.RETAIN_ON_FAILURE
    assert made.aligned_checkpoint_timeout_ms == 300


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"execution.checkpointing.mode": "AT_LEAST_ONCE", "execution.checkpointing.unaligned.enabled": "true"},
            "execution.checkpointing.mode",
        ),
        (
            {
                "execution.checkpointing.unaligned.enabled": "true",
                "execution.checkpointing.max-concurrent-checkpoints": "2",
            },
            "execution.checkpointing.max-concurrent-checkpoints",
        ),
        ({"execution.checkpointing.num-retained": "0"}, "execution.checkpointing.num-retained"),
        ({"execution.checkpointing.tolerable-failed-checkpoints": "-2"}, "tolerable-failed-checkpoints"),
        ({"execution.checkpointing.timeout": "0 ms"}, "execution.checkpointing.timeout"),
    ],
)
def test_contradictions_are_named(settings: dict[str, str], named: str) -> None:
    """One line with the setting to change."""
    with pytest.raises(CheckpointingConfigurationError, match=named):
        CheckpointCoordinatorConfiguration.from_configuration(Configuration(settings))


def test_defaults_of_flink() -> None:
    """Nothing set: no periodic checkpoints, one at a time, no failure tolerated."""
    made = CheckpointCoordinatorConfiguration.from_configuration(Configuration())

    assert (made.is_periodic, made.max_concurrent_checkpoints, made.tolerable_failures) == (False, 1, 0)
