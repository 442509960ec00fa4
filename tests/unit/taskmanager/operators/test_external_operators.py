"""A program outside that is asked for an answer and puts out rows instead, as its operator sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import ExternalSpec
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.operators.base.operator_contract import RestoredState
from snapline.taskmanager.operators.external import external_operators
from snapline.taskmanager.operators.external.external_operators import (
    ExternalOperator,
    ExternalSourceOperator,
    ExternalTaskFailed,
)
from snapline.taskmanager.programs.program_place import (
    ForTask,
    NotificationTaken,
    RowsCame,
    SnapshotCame,
    WatermarkCame,
)
from tests.unit.taskmanager.operators.harness import Harness, KeyedFile, Written, restored_state

SCHEMA = pa.schema([("n", pa.int64())])
ROWS = RowsCame(external_operators._arrow_of(SCHEMA, pa.RecordBatch.from_pydict({"n": [1]}, SCHEMA)))


Started = TypeVar("Started", bound=ExternalOperator)


class Talking:
    """A place whose program says these things, whatever it is asked (PlaceForProgram)."""

    is_running = has_room = has_output = True

    def __init__(self, *said: ForTask) -> None:
        self.said = list(said)

    def wait(self, timeout_ms: int) -> ForTask | None:
        return self.said.pop(0)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: None


def source_of(place: Talking) -> ExternalSourceOperator:
    return started(ExternalSourceOperator(ExternalSpec("t", "source", None, SCHEMA)), place)


def started(operator: Started, place: Talking, restored: RestoredState | None = None) -> Started:
    harness = Harness(operator)
    operator.setup(replace(harness.context, offer_place=lambda *told: place), harness)
    harness.start(restored)
    return operator


@pytest.mark.parametrize("said", [ROWS, WatermarkCame(1, False)])
@pytest.mark.parametrize("ask", ["await_snapshot", "await_notification"])
def test_who_talks_instead_of_answering_has_a_bound(monkeypatch: pytest.MonkeyPatch, ask: str, said: ForTask) -> None:
    """While a task waits for an answer nobody takes its rows: they filled the memory of its TaskManager, 1.2 GB in
    eight seconds. Each message counts for what it takes at least."""
    monkeypatch.setattr(external_operators, "MAX_BEFORE_ANSWER_BYTES", 3 * external_operators.MESSAGE_BYTES)
    more = {"stops": False} if ask == "await_snapshot" else {}
    answer = SnapshotCame(7, ()) if more else NotificationTaken(7)
    getattr(source_of(Talking(said, said, said, answer))._program, ask)(CheckpointID(7), **more)
    place = Talking(said, said, said, said, answer)
    with pytest.raises(ExternalTaskFailed, match=r"checkpoint 7, and has put out more than 12288 bytes instead"):
        getattr(source_of(place)._program, ask)(CheckpointID(7), **more)
    assert place.said == [answer]


@pytest.mark.parametrize("drain", [False, True])
def test_what_a_source_puts_out_after_the_snapshot_that_stops_it_goes_nowhere(drain: bool) -> None:
    """The savepoint does not know of it, so that whoever starts from there sees these rows again: they went on to the
    operators of the chain, while the task waited for its program to hear that the savepoint is complete."""
    late = (ROWS, WatermarkCame(9, False), WatermarkCame(0, True))
    source = source_of(Talking(ROWS, SnapshotCame(7, ()), *late, NotificationTaken(7)))
    stop = CheckpointID(7)
    source.stop_emitting(stop, drain=drain)
    source.prepare_snapshot_pre_barrier(stop)
    source.announce_snapshot(SnapshotType.SAVEPOINT_TERMINATE if drain else SnapshotType.SAVEPOINT_SUSPEND)
    source.snapshot_state(stop, 0)
    source.notify_checkpoint_complete(stop)
    assert [batch.to_pylist() for batch in source.output.emitted] == [[{"n": 1}]]  # type: ignore[attr-defined]


def test_what_an_operator_puts_out_after_the_savepoint_that_stops_the_job_goes_nowhere() -> None:
    """Its program emits when it likes, and not only what follows from rows: the savepoint does not know of that."""
    place = Talking(ROWS, SnapshotCame(7, ()), ROWS, WatermarkCame(9, False), NotificationTaken(7))
    operator = started(ExternalOperator(ExternalSpec("t", "operator", SCHEMA, SCHEMA)), place)
    operator.prepare_snapshot_pre_barrier(CheckpointID(7))
    operator.announce_snapshot(SnapshotType.SAVEPOINT_SUSPEND)
    operator.snapshot_state(CheckpointID(7), 0)
    operator.notify_checkpoint_complete(CheckpointID(7))
    assert [batch.to_pylist() for batch in operator.output.emitted] == [[{"n": 1}]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [ExternalOperator, ExternalSourceOperator])
def test_a_program_does_not_take_the_place_of_an_operator_with_keys(kind: type[ExternalOperator]) -> None:
    """Under the uid of a function that had keyed state it began without any, and the next snapshot had none."""
    harness = Harness(kind(ExternalSpec("t", "operator", SCHEMA, SCHEMA)))
    keyed = KeyedFile(b"", harness.context.key_group_range)
    with pytest.raises(StateError, match="'op': the snapshot holds keyed state for it, and it keeps none"):
        harness.start(RestoredState(CheckpointID(1), (keyed,)))


def test_a_source_that_was_drained_puts_nothing_out_when_its_task_ends_again() -> None:
    """A TaskManager is lost between the savepoint that drains the job and the job's end: windows have fired by then,
    and what the program put out meanwhile came to operators behind the end of their input, with the next checkpoint."""
    stop = CheckpointID(7)
    drained = source_of(Talking(ROWS, SnapshotCame(7, ())))
    drained.stop_emitting(stop, drain=True)
    left = restored_state([Written(drained.snapshot_state(stop, 0))])
    place = Talking(ROWS, SnapshotCame(8, ()), ROWS, SnapshotCame(9, ()), WatermarkCame(9, False), NotificationTaken(9))
    again = started(ExternalSourceOperator(ExternalSpec("t", "source", None, SCHEMA)), place, left)
    assert again.emit_next() is InputStatus.END_OF_INPUT
    for last in (CheckpointID(8), CheckpointID(9)):
        again.prepare_snapshot_pre_barrier(last)
        again.announce_snapshot(SnapshotType.CHECKPOINT)
        again.snapshot_state(last, 0)
    again.notify_checkpoint_complete(CheckpointID(9))
    assert again.output.emitted == place.said == []  # type: ignore[attr-defined]
