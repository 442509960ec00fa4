"""The end of a stream: the operators that a sink is made of, and what can be set of them.

Decides the shape behind `sink_to`: one operator that writes and commits, or, for a sink whose subtasks commit together,
writers and one committer behind them. The edge to the committer is one on which barriers stay behind the rows, so that
all that was pre-committed for a checkpoint has come when its barrier does. Mirrors Flink's
SinkTransformationTranslator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import COMMITTABLES, GlobalCommitterSpec, SinkSpec, SinkWriterSpec

if TYPE_CHECKING:
    from snapline.dataflow.api.connector_api import Sink
    from snapline.stream import DataStream

COMMITTER_SUFFIX = "-committer"


@dataclass(frozen=True)
class DataStreamSink:
    """The end of a stream; what can be set of its operator is set here.

    >>> end = orders.sink_to(sl_connectors.DiscardingSink())
    >>> end.uid("nowhere").name("forget").set_parallelism(1).stream.node.name
    'forget'
    >>> end.committer is None
    True
    """

    stream: DataStream
    committer: DataStream | None = None
    """The operator that commits what all subtasks of `stream` wrote, if the sink commits together."""

    def uid(self, uid: str) -> DataStreamSink:
        """Name under which the sink's state is found again."""
        self.stream.uid(uid)
        if self.committer is not None:
            self.committer.uid(uid + COMMITTER_SUFFIX)
        return self

    def name(self, name: str) -> DataStreamSink:
        """Set the name that people see."""
        self.stream.name(name)
        if self.committer is not None:
            self.committer.name(f"{name}: Committer")
        return self

    def set_parallelism(self, parallelism: int) -> DataStreamSink:
        """Set the number of subtasks of the sink that write."""
        self.stream.set_parallelism(parallelism)
        return self


def end_in_sink(stream: DataStream, sink: Sink, uid: str, name: str) -> DataStreamSink:
    """Append the operators of a sink."""
    written = sink.before_writing(stream)
    keys = getattr(written, "key_columns", ())
    rows = written.stream if keys else written
    _require_stream(rows, sink, "before_writing")
    if not sink.commits_together:
        two_phase = sink.two_phase
        end = rows.add_operator(
            name, SinkSpec(sink), uid, stateful=two_phase, commits=two_phase, schema=None, key_columns=keys
        )
        return DataStreamSink(end)
    writer = rows.add_operator(name, SinkWriterSpec(sink), uid, stateful=True, schema=COMMITTABLES, key_columns=keys)
    between = sink.before_committing(writer)
    _require_stream(between, sink, "before_committing")
    committer_uid = uid and uid + COMMITTER_SUFFIX
    committer = (
        between.rescale()
        .add_operator(
            f"{name}: Committer", GlobalCommitterSpec(sink), committer_uid, stateful=True, commits=True, schema=None
        )
        .set_parallelism(1)
        .set_max_parallelism(1)
    )
    return DataStreamSink(writer, committer)


def _require_stream(stream: object, sink: Sink, method: str) -> None:
    if not hasattr(stream, "add_operator"):
        raise JobDefinitionError(f"{type(sink).__name__}.{method} must return a stream, not {type(stream).__name__}")
