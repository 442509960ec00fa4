"""Sinks: committables bound to checkpoints, recovery, functions with transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from snapline.dataflow.api.connector_api import Committable, Sink, SinkWriter
from snapline.dataflow.api.functions import Function
from snapline.dataflow.api.two_phase_commit import SinkFunction, TwoPhaseCommitSinkFunction
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import SinkFunctionSpec, SinkSpec, SinkWriterSpec
from snapline.taskmanager.operators.base.failure import RowFailure
from snapline.taskmanager.operators.base.operator_contract import StreamOperator
from snapline.taskmanager.operators.sinks.sink_function_operator import SinkFunctionOperator
from snapline.taskmanager.operators.sinks.sink_operator import SinkOperator
from snapline.taskmanager.operators.sinks.sink_writer_operator import SinkWriterOperator
from tests.unit.taskmanager.operators.harness import Harness, restored_state
from tests.unit.taskmanager.task.local_job import Outside, StagingSink

CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(values, pa.int64())})


def sink(restored: Any = None, attempt: int = 0) -> Harness:
    harness = Harness(SinkOperator(SinkSpec(StagingSink("out"))), configuration=CHECKPOINTS, attempt=attempt)
    return harness.start(*([restored] if restored else []))


def visible() -> list[int]:
    return [row["k"] for row in Outside.rows("out")]


def test_output_is_visible_when_its_checkpoint_is_complete() -> None:
    """A completion covers all earlier checkpoints whose notification never came; never a later one."""
    harness = sink()
    for checkpoint_id in (1, 2, 3):
        harness.process(rows(checkpoint_id)).snapshot(checkpoint_id)
    assert visible() == []

    harness.operator.notify_checkpoint_complete(2)
    assert visible() == [1, 2]
    harness.operator.notify_checkpoint_complete(1)
    harness.operator.notify_checkpoint_complete(3)
    assert visible() == [1, 2, 3]


def test_an_aborted_checkpoints_output_comes_with_the_next() -> None:
    """It was pre-committed and stays so."""
    harness = sink()
    harness.process(rows(1)).snapshot(1)
    harness.operator.notify_checkpoint_aborted(1)
    written = harness.process(rows(2)).snapshot(2)
    harness.operator.notify_checkpoint_complete(2)

    assert visible() == [1, 2]
    assert len(next(state for state in written.lists if state.name == "sink-committables").elements) == 2


def test_recovery_commits_what_the_snapshot_holds_before_anything_is_written() -> None:
    """And tells the committer what not to clean up; committing twice does no harm."""
    first = sink()
    written = first.process(rows(1)).snapshot(1)
    first.process(rows(2)).snapshot(2)
    first.operator.notify_checkpoint_complete(1)
    assert Outside.restored_from == []
    commits = len(Outside.commits)
    again = sink(restored_state([written], checkpoint_id=1), attempt=1)

    assert visible() == [1]
    assert Outside.restored_from == [(1, commits)]
    assert Outside.cleaned == [("out/attempt-0/1/0",)]
    assert again.snapshot(3).lists[0].elements == ()


def test_a_first_attempt_cleans_up_nothing_a_second_one_does() -> None:
    """Even if there is nothing to restore: the first may have died before its first checkpoint."""
    sink()
    assert Outside.cleaned == []
    sink(attempt=1)
    assert Outside.cleaned == [()]
    assert Outside.restored_from == [(0, 0)]


def test_without_final_checkpoint_finish_commits() -> None:
    """Also what an earlier savepoint has pre-committed."""
    harness = Harness(SinkOperator(SinkSpec(StagingSink("out")))).start()
    harness.process(rows(1)).snapshot(4)
    harness.process(rows(2)).operator.finish()

    assert visible() == [1, 2]


@pytest.mark.parametrize("completed", [True, False])
def test_what_is_written_after_the_last_checkpoint_is_of_a_later_one(completed: bool) -> None:
    """It had the id 1 when all before was committed, and a RedisSink took it for committed, too: the rows were lost."""
    harness = Harness(SinkOperator(SinkSpec(StagingSink("out")))).start()
    harness.process(rows(1)).snapshot(4)
    if completed:
        harness.operator.notify_checkpoint_complete(4)
    harness.process(rows(2)).operator.finish()

    assert Outside.commits == ["out/attempt-0/4/0", "out/attempt-0/5/1"]


@pytest.mark.parametrize(("interval", "gathers"), [("0 s", True), ("1 s", True), ("0 s", False)])
def test_rows_that_a_writer_gathers_do_not_wait_for_a_barrier_that_never_comes(interval: str, *, gathers: bool) -> None:
    """Ten keys of a RedisSink, say, in a job without checkpoints: they were held until the end of the input. A writer
    that hands rows on by itself, as a producer of Kafka's, is not asked."""
    is_asked = interval == "0 s" and gathers
    written: list[int] = []

    class Gathering(Sink, SinkWriter):
        two_phase = False
        gathers_rows = gathers

        def __init__(self) -> None:
            self.held: list[int] = []

        def create_writer(self, context: Any, restored: Any) -> SinkWriter:
            return self

        def write(self, batch: pa.RecordBatch) -> None:
            self.held += batch.column("k").to_pylist()

        def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
            written.extend(self.held)
            self.held = []
            return ()

    configuration = {"execution.checkpointing.interval": interval}
    harness = Harness(SinkOperator(SinkSpec(Gathering())), configuration=configuration).start()
    harness.process(rows(1)).process(rows(2)).advance(999)
    assert [] == written
    harness.advance(1_000)
    assert written == ([1, 2] if is_asked else [])
    harness.process(rows(3)).operator.close()
    harness.advance(9_000)
    assert written == ([1, 2] if is_asked else [])


