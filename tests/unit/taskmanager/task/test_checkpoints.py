"""Checkpoints through whole jobs: restore, rescale, unaligned, the end of data, stop with savepoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.api.windows import Aggregate
from snapline.dataflow.elements import AlignmentType, SnapshotType, Watermark
from snapline.dataflow.failures import Blame, CheckpointFailureReason, SerializedFailure
from snapline.dataflow.graph.operator_specs import (
    CustomOperatorSpec,
    MapBatchesSpec,
    RunningAggregateSpec,
    SinkSpec,
    SourceSpec,
)
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.handles import ByteStreamStateHandle
from snapline.dataflow.wire.messages import ExecutionState
from snapline.taskmanager.operators.base.operator_contract import (
    EMPTY_OPERATOR_SNAPSHOT,
    OperatorSnapshot,
    StreamOperator,
)
from snapline.taskmanager.task.mailbox import Mailbox
from tests.unit.taskmanager.task.local_job import (
    Blob,
    Completed,
    Gates,
    ListSource,
    LocalJob,
    Operator,
    Outside,
    StagingSink,
    batch,
    edge,
)

CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}
UNALIGNED = {**CHECKPOINTS, "execution.checkpointing.unaligned.enabled": "true"}


def keyed_sums(splits: list[list[pa.RecordBatch]], parallelism: int = 2, **pauses: int) -> list[Operator]:
    """Source -> hash -> running sum -> sink."""
    source = ListSource(splits, pauses)
    return [
        Operator("src", SourceSpec(source, source.spec_splits()), parallelism=2),
        Operator(
            "sum",
            RunningAggregateSpec(("k",), (Aggregate("s", "sum", "v"), Aggregate("n", "count"))),
            [edge(0, Partitioning.HASH, ["k"])],
            parallelism,
        ),
        Operator("sink", SinkSpec(StagingSink("out")), [edge(1)], parallelism),
    ]


def data(split: int, batches: int = 6, rows: int = 5) -> list[pa.RecordBatch]:
    """Values that differ everywhere, keys that repeat."""
    return [
        batch(k=[(r + b) % 4 for r in range(rows)], v=[split * 1000 + b * 10 + r for r in range(rows)])
        for b in range(batches)
    ]


def final_sums() -> dict[int, tuple[int, int]]:
    """Last sum and count per key, and a check that every count was seen once."""
    seen: dict[int, list[int]] = {}
    last: dict[int, tuple[int, int]] = {}
    for row in Outside.rows("out"):
        seen.setdefault(row["k"], []).append(row["n"])
        if row["n"] > last.get(row["k"], (0, 0))[1]:
            last[row["k"]] = (row["s"], row["n"])
    for key, counts in seen.items():
        assert sorted(counts) == list(range(1, len(counts) + 1)), f"key {key}: rows lost or doubled: {sorted(counts)}"
    return last


def expected(splits: list[list[pa.RecordBatch]]) -> dict[int, tuple[int, int]]:
    sums: dict[int, tuple[int, int]] = {}
    for part in splits:
        for b in part:
            for row in b.to_pylist():
                s, n = sums.get(row["k"], (0, 0))
                sums[row["k"]] = (s + row["v"], n + 1)
    return sums


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("committed_before_crash", [True, False])
def test_a_restored_job_ends_with_the_same_output(parallelism: int, committed_before_crash: bool) -> None:
    """Crash after a completed checkpoint, with more data behind it; restored at several parallelisms."""
    splits = [data(0), data(1)]
    job = LocalJob(keyed_sums(splits, s0=3, s1=2), CHECKPOINTS).run()
    restored = job.checkpoint(notify=committed_before_crash)
    Gates.opened.update({"s0", "s1"})
    for running in job.tasks:
        running.world.awake = True
    for running in job.tasks[:2]:
        for _ in range(3):
            job.step(running)
    job.crash()

    LocalJob(keyed_sums(splits, parallelism), CHECKPOINTS, restored=restored, attempt=1).run_to_end(checkpoints=True)

    assert final_sums() == expected(splits)


def test_nothing_of_an_incomplete_checkpoint_is_visible() -> None:
    """Pre-committed, never notified, crashed: only what the restored job reads again comes out."""
    splits = [data(0), data(1)]
    job = LocalJob(keyed_sums(splits, s0=3, s1=3), CHECKPOINTS).run()
    job.trigger()
    job.run()
    assert Outside.staged
    assert not Outside.committed
    job.crash()

    LocalJob(keyed_sums(splits), CHECKPOINTS, attempt=1).run_to_end(checkpoints=True)

    assert final_sums() == expected(splits)
    assert Outside.cleaned, "orphans of the lost attempt are looked for"


def test_tasks_wait_for_a_checkpoint_after_their_data_ended() -> None:
    """FLIP-147: end of data is reported, the next checkpoint holds finished state, its completion ends everything."""
    job = LocalJob(keyed_sums([data(0), data(1)]), CHECKPOINTS)
    job.checkpoint()
    assert not any(final for r in job.tasks for final in r.world.snapshot_sink.final)
    job.run()

    assert all(len(r.world.ended) == 1 for r in job.tasks)
    assert {r.state for r in job.tasks} == {ExecutionState.RUNNING}
    assert not Outside.committed

    job.checkpoint()

    assert {r.state for r in job.tasks} == {ExecutionState.FINISHED}
    assert all(r.world.acknowledged[-1].state.is_task_finished for r in job.tasks)
    assert all(r.world.snapshot_sink.final[-1] for r in job.tasks)
    assert final_sums() == expected([data(0), data(1)])


def test_a_checkpoint_from_before_the_end_does_not_end_a_task() -> None:
    """Its completion may come after the end of data; it does not hold what came between."""
    job = LocalJob(keyed_sums([data(0), data(1)], s0=2, s1=2), CHECKPOINTS).run()
    checkpoint_id = job.trigger()
    job.run()
    Gates.opened.update({"s0", "s1"})
    for running in job.tasks:
        running.world.awake = True
    job.run()
    job.complete(checkpoint_id)

    assert {r.state for r in job.tasks} == {ExecutionState.RUNNING}
    job.run_to_end(checkpoints=True)
    assert final_sums() == expected([data(0), data(1)])


def test_checkpoints_go_on_after_some_tasks_have_finished() -> None:
    """One source subtask ends long before the other; the restored job does not read it again."""
    splits = [data(0), data(1)]
    job = LocalJob(keyed_sums(splits, s1=2), CHECKPOINTS).run()
    job.checkpoint()
    assert [r.state.value for r in job.tasks[:2]] == ["FINISHED", "RUNNING"]

    restored = job.checkpoint()
    job.crash()
    Gates.opened.add("s1")
    again = LocalJob(keyed_sums(splits), CHECKPOINTS, restored=restored, attempt=1).run_to_end(checkpoints=True)

    assert final_sums() == expected(splits)
    assert again.find("src", 0).descriptor.restore_state.is_task_finished


def test_a_task_that_had_finished_says_so_before_it_has_ended_again() -> None:
    """Its first checkpoint held neither state nor that it had finished, if its trigger came before the task had passed
    the end of its data on. Whoever started from that checkpoint read all of the source once more."""
    splits = [data(0), data(1)]
    job = LocalJob(keyed_sums(splits, s1=2), CHECKPOINTS).run()
    job.checkpoint()
    restored = job.checkpoint()
    job.crash()
    again = LocalJob(keyed_sums(splits, s1=2), CHECKPOINTS, restored=restored, attempt=1)
    had_finished = again.find("src", 0)
    while had_finished.state is not ExecutionState.RUNNING:
        again.step(had_finished)
    again.trigger()
    again.run()

    assert [acknowledged.state.is_task_finished for acknowledged in had_finished.world.acknowledged] == [True]


def test_a_finished_source_subtask_is_remembered_across_a_rescale() -> None:
    """Nobody holds its splits; the digests in every snapshot tell that they are not new."""
    splits = [data(0), data(1), data(2)]
    operators = keyed_sums(splits, s1=2)
    job = LocalJob(operators, CHECKPOINTS).run()
    job.checkpoint()
    restored = job.checkpoint()
    job.crash()
    Gates.opened.add("s1")
    operators[0].parallelism = 3
    LocalJob(operators, CHECKPOINTS, restored=restored, attempt=1).run_to_end(checkpoints=True)

    assert final_sums() == expected(splits)


def test_a_task_without_live_producers_is_triggered_itself() -> None:
    """Its barriers would come from sources that are gone."""
    job = LocalJob(keyed_sums([data(0), data(1)]), CHECKPOINTS).run()
    job.find("sum", 0).paused = job.find("sum", 1).paused = True
    job.trigger()
    job.run()
    for index in range(2):
        job.find("src", index).notify_complete(1)
    job.run()
    assert [r.state.value for r in job.tasks[:2]] == ["FINISHED", "FINISHED"]

    job.find("sum", 0).paused = job.find("sum", 1).paused = False
    job.run()
    job.complete(job.trigger_and_run())

    assert {r.state for r in job.tasks} == {ExecutionState.FINISHED}


def test_barriers_align_before_the_snapshot() -> None:
    """Rows that came behind one barrier are not in the state while the other barrier is missing."""
    job = LocalJob(keyed_sums([data(0), data(1)], 1, s0=2, s1=2), CHECKPOINTS).run()
    job.trigger()
    job.find("src", 1).paused = True
    Gates.opened.add("s0")
    job.find("src", 0).world.awake = True
    job.run()
    keyed = job.find("sum")
    before = keyed.task.metrics().records_in

    assert before == 2 * 2 * 5
    assert not keyed.world.acknowledged

    job.find("src", 1).paused = False
    job.run()
    assert len(keyed.world.acknowledged) == 1
    assert keyed.task.metrics().records_in > before


def test_an_unaligned_checkpoint_holds_the_data_in_flight() -> None:
    """The barrier overtakes full queues; what it overtook is replayed once after the restore."""
    splits = [data(0, 12), data(1, 12)]
    job = LocalJob(keyed_sums(splits), UNALIGNED, max_queued_batches=4)
    job.find("sum", 0).paused = job.find("sum", 1).paused = True
    job.run()
    checkpoint_id = job.trigger(alignment=AlignmentType.UNALIGNED)
    job.run()
    job.find("sum", 0).paused = job.find("sum", 1).paused = False
    for index in range(2):
        job.step(job.find("sum", index))  # restore
        job.step(job.find("sum", index))
    job.run(rounds=100_000)
    restored = job.complete(checkpoint_id, notify=False)
    states = [state for operator in restored.operators for state in operator.subtasks.values()]
    assert any(state.input_channel or state.output_channel for state in states)
    Outside.reset()
    LocalJob(keyed_sums(splits), UNALIGNED, restored=restored, attempt=1).run_to_end(checkpoints=True)

    assert final_sums() == expected(splits)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_data_in_flight_is_rescaled(parallelism: int) -> None:
    """Restored at another parallelism, each row of the data in flight is processed once."""
    splits = [data(0, 12), data(1, 12)]
    restored = in_flight_of(splits)
    Outside.reset()
    LocalJob(keyed_sums(splits, parallelism), UNALIGNED, restored=restored, attempt=1).run_to_end(checkpoints=True)

    assert final_sums() == expected(splits)


NOT_CHAINED = {**UNALIGNED, "pipeline.operator-chaining.enabled": "false"}


def source_and_sink(splits: Sequence[Sequence[pa.RecordBatch]], parallelism: int, to_sink: Any) -> list[Operator]:
    """Two vertices; the sink has another parallelism, perhaps."""
    source = ListSource(splits, {})
    return [
        Operator("src", SourceSpec(source, source.spec_splits()), parallelism=2),
        Operator("sink", SinkSpec(StagingSink("out")), [to_sink], parallelism),
    ]


def before_the_sink(operators: list[Operator], parallelism: int) -> Any:
    """A checkpoint with data in flight that the sink has not taken yet."""
    job = LocalJob(operators, NOT_CHAINED, max_queued_batches=4)
    sinks = [job.find("sink", index) for index in range(parallelism)]
    for sink in sinks:
        sink.paused = True
    job.run()
    job.find("src", 1).paused = True
    checkpoint_id = job.trigger(alignment=AlignmentType.UNALIGNED)
    job.run()
    for sink in sinks:
        sink.paused = False
    job.run()
    job.find("src", 1).paused = False
    job.run()
    return job.complete(checkpoint_id, notify=False)


def values_of(splits: Sequence[Sequence[pa.RecordBatch]]) -> list[int]:
    return sorted(value for split in splits for part in split for value in part.column("v").to_pylist())


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (1, 2), (2, 1)])
def test_data_in_flight_is_rescaled_where_the_edge_becomes_another_one(before: int, after: int) -> None:
    """Two vertices of one parallelism are connected one to one, which others are not. A job that was restored at one
    never started again, because its data in flight belonged to channels that there were not any more."""
    splits = [data(0, 12), data(1, 12)]
    restored = before_the_sink(source_and_sink(splits, before, edge(0)), before)
    operators = source_and_sink(splits, after, edge(0))
    LocalJob(operators, NOT_CHAINED, restored=restored, attempt=1).run_to_end(checkpoints=True)

    assert sorted(row["v"] for row in Outside.rows("out")) == values_of(splits)


@pytest.mark.parametrize(
    ("before", "key", "after"), [(1, (), 2), (3, (), 1), (2, (), 2), (3, (), 3), (3, (), 2), (2, ("v",), 2)]
)
def test_no_data_in_flight_is_lost_where_rows_are_spread_by_another_key(
    before: int, key: tuple[str, ...], after: int
) -> None:
    """As before a FileSink that has got partition_by: rows that another subtask was to have were kept by none. Where
    one subtask had all rows, or will have them, none can be lost."""
    splits = [data(0, 12), data(1, 12)]
    was = edge(0, Partitioning.HASH, key) if key else edge(0, Partitioning.REBALANCE)
    restored = before_the_sink(source_and_sink(splits, before, was), before)
    operators = source_and_sink(splits, after, edge(0, Partitioning.HASH, ["k"]))
    job = LocalJob(operators, NOT_CHAINED, restored=restored, attempt=1)
    if 1 in (before, after):
        job.run_to_end(checkpoints=True)
        assert sorted(row["v"] for row in Outside.rows("out")) == values_of(splits)
        return
    with pytest.raises(AssertionError, match=f"was spread by {key[0] if key else 'no key'}, and is spread by k now"):
        job.run_to_end(checkpoints=True)


def test_data_in_flight_does_not_come_to_another_reader_of_the_same_rows() -> None:
    """Two sinks of one stream that the program names in another order: rows in flight to one came to the other."""
    source = ListSource([data(0, 12), data(1, 12)], {})

    def operators(*sinks: str) -> list[Operator]:
        ends = [Operator(name, SinkSpec(StagingSink(name)), [edge(0)], 2) for name in sinks]
        return [Operator("src", SourceSpec(source, source.spec_splits()), parallelism=2), *ends]

    job = LocalJob(operators("a", "b"), NOT_CHAINED, max_queued_batches=4)
    slow = [job.find("a", index) for index in range(2)]
    for sink in slow:
        sink.paused = True
    job.run()
    checkpoint_id = job.trigger(alignment=AlignmentType.UNALIGNED)
    job.run()
    for sink in slow:
        sink.paused = False
    job.run()
    restored = job.complete(checkpoint_id, notify=False)
    LocalJob(operators("a", "b"), NOT_CHAINED, restored=restored, attempt=1).run_to_end(checkpoints=True)
    assert sorted(row["v"] for row in Outside.rows("a")) == sorted(row["v"] for row in Outside.rows("b"))
    with pytest.raises(AssertionError, match=r"data in flight for an input or output that has another place .* now"):
        LocalJob(operators("b", "a"), NOT_CHAINED, restored=restored, attempt=1).run_to_end(checkpoints=True)


def test_an_aligned_barrier_turns_unaligned_in_the_output_after_its_timeout() -> None:
    """It waits behind data that nobody takes; the timer makes it overtake."""
    splits = [data(0, 12), data(1, 12)]
    job = LocalJob(keyed_sums(splits), UNALIGNED, max_queued_batches=4)
    job.find("sum", 0).paused = job.find("sum", 1).paused = True
    job.run()
    checkpoint_id = job.trigger(aligned_timeout_ms=500)
    job.run()
    source = job.find("src")
    assert not source.world.acknowledged

    job.advance(500)
    assert source.world.acknowledged[0].metrics.unaligned
    job.find("sum", 0).paused = job.find("sum", 1).paused = False
    job.run()
    restored = job.complete(checkpoint_id, notify=False)
    Outside.reset()
    LocalJob(keyed_sums(splits), UNALIGNED, restored=restored, attempt=1).run_to_end(checkpoints=True)

    assert final_sums() == expected(splits)


def test_barriers_that_leave_in_time_end_the_wait_for_the_timeout() -> None:
    """Nothing was overtaken: the checkpoint is acknowledged without its timer."""
    job = LocalJob(keyed_sums([data(0), data(1)], s0=3, s1=3), UNALIGNED).run()
    checkpoint_id = job.trigger(aligned_timeout_ms=500)
    job.run()

    job.complete(checkpoint_id)
    assert not job.find("src").world.acknowledged[0].metrics.unaligned


def test_stop_with_savepoint_suspends() -> None:
    """No rows behind the savepoint, nothing flushed; the job goes on from it elsewhere."""
    splits = [data(0), data(1)]
    job = LocalJob(keyed_sums(splits, s0=3, s1=3), CHECKPOINTS).run()
    savepoint = job.checkpoint(snapshot_type=SnapshotType.SAVEPOINT_SUSPEND)
    job.run()

    assert {r.state for r in job.tasks} == {ExecutionState.FINISHED}
    assert not any(r.world.ended for r in job.tasks)
    assert len(Outside.rows("out")) == 2 * 3 * 5

    Gates.opened.update({"s0", "s1"})
    LocalJob(keyed_sums(splits, 3), CHECKPOINTS, restored=savepoint, attempt=1).run_to_end(checkpoints=True)
    assert final_sums() == expected(splits)


def test_stop_with_savepoint_and_drain_finishes_operators_first() -> None:
    """TERMINATE: the last watermark and `finish` come before the barrier."""
    source = ListSource([[batch(k=[1]), batch(k=[2])]], {"s0": 1})
    operators = [
        Operator("src", SourceSpec(source, source.spec_splits())),
        Operator("hold", CustomOperatorSpec(HoldsBack), [edge(0, Partitioning.REBALANCE)]),
        Operator("sink", SinkSpec(StagingSink("out")), [edge(1)]),
    ]
    job = LocalJob(operators, CHECKPOINTS).run()
    job.checkpoint(snapshot_type=SnapshotType.SAVEPOINT_TERMINATE)
    job.run()

    assert {r.state for r in job.tasks} == {ExecutionState.FINISHED}
    assert [row["k"] for row in Outside.rows("out")] == [1]


class HoldsBack(StreamOperator):
    """Emits what came when it is finished."""

    def __init__(self) -> None:
        self.held: list[pa.RecordBatch] = []

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self.held.append(batch)

    def finish(self) -> None:
        for held in self.held:
            self.output.emit_batch(held)


class Later(StreamOperator):
    """Emits what came when its timer is due."""

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        time = self.context.processing_time
        time.register_timer(time.now_ms() + 100, lambda _: self.output.emit_batch(batch))


@pytest.mark.parametrize("how", [SnapshotType.SAVEPOINT_SUSPEND, SnapshotType.SAVEPOINT_TERMINATE])
def test_no_timer_of_the_clock_fires_behind_the_end_of_the_data(how: SnapshotType) -> None:
    """It is in the savepoint, so that its rows would come again when the job goes on from there; and the operators that
    they come to have finished."""
    source = ListSource([[batch(k=[1]), batch(k=[2])]], {"s0": 1})
    operators = [
        Operator("src", SourceSpec(source, source.spec_splits())),
        Operator("later", CustomOperatorSpec(Later), [edge(0, Partitioning.REBALANCE)]),
        Operator("sink", SinkSpec(StagingSink("out")), [edge(1, Partitioning.REBALANCE)]),
    ]
    job = LocalJob(operators, CHECKPOINTS).run()
    savepoint = job.trigger(how)
    job.run().advance(100)
    assert job.find("later").task.metrics().records_in == 1
    assert job.find("later").task.metrics().records_out == 0

    job.complete(savepoint)
    assert {r.state for r in job.tasks} == {ExecutionState.FINISHED}


class FinishesLong(StreamOperator):
    """Writes down what comes, and that it has finished, which takes as long as a commit does."""

    seen: ClassVar[list[object]] = []
    meanwhile: ClassVar[list[Callable[[], object]]] = []

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self.seen.append(batch.num_rows)

    def finish(self) -> None:
        self.seen.append("finished")
        for passes in self.meanwhile:
            passes()


def test_a_timer_that_falls_due_while_a_sink_commits_brings_it_no_rows_behind_that(monkeypatch) -> None:
    """The sink would write them, and nobody would commit them."""
    source = ListSource([[batch(k=[1])]])
    operators = [
        Operator("src", SourceSpec(source, source.spec_splits())),
        Operator("later", CustomOperatorSpec(Later), [edge(0, Partitioning.REBALANCE)]),
        Operator("sink", CustomOperatorSpec(FinishesLong), [edge(1)]),
    ]
    job = LocalJob(operators)
    monkeypatch.setattr(FinishesLong, "seen", [])
    monkeypatch.setattr(FinishesLong, "meanwhile", [lambda: setattr(job, "now_ms", job.now_ms + 100)])
    job.run_to_end()

    assert FinishesLong.seen == ["finished"]


class SaysWatermarks(StreamOperator):
    """Emits a row when the watermark rises, as windows with a trigger do, and no other."""

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None: ...

    def process_watermark(self, watermark: Watermark) -> None:
        self.output.emit_batch(batch(k=[watermark.timestamp_ms]))


def test_the_end_of_an_input_moves_no_watermark_behind_a_savepoint_that_the_job_stops_with() -> None:
    """Who was behind has ended, and holds the watermark back no more: what a window of the savepoint put out by that
    would come once more when the job goes on from there."""
    watermarks = WatermarkStrategy.for_monotonous_timestamps("k")
    source = ListSource([[batch(k=[5]), batch(k=[62])], [batch(k=[60]), batch(k=[61])]], {"s0": 1, "s1": 1})
    operators = [
        Operator("src", SourceSpec(source, source.spec_splits(), watermarks), parallelism=2),
        Operator("says", CustomOperatorSpec(SaysWatermarks), [edge(0, Partitioning.HASH, ["k"])]),
        Operator("sink", SinkSpec(StagingSink("out")), [edge(1, Partitioning.REBALANCE)]),
    ]
    job = LocalJob(operators, CHECKPOINTS).run()
    job.checkpoint(snapshot_type=SnapshotType.SAVEPOINT_SUSPEND)

    assert {r.state for r in job.tasks} == {ExecutionState.FINISHED}
    assert job.find("says").task.metrics().records_out == 1, "the watermark of 5"


def test_stop_with_savepoint_works_without_periodic_checkpoints() -> None:
    """The savepoint is the only snapshot, and its completion ends the job."""
    job = LocalJob(keyed_sums([data(0), data(1)], s0=3, s1=3)).run()
    job.checkpoint(snapshot_type=SnapshotType.SAVEPOINT_SUSPEND)
    job.run()

    assert {r.state for r in job.tasks} == {ExecutionState.FINISHED}
    assert len(Outside.rows("out")) == 30


def test_a_savepoint_that_fails_after_the_sources_stopped_fails_the_job() -> None:
    """They cannot go on; the job restarts from its latest checkpoint."""
    job = LocalJob(keyed_sums([data(0), data(1)], s0=3, s1=3), CHECKPOINTS).run()
    savepoint = job.trigger(SnapshotType.SAVEPOINT_SUSPEND)
    job.run()
    for running in job.tasks:
        running.notify_aborted(savepoint, 0)
    job.run()

    assert {r.state for r in job.tasks} == {ExecutionState.FAILED}
    assert "stop with savepoint 1, which failed" in job.find("src").failure.summary
    assert job.find("src").failure.blame is Blame.EXTERNAL


def in_flight_of(splits: list[list[pa.RecordBatch]]) -> Completed:
    """A checkpoint of sums that stood still, which holds what had been sent to them."""
    job = LocalJob(keyed_sums(splits), UNALIGNED, max_queued_batches=4)
    job.find("sum", 0).paused = job.find("sum", 1).paused = True
    job.run()
    checkpoint_id = job.trigger(alignment=AlignmentType.UNALIGNED)
    job.run()
    job.find("sum", 0).paused = job.find("sum", 1).paused = False
    job.run()
    return job.complete(checkpoint_id, notify=False)


@pytest.mark.parametrize("is_in_flight", [False, True])
def test_a_task_that_is_cancelled_while_it_restores_reads_no_further(monkeypatch, is_in_flight: bool) -> None:
    """Large state takes minutes to read, and so does data in flight; who is waited for so long takes its TaskManager
    down."""
    splits = [data(0, 12), data(1, 12)]
    if is_in_flight:
        done = in_flight_of(splits)
    else:
        done = LocalJob(keyed_sums(splits, s0=3, s1=3), CHECKPOINTS).run().checkpoint()
    job = LocalJob(keyed_sums(splits), CHECKPOINTS, restored=done, attempt=1)
    restoring, read = job.find("src" if is_in_flight else "sum"), []

    def open_state(handle: ByteStreamStateHandle) -> Blob:
        blob = Blob(handle.data)

        def read_range(offset: int, size: int) -> bytes:
            read.append(size)
            restoring.task.cancel()
            return handle.data[offset : offset + size]

        monkeypatch.setattr(blob, "read_range", read_range)
        return blob

    monkeypatch.setattr(restoring.world, "open_state", open_state)
    job.step(restoring)

    assert [change.state.value for change in restoring.world.states] == ["INITIALIZING", "CANCELED"]
    assert len(read) == 1


def test_a_failed_upload_declines_and_the_job_goes_on() -> None:
    """Nothing is acknowledged; the next checkpoint holds everything."""
    splits = [data(0), data(1)]
    job = LocalJob(keyed_sums(splits, s0=3, s1=3), CHECKPOINTS).run()
    job.find("sum").world.snapshot_sink.failing = True
    job.trigger()
    job.run()
    declined = job.find("sum").world.declined

    assert [d.reason for d in declined] == [CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION]
    assert declined[0].detail == "OSError: no space left"

    job.find("sum").world.snapshot_sink.failing = False
    Gates.opened.update({"s0", "s1"})
    for running in job.tasks:
        running.world.awake = True
    job.run_to_end(checkpoints=True)
    assert final_sums() == expected(splits)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_task_that_is_through_still_acknowledges_what_it_has_frozen(is_given_up: bool) -> None:
    """A savepoint that is written while the data ends is not lost for it; one that was given up is not waited for."""
    job = LocalJob(keyed_sums([data(0), data(1)], s0=3, s1=3)).run()
    for running in job.tasks:
        running.world.snapshot_sink.hold = True
    savepoint = job.trigger(SnapshotType.SAVEPOINT)
    job.run()
    Gates.opened.update({"s0", "s1"})
    for running in job.tasks:
        running.world.awake = True
    job.run()
    assert {running.state for running in job.tasks} == {ExecutionState.RUNNING}

    for running in job.tasks:
        if is_given_up:
            running.notify_aborted(savepoint, 0)
        else:
            running.world.snapshot_sink.release_held()
    job.run()

    assert {running.state for running in job.tasks} == {ExecutionState.FINISHED}
    acknowledged = [len(running.world.acknowledged) for running in job.tasks]
    assert acknowledged == [0 if is_given_up else 1] * len(job.tasks)


def test_an_aborted_checkpoint_stops_its_upload() -> None:
    """The answer that comes all the same is dropped."""
    job = LocalJob(keyed_sums([data(0), data(1)], s0=3, s1=3), CHECKPOINTS).run()
    keyed = job.find("sum")
    keyed.world.snapshot_sink.hold = True
    checkpoint_id = job.trigger()
    job.run()
    keyed.notify_aborted(checkpoint_id, 0)
    job.run()
    assert keyed.world.snapshot_sink.cancelled == [checkpoint_id]

    keyed.world.snapshot_sink.release_held()
    job.run()
    assert not keyed.world.acknowledged


def test_a_lost_notification_is_made_up_for_by_an_abort_that_names_a_later_completion() -> None:
    """The sink commits what the completed checkpoint holds."""
    job = LocalJob(keyed_sums([data(0), data(1)], s0=3, s1=3), CHECKPOINTS).run()
    completed = job.checkpoint(notify=False)
    for running in job.tasks:
        running.notify_aborted(completed.checkpoint_id + 1, completed.checkpoint_id)
    job.run()

    assert len(Outside.rows("out")) == 30


class Told(StreamOperator):
    """Writes down which checkpoints it is told to be complete."""

    seen: ClassVar[list[int]] = []

    def open(self) -> None:
        self.seen.clear()

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        self.seen.append(checkpoint_id)


def test_a_function_hears_once_of_a_checkpoint_that_is_complete() -> None:
    """An abort names it as well, and so does a new leader. What lies before a restore is old, too."""
    source = ListSource([[batch(k=[1])]], {"s0": 0})
    operators = [
        Operator("src", SourceSpec(source, source.spec_splits())),
        Operator("told", CustomOperatorSpec(Told), [edge(0)]),
    ]
    job = LocalJob(operators, CHECKPOINTS).run()
    restored = job.checkpoint()
    task = job.tasks[0]
    task.notify_aborted(2, 1)
    task.notify_aborted(5, 4)
    task.notify_complete(4)
    task.notify_complete(3)
    job.run()
    assert Told.seen == [1, 4]

    job = LocalJob(operators, CHECKPOINTS, restored=restored, attempt=1).run()
    job.tasks[0].notify_complete(1)
    job.tasks[0].notify_aborted(3, 2)
    job.run()
    assert Told.seen == [2]


class CannotFreeze(StreamOperator):
    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self.output.emit_batch(batch)

    def snapshot_state(self, checkpoint_id: int, timestamp_ms: int) -> OperatorSnapshot:
        if checkpoint_id == 1:
            raise ValueError("state is not serializable")
        return EMPTY_OPERATOR_SNAPSHOT


def test_an_operator_that_cannot_freeze_declines_and_fails_its_task() -> None:
    """Its barrier is out; going on would make the next checkpoint a lie."""
    source = ListSource([[batch(k=[1]), batch(k=[2])]], {"s0": 1})
    job = LocalJob(
        [
            Operator("src", SourceSpec(source, source.spec_splits())),
            Operator("bad", CustomOperatorSpec(CannotFreeze), [edge(0)]),
        ],
        CHECKPOINTS,
    ).run()
    job.trigger()
    job.run()
    running = job.tasks[0]

    assert [d.reason for d in running.world.declined] == [CheckpointFailureReason.TASK_CHECKPOINT_FAILURE]
    assert running.state is ExecutionState.FAILED
    assert running.failure.operator_uid == "bad"


def test_a_trigger_before_the_task_runs_is_declined() -> None:
    """Restoring is not running."""
    source = ListSource([[batch(k=[1])]])
    job = LocalJob([Operator("src", SourceSpec(source, source.spec_splits()))], CHECKPOINTS)
    job.trigger()
    job.step(job.tasks[0])
    job.run()

    assert job.tasks[0].world.declined == [] or job.tasks[0].world.declined[0].checkpoint_id == 1
    assert job.tasks[0].world.acknowledged or job.tasks[0].world.declined


def test_whole_batches_survive_a_stateless_restore() -> None:
    """Stateless operators have nothing in the snapshot, and come back all the same."""
    source = ListSource([[batch(k=[1]), batch(k=[2])]], {"s0": 1})
    operators = [
        Operator("src", SourceSpec(source, source.spec_splits())),
        Operator("map", MapBatchesSpec(lambda b: b), [edge(0, Partitioning.REBALANCE)], 2),
        Operator("sink", SinkSpec(StagingSink("out")), [edge(1, Partitioning.REBALANCE)]),
    ]
    job = LocalJob(operators, CHECKPOINTS).run()
    restored = job.checkpoint()
    job.crash()
    Gates.opened.add("s0")
    LocalJob(operators, CHECKPOINTS, restored=restored, attempt=1).run_to_end(checkpoints=True)

    assert sorted(row["k"] for row in Outside.rows("out")) == [1, 2]


def test_a_task_that_is_failed_while_it_restores_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """It read no further before it was told of the failure, and said that it was told to end."""
    done = LocalJob(keyed_sums([data(0), data(1)], s0=3, s1=3), CHECKPOINTS).run().checkpoint()
    job = LocalJob(keyed_sums([data(0), data(1)]), CHECKPOINTS, restored=done, attempt=1)
    restoring, put = job.find("sum"), Mailbox.put

    def put_late(mailbox: Mailbox, mail: Any) -> None:
        job.step(restoring)
        put(mailbox, mail)

    with monkeypatch.context() as slow:
        slow.setattr(Mailbox, "put", put_late)
        restoring.task.fail_externally(SerializedFailure("the neighbour is gone"))
    job.step(restoring)

    assert restoring.failure.summary == "the neighbour is gone"
