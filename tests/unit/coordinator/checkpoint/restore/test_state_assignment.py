"""What each subtask starts with: nothing lost, nothing doubled, at any parallelism; what does not fit is refused by
name."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from snapline.coordinator.checkpoint.restore.state_assignment import (
    AssignmentRefused,
    StateAssignment,
    assign_states,
    plan_restore,
)
from snapline.dataflow.graph.jobgraph import JobEdge
from snapline.dataflow.ids import ExecutionVertexID, JobVertexID, OperatorID
from snapline.dataflow.key_groups import compute_key_group_range_for_operator_index
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.handles import (
    ByteStreamStateHandle,
    ChannelStateHandle,
    OperatorState,
    OperatorStateMode,
    OperatorSubtaskState,
    SegmentStateHandle,
    TaskStateSnapshot,
)
from tests.unit.coordinator.checkpoint.small_job import edge, keyed_operator, listed, vertex


def task(name: str, subtask: int = 0) -> ExecutionVertexID:
    return ExecutionVertexID(JobVertexID(name), subtask)


def assigned(result: StateAssignment | AssignmentRefused) -> StateAssignment:
    assert isinstance(result, StateAssignment), result
    return result


@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 1), (2, 3), (3, 2), (4, 4), (8, 5)])
def test_keyed_state_covers_every_key_group_once(old: int, new: int) -> None:
    """Each subtask can read all of its key groups, and needs no handle without one of them."""
    result = assigned(
        assign_states([keyed_operator("op", old)], [vertex("op", new)], [], allow_non_restored_state=False)
    )

    for subtask in range(new):
        own = compute_key_group_range_for_operator_index(8, new, subtask)
        handles = result.assignments[task("op", subtask)].operators[OperatorID("op")].managed_keyed
        parts = sorted(handle.key_group_range.intersect(own) for handle in handles)
        assert all(len(part) for part in parts)
        assert sum(len(part) for part in parts) == len(own)
        assert all(before.end < after.start for before, after in pairwise(parts))


def test_max_parallelism_follows_the_state() -> None:
    """A vertex that did not ask for one takes over that of the snapshot."""
    plan = plan_restore([keyed_operator("op", 2, 8)], [vertex("op", 2, 128)], allow_non_restored_state=False)

    assert not isinstance(plan, AssignmentRefused)
    assert plan.max_parallelism == {JobVertexID("op"): 8}


@pytest.mark.parametrize("submitted", [8, 16, 128])
def test_max_parallelism_follows_state_by_key_before_list_state(submitted: int) -> None:
    """Operators that were apart are one chain now: the last one decided, and the task refused the state by key of the
    other, at each attempt to start."""
    lists = listed(OperatorStateMode.SPLIT_DISTRIBUTE, b"ab")
    sink = OperatorState(OperatorID("sink"), "sink", "sink", 1, 16, {0: lists})
    chain = vertex("op", 1, submitted, "op", "sink")

    plan = plan_restore([keyed_operator("op", 1, 8), sink], [chain], allow_non_restored_state=False)

    assert not isinstance(plan, AssignmentRefused)
    assert plan.max_parallelism.get(JobVertexID("op"), submitted) == 8


def test_state_by_key_of_one_chain_with_two_max_parallelisms_is_refused() -> None:
    """The message names both operators, both numbers and the way out."""
    states = [keyed_operator("op", 1, 8), keyed_operator("next", 1, 16)]
    plan = plan_restore(states, [vertex("op", 1, 8, "op", "next")], allow_non_restored_state=False)

    assert isinstance(plan, AssignmentRefused)
    assert "'op' and 'next'" in plan.detail
    assert "8 and 16" in plan.detail


def test_explicit_max_parallelism_that_differs_is_refused() -> None:
    """Key groups cannot be cut anew; the message names operator, both numbers and the way out."""
    plan = plan_restore(
        [keyed_operator("op", 2, 8)], [vertex("op", 2, 128, explicit=True)], allow_non_restored_state=False
    )

    assert isinstance(plan, AssignmentRefused)
    assert "'op'" in plan.detail
    assert "128" in plan.detail
    assert "set it to 8" in plan.detail


def test_parallelism_above_the_max_parallelism_of_the_state_is_refused() -> None:
    """There are not enough key groups."""
    plan = plan_restore([keyed_operator("op", 2, 8)], [vertex("op", 9, 128)], allow_non_restored_state=False)

    assert isinstance(plan, AssignmentRefused)
    assert "lower the parallelism to at most 8" in plan.detail


def test_state_without_operator_is_refused_unless_allowed() -> None:
    """The message names the uid and both ways out; allowed, it is listed as dropped, and new operators as new."""
    vertices = [vertex("op"), vertex("fresh")]
    operators = [keyed_operator("op", 1), keyed_operator("gone", 1)]

    refused = plan_restore(operators, vertices, allow_non_restored_state=False)
    plan = plan_restore(operators, vertices, allow_non_restored_state=True)

    assert isinstance(refused, AssignmentRefused)
    assert "'gone'" in refused.detail
    assert "--allow-non-restored-state" in refused.detail
    assert not isinstance(plan, AssignmentRefused)
    assert [operator.uid for operator in plan.dropped] == ["gone"]
    assert [node.uid for _, node in plan.new] == ["fresh"]


def test_operator_without_state_may_go_silently() -> None:
    """Nothing is lost with a stateless operator."""
    stateless = OperatorState(OperatorID("map"), "map", "map", 2, 8)

    plan = plan_restore([stateless], [vertex("op")], allow_non_restored_state=False)

    assert not isinstance(plan, AssignmentRefused)
    assert plan.dropped == ()


def test_chained_operators_are_restored_each_on_its_own() -> None:
    """Chains may be cut differently: operators are matched by id, not by vertex."""
    operators = [keyed_operator("a", 2), keyed_operator("b", 2)]

    result = assigned(
        assign_states(operators, [vertex("v", 2, 8, "b", "new", "a")], [], allow_non_restored_state=False)
    )

    assert set(result.assignments[task("v", 1)].operators) == {"a", "b"}


def test_split_state_moves_and_union_state_is_everywhere() -> None:
    """One operator with both kinds, two subtasks become one."""
    both = [
        OperatorSubtaskState(
            managed_operator=(
                *listed(OperatorStateMode.SPLIT_DISTRIBUTE, data).managed_operator,
                *listed(OperatorStateMode.UNION, data.upper(), "u").managed_operator,
            )
        )
        for data in (b"ab", b"c")
    ]
    operator = OperatorState(OperatorID("op"), "op", "op", 2, 8, dict(enumerate(both)))

    result = assigned(assign_states([operator], [vertex("op", 1)], [], allow_non_restored_state=False))

    parts: dict[str, bytes] = {}
    for handle in result.assignments[task("op")].operators[OperatorID("op")].managed_operator:
        assert isinstance(handle.handle, ByteStreamStateHandle)
        for entry in handle.entries:
            data = b"".join(handle.handle.data[offset : offset + size] for offset, size in entry.offsets)
            parts[entry.name] = parts.get(entry.name, b"") + data
    assert parts == {"list": b"abc", "u": b"ABC"}


def in_flight(gate: int, channel: int, name: str) -> ChannelStateHandle:
    return ChannelStateHandle(gate, channel, SegmentStateHandle(name, 0, 1), 1)


def test_in_flight_data_stays_where_nothing_was_rescaled() -> None:
    """Input data to its channel, output data to its subpartition."""
    source = OperatorState(
        OperatorID("src"), "src", "src", 1, 8, {0: OperatorSubtaskState(output_channel=(in_flight(0, 1, "out"),))}
    )
    sink = OperatorState(
        OperatorID("sink"), "sink", "sink", 2, 8, {1: OperatorSubtaskState(input_channel=(in_flight(0, 0, "in"),))}
    )

    result = assigned(
        assign_states(
            [source, sink], [vertex("src"), vertex("sink", 2)], [edge("src", "sink")], allow_non_restored_state=False
        )
    )

    assert result.assignments[task("src")].operators[OperatorID("src")].output_channel == (in_flight(0, 1, "out"),)
    assert result.assignments[task("sink", 1)].operators[OperatorID("sink")].input_channel == (in_flight(0, 0, "in"),)


def test_in_flight_data_is_rescaled_with_the_job() -> None:
    """Two consumers become one: it gets what both had received; the producer's queued data goes to it as well."""
    source = OperatorState(
        OperatorID("src"), "src", "src", 1, 8, {0: OperatorSubtaskState(output_channel=(in_flight(0, 1, "out"),))}
    )
    states = {subtask: OperatorSubtaskState(input_channel=(in_flight(0, 0, f"in-{subtask}"),)) for subtask in range(2)}
    sink = OperatorState(OperatorID("sink"), "sink", "sink", 2, 8, states)

    result = assigned(
        assign_states(
            [source, sink], [vertex("src"), vertex("sink", 1)], [edge("src", "sink")], allow_non_restored_state=False
        )
    )

    received = result.assignments[task("sink")].operators[OperatorID("sink")].input_channel
    queued = result.assignments[task("src")].operators[OperatorID("src")].output_channel
    assert received == (in_flight(0, 0, "in-0"), in_flight(0, 0, "in-1"))
    assert queued == (in_flight(0, 0, "out"),)


