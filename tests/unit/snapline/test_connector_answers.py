"""A source or sink whose methods return what they must not is told so, with the method."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import DiscardingSink
from snapline.dataflow.api.connector_answers import splits_of


class Reader(sl.SourceReader):
    """Has one row."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    def add_splits(self, splits: Any) -> None:
        """There is one, and it has no position."""

    def poll_next(self, now_ms: int) -> sl.Polled:
        if "poll_next" in self.answers:
            return self.answers["poll_next"]
        if "status" in self.answers:
            return sl.Polled(**self.answers)
        self.answers["poll_next"] = sl.Polled(sl.InputStatus.END_OF_INPUT)
        return sl.Polled(sl.InputStatus.MORE_AVAILABLE, pa.RecordBatch.from_pydict({"n": [1]}))

    def snapshot_splits(self, checkpoint_id: int) -> Any:
        return self.answers.get("snapshot_splits", [])


class OneRow(sl.Source):
    """Returns what it is told to."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def enumerate_splits(self) -> Any:
        return self.answers.pop("enumerate_splits", [sl.SourceSplit("all")])

    def create_reader(self, context: sl.SourceContextInfo) -> Any:
        return self.answers.get("create_reader", Reader(self.answers))


class Writer(sl.SinkWriter):
    """Keeps nothing."""

    def __init__(self, committables: Any, state: Any) -> None:
        self.committables, self.state = committables, state

    def write(self, batch: pa.RecordBatch) -> None:
        """Forget it."""

    def prepare_commit(self, checkpoint_id: int) -> Any:
        return self.committables

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.state


class ToNowhere(sl.Sink):
    """Returns what it is told to."""

    def __init__(self, committables: Any = (), **answers: Any) -> None:
        self.committables, self.answers = committables, answers

    def create_writer(self, context: sl.SourceContextInfo, restored: Any) -> Any:
        return self.answers.get("create_writer", Writer(self.committables, self.answers.get("state", ())))

    def create_committer(self, context: sl.SourceContextInfo) -> Any:
        return None


def run(source: sl.Source, sink: sl.Sink) -> None:
    """Run a job from one to the other, with checkpoints."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    env.configure("restart-strategy.type", "none").enable_checkpointing(50)
    env.from_source(source, uid="source").sink_to(sink, uid="sink")
    env.execute("answers", local=True)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"enumerate_splits": None}, "OneRow.enumerate_splits must return a list of SourceSplit, not None"),
        ({"enumerate_splits": ["a"]}, "OneRow.enumerate_splits, in its list, must return a SourceSplit, not 'a'"),
        ({"enumerate_splits": [sl.SourceSplit("a"), sl.SourceSplit("a")]}, "two splits have the id 'a'; give each its own"),
        ({"enumerate_splits": [sl.SourceSplit(1)]}, "the id of a split must be a text, not 1"),  # type: ignore[arg-type]
        ({"create_reader": None}, "OneRow.create_reader must return a SourceReader, not None"),
        ({"poll_next": None}, "Reader.poll_next must return a Polled, not None"),
        ({"status": "end_of_input"}, "status must be one such as InputStatus.END_OF_INPUT, got 'end_of_input'"),
        ({"status": sl.InputStatus.NOTHING_AVAILABLE, "wake_at_ms": "soon"}, "wake_at_ms must be milliseconds, got 'soon'"),
        ({"status": sl.InputStatus.END_OF_INPUT, "batch": pa.table({"n": [1]})}, "batch must be a pyarrow.RecordBatch, not a Table"),
        ({"status": sl.InputStatus.END_OF_INPUT, "finished_splits": "all"}, "finished_splits must be ids of splits, got one text: 'all'"),
        ({"snapshot_splits": None}, "Reader.snapshot_splits must return a list of SourceSplit, not None"),
    ],
)  # fmt: skip
def test_a_source_is_told_what_it_must_return(answers: dict[str, Any], message: str) -> None:
    """A status that was none let the job run for ever, as did one text for the splits that have ended, and a time that
    was none ended the whole process."""
    with pytest.raises(sl.SnaplineError, match=message):
        run(OneRow(**answers), DiscardingSink())


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (ToNowhere(create_writer=None), "ToNowhere.create_writer must return a SinkWriter, not None"),
        (ToNowhere(None), "Writer.prepare_commit must return a list of Committable, not None"),
        (ToNowhere([{"n": 1}]), "Writer.prepare_commit, in its list, must return a Committable, not {'n': 1}"),
        (ToNowhere(state=None), "Writer.snapshot_state must return a list of dict, not None"),
        (ToNowhere(state={"open": 1}), "Writer.snapshot_state must return a list of dict, not {'open': 1}"),
        (ToNowhere([sl.Committable({})]), "ToNowhere.create_committer must return a Committer, not None"),
    ],
)
def test_a_sink_is_told_what_it_must_return(sink: sl.Sink, message: str) -> None:
    """Committables that nobody would commit were dropped, and of a state that was no list its keys were kept."""
    with pytest.raises(sl.SnaplineError, match=message):
        run(OneRow(), sink)


def test_splits_that_are_found_differ_from_those_that_wait() -> None:
    """What was read of a split is known by its id: of two with one id rows were read again, or lost at a restore."""
    waits, other = sl.SourceSplit("a"), sl.SourceSplit("b")

    assert [other] == splits_of((other,), OneRow(), "discover", [waits])
    with pytest.raises(sl.SnaplineError, match=r"OneRow\.discover: two splits have the id 'a'"):
        splits_of([other, waits], OneRow(), "discover", [waits])
