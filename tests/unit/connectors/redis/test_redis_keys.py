"""Keys of a real server of Redis' protocol: what rows become, look-ups, and what can go wrong."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import redis

import snapline as sl
from snapline.connectors import RedisLookup, RedisSink
from snapline.connectors.redis import redis_sink
from snapline.dataflow.api.connector_api import Committable
from snapline.dataflow.errors import ConnectorError
from snapline.dataflow.graph.operator_specs import SinkSpec
from snapline.taskmanager.operators.sinks.sink_operator import SinkOperator
from tests.services.redis_server import RedisServer
from tests.unit.connectors.parquet.places import Place
from tests.unit.taskmanager.operators.harness import Harness, restored_state

ROWS = pa.schema([("shop", pa.int64()), ("n", pa.int64())])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "its-secret")
    yield server
    server.close()


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    with running.client() as client:
        client.flushall()
    return running


def keys(server: RedisServer) -> dict[str, Any]:
    """What is there, without the sink's own keys."""
    found: dict[str, Any] = {}
    with server.client() as client:
        for key in client.keys("*"):
            name = key.decode()
            if not name.startswith("snapline:"):
                found[name] = client.hgetall(key) if client.type(key) == b"hash" else client.get(key)
    return found


def write(
    sink: RedisSink, batch: pa.RecordBatch, checkpoint_id: int = 1, subtask: int = 0, attempt: int = 0
) -> Sequence[Committable]:
    place = Place(subtask, 2, attempt, execution_attempt=f"graph_vertex_{subtask}_{attempt}")
    writer = sink.create_writer(place, ())
    try:
        writer.write(batch)
        return writer.prepare_commit(checkpoint_id)
    finally:
        writer.close()


def commit(sink: RedisSink, committables: Sequence[Committable]) -> None:
    committer = sink.create_committer(Place())
    assert committer is not None
    committer.commit(committables)
    committer.close()


def test_rows_become_hashes_and_are_replaced_as_a_whole(server):
    """Nulls are left out, bytes are kept, and a field that a later row lacks is gone."""
    sink = RedisSink("shop", url=server.url, prefix="totals:", batch_rows=2)
    sink.validate()
    batch = pa.RecordBatch.from_pydict({"shop": ["é", "b", "c"], "n": [1, None, 3], "raw": [b"\xff", b"", b"x"]})
    assert write(sink, batch) == ()
    assert keys(server) == {
        "totals:é": {b"n": b"1", b"raw": b"\xff"},
        "totals:b": {b"raw": b""},
        "totals:c": {b"n": b"3", b"raw": b"x"},
    }
    write(sink, pa.RecordBatch.from_pydict({"shop": ["c"], "n": [None], "raw": [b"y"]}))
    assert keys(server)["totals:c"] == {b"raw": b"y"}


def test_strings_deletes_and_row_kinds(server):
    """A changelog leaves the newest value of each key; rows before updates are passed over; keys may expire."""
    kinds = pa.RecordBatch.from_pydict(
        {"shop": [1, 2, 1, 1, 2], "n": [10, 20, 10, 11, 20], "row_kind": ["+I", "+I", "-U", "+U", "-D"]}
    )
    write(RedisSink("shop", url=server.url, value="n", delete="row_kind", expire_ms=100_000), kinds)
    assert keys(server) == {"1": b"11"}
    with server.client() as client:
        assert client.pttl("1") > 0
    gone = pa.RecordBatch.from_pydict({"shop": [1, 3], "n": [0, 30], "gone": [True, False]})
    write(RedisSink("shop", url=server.url, value="n", delete="gone"), gone)
    assert keys(server) == {"3": b"30"}


def test_keys_of_a_checkpoint_are_set_once_when_it_is_complete(server):
    """A commit may come again, also after a later one, and from a process that is thought dead."""
    sink = RedisSink("shop", url=server.url, value="n", guarantee="exactly_once")
    first = write(sink, pa.RecordBatch.from_pydict({"shop": ["a", "b"], "n": [1, 1]}), 1)
    second = write(sink, pa.RecordBatch.from_pydict({"shop": ["a"], "n": [2]}), 2)
    other = write(sink, pa.RecordBatch.from_pydict({"shop": ["z"], "n": [9]}), 1, 1)
    assert keys(server) == {}
    commit(sink, [*second, *first, *other])
    commit(sink, first)
    assert keys(server) == {"a": b"2", "b": b"1", "z": b"9"}


