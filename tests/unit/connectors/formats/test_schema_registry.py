"""Confluent's wire format against a registry of three routes: schemas that move on, ids that nobody knows, a registry
that is away."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import decimal
import io
import json
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from snapline.connectors.formats.avro import AvroFormat
from snapline.connectors.formats.file_reading import avro_rows
from snapline.connectors.formats.schema_registry import ConfluentAvroFormat
from snapline.dataflow.errors import ConnectorError

LOGIN = base64.b64encode(b"ann:p@ss").decode()
OLD = {"type": "record", "name": "row", "fields": [{"name": "n", "type": "int"}, {"name": "gone", "type": "string"}]}
NEW = {
    "type": "record", "name": "row", "fields": [
        {"name": "n", "type": "long"}, {"name": "s", "type": ["null", "string"], "default": None},
    ],
}  # fmt: skip
OTHER = {"type": "record", "name": "row", "fields": [{"name": "n", "type": "string"}]}


class Registry(BaseHTTPRequestHandler):
    """Schemas by id and subject, for who has the password."""

    schemas: list[str]
    asked: list[str]

    def answer(self, code, body):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        self.asked.append(self.path)
        number = int(self.path.rsplit("/", 1)[1]) - 1
        if self.headers["Authorization"] != f"Basic {LOGIN}":
            self.answer(401, {"message": "who are you?"})
        elif number < len(self.schemas):
            self.answer(200, {"schema": self.schemas[number]})
        else:
            self.answer(404, {"error_code": 40403})

    def do_POST(self):
        self.asked.append(self.path)
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        if schema not in self.schemas:
            self.schemas.append(schema)
        self.answer(200, {"id": self.schemas.index(schema) + 1})

    def log_message(self, *_):
        """Be quiet."""


@contextlib.contextmanager
def serving(handler: Any) -> Iterator[str]:
    """The address of a server that answers so."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def registry():
    handler: Any = type("Registry", (Registry,), {"schemas": [], "asked": []})
    with serving(handler) as address:
        yield SimpleNamespace(asked=handler.asked, schemas=handler.schemas, address=address)


def form(registry, schema, **options):
    made = ConfluentAvroFormat(schema, registry=f"http://ann:p%40ss@{registry.address}/", **options)
    return pickle.loads(pickle.dumps(made))


def written(registry, schema, rows):
    kind = form(registry, schema, subject="orders/value")
    return list(kind.encode(pa.RecordBatch.from_pylist(rows, kind.schema)))


def test_values_of_several_schemas_are_resolved_to_the_job_s(registry):
    """Wider types, fields that are gone, fields that are new; each schema is asked for once."""
    values = written(registry, OLD, [{"n": 1, "gone": "x"}]) + written(registry, NEW, [{"n": 2**40, "s": "y"}])

    decoded, bad = form(registry, NEW).decode([*values, *values])

    assert ([{"n": 1, "s": None}, {"n": 2**40, "s": "y"}] * 2, []) == (decoded.to_pylist(), bad)
    assert ["/subjects/orders%2Fvalue/versions"] * 2 + ["/schemas/ids/1", "/schemas/ids/2"] == registry.asked


def test_bad_values_are_found_and_say_why(registry):
    """No header, an id that nobody knows, a schema that does not resolve, a datum that is cut."""
    good = written(registry, NEW, [{"n": 1, "s": None}])[0]
    strange = written(registry, OTHER, [{"n": "x"}])[0]
    values = [good, b"{}", b"\0\0\0\0\x63\x02", strange, good[:-1], good]

    decoded, bad = form(registry, NEW).decode(values)

    assert [1, 2, 3, 4] == [row.index for row in bad]
    assert "not in Confluent's wire format" in bad[0].reason
    assert f"schema id 99 is unknown to the registry at http://{registry.address}" == bad[1].reason
    assert "does not resolve" in bad[2].reason
    assert [1, None, None, None, None, 1] == decoded.column("n").to_pylist()