def test_in_flight_data_on_an_edge_that_cannot_move_is_refused() -> None:
    """A broadcast edge with data in flight has no other parallelism; the message says what to do."""
    states = {subtask: OperatorSubtaskState(input_channel=(in_flight(0, 0, "in"),)) for subtask in range(2)}
    sink = OperatorState(OperatorID("sink"), "sink", "sink", 2, 8, states)

    result = assign_states(
        [sink],
        [vertex("src"), vertex("sink", 3)],
        [edge("src", "sink", Partitioning.BROADCAST)],
        allow_non_restored_state=False,
    )

    assert isinstance(result, AssignmentRefused)
    assert "'sink'" in result.detail


@pytest.mark.parametrize("consumers", [2, 3, 5])
def test_in_flight_data_of_a_rebalance_edge_goes_on_over_a_rescale_edge(consumers: int) -> None:
    """A program that rescales where it rebalanced did not start from an unaligned checkpoint: any consumer will do."""
    received = {
        subtask: OperatorSubtaskState(input_channel=(in_flight(0, 2, f"in-{subtask}"),)) for subtask in range(3)
    }
    queued = {
        subtask: OperatorSubtaskState(output_channel=(in_flight(0, 2, f"out-{subtask}"),)) for subtask in range(3)
    }
    operators = [
        OperatorState(OperatorID("src"), "src", "src", 3, 8, queued),
        OperatorState(OperatorID("sink"), "sink", "sink", 3, 8, received),
    ]
    vertices, edges = [vertex("src", 4), vertex("sink", consumers)], [edge("src", "sink", Partitioning.RESCALE)]

    result = assigned(assign_states(operators, vertices, edges, allow_non_restored_state=False))

    states = [state for each in result.assignments.values() for state in each.operators.values()]
    handles = [handle for state in states for handle in (*state.input_channel, *state.output_channel)]
    assert sorted(handles, key=repr) == sorted(
        (in_flight(0, 0, f"{side}-{subtask}") for side in ("in", "out") for subtask in range(3)), key=repr
    )


