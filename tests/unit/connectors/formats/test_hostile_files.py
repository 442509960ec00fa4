"""Files and values that were made to end the process that reads them, or to take all of its memory, are one line."""

from __future__ import annotations

import gzip
import io
import json
import random
import resource
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc

from snapline.connectors.formats import file_reading
from snapline.connectors.formats.avro import AvroFormat
from snapline.connectors.formats.avro_bounds import BLOCK_BYTES_MAX, check_schema
from snapline.connectors.formats.csv_lines import CsvFormat
from snapline.connectors.formats.file_format import OrcFormat
from snapline.connectors.formats.file_reading import avro_rows, csv_of, json_of, text_rows
from snapline.dataflow.errors import ConnectorError

NUMBERS = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "long", "default": 0}]}
MARKER = b"S" * 16


def with_field(kind: Any) -> dict[str, Any]:
    """The schema of who wrote a file that has one column more than is read."""
    return {**NUMBERS, "fields": [*NUMBERS["fields"], {"name": "more", "type": kind}]}


def number(value: int) -> bytes:
    """As Avro writes it."""
    value, data = (value << 1) ^ (value >> 63), b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])


def container(schema: Any, rows: int, block: bytes, codec: str = "null", size: int | None = None) -> io.BytesIO:
    """A file of one block, which says that it has so many rows and bytes."""
    header = io.BytesIO()
    fastavro.writer(header, schema, [], codec=codec, sync_marker=MARKER)
    return io.BytesIO(header.getvalue() + number(rows) + number(len(block) if size is None else size) + block + MARKER)


NESTED = (number(1) + number(1)) * 100_000 + number(1) + number(0)
DOUBLED: Any = "null"
for depth in range(40):
    DOUBLED = {"type": "record", "name": f"R{depth}", "fields": [
        {"name": "a", "type": DOUBLED}, {"name": "b", "type": f"R{depth - 1}" if depth else "null"},
    ]}  # fmt: skip
BOMB = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
BOMB_BYTES = BOMB.compress(bytes(BLOCK_BYTES_MAX + 1)) + BOMB.flush()
FILES = {
    "rows that contain each other": (with_field(["null", "N"]), 1, NESTED, "contains itself"),
    "a list of nothing": (with_field({"type": "array", "items": "null"}), 1, number(1) + number(1 << 40), "no bytes"),
    "rows of nothing": ({"type": "record", "name": "N", "fields": []}, 1 << 40, b"", "says that it has"),
    "fields that double": (with_field(DOUBLED), 1, number(1), "more than 65536 fields"),
    "more rows than bytes": (NUMBERS, 1 << 61, number(1), "says that it has"),
    "fewer rows than none": (NUMBERS, -5, number(1), "a block of 1 bytes says that it has -5 rows"),
    "rows behind the last": (NUMBERS, 1, number(1) * 2, "do not end where the block does"),
}


def read(stream: io.BytesIO) -> int:
    return sum(found.rows.num_rows for found in avro_rows(AvroFormat(NUMBERS), stream, {}, 1000))


@pytest.mark.parametrize("name", FILES)
def test_a_container_that_asks_for_more_than_it_has_is_refused(name: str) -> None:
    """Recursion, lists of what has no bytes, and numbers of rows that no block can have."""
    schema, rows, block, why = FILES[name]
    with pytest.raises(ValueError, match=why):
        read(container(schema, rows, block))


def test_a_block_has_a_bound_however_it_is_compressed() -> None:
    """Sixty kilobytes that become more than is read, and sizes that are only said."""
    with pytest.raises(ValueError, match=f"more than {BLOCK_BYTES_MAX} bytes when it is decompressed"):
        read(container(NUMBERS, 1, BOMB_BYTES, "deflate"))
    with pytest.raises(ValueError, match="are the most that is read"):
        read(container(NUMBERS, 1, b"", size=1 << 61))


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_what_is_usual_is_read(codec: str) -> None:
    """Blocks of every codec, in several parts, from any row on."""
    file, rows = io.BytesIO(), [{"n": n} for n in range(10_000)]
    fastavro.writer(file, NUMBERS, rows, codec=codec)
    for done in (0, 1, 9_999):
        file.seek(0)
        found = avro_rows(AvroFormat(NUMBERS), file, {"rows": done}, 1000)
        assert list(range(done, 10_000)) == [n for part in found for n in part.rows["n"].to_pylist()]


def test_blocks_of_snappy_zstandard_and_lz4_are_decompressed_by_arrow() -> None:
    """Which needs no packages of Python's, and their sizes are looked at first."""
    plain, made = number(7), {}
    body = bytes(pa.compress(plain, "snappy", asbytes=True))
    made["snappy"] = body + zlib.crc32(plain).to_bytes(4, "big")
    made["lz4"] = len(plain).to_bytes(4, "little") + bytes(pa.compress(plain, "lz4_raw", asbytes=True))
    made["zstandard"] = bytes(pa.compress(plain, "zstd", asbytes=True))
    for codec, block in made.items():
        file = container(NUMBERS, 1, block).getvalue()
        # fastavro writes no header of a codec whose package is missing
        entry, other = b"\x08null", number(len(codec)) + codec.encode()
        assert 1 == file.count(entry)
        assert 1 == read(io.BytesIO(file.replace(entry, other)))


