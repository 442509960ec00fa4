"""What the backend does that keeps only some keys in memory; what all backends do is in test_keyed_backend and
others."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snapline.dataflow.api.state import ListStateDescriptor, RunningAggregateDescriptor, ValueStateDescriptor
from snapline.dataflow.api.state_ttl import StateTtlConfig
from snapline.dataflow.errors import StateError
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from snapline.taskmanager.state.outside.segment_files import SegmentFiles
from snapline.taskmanager.state.outside.spilling_backend import SpillingKeyedStateBackend
from tests.unit.taskmanager.state.naive import ALL, MAX_PARALLELISM
from tests.unit.taskmanager.state.test_keyed_backend import written

SCHEMA = pa.schema([("k", pa.int64())])
SUM = RunningAggregateDescriptor("total", pa.int64(), ("sum",))
LAST = ValueStateDescriptor("last", pa.string())


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SpillingKeyedStateBackend]:
    """Over files, with room for about a thousand small keys."""
    made = open_backend(tmp_path)
    yield made
    made.close()
    assert not list(tmp_path.iterdir())


def open_backend(directory: Path, memory_bytes: int = 128 << 10) -> SpillingKeyedStateBackend:
    return SpillingKeyedStateBackend(SCHEMA, ALL, MAX_PARALLELISM, SegmentFiles(str(directory)), memory_bytes)


def in_memory(backend: KeyedStateBackend) -> int:
    return len(backend._index)


def test_keys_in_memory_are_bounded_and_none_is_lost(backend: SpillingKeyedStateBackend) -> None:
    """Twenty times as many keys as there is room for, in random order, twice; each batch adds one to all of its
    keys."""
    total = backend.get_running_aggregate(SUM)
    random = np.random.default_rng(1)
    most = 0
    for _ in range(2):
        for keys in np.array_split(random.permutation(20_000), 40):
            total.fold_batch(backend.slots([pa.array(keys)]), keys + 1)
            most = max(most, in_memory(backend))
    assert len(backend) == 20_000
    assert most < 3_000

    for keys in np.array_split(np.arange(20_000), 10):
        sums = total.get_batch(backend.slots([pa.array(keys)])).field("sum")
        assert sums.to_pylist() == (2 * (keys + 1)).tolist()


def test_keys_that_are_used_again_and_again_stay(backend: SpillingKeyedStateBackend) -> None:
    """A hundred of them, while others pass."""
    last = backend.get_state(LAST)
    often = np.arange(100)
    for first in range(100, 20_000, 500):
        slots = backend.slots([pa.array(np.concatenate([often, np.arange(first, first + 500)]))])
        last.put_batch(slots, pa.array(["x"] * 600))

    assert (KeyedStateBackend.lookup(backend, [pa.array(often)]) >= 0).all() or in_memory(backend) >= 600
    assert backend._index.lookup([pa.array(often)]).min() >= 0


def test_rows_grow_and_fewer_keys_stay(backend: SpillingKeyedStateBackend) -> None:
    """The limit is memory, not a number of keys."""
    lists = backend.get_list_state(ListStateDescriptor("texts", pa.string()))
    keys = np.arange(2_000)
    for _ in range(30):
        lists.add_batch(backend.slots([pa.array(keys)]), pa.array(["a text of some length"] * len(keys)))
        backend._sample()

    backend.slots([pa.array([0])])
    assert in_memory(backend) < 300
    assert [30] * 2_000 == [len(texts) for texts in lists.get_batch(backend.slots([pa.array(keys)])).to_pylist()]


def test_timers_of_keys_outside_fire_in_their_order(backend: SpillingKeyedStateBackend) -> None:
    """By time, a slice at a time, whether their keys are in memory or not; deleted ones do not."""
    last, timers = backend.get_state(LAST), backend.get_timers()
    random = np.random.default_rng(2)
    times = random.permutation(10_000).astype(np.int64)
    for keys in np.array_split(np.arange(10_000), 20):
        slots = backend.slots([pa.array(keys)])
        last.put_batch(slots, pa.array(["x"] * len(keys)))
        timers.event.register(slots, times[keys])
        timers.event.register(slots, times[keys] + 100_000)
    gone = np.arange(0, 10_000, 10)
    timers.event.delete(backend.slots([pa.array(gone)]), times[gone])
    assert in_memory(backend) < 5_000

    fired: list[int] = []
    while timers.event.has_due(50_000):
        slice_ = timers.event.advance(50_000, 700)
        keys = backend.keys(slice_.slots)[0].to_numpy()
        assert times[keys].tolist() == slice_.timestamps.tolist()
        fired += slice_.timestamps.tolist()
        backend.slots([pa.array([int(keys[0]) + 50_000])])  # others come and go meanwhile
    assert fired == sorted(set(range(10_000)) - set(times[gone].tolist()))
    assert 100_000 <= (timers.event.next_timestamp() or 0) <= 100_001


def test_timers_that_rows_have_put_off_let_none_go_before_its_time(backend: SpillingKeyedStateBackend) -> None:
    """As where each row of a key moves its timeout on: the times that are known outside of such keys are of the
    past, and there are more of them than fire in one slice."""
    total, timers = backend.get_running_aggregate(SUM), backend.get_timers().event
    for keys in np.array_split(np.arange(10_000), 10):
        slots = backend.slots([pa.array(keys)])
        total.fold_batch(slots, keys)
        timers.register(slots, keys)
    again = np.arange(100)
    slots = backend.slots([pa.array(again)])
    timers.delete(slots, again)
    timers.register(slots, again + 1_000_000)

    fired: list[int] = []
    while timers.has_due(50_000):
        fired += timers.advance(50_000, 50).timestamps.tolist()
    assert fired == list(range(100, 10_000))


def test_every_key_is_updated_wherever_it_is(backend: SpillingKeyedStateBackend) -> None:
    """Also those outside."""
    total = backend.get_running_aggregate(SUM)
    for keys in np.array_split(np.arange(10_000), 20):
        total.fold_batch(backend.slots([pa.array(keys)]), keys)
    seen: set[int] = set()

    def update(slots: np.ndarray) -> None:
        seen.update(backend.keys(slots)[0].to_pylist())
        total.column.counts[slots] = 7

    backend.update_all(update)

    assert seen == set(range(10_000))
    counts = total.get_batch(backend.slots([pa.array(np.arange(10_000))])).field("count")
    assert counts.to_pylist() == [7] * 10_000


def test_what_has_expired_goes_from_outside_too(backend: SpillingKeyedStateBackend) -> None:
    """While other keys are used."""
    clock = [0]
    backend.scope.now_ms = lambda: clock[0]
    mortal = backend.get_state(ValueStateDescriptor("mortal", pa.int64(), ttl=StateTtlConfig(dt.timedelta(seconds=1))))
    for first in range(0, 4_000, 500):
        numbers = backend.begin_batch(backend.slots([pa.array(np.arange(first, first + 500))]))
        for number in numbers:
            backend.scope.index = number
            mortal.update(number)
        backend.end_batch()
    assert len(backend) == 4_000
    clock[0] = 5_000
    for _ in range(40):
        for number in backend.begin_batch(backend.slots([pa.array([-1] * 256)])):
            backend.scope.index = number
            mortal.update(1)
        backend.end_batch()
    backend._sweep()

    assert len(backend) == 1


def test_a_new_time_to_live_begins_with_the_restore_wherever_a_key_lies(tmp_path: Path) -> None:
    """Not when a key comes into memory, however much later that is, nor with a snapshot of what lies outside."""
    source = KeyedStateBackend(SCHEMA, ALL, MAX_PARALLELISM)
    keys = np.arange(20_000)
    source.get_state(ValueStateDescriptor("v", pa.int64())).put_batch(source.slots([pa.array(keys)]), pa.array(keys))
    clock = [1_000]
    restored = open_backend(tmp_path)
    restored.scope.now_ms = lambda: clock[0]
    restored.restore(written(source.snapshot_parts()))
    mortal = ValueStateDescriptor("v", pa.int64(), ttl=StateTtlConfig(dt.timedelta(seconds=1)))
    restored.get_state(mortal)
    clock[0] = 1_500
    copy = KeyedStateBackend(SCHEMA, ALL, MAX_PARALLELISM)
    copy.scope.now_ms = lambda: clock[0]
    copy.restore(written(restored.snapshot_parts()))
    for backend in (restored, copy):
        values = backend.state_of(mortal).get_batch(backend.slots([pa.array(keys)]))
        assert set(values.field("touched").to_pylist()) == {1_000}
    restored.close()


def test_restored_into_less_memory(tmp_path: Path) -> None:
    """What does not fit lies outside at once; a snapshot of that holds the same, and so does one that builds on it."""
    source = KeyedStateBackend(SCHEMA, ALL, MAX_PARALLELISM)
    total = source.get_running_aggregate(SUM)
    total.fold_batch(source.slots([pa.array(np.arange(20_000))]), np.arange(20_000))
    restored = open_backend(tmp_path)
    restored.restore(written(source.snapshot_parts()))
    assert in_memory(restored) == 0
    assert len(restored) == 20_000
    total = restored.get_running_aggregate(SUM)
    total.fold_batch(restored.slots([pa.array([5, 6, -1])]), np.array([10, 10, 10]))
    files = written(restored.snapshot_parts())
    assert len(files) > 1

    for again in (KeyedStateBackend(SCHEMA, ALL, MAX_PARALLELISM), open_backend(tmp_path)):
        again.restore(files)
        sums = again.get_running_aggregate(SUM)
        got = sums.get_batch(again.slots([pa.array([-1, 5, 6, 19_999])])).field("sum").to_pylist()
        assert got == [10, 15, 16, 19_999]
        assert len(again) == 20_001
        again.close()
    restored.close()


def test_a_delta_holds_what_was_changed_wherever_it_is(backend: SpillingKeyedStateBackend) -> None:
    """One in a hundred of many keys, most of which have left memory again: a small part of a full snapshot's bytes."""
    from tests.unit.taskmanager.state.test_incremental import files_of, write

    total = backend.get_running_aggregate(SUM)
    for keys in np.array_split(np.arange(50_000), 50):
        total.fold_batch(backend.slots([pa.array(keys)]), keys)
    chain = backend.incremental_snapshots("op")
    full = write(chain.snapshot(1))
    chain.completed(1)
    for keys in np.array_split(np.arange(0, 50_000, 100), 5):
        total.fold_batch(backend.slots([pa.array(keys)]), np.ones(len(keys), np.int64))
    backend._let_go(backend._index.live_slots()[::2].copy())
    parts = chain.snapshot(2)
    handles = write(parts)

    sizes = [handle.handle.state_size_bytes for handle in handles]
    assert sum(sizes[len(full) :]) < 0.05 * sum(sizes[: len(full)])
    restored = KeyedStateBackend(SCHEMA, ALL, MAX_PARALLELISM)
    restored.restore(files_of(handles))
    sums = restored.get_running_aggregate(SUM).get_batch(restored.slots([pa.array([0, 100, 101])]))
    assert sums.field("sum").to_pylist() == [1, 101, 101]