def test_an_id_that_nobody_knows_is_asked_for_once_in_a_poll(registry):
    """A job with the address of another registry asked it twice for each row, and stood still for minutes before it
    failed. By the next poll the schema may be there."""
    avro = form(registry, NEW)
    values = [b"\0\0\0\0\2" + bytes([number]) for number in range(100)]
    for poll in (1, 2):
        _, bad = avro.decode(values)
        assert [len(bad), len(registry.asked)] == [100, poll]
    registry.schemas += [json.dumps(NEW)] * 2
    assert avro.decode([b"\0\0\0\0\2\2\0"]) == (pa.RecordBatch.from_pylist([{"n": 1, "s": None}], avro.schema), [])


def test_a_registry_that_refuses_or_is_away_fails_the_job(registry):
    """It is nobody's bad row; the password is not said."""
    value = written(registry, NEW, [{"n": 1, "s": None}])
    with pytest.raises(ConnectorError, match=r"refuses /schemas/ids/1: 401 .*who are you") as raised:
        ConfluentAvroFormat(NEW, registry=f"http://ann:wrong@{registry.address}").decode(value)
    assert "wrong" not in str(raised.value)
    with pytest.raises(ConnectorError, match=r"the schema registry at http://127.0.0.1:1 does not answer \("):
        ConfluentAvroFormat(NEW, registry="http://127.0.0.1:1").decode(value)
    with pytest.raises(ConnectorError, match="to write, say subject="):
        form(registry, NEW).encode(pa.RecordBatch.from_pylist([{"n": 1, "s": None}], form(registry, NEW).schema))
    with pytest.raises(ConnectorError, match="registry is no address"):
        ConfluentAvroFormat(NEW, registry="localhost:8081")


@pytest.mark.parametrize(
    "address",
    [
        "http://h:abc", "http://h:99999", "http://[::1", "ftp://ann:pass@h", "ann:pass@h", "http://ann:pass/word@h",
        "http://ann:12/pass@h", "http://ann:pass#word@h", "http://ann:[pass@h",
    ],
)  # fmt: skip
def test_what_is_no_address_of_a_registry_is_said_in_a_line(address):
    """A wrong port was an error of Python's; the password is not said."""
    with pytest.raises(ConnectorError, match="registry is no address of http or https: ") as raised:
        ConfluentAvroFormat(NEW, registry=address)
    assert "pass" not in str(raised.value)


def test_a_registry_may_have_an_address_of_ipv6():
    """Its brackets were gone, and the port with them."""
    kind = ConfluentAvroFormat(NEW, registry="http://[::1]:1")
    with pytest.raises(ConnectorError, match=r"the schema registry at http://\[::1\]:1 does not answer \(.*refused"):
        kind.decode([b"\0\0\0\0\1\2"])


CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
INNER = {"type": "record", "name": "i", "fields": [{"name": "x", "type": "bytes", "default": "\u00fe"}]}


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        ("bytes", "\u0001\u00ff", b"\x01\xff"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        (["null", "bytes"], None, None),
        ({"type": "fixed", "name": "f", "size": 2}, "\u0001\u00ff", b"\x01\xff"),
        (CENTS, "\u00ff\u0085", decimal.Decimal("-1.23")),
        (CENTS, "\u004b" + 14 * "\u0000" + "\u0001", decimal.Decimal((0x4B << 120) + 1).scaleb(-2, decimal.Context(40))),
        ({"type": "fixed", "name": "f", "size": 1, "logicalType": "decimal", "precision": 2}, "\u0007", decimal.Decimal(7)),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": CENTS}, {"a": "\u0001"}, [("a", decimal.Decimal("0.01"))]),
        (INNER, {"x": "\u00ff"}, {"x": b"\xff"}),
        (INNER, {}, {"x": b"\xfe"}),
        ({"type": "int", "logicalType": "date"}, -1, dt.date(1969, 12, 31)),
    ],
)  # fmt: skip
def test_a_field_that_a_writer_did_not_know_has_its_default(kind, default, expected):
    """Bytes are letters in a schema: they were read as the bytes of UTF-8, and decimals made each row a bad one."""
    fields = [{"name": "n", "type": "long"}, {"name": "new", "type": kind, "default": default}]
    schema = {"type": "record", "name": "row", "fields": fields}
    before = json.dumps(schema)
    writer = fastavro.parse_schema({"type": "record", "name": "row", "fields": fields[:1]})
    confluent = ConfluentAvroFormat(schema, registry="http://127.0.0.1:1")
    confluent._writers[1] = writer
    container = io.BytesIO()
    fastavro.writer(container, writer, [{"n": 1}])
    container.seek(0)
    (from_file,) = avro_rows(AvroFormat(schema), container, {}, 10)

    decoded, bad = confluent.decode([b"\0\0\0\0\1\2"])
    assert (decoded.to_pylist(), bad) == ([{"n": 1, "new": expected}], [])
    assert from_file.rows.to_pylist() == [{"n": 1, "new": expected}]
    assert json.dumps(schema) == before