def test_in_flight_data_of_an_input_that_is_gone_is_refused() -> None:
    """It must not get lost silently."""
    sink = OperatorState(
        OperatorID("sink"), "sink", "sink", 1, 8, {0: OperatorSubtaskState(input_channel=(in_flight(1, 0, "in"),))}
    )

    result = assign_states(
        [sink], [vertex("src"), vertex("sink")], [edge("src", "sink")], allow_non_restored_state=True
    )

    assert isinstance(result, AssignmentRefused)
    assert "savepoint" in result.detail


@pytest.mark.parametrize(
    "edges",
    [
        [edge("src", "new"), edge("src", "sink")],
        [edge("src", "new", Partitioning.REBALANCE), edge("src", "sink"), edge("src", "other")],
    ],
)
def test_in_flight_data_does_not_come_to_a_consumer_that_took_the_place_of_its_own(edges: list[JobEdge]) -> None:
    """A consumer that was added before the old one got the rows that were on their way to that one."""
    queued = OperatorSubtaskState(output_channel=(in_flight(0, 0, "out"),))
    source = OperatorState(OperatorID("src"), "src", "src", 1, 8, {0: queued})
    others = [OperatorState(OperatorID(uid), uid, uid, 1, 8) for uid in ("sink", "other")]
    vertices = [vertex(name) for name in ("src", "new", "sink", "other")]

    result = assign_states([source, *others], vertices, edges, allow_non_restored_state=False)
    behind = assign_states([source, *others], vertices, [*edges[1:], edges[0]], allow_non_restored_state=False)

    assert isinstance(result, AssignmentRefused)
    assert "'src'" in result.detail
    assert "savepoint" in result.detail
    assert assigned(behind).assignments[task("src")].operators[OperatorID("src")] == queued


