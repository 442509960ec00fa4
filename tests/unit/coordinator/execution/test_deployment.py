"""Deployment: who reads whom, and what a TaskManager gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snapline.coordinator.execution.deployment import (
    NOTHING_RESTORED,
    RestoredTasks,
    TaskDeploymentDescriptorFactory,
    consumers_of_producer,
    in_messages,
    producers_of_consumer,
)
from snapline.coordinator.execution.execution_graph import ExecutionGraph
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import AllocationID, CheckpointID, ExecutionVertexID, JobVertexID, ResourceID
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.handles import TaskStateSnapshot
from snapline.dataflow.wire.messages import ShuffleDescriptor, TaskDeploymentDescriptor
from tests.simulation.jobs import edge, job, keyed_job, vertex


@pytest.mark.parametrize(("producers", "consumers"), [(n, m) for n in range(1, 13) for m in range(1, 13)])
def test_both_sides_of_a_pointwise_edge_agree(producers: int, consumers: int) -> None:
    """Consumer j reads i exactly if i feeds j; everybody is connected, loads differ by at most one."""
    read = {(i, j) for j in range(consumers) for i in producers_of_consumer(j, producers, consumers)}
    fed = {(i, j) for i in range(producers) for j in consumers_of_producer(i, producers, consumers)}

    assert read == fed
    assert {i for i, _ in read} == set(range(producers)) and {j for _, j in read} == set(range(consumers))
    loads = [len(producers_of_consumer(j, producers, consumers)) for j in range(consumers)]
    assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize(
    ("producers", "consumers", "read"),
    [
        (4, 2, [[0, 1], [2, 3]]),
        (5, 3, [[0], [1, 2], [3, 4]]),
        (2, 4, [[0], [0], [1], [1]]),
        (3, 5, [[0], [0], [1], [1], [2]]),
        (3, 3, [[0], [1], [2]]),
    ],
)
def test_the_rescale_pattern_is_flinks(producers: int, consumers: int, read: list[list[int]]) -> None:
    """Contiguous blocks, rounded as in EdgeManagerBuildUtil."""
    assert read == [list(producers_of_consumer(j, producers, consumers)) for j in range(consumers)]


def deploy(graph: JobGraph, restored: RestoredTasks = NOTHING_RESTORED) -> dict[str, TaskDeploymentDescriptor]:
    """All descriptors, by task name; subtask i runs on tm-i."""
    expanded = ExecutionGraph(graph, "g", 0)
    for execution in expanded.executions:
        execution.resource_id = ResourceID(f"tm-{execution.attempt_id.subtask_index}")
        execution.allocation_id = AllocationID(f"slot-{execution.attempt_id.subtask_index}")
    factory = TaskDeploymentDescriptorFactory(expanded, "/base/job")
    tasks = factory.create(expanded.executions, restored, lambda resource_id: f"{resource_id}:1")
    return {task.task_name: task for task in tasks}


def channels(descriptor: TaskDeploymentDescriptor, gate: int = 0) -> list[tuple[str, int]]:
    return [(str(c.producer), c.subpartition_index) for c in descriptor.input_gates[gate].channels]


def test_a_hash_edge_connects_all_with_all() -> None:
    """One subpartition per consumer, channels in the order of the producers, keys and key groups at the producer."""
    tasks = deploy(keyed_job(parallelism=2))
    window, source = tasks["window (2/2)"], tasks["source (1/2)"]

    assert channels(window) == [("g_source_0_0", 1), ("g_source_1_0", 1)]
    assert window.input_gates[0].channels[1] == ShuffleDescriptor(
        producer=window.attempt_id._replace(vertex_id=JobVertexID("source"), subtask_index=1),
        resource_id=ResourceID("tm-1"),
        exchange_address="tm-1:1",
        subpartition_index=1,
    )
    (partition,) = source.result_partitions
    assert (partition.subpartitions, partition.key_columns, partition.target_max_parallelism) == (2, ("key",), 128)


def test_a_forward_edge_connects_one_with_one() -> None:
    """Subtask i with subtask i, one subpartition."""
    tasks = deploy(keyed_job(parallelism=2))

    assert channels(tasks["sink (2/2)"]) == [("g_window_1_0", 0)]
    assert tasks["window (2/2)"].result_partitions[0].subpartitions == 1
    assert tasks["sink (2/2)"].result_partitions == ()


def test_a_rescale_edge_numbers_subpartitions_from_its_block() -> None:
    """Producer 1 of 2 feeds consumers 2 and 3 of 4 as its subpartitions 0 and 1."""
    graph = job("r", [vertex("a", 2, source=True), vertex("b", 4)], [edge("a", "b", Partitioning.RESCALE)])
    tasks = deploy(graph)

    assert channels(tasks["b (3/4)"]) == [("g_a_1_0", 0)]
    assert channels(tasks["b (4/4)"]) == [("g_a_1_0", 1)]
    assert tasks["a (2/2)"].result_partitions[0].subpartitions == 2


def test_two_inputs_are_two_gates_in_the_order_of_the_edges() -> None:
    """A gate knows which logical input it belongs to."""
    graph = job(
        "two",
        [vertex("a", 1, source=True), vertex("b", 2, source=True), vertex("join", 1)],
        [edge("a", "join", Partitioning.BROADCAST, 0), edge("b", "join", Partitioning.REBALANCE, 1)],
    )
    join = deploy(graph)["join (1/1)"]

    assert [(gate.edge_id, gate.input_index, len(gate.channels)) for gate in join.input_gates] == [
        ("a->join", 0, 1),
        ("b->join", 1, 2),
    ]


def test_both_ends_know_which_consumers_work_row_by_row() -> None:
    """Less waits for them."""
    edges = [replace(edge("a", "rows", Partitioning.REBALANCE), row_wise=True), edge("a", "batches", Partitioning.HASH)]
    graph = job("mixed", [vertex("a", 1, source=True), vertex("rows", 1), vertex("batches", 1)], edges)

    tasks = deploy(graph)
    assert [partition.row_wise for partition in tasks["a (1/1)"].result_partitions] == [True, False]
    assert [tasks[f"{name} (1/1)"].input_gates[0].row_wise for name in ("rows", "batches")] == [True, False]


def test_a_producer_knows_which_columns_are_read() -> None:
    """An edge says so."""
    edges = [replace(edge("a", "sums", Partitioning.HASH), columns=("k", "v"))]
    tasks = deploy(job("sums", [vertex("a", 1, source=True), vertex("sums", 1)], edges))

    assert tasks["a (1/1)"].result_partitions[0].columns == ("k", "v")


def test_a_descriptor_carries_slot_state_and_settings() -> None:
    """Everything that the TaskManager needs beside data."""
    state = TaskStateSnapshot(is_task_finished=True)
    vertex_id = ExecutionVertexID(JobVertexID("window"), 1)
    tasks = deploy(keyed_job(parallelism=2), RestoredTasks(CheckpointID(7), {vertex_id: state}))
    window = tasks["window (2/2)"]

    assert (window.allocation_id, window.restore_checkpoint_id, window.restore_state) == ("slot-1", 7, state)
    assert tasks["window (1/2)"].restore_state == TaskStateSnapshot()
    assert window.checkpoint_directory == "/base/job"
    assert window.configuration["execution.checkpointing.interval"] == "500 ms"
    assert [operator.uid for operator in window.operators] == ["window"]


def test_what_functions_hold_is_sent_in_messages_that_a_stream_can_carry() -> None:
    """Each task brings its operators anew, so that a table of 20 MB in a function is 20 MB for each slot."""
    task = deploy(keyed_job(parallelism=2))["source (1/2)"]
    [heavy, heavier] = [
        replace(task, operators=(replace(task.operators[0], payload=bytes(size << 20)),)) for size in (20, 100)
    ]

    assert [message.tasks for message in in_messages([task] * 100)] == [(task,) * 100]
    assert [message.tasks for message in in_messages([task, heavy, heavy, task])] == [(task, heavy), (heavy, task)]
    assert [message.tasks for message in in_messages([heavier, task])] == [(heavier,), (task,)]
    assert list(in_messages([])) == []
