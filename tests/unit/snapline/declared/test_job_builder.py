"""A declared job has the graph of the program that says the same, and nothing in it is a pickle."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
import snapline.connectors as sl_connectors
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.declared_payload import load_payload, translate_declared
from snapline.dataflow.graph.jobgraph import DECLARED, JobGraph
from snapline.dataflow.graph.operator_specs import (
    FilterSpec,
    KeyedProcessSpec,
    MapBatchesSpec,
    SinkSpec,
    SourceSpec,
    SplitEnumeratorSpec,
    WindowAggregateSpec,
)
from snapline.dataflow.wire.codec import decode_job_graph, encode_job_graph
from snapline.declared.job_builder import LARGEST_JOB_BYTES, MOST_OPERATORS
from tests.unit.snapline.declared.declared_jobs import call, job, operator, sink, source

MINUTES = {
    "keyColumns": ["shop"],
    "aggregates": [{"name": "n", "function": "count"}, {"name": "cents", "function": "sum", "column": "cents"}],
    "window": {"kind": "KIND_TUMBLING_EVENT_TIME", "sizeMs": 60_000},
}


class Seen(sl.KeyedProcessFunction):
    """Counts the rows of a shop."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def process_element(self, row: sl.Row, context: Any) -> Any:
        yield {"shop": context.current_key, "n": self.first}


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Hand on what comes."""
    return batch


def shape(graph: JobGraph) -> list[Any]:
    """All that the coordinator decides by, but ids that are drawn."""
    vertices = [
        (
            v.parallelism,
            v.max_parallelism,
            [(o.uid, o.stateful, o.commits, o.is_source, o.chained_input) for o in v.operators],
        )
        for v in graph.vertices
    ]
    names = {v.vertex_id: v.operators[0].uid for v in graph.vertices}
    return [*vertices, *((names[e.source], names[e.target], e.partitioning, e.key_columns) for e in graph.edges)]


def test_it_is_the_graph_of_the_same_program() -> None:
    """Vertices, chains, uids, keys and partitioning; only the first source differs, whose splits a task finds."""
    declared = job(
        {"uid": "orders", "source": {"connector": {"name": "GeneratorSource"},
         "columns": [{"name": "key", "type": "uint64"}, {"name": "value", "type": "uint64"}]}},
        operator("paid", "orders", filter=call(">", "$value", 10)),
        operator("gross", "paid", withColumns={"columns": [{"name": "gross", "expression": call("*", "$value", 1.19)}]}),
        operator("sums", "gross", aggregate={"keyColumns": ["key"], "aggregates": [{"name": "n", "function": "count"}]}),
        sink("sums"),
        configuration={"parallelism.default": "3", "execution.checkpointing.interval": "1 s"},
    )  # fmt: skip

    env = sl.StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(3).enable_checkpointing(1_000)
    orders = env.from_source(sl_connectors.HybridSource(sl.GeneratorSource(rows=9), sl.GeneratorSource()), uid="orders")
    gross = orders.filter(sl.col("value") > 10, uid="paid").with_columns(gross=sl.col("value") * 1.19).uid("gross")
    sums = gross.key_by("key").running_aggregate(uid="sums", n=sl.count())
    sums.sink_to(sl_connectors.DiscardingSink(), uid="out")
    assert shape(env.translate("declared").job_graph) == shape(translate_declared(declared))


def test_programs_outside_are_source_operator_and_sink() -> None:
    """What an external task is follows from what it reads and puts out, and it has the graph of the same program."""
    numbers, totals = (
        [{"name": name, "type": "int64"} for name in names] for names in (("key", "n"), ("key", "total"))
    )
    declared = job(
        operator("numbers", external={"task": "numbers", "columns": numbers}, parallelism=2),
        operator("totals", "numbers", external={"task": "sums", "columns": totals, "keyColumns": ["key"]}),
        operator("files", "totals", external={"task": "files"}, parallelism=1),
        configuration={"parallelism.default": "3"},
    )

    env = sl.StreamExecutionEnvironment.get_execution_environment().set_parallelism(3)
    first = pa.schema([("key", pa.int64()), ("n", pa.int64())])
    second = pa.schema([("key", pa.int64()), ("total", pa.int64())])
    rows = env.from_external("numbers", first, uid="numbers").set_parallelism(2)
    rows.key_by("key").via_external("sums", second, uid="totals").to_external("files", uid="files").set_parallelism(1)
    graph = translate_declared(declared)

    def tasks(graph: JobGraph) -> list[str]:
        return [o.external_task for vertex in graph.vertices for o in vertex.operators]

    expected = env.translate("declared").job_graph
    assert shape(expected) == shape(graph)
    assert ["numbers", "sums", "files"] == tasks(expected) == tasks(graph)
    specs = [load_payload(o.payload) for vertex in graph.vertices for o in vertex.operators]
    assert ["source", "operator", "sink"] == [spec.shape for spec in specs]
    assert ("key",) == specs[1].key_columns


def test_every_payload_is_a_declaration_that_a_task_builds() -> None:
    """From the wire's bytes to the specification that runs."""
    declared = job(
        source(paths={"stringValue": "/orders/*.json"}, format={"object": {"name": "JsonFormat", "options": {"schema": {
            "columns": {"fields": [{"name": "shop", "type": "string"}]}}}}}),
        operator("paid", "orders", filter=call(">", "$cents", 0)),
        operator("minutes", "paid", aggregate=MINUTES),
        sink("minutes", "FileSink", path={"stringValue": "/minutes"}, partition_by={"list": {"values": [{"stringValue": "shop"}]}}),
    )  # fmt: skip

    graph = decode_job_graph(encode_job_graph(translate_declared(declared)))
    specs = [load_payload(operator.payload) for vertex in graph.vertices for operator in vertex.operators]

    assert all(o.payload.startswith(DECLARED) for vertex in graph.vertices for o in vertex.operators)
    assert () == sum((vertex.pickled_operators for vertex in graph.vertices), ())
    assert [SplitEnumeratorSpec, SourceSpec, FilterSpec, WindowAggregateSpec, SinkSpec] == [
        type(spec) for spec in specs
    ]
    assert specs[1].is_fed
    assert ("shop",) == specs[4].sink.partition_by
    assert [pa.field("shop", pa.string())] == list(specs[1].source._source.format.schema)


