"""What bounds the work that somebody else's Avro can ask for: schemas that files and registries bring along, and blocks
of containers.

Decides that a schema contains neither itself, because fastavro follows it by recursion in C until the process ends by a
signal, nor lists of what has no bytes, nor so many fields by repetition that a row of no bytes never ends; that a block
has so many bytes at most, also when it is no longer compressed; that it has no more rows than bytes; and that a decimal
has so many bytes at most, because to make digits of half a megabyte takes a minute. It does not know what rows hold.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

BLOCK_BYTES_MAX = 64 << 20
"""A larger block is taken for something that only looks like one; what is usual is less than a megabyte."""
XZ_MEMORY_MAX = 256 << 20
"""A block compressed by xz says itself how much memory it takes to read."""
FIELDS_MAX = 1 << 16
"""The most types in a schema, those of repeated records counted each time."""
LEAST_BYTES = {"null": 0, "float": 4, "double": 8}
"""What a value of a primitive type takes at least; the others take one byte."""
DECIMAL_BYTES_MAX = 1 << 10
"""The 38 digits that columns have take 16."""
SYNC_BYTES = 16
LONG_BYTES_MAX = 10
CHECKSUM_BYTES = 4


def bound_decimals() -> None:
    """Let fastavro refuse longer decimals, in this process. May be called again."""
    from fastavro.read import LOGICAL_READERS

    for name in ("bytes-decimal", "fixed-decimal"):
        if not isinstance(LOGICAL_READERS[name], _BoundedDecimals):
            LOGICAL_READERS[name] = _BoundedDecimals(LOGICAL_READERS[name])


class _BoundedDecimals:
    def __init__(self, read: Callable[..., Any]) -> None:
        self._read = read

    def __call__(self, data: bytes, *schemas: Any) -> Any:
        if len(data) > DECIMAL_BYTES_MAX:
            raise ValueError(f"a decimal of {len(data)} bytes; {DECIMAL_BYTES_MAX} are the most")
        return self._read(data, *schemas)


# --- schemas ----------------------------------------------------------------------------------------------------------


def check_schema(parsed: Any) -> None:
    """Raises ValueError for a schema (as fastavro parses it) by which a few bytes can mean any amount of work.

    >>> from snapline.connectors.formats.avro_bounds import check_schema
    >>> check_schema({"type": "array", "items": "null"})
    Traceback (most recent call last):
    ...
    ValueError: its schema has lists of what takes no bytes, of which a few bytes can say any number
    """
    _measure(parsed, {})


def _measure(kind: Any, known: dict[str, tuple[int, int] | None]) -> tuple[int, int]:
    """The bytes that a value takes at least, and the types in it. `known`: those that have a name; None: it is open."""
    if isinstance(kind, str):
        if kind in known and known[kind] is None:
            raise ValueError(f"its schema contains itself ({kind!r}), which no row of columns can")
        return known.get(kind) or (LEAST_BYTES.get(kind, 1), 1)
    if isinstance(kind, list):
        return 1, _checked_sum(_measure(each, known)[1] for each in kind)
    match kind["type"]:
        case "record" | "error":
            name = str(kind["name"])
            known[name] = None
            parts = [_measure(field["type"], known) for field in kind["fields"]]
            known[name] = found = sum(least for least, _ in parts), _checked_sum(count for _, count in parts)
            return found
        case "array":
            least, count = _measure(kind["items"], known)
            if not least:
                raise ValueError("its schema has lists of what takes no bytes, of which a few bytes can say any number")
            return 1, count + 1
        case "map":
            return 1, _measure(kind["values"], known)[1] + 1
        case "enum":
            known[str(kind["name"])] = (1, 1)
            return 1, 1
        case "fixed":
            known[str(kind["name"])] = found = int(kind["size"]), 1
            return found
        case inner:
            return _measure(inner, known)


def _checked_sum(counts: Iterator[int]) -> int:
    total = 1 + sum(counts)
    if total > FIELDS_MAX:
        raise ValueError(f"its schema has more than {FIELDS_MAX} fields, those of repeated records counted each time")
    return total


def readable(stream: Any) -> pa.NativeFile:
    """The file as Arrow reads it."""
    return stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="r")


def read_bytes(stream: pa.NativeFile, size: int) -> bytes:
    """At most so many bytes. Arrow's own `read` keeps the memory of what it could not read for good."""
    return bytes(stream.read_buffer(size))


# --- containers -------------------------------------------------------------------------------------------------------


