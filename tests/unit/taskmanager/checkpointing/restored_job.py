"""A small job continued from a completed checkpoint, at other parallelisms: restores as the coordinator and a
TaskManager do.

Handles are assigned by `snapline.dataflow.snapshot.channel_state`, read back through Arrow IPC, filtered and spread by
`snapline.taskmanager.checkpointing.channel_state_filter`, and put in front of the channels by `InputGate.restore`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import pyarrow as pa

from snapline.dataflow.columnar.key_partition import assign_to_key_groups
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.key_groups import (
    compute_key_group_range_for_operator_index,
    compute_operator_index_for_key_group,
)
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.channel_state import (
    EdgeRescaling,
    redistribute_input_channel_state,
    redistribute_output_channel_state,
)
from snapline.dataflow.snapshot.handles import ByteStreamStateHandle, ChannelStateHandle
from snapline.taskmanager.checkpointing.channel_state_filter import own_batches, spread_by_key
from tests.unit.taskmanager.checkpointing.small_job import (
    KEY,
    KEYS,
    MAX_PARALLELISM,
    SPLIT,
    STAGES,
    Job,
    Snapshot,
    Task,
    batch_of,
    rows_of,
)

ORDERED = (Partitioning.FORWARD, Partitioning.HASH)
"""Edges that keep the order of rows with one key from one split."""


def restore(old: Job, checkpoint_id: CheckpointID, seed: int, widths: Sequence[int]) -> Job:
    """A new job that goes on where the checkpoint was taken."""
    snapshots = old.snapshots[checkpoint_id]
    job = Job(seed, widths=widths, edges=old.edges, splits=old.splits, unaligned=old.unaligned, disturbed=old.disturbed)
    job.now_ms = old.now_ms + 100
    job.next_checkpoint = old.next_checkpoint
    positions = {
        split: position
        for index in range(old.widths[0])
        for split, position in snapshots[f"source-{index}"].frozen.positions.items()
    }
    for source in job.sources:
        source.positions.update({split: positions[split] for split in source.positions})
    for stage in (1, 2):
        _restore_operator_state(job, old, snapshots, stage)
    for stage, edge in enumerate(job.edges):
        rescaling = EdgeRescaling(edge, old.widths[stage], widths[stage], old.widths[stage + 1], widths[stage + 1])
        inputs = redistribute_input_channel_state(
            _input_handles(snapshots, STAGES[stage + 1], old.widths[stage + 1]), [rescaling], widths[stage + 1]
        )
        outputs = redistribute_output_channel_state(
            _output_handles(snapshots, STAGES[stage], old.widths[stage]), [rescaling], widths[stage]
        )
        for index, handles in enumerate(inputs):
            _restore_inputs(_task(job, STAGES[stage + 1], index), handles, rescaling, index)
        for index, handles in enumerate(outputs):
            _restore_outputs(_task(job, STAGES[stage], index), handles, rescaling)
    for task in job.tasks:
        task.broadcast_end_of_channel_state(is_last=task.gate is None)
    return job


def check_exactly_once(job: Job) -> None:
    """After `settle`: every row that was ever emitted is in the state of one sink and one middle task, once; rows of
    one split and key arrive in order."""
    emitted = [
        split * SPLIT + n
        for source in job.sources
        for split, position in source.positions.items()
        for n in range(position)
    ]
    for stage in (1, 2):
        tasks = [_task(job, STAGES[stage], index) for index in range(job.widths[stage])]
        counts = Counter(row for task in tasks for _, row in task.processed)
        lost = [row for row in emitted if counts[row] == 0]
        doubled = [row for row in emitted if counts[row] > 1]
        assert not lost and not doubled, f"seed {job.seed}, {STAGES[stage]}: {lost} lost, {doubled} doubled"
        assert len(counts) == len(emitted), f"seed {job.seed}: rows from nowhere"
        if job.edges[stage - 1] is Partitioning.HASH and all(edge in ORDERED for edge in job.edges[:stage]):
            for index, task in enumerate(tasks):
                rows = [row for _, row in task.processed]
                assert all(owner_of(row, len(tasks)) == index for row in rows), f"seed {job.seed}: a foreign key"
                latest: dict[tuple[int, int], int] = {}
                for row in rows:
                    line = (row // SPLIT, row % KEYS)
                    assert latest.get(line, -1) < row, f"seed {job.seed}: {row} came after {latest[line]}"
                    latest[line] = row


@cache
def owner_of(row: int, parallelism: int) -> int:
    """The subtask that owns a row's key."""
    group = int(assign_to_key_groups([batch_of([row]).column("k")], MAX_PARALLELISM)[0])
    return compute_operator_index_for_key_group(MAX_PARALLELISM, parallelism, group)