def test_a_schema_of_the_job_itself_has_these_bounds_too() -> None:
    """Whoever sends values to it could say any number."""
    with pytest.raises(ConnectorError, match="lists of what takes no bytes"):
        AvroFormat(with_field({"type": "array", "items": "null"}))
    with pytest.raises(ConnectorError, match="must be that of a record"):
        AvroFormat('["null", "int"]')
    check_schema(fastavro.parse_schema(with_field({"type": "array", "items": {"type": "map", "values": "null"}})))


@pytest.mark.parametrize("opened", ["[", '{"a":'])
def test_json_that_is_nested_without_end_has_no_columns(opened: str) -> None:
    """Arrow would follow it by recursion until the driver ends by a signal."""
    deep = opened * 100_000 + "1" + ("]" if opened == "[" else "}") * 100_000
    with pytest.raises(ValueError, match="nested deeper than 100"):
        json_of(io.BytesIO(f'{{"n": 1, "x": {deep}}}\n'.encode()))
    assert ["n", "s"] == json_of(io.BytesIO(b'{"n": [[1]], "s": "[[[\\"[[["}\n' * 200)).schema.names


def test_json_whose_keys_are_data_has_no_columns() -> None:
    """A column for each, with as many rows as there are lines, would take gigabytes."""
    with pytest.raises(ValueError, match="different keys"):
        json_of(io.BytesIO("".join(json.dumps({f"k{n}": n}) + "\n" for n in range(30_000)).encode()))


def test_a_header_of_csv_names_each_column_once() -> None:
    """Also where a number beyond int64 has to be looked at again."""
    for value in (b"2", b"99999999999999999999"):
        with pytest.raises(ValueError, match="its header has the column 'a' twice"):
            csv_of(io.BytesIO(b"a,a\n1," + value + b"\n"))


def test_a_header_of_csv_has_so_many_columns() -> None:
    """Each takes kilobytes, whatever is in it."""
    names = ",".join(map(str, range(100_000))).encode()
    with pytest.raises(ValueError, match="100000 columns"):
        csv_of(io.BytesIO(names + b"\n"))
    csv = CsvFormat(pa.schema([("1", pa.int64())]), header=True)
    with pytest.raises(ConnectorError, match="100000 columns"):
        csv.of_header(names)
    with pytest.raises(ConnectorError, match="cannot be read: field larger"):
        csv.of_header(b"1," + b"x" * 200_000)


def test_a_line_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some kilobytes of gzip may become any number of bytes; so many of them are read as one line."""
    monkeypatch.setattr(file_reading, "ROW_BYTES_MAX", 1 << 20)
    file = io.BytesIO(gzip.compress(bytes(8 << 20)))
    with pytest.raises(ValueError, match="line 1 is longer than 1048576 bytes"):
        list(text_rows(CsvFormat(pa.schema([("n", pa.int64())])), file, {}, 1000))


def damaged_lines() -> None:
    """A file of CSV whose compression is broken."""
    whole = bytearray(gzip.compress(b"1\n2\n" * 500))
    whole[20:22] = bytes(each ^ 0xFF for each in whole[20:22])
    list(text_rows(CsvFormat(pa.schema({"n": pa.int64()})), io.BytesIO(whole), {}, 10))


def cut_container() -> None:
    """A container of Avro that ends within a block, read from what fails there, as a store of objects may."""
    file = container(NUMBERS, 1, random.Random(1).randbytes(100_000), size=200_000).getvalue()
    packed = pa.BufferReader(gzip.compress(file)[:-20_000])
    list(avro_rows(AvroFormat(NUMBERS), pa.CompressedInputStream(packed, "gzip"), {}, 10))


@pytest.mark.parametrize("read_it", [damaged_lines, cut_container])
def test_what_cannot_be_read_takes_no_memory_for_good(read_it: Callable[[], None]) -> None:
    """A thousand such files took 78 MB and more, which a reader that follows a directory would never have given
    back."""

    def resident(times: int) -> int:
        for _ in range(times):
            with pytest.raises((OSError, ConnectorError, ValueError)):
                read_it()
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    assert -resident(100) + resident(400) < 8 << 20


def test_a_file_of_json_that_is_null_has_no_columns() -> None:
    """Arrow ended the process by a signal."""
    for text in (b"null\n", b"null\nnull", b" null\n\n"):
        with pytest.raises(ValueError, match="its first line is no JSON object"):
            json_of(io.BytesIO(text))


def test_a_file_of_json_without_fields_has_no_columns() -> None:
    """It was found out when the job read the file, in words of Arrow's that name neither cause nor way out."""
    for text in (b"{}\n", b"{}\n{}", b" {} \n\n"):
        with pytest.raises(ValueError, match="its objects have no fields"):
            json_of(io.BytesIO(text))


def test_a_decimal_without_digits_is_no_column() -> None:
    """The specification lets readers take it for its bytes; no column says how."""
    for more in ({}, {"precision": 0}, {"precision": 77}):
        kind = {"type": "bytes", "logicalType": "decimal", **more}
        with pytest.raises(ConnectorError, match=r"a decimal of|not an Avro schema"):
            AvroFormat(with_field(kind))


def test_texts_of_orc_that_are_none_are_refused_where_they_are_read() -> None:
    """Whoever uses them would fail with no word of the file."""
    sink = pa.BufferOutputStream()
    orc.write_table(pa.table({"text": ["marked", "x"]}), sink, compression="uncompressed")
    data = sink.getvalue().to_pybytes()
    assert 3 <= data.count(b"marked")  # the value and its statistics
    with pytest.raises(pa.ArrowInvalid, match="Invalid UTF8"):
        list(OrcFormat().read(io.BytesIO(data.replace(b"marked", b"m\xff\xffked")), {}, batch_rows=10))
