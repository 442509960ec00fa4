"""From the user's StreamGraph to a JobGraph: defaults, uids, chaining, pickling.

Two nodes are chained when the edge between them is forward with equal parallelism, the downstream node has that one
input only, both are in one slot sharing group, and neither forbids it; as in Flink's StreamingJobGraphGenerator, but
that a chain is at most MAX_CHAINED deep, because its operators call each other on one stack, which Python bounds. A
node's uid is the user's, or derived from its name and position. An operator with state must have one of the user's when
checkpoints are on: a derived uid changes when the graph does, and then its state would silently be dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from snapline.dataflow.api.master_hooks import functions_with_hooks
from snapline.dataflow.api.state import pickled_with_serializers
from snapline.dataflow.api.two_phase_commit import TwoPhaseCommitSinkFunction
from snapline.dataflow.api.windows import RowsBy, SlidingEventTimeWindows, TumblingEventTimeWindows
from snapline.dataflow.config import (
    AUTO_GENERATE_UIDS,
    CHECKPOINTING_INTERVAL,
    MAX_PARALLELISM,
    OPERATOR_CHAINING,
    PARALLELISM_DEFAULT,
    Configuration,
)
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.generated_uids import GeneratedUids, warning_of
from snapline.dataflow.graph.jobgraph import (
    DEFAULT_GROUP,
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorNode,
    SavepointRestoreSettings,
)
from snapline.dataflow.graph.operator_specs import (
    CombinerSpec,
    CoProcessSpec,
    CustomOperatorSpec,
    ExternalSpec,
    GlobalCommitterSpec,
    KeyedBatchProcessSpec,
    KeyedProcessSpec,
    SinkFunctionSpec,
    SinkSpec,
    SinkWriterSpec,
    SourceSpec,
    SplitEnumeratorSpec,
    WindowProcessSpec,
    columns_read,
    works_row_by_row,
)
from snapline.dataflow.graph.stream_graph import StreamEdge, StreamGraph, StreamNode
from snapline.dataflow.ids import JobID, JobVertexID, OperatorID, operator_id_of
from snapline.dataflow.key_groups import UPPER_BOUND_MAX_PARALLELISM, compute_default_max_parallelism
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.declared_states import declared_schema, declared_states

NO_RESTORE = SavepointRestoreSettings()
_WITHOUT_OUTPUT = (SinkSpec, SinkFunctionSpec, SinkWriterSpec, GlobalCommitterSpec, CustomOperatorSpec)
"""Operators that put out nothing, or of which only their author knows whether they do."""
MAX_CHAINED = 100
"""Operators of a chain behind each other: each has about four calls on the stack, of the 1,000 that Python allows."""


@dataclass(frozen=True, slots=True)
class Translation:
    """The JobGraph, and what the user should know about it."""

    job_graph: JobGraph
    warnings: tuple[str, ...]
    configuration: Configuration
    """What the job was translated with, secrets included: for this process, and never sent."""


@dataclass(slots=True)
class _Resolved:
    """A node with everything decided but its place in a chain."""

    node: StreamNode
    uid: str
    uid_given: bool
    operator_id: OperatorID
    parallelism: int
    inputs: tuple[tuple[StreamEdge, Partitioning], ...]
    slot_sharing_group: str


def translate(
    graph: StreamGraph,
    *,
    job_id: JobID,
    name: str,
    configuration: Configuration,
    savepoint_restore: SavepointRestoreSettings = NO_RESTORE,
    pickle: Callable[[object], bytes] = pickled_with_serializers,
) -> Translation:
    """Build the JobGraph. Raises JobDefinitionError that names the operator."""
    _check_printable("a job's name", name)
    if not graph.nodes:
        raise JobDefinitionError(f"job {name!r} has no operators: add a source with env.from_source(...)")
    resolved, without_uid = _resolve(graph, configuration)
    of_uids = (warning_of(without_uid),) if without_uid else ()
    warnings = (*of_uids, *_warnings_of_unread(graph), *_warnings_of_uncommitted(graph, configuration))
    chain_of = _chain(resolved, configuration)
    chains: dict[int, list[int]] = {}
    for node_id, head in chain_of.items():
        chains.setdefault(head, []).append(node_id)
    vertex_ids = {head: JobVertexID(str(resolved[head].operator_id)) for head in chains}
    vertices = tuple(
        _vertex(vertex_ids[head], [resolved[i] for i in members], configuration, pickle)
        for head, members in chains.items()
    )
    edges: list[JobEdge] = []
    for item in resolved:
        target_head = chain_of[item.node.node_id]
        for position, (edge, partitioning) in enumerate(item.inputs):
            if chain_of[edge.source] == target_head:
                continue
            edges.append(
                JobEdge(
                    edge_id=f"{resolved[edge.source].operator_id}-{item.operator_id}-{position}",
                    source=vertex_ids[chain_of[edge.source]],
                    source_operator=resolved[edge.source].operator_id,
                    target=vertex_ids[target_head],
                    target_input=edge.target_input,
                    partitioning=partitioning,
                    key_columns=edge.key_columns,
                    side_output_tag=edge.side_output_tag,
                    combiner=_combiner(item, partitioning, pickle),
                    row_wise=works_row_by_row(resolved[i].node.spec for i in chains[target_head]),
                    columns=columns_read(item.node.spec) if partitioning is Partitioning.HASH else (),
                )
            )
    job_graph = JobGraph(
        job_id=job_id,
        name=name,
        vertices=vertices,
        edges=tuple(edges),
        configuration=dict(configuration),
        configuration_origins=dict(configuration.origins),
        savepoint_restore=savepoint_restore,
        master_hooks=tuple(
            _pickle(item.uid, function, "the coordinator", pickle)
            for item in resolved
            for function in functions_with_hooks(item.node.spec)
        ),
        staged_directories=tuple(
            item.node.spec.source.staged_directory
            for item in resolved
            if isinstance(item.node.spec, SourceSpec) and item.node.spec.source.staged_directory
        ),
    )
    return Translation(job_graph.without_secrets(), warnings, configuration)


def _combiner(item: _Resolved, partitioning: Partitioning, pickle: Callable[[object], bytes]) -> bytes:
    """What keeps rows back that an operator would drop; empty for one that wants to see all rows."""
    spec = item.node.spec
    if (
        not isinstance(spec, WindowProcessSpec)
        or not isinstance(spec.function, RowsBy)
        or not isinstance(spec.assigner, (TumblingEventTimeWindows, SlidingEventTimeWindows))
        or spec.early_trigger is not None
        or spec.late_output_tag  # a window may be ahead of its edge, where that was idle, or has just been restored
        or partitioning is not Partitioning.HASH
    ):
        return b""
    combiner = CombinerSpec(spec.key_columns, spec.event_time_column, spec.assigner, spec.function)
    return _pickle(item.uid, combiner, "TaskManagers", pickle)


def _warnings_of_unread(graph: StreamGraph) -> Iterator[str]:
    """Warn of operators whose output nobody reads, which is most often a sink that was forgotten."""
    read = {edge.source for node in graph.nodes for edge in node.inputs}
    unread = [
        repr(node.name)
        for node in graph.nodes
        if node.node_id not in read and not isinstance(node.spec, _WITHOUT_OUTPUT) and not _is_external_sink(node.spec)
    ]
    if unread:
        yield (
            f"nothing reads what {', '.join(unread)} puts out: it goes nowhere. End the stream with sink_to(...), print() "
            "or execute_and_collect(), or with sink_to(snapline.connectors.DiscardingSink()) where that is meant"
        )


def _warnings_of_uncommitted(graph: StreamGraph, configuration: Configuration) -> Iterator[str]:
    """Warn of sinks of which nobody would ever see a row: their input has no end, and there are no checkpoints."""
    endless, waiting = set[int](), list[str]()
    for node in graph.nodes:
        spec = node.spec
        never_ends = isinstance(spec, SourceSpec) and not spec.source.bounded
        if never_ends or any(edge.source in endless for edge in node.inputs):
            endless.add(node.node_id)
            is_function = isinstance(spec, SinkFunctionSpec) and isinstance(spec.function, TwoPhaseCommitSinkFunction)
            if is_function or isinstance(spec, SinkWriterSpec) or (isinstance(spec, SinkSpec) and spec.sink.two_phase):
                waiting.append(repr(node.uid or node.name))
    if waiting and configuration.get_option(CHECKPOINTING_INTERVAL) <= 0:
        yield (
            f"nobody sees what {', '.join(waiting)} writes before the job is stopped with a savepoint: rows become visible with "
            f"checkpoints, and there are none. Set {CHECKPOINTING_INTERVAL.key}, or env.enable_checkpointing(10_000)"
        )


def _is_external_sink(spec: object) -> bool:
    return isinstance(spec, ExternalSpec) and spec.shape == "sink"


def uids_of(graph: StreamGraph) -> list[str]:
    """The uid of each node, given or generated. An enumerator goes with its readers."""
    generated = GeneratedUids()
    uids: list[str] = []
    readers = {
        edge.source: node for node in graph.nodes for edge in node.inputs if edge.partitioning is Partitioning.DEMAND
    }
    for node in graph.nodes:
        if (reader := readers.get(node.node_id)) is not None:
            node.uid = f"{reader.uid}-splits" if reader.uid else ""
            node.slot_sharing_group = reader.slot_sharing_group
        _check_printable("an operator's name", node.name)
        _check_printable(f"operator {node.name!r}: a uid", node.uid if node.uid is not None else "")
        known = node.uid or graph.generated_uids.get(node.node_id)
        uids.append(known or generated.draw(node.name, [uids[edge.source] for edge in node.inputs]))
    return uids


def _resolve(graph: StreamGraph, configuration: Configuration) -> tuple[list[_Resolved], list[tuple[str, str]]]:
    default_parallelism = configuration.get_option(PARALLELISM_DEFAULT)
    checkpointing = configuration.get_option(CHECKPOINTING_INTERVAL) > 0
    resolved: list[_Resolved] = []
    uids: dict[str, str] = {}
    tasks: dict[str, str] = {}
    without_uid: list[tuple[str, str]] = []
    for node, uid in zip(graph.nodes, uids_of(graph), strict=True):
        parallelism = node.parallelism or default_parallelism
        if parallelism < 1:
            raise JobDefinitionError(f"operator {node.name!r}: parallelism must be at least 1, got {parallelism}")
        inputs = []
        for edge in node.inputs:
            partitioning = edge.partitioning
            equal = resolved[edge.source].parallelism == parallelism
            if partitioning is None:
                partitioning = Partitioning.FORWARD if equal else Partitioning.REBALANCE
            if partitioning is Partitioning.FORWARD and not equal:
                raise JobDefinitionError(
                    f"operator {node.name!r} (parallelism {parallelism}) cannot be a forward consumer of "
                    f"{resolved[edge.source].node.name!r} (parallelism {resolved[edge.source].parallelism}): "
                    "use rebalance(), or give both the same parallelism"
                )
            inputs.append((edge, partitioning))
        if node.stateful and not node.uid:
            if checkpointing and not configuration.get_option(AUTO_GENERATE_UIDS):
                has_other_half = isinstance(node.spec, (SplitEnumeratorSpec, SinkWriterSpec))  # whose uid would change
                kept_as = "" if has_other_half else f"; a snapshot that has it already has it as uid={uid!r}"
                raise JobDefinitionError(
                    f"operator {node.name!r} keeps state but has no uid, so its state could not be found again after a "
                    f"change of the job: add uid='...' to it ({AUTO_GENERATE_UIDS.key} is false){kept_as}"
                )
            without_uid.append((node.name, uid))
        if uid in uids:
            raise JobDefinitionError(
                f"uid {uid!r} is used twice, by {uids[uid]!r} and {node.name!r}: uids must be unique"
            )
        uids[uid] = node.name
        if isinstance(node.spec, ExternalSpec):
            if node.spec.task in tasks:
                raise JobDefinitionError(
                    f"external task {node.spec.task!r} is used twice, by {tasks[node.spec.task]!r} and {node.name!r}: "
                    "programs could not tell them apart"
                )
            tasks[node.spec.task] = node.name
        group = node.slot_sharing_group or _inherited_group([resolved[edge.source] for edge in node.inputs])
        resolved.append(_Resolved(node, uid, bool(node.uid), operator_id_of(uid), parallelism, tuple(inputs), group))
    return resolved, without_uid


def _inherited_group(inputs: Sequence[_Resolved]) -> str:
    """The slot sharing group of an operator that was given none, as in Flink's `StreamGraphGenerator`."""
    groups = {item.slot_sharing_group for item in inputs}
    return groups.pop() if len(groups) == 1 else DEFAULT_GROUP


