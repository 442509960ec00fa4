"""The backend against plain dictionaries: random programs, any cut into batches, snapshots, rescales."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.dataflow.api.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RunningAggregateDescriptor,
    ValueStateDescriptor,
    register_serializer,
)
from snapline.dataflow.columnar.key_partition import split_batch
from snapline.dataflow.errors import StateError
from snapline.dataflow.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from snapline.taskmanager.state.incremental import EncodablePart
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from tests.unit.taskmanager.state.naive import ALL, MAX_PARALLELISM, MEMORY, ROWS, Naive, Row, Subject, run_naive


class StoredFile:
    """A keyed state file in memory, and the ranges that were read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def read_range(self, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        return self.data[offset : offset + size]


def snapshot_of(backend: KeyedStateBackend) -> bytes:
    frozen = backend.snapshot()
    try:
        return bytes(frozen.encode())
    finally:
        frozen.release()


def written(parts: Sequence[EncodablePart]) -> list[StoredFile]:
    """The files of a snapshot."""
    files = [StoredFile(bytes(part.encode())) for part in parts]
    for part in parts:
        part.release()
    return files


def share_of(rows: list[Row], index: int, parallelism: int) -> list[tuple[int, Row]]:
    """The rows whose key belongs to a subtask, with their positions."""
    keys = pa.array([key for key, _ in rows], pa.string())
    batch = pa.record_batch({"key": keys, "at": pa.array(range(len(rows)), pa.int64())})
    part = split_batch(batch, ["key"], MAX_PARALLELISM, parallelism)[index]
    return [(at, rows[at]) for at in part.column("at").to_pylist()]


@settings(max_examples=150)
@given(st.lists(ROWS, min_size=1, max_size=4), MEMORY)
def test_rows_against_dictionaries(batches: list[list[Row]], memory: int | None) -> None:
    """Every row sees what the rows before it did, in the same batch or an earlier one."""
    subject, states = Subject(memory_bytes=memory), {}  # type: ignore[var-annotated]
    subject.claim()
    for rows in batches:
        assert subject.process(rows) == run_naive(rows, states)

    assert subject.everything(list(states)) == {key: state.look() for key, state in states.items()}
    assert subject.pending_timers() == {(key, time) for key, state in states.items() for time in state.timers}


@settings(max_examples=60)
@given(ROWS, st.data(), MEMORY)
def test_the_cut_into_batches_does_not_matter(rows: list[Row], data: st.DataObject, memory: int | None) -> None:
    """One batch, or one per row, or anything between."""
    expected = run_naive(rows, {})
    cuts = sorted(data.draw(st.sets(st.integers(0, len(rows)), max_size=5)) | {0, len(rows)})
    subject = Subject(memory_bytes=memory)
    subject.claim()

    assert expected == [
        result for first, end in itertools.pairwise(cuts) for result in subject.process(rows[first:end])
    ]


@settings(max_examples=60)
@given(ROWS, ROWS, ROWS, st.integers(1, 5), st.integers(1, 5), MEMORY, MEMORY)
def test_rescale_is_exact(
    before: list[Row],
    frozen: list[Row],
    after: list[Row],
    old: int,
    new: int,
    memory: int | None,
    memory_after: int | None,
) -> None:
    """Snapshots of `old` subtasks restored into `new` ones, on whatever backend: together they hold what was there at
    the snapshot, and go on."""
    states: dict[Any, Naive] = {}
    run_naive(before, states)
    files: list[StoredFile] = []
    for index in range(old):
        subject = Subject(compute_key_group_range_for_operator_index(MAX_PARALLELISM, old, index), memory_bytes=memory)
        subject.claim()
        for row in share_of(before, index, old):
            subject.process([row[1]])
        snapshot = subject.backend.snapshot_parts()
        subject.process(
            [row for _, row in share_of(frozen, index, old)]
        )  # what comes after the barrier is not in the snapshot
        files += written(snapshot)

    timers: set[tuple[Any, int]] = set()
    kept = {(key, time) for key, state in states.items() for time in state.timers}
    expected = run_naive(after, states)
    got: list[tuple[int, Any]] = []
    for index in range(new):
        subject = Subject(
            compute_key_group_range_for_operator_index(MAX_PARALLELISM, new, index), memory_bytes=memory_after
        )
        subject.backend.restore(files)
        assert len(subject.backend) <= len(states)
        subject.claim()
        timers |= subject.pending_timers()
        mine = share_of(after, index, new)
        results = subject.process([row for _, row in mine])
        got += [(at, result) for (at, _), result in zip(mine, results, strict=True)]
        keys = [key for key in states if share_of([(key, ("look", None))], index, new)]
        assert subject.everything(keys) == {key: states[key].look() for key in keys}

    assert kept == timers
    assert expected == [result for _, result in sorted(got, key=lambda pair: pair[0])]


@settings(max_examples=40)
@given(ROWS, MEMORY, MEMORY)
def test_a_snapshot_of_a_restored_backend_is_the_same(rows: list[Row], memory: int | None, other: int | None) -> None:
    """Written, restored without anybody asking for the states, written again: nothing is lost on the way."""
    first = Subject(memory_bytes=memory)
    first.claim()
    first.process(rows)
    second = Subject(memory_bytes=other)
    second.backend.restore(written(first.backend.snapshot_parts()))

    third = Subject(memory_bytes=memory)
    third.backend.restore(written(second.backend.snapshot_parts()))
    third.claim()

    states: dict[Any, Naive] = {}
    run_naive(rows, states)
    assert third.everything(list(states)) == {key: state.look() for key, state in states.items()}
    assert len(second.backend) == sum(not state.is_empty for state in states.values())


def numbers_backend(key_groups: KeyGroupRange = ALL, most: int = MAX_PARALLELISM) -> KeyedStateBackend:
    return KeyedStateBackend(pa.schema([("k", pa.int64())]), key_groups, most)


def test_vectorised_and_row_wise_see_each_other() -> None:
    """A batch method writes back what rows have changed before it looks, and rows see what it wrote."""
    backend = numbers_backend()
    value = backend.get_state(ValueStateDescriptor("v", pa.int64()))
    elements = backend.get_list_state(ListStateDescriptor("l", pa.string()))
    pairs = backend.get_map_state(MapStateDescriptor("m", pa.int64(), pa.string()))
    slots = backend.slots([pa.array([1, 2, 3])])
    backend.begin_batch(slots)
    value.update(10)
    elements.add("a")
    pairs.put(5, "five")

    assert value.get_batch(slots).to_pylist() == [10, None, None]
    assert elements.get_batch(slots).to_pylist() == [["a"], None, None]
    assert pairs.get_batch(slots).to_pylist() == [[(5, "five")], None, None]

    value.put_batch(slots, pa.array([None, 20, 30], pa.int64()))
    elements.add_batch(slots[[0, 0, 1]], pa.array(["b", "c", "d"]))
    pairs.put_batch(slots[[0, 1, 1]], pa.array([6, 5, 5]), pa.array(["six", "five", "again"]))

    assert value.value() is None
    assert elements.get() == ["a", "b", "c"]
    assert dict(pairs.items()) == {5: "five", 6: "six"}
    assert pairs.lookup_batch(slots, pa.array([6, 5, 5])).to_pylist() == ["six", "again", None]
    pairs.remove_batch(slots[[0, 0, 2]], pa.array([5, 5, 5]))
    assert pairs.get_batch(slots).to_pylist() == [[(6, "six")], [(5, "again")], None]
    for state in (value, elements, pairs):
        state.clear_batch(slots)
        assert state.get_batch(slots).null_count == 3


def test_running_sums_of_a_stream() -> None:
    """What keyed_sum does: every row gets its key's sum and count after it, across batches and a restore."""
    descriptor = RunningAggregateDescriptor("total", pa.int64(), ("sum",))
    backend = numbers_backend()
    total = backend.get_running_aggregate(descriptor)

    first = total.fold_batch(backend.slots([pa.array([1, 2, 1])]), pa.array([10, 20, 30]))
    second_backend = numbers_backend()
    second_backend.restore([StoredFile(snapshot_of(backend))])
    total = second_backend.get_running_aggregate(descriptor)
    second = total.fold_batch(second_backend.slots([pa.array([2, 1, 3])]), pa.array([1, 1, 1]))

    assert [first["sum"].tolist(), first["count"].tolist()] == [[10, 20, 40], [1, 1, 2]]
    assert [second["sum"].tolist(), second["count"].tolist()] == [[21, 41, 1], [2, 3, 1]]


def test_keys_without_state_are_let_go() -> None:
    """Ever new keys whose state is cleared, or who never had any, do not fill the memory."""
    backend = numbers_backend()
    value = backend.get_state(ValueStateDescriptor("v", pa.int64()))
    timers = backend.get_timers()
    kept = backend.slots([pa.array([-1, -2])])
    value.put_batch(kept[:1], pa.array([1]))
    timers.event.register(kept[1:], np.array([5]))
    for turn in range(40):
        keys = pa.array(np.arange(turn * 10_000, (turn + 1) * 10_000))
        slots = backend.slots([keys])
        value.put_batch(slots, keys)
        value.clear_batch(slots)

    assert len(backend) < 100_000
    assert value.get_batch(backend.lookup([pa.array([-1])])).to_pylist() == [1]
    assert backend.lookup([pa.array([-2])]).tolist() == timers.event.advance(9, 9).slots.tolist()


def test_only_the_ranges_of_the_own_key_groups_are_read() -> None:
    """A subtask that owns an eighth of the key groups reads about an eighth of the file."""
    backend = numbers_backend(KeyGroupRange(0, 127), 128)
    value = backend.get_state(ValueStateDescriptor("v", pa.int64()))
    keys = pa.array(np.arange(300_000))
    value.put_batch(backend.slots([keys]), keys)
    file = StoredFile(snapshot_of(backend))

    part = numbers_backend(compute_key_group_range_for_operator_index(128, 8, 3), 128)
    part.restore([file])

    assert sum(size for _, size in file.reads) < len(file.data) / 5
    mine = split_batch(pa.record_batch({"k": keys}), ["k"], 128, 8)[3].column("k")
    assert len(part) == len(mine)
    restored = part.get_state(ValueStateDescriptor("v", pa.int64()))
    assert restored.get_batch(part.lookup([mine])).equals(mine)


def test_restored_keys_have_room_before_the_first_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of keys does not grow step by step meanwhile: that took half of the time of a restore."""
    backend = numbers_backend()
    keys = pa.array(np.arange(200_000))
    backend.get_state(ValueStateDescriptor("v", pa.int64())).put_batch(backend.slots([keys]), keys)
    restored, capacities = numbers_backend(), []
    value = restored.get_state(ValueStateDescriptor("v", pa.int64()))
    restore = value.restore

    def restore_and_look(slots: Any, values: pa.Array) -> None:
        capacities.append(restored._index.capacity)
        restore(slots, values)

    monkeypatch.setattr(value, "restore", restore_and_look)
    restored.restore([StoredFile(snapshot_of(backend))])

    assert len(capacities) > 1
    assert set(capacities) == {1 << 18}
    assert value.get_batch(restored.lookup([keys])).equals(keys)


def test_composite_keys_of_several_types_survive() -> None:
    """Strings, nulls, timestamps, decimals: the key comes back as it was."""
    schema = pa.schema([("s", pa.string()), ("t", pa.timestamp("ms")), ("d", pa.decimal128(9, 2)), ("b", pa.bool_())])
    columns = [
        pa.array(["a", None, "", "ä" * 20]),
        pa.array([1, 2, None, 4], pa.timestamp("ms")),
        pa.array([None, 1, 2, 3], pa.decimal128(9, 2)),
        pa.array([True, False, None, True]),
    ]
    backend = KeyedStateBackend(schema, ALL, MAX_PARALLELISM)
    backend.get_state(ValueStateDescriptor("v", pa.int64())).put_batch(backend.slots(columns), pa.array([1, 2, 3, 4]))

    restored = KeyedStateBackend(schema, ALL, MAX_PARALLELISM)
    restored.restore([StoredFile(snapshot_of(backend))])

    slots = restored.lookup(columns)
    assert [column.to_pylist() for column in restored.keys(slots)] == [column.to_pylist() for column in columns]
    assert restored.get_state(ValueStateDescriptor("v", pa.int64())).get_batch(slots).to_pylist() == [1, 2, 3, 4]
    restored.begin_batch(slots)
    assert restored.current_key == tuple(column[0].as_py() for column in columns)


def test_looking_up_keys_never_takes_them_from_a_batch_in_progress() -> None:
    """Keys without state are let go between batches, not while rows that will write state are processed."""
    backend = numbers_backend()
    value = backend.get_state(ValueStateDescriptor("v", pa.int64()))
    first = backend.slots([pa.array(np.arange(70_000))])
    numbers = backend.begin_batch(first)
    backend.slots([pa.array(np.arange(70_000, 140_000))])
    for number in numbers[:10]:
        backend.scope.index = number
        value.update(number)
    backend.end_batch()

    assert value.get_batch(backend.lookup([pa.array(range(10))])).to_pylist() == list(range(10))
    begin_key(backend, 5)
    assert value.value() == 5
    assert len(backend) == 10


def begin_key(backend: KeyedStateBackend, key: int) -> None:
    """Begin a batch of one row with this key."""
    backend.end_batch()
    backend.begin_batch(backend.slots([pa.array([key], pa.int64())]))


def use(backend: KeyedStateBackend, act: Callable[[], object]) -> None:
    begin_key(backend, 1)
    act()
    backend.end_batch()


def test_wrong_values_name_state_and_value() -> None:
    """Type mismatches, unserializable objects, missing functions and null map keys."""
    backend = numbers_backend()
    value = backend.get_state(ValueStateDescriptor("v", pa.int64()))
    document = backend.get_state(ValueStateDescriptor("j", serializer="json"))
    pairs = backend.get_map_state(MapStateDescriptor("m", pa.int64(), pa.string()))
    reducing = backend.get_reducing_state(ReducingStateDescriptor("r", None, pa.int64()))
    slots = backend.slots([pa.array([1])])

    with pytest.raises(StateError, match="state 'v' holds int64, which 'x' \\(str\\) is not"):
        use(backend, lambda: value.update("x"))
    with pytest.raises(StateError, match=r"state 'v' holds int64, which 1\.5 \(float\) is not"):
        use(backend, lambda: value.update(1.5))
    with pytest.raises(StateError, match="state 'j': serializer 'json' cannot write <object"):
        use(backend, lambda: document.update(object()))
    with pytest.raises(StateError, match="map state 'm': a key cannot be None"):
        use(backend, lambda: pairs.put(None, "x"))
    backend.end_batch()
    with pytest.raises(StateError, match="map state 'm': a key cannot be null"):
        pairs.put_batch(slots, pa.array([None], pa.int64()), pa.array(["x"]))
    with pytest.raises(StateError, match="reducing state 'r' was declared without a reduce function"):
        use(backend, lambda: reducing.add(1))
    with pytest.raises(StateError, match="state 'v' holds int64, the column to put is string: cast it"):
        value.put_batch(slots, pa.array(["x"]))


def test_state_without_a_key_is_refused() -> None:
    """In open() and close() there is no current key."""
    backend = numbers_backend()
    value = backend.get_state(ValueStateDescriptor("v", pa.int64()))
    elements = backend.get_list_state(ListStateDescriptor("l", pa.int64()))
    pairs = backend.get_map_state(MapStateDescriptor("m", pa.int64(), pa.int64()))

    for act in (
        value.value,
        lambda: value.update(1),
        elements.get,
        lambda: elements.add(1),
        lambda: pairs.get(1),
        pairs.clear,
    ):
        with pytest.raises(StateError, match="was used without a current key"):
            act()


def test_a_state_cannot_be_two_things() -> None:
    """Neither inside a job nor between a snapshot and the job that restores it."""
    backend = numbers_backend()
    state = backend.get_state(ValueStateDescriptor("v", pa.int64()))
    assert backend.get_state(ValueStateDescriptor("v", pa.int64())) is state
    state.put_batch(backend.slots([pa.array([1])]), pa.array([1]))
    restored = numbers_backend()
    restored.restore([StoredFile(snapshot_of(backend))])

    for backend_ in (backend, restored):
        with pytest.raises(
            StateError, match="state 'v' is a value state of int64, and is asked for as a value state of string"
        ):
            backend_.get_state(ValueStateDescriptor("v", pa.string()))
        with pytest.raises(StateError, match="asked for as a list state of large_list<item: int64>"):
            backend_.get_list_state(ListStateDescriptor("v", pa.int64()))


def test_a_snapshot_of_another_key_is_refused() -> None:
    """Other columns, other types, another max parallelism: each by name, before anything is read."""
    backend = numbers_backend()
    backend.get_state(ValueStateDescriptor("v", pa.int64())).put_batch(backend.slots([pa.array([1])]), pa.array([1]))
    file = StoredFile(snapshot_of(backend))

    for schema in (pa.schema([("user", pa.int64())]), pa.schema([("k", pa.string())])):
        with pytest.raises(StateError, match="written for the key k int64, the operator is now keyed by"):
            KeyedStateBackend(schema, ALL, MAX_PARALLELISM).restore([file])
    with pytest.raises(StateError, match="max parallelism 16, the operator now has 32"):
        numbers_backend(KeyGroupRange(0, 31), 32).restore([file])


def test_a_serializer_that_is_not_registered_is_named_when_it_is_needed() -> None:
    """State that nobody asks for is carried along without it."""
    register_serializer("test-only", lambda value: str(value).encode(), lambda data: int(data))
    backend = numbers_backend()
    descriptor = ValueStateDescriptor("o", serializer="test-only")
    begin_key(backend, 1)
    backend.get_state(descriptor).update(5)
    file = StoredFile(snapshot_of(backend))
    from snapline.dataflow.api import state as state_module

    del state_module._SERIALIZERS["test-only"]
    restored = numbers_backend()
    restored.restore([file])
    again = numbers_backend()
    again.restore([StoredFile(snapshot_of(restored))])
    begin_key(again, 1)
    with pytest.raises(StateError, match=r"no serializer 'test-only' is registered here \(known: .*json"):
        again.get_state(descriptor).value()

    register_serializer("test-only", lambda value: str(value).encode(), lambda data: int(data))
    assert again.get_state(descriptor).value() == 5


def test_a_serializer_that_misbehaves_is_named_with_its_state() -> None:
    """What one wrote as None was no state after the next restore, and what one raised named neither."""
    register_serializer("to-none", lambda _value: None, bytes.decode)  # type: ignore[arg-type, return-value]
    backend = numbers_backend()
    begin_key(backend, 1)
    backend.get_state(ValueStateDescriptor("o", serializer="to-none")).update("x")
    with pytest.raises(StateError, match=r"'o': serializer 'to-none' cannot write 'x'.*returned None and not bytes"):
        snapshot_of(backend)

    register_serializer("test-only", str.encode, lambda data: int(data))
    backend = numbers_backend()
    descriptor = ValueStateDescriptor("o", serializer="test-only")
    begin_key(backend, 1)
    backend.get_state(descriptor).update("x")
    restored = numbers_backend()
    restored.restore([StoredFile(snapshot_of(backend))])
    begin_key(restored, 1)
    with pytest.raises(StateError, match="'o': serializer 'test-only' cannot read what is stored: ValueError"):
        restored.get_state(descriptor).value()


def test_large_maps_are_not_loaded_to_ask_for_one_pair() -> None:
    """Beyond a few hundred pairs, a get reads a pair; all of them can still be listed, changes included."""
    backend = numbers_backend()
    pairs = backend.get_map_state(MapStateDescriptor("m", pa.int64(), pa.int64()))
    slots = backend.slots([pa.array([1])])
    pairs.put_batch(np.repeat(slots, 1000), pa.array(range(1000)), pa.array(range(1000)))
    backend.begin_batch(slots)
    assert [pairs.get(5), pairs.get(-5), pairs.contains(999)] == [5, None, True]
    assert len(pairs._maps[0].pairs) == 3
    pairs.put(5, 55)
    pairs.remove(6)

    assert dict(pairs.items()) == {n: 55 if n == 5 else n for n in range(1000) if n != 6}
    backend.end_batch()
    assert pairs.lookup_batch(slots[[0, 0]], pa.array([5, 6])).to_pylist() == [55, None]


def test_an_empty_backend_has_an_empty_snapshot() -> None:
    """Nothing in, nothing out; the states are known all the same."""
    backend = numbers_backend()
    backend.get_state(ValueStateDescriptor("v", pa.int64()))
    restored = numbers_backend()
    restored.restore([StoredFile(snapshot_of(backend))])

    assert len(restored) == 0
    assert [restored.has_state(name) for name in ("v", "w")] == [True, False]
    with pytest.raises(StateError, match="state 'v' is a value state of int64"):
        restored.get_state(ValueStateDescriptor("v", pa.float64()))
