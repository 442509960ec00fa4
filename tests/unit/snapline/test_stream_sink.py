"""The operators behind `sink_to`, for sinks that commit together."""

from __future__ import annotations

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors.builtin.collection import CollectionSource
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import COMMITTABLES
from snapline.dataflow.partitioning import Partitioning


class Together(sl.Sink):
    """Has one committer."""

    commits_together = True

    def create_writer(self, context, restored):
        raise AssertionError

    def create_global_committer(self, context):
        raise AssertionError


class Shuffled(Together):
    """Rows meet by key before they are written, and committables are looked at afterwards."""

    def before_writing(self, stream):
        return stream.key_by("k")

    def before_committing(self, committables):
        return committables.map_batches(lambda batch: batch, uid="seen", schema=COMMITTABLES)


class Broken(Together):
    """Forgets to return the stream."""

    def before_committing(self, committables):
        return None


def graph_of(environment):
    return environment.translate("j").job_graph


@pytest.fixture
def rows():
    environment = sl.StreamExecutionEnvironment.get_execution_environment().set_parallelism(3)
    return environment.from_source(CollectionSource.of_rows([{"k": 1}]), uid="rows")


def test_one_committer_stands_behind_the_writers(rows):
    """It has one subtask for good, and a uid that follows from the sink's, also when that is set later."""
    end = rows.sink_to(Together()).uid("table").name("Table").set_parallelism(2)
    job_graph = graph_of(rows.environment)

    writer, committer = job_graph.vertices[-2:]
    assert [operator.uid for vertex in (writer, committer) for operator in vertex.operators][-2:] == [
        "table",
        "table-committer",
    ]
    assert (writer.parallelism, committer.parallelism, committer.max_parallelism) == (2, 1, 1)
    assert job_graph.edges[-1].partitioning is Partitioning.RESCALE
    assert end.committer.node.name == "Table: Committer"


def test_a_sink_may_have_a_topology_before_its_writers_and_before_its_committer(rows):
    """The first brings rows together, the second sees what is about to be committed."""
    rows.sink_to(Shuffled(), uid="table")
    nodes = rows.environment.graph.nodes
    assert [node.uid for node in nodes] == ["rows", "table", "seen", "table-committer"]
    assert (nodes[1].inputs[0].partitioning, nodes[1].inputs[0].key_columns) == (Partitioning.HASH, ("k",))


def test_a_sink_that_returns_no_stream_is_refused(rows):
    """The line names the method."""
    with pytest.raises(JobDefinitionError, match=r"Broken\.before_committing must return a stream, not NoneType"):
        rows.sink_to(Broken(), uid="table")
    assert pa.types.is_int64(COMMITTABLES.field("checkpoint_id").type)