class BoundedContainer:
    """A container for fastavro to read, made from another one: its blocks are plain and have been looked at.

    Raises ValueError, also from `read`, for a block that is not what it says.
    """

    def __init__(self, stream: Any) -> None:
        import fastavro

        bound_decimals()
        stream = readable(stream)
        header = fastavro.reader(stream)
        check_schema(header.writer_schema)
        self._stream = stream
        self._codec = str(header.codec)
        if self._codec not in _CODECS:
            raise ValueError(f"its blocks are compressed by {self._codec!r}; there are {', '.join(_CODECS)}")
        schema = str(header.metadata["avro.schema"]).encode()
        entries = [b"avro.schema", schema, b"avro.codec", b"null"]
        lengths_and_texts = b"".join(_long(len(each)) + each for each in entries)
        self._frames = self._blocks(b"Obj\x01" + _long(2) + lengths_and_texts + _long(0) + bytes(SYNC_BYTES))
        self._marker = header._header["sync"]  # noqa: SLF001 (fastavro has no other name for it)
        self._here = io.BytesIO()
        self._before = 0

    def read(self, size: int) -> bytes:
        """So many bytes, or what there is until the end."""
        found = self._here.read(size)
        while len(found) < size and (frame := next(self._frames, None)) is not None:
            self._before += self._here.tell()
            self._here = io.BytesIO(frame)
            found += self._here.read(size - len(found))
        return found

    def tell(self) -> int:
        """How many bytes were read."""
        return self._before + self._here.tell()

    def _blocks(self, header: bytes) -> Iterator[bytes]:
        yield header
        while (first := self._stream.read(1)) != b"":
            count, size = self._number(first), self._number(self._stream.read(1))
            if not 0 <= size <= BLOCK_BYTES_MAX:
                raise ValueError(f"a block says that it has {size} bytes; {BLOCK_BYTES_MAX} are the most that is read")
            data, marker = read_bytes(self._stream, size), self._stream.read(SYNC_BYTES)
            if len(data) < size or marker != self._marker:
                raise ValueError("a block does not end where it says; the file is cut short, or damaged")
            plain = _CODECS[self._codec](data)
            if len(plain) > BLOCK_BYTES_MAX:
                raise ValueError(f"a block has more than {BLOCK_BYTES_MAX} bytes when it is decompressed")
            if not 0 <= count <= len(plain):
                raise ValueError(f"a block of {len(plain)} bytes says that it has {count} rows")
            yield _long(count) + _long(len(plain))
            yield plain
            yield bytes(SYNC_BYTES)

    def _number(self, first: bytes) -> int:
        """The number that begins with this byte."""
        data = first
        while data[-1:] >= b"\x80" and len(data) < LONG_BYTES_MAX:
            data += self._stream.read(1) or b"\x00"
        value = sum((byte & 127) << (7 * place) for place, byte in enumerate(data))
        return (value >> 1) ^ -(value & 1)


def _long(value: int) -> bytes:
    """A number that is not negative, as Avro writes it."""
    value, data = value << 1, bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


def _snappy(data: bytes) -> bytes:
    """Snappy says first how large it becomes; behind it lies a checksum over that."""
    body, size = data[:-CHECKSUM_BYTES], 0
    for place, byte in enumerate(body[:LONG_BYTES_MAX]):
        size |= (byte & 127) << (7 * place)
        if byte < 128:
            break
    plain = _decompressed("snappy", body, size)
    if zlib.crc32(plain) != int.from_bytes(data[-CHECKSUM_BYTES:], "big"):
        raise ValueError("the checksum of a block is another one")
    return plain


def _decompressed(codec: str, data: bytes, size: int) -> bytes:
    if size > BLOCK_BYTES_MAX:
        raise ValueError(f"a block has {size} bytes when it is decompressed; {BLOCK_BYTES_MAX} are the most")
    plain: bytes = pa.decompress(data, size, codec, asbytes=True)
    return plain


def _zstandard(data: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return read_bytes(stream, BLOCK_BYTES_MAX + 1)


_CODECS: Mapping[str, Any] = {
    "null": bytes,
    "deflate": lambda data: zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, BLOCK_BYTES_MAX + 1),
    "bzip2": lambda data: bz2.BZ2Decompressor().decompress(data, BLOCK_BYTES_MAX + 1),
    "xz": lambda data: lzma.LZMADecompressor(memlimit=XZ_MEMORY_MAX).decompress(data, BLOCK_BYTES_MAX + 1),
    "snappy": _snappy,
    "zstandard": _zstandard,
    "lz4": lambda data: _decompressed("lz4_raw", data[4:], int.from_bytes(data[:4], "little")),
}
"""What makes the bytes of a block plain; never much more than are allowed."""
