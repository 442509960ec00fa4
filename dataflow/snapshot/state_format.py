"""The file of keyed state: one table, a row per key, sorted by key group, readable by ranges of key groups.

Layout (little endian), documented for other readers in docs/state-format.md:

    8 bytes   magic "SNAPKEYS"
    u32       format version (1)
    u32       length of the header
    u64       XXH64 of the header
    header    u32 max parallelism, i32 first and i32 last key group (inclusive; last < first: none),
              u32 number of blocks, u32 length of the schema,
              u64 row offsets: where each key group's rows begin, and the number of rows,
              blocks: u64 first row, u64 rows, u64 position in the file, u64 length, u64 XXH64 of its bytes,
              schema: an Arrow IPC schema message
    blocks    Arrow IPC record batch messages of that schema, aligned to 64 bytes

The first columns are the key (field metadata `snapline.column` = "key"), then a column per state ("state", with kind
and serializer) and per timer queue ("timers"). The schema is enough to read everything without the job's code. A reader
asks for the header, and then for the blocks that hold its key groups. Takes the role of Flink's KeyGroupRangeOffsets
and the full snapshot format (KeyedStateBackend savepoints), with columns instead of serialized entries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from snapline.dataflow.api.state import StateDescriptor, StateKind, descriptor_of
from snapline.dataflow.columnar.large_arrays import TOO_LARGE
from snapline.dataflow.columnar.message_buffer import MessageBuffer
from snapline.dataflow.columnar.validated import DAMAGE, check_names, validated
from snapline.dataflow.errors import StateError
from snapline.dataflow.key_groups import EMPTY_KEY_GROUP_RANGE, KeyGroupRange

MAGIC = b"SNAPKEYS"
FORMAT_VERSION = 1
COLUMN_METADATA = b"snapline.column"
DELTA_METADATA = b"snapline.delta"
"""The metadata key of the schema of a delta, which has the keys touched since the files before it; null: no state."""
KEY_COLUMN, STATE_COLUMN, TIMERS_COLUMN = b"key", b"state", b"timers"
BLOCK_ROWS = 65_536
"""A block ends at the first key group's end after a quarter of this, and in the middle of a key group at this many
rows. Where so many do not fit into one batch, it is fewer."""
READ_BYTES = 8 << 20
"""Neighbouring blocks are read together up to this size."""

_PREFIX = struct.Struct("<8sIIQ")
_FIXED = struct.Struct("<IiiII")
_BLOCK = struct.Struct("<QQQQQ")
_ALIGNMENT = 64
_MOST = 1 << 60
"""Rows or bytes of a file: more is nonsense."""
_ROLES = (KEY_COLUMN, STATE_COLUMN, TIMERS_COLUMN)
_FEWER = 16
"""So many times fewer rows are in a block when those of one were too large."""

ReadRange = Callable[[int, int], bytes]
"""(offset, size) -> the bytes of the file."""
Int64Array = np.ndarray[Any, np.dtype[np.int64]]


class StateFormatError(StateError):
    """A file of keyed state is damaged, or not one, or of a format that this version does not read."""


@contextmanager
def refusing_unfit() -> Iterator[None]:
    """Raise StateFormatError in place of what values raise that are not what their file promises."""
    try:
        yield
    except (pa.ArrowException, AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise StateFormatError(
            f"the keyed state is damaged, or not one of ours ({type(error).__name__}: {error}): restore an older checkpoint"
        ) from error


@dataclass(frozen=True, slots=True)
class KeyGroupRangeOffsets:
    """Where each key group's rows begin; one offset more than key groups (Flink: same name, offsets of bytes there)."""

    key_group_range: KeyGroupRange
    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises ValueError unless every key group has its offset, and the last one its end."""
        groups = len(self.key_group_range)
        if len(self.offsets) != groups + 1:
            raise ValueError(f"{groups} key groups need {groups + 1} offsets, not {len(self.offsets)}")

    def intersect(self, key_groups: KeyGroupRange) -> KeyGroupRangeOffsets:
        """The part for the key groups in both."""
        common = self.key_group_range.intersect(key_groups)
        start = common.start - self.key_group_range.start
        return KeyGroupRangeOffsets(common, self.offsets[start : start + len(common) + 1] if len(common) else (0,))

    def rows_of(self, key_groups: KeyGroupRange) -> tuple[int, int]:
        """(first row, row after the last) of the part of `key_groups` that is here."""
        part = self.intersect(key_groups)
        return part.offsets[0], part.offsets[-1]


@dataclass(frozen=True, slots=True)
class _Block:
    first_row: int
    rows: int
    position: int
    length: int
    checksum: int


@dataclass(frozen=True, slots=True)
class KeyedStateHeader:
    """What a file says of itself."""

    schema: pa.Schema
    max_parallelism: int
    key_group_offsets: KeyGroupRangeOffsets
    blocks: tuple[_Block, ...]

    @property
    def key_fields(self) -> list[pa.Field]:
        """Return the fields of the key columns."""
        return self._fields(KEY_COLUMN)

    @property
    def state_fields(self) -> list[pa.Field]:
        """A column per state; `snapline.dataflow.api.state.descriptor_of` reads its metadata."""
        return self._fields(STATE_COLUMN)

    @property
    def state_descriptors(self) -> list[StateDescriptor]:
        """What each state column says of itself. Raises StateError where that is no state."""
        with refusing_unfit():
            return [_described(field) for field in self.state_fields]

    @property
    def timer_fields(self) -> list[pa.Field]:
        """A column per timer queue: lists of timestamp and namespace."""
        return self._fields(TIMERS_COLUMN)

    @property
    def is_delta(self) -> bool:
        """Whether the file only says what has become of some keys since the files before it."""
        return DELTA_METADATA in (self.schema.metadata or {})

    @property
    def row_count(self) -> int:
        """Return how many keys the file has."""
        return self.key_group_offsets.offsets[-1]

    def _fields(self, role: bytes) -> list[pa.Field]:
        return [field for field in self.schema if column_role(field) == role]


def _described(field: pa.Field) -> StateDescriptor:
    descriptor, found = descriptor_of(field), field.type
    fits = {
        StateKind.MAP: pa.types.is_map(found),
        StateKind.LIST: pa.types.is_large_list(found),
        StateKind.RUNNING_AGGREGATE: found == descriptor.storage_type,
    }
    if not fits.get(descriptor.kind, not descriptor.serializer or found == descriptor.storage_type):
        raise ValueError(f"the {descriptor.kind.value} state {field.name!r} is of type {found}")
    return descriptor


def column_role(field: pa.Field) -> bytes:
    """Return what a column is: KEY_COLUMN, STATE_COLUMN or TIMERS_COLUMN."""
    return (field.metadata or {}).get(COLUMN_METADATA, b"")


def with_role(field: pa.Field, role: bytes) -> pa.Field:
    """The field, marked as what it is in the file."""
    return field.with_metadata({**(field.metadata or {}), COLUMN_METADATA: role})


def block_bounds(row_offsets: Int64Array, block_rows: int = BLOCK_ROWS) -> list[tuple[int, int]]:
    """(first row, row after the last) of each block, for rows whose key groups begin at `row_offsets`. `block_rows`: in
    place of BLOCK_ROWS."""
    total = int(row_offsets[-1])
    bounds: list[tuple[int, int]] = []
    first = 0
    for end in row_offsets[1:].tolist():
        while end - first > block_rows:
            bounds.append((first, first + block_rows))
            first += block_rows
        if end - first >= max(1, block_rows // 4):
            bounds.append((first, end))
            first = end
    if first < total:
        bounds.append((first, total))
    return bounds


def encode_keyed_state(
    schema: pa.Schema,
    key_group_range: KeyGroupRange,
    max_parallelism: int,
    row_offsets: Sequence[int] | Int64Array,
    read_rows: Callable[[int, int], pa.RecordBatch],
) -> memoryview:
    """The file. `row_offsets`: where each key group's rows begin and, last, how many there are; `read_rows(first, end)`
    gives rows in that order, and may be asked again for those it gave. All fields of the schema carry a role
    (`with_role`)."""
    offsets = np.asarray(row_offsets, np.int64)
    block_rows = BLOCK_ROWS
    while True:
        try:
            return _encode(
                schema, key_group_range, max_parallelism, offsets, block_bounds(offsets, block_rows), read_rows
            )
        except TOO_LARGE:
            if block_rows == 1:
                raise
            block_rows //= _FEWER


def read_ahead(gather: Callable[[int, int], pa.RecordBatch], first: int, end: int, further: int) -> pa.RecordBatch:
    """The rows from `first` to `end`, and those up to `further` if all of them fit into one batch."""
    if further > end:
        with suppress(*TOO_LARGE):
            return gather(first, further)
    return gather(first, end)


def _encode(
    schema: pa.Schema,
    key_group_range: KeyGroupRange,
    max_parallelism: int,
    offsets: Int64Array,
    bounds: Sequence[tuple[int, int]],
    read_rows: Callable[[int, int], pa.RecordBatch],
) -> memoryview:
    schema_bytes = schema.serialize()
    header_size = _FIXED.size + 8 * len(offsets) + _BLOCK.size * len(bounds) + len(schema_bytes)
    file = MessageBuffer(_PREFIX.size + header_size, schema, _ALIGNMENT)
    blocks: list[bytes] = []
    for first, end in bounds:
        position, body = file.append(read_rows(first, end), rows_to_come=int(offsets[-1]) - end)
        blocks.append(_BLOCK.pack(first, end - first, position, len(body), xxhash.xxh64_intdigest(body)))
    header = b"".join(
        [
            _FIXED.pack(max_parallelism, key_group_range.start, key_group_range.end, len(bounds), len(schema_bytes)),
            offsets.astype("<u8").tobytes(),
            *blocks,
            schema_bytes,
        ]
    )
    prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(header), xxhash.xxh64_intdigest(header))
    return file.finished(prefix + header)


def read_header(read_range: ReadRange) -> KeyedStateHeader:
    """The header; StateFormatError for what is not a file of keyed state, or damaged."""
    prefix = read_range(0, _PREFIX.size)
    if len(prefix) < _PREFIX.size or prefix[:8] != MAGIC:
        raise StateFormatError("this is not a file of keyed state: it does not begin with SNAPKEYS")
    _, version, length, checksum = _PREFIX.unpack(prefix)
    if version > FORMAT_VERSION:
        raise StateFormatError(
            f"the keyed state is of format version {version}, and this Snapline reads up to {FORMAT_VERSION}: use the "
            "version that wrote it, or a newer one"
        )
    header = read_range(_PREFIX.size, length)
    if len(header) != length or xxhash.xxh64_intdigest(header) != checksum:
        raise StateFormatError(
            "the header of the keyed state is damaged (its checksum differs): restore an older checkpoint"
        )
    try:
        return _parse_header(header)
    except (struct.error, *DAMAGE) as error:
        raise StateFormatError(
            f"the header of the keyed state is damaged ({error}): restore an older checkpoint"
        ) from error


def _parse_header(header: bytes) -> KeyedStateHeader:
    max_parallelism, start, end, block_count, schema_length = _FIXED.unpack_from(header)
    groups = KeyGroupRange(start, end) if start <= end else EMPTY_KEY_GROUP_RANGE
    position = _FIXED.size
    offsets = np.frombuffer(header, "<u8", len(groups) + 1, position)
    position += 8 * len(offsets)
    blocks = tuple(_Block(*_BLOCK.unpack_from(header, position + i * _BLOCK.size)) for i in range(block_count))
    position += block_count * _BLOCK.size
    schema = pa.ipc.read_schema(pa.py_buffer(header[position : position + schema_length]))
    check_names(schema)
    _check_columns(schema)
    _check_rows(offsets, blocks, _PREFIX.size + len(header))
    return KeyedStateHeader(schema, max_parallelism, KeyGroupRangeOffsets(groups, tuple(offsets.tolist())), blocks)


def _check_columns(schema: pa.Schema) -> None:
    """ValueError unless the key comes first, then states, then timers. Columns of the key have names of their own, and
    so have the others: a state may be called as a column of the key."""
    roles = [column_role(field) for field in schema]
    order = [_ROLES.index(role) for role in roles if role in _ROLES]
    if len(order) < len(roles) or order != sorted(order) or order[:1] != [0]:
        raise ValueError("its columns are not a key, states and timers")
    names = list(zip(schema.names, (role == KEY_COLUMN for role in roles), strict=True))
    if len(set(names)) < len(names):
        raise ValueError("two of its columns have one name")


def _check_rows(offsets: Int64Array, blocks: Sequence[_Block], header_end: int) -> None:
    """ValueError unless the rows of key groups follow each other, and so do the blocks, which have all of them."""
    if offsets[0] or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("its key groups do not follow each other")
    row, position = 0, header_end
    for block in blocks:
        if (
            block.first_row != row
            or block.position < position
            or max(block.rows, block.position + block.length) > _MOST
        ):
            raise ValueError("its blocks do not follow each other")
        row, position = row + block.rows, block.position + block.length
    if row != offsets[-1]:
        raise ValueError(f"its blocks have {row} rows, and its key groups {offsets[-1]}")


def decode_keyed_state(
    read_range: ReadRange, key_group_range: KeyGroupRange, header: KeyedStateHeader | None = None
) -> tuple[KeyedStateHeader, Iterator[pa.RecordBatch]]:
    """The header, and the rows of these key groups as batches; only the blocks that hold them are read, and checked."""
    known = read_header(read_range) if header is None else header
    return known, _read_rows(read_range, known, *known.key_group_offsets.rows_of(key_group_range))


def _read_rows(read_range: ReadRange, header: KeyedStateHeader, first: int, end: int) -> Iterator[pa.RecordBatch]:
    wanted = [block for block in header.blocks if block.first_row < end and block.first_row + block.rows > first]
    for run in _runs(wanted):
        position = run[0].position
        size = run[-1].position + run[-1].length - position
        data = pa.py_buffer(read_range(position, size))
        for block in run:
            body = data.slice(block.position - position, block.length) if data.size == size else None
            if body is None or xxhash.xxh64_intdigest(body) != block.checksum:
                raise StateFormatError(
                    f"the keyed state is damaged: the checksum of its rows {block.first_row} to "
                    f"{block.first_row + block.rows - 1} (bytes {block.position} to {block.position + block.length - 1}) "
                    "differs; restore an older checkpoint"
                )
            batch = _read_block(body, header.schema)
            if batch.num_rows != block.rows:
                raise StateFormatError(
                    f"the keyed state is damaged: a block has {batch.num_rows} rows, and its header says {block.rows}; "
                    "restore an older checkpoint"
                )
            skip = max(0, first - block.first_row)
            yield batch.slice(skip, min(end, block.first_row + block.rows) - block.first_row - skip)


def _read_block(body: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    try:
        batch = validated(pa.ipc.read_record_batch(body, schema))
        for field, column in zip(schema, batch.columns, strict=True):
            _check_lists(field, column)
    except DAMAGE as error:
        raise StateFormatError(f"the keyed state is damaged ({error}): restore an older checkpoint") from error
    return batch


def _check_lists(field: pa.Field, column: pa.Array) -> None:
    """ValueError for a list that is absent and has elements all the same, which Arrow allows: whoever restores counts
    elements by the bounds of lists."""
    if column.null_count and _is_list(column.type):
        lengths = np.diff(np.asarray(column.offsets))
        if lengths[np.asarray(column.is_null())].any():
            raise ValueError(f"column {field.name} has elements in a list that is not there")
    if column_role(field) == TIMERS_COLUMN and _is_list(column.type):
        times = column.flatten()
        if times.null_count or any(part.null_count for part in (times.flatten() if times.type.num_fields else ())):
            raise ValueError(f"column {field.name} has timers without a time")


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type) or pa.types.is_map(data_type))


def _runs(blocks: Iterable[_Block]) -> Iterator[list[_Block]]:
    """Neighbouring blocks, up to READ_BYTES together."""
    run: list[_Block] = []
    for block in blocks:
        if run and block.position + block.length - run[0].position > READ_BYTES:
            yield run
            run = []
        run.append(block)
    if run:
        yield run
