"""Incremental snapshots: any program, any checkpoints that complete, abort or stay open, restored at any
parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.dataflow.api.state import RunningAggregateDescriptor
from snapline.dataflow.columnar import arrow_columns
from snapline.dataflow.key_groups import compute_key_group_range_for_operator_index
from snapline.dataflow.snapshot.handles import ByteStreamStateHandle, KeyedStateHandle
from snapline.dataflow.snapshot.state_format import read_header
from snapline.taskmanager.state import columns
from snapline.taskmanager.state.incremental import MAX_DELTAS, MAX_UNCONFIRMED, IncrementalPart, KeyedChanges
from snapline.taskmanager.state.index import key_index
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from tests.unit.taskmanager.state.naive import ALL, MAX_PARALLELISM, MEMORY, ROWS, Naive, Subject, run_naive
from tests.unit.taskmanager.state.test_keyed_backend import StoredFile, share_of


def write(parts: Sequence[IncrementalPart]) -> list[KeyedStateHandle]:
    """All parts of the snapshot, its own written."""
    handles: list[KeyedStateHandle] = []
    for part in parts:
        data = part.encode()
        part.release()
        handles += [*part.references, part.stored(ByteStreamStateHandle(bytes(data)))]
    return handles


def files_of(handles: list[KeyedStateHandle]) -> list[StoredFile]:
    return [StoredFile(handle.handle.data) for handle in handles if isinstance(handle.handle, ByteStreamStateHandle)]


STEPS = st.lists(
    st.tuples(ROWS, st.sampled_from(["complete", "complete", "complete", "abort", "leave", "late"])),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("chains", [60, pytest.param(120, marks=pytest.mark.rare)])
def test_a_chain_restores_what_was_there(chains: int) -> None:
    """The last snapshot that completed holds all keys as they were; removed ones do not come back."""
    drawn = given(STEPS, st.integers(1, 3), st.integers(0, 1), MEMORY, MEMORY)(restore_a_chain)
    settings(max_examples=chains, deadline=None)(drawn)()


def restore_a_chain(steps: list[Any], new: int, unswept: int, memory: int | None, memory_after: int | None) -> None:
    subject, states = Subject(memory_bytes=memory), {}  # type: ignore[var-annotated]
    subject.claim()
    chain = subject.backend.incremental_snapshots("op-1")
    expected: dict[Any, Any] = {}
    timers: set[tuple[Any, int]] = set()
    files: list[StoredFile] = []
    late: list[int] = []
    for number, (rows, fate) in enumerate(steps, 1):
        subject.process(rows)
        run_naive(rows, states)
        if not unswept:
            subject.backend._sweep()
        handles = write(chain.snapshot(number))
        if fate == "abort":
            chain.aborted(number)
        if fate != "complete":
            late += [number] if fate == "late" else []
            continue
        for earlier in late:  # the notification of an earlier one comes at last
            chain.completed(earlier)
        late = []
        chain.completed(number)
        files = files_of(handles)
        expected = {key: state.look() for key, state in states.items() if not state.is_empty}
        timers = {(key, time) for key, state in states.items() for time in state.timers}
    if not files:
        return

    got: dict[Any, Any] = {}
    pending: set[tuple[Any, int]] = set()
    for index in range(new):
        restored = Subject(
            compute_key_group_range_for_operator_index(MAX_PARALLELISM, new, index), memory_bytes=memory_after
        )
        restored.backend.restore(files)
        restored.claim()
        rows = [(key, ("look", None)) for key in states]
        mine = [row for _, row in share_of(rows, index, new)]
        got |= restored.everything([key for key, _ in mine])
        pending |= restored.pending_timers()
    assert {**{key: Naive().look() for key in states}, **expected} == got
    assert timers == pending


def aggregate(keys: int) -> tuple[KeyedStateBackend, Any]:
    backend = KeyedStateBackend(pa.schema([("k", pa.int64())]), ALL, MAX_PARALLELISM)
    state = backend.get_running_aggregate(RunningAggregateDescriptor("sums", pa.int64()))
    state.fold_batch(backend.slots([pa.array(range(keys))]), pa.array(range(keys)))
    return backend, state


def test_a_delta_costs_what_has_changed() -> None:
    """One in a hundred keys: a hundredth of the bytes, nearly."""
    backend, state = aggregate(100_000)
    chain = backend.incremental_snapshots("op")
    full = write(chain.snapshot(1))
    chain.completed(1)
    state.fold_batch(backend.slots([pa.array(range(0, 100_000, 100))]), pa.array([1] * 1000))
    base, delta = write(chain.snapshot(2))

    assert full == [base]
    assert delta.handle.state_size_bytes < 0.05 * base.handle.state_size_bytes
    header = read_header(files_of([delta])[0].read_range)
    assert (True, 1000) == (header.is_delta, header.row_count)


def test_the_chain_begins_anew_when_its_deltas_are_many_or_large() -> None:
    """A restore never reads more than about one and a half times the state."""
    backend, state = aggregate(1000)
    chain = backend.incremental_snapshots("op")
    lengths = []
    for number in range(1, MAX_DELTAS + 3):
        lengths.append(len(write(chain.snapshot(number))))
        chain.completed(number)
        state.fold_batch(backend.slots([pa.array([number])]), pa.array([1]))
    assert [*range(1, MAX_DELTAS + 2), 1] == lengths

    for number, keys in ((100, 600), (101, 1)):
        state.fold_batch(backend.slots([pa.array(range(keys))]), pa.array([1] * keys))
        lengths.append(len(write(chain.snapshot(number))))
        chain.completed(number)
    assert [2, 1] == lengths[-2:]


def test_a_full_snapshot_begins_a_new_chain() -> None:
    """It builds on nothing, and what follows builds on it."""
    backend, state = aggregate(1000)
    chain = backend.incremental_snapshots("op")
    write(chain.snapshot(1))
    chain.completed(1)
    (full,) = write(chain.snapshot(2, full=True))
    chain.completed(2)
    state.fold_batch(backend.slots([pa.array([5])]), pa.array([1]))

    assert full in write(chain.snapshot(3))


def test_what_never_completes_is_not_remembered_for_ever() -> None:
    """After many snapshots without one that completes the next is full."""
    backend, _ = aggregate(10)
    chain = backend.incremental_snapshots("op")
    write(chain.snapshot(1))
    chain.completed(1)
    for number in range(2, MAX_UNCONFIRMED + 2):
        assert 2 == len(write(chain.snapshot(number)))
    assert 1 == len(write(chain.snapshot(MAX_UNCONFIRMED + 2)))

    chain.completed(5)  # forgotten: it does not become what others build on
    assert 1 == len(write(chain.snapshot(MAX_UNCONFIRMED + 3)))


def test_nothing_is_marked_before_the_first_snapshot() -> None:
    """A job without checkpoints forgets keys without state as ever."""
    changes = KeyedChanges(4)
    slots = pa.array([1, 2], pa.int32()).to_numpy()
    changes.mark(slots)
    assert not changes.touched(4).any()

    changes.snapshot(1)
    changes.mark(slots)
    assert [False, True, True, False] == changes.touched(4).tolist()
    changes.snapshot(2)
    changes.confirm(1)
    assert 2 == changes.touched(4).sum()
    changes.confirm(2)
    assert not changes.touched(4).any()


@pytest.mark.parametrize("memory_bytes", [None, 0])
@pytest.mark.parametrize("incremental", [False, True])
def test_more_text_than_fits_into_one_array_is_in_a_snapshot(
    monkeypatch: pytest.MonkeyPatch, *, incremental: bool, memory_bytes: int | None
) -> None:
    """Of a type with 32 bits for offsets that is 2 GiB: a subtask with so much in a few thousand keys had no checkpoint
    any more, and with incremental ones it failed, as what had changed was gathered in the task's thread."""
    most_bytes = 5_000
    keys = [f"key {number}" for number in range(400)]

    def texts(version: str) -> list[str]:
        """Short ones, and long ones behind them: what the first rows are like says nothing of the others."""
        return [f"{key} {version} {'x' * (300 if number >= 200 else 1)}" for number, key in enumerate(keys)]

    def limited(*arguments: Any) -> pa.Array:
        taken = take(*arguments)
        if taken.nbytes > most_bytes:
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        return taken

    subject = Subject(memory_bytes=memory_bytes)
    subject.claim()
    chain = subject.backend.incremental_snapshots("op")
    handles: list[KeyedStateHandle] = []
    for number, version in enumerate(["old", "new"], 1):
        for first in range(0, len(keys), 10):
            pairs = zip(keys, texts(version), strict=True)
            subject.process([(key, ("text.update", text)) for key, text in list(pairs)[first : first + 10]])
        take = columns._take
        with monkeypatch.context() as narrow:
            narrow.setattr(columns, "_take", limited)
            parts = chain.snapshot(number, full=not incremental)
            if memory_bytes is None:
                subject.process([(keys[0], ("text.update", "later"))])
            handles = write(parts)
        chain.completed(number)
        subject.process([(keys[0], ("text.update", texts(version)[0]))])

    restored = Subject()
    restored.claim()
    restored.backend.restore(files_of(handles))
    found = restored.process([(key, ("look", None)) for key in keys])
    assert [row[1] for row in found] == texts("new")


