"""`env.checkpointing`: the settings of checkpoints and of where state lies, as methods with types.

Each method sets one key of docs/settings.md, so the method and `env.configure(key, value)` can be mixed, and the last
one counts. Durations are whole milliseconds or a `datetime.timedelta`. Mirrors Flink's CheckpointConfig.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from snapline.dataflow.config import (
    CHECKPOINTING_AFTER_TASKS_FINISH,
    CHECKPOINTING_ALIGNED_TIMEOUT,
    CHECKPOINTING_INTERVAL,
    CHECKPOINTING_MAX_CONCURRENT,
    CHECKPOINTING_MIN_PAUSE,
    CHECKPOINTING_MODE,
    CHECKPOINTING_RETENTION,
    CHECKPOINTING_TIMEOUT,
    CHECKPOINTING_TOLERABLE_FAILURES,
    CHECKPOINTING_UNALIGNED,
    CHECKPOINTS_DIRECTORY,
    CHECKPOINTS_NUM_RETAINED,
    INCREMENTAL_CHECKPOINTS,
    LOCAL_RECOVERY,
    SAVEPOINT_DIRECTORY,
    STATE_BACKEND,
    ConfigOption,
    ConfigurationError,
)

if TYPE_CHECKING:
    from snapline.environment import StreamExecutionEnvironment

Duration: TypeAlias = int | dt.timedelta
"""Whole milliseconds, or a timedelta."""
Retention: TypeAlias = Literal["NO_EXTERNALIZED_CHECKPOINTS", "DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION"]

LEAST_INTERVAL_MS = 10


class Checkpointing:
    """What `env.checkpointing` gives: every method sets one thing and returns the object, so that calls can be chained.

    All methods raise ConfigurationError, which names the key and what is allowed, for a value that cannot be.

    >>> import snapline as sl
    >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
    >>> _ = env.checkpointing.interval(1_000).unaligned().directory("/checkpoints").retention("RETAIN_ON_CANCELLATION")
    >>> env.configuration["execution.checkpointing.interval"]
    '1000 ms'
    """

    def __init__(self, environment: StreamExecutionEnvironment) -> None:
        """Take the environment whose settings these are; use `env.checkpointing`."""
        self._environment = environment

    def interval(self, interval: Duration) -> Checkpointing:
        """Begin a checkpoint this often, at least 10 ms apart; without an interval there are no periodic checkpoints.
        Sets `execution.checkpointing.interval`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.interval(5)
        Traceback (most recent call last):
        snapline.dataflow.config.ConfigurationError: execution.checkpointing.interval must be at least 10 ms, got 5
        """
        return self._duration(CHECKPOINTING_INTERVAL, interval, LEAST_INTERVAL_MS)

    def mode(self, mode: Literal["EXACTLY_ONCE", "AT_LEAST_ONCE"]) -> Checkpointing:
        """EXACTLY_ONCE (the default), or AT_LEAST_ONCE, which holds no input back and may process rows twice after a
        failure. Sets `execution.checkpointing.mode`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.mode("AT_LEAST_ONCE")
        """
        return self._set(CHECKPOINTING_MODE, mode)

    def unaligned(self, enabled: bool = True) -> Checkpointing:
        """Let barriers overtake rows that wait, which become part of the snapshot: checkpoints stay fast under
        back-pressure. Sets `execution.checkpointing.unaligned.enabled`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.unaligned().aligned_timeout(500)
        """
        return self._flag(CHECKPOINTING_UNALIGNED, enabled)

    def aligned_timeout(self, timeout: Duration) -> Checkpointing:
        """With unaligned checkpoints: begin aligned, and let a barrier overtake once it is older than this; 0 (the
        default): at once. Sets `execution.checkpointing.aligned-checkpoint-timeout`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.unaligned().aligned_timeout(30_000)
        """
        return self._duration(CHECKPOINTING_ALIGNED_TIMEOUT, timeout)

    def timeout(self, timeout: Duration) -> Checkpointing:
        """Give a checkpoint up that takes longer; 10 minutes by default. Sets `execution.checkpointing.timeout`.

        >>> import datetime, snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.timeout(datetime.timedelta(minutes=2))
        """
        return self._duration(CHECKPOINTING_TIMEOUT, timeout, 1)

    def min_pause(self, pause: Duration) -> Checkpointing:
        """Least time between the end of one checkpoint and the beginning of the next; 0 by default. Sets
        `execution.checkpointing.min-pause`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.interval(1_000).min_pause(200)
        """
        return self._duration(CHECKPOINTING_MIN_PAUSE, pause)

    def max_concurrent(self, checkpoints: int) -> Checkpointing:
        """So many checkpoints may be under way at once, at least 1, which is the default. Sets
        `execution.checkpointing.max-concurrent-checkpoints`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.max_concurrent(2)
        """
        return self._number(CHECKPOINTING_MAX_CONCURRENT, checkpoints, 1)

    def tolerable_failures(self, failures: int) -> Checkpointing:
        """So many checkpoints in a row may fail before the job does; 0 by default, -1: any number. Sets
        `execution.checkpointing.tolerable-failed-checkpoints`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.tolerable_failures(3)
        """
        return self._number(CHECKPOINTING_TOLERABLE_FAILURES, failures, -1)

    def after_tasks_finish(self, enabled: bool = True) -> Checkpointing:
        """Go on taking checkpoints when some tasks have finished, which is the default. Sets
        `execution.checkpointing.checkpoints-after-tasks-finish`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.after_tasks_finish(False)
        """
        return self._flag(CHECKPOINTING_AFTER_TASKS_FINISH, enabled)

    def retention(self, retention: Retention) -> Checkpointing:
        """What becomes of checkpoints when the job is cancelled or fails for good: they go with it
        (NO_EXTERNALIZED_CHECKPOINTS, the default), stay unless it is cancelled (DELETE_ON_CANCELLATION), or stay
        (RETAIN_ON_CANCELLATION). Sets `execution.checkpointing.externalized-checkpoint-retention`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.retention("RETAIN_ON_CANCELLATION")
        """
        return self._set(CHECKPOINTING_RETENTION, retention)

    def retained(self, checkpoints: int) -> Checkpointing:
        """Keep so many completed checkpoints, the newest; 1 by default. Sets `execution.checkpointing.num-retained`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.retained(3)
        """
        return self._number(CHECKPOINTS_NUM_RETAINED, checkpoints, 1)

    def directory(self, directory: str) -> Checkpointing:
        """Base directory of checkpoints: a path that all processes see, or a URL (`s3://`, `gs://`, `az://`,
        `hdfs://`). Sets `execution.checkpointing.dir`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.directory("s3://bucket/checkpoints")
        """
        return self._set(CHECKPOINTS_DIRECTORY, directory)

    def savepoint_directory(self, directory: str) -> Checkpointing:
        """Where savepoints go that are asked for without a directory. Sets `execution.checkpointing.savepoint-dir`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.savepoint_directory("s3://bucket/savepoints")
        """
        return self._set(SAVEPOINT_DIRECTORY, directory)

    def backend(self, backend: Literal["hashmap", "rocksdb"]) -> Checkpointing:
        """Where keyed state lies while the job runs: in memory (hashmap, the default), or in memory and on the local
        disk (rocksdb). Sets `state.backend.type`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.backend("rocksdb").incremental()
        """
        return self._set(STATE_BACKEND, backend)

    def incremental(self, enabled: bool = True) -> Checkpointing:
        """Write only what has changed since the last checkpoint; off by default. Sets
        `execution.checkpointing.incremental`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.incremental()
        """
        return self._flag(INCREMENTAL_CHECKPOINTS, enabled)

    def local_recovery(self, enabled: bool = True) -> Checkpointing:
        """Keep a copy of each checkpoint's state on the TaskManagers' own disks and restore from there what is there;
        off by default. Sets `execution.state-recovery.from-local`.

        >>> import snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.checkpointing.local_recovery()
        """
        return self._flag(LOCAL_RECOVERY, enabled)

    # --- inner --------------------------------------------------------------------------------------------------------

    def _set(self, option: ConfigOption[Any], value: str) -> Checkpointing:
        if not isinstance(value, str):
            raise ConfigurationError(f"{option.key} is a text, got {value!r}")
        option.read(value)
        self._environment.configure(option.key, value)
        return self

    def _flag(self, option: ConfigOption[bool], value: bool) -> Checkpointing:
        if not isinstance(value, bool):
            raise ConfigurationError(f"{option.key} is True or False, got {value!r}")
        self._environment.configure(option.key, value)
        return self

    def _number(self, option: ConfigOption[int], value: int, at_least: int) -> Checkpointing:
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise ConfigurationError(f"{option.key} must be a whole number, at least {at_least}, got {value!r}")
        self._environment.configure(option.key, value)
        return self

    def _duration(self, option: ConfigOption[int], value: Duration, at_least: int = 0) -> Checkpointing:
        ms = value // dt.timedelta(milliseconds=1) if isinstance(value, dt.timedelta) else value
        if not isinstance(ms, int) or isinstance(ms, bool):
            raise ConfigurationError(f"{option.key} is whole milliseconds or a timedelta, got {value!r}")
        if ms < at_least:
            raise ConfigurationError(f"{option.key} must be at least {at_least} ms, got {value}")
        self._environment.configure(option.key, f"{ms} ms")
        return self
