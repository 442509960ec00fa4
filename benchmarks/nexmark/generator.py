"""The events of Nexmark, computed from their numbers: person, auction and bid batches that are the same in every run.

Events come in epochs of 50: one person, three auctions, 46 bids, as in Beam's and Flink's generators. A GeneratorSource
emits the epochs, and its position is the generator's; functions make each kind of event out of them, whole columns at a
time in loops that are compiled as Flink's are, so that the three streams never drift apart. Event 0 happens at the
epoch, so that watermarks are those of the source. Values are hashes of event numbers; half of the bids are on hot
auctions and a quarter by hot bidders.
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
from snapline.dataflow.columnar.kernel import I64, VOID, I64s, RO_I64s, inlined, kernel

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
_NAME_COUNT, _CITY_COUNT, _STATE_COUNT = len(_NAMES), len(_CITIES), len(_STATES)
_CHANNEL_COUNT = len(_CHANNELS)

Int64 = npt.NDArray[np.int64]


@inlined
def _hashed(number: Any, salt: Any) -> Any:
    """Well mixed bits of a number (splitmix64)."""
    mixed = np.uint64(number) + np.uint64(salt) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@inlined
def _below(number: Any, salt: Any, bound: Any) -> Any:
    return np.int64(_hashed(number, salt) % np.uint64(bound))


@inlined
def _recent(number: Any, salt: Any, latest: Any, window: Any, hot_share: Any) -> Any:
    """One of the `window` ids up to `latest`; in one of `hot_share` cases not a hot one."""
    if _below(number, salt + 1, hot_share) > 0:
        return latest // HOT_EVERY * HOT_EVERY + FIRST_ID
    return latest - _below(number, salt, min(latest + 1, window)) + FIRST_ID


@inlined
def _price(number: Any, salt: Any) -> Any:
    uniform = np.float64(_hashed(number, salt)) / 2.0**64
    return np.int64(np.rint(10.0 ** (uniform * 6.0) * 100.0))


@kernel(VOID(RO_I64s, I64, I64s, I64s, I64s, I64s))
def _fill_persons(epochs: Any, per_second: int, names: Any, cities: Any, states: Any, times: Any) -> None:
    for row in range(epochs.shape[0]):
        epoch = epochs[row]
        names[row] = _below(epoch, 2, _NAME_COUNT)
        cities[row] = _below(epoch, 1, _CITY_COUNT)
        states[row] = _below(epoch, 3, _STATE_COUNT)
        times[row] = epoch * EVENTS_PER_EPOCH * 1_000 // per_second


@kernel(VOID(RO_I64s, I64, I64, I64s, I64s, I64s, I64s, I64s, I64s, I64s))
def _fill_auctions(
    epochs: Any,
    per_second: int,
    longest: int,
    ids: Any,
    initial: Any,
    reserve: Any,
    opened: Any,
    expires: Any,
    sellers: Any,
    categories: Any,
) -> None:
    for row in range(ids.shape[0]):
        epoch, place = epochs[row // AUCTIONS], row % AUCTIONS
        index = epoch * AUCTIONS + place
        ids[row] = index + FIRST_ID
        initial[row] = _price(index, 11)
        reserve[row] = initial[row] + _price(index, 13)
        opened[row] = (epoch * EVENTS_PER_EPOCH + PERSONS + place) * 1_000 // per_second
        expires[row] = opened[row] + 1 + _below(index, 12, longest)
        sellers[row] = _recent(index, 14, epoch, ACTIVE_PEOPLE, 4)
        categories[row] = 10 + _below(index, 16, CATEGORIES)


@kernel(VOID(RO_I64s, I64, I64s, I64s, I64s, I64s, I64s))
def _fill_bids(
    epochs: Any, per_second: int, auctions: Any, bidders: Any, prices: Any, channels: Any, times: Any
) -> None:
    for row in range(auctions.shape[0]):
        epoch, place = epochs[row // BIDS], row % BIDS
        index = epoch * BIDS + place
        auctions[row] = _recent(index, 21, epoch * AUCTIONS + AUCTIONS - 1, IN_FLIGHT_AUCTIONS, 2)
        bidders[row] = _recent(index, 23, epoch, ACTIVE_PEOPLE, 4)
        prices[row] = _price(index, 25)
        channels[row] = _below(index, 26, _CHANNEL_COUNT)
        times[row] = (epoch * EVENTS_PER_EPOCH + PERSONS + AUCTIONS + place) * 1_000 // per_second


def _room(columns: int, rows: int) -> list[Int64]:
    return [np.empty(rows, np.int64) for _ in range(columns)]


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

    def persons(self, epochs: Int64) -> pa.RecordBatch:
        """Return the persons of these epochs."""
        names, cities, states, times = room = _room(4, len(epochs))
        _fill_persons(epochs, self.events_per_second, *room)
        columns = [
            pa.array(epochs + FIRST_ID),
            _NAMES.take(pa.array(names)),
            _CITIES.take(pa.array(cities)),
            _STATES.take(pa.array(states)),
            pa.array(times).view(TIME),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=PERSON)

    def auctions(self, epochs: Int64) -> pa.RecordBatch:
        """Return the auctions of these epochs."""
        # long enough for some hundreds of events
        longest = max(2, 2 * IN_FLIGHT_AUCTIONS * EVENTS_PER_EPOCH // AUCTIONS * 1_000 // self.events_per_second)
        room = _room(len(AUCTION), AUCTIONS * len(epochs))
        _fill_auctions(epochs, self.events_per_second, longest, *room)
        columns = [pa.array(values).view(field.type) for values, field in zip(room, AUCTION, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=AUCTION)

    def bids(self, epochs: Int64) -> pa.RecordBatch:
        """Return the bids of these epochs."""
        auctions, bidders, prices, channels, times = room = _room(len(BID), BIDS * len(epochs))
        _fill_bids(epochs, self.events_per_second, *room)
        columns = [
            pa.array(auctions),
            pa.array(bidders),
            pa.array(prices),
            _CHANNELS.take(pa.array(channels)),
            pa.array(times).view(TIME),
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
        self, environment: sl.StreamExecutionEnvironment, settings: Nexmark, *, batch_epochs: int = 700, splits: int = 4
    ) -> None:
        """`splits`: with as many as subtasks, as in Flink's program, the events of one batch of a subtask are those
        that the others make at the same moment; with more, many bids come before their auction."""
        self.settings = settings
        source = GeneratorSource(
            keys=1,
            rows=None if settings.events is None else settings.epochs,
            batch_rows=batch_epochs,
            splits=splits,
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