def test_a_state_that_cannot_be_kept_outside_is_refused_by_name(backend: SpillingKeyedStateBackend) -> None:
    """When it is asked for."""
    odd = ValueStateDescriptor("odd", pa.list_(pa.int64(), 2))
    with pytest.raises(StateError, match="state 'odd'"):
        backend.get_state(odd)


@pytest.mark.parametrize("incremental", [False, True])
def test_a_snapshot_is_of_its_moment_however_late_it_is_encoded(
    backend: SpillingKeyedStateBackend, incremental: bool
) -> None:
    """While keys come, change, leave and are gone, and worn segments are written anew."""
    total = backend.get_running_aggregate(SUM)
    chain = backend.incremental_snapshots("op") if incremental else None
    random = np.random.default_rng(3)
    expected: dict[int, int] = {}

    def change() -> None:
        for keys in np.array_split(random.permutation(20_000)[:10_000], 10):
            total.fold_batch(backend.slots([pa.array(keys)]), keys + 1)
            for key in keys.tolist():
                expected[key] = expected.get(key, 0) + key + 1
        gone = random.permutation(20_000)[:500]
        total.clear_batch(backend.slots([pa.array(gone)]))
        for key in gone.tolist():
            expected.pop(key, None)

    for number in range(1, 5):
        change()
        parts: Any = chain.snapshot(number) if chain else backend.snapshot_parts()
        then = dict(expected)
        for _ in range(3):
            change()
        if chain:
            from tests.unit.taskmanager.state.test_incremental import files_of, write

            files = files_of(write(parts))
            chain.completed(number)
        else:
            files = written(parts)
        restored = KeyedStateBackend(SCHEMA, ALL, MAX_PARALLELISM)
        restored.restore(files)
        slots = restored._index.live_slots()
        sums = restored.get_running_aggregate(SUM).get_batch(slots).field("sum")
        held = dict(zip(restored.keys(slots)[0].to_pylist(), sums.to_pylist(), strict=True))
        assert {key: value for key, value in held.items() if value is not None} == then