@pytest.mark.parametrize("incremental", [False, True])
def test_more_text_in_keys_than_fits_into_one_array_is_in_a_snapshot(
    monkeypatch: pytest.MonkeyPatch, *, incremental: bool
) -> None:
    """A few thousand keys of 1 MB are as much, and a subtask with so many had no checkpoint any more."""
    keys = [f"key {number}" for number in range(2000)]
    whole = arrow_columns.binary_array
    subject = Subject()
    subject.claim()
    chain = subject.backend.incremental_snapshots("op")

    def limited(offsets: Any, *rest: Any) -> pa.Array:
        if offsets[-1] > 2000:
            raise OverflowError("more bytes than fit into one array of type string")
        return whole(offsets, *rest)

    handles: list[KeyedStateHandle] = []
    for number, version in enumerate(["old", "new"], 1):
        subject.process([(key, ("text.update", f"{key} {version}")) for key in keys])
        with monkeypatch.context() as narrow:
            narrow.setattr(key_index, "binary_array", limited)
            handles = write(chain.snapshot(number, full=not incremental))
        chain.completed(number)

    restored = Subject()
    restored.claim()
    restored.backend.restore(files_of(handles))
    assert [result[1] for result in restored.process([(key, ("look", None)) for key in keys])] == [
        f"{key} new" for key in keys
    ]