def test_in_flight_data_does_not_come_to_an_input_that_took_the_place_of_its_own() -> None:
    """A stream that is united with the old one, and stands before it."""
    received = OperatorSubtaskState(input_channel=(in_flight(0, 0, "in"),))
    states = [
        OperatorState(OperatorID("src"), "src", "src", 1, 8),
        OperatorState(OperatorID("sink"), "sink", "sink", 1, 8, {0: received}),
    ]
    edges = [edge("new", "sink"), edge("src", "sink")]

    result = assign_states(
        states, [vertex("new"), vertex("src"), vertex("sink")], edges, allow_non_restored_state=False
    )

    assert isinstance(result, AssignmentRefused)
    assert "'sink'" in result.detail


def test_in_flight_data_does_not_go_past_an_operator_that_was_added_to_its_producer() -> None:
    """What the old end of the chain had sent went out as if the new one had made it."""
    queued = OperatorSubtaskState(output_channel=(in_flight(0, 0, "out"),))
    states = [
        OperatorState(OperatorID("src"), "src", "src", 1, 8, {0: queued}),
        OperatorState(OperatorID("sink"), "sink", "sink", 1, 8),
    ]
    vertices = [vertex("src", 1, 8, "src", "map"), vertex("sink")]

    result = assign_states(states, vertices, [edge("src", "sink")], allow_non_restored_state=False)

    assert isinstance(result, AssignmentRefused)
    assert "'src'" in result.detail


def test_in_flight_data_of_a_chain_that_has_grown_at_its_front_is_rescaled() -> None:
    """The new operator has had no parallelism before: that of the chain was taken for the new one, and the coordinator
    failed with an index that is out of range."""
    queued = {subtask: OperatorSubtaskState(output_channel=(in_flight(0, 0, f"{subtask}"),)) for subtask in range(3)}
    states = [OperatorState(OperatorID("map"), "map", "map", 3, 8, queued)]
    states += [OperatorState(OperatorID(uid), uid, uid, 1, 8) for uid in ("src", "sink")]
    mapping = vertex("map", 2, 8, "new", "map")
    behind = replace(edge("map", "sink"), source_operator=OperatorID("map"))
    vertices, edges = [vertex("src"), mapping, vertex("sink")], [edge("src", "map"), behind]

    result = assigned(assign_states(states, vertices, edges, allow_non_restored_state=False))

    restored = [result.assignments[task("map", n)].operators[OperatorID("map")].output_channel for n in range(2)]
    assert restored == [(in_flight(0, 0, "0"), in_flight(0, 0, "2")), (in_flight(0, 0, "1"),)]


def test_in_flight_data_of_producers_that_are_gone_comes_through_channels_that_there_are() -> None:
    """Other producers, with another uid, are fewer: a task never started, because its data belonged to no channel."""
    received = OperatorSubtaskState(input_channel=tuple(in_flight(0, channel, f"{channel}") for channel in range(3)))
    states = [OperatorState(OperatorID("sink"), "sink", "sink", 1, 8, {0: received})]
    vertices = [vertex("new", 2), vertex("sink")]

    result = assigned(assign_states(states, vertices, [edge("new", "sink")], allow_non_restored_state=False))

    restored = result.assignments[task("sink")].operators[OperatorID("sink")].input_channel
    assert restored == (in_flight(0, 0, "0"), in_flight(0, 1, "1"), in_flight(0, 0, "2"))


def test_fully_finished_vertices_are_restored_as_finished() -> None:
    """At any parallelism: they only end again."""
    ended = OperatorState(OperatorID("src"), "src", "src", 2, 8, fully_finished=True)

    result = assigned(
        assign_states(
            [ended, keyed_operator("sink", 1)],
            [vertex("src", 3), vertex("sink")],
            [edge("src", "sink")],
            allow_non_restored_state=False,
        )
    )

    assert all(result.assignments[task("src", n)] == TaskStateSnapshot(is_task_finished=True) for n in range(3))
    assert len(result.restored_as_finished) == 3


def test_single_finished_subtask_ends_again_only_at_the_old_parallelism() -> None:
    """Rescaled, its share of the state is gone with it and everybody runs."""
    partly = replace(keyed_operator("src", 2), finished_subtasks=(1,))

    same = assigned(assign_states([partly], [vertex("src", 2)], [], allow_non_restored_state=False))
    other = assigned(assign_states([partly], [vertex("src", 3)], [], allow_non_restored_state=False))

    assert same.restored_as_finished == {task("src", 1)}
    assert other.restored_as_finished == frozenset()


