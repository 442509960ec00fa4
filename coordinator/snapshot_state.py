"""What a snapshot holds, for clients: per operator its states, and per subtask and key group how many keys and bytes.

Reads `_metadata` and the headers of state files, never the state itself, which is `snapline state read`'s to show. Does
so one snapshot after the other, in a lane of slow work of its own, for so many clients and so long at most: what is not
reached is left out, and the answer says so. Does not know jobs, but that a checkpoint may be subsumed while it is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from snapline.coordinator.io import IoLane
from snapline.coordinator.snapshots import NoSnapshot, Snapshot, read_snapshot, read_state_header
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.key_groups import UPPER_BOUND_MAX_PARALLELISM
from snapline.dataflow.snapshot.handles import KeyedStateHandle, OperatorState, OperatorSubtaskState
from snapline.dataflow.wire.protobuf_fields import enum_tables
from snapline.protos import client_pb2 as pb
from snapline.runtime.signing import Signer
from snapline.runtime.storage.state_storages import StateStorages

if TYPE_CHECKING:
    from snapline.dataflow.snapshot.state_format import KeyedStateHeader

MAX_SUBTASKS_SHOWN = 5_000
"""Subtasks of all operators in one answer."""
MAX_READING_SECONDS = 10.0
"""After so long no further state file is looked at."""
LIMIT_MS = 20_000
"""A storage that has not answered after so long is given up, as nothing of it was reached."""
LANE = "snapshots that are looked into"
"""Owner of the work: a storage that never answers holds no thread of a job, or of other calls."""
MAX_KEY_GROUP_RANGES = 128
"""Ranges of key groups of one operator."""
MAX_READERS = 8
"""Clients whose snapshot is read, or that wait for it."""
REMEMBERED = 8
"""Answers that are kept, because a snapshot does not change."""

_TYPE_TO_NUMBER, _ = enum_tables(SnapshotType, pb.SnapshotState.DESCRIPTOR.fields_by_name["snapshot_type"])


class TooManyReaders(SnaplineError):
    """So many clients look into snapshots at the moment that another one has to come again."""


class SnapshotStates:
    """Looks into snapshots for clients; used on the server's loop, which it does not hold up."""

    def __init__(self, storages: StateStorages, signer: Signer, lane: IoLane) -> None:
        self._storages = storages
        self._signer = signer
        self._lane = lane
        self._reading = asyncio.Lock()
        self._readers = 0
        self._known: dict[str, pb.SnapshotState] = {}

    async def read(self, path: str) -> pb.SnapshotState:
        """What the snapshot in this directory holds. Raises SnaplineError when it cannot be read, or TooManyReaders."""
        if self._readers >= MAX_READERS:
            raise TooManyReaders(f"{MAX_READERS} others look into snapshots at the moment: ask again")
        self._readers += 1
        try:
            async with self._reading:
                found = self._known.get(path)
                if found is None:
                    found = await self._read(path)
                    self._known[path] = found
                    while len(self._known) > REMEMBERED:
                        del self._known[next(iter(self._known))]
                return found
        finally:
            self._readers -= 1

    async def _read(self, path: str) -> pb.SnapshotState:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[pb.SnapshotState] = loop.create_future()

        def settle(found: pb.SnapshotState | SnaplineError) -> None:
            if answer.done():  # whoever asked has gone
                return
            if isinstance(found, SnaplineError):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def tell(found: pb.SnapshotState | SnaplineError) -> None:
            with suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(settle, found)

        def failed(error: BaseException) -> SnaplineError:
            return error if isinstance(error, SnaplineError) else NoSnapshot(f"{path} cannot be read: {error}")

        def work() -> pb.SnapshotState:
            return read_snapshot_state(self._storages, path, self._signer)

        self._lane.submit("look into a snapshot", work, tell, failed, LIMIT_MS)
        return await answer


@dataclass
class _Budget:
    """How much may still be read and shown."""

    until_s: float
    clock: Callable[[], float]
    subtasks: int
    cut_short: dict[str, None] = field(default_factory=dict)

    def may_look(self) -> bool:
        """Whether there is time for another state file."""
        if self.clock() < self.until_s:
            return True
        self.cut_short[f"the keys of some subtasks were not counted: {MAX_READING_SECONDS:.0f} s were over"] = None
        return False

    def may_show(self) -> bool:
        """Whether another subtask fits into the answer."""
        self.subtasks -= 1
        if self.subtasks >= 0:
            return True
        self.cut_short[f"{MAX_SUBTASKS_SHOWN:,} subtasks are shown, and there are more"] = None
        return False


