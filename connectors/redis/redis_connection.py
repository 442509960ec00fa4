"""How a server of Redis is reached, and what its refusals mean; Valkey and others that speak its protocol are the same.

Decides that passwords stand in no message, and the one line for each way in which the server, or the way to it, fails.
It sends nothing by itself.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from snapline.connectors.files.filesystems import first_line
from snapline.connectors.texts_of_values import texts_of_values
from snapline.dataflow.errors import ConnectorError


def library() -> Any:
    """The redis library. Raises ConnectorError that says how to get it."""
    try:
        import redis
    except ImportError as error:
        raise ConnectorError("Redis needs redis: pip install 'snapline[redis]'") from error
    return redis


def connect(url: str, timeout_ms: int, what: str) -> Any:
    """A client that connects when it is used first. Raises ConnectorError for a URL that cannot be."""
    try:
        seconds = timeout_ms / 1000
        if "@" in urlsplit(url).path and not url.startswith("unix:"):
            raise ValueError("the path of the URL has the end of a password in it")
        return library().Redis.from_url(url, socket_timeout=seconds, socket_connect_timeout=seconds)
    except ValueError as error:
        said = first_line(error)  # the library's own lines speak of the URL, and Python's show a part of it
        raise ConnectorError(
            f"{what}: {said if 'URL' in said else 'url= cannot be read'}; write url='redis://host:6379/0', with letters such as / # ? in a "
            "password as %2F %23 %3F"
        ) from None


def place_of(url: str) -> str:
    """Host, port and database for people, without the password."""
    parts = urlsplit(url)
    return f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"


def failures() -> tuple[type[Exception], ...]:
    """What the library raises for what the server says and for the way to it. Answers that are not of the protocol,
    which it does not look at closely, are errors of Python."""
    return (library().RedisError, ValueError, TypeError, AttributeError, LookupError, RecursionError)


def is_away(error: BaseException) -> bool:
    """Whether the server did not answer, so that another attempt may help. A WatchError is what the library makes of a
    connection that is lost while a key is watched."""
    redis = library().exceptions
    refusals = (redis.AuthenticationError, redis.AuthorizationError)
    away = (redis.ConnectionError, redis.TimeoutError, redis.WatchError)
    return isinstance(error, away) and not isinstance(error, refusals)


def refused(what: str, url: str, error: BaseException) -> ConnectorError:
    """Say in one line what the server, or the way to it, has against what was asked."""
    said = first_line(error)
    where = f"{what}: Redis at {place_of(url)}"
    if not isinstance(error, library().RedisError):
        return ConnectorError(f"{where} answers what is not Redis' protocol ({said}); check the address in url=")
    if any(word in said for word in ("WRONGPASS", "NOAUTH", "invalid username-password", "Authentication", "NOPERM")):
        return ConnectorError(f"{where} refuses the user ({said}); correct user and password in url=, or its rights")
    if "WRONGTYPE" in said:
        return ConnectorError(f"{where}: {said}; a key has a value of another kind: give another prefix=, or delete it")
    if "MOVED" in said or "CROSSSLOT" in said:
        return ConnectorError(
            f"{where} is a cluster ({said}), which is not supported; name a single server or its primary"
        )
    if "OOM" in said:
        return ConnectorError(f"{where}: {said}; raise maxmemory, or let keys expire")
    if "READONLY" in said:
        return ConnectorError(f"{where} is a replica ({said}); name the primary")
    if is_away(error):
        return ConnectorError(f"{where} does not answer ({said}); check the address, and that it runs")
    return ConnectorError(f"{where}: {said}")


def texts(batch: pa.RecordBatch, name: str, what: str) -> list[bytes | None]:
    """The values of a column as bytes: bytes as they are, all else as text; null stays null. Raises ConnectorError for
    a column that is not there, or has no text."""
    if name not in batch.schema.names:
        raise ConnectorError(f"{what}: the rows have no column {name!r} but {', '.join(batch.schema.names)}")
    return texts_of_values(batch.column(name), f"{what}: column {name!r}")