SCHEMA_DEFAULT = {**NEW, "fields": [{"name": "n", "type": "long", "default": "x"}]}
UNUSABLE = {
    "no JSON": ("{", "JSONDecodeError"),
    "nested without end": ("[" * 100_000, "RecursionError"),
    "a default of another type": (json.dumps(SCHEMA_DEFAULT), "Default value <x> must match schema type: long"),
    "a field that is none": (json.dumps({**NEW, "fields": [5]}), "Record field must be a dict"),
    "a record without a name": (json.dumps({"type": "record", "fields": []}), '"name" is a required field'),
    "a decimal of nonsense": (json.dumps({"type": "bytes", "logicalType": "decimal", "precision": "x"}), "precision"),
    "an enum of nothing": (json.dumps({"type": "enum", "name": "e"}), "KeyError: 'symbols'"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_values_of_a_schema_that_cannot_be_used_are_bad_rows(registry, name):
    """Most of these ended the job in a traceback, again after each restart. The registry is asked once for each."""
    schema, said = UNUSABLE[name]
    good = written(registry, NEW, [{"n": 1, "s": None}])[0]
    schemas, asked = registry.schemas, registry.asked
    schemas.append(schema)
    bad = b"\0\0\0\0\2\2"

    decoded, found = form(registry, NEW).decode([bad, good, bad])

    assert [None, 1, None] == decoded.column("n").to_pylist()
    assert [0, 2] == [row.index for row in found]
    assert all(row.reason.startswith("schema id 2 cannot be used (") and said in row.reason for row in found)
    assert 1 == asked.count("/schemas/ids/2")


ANSWERS = {
    "another protocol": b"SSH-2.0-x\r\n\r\n",
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000,
    "a page": b"HTTP/1.1 200 OK\r\n\r\n<html>",
    "a list": b"HTTP/1.1 200 OK\r\n\r\n[]",
    "lists without end": b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
    "no chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a refusal that is cut": b"HTTP/1.1 500 no\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "more than any schema": b'HTTP/1.1 200 OK\r\n\r\n{"x": "' + b"x" * (16 << 20) + b'"}',
    "no id": b"HTTP/1.1 200 OK\r\n\r\n{}",
    "an id that is none": b'HTTP/1.1 200 OK\r\n\r\n{"id": -1}',
}


@pytest.mark.parametrize("name", ANSWERS)
def test_whatever_a_registry_answers_is_one_line(name):
    """A proxy's page, another server at its port, or one that means ill: most were a traceback or read whole."""

    class Liar(BaseHTTPRequestHandler):
        def do_POST(self):
            with contextlib.suppress(ConnectionError):
                self.wfile.write(ANSWERS[name])

        def log_message(self, *_):
            """Be quiet."""

    with serving(Liar) as address:
        kind = ConfluentAvroFormat(NEW, registry=f"http://{address}", subject="s")
        with pytest.raises(ConnectorError, match=r"^the schema registry at http://127\.0\.0\.1:\d+ [^\n]+$"):
            kind.encode(pa.RecordBatch.from_pylist([{"n": 1, "s": None}], kind.schema))
