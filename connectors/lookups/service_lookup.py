"""What look-ups of keys in a service share, for `DataStream.async_wait`: a row gets columns that the service has for
its key.

Decides that keys are asked for many at a time, that answers are kept for a bounded time, also those of keys without
rows, and that a row without a match gets nulls or is left out. It does not know the service, which says what a row's
key is and what it has for keys, nor batches and checkpoints: rows under way are the operator's.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from snapline.connectors.lookups.answers import Found, KeptAnswers
from snapline.connectors.lookups.waiting_keys import WaitingKeys
from snapline.connectors.whole_numbers import require_not_negative, require_positive
from snapline.dataflow.api.function_contexts import Row, RuntimeContext
from snapline.dataflow.api.functions import AsyncFunction
from snapline.dataflow.errors import ConnectorError

Key = tuple[Any, ...]
"""The values of a key's columns."""


class ServiceAway(ConnectorError):
    """The server does not answer, or has ended what was under way."""


class ServiceLookup(AsyncFunction):
    """Adds columns to each row, found by a key; a subclass asks the service."""

    def __init__(
        self, key_columns: Iterable[str], added_columns: Iterable[str], *, how: Literal["left", "inner"],
        cache_keys: int, cache_ms: int, cache_absent_ms: int | None, connections: int, batch_keys: int,
        query_timeout_ms: int,
    ) -> None:  # fmt: skip
        """`key_columns` of the rows, whose values are the key; `added_columns`: names of what rows get. Raises
        ConnectorError for what makes no sense; `described` must be known by then."""
        self._key_columns = tuple(key_columns)
        self._added_columns = tuple(added_columns)
        if how not in ("left", "inner"):
            raise ConnectorError(f"{self.described}: how is left or inner, not {how!r}")
        absent_ms = cache_ms if cache_absent_ms is None else cache_absent_ms
        require_not_negative(self.described, cache_keys=cache_keys, cache_ms=cache_ms, cache_absent_ms=absent_ms)
        require_positive(
            self.described, connections=connections, batch_keys=batch_keys, query_timeout_ms=query_timeout_ms
        )
        self.how: Literal["left", "inner"] = how
        self.cache_keys = cache_keys
        self.cache_ms = cache_ms
        self.cache_absent_ms: int = absent_ms
        self.connections = connections
        self.batch_keys = batch_keys
        self.query_timeout_ms = query_timeout_ms

    @property
    @abstractmethod
    def described(self) -> str:
        """Return what is looked into, as errors name it."""

    @abstractmethod
    async def _found_for(self, worker: int, keys: Sequence[Key]) -> Mapping[Key, Found]:
        """Ask the service for what it has for each of these keys, none of which has a null. Raises ServiceAway where
        another attempt may help, and ConnectorError for what is wrong."""

    @staticmethod
    def is_away(error: BaseException) -> bool:
        """Whether the server did not answer, so that another attempt may help: for `retry_if_exception` of a retry
        strategy."""
        return isinstance(error, ServiceAway)

    def open(self, context: RuntimeContext) -> None:
        """Begin with nothing known, and ask nobody yet."""
        self._hits = context.metrics.counter("lookup_hits")
        self._misses = context.metrics.counter("lookup_misses")
        self._absent = context.metrics.counter("lookup_absent")
        self._queries = context.metrics.counter("lookup_queries")
        self._errors = context.metrics.counter("lookup_errors")
        self._kept = KeptAnswers(self.cache_keys, self.cache_ms, self.cache_absent_ms)
        self._keys = WaitingKeys(self._ask, self.connections, self.batch_keys)

    async def async_invoke(self, row: Row) -> Iterable[Row]:
        """Answer from what is kept, or wait for the server."""
        key = tuple(row[column] for column in self._key_columns)
        if None in key:  # as in SQL, where null equals nothing
            return self._joined(row, ())
        found = self._kept.get(key, _now_ms())
        if found is None:
            self._misses.inc()
            found = await self._keys.answer(key)
        else:
            self._hits.inc()
        return self._joined(row, found)

    def timeout(self, row: Row) -> Iterable[Row] | None:
        """Fail the job, in one line that names the key."""
        key = ", ".join(f"{column}={row[column]!r}" for column in self._key_columns)
        raise ServiceAway(
            f"{self.described}: no answer for {key} within timeout_ms of async_wait; raise it, or see why the server is "
            "slow"
        )

    def _joined(self, row: Row, found: Found) -> list[Row]:
        if not found and self.how == "left":
            return [{**row, **dict.fromkeys(self._added_columns)}]
        return [{**row, **columns} for columns in found]

    async def _ask(self, worker: int, keys: Sequence[Key]) -> Mapping[Key, Found]:
        self._queries.inc()
        try:
            found = await self._found_for(worker, keys)
        except ConnectorError:
            self._errors.inc()
            raise
        now_ms = _now_ms()
        for key, answer in found.items():
            self._kept.put(key, answer, now_ms)
        self._absent.inc(sum(not answer for answer in found.values()))
        return found


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