def _check_printable(what: str, text: object) -> None:
    if not isinstance(text, str) or not text.isprintable():
        raise JobDefinitionError(f"{what} is text that can be printed, got {text!r:.100}")


def _chain(resolved: Sequence[_Resolved], configuration: Configuration) -> dict[int, int]:
    """Node id to the id of the head of its chain."""
    chaining = configuration.get_option(OPERATOR_CHAINING)
    head_of: dict[int, int] = {}
    depths: dict[int, int] = {}
    maxima: dict[int, int | None] = {}  # what one operator of a chain was given, by its head, holds for all of it
    for item in resolved:
        node = item.node
        head, depth = node.node_id, 1
        if chaining and len(item.inputs) == 1 and node.chainable and not node.starts_new_chain:
            edge, partitioning = item.inputs[0]
            upstream = resolved[edge.source].node
            shares_slots = resolved[edge.source].slot_sharing_group == item.slot_sharing_group
            if (
                partitioning is Partitioning.FORWARD
                and upstream.chainable
                and shares_slots
                and upstream.max_parallelism in (None, node.max_parallelism)
                and (node.max_parallelism is None or maxima[head_of[edge.source]] in (None, node.max_parallelism))
                and depths[edge.source] < MAX_CHAINED
            ):
                head, depth = head_of[edge.source], depths[edge.source] + 1
        head_of[node.node_id], depths[node.node_id] = head, depth
        maxima[head] = node.max_parallelism or maxima.get(head)
    return head_of