def test_finished_subtask_that_now_reads_from_a_running_one_runs_again() -> None:
    """Its producers were rescaled: what they send to it must not be dropped."""
    source = replace(keyed_operator("src", 3), finished_subtasks=(0, 2))
    behind = OperatorState(OperatorID("map"), "map", "map", 3, 8, finished_subtasks=(0, 2))

    def restored(producers: int) -> frozenset[ExecutionVertexID]:
        pointwise = replace(edge("src", "map"), partitioning=Partitioning.RESCALE)
        vertices = [vertex("src", producers), vertex("map", 3)]
        result = assigned(assign_states([source, behind], vertices, [pointwise], allow_non_restored_state=False))
        return result.restored_as_finished

    assert restored(3) == {task(name, n) for name in ("src", "map") for n in (0, 2)}
    assert restored(2) == frozenset()


def test_finished_vertex_behind_a_running_one_is_refused() -> None:
    """The graph has changed in a way in which data would reach a task that does not run."""
    ended = OperatorState(OperatorID("sink"), "sink", "sink", 1, 8, fully_finished=True)

    result = assign_states(
        [keyed_operator("src", 1), ended],
        [vertex("src"), vertex("sink")],
        [edge("src", "sink")],
        allow_non_restored_state=False,
    )

    assert isinstance(result, AssignmentRefused)
    assert "sink had finished" in result.detail


def test_new_operator_in_a_finished_chain_is_refused() -> None:
    """It would never see any data."""
    ended = OperatorState(OperatorID("a"), "a", "a", 1, 8, fully_finished=True)

    result = assign_states([ended], [vertex("v", 1, 8, "a", "b")], [], allow_non_restored_state=False)

    assert isinstance(result, AssignmentRefused)
    assert "the chain has changed" in result.detail


def test_new_operator_in_a_chain_of_which_a_part_had_finished_is_refused() -> None:
    """The subtasks that had finished would begin anew, with nothing of what the other operators held."""
    partly = replace(keyed_operator("a", 2), finished_subtasks=(0,))

    result = assign_states([partly], [vertex("v", 2, 8, "a", "b")], [], allow_non_restored_state=False)

    assert isinstance(result, AssignmentRefused)
    assert "the chain has changed" in result.detail


@pytest.mark.parametrize("partitioning", [Partitioning.HASH, Partitioning.REBALANCE, Partitioning.FORWARD])
def test_new_source_of_a_vertex_of_which_a_part_had_finished_is_refused(partitioning: Partitioning) -> None:
    """Its rows came to subtasks whose state by key was gone, and were counted from nothing."""
    ended = OperatorState(OperatorID("old"), "old", "old", 2, 8, fully_finished=True)
    partly = replace(keyed_operator("sums", 2), finished_subtasks=(0,))
    edges = [edge("old", "sums"), edge("new", "sums", partitioning)]
    vertices = [vertex("old", 2), vertex("new", 2), vertex("sums", 2)]

    result = assign_states([ended, partly], vertices, edges, allow_non_restored_state=False)

    assert isinstance(result, AssignmentRefused)
    assert "a part of sums had finished" in result.detail
    assert "reads from new" in result.detail


def test_vertex_of_which_a_part_had_finished_goes_on_behind_sources_that_had() -> None:
    """As it was when the snapshot was taken, at any parallelism of the sources."""
    ended = OperatorState(OperatorID("old"), "old", "old", 2, 8, fully_finished=True)
    partly = replace(keyed_operator("sums", 2), finished_subtasks=(0,))

    vertices = [vertex("old", 3), vertex("sums", 2)]
    result = assigned(assign_states([ended, partly], vertices, [edge("old", "sums")], allow_non_restored_state=False))

    assert result.restored_as_finished == {*(task("old", n) for n in range(3)), task("sums", 0)}


def test_keys_behind_a_source_of_which_a_part_had_finished_cannot_have_finished() -> None:
    """Each key may still come, so that the graph was another one when the snapshot was taken."""
    source = replace(keyed_operator("src", 2), finished_subtasks=(0,))
    partly = replace(keyed_operator("sums", 2), finished_subtasks=(0,))

    vertices = [vertex("src", 2), vertex("sums", 2)]
    result = assign_states([source, partly], vertices, [edge("src", "sums")], allow_non_restored_state=False)

    assert isinstance(result, AssignmentRefused)
    assert "a part of sums had finished" in result.detail
