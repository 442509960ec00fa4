"""Answers that are not those of a Redis, and values that the types of a look-up do not have."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from snapline.connectors import RedisLookup, RedisSink
from snapline.dataflow.api.connector_api import Committable
from snapline.dataflow.errors import ConnectorError
from tests.services.answering import answering
from tests.unit.connectors.parquet.places import Place

COMMAND = re.compile(rb"\*\d+\r\n\$\d+\r\n(\w+)")
GREETINGS = {b"HELLO": b"%1\r\n+proto\r\n:3\r\n", b"CLIENT": b"+OK\r\n"}
Serve = Callable[[dict[bytes, bytes]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start what answers each command with these bytes, and return its address."""
    with contextlib.ExitStack() as running:

        def start(answers: dict[bytes, bytes]) -> str:
            def answer(connection: socket.socket) -> None:
                while said := connection.recv(65_536):
                    for command in COMMAND.findall(said):
                        connection.sendall({**GREETINGS, **answers}[command])

            return f"redis://127.0.0.1:{running.enter_context(answering(answer))}"

        yield start


def look_up(url: str, kind: pa.DataType | None = None, value: Any = "string") -> Any:
    """The value that a look-up gives a row."""
    lookup = RedisLookup("k", url=url, columns={"v": kind or pa.string()}, value=value)
    lookup.result_schema(pa.schema([("k", pa.string())]))
    lookup.open(Place())  # type: ignore[arg-type]  # has the metrics

    async def ask() -> Any:
        try:
            return (await lookup._found_for(0, [("a",)]))["a",][0]["v"]
        finally:
            lookup.close()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({b"HELLO": b"$1\r\na\r\n"}, "answers what is not Redis' protocol"),
        ({b"GET": b"$abc\r\n"}, "answers what is not Redis' protocol .*; check the address in url="),
        ({b"GET": b"-MOVED\r\n"}, "answers what is not Redis' protocol"),
        ({b"GET": b"*1\r\n" * 10_000}, "answers what is not Redis' protocol"),
        ({b"GET": b":5\r\n"}, "'v' of one of 1 keys is no string"),
        ({b"HMGET": b":5\r\n"}, "not answered with a value for each of v"),
        ({b"HMGET": b"*0\r\n"}, "not answered with a value for each of v"),
        ({b"HMGET": b"*2\r\n$1\r\na\r\n$1\r\nb\r\n"}, "not answered with a value for each of v"),
    ],
)
def test_what_is_no_answer_is_one_line(serve, answers, says):
    """Most were errors of Python, and of too many values the first ones were taken."""
    with pytest.raises(ConnectorError, match=says) as raised:
        look_up(serve(answers), value="hash" if b"HMGET" in answers else "string")

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(pa.float32(), b"1e39"), (pa.date32(), b"0000-01-01"), (pa.timestamp("us"), b"0000-01-01 00:00:00")],
)
def test_a_value_that_the_type_has_not_is_named(serve, kind, text):
    """A large number was infinity, and a year that Python does not have its OverflowError."""
    answers = {b"GET": b"$%d\r\n%s\r\n" % (len(text), text)}

    with pytest.raises(
        ConnectorError, match=r"'v' of one of 1 keys is no .*correct the value, or its type in columns="
    ):
        look_up(serve(answers), kind)
    assert look_up(serve({b"GET": b"$3\r\ninf\r\n"}), pa.float32()) == float("inf")


@pytest.mark.parametrize(
    ("marker", "says"),
    [(b"_\r\n", "was set by somebody else during each of 100 commits"), (b"$3\r\nabc\r\n", "is not Redis' protocol")],
)
def test_a_commit_that_never_goes_through_ends(serve, marker, says):
    """A server that calls off every transaction kept the commit for ever."""
    answers = {
        b"WATCH": b"+OK\r\n", b"UNWATCH": b"+OK\r\n", b"GET": marker, b"MULTI": b"+OK\r\n", b"SET": b"+QUEUED\r\n",
        b"EXEC": b"_\r\n",
    }  # fmt: skip
    sink = RedisSink("k", url=serve(answers), value="v", guarantee="exactly_once")
    committer = sink.create_committer(Place())
    assert committer is not None
    name = f"snapline:job:{Place().operator_uid}:0"
    try:
        with pytest.raises(ConnectorError, match=says):
            committer.commit([Committable({"marker": name, "checkpoint_id": 1, "rows": [["a", "b"]]})])
    finally:
        committer.close()
