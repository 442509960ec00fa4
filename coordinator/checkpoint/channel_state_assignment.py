"""In-flight data of a snapshot, handed to the channels of a job that may have another parallelism.

Decides which new subtask replays which old channel; moves handles, never data. Rules:

* Neither end of an edge changed its parallelism: input data goes back to its channel, output data to its subpartition.
* Otherwise everything that was in flight on the edge becomes input data of the consumer: of each old channel first what the
  consumer had received, then what the producer had not sent yet, which is the order in which it was emitted. Old channels go
  to the new consumer's channels by the old producer's index, modulo their number; several handles of one channel are
  replayed in the order in which they stand.
* Which consumer: HASH: every one whose key groups overlap with those of the old consumer. A batch may then reach several; each
  keeps the rows of its own key groups (the task filters restored input of hash edges, always). REBALANCE, RESCALE,
  FORWARD: exactly one, old subtask i goes to i modulo the new parallelism. BROADCAST: new subtask i takes the
  in-flight data of old subtask i modulo the old parallelism, the one whose broadcast state it takes as well.

Mirrors Flink's TaskStateAssignment and SubtaskStateMapper; Flink restores output data at the new producers and has no answer for
broadcast and pointwise edges, so it keeps those aligned. Turning output into input needs no demultiplexing of old subpartitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.checkpoint.plan import predecessors
from dataflow.handles import ChannelStateHandle, OperatorSubtaskState
from dataflow.jobgraph import Partitioning
from dataflow.key_groups import compute_key_group_range_for_operator_index, compute_operator_index_for_key_group


def range_mapping(new_index: int, old_parallelism: int, new_parallelism: int, max_parallelism: int) -> range:
    """Old subtasks whose key groups overlap with those of a new one (Flink: SubtaskStateMapper.RANGE)."""
    own = compute_key_group_range_for_operator_index(max_parallelism, new_parallelism, new_index)
    first = compute_operator_index_for_key_group(max_parallelism, old_parallelism, own.start)
    last = compute_operator_index_for_key_group(max_parallelism, old_parallelism, own.end)
    return range(first, last + 1)


def round_robin_mapping(new_index: int, old_parallelism: int, new_parallelism: int) -> range:
    """Old subtasks that one new subtask takes over alone (Flink: SubtaskStateMapper.ROUND_ROBIN)."""
    return range(new_index, old_parallelism, new_parallelism)


@dataclass(frozen=True, slots=True)
class RescaledEdge:
    """One edge of the job, with what the snapshot knows of its two ends."""

    gate_index: int
    """Position of the edge among the inputs of its target."""
    partition_index: int
    """Position of the edge among the outputs of its source."""
    partitioning: Partitioning
    old_source_parallelism: int
    new_source_parallelism: int
    old_target_parallelism: int
    new_target_parallelism: int
    target_max_parallelism: int

    @property
    def is_unchanged(self) -> bool:
        """Whether every channel is there again."""
        return (
            self.old_source_parallelism == self.new_source_parallelism
            and self.old_target_parallelism == self.new_target_parallelism
        )


def redistribute_channel_state(
    edge: RescaledEdge,
    source_states: Mapping[int, OperatorSubtaskState],
    target_states: Mapping[int, OperatorSubtaskState],
) -> dict[int, tuple[ChannelStateHandle, ...]]:
    """Input data of each new subtask of the edge's target, for an edge of which an end was rescaled.

    `source_states`, `target_states`: by old subtask index, of the operators that hold the channel state.
    """
    in_flight = _by_old_channel(edge, source_states, target_states)
    if not in_flight:
        return {}
    assigned: dict[int, tuple[ChannelStateHandle, ...]] = {}
    by_target: dict[int, list[tuple[int, list[ChannelStateHandle]]]] = {}
    for producer, consumer in sorted(in_flight):
        by_target.setdefault(consumer, []).append((producer, in_flight[producer, consumer]))
    for new_index in range(edge.new_target_parallelism):
        channels = _channel_count(edge, new_index)
        handles = tuple(
            ChannelStateHandle(edge.gate_index, producer % channels, handle.handle, handle.batch_count)
            for consumer in _old_consumers(edge, new_index)
            for producer, old_handles in by_target.get(consumer, ())
            for handle in old_handles
        )
        if handles:
            assigned[new_index] = handles
    return assigned


def _old_consumers(edge: RescaledEdge, new_index: int) -> Sequence[int]:
    old, new = edge.old_target_parallelism, edge.new_target_parallelism
    match edge.partitioning:
        case Partitioning.HASH:
            return range_mapping(new_index, old, new, edge.target_max_parallelism)
        case Partitioning.BROADCAST:
            return (new_index % old,)
        case _:
            return round_robin_mapping(new_index, old, new)


def _channel_count(edge: RescaledEdge, new_index: int) -> int:
    if edge.partitioning.is_pointwise:
        return len(predecessors(new_index, edge.new_source_parallelism, edge.new_target_parallelism))
    return edge.new_source_parallelism


def _by_old_channel(
    edge: RescaledEdge,
    source_states: Mapping[int, OperatorSubtaskState],
    target_states: Mapping[int, OperatorSubtaskState],
) -> dict[tuple[int, int], list[ChannelStateHandle]]:
    """(old producer, old consumer) -> handles, in order of emission."""
    found: dict[tuple[int, int], list[ChannelStateHandle]] = {}
    pointwise = edge.partitioning.is_pointwise
    for consumer, state in target_states.items():
        for handle in state.input_channel:
            if handle.gate_or_partition == edge.gate_index:
                producer = handle.channel
                if pointwise:
                    feeding = predecessors(consumer, edge.old_source_parallelism, edge.old_target_parallelism)
                    producer = feeding[handle.channel]
                found.setdefault((producer, consumer), []).append(handle)
    for producer, state in source_states.items():
        for handle in state.output_channel:
            if handle.gate_or_partition == edge.partition_index:
                consumer = handle.channel
                if pointwise:
                    consumer = _successors(edge, producer)[handle.channel]
                found.setdefault((producer, consumer), []).append(handle)
    return found


def _successors(edge: RescaledEdge, producer: int) -> list[int]:
    """Old consumers that a producer of a pointwise edge feeds, in order of its subpartitions."""
    producers, consumers = edge.old_source_parallelism, edge.old_target_parallelism
    around = range(producer * consumers // producers, ((producer + 1) * consumers - 1) // producers + 2)
    return [c for c in around if c < consumers and producer in predecessors(c, producers, consumers)]
