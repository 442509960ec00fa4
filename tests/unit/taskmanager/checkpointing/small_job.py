"""A job in miniature over the real cores: sources, a middle stage and sinks, driven step by step from one seed.

Each source reads splits, whose rows are numbers that rise; each edge is a hash, rebalance or forward edge. Every task
is a CheckpointedInputGate (sources have none), a SubtaskCheckpointCoordinator and PipelinedSubpartitions; between tasks
elements travel one by one into InputChannelCores, or are read in place by a local channel. A row is one number, so that
a snapshot can be compared with what its sources had emitted: `check_cut` is the oracle. `restored_job` continues from
one.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from snapline.dataflow.elements import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfChannelState,
    EndOfPartition,
    SnapshotType,
    StreamElement,
)
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, OperatorID
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.handles import EMPTY_TASK_STATE, TaskStateSnapshot
from snapline.dataflow.wire.messages import CheckpointMetrics, QueueFigures
from snapline.taskmanager.checkpointing.channel_state_filter import spread_by_key
from snapline.taskmanager.checkpointing.checkpointed_input_gate import CheckpointedInputGate
from snapline.taskmanager.checkpointing.checkpointing_contract import (
    ChannelState,
    FrozenState,
    OutputState,
)
from snapline.taskmanager.checkpointing.handler_factory import create_barrier_handler
from snapline.taskmanager.checkpointing.subtask_checkpoint_coordinator import SubtaskCheckpointCoordinator
from snapline.taskmanager.network.channels.exchange_contract import (
    BufferAndBacklog,
    ElementFrame,
    InputChannelInfo,
    ResultSubpartitionInfo,
)
from snapline.taskmanager.network.channels.input_channel import InputChannelCore
from snapline.taskmanager.network.channels.input_gate import InputGate, UnionInputGate
from snapline.taskmanager.network.channels.pipelined_subpartition import PipelinedSubpartition
from snapline.taskmanager.operators.base.operator_contract import EMPTY_OPERATOR_SNAPSHOT

STAGES = ("source", "middle", "sink")
KEY = ("k",)
KEYS = 7
MAX_PARALLELISM = 8
SPLIT = 1_000_000
"""Rows of split s are s * SPLIT, s * SPLIT + 1, ..."""


def batch_of(numbers: Sequence[int]) -> pa.RecordBatch:
    """Rows."""
    keys = [number % KEYS for number in numbers]
    return pa.record_batch({"n": pa.array(list(numbers), pa.int64()), "k": pa.array(keys, pa.int64())})


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """All rows, in order."""
    return [number for batch in batches for number in batch.column("n").to_pylist()]


class Link:
    """One channel, from its subpartition to its consumer: local, or remote with a receive queue."""

    def __init__(self, *, local: bool, never_overtaken: bool) -> None:
        self.never_overtaken = never_overtaken
        self.subpartition = PipelinedSubpartition()
        self.core = None if local else InputChannelCore()
        self.resumes_due = 0
        self.gate: InputGate | None = None
        self.index = 0

    def transfer(self) -> bool:
        """One element goes over the wire, or one resume goes back. False when there is nothing to do."""
        if self.core is None:
            return False
        if self.resumes_due:
            self.resumes_due -= 1
            self.subpartition.resume_consumption()
            return True
        polled = self.subpartition.poll()
        if polled is None:
            return False
        received = self.core.on_element(
            ElementFrame(0, polled.element, polled.sequence_number, polled.backlog, polled.is_priority)
        )
        assert received.failure == ""
        if self.gate is not None and (received.notify or received.notify_priority):
            self.gate.notify_channel_non_empty(self.index, priority=received.notify_priority)
        return True

    def added(self, *, priority: bool) -> None:
        """The producer added something."""
        if self.core is None and self.gate is not None:
            self.gate.notify_channel_non_empty(self.index, priority=priority)

    # InputChannel
    def poll(self) -> BufferAndBacklog | None:
        return self.subpartition.poll() if self.core is None else self.core.poll()

    def resume_consumption(self) -> None:
        if self.core is None:
            self.subpartition.resume_consumption()
        else:
            self.core.resume_consumption()
            self.resumes_due += 1

    def inflight_batches(self) -> Sequence[pa.RecordBatch]:
        return () if self.core is None else self.core.inflight_batches()

    def gather_at_most(self, rows: int) -> None: ...

    def convert_to_priority(self, sequence_number: int) -> None:
        assert self.core is not None, "only remote channels announce"
        self.core.convert_to_priority(sequence_number)

    def request(self, count: int) -> None: ...

    @property
    def queued(self) -> QueueFigures:
        return QueueFigures()

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None: ...

    def checkpoint_stopped(self, checkpoint_id: CheckpointID) -> None: ...

    def release(self) -> None: ...


@dataclass(frozen=True)
class Frozen:
    """The synchronous part of one task's snapshot."""

    processed: list[tuple[int, int]]
    """(input channel, row), in the order of processing; for a source: (0, row) as emitted."""
    sent: list[list[int]]
    """Rows by output, in order."""
    positions: dict[int, int]
    """Of a source: next row of each split."""


