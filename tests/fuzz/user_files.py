"""Files as users have them, drawn with the structure of their format and then changed: CSV, JSON, Avro and ORC, read as
a driver (which finds the columns) and then a task read them."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import random
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import orc

from snapline.connectors import FileSource
from snapline.dataflow.api.connector_api import SourceSplit
from tests.fuzz.drawn_inputs import mutate
from tests.unit.connectors.parquet.places import Place

BATCH_ROWS = 7
CELLS = (
    b"", b"1", b"-1", b"9223372036854775807", b"9223372036854775808", b"1e308", b"nan", b"0.1", b"NULL", b"true", b"x",
    b"2024-02-29", b"2024-02-29T23:59:60Z", b"23:59:59", b"\xff\xfe", b"\0", b"\xef\xbb\xbf", "\u2028é".encode(),
    b'"', b'"a,b"', b'"a\nb"', b'"a""b"', b"'", b"\\", b"\r", b" 1 ", b"0x1f", b"9" * 50, b"k" * 300,
)  # fmt: skip
NAMES = ("n", "text", "at", "n", "", "é", "a b", "x" * 300, "\u202e", "a.b")
VALUES = (
    None, True, 0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**40, 1.5, 1e308, "", "x", "2024-02-29T12:00:00Z", "é\0",
)  # fmt: skip
KINDS: tuple[Any, ...] = (
    "null", "boolean", "int", "long", "float", "double", "bytes", "string",
    {"type": "long", "logicalType": "timestamp-millis"}, {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "int", "logicalType": "date"}, {"type": "int", "logicalType": "time-millis"},
    {"type": "string", "logicalType": "uuid"}, {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    {"type": "fixed", "name": "F", "size": 4}, {"type": "enum", "name": "E", "symbols": ["A", "B"]},
    {"type": "array", "items": "long"}, {"type": "map", "values": "string"},
    {"type": "record", "name": "R", "fields": [{"name": "in", "type": "double"}]},
)  # fmt: skip
CODECS = {"null": bytes, "deflate": lambda data: zlib.compress(data)[2:-4], "bzip2": bz2.compress}
MARKER = b"0123456789abcdef"


def _packed(rng: random.Random, text: bytes) -> bytes:
    """The text as it is, or compressed in one of the ways that are known by their beginning."""
    packed = rng.choice((bytes, bytes, bytes, gzip.compress, bz2.compress, lambda t: bytes(pa.compress(t, "zstd"))))
    return packed(text)


def draw_csv(rng: random.Random) -> bytes:
    """Rows of odd cells behind a header; one in two files is changed after that."""
    width = rng.randrange(1, 5)
    names = [rng.choice(NAMES).encode() + (b"%d" % place if rng.random() < 0.8 else b"") for place in range(width)]
    kinds = [rng.sample(CELLS, rng.choice((1, 1, 2, len(CELLS)))) for _ in range(width)]
    rows = [[rng.choice(kind) for kind in kinds] for _ in range(rng.choice((0, 1, 9, 60)))]
    if rows and rng.random() < 0.3:
        rng.choice(rows).append(b"1")
    end = rng.choice((b"\n", b"\n", b"\r\n"))
    text = end.join([b",".join(names), *(b",".join(row) for row in rows)]) + rng.choice((b"", end))
    return _changed(rng, _packed(rng, text))


def _value(rng: random.Random, depth: int) -> Any:
    if depth > 3 or rng.random() < 0.7:
        return rng.choice(VALUES)
    if rng.random() < 0.5:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(NAMES): _value(rng, depth + 1) for _ in range(rng.randrange(3))}


def draw_json(rng: random.Random) -> bytes:
    """Objects of nested values, a line each, mostly with the same keys."""
    shape = {f"{rng.choice(NAMES)}{place}": _value(rng, 0) for place in range(rng.randrange(1, 5))}
    rows: list[Any] = []
    for _ in range(rng.choice((0, 1, 9, 60))):
        row = {name: value if rng.random() < 0.9 else _value(rng, 0) for name, value in shape.items()}
        rows.append(row if rng.random() < 0.98 else _value(rng, 0))
    lines = [json.dumps(row, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass") for row in rows]
    if rng.random() < 0.1:
        lines.append(rng.choice((b"{", b'{"n": NaN}', b'{"n": 1}{"n": 2}', b'{"n": 1e999}', b'{"n": ' + b"[" * 2000)))
    return _changed(rng, _packed(rng, b"\n".join(lines)))


def _number(value: int) -> bytes:
    value, data = (value << 1) ^ (value >> 63), b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])


def _datum(rng: random.Random, kind: Any) -> bytes:
    """Bytes of a value as Avro has them, or nearly: numbers and lengths may be any."""
    if isinstance(kind, list):
        place = rng.choice((0, 1, 1, 1, -1, 5))
        return _number(place) + (_datum(rng, kind[place]) if place in (0, 1) else b"")
    name = kind["type"] if isinstance(kind, dict) else kind
    match name:
        case "null":
            return b""
        case "boolean":
            return rng.choice((b"\0", b"\1", b"\2"))
        case "float" | "double":
            return rng.randbytes(4 if name == "float" else 8)
        case "bytes" | "string":
            text = rng.choice(CELLS)[:40]
            return _number(len(text) if rng.random() < 0.97 else rng.choice((-1, 1 << 40, (1 << 63) - 1))) + text
        case "fixed":
            return rng.randbytes(4)
        case "record":
            return b"".join(_datum(rng, field["type"]) for field in kind["fields"])
        case "array" | "map":
            count = rng.choice((0, 1, 3, -2)) if rng.random() < 0.95 else rng.choice((1 << 40, -(1 << 62)))
            inner = kind["items"] if name == "array" else kind["values"]
            keys = name == "map"
            items = [(_datum(rng, "string") if keys else b"") + _datum(rng, inner) for _ in range(min(abs(count), 3))]
            size = _number(sum(map(len, items))) if count < 0 else b""
            return _number(count) + size + b"".join(items) + (_number(0) if count else b"")
        case _:
            return _number(rng.choice((0, 1, -1, 86_399_999, 1 << 31, (1 << 63) - 1, -(1 << 63))))


def draw_avro(rng: random.Random) -> bytes:
    """A container whose blocks are made by hand, so that each number in it may be another one."""
    kinds = [rng.choice(KINDS) for _ in range(rng.randrange(1, 4))]
    fields = [{"name": f"f{n}", "type": ["null", kind] if rng.random() < 0.4 and kind != "null" else kind}
              for n, kind in enumerate(_once(kinds))]  # fmt: skip
    schema = {"type": "record", "name": "Row", "fields": fields}
    codec = rng.choice(list(CODECS))
    header = io.BytesIO()
    fastavro.writer(header, schema, [], codec=codec, sync_marker=MARKER)
    file = header.getvalue()
    for _ in range(rng.randrange(3)):
        rows = rng.choice((0, 1, 5, 20))
        block = CODECS[codec](b"".join(_datum(rng, schema) for _ in range(rows)))
        said = rows if rng.random() < 0.9 else rng.choice((-1, rows + 1, 1 << 50))
        file += _number(said) + _number(len(block)) + block + MARKER
    return _changed(rng, file)


def _once(kinds: list[Any]) -> list[Any]:
    """A named type may be there once."""
    seen: set[str] = set()
    found = []
    for kind in kinds:
        name = kind.get("name", "") if isinstance(kind, dict) else ""
        found.append("long" if name and name in seen else kind)
        seen.add(name)
    return found


@functools.cache
def _orc_examples() -> tuple[bytes, ...]:
    columns = {"n": range(60), "text": [str(n) for n in range(60)], "at": pa.array(range(60), pa.timestamp("us"))}
    found = []
    for compression in ("uncompressed", "zlib"):
        sink = pa.BufferOutputStream()
        orc.write_table(pa.table(columns), sink, compression=compression, stripe_size=1024)
        found.append(sink.getvalue().to_pybytes())
    return tuple(found)


def draw_orc(rng: random.Random) -> bytes:
    """A small file that is changed in a few places."""
    return mutate(rng, rng.choice(_orc_examples()))


def _changed(rng: random.Random, data: bytes) -> bytes:
    return mutate(rng, data) if rng.random() < 0.5 else data


def reading(form: str) -> Callable[[bytes], object]:
    """Return what reads such a file whole, and once more from a place in its middle; lines that are no rows are set
    aside."""

    def read(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "file"
            path.write_bytes(data)
            source = FileSource(str(path), form, on_error="side_output", batch_rows=BATCH_ROWS)
            source.enumerate_splits()
            status = path.stat()
            split = SourceSplit("s", {"path": str(path), "size": status.st_size, "modified_ns": status.st_mtime_ns})
            middle = _read(source, [split], 2)
            return _read(source, middle, 1 << 30)

    return read


def _read(source: FileSource, splits: list[SourceSplit], batches: int) -> list[SourceSplit]:
    reader = source.create_reader(Place())
    try:
        reader.add_splits(splits)
        for _ in range(batches):
            polled = reader.poll_next(0)
            if polled.batch is not None:
                polled.batch.validate(full=True)
            if polled.batch is None and not polled.finished_splits:
                break
        return list(reader.snapshot_splits(1))
    finally:
        reader.close()
