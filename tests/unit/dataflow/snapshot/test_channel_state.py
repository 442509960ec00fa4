"""Data in flight at another parallelism."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from snapline.dataflow.key_groups import KeyGroupRange, compute_operator_index_for_key_group
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.channel_state import (
    ChannelStateNotRescalable,
    EdgeRescaling,
    SubtaskStateMapper,
    downstream_state_mapper,
    redistribute_input_channel_state,
    redistribute_output_channel_state,
    supports_unaligned,
    upstream_state_mapper,
)
from snapline.dataflow.snapshot.handles import ByteStreamStateHandle, ChannelStateHandle
from snapline.taskmanager.checkpointing.channel_state_filter import own_batches, own_rows, spread_by_key


def handle(part: int, channel: int, name: str) -> ChannelStateHandle:
    return ChannelStateHandle(part, channel, ByteStreamStateHandle(name.encode()), 1)


def names(plan: list[tuple[ChannelStateHandle, ...]]) -> list[list[tuple[str, int]]]:
    """(content, channel) per subtask."""
    return [
        [(part.handle.data.decode(), part.channel) for part in row if isinstance(part.handle, ByteStreamStateHandle)]
        for row in plan
    ]


def mapped(mapper: SubtaskStateMapper, old: int, new: int) -> list[list[int]]:
    return [list(row) for row in mapper.new_to_old(old, new)]


def test_mappers() -> None:
    """As Flink's SubtaskStateMapperTest has them."""
    assert mapped(SubtaskStateMapper.FIRST, 3, 2) == [[0, 1, 2], []]
    assert mapped(SubtaskStateMapper.FULL, 3, 2) == [[0, 1, 2], [0, 1, 2]]
    assert mapped(SubtaskStateMapper.RANGE, 3, 4) == [[0], [0, 1], [1, 2], [2]]
    assert mapped(SubtaskStateMapper.ROUND_ROBIN, 10, 4) == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert mapped(SubtaskStateMapper.ROUND_ROBIN, 2, 5) == [[0], [1], [], [], []]


@pytest.mark.parametrize(
    ("max_parallelism", "old", "new"),
    [(400, 200, 201), (401, 200, 201), (1000, 999, 1000), (1000, 1000, 999), (7, 3, 5)],
)
def test_whoever_owns_a_key_group_reads_what_its_former_owner_had_in_flight(
    max_parallelism: int, old: int, new: int
) -> None:
    """However small the part is that the ranges of two subtasks have in common, a key group may lie in it."""
    reads = SubtaskStateMapper.RANGE.new_to_old(old, new)
    for key_group in range(max_parallelism):
        owner = compute_operator_index_for_key_group(max_parallelism, new, key_group)
        assert compute_operator_index_for_key_group(max_parallelism, old, key_group) in reads[owner]


def test_edges_whose_data_cannot_move_say_so() -> None:
    """A broadcast edge is refused when something is in flight and the parallelism changes."""
    edge = EdgeRescaling(Partitioning.BROADCAST, 1, 1, 2, 3)
    with pytest.raises(ChannelStateNotRescalable):
        redistribute_input_channel_state({0: [handle(0, 0, "x")]}, [edge], 3)
    assert redistribute_input_channel_state({0: []}, [edge], 3) == [(), (), ()]


@pytest.mark.parametrize("partitioning", [each for each in Partitioning if each is not Partitioning.RESCALE])
def test_what_may_be_overtaken_can_be_rescaled(partitioning: Partitioning) -> None:
    """And the other way round, but for a rescale edge, which takes over what another edge had in flight."""
    can_move = SubtaskStateMapper.UNSUPPORTED not in (
        downstream_state_mapper(partitioning),
        upstream_state_mapper(partitioning),
    )

    assert supports_unaligned(partitioning) is can_move


@pytest.mark.parametrize("partitioning", [Partitioning.HASH, Partitioning.REBALANCE])
def test_same_parallelism_keeps_everything_in_place(partitioning: Partitioning) -> None:
    """Whatever the edge, if barriers may overtake rows on it."""
    edge = EdgeRescaling(partitioning, 2, 2, 2, 2)

    plan = redistribute_input_channel_state({1: [handle(0, 1, "x")]}, [edge], 2)

    assert names(plan) == [[], [("x", 1)]]


