"""Keys that a function computes: the columns that they become, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import snapline as sl
from snapline.dataflow.graph.operator_specs import MapBatchesSpec
from snapline.dataflow.partitioning import Partitioning
from snapline.key_functions import WithKeys

BATCH = pa.RecordBatch.from_pydict({"k": [1, 2, 3], "v": ["a", "b", None]})
LIST = pa.schema([("l", pa.list_(pa.int64()))])
PAIR = pa.schema([("a", pa.int64()), ("b", pa.string())])


@pytest.fixture
def stream() -> sl.DataStream:
    """Rows with two columns, on one subtask."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    return environment.from_collection([{"k": 1, "v": "a"}]).set_parallelism(1)


def test_an_array_becomes_one_column() -> None:
    """It is called `key`, and has the type that the function gives."""
    keyed = WithKeys(lambda batch: pc.add(batch["k"], 1), None)(BATCH)
    assert {"k": [1, 2, 3], "v": ["a", "b", None], "key": [2, 3, 4]} == keyed.to_pydict()


def test_structs_become_columns_of_the_schema() -> None:
    """Their fields in order, cast to the types that were declared; a field may be null."""
    function = WithKeys(lambda b: pa.StructArray.from_arrays([pc.cast(b["k"], pa.int8()), b["v"]], ["x", "y"]), PAIR)
    keyed = function(BATCH)
    assert PAIR == keyed.select(["a", "b"]).schema
    assert {"a": [1, 2, 3], "b": ["a", "b", None]} == keyed.select(["a", "b"]).to_pydict()


@pytest.mark.parametrize(
    ("function", "schema", "said"),
    [
        (lambda b: [1, 2, 3], None, "must give a pyarrow array of keys, not list"),
        (lambda b: b["k"][:2], None, "the function gave 2 keys for 3 rows"),
        (lambda b: pa.StructArray.from_arrays([b["k"], b["v"]], ["x", "y"]), None, "a key of 2 columns"),
        (lambda b: b["k"], PAIR, "a key of 1 columns"),
        (lambda b: b["k"], pa.schema([("v", pa.int64())]), "the rows have a column 'v' already"),
        (lambda b: pa.array([None, {"x": 1}, {"x": 2}]), None, "null as a whole"),
    ],
)
def test_what_is_no_key_for_each_row_is_refused(function, schema, said) -> None:
    """In the task, in one line."""
    with pytest.raises((TypeError, ValueError)) as raised:
        WithKeys(function, schema)(BATCH)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("define", "said"),
    [
        (lambda s: s.key_by(), "key_by needs at least one column, or a function of a batch"),
        (lambda s: s.key_by("k", len), "key_by takes names of columns or one function of a batch"),
        (lambda s: s.key_by(5), "key_by takes names of columns or one function of a batch"),
        (lambda s: s.key_by("k", schema=PAIR), "schema= is for keys that a function computes"),
        (lambda s: s.key_by(sl.col("k"), schema=PAIR), "schema= is for keys that a function computes"),
        (lambda s: s.key_by(len, schema=pa.schema([("k", pa.int64())])), "the rows have a column 'k' already"),
        (lambda s: s.key_by(len, schema=LIST), "key_by: column 'l': a value of type list<item: int64> cannot be"),
        (
            lambda s: s.map_batches(len, schema=LIST).key_by("l"),
            "key_by: column 'l': a value of type list<item: int64>",
        ),
        (lambda s: s.key_by(len, schema=["k"]), "schema= names the key columns as a pyarrow schema, got ['k']"),
    ],
)
def test_what_is_no_key_is_refused_while_the_job_is_built(stream, define, said) -> None:
    """Before anything runs."""
    with pytest.raises(sl.JobDefinitionError) as raised:
        define(stream)
    assert said in str(raised.value)


def test_the_function_runs_before_the_exchange_at_the_parallelism_of_its_input(stream) -> None:
    """So that rows of a key keep their order, and the exchange, as ever, goes by columns."""
    result = stream.key_by(lambda b: b["k"], schema=pa.schema([("of", pa.int64())])).running_aggregate(n=sl.count())
    (edge,) = stream.environment.graph.nodes[result.edges[0].source].inputs
    adding = stream.environment.graph.nodes[edge.source]
    assert (Partitioning.HASH, ("of",)) == (edge.partitioning, edge.key_columns)
    assert isinstance(adding.spec, MapBatchesSpec) and adding.spec.output_schema is not None
    assert (1, ("k", "v", "of")) == (adding.parallelism, tuple(adding.spec.output_schema.names))


def test_streams_of_a_union_get_their_keys_one_by_one(stream) -> None:
    """Each is read at its own parallelism."""
    union = stream.union(stream.map_batches(lambda b: b, schema=stream.schema).set_parallelism(3))
    keyed = union.key_by(lambda b: b["k"])
    nodes = [stream.environment.graph.nodes[edge.source] for edge in keyed.stream.edges]
    assert [1, 3] == [node.parallelism for node in nodes]