@dataclass(frozen=True)
class Snapshot:
    """What one task acknowledged."""

    frozen: Frozen
    state: ChannelState

    @property
    def processed(self) -> list[tuple[int, int]]:
        """As frozen."""
        return self.frozen.processed


class Task:
    """One subtask."""

    def __init__(
        self, name: str, job: Job, inputs: Sequence[Link], outputs: Sequence[Link], edge: Partitioning | None
    ) -> None:
        self.name, self.job, self.inputs, self.outputs, self.edge = name, job, inputs, outputs, edge
        self.coordinator = SubtaskCheckpointCoordinator([self], self, has_outputs=bool(outputs))
        self.gate: CheckpointedInputGate | None = None
        if inputs:
            gate = InputGate(0, inputs)
            for index, link in enumerate(inputs):
                link.gate, link.index = gate, index
            union = UnionInputGate([gate])
            handler = create_barrier_handler(
                job.mode,
                union,
                self.coordinator,
                unaligned_enabled=job.unaligned,
                checkpoints_after_tasks_finish=job.checkpoints_after_tasks_finish,
                never_overtaken=[
                    info for info, link in zip(gate.channel_infos, inputs, strict=True) if link.never_overtaken
                ],
            )
            self.gate = CheckpointedInputGate(union, handler, self.coordinator)
        self.processed: list[tuple[int, int]] = []
        self.sent: list[list[int]] = [[] for _ in outputs]
        self.positions: dict[int, int] = {}
        self.next_output = 0
        self.frozen: dict[CheckpointID, Frozen] = {}
        self.uploading: dict[CheckpointID, ChannelState] = {}
        self.timers: dict[Hashable, int] = {}
        self.ended = False

    # --- data ---------------------------------------------------------------------------------------------------------

    def emit(self, numbers: Sequence[int]) -> None:
        """Rows of a hash edge go to the owner of their key, batches of the others to one consumer."""
        if not self.outputs:
            return
        if self.edge is Partitioning.HASH:
            parts = spread_by_key([batch_of(numbers)], KEY, MAX_PARALLELISM, len(self.outputs))
        else:
            parts = [[] for _ in self.outputs]
            parts[self.next_output] = [batch_of(numbers)]
            self.next_output = (self.next_output + 1) % len(self.outputs)
        self.send(parts)

    def send(self, parts: Sequence[Sequence[pa.RecordBatch]]) -> None:
        """Batches by output."""
        for index, batches in enumerate(parts):
            for batch in batches:
                self._add(self.outputs[index], batch)
                self.sent[index] += rows_of([batch])

    def step(self, *, priority_only: bool = False) -> bool:
        """Poll once and process. False when nothing was there. `priority_only`: as if the outputs had no room."""
        assert self.gate is not None
        if self.job.random.random() < 0.1:  # a notification that is late: what it is about may have been polled
            late = self.job.random.choice(self.gate.gate.channel_infos)
            self.gate.gate.notify_channel_non_empty(late, priority=True)
        union = self.gate.gate
        polled = union.poll_priority() if priority_only else union.poll_next()
        if polled is None:
            return False
        seen = self.gate.process(polled, self.job.now_ms)
        if seen is None:
            return True
        if isinstance(seen.element, pa.RecordBatch):
            assert not priority_only, "data was processed without room in the outputs"
            rows = rows_of([seen.element])
            self.processed += [(seen.channel.channel_index, row) for row in rows]
            self.emit(rows)
        elif isinstance(seen.element, EndOfPartition) and union.is_finished:
            self.end()
        return True

    def end(self) -> None:
        """Nothing more comes out of this task."""
        self.ended = True
        for link in self.outputs:
            link.subpartition.finish()
            link.added(priority=False)

    def _add(self, link: Link, element: StreamElement, *, priority: bool = False) -> tuple[pa.RecordBatch, ...]:
        outcome = link.subpartition.add(element, priority=priority)
        link.added(priority=priority)
        return outcome.overtaken

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def fire_timers(self) -> None:
        """Those that are due."""
        for key in [key for key, at_ms in self.timers.items() if at_ms <= self.job.now_ms]:
            del self.timers[key]
            if self.gate is not None:
                self.gate.handler.timer_fired(key, self.job.now_ms)
            self.coordinator.timer_fired(key)

    def trigger(self, barrier: CheckpointBarrier) -> None:
        """By the coordinator of the job."""
        self.coordinator.trigger_checkpoint(barrier, self.job.now_ms, is_running=not self.ended)

    def upload(self) -> bool:
        """One background part finishes."""
        if not self.uploading:
            return False
        checkpoint_id = self.job.random.choice(list(self.uploading))
        self.coordinator.async_part_done(checkpoint_id, EMPTY_TASK_STATE)
        return True

    # --- as its coordinator sees the one operator (CheckpointedOperator) ----------------------------------------------

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        """Nothing is held back."""

    def snapshot_state(self, barrier: CheckpointBarrier, *, is_final: bool) -> FrozenState:
        """All rows so far."""
        sent = [list(rows) for rows in self.sent]
        self.frozen[barrier.checkpoint_id] = Frozen(list(self.processed), sent, dict(self.positions))
        return OperatorID("op"), EMPTY_OPERATOR_SNAPSHOT

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        """Nothing is committed."""

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID) -> None:
        """What was frozen stays until it is not needed."""

    # --- as its coordinator sees the task (CheckpointableTask) --------------------------------------------------------

    def clock_ms(self) -> int:
        """The clock of the job."""
        return self.job.now_ms

    def checkpoint_taken(self, barrier: CheckpointBarrier) -> bool:
        """The operator never finishes before the task ends."""
        return False

    def broadcast_barrier(self, barrier: CheckpointBarrier, *, is_priority: bool) -> OutputState:
        """Some links let no barrier overtake."""
        held_back = barrier.with_options(barrier.options.with_unaligned_unsupported())
        return {
            ResultSubpartitionInfo(0, index): self._add(link, held_back)
            if link.never_overtaken
            else self._add(link, barrier, priority=is_priority)
            for index, link in enumerate(self.outputs)
        }

    def time_out_barrier(self, barrier: CheckpointBarrier) -> OutputState:
        """Where it has not left."""
        late: dict[ResultSubpartitionInfo, tuple[pa.RecordBatch, ...]] = {}
        for index, link in enumerate(self.outputs):
            overtaken = link.subpartition.time_out(barrier)
            if overtaken is not None:
                late[ResultSubpartitionInfo(0, index)] = overtaken
                link.added(priority=True)
        return late

    def is_barrier_waiting(self, checkpoint_id: CheckpointID) -> bool:
        """In any output."""
        return any(link.subpartition.is_barrier_waiting(checkpoint_id) for link in self.outputs)

    def broadcast_cancel_checkpoint_marker(self, checkpoint_id: CheckpointID) -> None:
        """Into all outputs."""
        for link in self.outputs:
            self._add(link, CancelCheckpointMarker(checkpoint_id))

    def broadcast_end_of_channel_state(self, *, is_last: bool) -> None:
        """What follows is new, or was not so far in the snapshot."""
        for link in self.outputs:
            self._add(link, EndOfChannelState(is_last))

    def start_async_snapshot(
        self,
        checkpoint_id: CheckpointID,
        target_location: str,
        frozen: Sequence[FrozenState],
        channel_state: ChannelState,
    ) -> None:
        """It takes until `upload` is called."""
        self.uploading[checkpoint_id] = channel_state

    def cancel_async_snapshot(self, checkpoint_id: CheckpointID) -> None:
        """Nothing of it is kept."""
        self.frozen.pop(checkpoint_id, None)
        self.uploading.pop(checkpoint_id, None)

    def acknowledge(self, checkpoint_id: CheckpointID, metrics: CheckpointMetrics, state: TaskStateSnapshot) -> None:
        """To the coordinator of the job."""
        snapshot = Snapshot(self.frozen.pop(checkpoint_id), self.uploading.pop(checkpoint_id))
        self.job.acknowledge(self, checkpoint_id, snapshot)

    def decline(
        self, checkpoint_id: CheckpointID, reason: CheckpointFailureReason, detail: str = "", timestamp_ms: int = 0
    ) -> None:
        """To the coordinator of the job."""
        self.job.declined.append((self.name, checkpoint_id, reason))

    def checkpoint_settled(self, checkpoint_id: CheckpointID, *, completed: bool) -> None:
        """Nothing is cached."""

    def start_timer(self, key: Hashable, at_ms: int) -> None:
        """Until `fire_timers` finds it due."""
        self.timers[key] = at_ms

    def cancel_timer(self, key: Hashable) -> None:
        """Forgotten."""
        self.timers.pop(key, None)


