"""Everything about checkpoints that a job can be configured with, checked once.

Mirrors Flink's CheckpointCoordinatorConfiguration and the checks of CheckpointConfig.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapline.coordinator.checkpoint.failure_manager import UNLIMITED_TOLERABLE_FAILURES
from snapline.coordinator.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from snapline.coordinator.checkpoint.request_decider import (
    DEFAULT_MAX_QUEUED_PERIODIC_REQUESTS,
    DEFAULT_MAX_QUEUED_REQUESTS,
)
from snapline.dataflow import config
from snapline.dataflow.elements import NO_ALIGNED_TIMEOUT_MS, AlignmentType, CheckpointOptions, SnapshotType
from snapline.dataflow.errors import SnaplineError

_RETENTION = {
    "NO_EXTERNALIZED_CHECKPOINTS": CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION,
    "DELETE_ON_CANCELLATION": CheckpointRetentionPolicy.RETAIN_ON_FAILURE,
    "RETAIN_ON_CANCELLATION": CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
}


class CheckpointingConfigurationError(SnaplineError):
    """Settings of checkpointing contradict each other; names them."""


@dataclass(frozen=True, slots=True)
class CheckpointCoordinatorConfiguration:
    """Settings of one job's checkpoints."""

    interval_ms: int = 10_000
    """Time between two periodic checkpoints; 0 switches them off."""
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    max_concurrent_checkpoints: int = 1
    max_queued_requests: int = DEFAULT_MAX_QUEUED_REQUESTS
    max_queued_periodic_requests: int = DEFAULT_MAX_QUEUED_PERIODIC_REQUESTS
    max_retained_checkpoints: int = 1
    retention: CheckpointRetentionPolicy = CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
    exactly_once: bool = True
    unaligned: bool = False
    aligned_checkpoint_timeout_ms: int = 0
    """With `unaligned`: barriers begin aligned and turn unaligned after this; 0: unaligned from the start."""
    tolerable_failures: int = UNLIMITED_TOLERABLE_FAILURES
    checkpoints_after_tasks_finish: bool = True
    history_size: int = 10
    prefer_checkpoint_for_recovery: bool = False

    def __post_init__(self) -> None:
        if self.unaligned and not self.exactly_once:
            raise CheckpointingConfigurationError(
                f"{config.CHECKPOINTING_UNALIGNED.key} needs {config.CHECKPOINTING_MODE.key} = EXACTLY_ONCE, and it is "
                "AT_LEAST_ONCE, which never blocks an input anyway: switch one of them"
            )
        for name, value, least in (
            (config.CHECKPOINTING_INTERVAL.key, self.interval_ms, 0),
            (config.CHECKPOINTING_TIMEOUT.key, self.timeout_ms, 1),
            (config.CHECKPOINTING_MIN_PAUSE.key, self.min_pause_ms, 0),
            (config.CHECKPOINTING_MAX_CONCURRENT.key, self.max_concurrent_checkpoints, 1),
            (config.CHECKPOINTS_NUM_RETAINED.key, self.max_retained_checkpoints, 1),
            (config.CHECKPOINT_HISTORY_SIZE.key, self.history_size, 0),
            (config.CHECKPOINTING_TOLERABLE_FAILURES.key, self.tolerable_failures, 0),
        ):
            if value < least:
                raise CheckpointingConfigurationError(f"{name} must be at least {least}, not {value}")

    @property
    def effective_interval_ms(self) -> int:
        """An interval below the minimum pause is raised to it."""
        return max(self.interval_ms, self.min_pause_ms)

    @property
    def is_periodic(self) -> bool:
        """Whether checkpoints are taken at all, besides what users ask for."""
        return self.interval_ms > 0

    def properties_of(self, snapshot_type: SnapshotType) -> CheckpointProperties:
        """Savepoints ignore the limit of concurrent checkpoints, unless these may be unaligned (as in Flink)."""
        if snapshot_type.is_savepoint:
            return CheckpointProperties.for_savepoint(snapshot_type, forced=not self.unaligned)
        return CheckpointProperties.for_checkpoint(self.retention, snapshot_type)

    def options_of(self, snapshot_type: SnapshotType, target_location: str) -> CheckpointOptions:
        """What tasks are told about a snapshot of this kind."""
        alignment, timeout_ms = AlignmentType.ALIGNED, NO_ALIGNED_TIMEOUT_MS
        if not self.exactly_once:
            alignment = AlignmentType.AT_LEAST_ONCE
        elif self.unaligned and not snapshot_type.is_savepoint:
            if self.aligned_checkpoint_timeout_ms > 0:
                timeout_ms = self.aligned_checkpoint_timeout_ms
            else:
                alignment = AlignmentType.UNALIGNED
        return CheckpointOptions(snapshot_type, alignment, timeout_ms, target_location)

    @classmethod
    def from_configuration(cls, configuration: config.Configuration) -> CheckpointCoordinatorConfiguration:
        """From the settings of a job. Raises SnaplineError naming what contradicts what."""
        get = configuration.get_option
        tolerable = get(config.CHECKPOINTING_TOLERABLE_FAILURES)
        if tolerable < -1:
            raise CheckpointingConfigurationError(
                f"{config.CHECKPOINTING_TOLERABLE_FAILURES.key} is {tolerable}: -1 (any number), 0 or more"
            )
        made = cls(
            interval_ms=get(config.CHECKPOINTING_INTERVAL),
            timeout_ms=get(config.CHECKPOINTING_TIMEOUT),
            min_pause_ms=get(config.CHECKPOINTING_MIN_PAUSE),
            max_concurrent_checkpoints=get(config.CHECKPOINTING_MAX_CONCURRENT),
            max_retained_checkpoints=get(config.CHECKPOINTS_NUM_RETAINED),
            retention=_RETENTION[get(config.CHECKPOINTING_RETENTION)],
            exactly_once=get(config.CHECKPOINTING_MODE) == "EXACTLY_ONCE",
            unaligned=get(config.CHECKPOINTING_UNALIGNED),
            aligned_checkpoint_timeout_ms=get(config.CHECKPOINTING_ALIGNED_TIMEOUT),
            tolerable_failures=UNLIMITED_TOLERABLE_FAILURES if tolerable == -1 else tolerable,
            checkpoints_after_tasks_finish=get(config.CHECKPOINTING_AFTER_TASKS_FINISH),
            history_size=get(config.CHECKPOINT_HISTORY_SIZE),
        )
        if made.unaligned and made.max_concurrent_checkpoints > 1:
            raise CheckpointingConfigurationError(
                f"{config.CHECKPOINTING_UNALIGNED.key} allows one checkpoint at a time, and "
                f"{config.CHECKPOINTING_MAX_CONCURRENT.key} is {made.max_concurrent_checkpoints}: set it to 1"
            )
        return made