def test_hash_edge_is_read_by_every_subtask_whose_range_overlaps() -> None:
    """Three consumers become two; the data of the middle one is read twice, and filtered."""
    edge = EdgeRescaling(Partitioning.HASH, 3, 2, 3, 2)
    old = {0: [handle(0, 0, "a")], 1: [handle(0, 2, "b")], 2: [handle(0, 1, "c")]}

    plan = redistribute_input_channel_state(old, [edge], 2)

    assert names(plan) == [[("a", 0), ("b", 0)], [("b", 0), ("c", 1)]]


@pytest.mark.parametrize("old", [2, 3])
@pytest.mark.parametrize("partitioning", [Partitioning.FORWARD, Partitioning.RESCALE])
def test_an_edge_that_has_become_pointwise_may_have_one_channel(partitioning: Partitioning, old: int) -> None:
    """What came from any producer is read there, and what waits for any consumer goes out there."""
    states = {subtask: (handle(0, 1, f"{subtask}"),) for subtask in range(2)}
    edge = EdgeRescaling(partitioning, old, 2, 2, 2)

    for redistribute in (redistribute_input_channel_state, redistribute_output_channel_state):
        assert names(redistribute(states, [edge], 2)) == [[("0", 0)], [("1", 0)]]


@pytest.mark.parametrize("redistribute", [redistribute_input_channel_state, redistribute_output_channel_state])
@pytest.mark.parametrize("partitioning", [Partitioning.BROADCAST, Partitioning.DEMAND])
def test_data_in_flight_of_an_edge_on_which_nothing_may_be_overtaken_now_is_refused(
    redistribute: Any, partitioning: Partitioning
) -> None:
    """Of a broadcast one subtask would get what all of them should."""
    edge = EdgeRescaling(partitioning, 4, 4, 4, 4)

    with pytest.raises(ChannelStateNotRescalable, match="with the edge as it was"):
        redistribute({0: [handle(0, 3, "x")]}, [edge], 4)
    assert redistribute({0: []}, [edge], 4) == [(), (), (), ()]


def test_several_gates_are_rescaled_each_by_its_own_rule() -> None:
    """A hash edge that stays and a rebalance edge that does not."""
    gates = [EdgeRescaling(Partitioning.HASH, 1, 1, 2, 1), EdgeRescaling(Partitioning.REBALANCE, 2, 1, 2, 1)]
    old = {0: [handle(0, 0, "a"), handle(1, 1, "b")], 1: [handle(1, 0, "c")]}

    plan = redistribute_input_channel_state(old, gates, 1)

    assert names(plan) == [[("a", 0), ("b", 0), ("c", 0)]]


def test_output_state_goes_to_the_producer_that_meets_its_input_state() -> None:
    """Old producer u becomes u modulo the new parallelism on both sides of the edge."""
    edge = EdgeRescaling(Partitioning.REBALANCE, 3, 2, 3, 2)
    outputs = {2: [handle(0, 2, "queued")]}
    inputs = {2: [handle(0, 2, "received")]}

    assert names(redistribute_output_channel_state(outputs, [edge], 2)) == [[("queued", 0)], []]
    assert names(redistribute_input_channel_state(inputs, [edge], 2)) == [[("received", 0)], []]


@pytest.mark.parametrize("seed", range(20))
def test_every_row_of_a_restored_batch_is_kept_by_one_subtask(seed: int) -> None:
    """By filter on the consumer's side, by spreading on the producer's: the same owner."""
    draw = random.Random(seed)
    rows = [draw.randrange(50) for _ in range(draw.randint(1, 100))]
    restored = pa.record_batch({"v": pa.array(range(len(rows))), "k": pa.array(rows, pa.int64())})
    parallelism, groups = draw.randint(1, 5), 16
    ranges = [
        KeyGroupRange(-(-index * groups // parallelism), ((index + 1) * groups - 1) // parallelism)
        for index in range(parallelism)
    ]

    kept = [own_batches([restored], ["k"], groups, own) for own in ranges]
    spread = spread_by_key([restored], ["k"], groups, parallelism)

    values = [[value for part in parts for value in part.column("v").to_pylist()] for parts in kept]
    assert sorted(value for part in values for value in part) == list(range(len(rows)))
    assert values == [[value for part in parts for value in part.column("v").to_pylist()] for parts in spread]
    assert own_rows(restored, ["k"], groups, KeyGroupRange(0, groups - 1)) is restored
