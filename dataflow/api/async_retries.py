"""When a request of an AsyncFunction is made again: after which failures or answers, how often, and after how long.

Mirrors Flink's AsyncRetryStrategy, AsyncRetryStrategies and AsyncRetryPredicate in one class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from snapline.dataflow.api.async_methods import is_async
from snapline.dataflow.errors import InvalidArgument


def _is_any(_: BaseException) -> bool:
    """The default: any exception may pass."""
    return True


@dataclass(frozen=True, slots=True)
class AsyncRetryStrategy:
    """Ask again, for `DataStream.async_wait(retry=...)`.

    A request is made `max_attempts` times at most, the first one included; its `timeout_ms` counts from the first to
    the last. What the last attempt raised fails the job, and what it answered leaves as it is. How often a request has
    failed is in checkpoints. Raises InvalidArgument for numbers that make no sense.

    >>> retry = sl.AsyncRetryStrategy.fixed_delay(max_attempts=3, delay_ms=500)
    >>> retry.delay_after(1), retry.delay_after(2)
    (500, 500)
    >>> def is_busy(error):
    ...     return "busy" in str(error)
    >>> def is_empty(rows):
    ...     return not rows
    >>> slower = sl.AsyncRetryStrategy.exponential_backoff(
    ...     max_attempts=5, initial_delay_ms=100, max_delay_ms=1_000, retry_if_exception=is_busy, retry_if_result=is_empty
    ... )
    >>> [slower.delay_after(failures) for failures in (1, 2, 3, 4, 5)]
    [100, 200, 400, 800, 1000]
    >>> slower.should_retry(1, ValueError("busy"), None), slower.should_retry(5, None, []), slower.should_retry(1, None, [{}])
    (True, False, False)
    >>> class Lookup(sl.AsyncFunction):
    ...     async def async_invoke(self, row):
    ...         return [row]
    >>> _ = orders.async_wait(Lookup(), retry=retry, uid="lookup", schema=orders.schema)
    """

    max_attempts: int
    initial_delay_ms: int
    multiplier: float = 1.0
    max_delay_ms: int = 0
    """The longest delay; 0 is no bound."""
    retry_if_exception: Callable[[BaseException], bool] = _is_any
    retry_if_result: Callable[[Sequence[dict[str, Any]]], bool] | None = None
    """None: every answer is one."""

    def __post_init__(self) -> None:
        """Raises InvalidArgument for numbers that make no sense and predicates that cannot be called."""
        for name, least in (("max_attempts", 1), ("initial_delay_ms", 0), ("max_delay_ms", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidArgument(
                    f"{name} of a retry strategy is a whole number of at least {least}, got {value!r}"
                )
        if not isinstance(self.multiplier, (int, float)) or not self.multiplier >= 1:
            raise InvalidArgument(f"multiplier of a retry strategy is a number of at least 1, got {self.multiplier!r}")
        for name in ("retry_if_exception", "retry_if_result"):
            value = getattr(self, name)
            is_absent = name == "retry_if_result" and value is None
            if not is_absent and (not callable(value) or is_async(value)):
                raise InvalidArgument(
                    f"{name} of a retry strategy is a function, no `async def`, that says whether to ask again, got {value!r}"
                )

    @classmethod
    def fixed_delay(
        cls,
        max_attempts: int,
        delay_ms: int,
        *,
        retry_if_exception: Callable[[BaseException], bool] = _is_any,
        retry_if_result: Callable[[Sequence[dict[str, Any]]], bool] | None = None,
    ) -> AsyncRetryStrategy:
        """Ask again after the same time (Flink: FixedDelayRetryStrategyBuilder)."""
        return cls(max_attempts, delay_ms, retry_if_exception=retry_if_exception, retry_if_result=retry_if_result)

    @classmethod
    def exponential_backoff(
        cls,
        max_attempts: int,
        initial_delay_ms: int,
        max_delay_ms: int,
        multiplier: float = 2.0,
        *,
        retry_if_exception: Callable[[BaseException], bool] = _is_any,
        retry_if_result: Callable[[Sequence[dict[str, Any]]], bool] | None = None,
    ) -> AsyncRetryStrategy:
        """Ask again after ever longer times (Flink: ExponentialBackoffDelayRetryStrategyBuilder)."""
        return cls(max_attempts, initial_delay_ms, multiplier, max_delay_ms, retry_if_exception, retry_if_result)

    def delay_after(self, failures: int) -> int:
        """How long to wait after so many failures, in milliseconds."""
        limit = self.max_delay_ms or 2**53
        delay: float = self.initial_delay_ms
        for _ in range(failures - 1):
            delay = min(delay * self.multiplier, limit)
            if delay == limit:
                break
        return int(min(delay, limit))

    def should_retry(self, failures: int, error: BaseException | None, rows: Sequence[dict[str, Any]] | None) -> bool:
        """Whether a request that has failed so often (this time included) is made again."""
        if failures >= self.max_attempts:
            return False
        if error is not None:
            return bool(self.retry_if_exception(error))
        return self.retry_if_result is not None and bool(self.retry_if_result(rows or []))