@dataclass
class Job:
    """Sources -> middle -> sinks, everything that is not given drawn from one seed."""

    seed: int
    widths: Sequence[int] = ()
    edges: Sequence[Partitioning] = ()
    splits: int = 4
    mode: str = "EXACTLY_ONCE"
    unaligned: bool = True
    savepoints: bool = True
    checkpoints_after_tasks_finish: bool = True
    never_overtaken: float = 0.0
    """Share of the channels, of any edge, whose barriers are always aligned."""
    disturbed: bool = True
    """Sources end and checkpoints are aborted now and then."""
    now_ms: int = 1_000
    tasks: list[Task] = field(default_factory=list)
    snapshots: dict[CheckpointID, dict[str, Snapshot]] = field(default_factory=dict)
    expected: dict[CheckpointID, list[str]] = field(default_factory=dict)
    declined: list[tuple[str, CheckpointID, CheckpointFailureReason]] = field(default_factory=list)
    modes_seen: set[str] = field(default_factory=set)
    restored_inputs: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """Rows restored as input channel state, by consumer and channel."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        draw = self.random
        if not self.edges:
            kinds = (Partitioning.HASH, Partitioning.HASH, Partitioning.REBALANCE, Partitioning.FORWARD)
            self.edges = [draw.choice(kinds) for _ in range(2)]
        self.widths = self.widths or draw_widths(draw, self.edges)
        widths = self.widths
        links = {
            (stage, up, down): Link(
                local=draw.random() < 0.3,
                never_overtaken=self.never_overtaken > 0 and draw.random() < self.never_overtaken,
            )
            for stage in range(2)
            for up in range(widths[stage])
            for down in range(widths[stage + 1])
            if self.edges[stage] is not Partitioning.FORWARD or up == down
        }
        self.links = list(links.values())
        for stage, width in enumerate(widths):
            for index in range(width):
                inputs = [link for (at, _, down), link in links.items() if (at, down) == (stage - 1, index)]
                outputs = [link for (at, up, _), link in links.items() if (at, up) == (stage, index)]
                edge = self.edges[stage] if stage < 2 else None
                self.tasks.append(Task(f"{STAGES[stage]}-{index}", self, inputs, outputs, edge))
        self.sources = [task for task in self.tasks if task.gate is None]
        self.others = [task for task in self.tasks if task.gate is not None]
        for split in range(self.splits):
            self.sources[split % len(self.sources)].positions[split] = 0
        self.next_checkpoint = 1
        self.to_trigger: list[tuple[Task, CheckpointBarrier]] = []

    # --- one random step ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Anything that may happen next."""
        draw = self.random
        choice = draw.random() * (1.0 if self.disturbed else 0.97)
        if choice < 0.25:
            live = [source for source in self.sources if not source.ended]
            if live:
                self._emit(draw.choice(live))
        elif choice < 0.28:
            self._start_checkpoint()
        elif choice < 0.40 and self.to_trigger:
            task, barrier = self.to_trigger.pop(draw.randrange(len(self.to_trigger)))
            task.trigger(barrier)
        elif choice < 0.65:
            draw.choice(self.links).transfer()
        elif choice < 0.90:
            draw.choice(self.others).step(priority_only=draw.random() < 0.3)
        elif choice < 0.94:
            draw.choice([task for task in self.tasks if task.uploading] or self.tasks).upload()
        elif choice < 0.97:
            self.now_ms += draw.choice((1, 5, 20))
            for task in self.tasks:
                task.fire_timers()
        elif choice < 0.985:
            self._abort_some()
        elif choice < 0.99:
            live = [source for source in self.sources if not source.ended]
            if len(live) > 1:
                draw.choice(live).end()
        for task in self.tasks:
            task.coordinator.check_output_barriers()

    def settle(self) -> None:
        """No new data or checkpoints: everything under way comes to its end."""
        for task, barrier in self.to_trigger:
            task.trigger(barrier)
        self.to_trigger.clear()
        idle_rounds = 0
        for _ in range(100_000):
            self.now_ms += 1
            progress = [link.transfer() for link in self.links]
            progress += [task.step() for task in self.others]
            progress += [task.upload() for task in self.tasks]
            for task in self.tasks:
                task.fire_timers()
                task.coordinator.check_output_barriers()
            # a timer or an obsolete barrier may have resumed a channel without anything to show for it
            idle_rounds = 0 if any(progress) or any(task.timers for task in self.tasks) else idle_rounds + 1
            if idle_rounds == 3:
                return
        raise AssertionError("the job does not come to rest")

    def _emit(self, source: Task) -> None:
        if not source.positions:
            return
        split = self.random.choice(list(source.positions))
        rows = [split * SPLIT + source.positions[split] + n for n in range(self.random.randint(1, 3))]
        source.positions[split] += len(rows)
        source.processed += [(0, row) for row in rows]
        source.emit(rows)

    def _start_checkpoint(self) -> None:
        checkpoint_id = CheckpointID(self.next_checkpoint)
        self.next_checkpoint += 1
        barrier = CheckpointBarrier(checkpoint_id, self.now_ms, self._options())
        self.expected[checkpoint_id] = [task.name for task in self.tasks]
        self.to_trigger += [(source, barrier) for source in self.sources]

    def _options(self) -> CheckpointOptions:
        if self.mode == "AT_LEAST_ONCE":
            return CheckpointOptions(alignment=AlignmentType.AT_LEAST_ONCE)
        if self.savepoints and self.random.random() < 0.2:
            return CheckpointOptions(SnapshotType.SAVEPOINT)
        if not self.unaligned:
            return CheckpointOptions()
        if self.random.random() < 0.5:
            return CheckpointOptions(alignment=AlignmentType.UNALIGNED)
        return CheckpointOptions(aligned_checkpoint_timeout_ms=self.random.choice((0, 3, 10, 40)))

    def _abort_some(self) -> None:
        open_ids = [key for key in self.expected if key not in self.snapshots or not self.is_complete(key)]
        if open_ids:
            checkpoint_id = self.random.choice(open_ids)
            for task in self.tasks:
                task.coordinator.notify_checkpoint_aborted(checkpoint_id, is_running=not task.ended)
                if task.gate is not None and not task.ended:
                    task.gate.handler.process_abort_notification(checkpoint_id, self.now_ms)

    # --- the oracle ---------------------------------------------------------------------------------------------------

    def acknowledge(self, task: Task, checkpoint_id: CheckpointID, snapshot: Snapshot) -> None:
        """A task's snapshot is durable."""
        assert task.name not in self.snapshots.setdefault(checkpoint_id, {}), "acknowledged twice"
        overtaken = [
            *(task.inputs[info.channel_index] for info, batches in snapshot.state.inputs.items() if batches),
            *(task.outputs[info.subpartition_index] for info, batches in snapshot.state.outputs.items() if batches),
        ]
        assert not any(link.never_overtaken for link in overtaken), (
            f"seed {self.seed}, checkpoint {checkpoint_id}: data was overtaken where nothing may"
        )
        self.snapshots[checkpoint_id][task.name] = snapshot

    def is_complete(self, checkpoint_id: CheckpointID) -> bool:
        """Whether all tasks have acknowledged."""
        return set(self.snapshots.get(checkpoint_id, {})) == set(self.expected[checkpoint_id])

    def completed(self) -> list[CheckpointID]:
        """All complete checkpoints."""
        return [checkpoint_id for checkpoint_id in self.expected if self.is_complete(checkpoint_id)]

    def check_cut(self, checkpoint_id: CheckpointID) -> None:
        """What a task has processed is, per channel, what its producer had sent, minus what is in flight, in order."""
        snapshots = self.snapshots[checkpoint_id]
        for stage, upper, output, lower, channel in self.connections():
            received = [row for at, row in snapshots[lower].processed if at == channel]
            inputs = rows_of(snapshots[lower].state.inputs.get(InputChannelInfo(0, channel), ()))
            outputs = rows_of(snapshots[upper].state.outputs.get(ResultSubpartitionInfo(0, output), ()))
            if inputs:
                self.modes_seen.add("input in flight")
            if outputs:
                self.modes_seen.add("output in flight")
            sent = self.restored_inputs.get((lower, channel), []) + snapshots[upper].frozen.sent[output]
            assert received + inputs + outputs == sent, (
                f"seed {self.seed}, checkpoint {checkpoint_id}, stage {stage}, {upper} -> {lower}: "
                f"{received} processed + {inputs} received + {outputs} queued is not {sent}"
            )

    def check_delivery(self) -> None:
        """After `settle`: every row was processed once by each stage, in channel order."""
        tasks = {task.name: task for task in self.tasks}
        for _, upper, output, lower, channel in self.connections():
            received = [row for at, row in tasks[lower].processed if at == channel]
            sent = self.restored_inputs.get((lower, channel), []) + tasks[upper].sent[output]
            assert received == sent, f"seed {self.seed}: {upper} -> {lower}"

    def connections(self) -> Iterable[tuple[int, str, int, str, int]]:
        """(stage, producer, its output, consumer, its channel) of every channel."""
        for stage, edge in enumerate(self.edges):
            for up in range(self.widths[stage]):
                for down in range(self.widths[stage + 1]):
                    upper, lower = f"{STAGES[stage]}-{up}", f"{STAGES[stage + 1]}-{down}"
                    if edge is not Partitioning.FORWARD:
                        yield stage, upper, down, lower, up
                    elif up == down:
                        yield stage, upper, 0, lower, 0


def draw_widths(draw: random.Random, edges: Sequence[Partitioning]) -> list[int]:
    """Parallelisms; both sides of a forward edge have the same."""
    widths = [draw.randint(1, 3)]
    for edge in edges:
        widths.append(widths[-1] if edge is Partitioning.FORWARD else draw.randint(1, 3))
    return widths
