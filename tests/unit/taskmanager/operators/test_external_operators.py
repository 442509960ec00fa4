"""A program outside that is asked for an answer and puts out rows instead, as its operator sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from snapline.dataflow.graph.operator_specs import ExternalSpec
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.operators.external import external_operators
from snapline.taskmanager.operators.external.external_operators import ExternalSourceOperator, ExternalTaskFailed
from snapline.taskmanager.programs.program_place import (
    ForTask,
    NotificationTaken,
    RowsCame,
    SnapshotCame,
    WatermarkCame,
)
from tests.unit.taskmanager.operators.harness import Harness

SCHEMA = pa.schema([("n", pa.int64())])
ROWS = RowsCame(external_operators._arrow_of(SCHEMA, pa.RecordBatch.from_pydict({"n": [1]}, SCHEMA)))


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
    operator = ExternalSourceOperator(ExternalSpec("t", "source", None, SCHEMA))
    harness = Harness(operator)
    operator.setup(replace(harness.context, offer_place=lambda *told: place), harness)
    harness.start(None)
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
