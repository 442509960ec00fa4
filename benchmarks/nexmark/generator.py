"""The events of Nexmark, computed from their numbers: person, auction and bid batches that are the same in every run.

Events come in epochs of 50: one person, three auctions, 46 bids, as in Beam's and Flink's generators. A GeneratorSource
emits the epochs, and its position is the generator's; functions make each kind of event out of them, whole columns at a
time, so that the three streams never drift apart. Event 0 happens at the epoch, so that watermarks are those of the
source. Values are hashes of event numbers; half of the bids are on hot auctions and a quarter by hot bidders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import snapline as sl
from snapline.connectors.builtin.generator import GeneratorSource

PERSONS, AUCTIONS, BIDS = 1, 3, 46
EVENTS_PER_EPOCH = PERSONS + AUCTIONS + BIDS
FIRST_ID = 1_000
CATEGORIES = 5
ACTIVE_PEOPLE, IN_FLIGHT_AUCTIONS, HOT_EVERY = 1_000, 100, 100
TIME = pa.timestamp("ms")
PERSON = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("city", pa.string()), ("state", pa.string()), ("date_time", TIME)]
)
AUCTION = pa.schema(
    [
        ("id", pa.int64()),
        ("initial_bid", pa.int64()),
        ("reserve", pa.int64()),
        ("date_time", TIME),
        ("expires", TIME),
        ("seller", pa.int64()),
        ("category", pa.int64()),
    ]
)
BID = pa.schema(
    [
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("channel", pa.string()),
        ("date_time", TIME),
    ]
)
_STATES = pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
_CITIES = pa.array(
    ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"]
)
_FIRST = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
_LAST = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
_NAMES = pa.array([f"{first} {last}" for first in _FIRST for last in _LAST])
_CHANNELS = pa.array(["Google", "Facebook", "Baidu", "Apple"])

Int64 = npt.NDArray[np.int64]


def hashed(numbers: Int64, salt: int) -> npt.NDArray[np.uint64]:
    """Well mixed bits of each number (splitmix64)."""
    mixed = numbers.astype(np.uint64) + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def below(numbers: Int64, salt: int, bound: Any) -> Int64:
    """A number below `bound` for each."""
    return (hashed(numbers, salt) % np.asarray(bound).astype(np.uint64)).astype(np.int64)


def _recent(numbers: Int64, salt: int, latest: Int64, window: int, hot_share: int) -> Int64:
    """One of the `window` ids up to `latest`; in one of `hot_share` cases not a hot one."""
    hot = latest // HOT_EVERY * HOT_EVERY
    choice = latest - below(numbers, salt, np.minimum(latest + 1, window))
    return np.where(below(numbers, salt + 1, hot_share) > 0, hot, choice) + FIRST_ID


def _price(numbers: Int64, salt: int) -> Int64:
    uniform = hashed(numbers, salt).astype(np.float64) / 2.0**64
    return np.round(10.0 ** (uniform * 6) * 100).astype(np.int64)


@dataclass(frozen=True)
class Nexmark:
    """How fast event time goes, and how much there is of it."""

    events_per_second: int = 10_000
    """How many events there are in a second of event time."""
    events: int | None = None
    """How many events there are, or None when they have no end."""

    @property
    def epoch_us(self) -> int:
        """Event time of 50 events."""
        return EVENTS_PER_EPOCH * 1_000_000 // self.events_per_second

    def times(self, numbers: Int64) -> pa.Array:
        """Event time of event numbers."""
        return pa.array(numbers * 1_000 // self.events_per_second).view(TIME)

    def persons(self, epochs: Int64) -> pa.RecordBatch:
        """Return the persons of these epochs."""
        city = below(epochs, 1, len(_CITIES))
        columns = [
            pa.array(epochs + FIRST_ID),
            _NAMES.take(pa.array(below(epochs, 2, len(_NAMES)))),
            _CITIES.take(pa.array(city)),
            _STATES.take(pa.array(below(epochs, 3, len(_STATES)))),
            self.times(epochs * EVENTS_PER_EPOCH),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=PERSON)

    def auctions(self, epochs: Int64) -> pa.RecordBatch:
        """Return the auctions of these epochs."""
        index = (epochs[:, None] * AUCTIONS + np.arange(AUCTIONS)).ravel()
        epoch = np.repeat(epochs, AUCTIONS)
        number = epoch * EVENTS_PER_EPOCH + PERSONS + index % AUCTIONS
        initial = _price(index, 11)
        opened = number * 1_000 // self.events_per_second
        # long enough for some hundreds of events
        length = 1 + below(
            index, 12, max(2, 2 * IN_FLIGHT_AUCTIONS * EVENTS_PER_EPOCH // AUCTIONS * 1_000 // self.events_per_second)
        )
        columns = [
            pa.array(index + FIRST_ID),
            pa.array(initial),
            pa.array(initial + _price(index, 13)),
            pa.array(opened).view(TIME),
            pa.array(opened + length).view(TIME),
            pa.array(_recent(index, 14, epoch, ACTIVE_PEOPLE, 4)),
            pa.array(10 + below(index, 16, CATEGORIES)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=AUCTION)

    def bids(self, epochs: Int64) -> pa.RecordBatch:
        """Return the bids of these epochs."""
        index = (epochs[:, None] * BIDS + np.arange(BIDS)).ravel()
        epoch = np.repeat(epochs, BIDS)
        number = epoch * EVENTS_PER_EPOCH + PERSONS + AUCTIONS + index % BIDS
        columns = [
            pa.array(_recent(index, 21, epoch * AUCTIONS + AUCTIONS - 1, IN_FLIGHT_AUCTIONS, 2)),
            pa.array(_recent(index, 23, epoch, ACTIVE_PEOPLE, 4)),
            pa.array(_price(index, 25)),
            _CHANNELS.take(pa.array(below(index, 26, len(_CHANNELS)))),
            self.times(number),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=BID)

    def tables(self) -> dict[str, pa.Table]:
        """All events of a bounded stream, for references."""
        epochs = np.arange(self.epochs)
        kinds = {"person": self.persons, "auction": self.auctions, "bid": self.bids}
        return {name: pa.Table.from_batches([make(epochs)]) for name, make in kinds.items()}

    @property
    def epochs(self) -> int:
        """Whole epochs of a bounded stream."""
        return (self.events or 0) // EVENTS_PER_EPOCH


@dataclass(frozen=True)
class _Maker:
    """Epochs in, events out; small enough to travel with the job."""

    settings: Nexmark
    kind: str

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        epochs = batch.column("at").view(pa.int64()).to_numpy() // self.settings.epoch_us
        make: Callable[[Int64], pa.RecordBatch] = getattr(self.settings, self.kind)
        return make(epochs)


class Streams:
    """The streams of one environment, made when a query asks for them."""

    def __init__(
        self, environment: sl.StreamExecutionEnvironment, settings: Nexmark, *, batch_epochs: int = 700
    ) -> None:
        self.settings = settings
        source = GeneratorSource(
            keys=1,
            rows=None if settings.events is None else settings.epochs,
            batch_rows=batch_epochs,
            splits=4,
            event_time_column="at",
            event_interval_us=settings.epoch_us,
        )
        strategy = sl.WatermarkStrategy.for_monotonous_timestamps("at")
        self._epochs = environment.from_source(source, strategy, uid="epochs", name="epochs")
        self._made: dict[str, sl.DataStream] = {}

    def _stream(self, kind: str, schema: pa.Schema) -> sl.DataStream:
        if kind not in self._made:
            made = self._epochs.map_batches(_Maker(self.settings, kind), uid=kind, name=kind, schema=schema)
            self._made[kind] = replace(made, event_time_column="date_time")
        return self._made[kind]

    @property
    def persons(self) -> sl.DataStream:
        """A source of persons in the order of their time."""
        return self._stream("persons", PERSON)

    @property
    def auctions(self) -> sl.DataStream:
        """A source of auctions in the order of their opening."""
        return self._stream("auctions", AUCTION)

    @property
    def bids(self) -> sl.DataStream:
        """A source of bids in the order of their time."""
        return self._stream("bids", BID)