def test_a_sink_that_becomes_idempotent_sets_what_its_snapshot_holds(server):
    """A savepoint of a job that was cancelled before its next checkpoint: the rows were dropped without a word."""
    once = RedisSink("shop", url=server.url, value="n", guarantee="exactly_once")
    left = Harness(SinkOperator(SinkSpec(once))).start()
    saved = left.process(pa.RecordBatch.from_pydict({"shop": ["a", "b"], "n": [1, 1]})).snapshot(7)
    left.operator.close()
    assert keys(server) == {}
    again = Harness(SinkOperator(SinkSpec(RedisSink("shop", url=server.url, value="n")))).start(restored_state([saved]))
    assert keys(server) == {"a": b"1", "b": b"1"}
    again.process(pa.RecordBatch.from_pydict({"shop": ["b"], "n": [2]})).snapshot(8)
    again.operator.close()
    assert keys(server) == {"a": b"1", "b": b"2"}


def test_what_two_checkpoints_left_is_committed_in_their_order_by_whoever_got_it(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore at another parallelism gives the older rows to another subtask; when that one came second they were
    taken for committed, and lost."""
    sink = RedisSink("shop", url=server.url, value="n", guarantee="exactly_once")
    writer = sink.create_writer(Place(), ())
    writer.write(pa.RecordBatch.from_pydict({"shop": ["a", "b"], "n": [1, 1]}))
    first = writer.prepare_commit(1)
    writer.write(pa.RecordBatch.from_pydict({"shop": ["a"], "n": [2]}))
    second = writer.prepare_commit(2)
    of_another, of_this = sink.create_committer(Place(1, 2)), sink.create_committer(Place(0, 2))
    assert of_another is not None and of_this is not None
    waits = iter([lambda: of_another.commit(first)])
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: next(waits)())
    monkeypatch.setattr(redis_sink, "time", clock)
    for committer in (of_another, of_this):
        committer.restored_from(2)
    of_this.commit(second)
    of_another.commit(first)
    assert keys(server) == {"a": b"2", "b": b"1"}
    for committer in (of_another, of_this):
        committer.close()


def test_a_server_that_has_forgotten_what_was_committed_is_waited_for_once(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that was emptied while the job was down keeps no job from going on."""
    sink = RedisSink("shop", url=server.url, value="n", guarantee="exactly_once")
    writer = sink.create_writer(Place(), ())
    pending = []
    for checkpoint_id in (1, 2):
        writer.write(pa.RecordBatch.from_pydict({"shop": ["a"], "n": [checkpoint_id]}))
        pending.append(writer.prepare_commit(checkpoint_id))
    monkeypatch.setattr(redis_sink, "WAIT_SECONDS", -1.0)
    committer = sink.create_committer(Place())
    assert committer is not None
    committer.restored_from(2)
    committer.commit(pending[1])
    committer.close()
    assert keys(server) == {"a": b"2"}


def test_a_later_attempt_that_commits_under_the_same_checkpoint_is_not_taken_for_an_earlier_one(server):
    """At the end of its input a task commits by itself where no checkpoint follows. When another task of the job fails
    after that, the next attempt comes to the same number, with other rows if the parallelism has changed."""
    sink = RedisSink("shop", url=server.url, value="n", guarantee="exactly_once")
    first = write(sink, pa.RecordBatch.from_pydict({"shop": ["a"], "n": [1]}))
    again = write(sink, pa.RecordBatch.from_pydict({"shop": ["a", "b"], "n": [2, 2]}), attempt=1)
    commit(sink, first)
    committer = sink.create_committer(Place())
    assert committer is not None
    assert [committer.abort(first), committer.abort(again)] == [False, True]
    committer.close()
    commit(sink, again)
    assert keys(server) == {"a": b"2", "b": b"2"}
    with server.client() as client:
        client.set("a", 3)
    commit(sink, again)
    assert keys(server) == {"a": b"3", "b": b"2"}


def test_what_an_earlier_version_has_committed_stays_so(server):
    """Its committables and its marker name no attempt."""
    sink = RedisSink("shop", url=server.url, value="n", guarantee="exactly_once")
    (written,) = write(sink, pa.RecordBatch.from_pydict({"shop": ["a"], "n": [1]}), 7)
    before = Committable({name: value for name, value in written.data.items() if name != "attempt"})
    with server.client() as client:
        client.set(before.data["marker"], 7)
    commit(sink, [before])
    assert keys(server) == {}
    commit(sink, [Committable({**before.data, "checkpoint_id": 8})])
    assert keys(server) == {"a": b"1"}
    with server.client() as client:
        assert client.get(before.data["marker"]) == b"8"


@pytest.mark.parametrize("guarantee", ["idempotent", "exactly_once"])
def test_what_is_written_is_measured(server, guarantee):
    """Keys and values, by each guarantee."""
    place = Place()
    writer = RedisSink("shop", url=server.url, prefix="p:", guarantee=guarantee).create_writer(place, ())
    writer.write(pa.RecordBatch.from_pydict({"shop": ["a", "b"], "n": [1, None]}))
    writer.prepare_commit(1)
    writer.close()
    assert place.metrics.counter("bytes_written").value == len("p:a" + "n1" + "p:b")


def test_what_cannot_work_is_said_in_a_line(server):
    """At submission, or when the rows come."""
    batch = pa.RecordBatch.from_pydict({"shop": ["a", None], "n": [1, 2]})
    for sink, says in (
        (RedisSink("shop", url="redis://127.0.0.1:1/0", timeout_ms=500), "Redis at 127.0.0.1:1/0 does not answer"),
        (RedisSink("shop", url=server.url.replace("its-", "other-")), "refuses the user"),
        (RedisSink("shop", url="http://x"), "write url='redis://host:6379/0'"),
    ):
        with pytest.raises(ConnectorError, match=says) as raised:
            sink.validate()
        assert "\n" not in str(raised.value)
        assert "secret" not in str(raised.value)
    for name, delete, says in (
        ("shop", "", "a row has no key: 'shop' is null"),
        ("shops", "", "the rows have no column 'shops' but shop, n"),
        ("n", "gone", "the rows have no column 'gone'"),
        ("n", "n", "delete= names 'n', which is int64"),
        ("n", "shop", r"'shop' is .* in a row; there are"),
    ):
        with pytest.raises(ConnectorError, match=says):
            write(RedisSink(name, url=server.url, delete=delete), batch)
    with pytest.raises(ConnectorError, match="guarantee is idempotent or exactly_once"):
        RedisSink("shop", url=server.url, guarantee="twice")  # type: ignore[arg-type]
    with pytest.raises(ConnectorError, match="batch_rows must be at least 1"):
        RedisSink("shop", url=server.url, batch_rows=0)


@pytest.mark.parametrize(
    "password", ["its/secret", "its#secret", "its?secret", "12/secret", "[its-secret", "its-secret\uff20"]
)
def test_a_url_that_cannot_be_read_is_not_shown(password: str) -> None:
    """Python shows what it takes for a port, which is the beginning of a password with a letter that has a meaning."""
    with pytest.raises(ConnectorError, match="write url='redis://host:6379/0', with letters such as /") as raised:
        RedisSink("shop", url=f"redis://:{password}@cache:6379/0").validate()
    assert "its" not in str(raised.value) and "secret" not in str(raised.value)


def test_a_server_that_goes_away_fails_the_task_in_a_line(tmp_path):
    """When rows are sent, and when a checkpoint is committed; the next attempt of the task does it."""
    running = RedisServer(tmp_path)
    batch = pa.RecordBatch.from_pydict({"shop": ["a"], "n": [1]})
    once = RedisSink("shop", url=running.url, value="n", guarantee="exactly_once", timeout_ms=500)
    pending = write(once, batch)
    running.kill()
    for work in (
        lambda: write(RedisSink("shop", url=running.url, value="n", timeout_ms=500), batch),
        lambda: commit(once, pending),
    ):
        with pytest.raises(ConnectorError, match=f"Redis at 127.0.0.1:{running.port}/0 does not answer") as refusal:
            work()
        assert "\n" not in str(refusal.value)
    running.start()
    commit(once, pending)
    with running.client() as client:
        assert client.get("a") == b"1"
    running.close()


def test_a_server_that_goes_away_within_a_commit_is_named(tmp_path, monkeypatch):
    """The library says only that an error came while it watched a key."""
    running = RedisServer(tmp_path)
    once = RedisSink("shop", url=running.url, value="n", guarantee="exactly_once", timeout_ms=500)
    pending = write(once, pa.RecordBatch.from_pydict({"shop": ["a"], "n": [1]}))
    watch = redis.client.Pipeline.watch

    def watch_and_die(pipeline: redis.client.Pipeline, *names: str) -> None:
        watch(pipeline, *names)
        running.kill()

    monkeypatch.setattr(redis.client.Pipeline, "watch", watch_and_die)
    with pytest.raises(
        ConnectorError, match=f"Redis at 127.0.0.1:{running.port}/0 does not answer .* check the address"
    ):
        commit(once, pending)


class Asked:
    """A look-up that is open, and its event loop."""

    def __init__(self, lookup: RedisLookup) -> None:
        self.lookup, self.metrics = lookup, Place().metrics
        context: Any = Place(metrics=self.metrics)
        lookup.open(context)
        self.loop = asyncio.new_event_loop()

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()
        self.lookup.close()

    def rows(self, *rows: sl.Row) -> list[sl.Row]:
        """What these become, all at once."""

        async def ask() -> list[Any]:
            return await asyncio.gather(*map(self.lookup.async_invoke, rows))

        return [row for found in self.loop.run_until_complete(ask()) for row in found]


def test_rows_get_fields_of_hashes_or_strings(server):
    """As values of their types, with nulls or left out where there is no key; many keys are one question."""
    with server.client() as client:
        client.hset("shop:1", mapping={"town": "Bonn", "rent": "1.5"})
        client.hset("shop:2", mapping={"town": "Ulm"})
        client.set("name:1", "one")
    shops = RedisLookup("shop", url=server.url, prefix="shop:", columns={"town": pa.string(), "rent": pa.float64()})
    assert pa.schema([*ROWS, ("town", pa.string()), ("rent", pa.float64())]) == shops.result_schema(ROWS)
    with Asked(shops) as asked:
        expected = [
            {"shop": 1, "town": "Bonn", "rent": 1.5}, {"shop": 2, "town": "Ulm", "rent": None},
            {"shop": 3, "town": None, "rent": None}, {"shop": None, "town": None, "rent": None},
        ]  # fmt: skip
        for _ in range(2):
            assert expected == asked.rows(*({"shop": shop} for shop in (1, 2, 3, None)))
        assert asked.metrics.counter("lookup_queries").value == 1
        assert asked.metrics.counter("lookup_hits").value == 3
    names = RedisLookup(
        "shop", url=server.url, prefix="name:", columns={"name": pa.string()}, value="string", how="inner"
    )
    with Asked(names) as asked:
        assert asked.rows({"shop": 1}, {"shop": 2}) == [{"shop": 1, "name": "one"}]


def test_look_ups_that_cannot_work(server, tmp_path: Path):
    """A value of another type or kind, a name that is taken, and a server that is away, which may be asked again."""
    with server.client() as client:
        client.hset("shop:1", mapping={"rent": "much"})
        client.set("shop:2", "a string")
    shops = RedisLookup("shop", url=server.url, prefix="shop:", columns={"rent": pa.float64()})
    with Asked(shops) as asked:
        with pytest.raises(ConnectorError, match="'rent' of one of 1 keys is no double"):
            asked.rows({"shop": 1})
        with pytest.raises(ConnectorError, match="a key has a value of another kind"):
            asked.rows({"shop": 2})
    for columns, says in (({"n": pa.int64()}, "have a column 'n' already"), ({}, "at least one column")):
        with pytest.raises(ConnectorError, match=says):
            RedisLookup("shop", url=server.url, columns=columns).result_schema(ROWS)
    with pytest.raises(ConnectorError, match="on= names 'shops', and the rows have shop, n"):
        RedisLookup("shops", url=server.url, columns={"m": pa.int64()}).result_schema(ROWS)
    away = RedisServer(tmp_path)
    with Asked(RedisLookup("shop", url=away.url, columns={"m": pa.int64()}, cache_ms=0)) as asked:
        assert asked.rows({"shop": 1}) == [{"shop": 1, "m": None}]
        away.kill()
        with pytest.raises(ConnectorError, match="does not answer") as raised:
            asked.rows({"shop": 1})
        assert RedisLookup.is_away(raised.value)
        away.start()
        assert asked.rows({"shop": 1}) == [{"shop": 1, "m": None}]
    away.close()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([True, False]),
        pa.array([1.0, 2.5, 1e300]),
        pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("s")),  # noqa: DTZ001
        pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "America/New_York")),
        pa.array([decimal.Decimal("0.0000000")]),
        pa.array([b"\xff:\x00", b""]),
        pa.array(["a:b", "", "é\n"]),
        pa.array(["a", "b"]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type)[:20],
)
def test_a_look_up_finds_the_keys_that_the_sink_has_written(server, column):
    """Truth values, floats and times were written in Arrow's words and asked for in Python's: none was found."""
    rows = pa.RecordBatch.from_pydict({"k": column, "n": range(len(column))})
    write(RedisSink("k", url=server.url, prefix="p:"), rows)
    lookup = RedisLookup("k", url=server.url, prefix="p:", columns={"n": pa.int64()}, connections=1)
    lookup.result_schema(pa.schema([("k", column.type)]))
    lookup.open(Place())  # type: ignore[arg-type]  # has the metrics

    async def ask() -> list[Any]:
        found = await lookup._found_for(0, [(key,) for key in column.to_pylist()])
        return [row["n"] for rows_of_key in found.values() for row in rows_of_key]

    numbers = asyncio.run(ask())
    lookup.close()
    assert list(range(len(column))) == numbers


def test_large_values_come_back(server):
    """Of a megabyte, by each guarantee."""
    value = b"\x00\xff" * 500_000
    rows = pa.RecordBatch.from_pydict({"k": ["a"], "v": [value]})
    once = RedisSink("k", url=server.url, prefix="once:", value="v", guarantee="exactly_once")
    write(RedisSink("k", url=server.url, value="v"), rows)
    commit(once, write(once, rows))

    assert {"a": value, "once:a": value} == keys(server)
