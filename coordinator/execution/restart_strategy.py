"""Restart strategies: whether to try again after a failure, and when.

Each strategy is told of every failure that counts (`notify_failure`) and answers with the pause before the restart, or
None to give up. Does not know what failed; a failure that must not be retried never gets here. Mirrors Flink's
NoRestartBackoffTimeStrategy, FixedDelay..., FailureRate... and ExponentialDelayRestartBackoffTimeStrategy; random
numbers come in as a function.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from snapline.dataflow.config import (
    CHECKPOINTING_INTERVAL,
    RESTART_EXPONENTIAL_ATTEMPTS,
    RESTART_EXPONENTIAL_INITIAL,
    RESTART_EXPONENTIAL_JITTER,
    RESTART_EXPONENTIAL_MAX,
    RESTART_EXPONENTIAL_MULTIPLIER,
    RESTART_EXPONENTIAL_RESET,
    RESTART_FAILURE_RATE_DELAY,
    RESTART_FAILURE_RATE_INTERVAL,
    RESTART_FAILURE_RATE_MAX,
    RESTART_FIXED_DELAY_ATTEMPTS,
    RESTART_FIXED_DELAY_DELAY,
    RESTART_STRATEGY,
    Configuration,
    ConfigurationError,
)

DEPLOYED_AGAIN_MAX = 3
"""So often a job without checkpoints is deployed again whose tasks were lost before they ran."""

FAR_BEYOND = 1_000
"""Times the longest pause: jitter below 1 takes nothing of that back, so that the pause is the longest one."""


class RestartStrategy(Protocol):
    """What the scheduler asks after a failure."""

    def notify_failure(self, now_ms: int) -> int | None:
        """A failure that counts: milliseconds until the restart, None when the job is to fail."""
        ...

    @property
    def why_not(self) -> str:
        """For the failure of the job: what was exhausted."""
        ...

    @property
    def begins_attempt(self) -> bool:
        """Whether the last failure has a restart of its own, and does not share that of the one before."""
        ...


@dataclass(slots=True)
class NoRestartStrategy:
    """Never restarts the job: its first failure ends it."""

    chosen: bool = True
    """False: nobody has set it."""
    _deployed_again: int = 0
    begins_attempt: bool = True

    def deploys_again(self) -> bool:
        """Whether tasks that were lost before any of them had read anything are deployed once more, which repeats and
        loses nothing: so many times, and not where somebody has said that nothing is to be restarted."""
        if self.chosen or self._deployed_again >= DEPLOYED_AGAIN_MAX:
            return False
        self._deployed_again += 1
        return True

    def notify_failure(self, now_ms: int) -> int | None:
        """Return None, because the job is never restarted."""
        return None

    @property
    def why_not(self) -> str:
        """Return which setting says that the job is not restarted."""
        if self.chosen:
            return "restart-strategy.type is none"
        return "restart-strategy.type is not set, and without execution.checkpointing.interval there is none"


@dataclass(slots=True)
class FixedDelayRestartStrategy:
    """So many times, each after the same pause."""

    attempts: int
    delay_ms: int
    _restarts: int = 0
    begins_attempt: bool = True

    def notify_failure(self, now_ms: int) -> int | None:
        """The pause, until the attempts are used up."""
        if self._restarts >= self.attempts:
            return None
        self._restarts += 1
        return self.delay_ms

    @property
    def why_not(self) -> str:
        """Return which setting allows no further restart."""
        return f"all {self.attempts} restarts of restart-strategy.fixed-delay.attempts are used up"


@dataclass(slots=True)
class FailureRateRestartStrategy:
    """As long as at most `max_failures` failures fall into any interval."""

    max_failures: int
    interval_ms: int
    delay_ms: int
    _failures_ms: deque[int] = field(default_factory=deque)
    begins_attempt: bool = True

    def notify_failure(self, now_ms: int) -> int | None:
        """The pause, None when there were more failures than allowed within the interval."""
        self._failures_ms.append(now_ms)
        if len(self._failures_ms) <= self.max_failures:
            return self.delay_ms
        return self.delay_ms if now_ms - self._failures_ms.popleft() > self.interval_ms else None

    @property
    def why_not(self) -> str:
        """Return which setting allows no further restart."""
        return (
            f"more than {self.max_failures} failures (restart-strategy.failure-rate.max-failures-per-interval) "
            f"within {self.interval_ms} ms"
        )


@dataclass(slots=True)
class ExponentialDelayRestartStrategy:
    """Pauses that grow, with jitter, until the job stayed up for `reset_threshold_ms`; so many restarts in between.

    A failure that comes while the pause of the last one is not over is the same attempt.
    """

    initial_backoff_ms: int
    max_backoff_ms: int
    multiplier: float
    jitter_factor: float
    reset_threshold_ms: int
    attempts_before_reset: int
    """Restarts in a row that are allowed; -1 allows any number."""
    jitter: Callable[[], float]
    """Returns a number drawn uniformly from [0, 1), by which delays vary."""
    _attempt: int = 0
    _next_restart_ms: int = -1
    begins_attempt: bool = True

    def notify_failure(self, now_ms: int) -> int | None:
        """The pause, None when there were too many restarts without a quiet `reset_threshold_ms`."""
        self.begins_attempt = not self._attempt or now_ms > self._next_restart_ms
        if not self.begins_attempt:
            return self._next_restart_ms - now_ms
        if self._attempt and now_ms - self._next_restart_ms >= self.reset_threshold_ms:
            self._attempt = 0
        if self.attempts_before_reset != -1 and self._attempt >= self.attempts_before_reset:
            return None
        self._attempt += 1
        backoff_ms = self._backoff_ms()
        self._next_restart_ms = now_ms + backoff_ms
        return backoff_ms

    def _backoff_ms(self) -> int:
        backoff = float(self.initial_backoff_ms)
        for _ in range(self._attempt - 1):
            backoff *= self.multiplier
            if backoff >= FAR_BEYOND * self.max_backoff_ms:  # a power would overflow after many attempts
                break
        jittered = backoff + (2.0 * self.jitter() - 1.0) * backoff * self.jitter_factor
        return max(self.initial_backoff_ms, min(round(jittered), self.max_backoff_ms))

    @property
    def why_not(self) -> str:
        """Return which setting allows no further restart."""
        return (
            f"{self.attempts_before_reset} restarts (restart-strategy.exponential-delay.attempts-before-reset-backoff) "
            f"without {self.reset_threshold_ms} ms of peace in between"
        )


def restart_strategy_of(configuration: Configuration, jitter: Callable[[], float]) -> RestartStrategy:
    """The strategy that `restart-strategy.*` asks for. Raises ConfigurationError for values that cannot work."""
    kind = configuration.get_option(RESTART_STRATEGY)
    if kind == "none":
        return NoRestartStrategy()
    if RESTART_STRATEGY.key not in configuration and configuration.get_option(CHECKPOINTING_INTERVAL) <= 0:
        return NoRestartStrategy(chosen=False)
    if kind == "fixed-delay":
        return FixedDelayRestartStrategy(
            configuration.get_option(RESTART_FIXED_DELAY_ATTEMPTS), configuration.get_option(RESTART_FIXED_DELAY_DELAY)
        )
    if kind == "failure-rate":
        return FailureRateRestartStrategy(
            configuration.get_option(RESTART_FAILURE_RATE_MAX),
            configuration.get_option(RESTART_FAILURE_RATE_INTERVAL),
            configuration.get_option(RESTART_FAILURE_RATE_DELAY),
        )
    multiplier = configuration.get_option(RESTART_EXPONENTIAL_MULTIPLIER)
    initial = configuration.get_option(RESTART_EXPONENTIAL_INITIAL)
    maximum = configuration.get_option(RESTART_EXPONENTIAL_MAX)
    jitter_factor = configuration.get_option(RESTART_EXPONENTIAL_JITTER)
    if multiplier < 1.0:
        raise ConfigurationError(f"{RESTART_EXPONENTIAL_MULTIPLIER.key} = {multiplier}: must be at least 1")
    if maximum < initial:
        raise ConfigurationError(
            f"{RESTART_EXPONENTIAL_MAX.key} = {maximum} ms is below {RESTART_EXPONENTIAL_INITIAL.key} = {initial} ms"
        )
    if not 0.0 <= jitter_factor <= 1.0:
        raise ConfigurationError(f"{RESTART_EXPONENTIAL_JITTER.key} = {jitter_factor}: must be between 0 and 1")
    return ExponentialDelayRestartStrategy(
        initial_backoff_ms=initial,
        max_backoff_ms=maximum,
        multiplier=multiplier,
        jitter_factor=jitter_factor,
        reset_threshold_ms=configuration.get_option(RESTART_EXPONENTIAL_RESET),
        attempts_before_reset=configuration.get_option(RESTART_EXPONENTIAL_ATTEMPTS),
        jitter=jitter,
    )
