"""Record batches of version 2 as the log sees them: the header, which it stamps, and control batches, which end
transactions."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kafka.record.default_records import DefaultRecordBatch
from kafka.record.util import calc_crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and last time, producer id and
epoch, first sequence number, number of records."""
CRC_FROM = struct.calcsize(">qiibI")
TRANSACTIONAL = 0x10
CONTROL = 0x20
NO_SEQUENCE = -1
SEQUENCES = 2**31


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch in the log."""

    base_offset: int
    last_offset: int
    max_time_ms: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    is_transactional: bool
    is_control: bool
    data: bytes

    @classmethod
    def parse(cls, data: bytes) -> Batch:
        """Of the bytes of one batch."""
        base, _, _, magic, _, attributes, delta, _, latest, producer, epoch, sequence, _ = HEADER.unpack_from(data)
        if magic != 2:
            raise ValueError(f"record batches of version {magic} are not supported")
        return cls(
            base, base + delta, latest, producer, epoch, sequence, bool(attributes & TRANSACTIONAL),
            bool(attributes & CONTROL), data,
        )  # fmt: skip

    @property
    def count(self) -> int:
        """Of offsets."""
        return self.last_offset - self.base_offset + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record."""
        return (self.first_sequence + self.count - 1) % SEQUENCES

    @property
    def commits(self) -> bool:
        """Of a control batch: whether it commits."""
        key = next(iter(DefaultRecordBatch(self.data))).key
        return bool(struct.unpack(">hh", bytes(key))[1])

    def first_at(self, time_ms: int) -> tuple[int, int] | None:
        """Offset and time of the first record that is not earlier."""
        for record in DefaultRecordBatch(self.data):
            if record.timestamp >= time_ms:
                return record.offset, record.timestamp
        return None


def stamped(data: bytes, base_offset: int) -> bytes:
    """With the offset that the log gives it; the CRC does not cover that."""
    return struct.pack(">q", base_offset) + data[8:12] + struct.pack(">i", 0) + data[16:]


def split(data: bytes) -> list[bytes]:
    """The batches that lie one behind the other."""
    found, at = [], 0
    while at < len(data):
        length = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        found.append(data[at : at + length])
        at += length
    return found


def control_batch(base_offset: int, producer_id: int, epoch: int, now_ms: int, *, commit: bool) -> bytes:
    """The marker that ends a transaction in one partition."""
    key = struct.pack(">hh", 0, int(commit))
    value = struct.pack(">hi", 0, 0)
    record = b"\0\0\0" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    record = bytes([2 * len(record)]) + record
    rest = HEADER.pack(
        0, 0, 0, 0, 0, TRANSACTIONAL | CONTROL, 0, now_ms, now_ms, producer_id, epoch, NO_SEQUENCE, 1,
    )[CRC_FROM:] + record  # fmt: skip
    crc = calc_crc32c(rest)
    return struct.pack(">qiibI", base_offset, len(rest) + 9, 0, 2, crc) + rest