def test_functions_are_found_by_their_names_in_tasks_only() -> None:
    """The coordinator loads no module of a user; a task makes classes with their arguments."""
    here = __name__
    declared = job(
        source(),
        operator("doubled", "orders", function={"method": "map_batches", "name": f"{here}:doubled", "columns": [
            {"name": "shop", "type": "string"}]}),
        operator("seen", "doubled", function={"method": "process", "name": f"{here}:Seen", "keyColumns": ["shop"],
            "arguments": {"first": {"intValue": 7}}, "columns": [{"name": "n", "type": "int64"}]}),
        sink("seen"),
    )  # fmt: skip

    unknown = job(
        source(),
        operator("x", "orders", function={"method": "map", "name": "no_such_module:f", "columns": [
            {"name": "n", "type": "int64"}]}),
        sink("x"),
    )  # fmt: skip
    payloads = [o.payload for vertex in translate_declared(declared).vertices for o in vertex.operators]
    specs = [load_payload(payload) for payload in payloads]
    called, keyed = (next(s for s in specs if isinstance(s, kind)) for kind in (MapBatchesSpec, KeyedProcessSpec))
    assert called.function is doubled
    assert isinstance(keyed.function, Seen)
    assert 7 == keyed.function.first
    lost = [o.payload for vertex in translate_declared(unknown).vertices for o in vertex.operators]
    with pytest.raises(JobDefinitionError) as raised:
        load_payload(lost[-1])
    assert (
        "declared operator 'x': 'no_such_module:f': the TaskManager has no module 'no_such_module': install it there, or start them "
        "with --py-files"
    ) == str(raised.value)


def test_joins_and_unions() -> None:
    """Each kind of join, and a union, which adds no operator."""
    keys = {"leftKeyColumns": ["shop"], "rightKeyColumns": ["shop"]}
    declared = job(
        source("a"),
        source("b"),
        operator("both", "a", "b", union={}),
        operator("all", "both", "b", join=keys),
        operator("near", "a", "b", join={**keys, "interval": {"lowerMs": -5, "upperMs": 5}}),
        operator("latest", "a", "b", join={**keys, "how": "left", "asOf": {}}),
        operator("minutes", "a", "b", join={**keys, "how": "full", "window": MINUTES["window"]}),
        *({**sink(uid), "uid": f"out-{uid}"} for uid in ("all", "near", "latest", "minutes")),
    )

    uids = {operator.uid for vertex in translate_declared(declared).vertices for operator in vertex.operators}
    assert {"all", "near", "latest", "minutes"} <= uids
    assert "both" not in uids


