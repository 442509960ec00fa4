"""The events of Nexmark, computed from their numbers: person, auction and bid batches that are the same in every run.

Events come in epochs of 50: one person, three auctions, 46 bids, as in Beam's and Flink's generators. A GeneratorSource
emits the epochs, and its position is the generator's; functions make each kind of event out of them, whole columns at a
time in loops that are compiled as Flink's are, so that the three streams never drift apart. Event 0 happens at the
epoch, so that watermarks are those of the source. Values are hashes of event numbers; half of the bids are on hot
auctions and a quarter by hot bidders.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import snapline as sl
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.dataflow.columnar.gather import gather_array
from snapline.dataflow.columnar.kernel import (
    I64,
    VOID,
    F64s,
    I32s,
    I64s,
    RO_I64s,
    inlined,
    kernel,
)

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
_FIRST = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
_LAST = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
_STATES = pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
_CITIES = pa.array(
    ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"]
)
_NAMES = pa.array([f"{first} {last}" for first in _FIRST for last in _LAST])
_CHANNELS = pa.array(["Google", "Facebook", "Baidu", "Apple"])
_NAME_COUNT, _CITY_COUNT, _STATE_COUNT = len(_NAMES), len(_CITIES), len(_STATES)
_CHANNEL_COUNT = len(_CHANNELS)
_LOG_OF_PRICES = 6.0 * math.log(10.0) / 2.0**64


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
def _fill_recent(
    ids: Any, start: Any, count: Any, number: Any, salt: Any, latest: Any, window: Any, hot_share: Any
) -> None:
    """Each one of the `window` ids up to `latest`; in one of `hot_share` cases not a hot one."""
    hot = latest // HOT_EVERY * HOT_EVERY + FIRST_ID
    for place in range(count):
        recent = latest - _below(number + place, salt, min(latest + 1, window)) + FIRST_ID
        ids[start + place] = hot if _below(number + place, salt + 1, hot_share) > 0 else recent


@inlined
def _fill_times(times: Any, start: Any, count: Any, first: Any, per_second: Any) -> None:
    """Milliseconds of events that follow each other. A quotient of whole numbers as small as these is exact."""
    whole, rest = first * 1_000 // per_second, first * 1_000 % per_second
    for place in range(count):
        times[start + place] = whole + np.int64(np.float64(rest + place * 1_000) / per_second)


@inlined
def _log_of_price(number: Any, salt: Any) -> Any:
    return np.float64(_hashed(number, salt)) * _LOG_OF_PRICES


def _prices(logarithms: Float64) -> Int64:
    """From 1.00 to a million, in hundredths. numpy takes the power of eight at a time."""
    return np.rint(np.exp(logarithms) * 100.0).astype(np.int64)


@kernel(VOID(RO_I64s, I64, I32s, I32s, I32s, I64s))
def _fill_persons(epochs: Any, per_second: int, names: Any, cities: Any, states: Any, times: Any) -> None:
    for row in range(epochs.shape[0]):
        epoch = epochs[row]
        names[row] = _below(epoch, 2, _NAME_COUNT)
        cities[row] = _below(epoch, 1, _CITY_COUNT)
        states[row] = _below(epoch, 3, _STATE_COUNT)
        times[row] = epoch * EVENTS_PER_EPOCH * 1_000 // per_second


@kernel(VOID(RO_I64s, I64, I64, I64s, F64s, F64s, I64s, I64s, I64s, I64s))
def _fill_auctions(
    epochs: Any,
    per_second: int,
    longest: int,
    ids: Any,
    initial: Any,
    added: Any,
    opened: Any,
    expires: Any,
    sellers: Any,
    categories: Any,
) -> None:
    for number in range(epochs.shape[0]):
        epoch, start = epochs[number], number * AUCTIONS
        index = epoch * AUCTIONS
        _fill_times(opened, start, AUCTIONS, epoch * EVENTS_PER_EPOCH + PERSONS, per_second)
        _fill_recent(sellers, start, AUCTIONS, index, 14, epoch, ACTIVE_PEOPLE, 4)
        for place in range(AUCTIONS):
            row = start + place
            ids[row] = index + place + FIRST_ID
            initial[row] = _log_of_price(index + place, 11)
            added[row] = _log_of_price(index + place, 13)
            expires[row] = opened[row] + 1 + _below(index + place, 12, longest)
            categories[row] = 10 + _below(index + place, 16, CATEGORIES)


@kernel(VOID(RO_I64s, I64, I64s, I64s, F64s, I32s, I64s))
def _fill_bids(
    epochs: Any, per_second: int, auctions: Any, bidders: Any, prices: Any, channels: Any, times: Any
) -> None:
    """Several loops without a branch, of which the processor takes some rows at a time."""
    for number in range(epochs.shape[0]):
        epoch, start = epochs[number], number * BIDS
        index = epoch * BIDS
        _fill_recent(auctions, start, BIDS, index, 21, epoch * AUCTIONS + AUCTIONS - 1, IN_FLIGHT_AUCTIONS, 2)
        _fill_recent(bidders, start, BIDS, index, 23, epoch, ACTIVE_PEOPLE, 4)
        _fill_times(times, start, BIDS, epoch * EVENTS_PER_EPOCH + PERSONS + AUCTIONS, per_second)
        for place in range(BIDS):
            prices[start + place] = _log_of_price(index + place, 25)
            channels[start + place] = _below(index + place, 26, _CHANNEL_COUNT)


def _room(rows: int, columns: int) -> list[Int64]:
    return [np.empty(rows, np.int64) for _ in range(columns)]


def _places(rows: int, columns: int) -> list[Int32]:
    """Room for columns of places in a list of texts."""
    return [np.empty(rows, np.int32) for _ in range(columns)]


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
        names, cities, states = _places(len(epochs), 3)
        times = np.empty(len(epochs), np.int64)
        _fill_persons(epochs, self.events_per_second, names, cities, states, times)
        columns = [
            pa.array(epochs + FIRST_ID),
            gather_array(_NAMES, names),
            gather_array(_CITIES, cities),
            gather_array(_STATES, states),
            pa.array(times).view(TIME),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=PERSON)

    def auctions(self, epochs: Int64) -> pa.RecordBatch:
        """Return the auctions of these epochs."""
        # long enough for some hundreds of events
        longest = max(2, 2 * IN_FLIGHT_AUCTIONS * EVENTS_PER_EPOCH // AUCTIONS * 1_000 // self.events_per_second)
        rows = AUCTIONS * len(epochs)
        ids, opened, expires, sellers, categories = _room(rows, 5)
        initial, added = np.empty(rows), np.empty(rows)
        _fill_auctions(
            epochs, self.events_per_second, longest, ids, initial, added, opened, expires, sellers, categories
        )
        initial_bids = _prices(initial)
        reserves = initial_bids + _prices(added)
        filled = [ids, initial_bids, reserves, opened, expires, sellers, categories]
        columns = [pa.array(values).view(field.type) for values, field in zip(filled, AUCTION, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=AUCTION)

    def bids(self, epochs: Int64) -> pa.RecordBatch:
        """Return the bids of these epochs."""
        rows = BIDS * len(epochs)
        auctions, bidders, times = _room(rows, 3)
        (channels,), prices = _places(rows, 1), np.empty(rows)
        _fill_bids(epochs, self.events_per_second, auctions, bidders, prices, channels, times)
        columns = [
            pa.array(auctions),
            pa.array(bidders),
            pa.array(_prices(prices)),
            gather_array(_CHANNELS, channels),
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
