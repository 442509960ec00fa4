"""Look-ups of keys of Redis, for `DataStream.async_wait`: a row gets the fields of a hash, or a string, by its key.

Decides that keys are asked for many at a time, that answers are kept for a bounded time, and what is a server that is
away (asked again, if a retry strategy says so). It does not know batches and checkpoints: rows under way are the
operator's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pyarrow as pa

from snapline.connectors.files.filesystems import first_line
from snapline.connectors.formats.row_format import has_narrow_floats, require_narrow_floats
from snapline.connectors.lookups.answers import Found
from snapline.connectors.lookups.service_lookup import Key, ServiceAway, ServiceLookup
from snapline.connectors.redis.redis_connection import connect, failures, is_away, refused
from snapline.connectors.texts_of_values import texts_of_values
from snapline.dataflow.api.function_contexts import RuntimeContext
from snapline.dataflow.errors import ConnectorError


class RedisLookup(ServiceLookup):
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
        self.key_type: pa.DataType | None = None
        """That of the rows' column, once it is known."""
        super().__init__(
            [on], columns, how=how, cache_keys=cache_keys, cache_ms=cache_ms,
            cache_absent_ms=cache_absent_ms, connections=connections, batch_keys=batch_keys, query_timeout_ms=query_timeout_ms,
        )  # fmt: skip
        if value not in ("hash", "string"):
            raise ConnectorError(f"{self.described}: value is hash or string, not {value!r}")
        if not columns or (value == "string" and len(columns) > 1):
            raise ConnectorError(
                f"{self.described}: give at least one column in columns=, and one alone for value='string'"
            )

    @property
    def described(self) -> str:
        """Return the keys, as errors name them."""
        return f"RedisLookup {self.prefix}*"

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
        self.key_type = schema.field(self.on).type
        if pa.types.is_nested(self.key_type) or pa.types.is_duration(self.key_type):
            raise ConnectorError(f"{self.described}: on= names {self.on!r}, which is {self.key_type}; make it a text")
        if twice := sorted(set(self.columns) & set(schema.names)):
            raise ConnectorError(f"{self.described}: the rows have a column {twice[0]!r} already")
        return pa.schema([*schema, *self.columns.items()])

    def open(self, context: RuntimeContext) -> None:
        """Begin with nothing known and no connection."""
        super().open(context)
        self._client: Any = connect(self.url, self.query_timeout_ms, self.described)
        self._threads = ThreadPoolExecutor(self.connections, thread_name_prefix="redis-lookup")
        """Threads wait for the server, because the library has no client that can be closed after its event loop."""

    def close(self) -> None:
        """Wait for the questions that are under way, and close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._client.close()

    async def _found_for(self, worker: int, keys: Sequence[Key]) -> Mapping[Key, Found]:
        """Ask the server for all of these keys together."""
        pipeline = self._client.pipeline(transaction=False)
        for text in self._texts([key for (key,) in keys]):
            name = self.prefix.encode() + text
            if self.value == "hash":
                pipeline.hmget(name, list(self.columns))
            else:
                pipeline.get(name)
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._threads, pipeline.execute)
        except failures() as error:
            line = refused(self.described, self.url, error)
            raise (ServiceAway(str(line)) if is_away(error) else line) from error
        return dict(zip(keys, self._read(keys, answers), strict=True))

    def _texts(self, keys: Sequence[Any]) -> list[bytes]:
        """The keys as `RedisSink` writes them, which for truth values, floats and times is not as Python does."""
        column = pa.array(keys, self.key_type)
        return [text or b"" for text in texts_of_values(column, f"{self.described}: column {self.on!r}")]

    def _read(self, keys: Sequence[Key], answers: Sequence[Any]) -> list[Found]:
        """The rows of keys. Raises ConnectorError for a text that is no value of its type."""
        given = [answer if self.value == "hash" else [answer] for answer in answers]
        if any(not isinstance(each, list) or len(each) != len(self.columns) for each in given):
            raise ConnectorError(
                f"{self.described}: the server has not answered with a value for each of {', '.join(self.columns)}; check that url= names "
                "a Redis"
            )
        columns = []
        for place, (name, kind) in enumerate(self.columns.items()):
            try:
                raw = pa.array([values[place] for values in given], pa.binary())
                found = pa.table({name: raw if kind == pa.binary() else raw.cast(pa.string()).cast(kind)})
                if has_narrow_floats(kind):
                    require_narrow_floats(found, pa.table({name: raw.cast(pa.string())}).cast)
                columns.append(found.column(name).to_pylist())
            except (ValueError, TypeError, OverflowError, pa.ArrowNotImplementedError) as error:
                raise ConnectorError(
                    f"{self.described}: {name!r} of one of {len(keys)} keys is no {kind}: {first_line(error)}; correct the value, or its type "
                    "in columns="
                ) from error
        rows = zip(*columns, strict=True)
        return [
            [dict(zip(self.columns, row, strict=True))] if any(each is not None for each in values) else []
            for row, values in zip(rows, given, strict=True)
        ]