def _vertex(
    vertex_id: JobVertexID,
    members: Sequence[_Resolved],
    configuration: Configuration,
    pickle: Callable[[object], bytes],
) -> JobVertex:
    position = {item.node.node_id: index for index, item in enumerate(members)}
    operators = []
    for index, item in enumerate(members):
        chained = item.inputs[0][0] if index > 0 else None
        operators.append(
            OperatorNode(
                operator_id=item.operator_id,
                uid=item.uid,
                name=item.node.name,
                payload=_pickle(item.uid, item.node.spec, "the TaskManagers", pickle),
                stateful=item.node.stateful,
                is_source=item.node.is_source,
                commits=item.node.commits,
                chained_input=position[chained.source] if chained else -1,
                chained_side_output_tag=chained.side_output_tag if chained else "",
                chained_input_index=chained.target_input if chained else 0,
                uid_given=item.uid_given,
                state_schema=_state_schema(item.node),
                external_task=item.node.spec.task if isinstance(item.node.spec, ExternalSpec) else "",
            )
        )
    head = members[0]
    explicit = next((m.node.max_parallelism for m in members if m.node.max_parallelism), None)
    configured = configuration.get_option(MAX_PARALLELISM)
    if explicit is None and configured > 0:
        explicit = configured
    max_parallelism = explicit or compute_default_max_parallelism(min(head.parallelism, UPPER_BOUND_MAX_PARALLELISM))
    if not head.parallelism <= max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise JobDefinitionError(
            f"operator {head.node.name!r}: parallelism {head.parallelism} and max parallelism {max_parallelism} do not fit: "
            f"parallelism <= max parallelism <= {UPPER_BOUND_MAX_PARALLELISM}"
        )
    return JobVertex(
        vertex_id=vertex_id,
        name=" -> ".join(item.node.name for item in members),
        parallelism=head.parallelism,
        max_parallelism=max_parallelism,
        operators=tuple(operators),
        slot_sharing_group=head.slot_sharing_group,
        max_parallelism_explicit=explicit is not None,
    )


def _state_schema(node: StreamNode) -> bytes:
    """What is known of its keyed state."""
    keyed = isinstance(node.spec, (KeyedProcessSpec, KeyedBatchProcessSpec, CoProcessSpec))
    states = declared_states(node.spec.function) if keyed else ()  # type: ignore[union-attr]
    schema = declared_schema(states, node.key_fields)
    return bytes(schema.serialize()) if len(schema) else b""


def _pickle(uid: str, value: object, receiver: str, pickle: Callable[[object], bytes]) -> bytes:
    try:
        return pickle(value)
    except Exception as error:
        raise JobDefinitionError(
            f"operator {uid!r} cannot be pickled to be sent to {receiver}: {type(error).__name__}: {error}; "
            "create connections, locks and files in open(), not in the constructor or a closure"
        ) from error