def _task(job: Job, stage: str, index: int) -> Task:
    return next(task for task in job.tasks if task.name == f"{stage}-{index}")


def _restore_operator_state(job: Job, old: Job, snapshots: Mapping[str, Snapshot], stage: int) -> None:
    """Keyed behind a hash edge, otherwise list state of the old subtask modulo the new parallelism."""
    width = job.widths[stage]
    for index in range(old.widths[stage]):
        for _, row in snapshots[f"{STAGES[stage]}-{index}"].processed:
            hashed = job.edges[stage - 1] is Partitioning.HASH
            new_index = owner_of(row, width) if hashed else index % width
            _task(job, STAGES[stage], new_index).processed.append((-1, row))


def _handle(part: int, channel: int, batches: Sequence[pa.RecordBatch]) -> ChannelStateHandle:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return ChannelStateHandle(part, channel, ByteStreamStateHandle(sink.getvalue().to_pybytes()), len(batches))


def _read(handle: ChannelStateHandle) -> list[pa.RecordBatch]:
    assert isinstance(handle.handle, ByteStreamStateHandle)
    return list(pa.ipc.open_stream(handle.handle.data))


def _input_handles(snapshots: Mapping[str, Snapshot], stage: str, width: int) -> dict[int, list[ChannelStateHandle]]:
    return {
        index: [
            _handle(0, info.channel_index, batches)
            for info, batches in snapshots[f"{stage}-{index}"].state.inputs.items()
        ]
        for index in range(width)
    }


def _output_handles(snapshots: Mapping[str, Snapshot], stage: str, width: int) -> dict[int, list[ChannelStateHandle]]:
    return {
        index: [
            _handle(0, info.subpartition_index, batches)
            for info, batches in snapshots[f"{stage}-{index}"].state.outputs.items()
            if batches
        ]
        for index in range(width)
    }


def _restore_inputs(task: Task, handles: Sequence[ChannelStateHandle], edge: EdgeRescaling, index: int) -> None:
    assert task.gate is not None
    gate = task.gate.gate.gates[0]
    by_channel: dict[int, list[pa.RecordBatch]] = {}
    for handle in handles:
        batches = _read(handle)
        if edge.partitioning is Partitioning.HASH and edge.is_rescaled:
            own = compute_key_group_range_for_operator_index(MAX_PARALLELISM, edge.new_consumers, index)
            batches = own_batches(batches, KEY, MAX_PARALLELISM, own)
        by_channel.setdefault(handle.channel, []).extend(batches)
    for channel, batches in by_channel.items():
        gate.restore(channel, batches)
        task.job.restored_inputs[task.name, channel] = rows_of(batches)


def _restore_outputs(task: Task, handles: Sequence[ChannelStateHandle], edge: EdgeRescaling) -> None:
    for handle in handles:
        batches = _read(handle)
        if edge.partitioning is Partitioning.HASH and edge.is_rescaled:
            task.send(spread_by_key(batches, KEY, MAX_PARALLELISM, edge.new_consumers))
        else:
            parts: list[list[pa.RecordBatch]] = [[] for _ in task.outputs]
            parts[handle.channel] = batches
            task.send(parts)