class Bank(TwoPhaseCommitSinkFunction):
    """Transactions in an outside system."""

    accounts: ClassVar[dict[int, list[int]]] = {}
    committed: ClassVar[list[int]] = []
    aborted: ClassVar[list[int]] = []

    def begin_transaction(self) -> int:
        number = len(self.accounts) + 1
        self.accounts[number] = []
        return number

    def invoke_transaction(self, transaction: int, value: Any) -> None:
        self.accounts[transaction].extend([value["k"]] if isinstance(value, dict) else value["k"].to_pylist())

    def pre_commit(self, transaction: int) -> None: ...

    def commit(self, transaction: int) -> None:
        if transaction not in self.committed:
            self.committed.append(transaction)

    def abort(self, transaction: int) -> None:
        self.aborted.append(transaction)


@pytest.fixture
def bank() -> type[Bank]:
    Bank.accounts, Bank.committed, Bank.aborted = {}, [], []
    return Bank


@pytest.mark.parametrize("row_wise", [True, False])
def test_a_transactional_function_commits_with_checkpoints(bank: type[Bank], row_wise: bool) -> None:
    """Whole batches or rows; after a crash the pre-committed transaction is committed, the open one aborted."""
    spec = SinkFunctionSpec(Bank(), row_wise)
    harness = Harness(SinkFunctionOperator(spec), configuration=CHECKPOINTS).start().process(rows(1, 2))
    written = harness.snapshot(1)
    harness.process(rows(3))
    assert bank.committed == []

    again = Harness(SinkFunctionOperator(SinkFunctionSpec(Bank(), row_wise)), configuration=CHECKPOINTS)
    again.start(restored_state([written])).process(rows(4)).operator.finish()
    again.snapshot(2)
    again.operator.notify_checkpoint_complete(2)
    again.operator.close()

    assert bank.committed == [1, 3]
    assert bank.aborted == [2]
    assert bank.accounts == {1: [1, 2], 2: [3], 3: [4]}


def test_without_checkpoints_a_transactional_function_commits_at_the_end(bank: type[Bank]) -> None:
    """One transaction holds everything."""
    harness = Harness(SinkFunctionOperator(SinkFunctionSpec(Bank()))).start().process(rows(1)).process(rows(2))
    harness.operator.finish()
    harness.operator.close()

    assert (bank.committed, bank.aborted, bank.accounts) == ([1], [], {1: [1, 2]})