@pytest.mark.parametrize(
    ("line", "operators"),
    [
        ("operator 0 of job 'declared' has no uid: its state is found by it", [operator("")]),
        ("declared operator 'a': it says neither source, sink nor what else it is", [operator("a")]),
        ("declared operator 'orders': its uid is used twice", [source(), source()]),
        ("declared operator 'f': its input 'orders' does not stand before it", [operator("f", "orders", filter=call("is_null", "$a"))]),
        ("declared operator 'f': its input 'out' is a sink, which has no rows",
         [source(), sink("orders"), operator("f", "out", filter=call("is_null", "$shop"))]),
        ("declared operator 'f': a filter reads 1 other operators, and 0 are named", [operator("f", filter=call("is_null", "$a"))]),
        ("declared operator 'j': a join reads 2 other operators, and 1 are named", [source(), operator("j", "orders", join={})]),
        (("declared operator 'orders': 'FilesSource' is no name of snapline.connectors; did you mean 'FileSource'?; a class of your own "
         "is said as 'module:Class'"), [source(name="FilesSource")]),
        ("declared operator 'orders': 'FileSink' is no source", [source(name="FileSink", path={"stringValue": "/x"})]),
        ("declared operator 'orders': FileSource: FileSource.__init__() got an unexpected keyword argument 'path'",
         [source(path={"stringValue": "/x"})]),
        ("declared operator 'm': 'total' is no aggregate; there are approx_count_distinct",
         [source(), operator("m", "orders", aggregate={"keyColumns": ["shop"], "aggregates": [{"name": "x", "function": "total"}]})]),
        ("declared operator 'm': 'uid' is no name for the column of an aggregate, or is taken",
         [source(), operator("m", "orders", aggregate={"keyColumns": ["shop"], "aggregates": [{"name": "uid", "function": "count"}]})]),
        ("declared operator 'm': 'self' is no name for the column of an aggregate, or is taken",
         [source(), operator("m", "orders", aggregate={"keyColumns": ["shop"], "aggregates": [{"name": "self", "function": "count"}]})]),
        ("declared operator 'm': there is no kind 0 of windows",
         [source(), operator("m", "orders", aggregate={"keyColumns": ["shop"], "window": {}, "aggregates": [{"name": "n", "function": "count"}]})]),
        ("declared operator 'e': an external source says the columns of its rows", [operator("e", external={"task": "e"})]),
        ("declared operator 'e': external task '': give it a name, under which its programs register",
         [source(), operator("e", "orders", external={})]),
        ("declared operator 'e': an external source or sink has no key columns",
         [source(), operator("e", "orders", external={"task": "e", "keyColumns": ["shop"]})]),
        ("declared operator 'e': an external task reads at most 1 other operators, and 2 are named",
         [source("a"), source("b"), operator("e", "a", "b", external={"task": "e"})]),
        ("declared operator 'x': 'delete' is no method that takes a function here; there are map_batches, map, flat_map",
         [source(), operator("x", "orders", function={"method": "delete", "name": "a:b"})]),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_said(line: str, operators: list[dict[str, Any]]) -> None:
    """One line that names the operator by its uid."""
    with pytest.raises(JobDefinitionError) as raised:
        translate_declared(job(*operators))

    assert str(raised.value).startswith(line)


def test_a_column_that_is_not_there_is_named_with_the_nearest() -> None:
    """Declared columns are known through the whole job, as in a program."""
    with pytest.raises(JobDefinitionError, match=r"declared operator 'f': .*'cent'.*cents"):
        translate_declared(job(source(), operator("f", "orders", filter=call(">", "$cent", 0))))


def test_a_declaration_has_bounds() -> None:
    """It is in the payload of each of its operators."""
    with pytest.raises(JobDefinitionError, match=f"1001 operators, and at most {MOST_OPERATORS} can be"):
        translate_declared(job(*(source(str(number)) for number in range(1_001))))
    with pytest.raises(JobDefinitionError, match=f"bytes, and at most {LARGEST_JOB_BYTES} can be"):
        translate_declared(job(source(paths={"stringValue": "x" * LARGEST_JOB_BYTES})))


def test_an_unknown_setting_is_refused() -> None:
    """As in a program, with the nearest one."""
    with pytest.raises(sl.ConfigurationError, match=r"parallelism\.default"):
        translate_declared(job(source(), sink("orders"), configuration={"paralelism.default": "2"}))
