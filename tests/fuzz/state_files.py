"""Files of keyed state as a forger would make them: every checksum is right, and what they say is not.

A file of ours is taken apart, a few of its columns, fields or numbers are replaced, and it is put together again with
checksums over that. Whoever restores it takes it over or raises StateError, and what was taken over can be used,
written and restored again.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.state_format import MAGIC, decode_keyed_state
from snapline.taskmanager.operators.base.operator_contract import RestoredState
from snapline.taskmanager.operators.factory import create_operator
from tests.fuzz.drawn_inputs import mutate
from tests.unit.taskmanager.operators.harness import Harness, KeyedFile, Written
from tests.unit.taskmanager.operators.windows.test_windows_outside_memory import SMALL, SPECS, STEP_MS, story
from tests.unit.taskmanager.state.naive import ALL, MAX_PARALLELISM, Row, Subject
from tests.unit.taskmanager.state.test_keyed_backend import StoredFile, written

_PREFIX = struct.Struct("<8sIIQ")
_FIXED = struct.Struct("<IiiII")
_BLOCK = struct.Struct("<QQQQQ")
_EXTREMES = (0, 1, -1, 7, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
_KINDS = (b"value", b"list", b"map", b"reducing", b"aggregating", b"running_aggregate", b"", b"none")


def forge(examples: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    """Return what draws forged copies of these files."""
    taken_apart = [_take_apart(example) for example in examples]

    def draw(rng: random.Random) -> bytes:
        batch, offsets = rng.choice(taken_apart)
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            batch = _with_other_column(rng, batch)
        return _put_together(rng, batch, list(offsets))

    return draw


def _take_apart(data: bytes) -> tuple[pa.RecordBatch, tuple[int, ...]]:
    header, batches = decode_keyed_state(StoredFile(data).read_range, ALL)
    table = pa.Table.from_batches(list(batches), header.schema).combine_chunks()
    return table.to_batches()[0], header.key_group_offsets.offsets


def _with_other_column(rng: random.Random, batch: pa.RecordBatch) -> pa.RecordBatch:
    at = rng.randrange(batch.num_columns)
    fields, columns = list(batch.schema), list(batch.columns)
    field, column = fields[at], columns[at]
    match rng.randrange(8):
        case 0:
            column = _nulled(rng, column)
        case 1:
            column = _other_numbers(rng, column)
        case 2:
            column = _any_array(rng, len(column))
        case 3:
            column = columns[rng.randrange(len(columns))]
        case 4:
            column = column.take(pa.array([rng.randrange(len(column)) for _ in range(len(column))]))
        case 5:
            metadata = {**(field.metadata or {}), b"snapline.state.kind": rng.choice(_KINDS)}
            field = field.with_metadata(metadata)
        case 6:
            role = rng.choice((b"key", b"state", b"timers", b""))
            field = field.with_metadata({**(field.metadata or {}), b"snapline.column": role})
        case _:
            field = field.with_name(
                rng.choice(("", "x", "a/b", "user-timers/event", "user-timers/other", fields[0].name))
            )
    fields[at] = pa.field(field.name, column.type, metadata=field.metadata)
    columns[at] = column
    if len(fields) > 1 and rng.random() < 0.1:
        del fields[at], columns[at]
    schema = pa.schema(fields, metadata={b"snapline.delta": b"1"} if rng.random() < 0.1 else batch.schema.metadata)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _nulled(rng: random.Random, column: pa.Array) -> pa.Array:
    """Nulls in the column, or deep in it."""
    values = [None if rng.random() < 0.3 else value for value in column.to_pylist()]
    if pa.types.is_large_list(column.type) and rng.random() < 0.5:
        absent = pa.array([rng.random() < 0.3 for _ in range(len(column))])
        return pa.LargeListArray.from_arrays(column.offsets, column.values, type=column.type, mask=absent)
    if pa.types.is_large_list(column.type):
        child = column.values
        mask = np.array([rng.random() < 0.3 for _ in range(len(child))], np.bool_)
        if pa.types.is_struct(child.type):
            parts = [pa.array(part.to_pylist(), mask=mask, type=part.type) for part in child.flatten()]
            child = pa.StructArray.from_arrays(parts, fields=list(child.type))
        else:
            child = pa.array(child.to_pylist(), mask=mask, type=child.type)
        return pa.LargeListArray.from_arrays(column.offsets, child, type=column.type)
    return pa.array(values, column.type)


def _other_numbers(rng: random.Random, column: pa.Array) -> pa.Array:
    """Every number that is eight bytes wide replaced by an extreme one, here and there, however deep it lies."""

    def changed(value: Any) -> Any:
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int):
            return rng.choice(_EXTREMES) if rng.random() < 0.3 else value
        if isinstance(value, (list, tuple)):
            return [changed(each) for each in value]
        if isinstance(value, dict):
            return {name: changed(each) for name, each in value.items()}
        return value

    try:
        return pa.array([changed(value) for value in column.to_pylist()], column.type)
    except (pa.ArrowException, OverflowError):
        return column


def _any_array(rng: random.Random, length: int) -> pa.Array:
    kind = rng.choice((
        pa.int64(), pa.int8(), pa.string(), pa.large_binary(), pa.float64(), pa.null(), pa.bool_(), pa.list_(pa.int64()),
        pa.map_(pa.string(), pa.int64()), pa.struct([]), pa.struct([pa.field("count", pa.string())]),
        pa.large_list(pa.struct([])), pa.large_list(pa.null()), pa.dictionary(pa.int32(), pa.string()),
        pa.large_list(pa.struct([pa.field("timestamp", pa.string()), pa.field("namespace", pa.int64())])),
    ))  # fmt: skip
    return pa.nulls(length, kind) if rng.random() < 0.7 else pa.array([None] * length, kind)


def _put_together(rng: random.Random, batch: pa.RecordBatch, offsets: list[int]) -> bytes:
    """The file of these rows, with right checksums; some of its numbers are others."""
    fixed = [16, 0, 15, 0, 0]
    cut = rng.choice((0, 0, batch.num_rows // 2))
    bounds = [(0, cut), (cut, batch.num_rows)] if cut else [(0, batch.num_rows)]
    schema_bytes = batch.schema.serialize().to_pybytes()
    bodies = [batch.slice(first, end - first).serialize().to_pybytes() for first, end in bounds]
    if rng.random() < 0.2:
        at = rng.randrange(len(bodies))
        bodies[at] = mutate(rng, bodies[at])
    fixed[3:] = [len(bodies), len(schema_bytes)]
    if rng.random() < 0.2:
        fixed[rng.randrange(5)] = rng.choice((0, 1, 2, 16, 17, 1 << 15, (1 << 31) - 1))
    if rng.random() < 0.2:
        offsets[rng.randrange(len(offsets))] = rng.choice((0, 1, 3, 100, 1 << 31, (1 << 63) - 1, (1 << 64) - 1))
    header_size = _FIXED.size + 8 * len(offsets) + _BLOCK.size * len(bodies) + len(schema_bytes)
    position = _PREFIX.size + header_size
    pieces, blocks = [], []
    for (first, end), body in zip(bounds, bodies, strict=True):
        padding = -position % 64
        block = [first, end - first, position + padding, len(body), xxhash.xxh64_intdigest(body)]
        if rng.random() < 0.15:
            block[rng.randrange(4)] = rng.choice((0, 1, 5, 100, 1 << 31, (1 << 63) - 1, (1 << 64) - 1))
        blocks.append(_BLOCK.pack(*block))
        pieces += [bytes(padding), body]
        position += padding + len(body)
    header = b"".join([_FIXED.pack(*fixed), np.array(offsets, "<u8").tobytes(), *blocks, schema_bytes])
    return b"".join([_PREFIX.pack(MAGIC, 1, len(header), xxhash.xxh64_intdigest(header)), header, *pieces])


# --- who restores them ------------------------------------------------------------------------------------------------

_KEYS = ("x", "y", "", "zz", None, *(f"k{n}" for n in range(25)))
_OPERATIONS = (
    ("number.update", 3), ("text.update", "abc"), ("document.update", [1]), ("numbers.add", 1), ("numbers.add", 2),
    ("texts.put", ("a", "b")), ("texts.put", ("b", None)), ("by number.put", (1, 2)), ("highest.add", 4),
    ("mean.add", 4), ("timer.set", 5), ("timer.set", 7),
)  # fmt: skip


def states_of_functions() -> list[bytes]:
    """A file with every kind of state, and timers."""
    subject = Subject()
    subject.claim()
    subject.process([(key, operation) for key in _KEYS for operation in _OPERATIONS])
    return [file.data for file in written(subject.backend.snapshot_parts())]


def restore_states(data: bytes) -> None:
    """In memory, outside of it, and half: the state is used, written and restored again."""
    for memory_bytes in (None, 0, 900):
        for claimed in (True, False):
            subject = Subject(memory_bytes=memory_bytes)
            subject.backend.restore([StoredFile(data)])
            if claimed:
                subject.claim()
                adding: list[Row] = [
                    ("x", ("numbers.add", 1)),
                    (None, ("texts.put", ("a", "c"))),
                    ("q", ("timer.set", 9)),
                ]
                subject.process(adding)
                subject.timers.event.advance(1 << 40, 1000)
            files = written(subject.backend.snapshot_parts())
            Subject(memory_bytes=memory_bytes).backend.restore(files)


def _operator(name: str, configuration: dict[str, str]) -> Harness:
    operator = create_operator(SPECS[name], lambda: None)  # type: ignore[arg-type,return-value]
    return Harness(operator, configuration=configuration, max_parallelism=MAX_PARALLELISM)


def _tell(harness: Harness, name: str, first: int, end: int, late_steps: int) -> None:
    inputs = 2 if "join" in name else 1
    for step, batch in story(inputs):
        if first <= step < end:
            harness.advance(step * STEP_MS)
            harness.work().operator.process_batch(batch, step % inputs)
            harness.watermark((step - late_steps) * STEP_MS)


def _snapshot_of(name: str) -> Written:
    harness = _operator(name, {}).start()
    _tell(harness, name, 0, 6, 6)
    return harness.snapshot()


_SNAPSHOTS: dict[str, Written] = {}


def states_of_windows(rng: random.Random) -> bytes:
    """A forged file of a window or join, rows that wait for their window included, behind the number of its kind."""
    name = rng.choice(list(SPECS))
    if name not in _SNAPSHOTS:
        _SNAPSHOTS[name] = _snapshot_of(name)
    return bytes([list(SPECS).index(name)]) + forge([_SNAPSHOTS[name].keyed[0].data])(rng)


def restore_windows(data: bytes) -> None:
    """In memory and outside of it: rows come, a snapshot is taken, and all windows fire."""
    name = list(SPECS)[data[0] % len(SPECS)] if data else "rows"
    if name not in _SNAPSHOTS:
        _SNAPSHOTS[name] = _snapshot_of(name)
    lists = {state.name: tuple(state.elements) for state in _SNAPSHOTS[name].lists}
    for configuration in ({}, SMALL):
        harness = _operator(name, configuration)
        harness.start(RestoredState(CheckpointID(7), (KeyedFile(data[1:], ALL),), lists)).work()
        _tell(harness, name, 7, 9, 1)
        harness.snapshot()
        harness.operator.finish()
        harness.work().watermark(1 << 40)
