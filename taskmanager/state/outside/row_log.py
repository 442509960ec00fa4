"""A log of rows in segments: rows are appended, read by their position, and declared dead; a segment of which half is
dead is written anew.

A row is a multiple of eight bytes long and begins with its length (4 bytes), a number that its owner chooses (4), and
a checksum over all of it (4), because a disk may return other bytes than it was given: whoever reads such a row gets a
StateError, and the job goes on from its latest checkpoint. A position says the segment, the row's number in it, and
where it begins, so that a row can be declared dead without a look at it. What is written never changes, so all that
has to be kept of a frozen log is which rows were dead, a bit for each. It does not know what rows hold. Mirrors the
log of FASTER (Chandramouli et al., 2018); Flink has nothing like it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from snapline.dataflow.columnar.arrow_columns import BytesArray, Int64Array
from snapline.dataflow.columnar.kernel import (
    I64,
    VOID,
    I32s,
    I64s,
    RO_I32s,
    RO_I64s,
    RO_U8s,
    RO_U64s,
    U8s,
    U64s,
    inlined,
    kernel,
    load_u64,
    load_u64_at,
    prefetch_at,
    store_u64,
)
from snapline.dataflow.errors import StateError
from snapline.runtime.cores.machine import check
from snapline.taskmanager.state.index.slots import Slots, grown
from snapline.taskmanager.state.outside.segment_space import Segment, SegmentSpace

HEADER_BYTES = 12
_ROW_BITS, _PLACE_BITS = 22, 22
_SEGMENT_SHIFT = _ROW_BITS + _PLACE_BITS
_LEAST_ROW_BYTES = 16
_MAX_BYTES = 8 << _PLACE_BITS
"""A segment that is larger holds one row."""
_AHEAD = 12


@inlined
def _mixed(sum_so_far: Any, word: Any) -> Any:
    """The checksum with eight bytes more."""
    mixed = (sum_so_far ^ word) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))


@inlined
def _checksum_of(data: Any, begin: Any, end: Any) -> Any:
    """That of the row between these bytes, in the low half; the place where it stands counts as nought."""
    total = _mixed(np.uint64(0), load_u64(data, begin))
    total = _mixed(total, load_u64(data, begin + 8) >> np.uint64(32))
    for place in range(begin + 16, end, 8):
        total = _mixed(total, load_u64(data, place))
    return (total ^ (total >> np.uint64(32))) & np.uint64(0xFFFFFFFF)


@kernel(VOID(RO_I64s, RO_I32s, U8s))
def _frame(offsets: Any, numbers: Any, data: Any) -> None:
    """Write the headers of the rows."""
    for row in range(numbers.shape[0]):
        begin, end = offsets[row], offsets[row + 1]
        store_u64(data, begin, np.uint64(end - begin) | (np.uint64(np.uint32(numbers[row])) << np.uint64(32)))
        rest = (load_u64(data, begin + 8) >> np.uint64(32)) << np.uint64(32)
        store_u64(data, begin + 8, rest | _checksum_of(data, begin, end))


@kernel(I64(RO_I64s, RO_I64s, RO_I64s, I64s))
def _measure(positions: Any, addresses: Any, ends: Any, offsets: Any) -> int:
    """Where the rows begin when they lie one behind the other. Returns the first that says what cannot be, else -1."""
    last = positions.shape[0] - 1
    offsets[0] = 0
    for row in range(positions.shape[0]):
        ahead = positions[min(row + _AHEAD, last)]
        prefetch_at(addresses[ahead >> _SEGMENT_SHIFT] + ((ahead & ((1 << _PLACE_BITS) - 1)) << 3))
        segment, place = positions[row] >> _SEGMENT_SHIFT, (positions[row] & ((1 << _PLACE_BITS) - 1)) << 3
        length = np.int64(load_u64_at(addresses[segment] + place) & np.uint64(0xFFFFFFFF))
        if length < _LEAST_ROW_BYTES or length & 7 or place + length > ends[segment]:
            return row
        offsets[row + 1] = offsets[row] + length
    return -1


@kernel(I64(RO_I64s, RO_I64s, RO_I64s, U8s))
def _copy(positions: Any, addresses: Any, offsets: Any, target: Any) -> int:
    """Returns the first row whose checksum is another, else -1."""
    for row in range(positions.shape[0]):
        position = positions[row]
        source = addresses[position >> _SEGMENT_SHIFT] + ((position & ((1 << _PLACE_BITS) - 1)) << 3)
        begin, end = offsets[row], offsets[row + 1]
        for place in range(0, end - begin, 8):
            store_u64(target, begin + place, load_u64_at(source + place))
        if load_u64(target, begin + 8) & np.uint64(0xFFFFFFFF) != _checksum_of(target, begin, end):
            return row
    return -1


@kernel(VOID(RO_I64s, I64, U64s, I64s))
def _kill(positions: Any, words: int, dead: Any, dead_rows: Any) -> None:
    for row in range(positions.shape[0]):
        segment = positions[row] >> _SEGMENT_SHIFT
        number = (positions[row] >> _PLACE_BITS) & ((1 << _ROW_BITS) - 1)
        dead[segment * words + (number >> 6)] |= np.uint64(1) << np.uint64(number & 63)
        dead_rows[segment] += 1


@kernel(I64(RO_U8s, I64, RO_U64s, I64s, I32s))
def _walk(data: Any, end: int, dead: Any, places: Any, numbers: Any) -> int:
    """Where the rows begin that are not dead, and the numbers of their owner. Returns how many, -1 where a row says
    what cannot be."""
    count: Any = 0
    row: Any = 0
    place: Any = 0
    while place < end:
        header = load_u64(data, place)
        length = np.int64(header & np.uint64(0xFFFFFFFF))
        if length < _LEAST_ROW_BYTES or length & 7 or place + length > end or row >= places.shape[0]:
            return -1
        if (dead[row >> 6] >> np.uint64(row & 63)) & np.uint64(1) == 0:
            places[count] = place
            numbers[count] = np.int32(np.int64(header >> np.uint64(32)))
            count += 1
        place += length
        row += 1
    return count if row == places.shape[0] else -1


def _check(strange_row: int) -> None:
    """StateError unless it is -1."""
    if strange_row >= 0:
        raise StateError(
            "state that lies outside of memory is damaged: a row has other bytes than were written; look after the disk of "
            "state.backend.rocksdb.localdir"
        )


class RowsAt(NamedTuple):
    """Rows at some positions, whatever becomes of their segments later."""

    positions: Int64Array
    addresses: Int64Array
    ends: Int64Array
    """How many bytes of each segment hold rows."""
    segments: tuple[Segment | None, ...]
    """What keeps the addresses good."""

    def read(self, chosen: Slots | None = None) -> tuple[Int64Array, BytesArray]:
        """Offsets and bytes of these rows, or of all, with their headers. StateError for a damaged one."""
        positions = self.positions if chosen is None else self.positions[chosen]
        offsets = np.empty(len(positions) + 1, np.int64)
        _check(_measure(positions, self.addresses, self.ends, offsets))
        target = np.empty(int(offsets[-1]), np.uint8)
        _check(_copy(positions, self.addresses, offsets, target))
        return offsets, target


class FrozenSegment(NamedTuple):
    """A segment as it was at one moment."""

    segment: Segment
    end: int
    rows: int
    dead: np.ndarray[Any, np.dtype[np.uint64]]

    def live(self) -> tuple[RowsAt, Slots]:
        """The rows that were not dead, and the numbers of their owner."""
        places, numbers = np.empty(self.rows, np.int64), np.empty(self.rows, np.int32)
        data = self.segment.data
        count = _walk(data, self.end, self.dead, places, numbers)
        _check(0 if count < 0 else -1)
        rows = RowsAt(places[:count] >> 3, np.array([data.ctypes.data]), np.array([self.end]), (self.segment,))
        return rows, numbers[:count]


class RowLog:
    """The segments of one operator. Its numbers of segments are used again."""

    __slots__ = ("_addresses", "_current", "_dead", "_dead_rows", "_ends", "_rows", "_segments", "_space", "_words")

    def __init__(self, space: SegmentSpace) -> None:
        self._space = space
        self._words = max(1, space.segment_bytes // _LEAST_ROW_BYTES // 64)
        """Room for the bits of one segment, in words."""
        self._segments: list[Segment | None] = []
        self._addresses: Int64Array = np.zeros(8, np.int64)
        self._ends: Int64Array = np.zeros(8, np.int64)
        """Bytes that are used, by segment."""
        self._rows: Int64Array = np.zeros(8, np.int64)
        self._dead_rows: Int64Array = np.zeros(8, np.int64)
        self._dead: np.ndarray[Any, np.dtype[np.uint64]] = np.zeros(self._words, np.uint64)
        self._current = -1
        """The segment that is being filled."""

    def append(self, numbers: Slots, offsets: Int64Array, data: BytesArray) -> Int64Array:
        """Write these rows, of which the first eight bytes are filled in here; returns their positions."""
        _frame(offsets, numbers, data)
        positions = np.empty(len(numbers), np.int64)
        first = 0
        while first < len(numbers):
            segment = self._with_room(int(offsets[first + 1] - offsets[first]))
            at, row = int(self._ends[segment]), int(self._rows[segment])
            room = self._segments[segment].data.nbytes - at  # type: ignore[union-attr]
            count = int(np.searchsorted(offsets[first + 1 :], offsets[first] + room, side="right"))
            count = 1 if at + room > _MAX_BYTES else count
            begin, end = int(offsets[first]), int(offsets[first + count])
            self._segments[segment].write(at, data[begin:end])  # type: ignore[union-attr]
            places = offsets[first : first + count] - (begin - at)
            rows = np.arange(row, row + count, dtype=np.int64)
            positions[first : first + count] = (segment << _SEGMENT_SHIFT) | (rows << _PLACE_BITS) | (places >> 3)
            self._ends[segment], self._rows[segment] = at + end - begin, row + count
            first += count
        return positions

    def at(self, positions: Int64Array) -> RowsAt:
        """The rows at these positions."""
        return RowsAt(positions, self._addresses.copy(), self._ends.copy(), tuple(self._segments))

    def read(self, positions: Int64Array) -> tuple[Int64Array, BytesArray]:
        """Offsets and bytes of the rows at these positions."""
        return RowsAt(positions, self._addresses, self._ends, ()).read()

    def kill(self, positions: Int64Array) -> None:
        """These rows, each of which was alive, count no more."""
        _kill(positions, self._words, self._dead, self._dead_rows)

    def freeze(self) -> list[FrozenSegment]:
        """All segments with rows that are alive, as they are now."""
        return [self._frozen(number) for number in np.flatnonzero(self._rows > self._dead_rows).tolist()]

    def worn(self) -> int | None:
        """A segment of which half is dead, and which is not the one that is being filled."""
        worn = (2 * self._dead_rows >= self._rows) & (self._rows > 0)
        if self._current >= 0:
            worn[self._current] = False
        number = int(worn.argmax())
        return number if worn[number] else None

    def live(self, segment: int) -> tuple[Slots, Int64Array, BytesArray]:
        """What is alive of a segment: the numbers of the rows, their offsets, and their bytes."""
        rows, numbers = self._frozen(segment).live()
        return numbers, *rows.read()

    def drop(self, segment: int) -> None:
        """Let go of a segment. Who has frozen it may still read it."""
        self._segments[segment] = None
        self._dead[segment * self._words : (segment + 1) * self._words] = 0
        self._ends[segment] = self._rows[segment] = self._dead_rows[segment] = 0

    def close(self) -> None:
        """Let go of all segments, so that their room is given back."""
        self._segments = []
        self._rows[:] = 0
        self._current = -1

    def _frozen(self, number: int) -> FrozenSegment:
        segment = self._segments[number]
        first, rows = number * self._words, int(self._rows[number])
        dead = self._dead[first : first + (rows + 63) // 64].copy()
        return FrozenSegment(check(segment, "a segment is gone"), int(self._ends[number]), rows, dead)

    def _with_room(self, length: int) -> int:
        """The segment that the next row of this length goes to."""
        current = self._current
        if current >= 0:
            segment = self._segments[current]
            size_bytes = segment.data.nbytes  # type: ignore[union-attr]
            if self._ends[current] + length <= min(size_bytes, _MAX_BYTES):
                return current
            segment.seal()  # type: ignore[union-attr]
        segment = self._space.new_segment(max(self._space.segment_bytes, length))
        number = next((at for at, known in enumerate(self._segments) if known is None), len(self._segments))
        if number == len(self._segments):
            self._segments.append(None)
            if len(self._dead) < (number + 1) * self._words:
                self._dead = grown(self._dead, 2 * len(self._dead))
            for name in ("_addresses", "_ends", "_rows", "_dead_rows"):
                array = getattr(self, name)
                if number == len(array):
                    setattr(self, name, grown(array, 2 * number))
        self._segments[number], self._addresses[number] = segment, segment.data.ctypes.data
        self._current = number
        return number