class Plain(SinkFunction):
    """Neither transactions nor state."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def invoke(self, value: Any) -> None:
        if value["k"] == 0:
            raise ValueError("zero")
        self.got.append(value)


def test_a_plain_function_gets_its_rows() -> None:
    """And the failing one is named."""
    function = Plain()
    harness = Harness(SinkFunctionOperator(SinkFunctionSpec(function, row_wise=True))).start().process(rows(1, 2))
    with pytest.raises(RowFailure) as raised:
        harness.process(rows(5, 0))

    assert raised.value.row_index == 1
    assert function.got == [{"k": 1}, {"k": 2}, {"k": 5}]
    assert isinstance(function, Function)


def test_a_sink_that_commits_no_more_does_not_lose_what_the_snapshot_holds() -> None:
    """The rows of the last checkpoint were forgotten without a word, where nobody is there to commit them."""

    class AtLeastOnce(StagingSink):
        two_phase = False

        def create_committer(self, context: Any) -> Any:
            return None

    written = sink().process(rows(1)).snapshot(1)
    harness = Harness(SinkOperator(SinkSpec(AtLeastOnce("out"))), configuration=CHECKPOINTS)
    with pytest.raises(StateError, match=r"sink 'op': .* pre-committed, .*snapline transactions commit"):
        harness.start(restored_state([written]))
    nothing_written = sink().snapshot(1)
    Harness(SinkOperator(SinkSpec(AtLeastOnce("out"))), configuration=CHECKPOINTS).start(
        restored_state([nothing_written])
    )


def test_a_sink_that_commits_together_from_now_on_commits_what_its_subtasks_have_left() -> None:
    """As a FileSink with compact_below, which it had not before: the files of the last checkpoint never appeared."""
    first = sink().process(rows(1))
    first.snapshot(1)
    written = first.process(rows(2)).snapshot(2)
    harness = Harness(SinkWriterOperator(SinkWriterSpec(StagingSink("out"))), configuration=CHECKPOINTS)
    harness.start(restored_state([written]))

    assert visible() == [1, 2]
    assert [state.name for state in harness.snapshot(3).lists] == ["sink-writer-state"]


def kinds_of_sinks() -> dict[str, Callable[[], StreamOperator]]:
    return {
        "a sink": lambda: SinkOperator(SinkSpec(StagingSink("out"))),
        "a writer before a global committer": lambda: SinkWriterOperator(SinkWriterSpec(StagingSink("out"))),
        "a function with transactions": lambda: SinkFunctionOperator(SinkFunctionSpec(Bank(), row_wise=False)),
        "a plain function": lambda: SinkFunctionOperator(SinkFunctionSpec(Plain(), row_wise=False)),
    }


@pytest.mark.parametrize("now", kinds_of_sinks())
@pytest.mark.parametrize("was", ["a sink", "a function with transactions"])
def test_a_sink_of_another_kind_does_not_forget_what_the_snapshot_holds(was: str, now: str, bank: type[Bank]) -> None:
    """A function that took a sink's uid, and a sink that took a function's, lost the rows of the last checkpoint."""
    kinds = kinds_of_sinks()
    before = Harness(kinds[was](), configuration=CHECKPOINTS).start()
    written = before.process(rows(1)).snapshot(1)
    harness = Harness(kinds[now](), configuration=CHECKPOINTS)
    if was == now or (was, now) == ("a sink", "a writer before a global committer"):
        harness.start(restored_state([written]))
        assert visible() == [1] or bank.committed == [1]
    else:
        with pytest.raises(StateError, match=r"sink 'op': .* pre-committed, .*go on with the sink and the guarantee"):
            harness.start(restored_state([written]))


def test_a_function_that_took_a_sinks_place_before_the_snapshot_goes_on_from_it(bank: type[Bank]) -> None:
    """Lists that nobody asks for are written again with each checkpoint: the job could not have restarted."""
    left = sink().process(rows(1)).snapshot(1)
    own = Harness(SinkFunctionOperator(SinkFunctionSpec(Bank(), row_wise=False)), configuration=CHECKPOINTS).start()
    written = own.process(rows(2)).snapshot(2)
    again = Harness(SinkFunctionOperator(SinkFunctionSpec(Bank(), row_wise=False)), configuration=CHECKPOINTS)
    again.start(restored_state([left, written]))
    assert bank.committed == [1]


def test_a_sink_with_nothing_pre_committed_may_become_a_function(bank: type[Bank]) -> None:
    """It was refused although no row could be lost."""
    nothing = sink().snapshot(1)
    Harness(SinkFunctionOperator(SinkFunctionSpec(Bank(), row_wise=False)), configuration=CHECKPOINTS).start(
        restored_state([nothing])
    )
