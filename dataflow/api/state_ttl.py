"""Time-to-live of keyed state: how long a value is there after it was written, or read, in processing time.

Declared with the state, and part of its column in a snapshot: every value (every element of a list, every pair of a
map) has beside it the time at which it was last touched. What has expired is never seen again, and is removed while the
job runs. Mirrors Flink's StateTtlConfig with NeverReturnExpired; clean-up is incremental, a bounded number of keys per
batch.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from snapline.dataflow.errors import SnaplineError

TTL_METADATA = b"snapline.state.ttl"
VALUE_FIELD, TOUCHED_FIELD = "value", "touched"


class TtlUpdate(Enum):
    """What renews a value (Flink: StateTtlConfig.UpdateType).

    >>> sl.StateTtlConfig(timedelta(hours=1), sl.TtlUpdate.ON_READ_AND_WRITE).renews_on_read
    True
    """

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class TtlError(SnaplineError):
    """A time-to-live cannot be what it is declared as.

    >>> sl.StateTtlConfig(3600)
    Traceback (most recent call last):
    snapline.dataflow.api.state_ttl.TtlError: a time-to-live is a datetime.timedelta of at least one millisecond, not 3600...
    """


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """`ttl` after it was last touched a value is gone; the clock is the task's. Raises TtlError for less than a
    millisecond.

    >>> ttl = sl.StateTtlConfig(timedelta(days=1))
    >>> ttl.ttl_ms, ttl.renews_on_read
    (86400000, False)
    >>> sl.StateTtlConfig.from_metadata(ttl.to_metadata()) == ttl
    True
    >>> _ = sl.ValueStateDescriptor("seen", pa.bool_(), ttl=ttl)
    """

    ttl: dt.timedelta
    update: TtlUpdate = TtlUpdate.ON_CREATE_AND_WRITE

    def __post_init__(self) -> None:
        """TtlError for a time that is no duration, or shorter than a millisecond."""
        if not isinstance(self.ttl, dt.timedelta) or self.ttl < dt.timedelta(milliseconds=1):
            raise TtlError(
                f"a time-to-live is a datetime.timedelta of at least one millisecond, not {self.ttl!r}: for example "
                "StateTtlConfig(timedelta(hours=1))"
            )

    @property
    def ttl_ms(self) -> int:
        """Return the time to live in milliseconds."""
        return self.ttl // dt.timedelta(milliseconds=1)

    @property
    def renews_on_read(self) -> bool:
        """Return whether reading a value makes it live longer."""
        return self.update is TtlUpdate.ON_READ_AND_WRITE

    def to_metadata(self) -> bytes:
        """For the state's field in a snapshot."""
        return f"{self.ttl_ms} ms {self.update.value}".encode()

    @classmethod
    def from_metadata(cls, written: bytes) -> StateTtlConfig | None:
        """The inverse; None for a state without."""
        if not written:
            return None
        ms, _, update = written.decode().split(" ")
        return cls(dt.timedelta(milliseconds=int(ms)), TtlUpdate(update))


def timed_type(declared: pa.DataType) -> pa.DataType:
    """The type of a value with the time (milliseconds since the epoch) at which it was last touched."""
    return pa.struct([pa.field(VALUE_FIELD, declared), pa.field(TOUCHED_FIELD, pa.int64())])
