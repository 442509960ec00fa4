"""Sinks whose subtasks commit together: one transaction a checkpoint, in order, once, whatever is lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from snapline.dataflow.api.connector_api import Committable, GlobalCommittable, GlobalCommitter, Sink, SinkWriter
from snapline.dataflow.graph.operator_specs import GlobalCommitterSpec, SinkWriterSpec
from snapline.taskmanager.operators.sinks.global_committer_operator import GlobalCommitterOperator
from snapline.taskmanager.operators.sinks.sink_writer_operator import SinkWriterOperator
from tests.unit.taskmanager.operators.harness import Harness, restored_state

CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}


class Table(Sink, GlobalCommitter):
    """A table that notes with every commit which checkpoint it was."""

    commits_together = True

    def __init__(self) -> None:
        self.commits: list[tuple[int, list[int]]] = []
        self.cleaned = 0
        self.noted: dict[tuple[str, str], int] = {}

    def create_writer(self, context: Any, restored: Any) -> SinkWriter:
        return Numbers()

    def create_global_committer(self, context: Any) -> GlobalCommitter:
        return self

    def last_committed(self, job_id: str, sink_uid: str) -> int | None:
        return self.noted.get((job_id, sink_uid))

    def commit(self, together: GlobalCommittable) -> None:
        self.commits.append((together.checkpoint_id, [n for one in together.committables for n in one.data["rows"]]))
        self.noted[together.job_id, together.sink_uid] = together.checkpoint_id

    def clean_up(self) -> None:
        self.cleaned += 1


class Numbers(SinkWriter):
    """Keeps numbers until the barrier."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.column(0).to_pylist()

    def prepare_commit(self, checkpoint_id: int) -> list[Committable]:
        rows, self.rows = self.rows, []
        return [Committable({"rows": rows})] if rows else []


class Pair:
    """A writer and the committer behind it, with an aligned edge between them."""

    def __init__(self, table: Table, restored: Any = None, attempt: int = 0, settings: Any = CHECKPOINTS) -> None:
        self.writer = Harness(SinkWriterOperator(SinkWriterSpec(table)), configuration=settings).start()
        committer = GlobalCommitterOperator(GlobalCommitterSpec(table))
        self.committer = Harness(committer, configuration=settings, attempt=attempt)
        self.committer.start(*([restored_state([restored], checkpoint_id=2)] if restored else []))

    def write(self, *numbers: int) -> Pair:
        self.writer.process(pa.record_batch({"n": pa.array(numbers, pa.int64())}))
        return self

    def flow(self) -> Pair:
        for batch in self.writer.emitted:
            self.committer.process(batch)
        self.writer.emitted.clear()
        return self

    def snapshot(self, checkpoint_id: int) -> Any:
        self.writer.snapshot(checkpoint_id)
        self.flow()
        return self.committer.snapshot(checkpoint_id)

    def complete(self, checkpoint_id: int) -> None:
        self.committer.operator.notify_checkpoint_complete(checkpoint_id)


def test_a_checkpoint_is_one_transaction_when_it_is_complete() -> None:
    """Nothing is visible before, and an empty checkpoint is no transaction."""
    table = Table()
    pair = Pair(table)
    pair.write(1).snapshot(1)
    pair.snapshot(2)
    pair.write(3).snapshot(3)
    assert table.commits == []
    for checkpoint_id in (1, 2, 3):
        pair.complete(checkpoint_id)
    assert table.commits == [(1, [1]), (3, [3])]


def test_what_an_aborted_checkpoint_held_comes_with_the_next_in_its_transaction() -> None:
    """Its notification may as well have been lost: the greatest id names the transaction."""
    table = Table()
    pair = Pair(table)
    pair.write(1).snapshot(1)
    pair.write(2).snapshot(2)
    pair.complete(2)
    assert table.commits == [(2, [1, 2])]


@pytest.mark.parametrize(("noted", "commits"), [(None, [(2, [1, 2])]), (1, [(2, [2])]), (2, [])])
def test_a_restored_committer_commits_what_the_table_does_not_have(noted: int | None, commits: Any) -> None:
    """Whether the crash came before, between or after the commits of what the snapshot holds."""
    first = Pair(Table())
    first.write(1).snapshot(1)
    written = first.write(2).snapshot(2)
    table = Table()
    if noted:
        table.noted["job", "op"] = noted
    again = Pair(table, written, attempt=1)
    assert table.commits == commits

    again.write(3).snapshot(4)
    again.complete(4)
    assert table.commits == [*commits, (4, [3])]
    assert table.cleaned == 1


def test_a_first_attempt_cleans_up_nothing() -> None:
    """There is nothing that could have been left."""
    table = Table()
    pair = Pair(table)
    pair.write(1).snapshot(1)
    pair.complete(1)
    assert table.cleaned == 0


def test_rows_of_a_later_checkpoint_wait_for_it() -> None:
    """They come early where barriers are only counted, and are not in the snapshot of the checkpoint before."""
    table = Table()
    pair = Pair(table)
    pair.write(1).writer.snapshot(1)
    pair.write(2).writer.snapshot(2)
    pair.flow()
    written = pair.committer.snapshot(1)
    pair.complete(1)
    assert [len(state.elements) for state in written.lists] == [1]
    assert table.commits == [(1, [1])]
    pair.committer.snapshot(2)
    pair.complete(2)
    assert table.commits == [(1, [1]), (2, [2])]


@pytest.mark.parametrize("settings", [CHECKPOINTS, {}])
def test_the_end_of_the_input_is_committed_with_the_final_checkpoint_or_at_once(settings: dict[str, str]) -> None:
    """At once where no checkpoint follows."""
    table = Table()
    pair = Pair(table, settings=settings)
    pair.write(1).writer.operator.finish()
    pair.flow().committer.operator.finish()
    assert table.commits == ([] if settings else [(1, [1])])
    if settings:
        pair.snapshot(1)
        pair.complete(1)
        assert table.commits == [(1, [1])]