def read_snapshot_state(
    storages: StateStorages, path: str, signer: Signer, clock: Callable[[], float] = time.monotonic
) -> pb.SnapshotState:
    """Read `_metadata` and the headers of state files. Raises SnaplineError."""
    budget = _Budget(clock() + MAX_READING_SECONDS, clock, MAX_SUBTASKS_SHOWN)
    snapshot = read_snapshot(storages, path, signer)
    metadata = snapshot.metadata
    answer = pb.SnapshotState(
        checkpoint_id=metadata.checkpoint_id,
        path=snapshot.location,
        snapshot_type=_TYPE_TO_NUMBER[metadata.snapshot_type],  # type: ignore[arg-type]
        timestamp_ms=metadata.timestamp_ms,
    )
    for operator in metadata.operators:
        if any(state.stream_handles for state in operator.subtasks.values()):
            _show_operator(answer.operators.add(), operator, storages, snapshot, budget)
    answer.cut_short = "; ".join(budget.cut_short)
    return answer


def _show_operator(
    shown: pb.OperatorStateOverview,
    operator: OperatorState,
    storages: StateStorages,
    snapshot: Snapshot,
    budget: _Budget,
) -> None:
    shown.uid, shown.name = operator.uid or operator.operator_id, operator.name
    shown.parallelism, shown.max_parallelism = operator.parallelism, operator.max_parallelism
    keys: dict[str, str] = {}
    states: dict[str, tuple[str, str]] = {}
    counts = [0] * min(operator.max_parallelism, UPPER_BOUND_MAX_PARALLELISM)
    has_keys = False
    for index, state in sorted(operator.subtasks.items()):
        if not state.stream_handles:
            continue
        if not budget.may_show():
            break
        subtask = _subtask(index, state)
        for part in state.managed_operator:
            states.update({entry.name: (entry.mode.value, "binary") for entry in part.entries})
        for keyed in state.managed_keyed:
            has_keys = True
            if not budget.may_look():
                subtask.keys_at_most = -1
                break
            header = _read_header(storages, keyed, snapshot)
            keys.update({each.name: str(each.type) for each in header.key_fields})
            states.update(_states(header))
            subtask.keys_at_most += header.row_count
            _count_keys(header, counts)
        shown.subtasks.append(subtask)
    shown.key.extend(pb.StateOverview(name=name, type=of) for name, of in keys.items())
    shown.states.extend(pb.StateOverview(name=name, kind=kind, type=of) for name, (kind, of) in states.items())
    if has_keys and all(subtask.keys_at_most >= 0 for subtask in shown.subtasks):
        shown.key_groups.extend(_ranges(counts))


def _subtask(index: int, state: OperatorSubtaskState) -> pb.SubtaskStateOverview:
    groups = [part.key_group_range for part in state.managed_keyed if len(part.key_group_range)]
    sizes = [size for part in state.managed_operator for entry in part.entries for _, size in entry.offsets]
    return pb.SubtaskStateOverview(
        subtask_index=index,
        first_key_group=min((each.start for each in groups), default=0),
        last_key_group=max((each.end for each in groups), default=-1),
        keyed_bytes=sum(part.handle.state_size_bytes for part in state.managed_keyed),
        elements=len(sizes),
        element_bytes=sum(sizes),
        in_flight_bytes=sum(part.handle.state_size_bytes for part in (*state.input_channel, *state.output_channel)),
    )


def _read_header(storages: StateStorages, part: KeyedStateHandle, snapshot: Snapshot) -> KeyedStateHeader:
    try:
        return read_state_header(storages, part)
    except SnaplineError as error:
        raise NoSnapshot(f"a state file of {snapshot.location} cannot be read: {error}") from error


def _states(header: KeyedStateHeader) -> Mapping[str, tuple[str, str]]:
    described = zip(header.state_fields, header.state_descriptors, strict=True)
    known = {field.name: (descriptor.kind.value, str(field.type)) for field, descriptor in described}
    return {**known, **{each.name: ("timers", str(each.type)) for each in header.timer_fields}}


def _count_keys(header: KeyedStateHeader, counts: list[int]) -> None:
    """Add the keys of each key group of a file."""
    groups, offsets = header.key_group_offsets.key_group_range, header.key_group_offsets.offsets
    for group, (begin, end) in enumerate(pairwise(offsets), groups.start):
        if group < len(counts):
            counts[group] += end - begin


def _ranges(counts: Sequence[int]) -> list[pb.KeyGroupOverview]:
    """Neighbouring key groups together, so that there are no more than MAX_KEY_GROUP_RANGES."""
    width = -(-len(counts) // MAX_KEY_GROUP_RANGES)
    return [
        pb.KeyGroupOverview(
            first_key_group=first,
            last_key_group=min(first + width, len(counts)) - 1,
            keys_at_most=sum(counts[first : first + width]),
        )
        for first in range(0, len(counts), width)
    ]
