"""Look-ups of keys of Redis, for `DataStream.async_wait`: a row gets the fields of a hash, or a string, by its key.

Decides that keys are asked for many at a time, that answers are kept for a bounded time, and what is a server that is
away (asked again, if a retry strategy says so). It does not know batches and checkpoints: rows under way are the
operator's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pyarrow as pa

from snapline.connectors.files.filesystems import first_line
from snapline.connectors.lookups.answers import Found, KeptAnswers
from snapline.connectors.lookups.waiting_keys import WaitingKeys
from snapline.connectors.redis.redis_connection import connect, is_away, library, refused
from snapline.dataflow.api.function_contexts import Row, RuntimeContext
from snapline.dataflow.api.functions import AsyncFunction
from snapline.dataflow.errors import ConnectorError


class RedisAway(ConnectorError):
    """The server does not answer, or has ended what was under way."""


class RedisLookup(AsyncFunction):
    """Adds fields of a hash, or a string, to each row, found by a key.

    >>> shops = sl_connectors.RedisLookup(
    ...     "shop", url="redis://cache:6379/0", prefix="shop:", columns={"town": pa.string(), "rent": pa.float64()}
    ... )
    >>> shops.described
    'RedisLookup shop:*'
    >>> shops.result_schema(orders.schema).names[-2:]
    ['town', 'rent']
    >>> retry = sl.AsyncRetryStrategy.exponential_backoff(8, 100, 5_000, retry_if_exception=shops.is_away)
    >>> _ = orders.async_wait(shops, retry=retry, uid="towns-of-shops")
    >>> shops.is_away(ValueError("not the server's"))
    False
    """

    def __init__(
        self,
        on: str,
        *,
        url: str,
        columns: Mapping[str, pa.DataType],
        prefix: str = "",
        value: Literal["hash", "string"] = "hash",
        how: Literal["left", "inner"] = "left",
        cache_keys: int = 10_000,
        cache_ms: int = 60_000,
        cache_absent_ms: int | None = None,
        connections: int = 2,
        batch_keys: int = 200,
        query_timeout_ms: int = 10_000,
    ) -> None:
        """`on`: the column whose text, behind `prefix`, is the key. `columns`: fields of the hash and the types that
        their texts are read as, or the one column that the string becomes (`value="string"`). `how`, `cache_keys`,
        `cache_ms`, `cache_absent_ms`, `connections`, `batch_keys`, `query_timeout_ms`: as for `PostgresLookup`. Raises
        ConnectorError for what makes no sense."""
        self.on = on
        self.url = url
        self.columns: dict[str, pa.DataType] = dict(columns)
        self.prefix = prefix
        self.value = value
        self.how = how
        if how not in ("left", "inner"):
            raise ConnectorError(f"{self.described}: how is left or inner, not {how!r}")
        if value not in ("hash", "string"):
            raise ConnectorError(f"{self.described}: value is hash or string, not {value!r}")
        if not columns or (value == "string" and len(columns) > 1):
            raise ConnectorError(
                f"{self.described}: give at least one column in columns=, and one alone for value='string'"
            )
        absent_ms = cache_ms if cache_absent_ms is None else cache_absent_ms
        for name, number, least in (
            ("cache_keys", cache_keys, 0), ("cache_ms", cache_ms, 0), ("cache_absent_ms", absent_ms, 0),
            ("connections", connections, 1), ("batch_keys", batch_keys, 1), ("query_timeout_ms", query_timeout_ms, 1),
        ):  # fmt: skip
            if number < least:
                raise ConnectorError(f"{self.described}: {name} must be at least {least}, got {number}")
        self.cache_keys = cache_keys
        self.cache_ms = cache_ms
        self.cache_absent_ms: int = absent_ms
        self.connections = connections
        self.batch_keys = batch_keys
        self.query_timeout_ms = query_timeout_ms

    @property
    def described(self) -> str:
        """Return the keys, as errors name them."""
        return f"RedisLookup {self.prefix}*"

    @staticmethod
    def is_away(error: BaseException) -> bool:
        """Whether the server did not answer, so that another attempt may help: for `retry_if_exception` of a retry
        strategy."""
        return isinstance(error, RedisAway)

    def result_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        """Return the rows' columns and those that are added; None where the rows' are not known. Raises ConnectorError
        for names that cannot be."""
        connect(self.url, self.query_timeout_ms, self.described).close()
        if schema is None:
            return None
        if self.on not in schema.names:
            raise ConnectorError(
                f"{self.described}: on= names {self.on!r}, and the rows have {', '.join(schema.names)}"
            )
        if twice := sorted(set(self.columns) & set(schema.names)):
            raise ConnectorError(f"{self.described}: the rows have a column {twice[0]!r} already")
        return pa.schema([*schema, *self.columns.items()])

    def open(self, context: RuntimeContext) -> None:
        """Begin with nothing known and no connection."""
        self._hits = context.metrics.counter("lookup_hits")
        self._misses = context.metrics.counter("lookup_misses")
        self._absent = context.metrics.counter("lookup_absent")
        self._queries = context.metrics.counter("lookup_queries")
        self._errors = context.metrics.counter("lookup_errors")
        self._kept = KeptAnswers(self.cache_keys, self.cache_ms, self.cache_absent_ms)
        self._keys = WaitingKeys(self._ask, self.connections, self.batch_keys)
        self._client: Any = connect(self.url, self.query_timeout_ms, self.described)
        self._threads = ThreadPoolExecutor(self.connections, thread_name_prefix="redis-lookup")
        """Threads wait for the server, because the library has no client that can be closed after its event loop."""

    async def async_invoke(self, row: Row) -> Iterable[Row]:
        """Answer from what is kept, or wait for the server."""
        key = row[self.on]
        if key is None:
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
        raise RedisAway(
            f"{self.described}: no answer for {self.on}={row[self.on]!r} within timeout_ms of async_wait; raise it, or see why the server "
            "is slow"
        )

    def close(self) -> None:
        """Wait for the questions that are under way, and close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._client.close()

    def _joined(self, row: Row, found: Found) -> list[Row]:
        if not found:
            return [{**row, **dict.fromkeys(self.columns)}] if self.how == "left" else []
        return [{**row, **columns} for columns in found]

    async def _ask(self, _: int, keys: Sequence[Any]) -> Mapping[Any, Found]:
        """Ask the server for all of these keys."""
        self._queries.inc()
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            name = self.prefix.encode() + (key if isinstance(key, bytes) else str(key).encode())
            if self.value == "hash":
                pipeline.hmget(name, list(self.columns))
            else:
                pipeline.get(name)
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._threads, pipeline.execute)
        except library().RedisError as error:
            self._errors.inc()
            line = refused(self.described, self.url, error)
            raise (RedisAway(str(line)) if is_away(error) else line) from error
        now_ms, found = _now_ms(), {}
        for key, row in zip(keys, self._read(keys, answers), strict=True):
            found[key] = row
            self._kept.put(key, row, now_ms)
        self._absent.inc(sum(not row for row in found.values()))
        return found

    def _read(self, keys: Sequence[Any], answers: Sequence[Any]) -> list[Found]:
        """The rows of keys. Raises ConnectorError for a text that is no value of its type."""
        given = [answer if self.value == "hash" else [answer] for answer in answers]
        columns = []
        for place, (name, kind) in enumerate(self.columns.items()):
            raw = pa.array([values[place] for values in given], pa.binary())
            try:
                columns.append((raw if kind == pa.binary() else raw.cast(pa.string()).cast(kind)).to_pylist())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ConnectorError(
                    f"{self.described}: {name!r} of one of {len(keys)} keys is no {kind}: {first_line(error)}; correct the value, or its type "
                    "in columns="
                ) from error
        rows = zip(*columns, strict=True)
        return [
            [dict(zip(self.columns, row, strict=True))] if any(each is not None for each in values) else []
            for row, values in zip(rows, given, strict=True)
        ]


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
