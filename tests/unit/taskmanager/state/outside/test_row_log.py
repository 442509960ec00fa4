"""The log of rows beside a dictionary."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from snapline.dataflow.errors import StateError
from snapline.taskmanager.state.outside.row_log import HEADER_BYTES, RowLog, RowsAt
from snapline.taskmanager.state.outside.segment_space import MemorySegmentSpace

SEGMENT_BYTES = MemorySegmentSpace.segment_bytes
_PLACES = (1 << 22) - 1
ODD = -HEADER_BYTES % 8
"""What makes the length of a row a multiple of eight, with its header."""


@dataclass(slots=True)
class Owner:
    """A log whose rows belong to numbers, and what they should hold."""

    log: RowLog = field(default_factory=lambda: RowLog(MemorySegmentSpace()))
    positions: dict[int, int] = field(default_factory=dict)
    rows: dict[int, bytes] = field(default_factory=dict)

    def put(self, rows: dict[int, bytes]) -> None:
        known = [self.positions[number] for number in rows if number in self.positions]
        self.log.kill(np.array(known, np.int64))
        data = b"".join(bytes(HEADER_BYTES) + row for row in rows.values())
        offsets = np.cumsum([0, *(HEADER_BYTES + len(row) for row in rows.values())])
        numbers = np.array(list(rows), np.int32)
        self.positions.update(
            zip(rows, self.log.append(numbers, offsets, np.frombuffer(bytearray(data), np.uint8)).tolist(), strict=True)
        )
        self.rows.update(rows)
        while (worn := self.log.worn()) is not None:
            numbers, offsets, live = self.log.live(worn)
            self.positions.update(zip(numbers.tolist(), self.log.append(numbers, offsets, live).tolist(), strict=True))
            self.log.drop(worn)

    def check(self) -> None:
        numbers = list(self.rows)
        rows = RowsAt(
            np.array([self.positions[number] for number in numbers], np.int64), self.log._addresses, self.log._ends, ()
        )
        assert split(*rows.read()) == [self.rows[number] for number in numbers]
        assert frozen(self.log.freeze()) == self.rows


def split(offsets: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [data[start + HEADER_BYTES : end].tobytes() for start, end in pairwise(offsets.tolist())]


def frozen(segments) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for segment in segments:
        rows, numbers = segment.live()
        held = dict(zip(numbers.tolist(), split(*rows.read()), strict=True))
        assert not held.keys() & found.keys()
        found.update(held)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_what_was_written_last(seed: int) -> None:
    """Of many sizes, over many segments, of which worn ones are written anew; what was frozen stays as it was, and the
    room stays below three times what is alive."""
    random = np.random.default_rng(seed)
    owner = Owner()
    views: list[tuple[list, dict[int, bytes]]] = []
    for step in range(60):
        numbers = np.unique(random.integers(0, 600, random.integers(1, 200)))
        lengths = 8 * random.integers(1, 40, len(numbers)) + ODD
        owner.put({int(number): random.bytes(int(length)) for number, length in zip(numbers, lengths, strict=True)})
        if step % 10 == 0:
            views.append((owner.log.freeze(), dict(owner.rows)))
            owner.check()
    owner.check()
    for view, rows in views:
        assert frozen(view) == rows
    alive = sum(len(row) + HEADER_BYTES for row in owner.rows.values())
    used = sum(segment is not None for segment in owner.log._segments) * SEGMENT_BYTES
    assert used <= 3 * alive + 2 * SEGMENT_BYTES


def test_a_row_larger_than_a_segment_has_one_of_its_own() -> None:
    """Between small ones, replaced by a small one and by a larger one."""
    owner = Owner()
    owner.put({1: b"x" * (16 + ODD), 2: b"y" * (3 * SEGMENT_BYTES + ODD), 3: b"z" * (16 + ODD)})
    owner.check()
    owner.put({1: b"a" * (2 * SEGMENT_BYTES + ODD), 2: b"b" * (8 + ODD)})
    owner.check()


def test_rows_that_are_gone_give_their_room_back() -> None:
    """A segment without rows goes without being written."""
    owner = Owner()
    owner.put({number: bytes(512 + ODD) for number in range(100)})
    segments = len(owner.log._segments)
    owner.log.kill(np.array(list(owner.positions.values()), np.int64))
    assert owner.log.freeze() == []
    owner.rows.clear()
    owner.positions.clear()
    for _ in range(5):
        owner.put({number: bytes(512 + ODD) for number in range(100)})
    owner.check()
    assert len(owner.log._segments) <= 2 * segments


@pytest.mark.parametrize("seed", range(40))
def test_a_row_that_comes_back_otherwise_is_refused(seed: int) -> None:
    """The disk has changed a byte, or a row's worth: whoever reads it, snapshots and tidying included, says so, and
    what was not changed is read as before."""
    random = np.random.default_rng(seed)
    owner = Owner()
    owner.put({number: random.bytes(8 * int(random.integers(1, 9)) + ODD) for number in range(60)})
    (segment,) = owner.log.freeze()
    at, size = int(random.integers(0, segment.end)), int(random.choice([1, 1, 8, 100]))
    data = segment.segment.data
    changed = data[at : min(at + size, segment.end)]
    changed ^= np.uint8(random.choice([1, 0x80, 0xFF]))
    position = next(place for place in sorted(owner.positions.values(), reverse=True) if (place & _PLACES) << 3 <= at)
    with pytest.raises(StateError, match="other bytes than were written"):
        owner.log.read(np.array([position], np.int64))
    with pytest.raises(StateError, match="other bytes than were written"):
        rows, _ = segment.live()
        rows.read()
    with pytest.raises(StateError, match="other bytes than were written"):
        owner.log.live(0)
    before = np.array([place for place in owner.positions.values() if place < position], np.int64)
    owner.log.read(before)


def test_a_segment_of_nothing_but_zeros_has_an_end() -> None:
    """As a disk gives back what it never wrote."""
    owner = Owner()
    owner.put({1: bytes(8 + ODD), 2: bytes(16 + ODD)})
    (segment,) = owner.log.freeze()
    segment.segment.data[:] = 0
    with pytest.raises(StateError, match=r"state\.backend\.rocksdb\.localdir"):
        segment.live()
