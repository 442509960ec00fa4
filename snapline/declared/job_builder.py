"""From a declared job to its operators, by the same methods that a program in Python calls.

Decides what each kind of declaration calls, and which of the operators that come of it runs in a task. Building is a
function of the declaration alone, so that the coordinator, which needs the graph, and each task, which needs one of its
operators, come to the same one. What is wrong is one line that names the operator by its uid.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import snapline as sl
from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.config import Configuration, check_key
from snapline.dataflow.errors import ConnectorError, InvalidArgument, JobDefinitionError
from snapline.dataflow.graph.declared_payload import LoadingRules, encode_payload
from snapline.dataflow.graph.jobgraph import JobGraph, SavepointRestoreSettings
from snapline.dataflow.graph.operator_specs import OperatorSpec
from snapline.dataflow.graph.stream_graph import StreamEdge, add_fed_source
from snapline.dataflow.graph.translation import translate
from snapline.dataflow.ids import JobID
from snapline.declared.declared_values import decode_expression, decode_options, decode_schema
from snapline.declared.named_parts import PartMaker
from snapline.environment import StreamExecutionEnvironment
from snapline.expressions import Expr
from snapline.protos import declared_pb2 as pb
from snapline.stream import DataStream
from snapline.stream_sink import end_in_sink

MOST_OPERATORS = 1_000
LARGEST_JOB_BYTES = 1 << 20
AGGREGATES = frozenset(
    """count sum min max mean count_distinct approx_count_distinct quantile median approx_quantile first last top_n
    collect_list""".split()
)
TAKEN_NAMES = frozenset({"self", "uid", "name", "passthrough"})
"""Names that a column of results cannot have, because they are arguments of the methods that aggregate."""
CALLED = ("map_batches", "map", "flat_map", "filter_rows")
"""Methods of a stream that take a function which is called; the others take an object with methods."""
KEYED_METHODS = ("process", "process_batches")


def translate_declared(job: pb.DeclaredJob, rules: LoadingRules) -> JobGraph:
    """The graph of the job, as the coordinator runs it; no module of a user is loaded. Raises JobDefinitionError with
    one line for whatever cannot be, or may not be named."""
    _check_size(job)
    environment = _build(job, PartMaker(rules, loads_modules=False))
    positions = {id(node.spec): node.node_id for node in environment.graph.nodes}
    restore = job.savepoint_restore
    return translate(
        environment.graph,
        job_id=JobID(job.job_id or uuid.uuid4().hex),
        name=job.name or "declared job",
        configuration=environment.explicit,
        savepoint_restore=SavepointRestoreSettings(restore.path, restore.allow_non_restored_state, restore.claim),
        pickle=lambda spec: encode_payload(job, positions[id(spec)]),
    ).job_graph


def build_spec(job: pb.DeclaredJob, node_id: int, rules: LoadingRules) -> OperatorSpec:
    """The specification of one operator, in a task; modules that the job names are loaded, as far as they may be."""
    return _build(job, PartMaker(rules, loads_modules=True)).graph.nodes[node_id].spec


def _check_size(job: pb.DeclaredJob) -> None:
    if len(job.operators) > MOST_OPERATORS:
        raise JobDefinitionError(
            f"job {job.name!r} declares {len(job.operators)} operators, and at most {MOST_OPERATORS} can be"
        )
    if (size := job.ByteSize()) > LARGEST_JOB_BYTES:
        raise JobDefinitionError(
            f"job {job.name!r} is declared in {size} bytes, and at most {LARGEST_JOB_BYTES} can be"
        )


def _build(job: pb.DeclaredJob, parts: PartMaker) -> StreamExecutionEnvironment:
    for key in job.configuration:
        check_key(key)
    environment = StreamExecutionEnvironment(Configuration(dict(job.configuration)))
    streams: dict[str, DataStream | None] = {}
    for operator in job.operators:
        if not operator.uid:
            raise JobDefinitionError(
                f"operator {len(streams)} of job {job.name!r} has no uid: its state is found by it"
            )
        try:
            if operator.uid in streams:
                raise JobDefinitionError("its uid is used twice")
            inputs = [_input(streams, uid) for uid in operator.inputs]
            streams[operator.uid] = _add(environment, operator, inputs, parts)
        except (JobDefinitionError, ConnectorError, InvalidArgument) as error:
            raise JobDefinitionError(f"declared operator {operator.uid!r}: {error}") from error
    return environment


def _input(streams: Mapping[str, DataStream | None], uid: str) -> DataStream:
    if uid not in streams:
        raise JobDefinitionError(f"its input {uid!r} does not stand before it")
    stream = streams[uid]
    if stream is None:
        raise JobDefinitionError(f"its input {uid!r} is a sink, which has no rows")
    return stream


def _add(
    environment: StreamExecutionEnvironment, operator: pb.DeclaredOperator, inputs: list[DataStream], parts: PartMaker
) -> DataStream | None:
    """Append the operator; returns its rows, or None for a sink."""
    kind = operator.WhichOneof("operator")
    _check_inputs(kind, len(inputs))
    uid = operator.uid
    stream: DataStream
    match kind:
        case "source":
            stream = _add_source(environment, operator, parts)
        case "sink":
            end = end_in_sink(inputs[0], parts.make_sink(operator.sink), uid, operator.sink.name)
            if operator.parallelism:
                end.set_parallelism(operator.parallelism)
            return None
        case "select":
            stream = inputs[0].select(*_columns(operator.select))
        case "with_columns":
            stream = inputs[0].with_columns(*_columns(operator.with_columns))
        case "filter":
            stream = inputs[0].filter(decode_expression(operator.filter))
        case "aggregate":
            stream = _aggregate(inputs[0], operator.aggregate, uid)
        case "join":
            stream = _join(inputs[0], inputs[1], operator.join, uid)
        case "union":
            return inputs[0].union(*inputs[1:])
        case "function":
            stream = _call_function(inputs[0], operator.function, uid, parts)
        case "external":
            external = _add_external(environment, operator, inputs)
            if external is None:
                return None
            stream = external
        case "watermarks":
            stream = inputs[0].assign_timestamps_and_watermarks(_strategy(operator.watermarks))
    stream = stream.uid(uid)
    return stream.set_parallelism(operator.parallelism) if operator.parallelism else stream


def _check_inputs(kind: str | None, count: int) -> None:
    """Raise JobDefinitionError when an operator of this kind does not read so many others."""
    if kind is None:
        raise JobDefinitionError("it says neither source, sink nor what else it is")
    least, most = {"source": (0, 0), "external": (0, 1), "join": (2, 2), "union": (2, MOST_OPERATORS)}.get(kind, (1, 1))
    if not least <= count <= most:
        wanted = f"{least}" if least == most else f"at least {least}" if most > 1 else f"at most {most}"
        label = "n external task" if kind == "external" else f" {kind}"
        raise JobDefinitionError(f"a{label} reads {wanted} other operators, and {count} are named")


def _add_source(environment: StreamExecutionEnvironment, operator: pb.DeclaredOperator, parts: PartMaker) -> DataStream:
    declared = operator.source
    columns = decode_schema(declared.columns)
    if not len(columns):
        raise JobDefinitionError("a source says the columns of its rows")
    strategy = _strategy(declared.watermarks) if declared.HasField("watermarks") else None
    label = declared.connector.name
    node = add_fed_source(environment.graph, label, parts.make_source(declared, columns), (), strategy)
    stream = DataStream(environment, (StreamEdge(node.node_id),), columns)
    if strategy is None:
        return stream
    stream.check_event_time(strategy.column, f"watermarks of {label!r}")
    return replace(stream, event_time_column=strategy.column)


def _add_external(
    environment: StreamExecutionEnvironment, operator: pb.DeclaredOperator, inputs: list[DataStream]
) -> DataStream | None:
    """Append the external task, whose shape follows from what it reads and puts out; returns its rows, or None for a
    sink."""
    declared, uid = operator.external, operator.uid
    columns, keys = decode_schema(declared.columns), tuple(declared.key_columns)
    if keys and not (inputs and len(columns)):
        raise JobDefinitionError("an external source or sink has no key columns")
    if not inputs:
        if not len(columns):
            raise JobDefinitionError("an external source says the columns of its rows")
        return environment.from_external(declared.task, columns, uid=uid)
    if len(columns):
        stream = inputs[0]
        return (stream.key_by(*keys) if keys else stream).via_external(declared.task, columns, uid=uid)
    end = inputs[0].to_external(declared.task, uid=uid)
    if operator.parallelism:
        end.set_parallelism(operator.parallelism)
    return None


def _strategy(declared: pb.DeclaredWatermarks) -> WatermarkStrategy:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(declared.column, declared.max_out_of_orderness_ms)
    return strategy.with_idleness(declared.idle_timeout_ms) if declared.idle_timeout_ms else strategy


def _columns(declared: pb.DeclaredColumns) -> list[Expr]:
    expressions = [(column.name, decode_expression(column.expression)) for column in declared.columns]
    return [expression.alias(name) if name else expression for name, expression in expressions]


def _window(declared: pb.DeclaredWindow) -> Any:
    kinds = pb.DeclaredWindow
    size, slide, offset = declared.size_ms, declared.slide_ms, declared.offset_ms
    match declared.kind:
        case kinds.KIND_TUMBLING_EVENT_TIME:
            return sl.TumblingEventTimeWindows(size, offset)
        case kinds.KIND_SLIDING_EVENT_TIME:
            return sl.SlidingEventTimeWindows(size, slide, offset)
        case kinds.KIND_SESSION_EVENT_TIME:
            return sl.EventTimeSessionWindows(size)
        case kinds.KIND_TUMBLING_PROCESSING_TIME:
            return sl.TumblingProcessingTimeWindows(size, offset)
        case kinds.KIND_SLIDING_PROCESSING_TIME:
            return sl.SlidingProcessingTimeWindows(size, slide, offset)
        case kinds.KIND_SESSION_PROCESSING_TIME:
            return sl.ProcessingTimeSessionWindows(size)
    raise JobDefinitionError(f"there is no kind {declared.kind} of windows")


def _aggregate(stream: DataStream, declared: pb.DeclaredAggregation, uid: str) -> DataStream:
    aggregates: dict[str, Any] = {}
    for one in declared.aggregates:
        if one.function not in AGGREGATES:
            raise JobDefinitionError(f"{one.function!r} is no aggregate; there are {', '.join(sorted(AGGREGATES))}")
        if not one.name or one.name in aggregates or one.name in TAKEN_NAMES:
            raise JobDefinitionError(f"{one.name!r} is no name for the column of an aggregate, or is taken")
        options = decode_options(one.options, _no_object)
        try:
            aggregates[one.name] = getattr(sl, one.function)(*([one.column] if one.column else []), **options)
        except TypeError as error:
            raise JobDefinitionError(f"aggregate {one.name!r}: {error}") from error
    keyed = stream.key_by(*declared.key_columns)
    if not declared.HasField("window"):
        return keyed.running_aggregate(uid=uid, passthrough=list(declared.passthrough), **aggregates)
    windowed = keyed.window(_window(declared.window)).allowed_lateness(declared.allowed_lateness_ms)
    return windowed.aggregate(uid=uid, **aggregates)


def _no_object(connector: pb.DeclaredConnector) -> object:
    raise JobDefinitionError(f"{connector.name!r} is an object, and an aggregate takes numbers, texts and columns")


def _join(left: DataStream, right: DataStream, declared: pb.DeclaredJoin, uid: str) -> DataStream:
    how = declared.how or "inner"
    both = left.key_by(*declared.left_key_columns).join(right.key_by(*declared.right_key_columns))
    within = declared.WhichOneof("within")
    if within == "window":
        return both.window(_window(declared.window), how=how, uid=uid)
    if within == "as_of":
        return both.as_of(how=how, uid=uid)
    if how != "inner":
        raise JobDefinitionError(f"a join without windows is inner, not {how!r}")
    if within == "interval":
        return both.between(declared.interval.lower_ms, declared.interval.upper_ms, uid=uid)
    return both.unbounded(uid=uid)


def _call_function(stream: DataStream, declared: pb.DeclaredFunction, uid: str, parts: PartMaker) -> DataStream:
    method = declared.method
    keys = list(declared.key_columns)
    allowed = KEYED_METHODS if keys else (*CALLED, "process")
    if method not in allowed:
        raise JobDefinitionError(f"{method!r} is no method that takes a function here; there are {', '.join(allowed)}")
    function = parts.make_function(declared, is_called=method in CALLED)
    if not keys and hasattr(function, "snapshot_state"):
        raise JobDefinitionError(f"{declared.name!r} has state of an operator; give it key columns and keyed state")
    if method == "filter_rows":
        return stream.filter_rows(function)
    schema = decode_schema(declared.columns)
    if not len(schema):
        raise JobDefinitionError("a function says the columns of its result")
    return getattr(stream.key_by(*keys) if keys else stream, method)(function, uid=uid, schema=schema)
