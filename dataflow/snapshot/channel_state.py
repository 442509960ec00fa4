"""Where data in flight goes when a job is restored at another parallelism.

Decides, from the partitioning of an edge and the parallelisms of both sides, which old subtasks' in-flight data each
new subtask reads, and which channel or subpartition it becomes. Both processes need it: the coordinator hands out the
handles, a TaskManager filters what more than one subtask reads. It does not know rows or files. Mirrors Flink's
SubtaskStateMapper, RescaleMappings, MappingBasedRepartitioner and the channel state part of StateAssignmentOperation.
Two differences: a forward edge is rescaled, too (its two sides always have one parallelism), and output data of a hash
edge is spread by key again by its new producer, instead of being sent to all and filtered there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from snapline.dataflow.errors import StateError
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.handles import ChannelStateHandle

if TYPE_CHECKING:
    import pyarrow as pa

EDGE_METADATA = b"snapline.edge"
"""The metadata key of the schema of data in flight that says on which edge it was: the operators at its ends. Data of
older releases does not say it."""
SPREAD_BY_METADATA = b"snapline.spread-by"
"""That of input data which says by which key columns it was spread over several subtasks; empty: by none."""


class ChannelStateNotRescalable(ValueError):
    """In-flight data is to be restored at another parallelism on an edge whose data cannot move."""


class SubtaskStateMapper(Enum):
    """Which old subtasks a new one reads in-flight data of."""

    ARBITRARY = "arbitrary"
    """Any distribution will do, as long as both sides of the edge agree."""
    FIRST = "first"
    """Everything to the first subtask."""
    FULL = "full"
    """Everything to every subtask, which keeps what is its own."""
    RANGE = "range"
    """Rows are taken by key group; where ranges overlap, every subtask keeps what is its own. Ranges are parts of one
    whole here, so that they overlap wherever any max parallelism has a key group in both. Flink asks the key groups of
    the greatest max parallelism, which are too coarse for parallelisms of hundreds."""
    ROUND_ROBIN = "round_robin"
    """Old subtask i to new subtask i modulo the new parallelism."""
    UNSUPPORTED = "unsupported"
    """No in-flight data on such an edge can move."""

    def old_subtasks(self, new_subtask: int, old_parallelism: int, new_parallelism: int) -> tuple[int, ...]:
        """The old subtasks whose data this new subtask reads, ascending."""
        match self:
            case SubtaskStateMapper.FIRST:
                return tuple(range(old_parallelism)) if new_subtask == 0 else ()
            case SubtaskStateMapper.FULL:
                return tuple(range(old_parallelism))
            case SubtaskStateMapper.RANGE:
                first = new_subtask * old_parallelism // new_parallelism
                last = ((new_subtask + 1) * old_parallelism - 1) // new_parallelism
                return tuple(range(first, last + 1))
            case SubtaskStateMapper.ROUND_ROBIN | SubtaskStateMapper.ARBITRARY:
                return tuple(range(new_subtask, old_parallelism, new_parallelism))
            case SubtaskStateMapper.UNSUPPORTED:
                raise ChannelStateNotRescalable(
                    f"data in flight cannot be restored on a broadcast edge (parallelism {old_parallelism} before, "
                    f"{new_parallelism} now): restore with the edge as it was, or from an aligned checkpoint or savepoint"
                )

    def new_to_old(self, old_parallelism: int, new_parallelism: int) -> tuple[tuple[int, ...], ...]:
        """For each new subtask, in order, the old subtasks whose data it reads (Flink: RescaleMappings)."""
        return tuple(self.old_subtasks(index, old_parallelism, new_parallelism) for index in range(new_parallelism))


def supports_unaligned(partitioning: Partitioning) -> bool:
    """Whether barriers may overtake data on such an edge. Otherwise the producer sends them FORCED_ALIGNED: consumers
    of a broadcast would restore different histories, the blocks of a rescale edge shift with the parallelism, and
    splits that were asked for are taken at once, so that no barrier waits behind them."""
    return partitioning in (Partitioning.FORWARD, Partitioning.HASH, Partitioning.REBALANCE)


def downstream_state_mapper(partitioning: Partitioning) -> SubtaskStateMapper:
    """How the consumers of such an edge take over in-flight data. A rescale edge has none, but it may have been another
    one in the snapshot."""
    return {
        Partitioning.FORWARD: SubtaskStateMapper.ROUND_ROBIN,
        Partitioning.HASH: SubtaskStateMapper.RANGE,
        Partitioning.REBALANCE: SubtaskStateMapper.ROUND_ROBIN,
        Partitioning.RESCALE: SubtaskStateMapper.ROUND_ROBIN,
        Partitioning.BROADCAST: SubtaskStateMapper.UNSUPPORTED,
        Partitioning.DEMAND: SubtaskStateMapper.UNSUPPORTED,
    }[partitioning]


def upstream_state_mapper(partitioning: Partitioning) -> SubtaskStateMapper:
    """How the producers of such an edge take over in-flight data. The same for both kinds of it, so that what the
    consumer had received and what the producer had queued for it meet in one channel again, in order."""
    if supports_unaligned(partitioning) or partitioning is Partitioning.RESCALE:
        return SubtaskStateMapper.ARBITRARY
    return SubtaskStateMapper.UNSUPPORTED


@dataclass(frozen=True, slots=True)
class EdgeRescaling:
    """One edge, before and after."""

    partitioning: Partitioning
    old_producers: int
    new_producers: int
    old_consumers: int
    new_consumers: int

    @property
    def is_rescaled(self) -> bool:
        """Return whether the parallelism of either side has changed."""
        return self.old_producers != self.new_producers or self.old_consumers != self.new_consumers


def redistribute_input_channel_state(
    old_states: Mapping[int, Sequence[ChannelStateHandle]], gates: Sequence[EdgeRescaling], new_parallelism: int
) -> list[tuple[ChannelStateHandle, ...]]:
    """Per new subtask the input handles to restore, `channel` rewritten to the new channel, in the order to restore
    them.

    `old_states`: by old subtask; `gates`: by input gate. On a rescaled hash edge every row has to be checked by its
    reader (`snapline.taskmanager.checkpointing.channel_state_filter.own_rows`). Raises ChannelStateNotRescalable."""
    plan: list[list[ChannelStateHandle]] = [[] for _ in range(new_parallelism)]
    for gate_index, edge in enumerate(gates):
        mine = _select_part(old_states, gate_index)
        if not mine:
            continue
        if not edge.is_rescaled and supports_unaligned(edge.partitioning):
            for old, handles in mine.items():
                plan[old].extend(_moved(handle, edge, edge.new_producers) for handle in handles)
            continue
        subtasks = downstream_state_mapper(edge.partitioning).new_to_old(edge.old_consumers, edge.new_consumers)
        for new, row in enumerate(subtasks):
            for old in row:
                plan[new].extend(_moved(handle, edge, edge.new_producers) for handle in mine.get(old, ()))
    return [tuple(handles) for handles in plan]


def redistribute_output_channel_state(
    old_states: Mapping[int, Sequence[ChannelStateHandle]], partitions: Sequence[EdgeRescaling], new_parallelism: int
) -> list[tuple[ChannelStateHandle, ...]]:
    """Per new subtask the output handles to restore, `channel` rewritten to the new subpartition.

    On a rescaled hash edge the subpartition means nothing: its reader spreads the rows by key again. Raises
    ChannelStateNotRescalable."""
    plan: list[list[ChannelStateHandle]] = [[] for _ in range(new_parallelism)]
    for partition_index, edge in enumerate(partitions):
        mine = _select_part(old_states, partition_index)
        if not mine:
            continue
        if not edge.is_rescaled and supports_unaligned(edge.partitioning):
            for old, handles in mine.items():
                plan[old].extend(_moved(handle, edge, edge.new_consumers) for handle in handles)
            continue
        subtasks = upstream_state_mapper(edge.partitioning).new_to_old(edge.old_producers, edge.new_producers)
        for new, row in enumerate(subtasks):
            for old in row:
                plan[new].extend(_moved(handle, edge, edge.new_consumers) for handle in mine.get(old, ()))
    return [tuple(handles) for handles in plan]


def with_origin(
    batches: Sequence[pa.RecordBatch], edge_id: str, spread_by: Sequence[str] | None = None
) -> tuple[pa.RecordBatch, ...]:
    """Data in flight that says where it was. `spread_by`: see there; None: it does not matter."""
    said = {EDGE_METADATA: _ends_of(edge_id)}
    if spread_by is not None:
        said[SPREAD_BY_METADATA] = "\0".join(spread_by).encode()
    return tuple(batch.replace_schema_metadata({**(batch.schema.metadata or {}), **said}) for batch in batches)


def without_origin(
    batches: Sequence[pa.RecordBatch], edge_id: str, edge_ids: Iterable[str], spread_by: Sequence[str] = ()
) -> list[pa.RecordBatch]:
    """Restored data in flight as it was before `with_origin`. `edge_id`: where it is going to be, one of the
    `edge_ids` on this side of its task. `spread_by`: the key columns by which each of several subtasks is going to keep
    its own rows. Raises StateError for data of another one of these edges, and for data that was spread otherwise, of
    which rows would be nobody's."""
    others = set(map(_ends_of, edge_ids)) - {_ends_of(edge_id)}
    found = []
    for batch in batches:
        metadata = dict(batch.schema.metadata or {})
        if metadata.pop(EDGE_METADATA, None) in others:
            raise StateError(
                "the snapshot holds data in flight for an input or output that has another place among those of its operator now: take "
                "a savepoint, which holds none, before changing the shape of the job"
            )
        said = metadata.pop(SPREAD_BY_METADATA, None)
        if spread_by and said is not None and said != "\0".join(spread_by).encode():
            before = ", ".join(said.decode(errors="replace").split("\0")) or "no key"
            raise StateError(
                f"the snapshot holds data in flight that was spread by {before}, and is spread by {', '.join(spread_by)} now, so that "
                "rows would be lost: take a savepoint, which holds none, before changing the key"
            )
        found.append(batch.replace_schema_metadata(metadata or None))
    return found


def _ends_of(edge_id: str) -> bytes:
    """The operators at both ends: the same edge may have another place among the inputs of its target."""
    return edge_id.rpartition("-")[0].encode()


def _moved(handle: ChannelStateHandle, edge: EdgeRescaling, channels: int) -> ChannelStateHandle:
    """As data of one of so many channels or subpartitions, as upstream mappers spread old subtasks over new ones. A
    task may have only one of a pointwise edge; in the snapshot it may have been a rebalance edge, as between vertices
    whose parallelism differs."""
    return replace(handle, channel=0 if edge.partitioning.is_pointwise else handle.channel % channels)


def _select_part(
    old_states: Mapping[int, Sequence[ChannelStateHandle]], part: int
) -> dict[int, tuple[ChannelStateHandle, ...]]:
    """The handles of one gate or partition, by old subtask; subtasks without any are absent."""
    mine = {
        old: tuple(handle for handle in old_states[old] if handle.gate_or_partition == part)
        for old in sorted(old_states)
    }
    return {old: handles for old, handles in mine.items() if handles}
