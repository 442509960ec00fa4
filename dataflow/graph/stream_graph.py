"""The graph as the user wrote it: one node per operator, before chaining.

Decides nothing but consistency of what is added: names, uids, parallelism, inputs.
`snapline.dataflow.graph.translation` turns it into a JobGraph. Mirrors Flink's StreamGraph, StreamNode, StreamEdge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from snapline.dataflow.api.async_methods import refuse_async_methods
from snapline.dataflow.api.connector_api import Source, SourceSplit
from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.columnar.column_types import workable_schema
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import OperatorSpec, SourceSpec, SplitEnumeratorSpec
from snapline.dataflow.partitioning import Partitioning


@dataclass(frozen=True, slots=True)
class StreamEdge:
    """An input of a node."""

    source: int
    """Id of the node that the edge comes from."""
    partitioning: Partitioning | None = None
    """None: forward when the parallelism is equal, else rebalance."""
    key_columns: tuple[str, ...] = ()
    side_output_tag: str = ""
    target_input: int = 0


@dataclass(slots=True)
class StreamNode:
    """One operator. Mutable until the graph is translated: `uid`, `name` and `parallelism` are set by chained calls."""

    node_id: int
    name: str
    spec: OperatorSpec
    inputs: tuple[StreamEdge, ...]
    parallelism: int | None
    stateful: bool = False
    commits: bool = False
    uid: str = ""
    max_parallelism: int | None = None
    slot_sharing_group: str = ""
    """Empty: the one of its inputs, if these are in one and the same; else `default`."""
    chainable: bool = True
    starts_new_chain: bool = False
    key_fields: tuple[pa.Field, ...] = ()
    """The key columns of the node's keyed state, where the schema of its input is known."""

    @property
    def is_source(self) -> bool:
        """Whether the node has no inputs."""
        return not self.inputs


@dataclass(slots=True)
class StreamGraph:
    """Nodes in the order of their creation, which is topological."""

    nodes: list[StreamNode] = field(default_factory=list)
    generated_uids: dict[int, str] = field(default_factory=dict)
    """In a part of a graph: what was generated in the whole, where more nodes may have one name and input."""

    def add(
        self,
        name: str,
        spec: OperatorSpec,
        inputs: tuple[StreamEdge, ...] = (),
        *,
        parallelism: int | None = None,
        stateful: bool = False,
        commits: bool = False,
    ) -> StreamNode:
        """Append a node; the columns that it says are those of inside. Raises JobDefinitionError when an input does not
        exist, for methods that are async where nothing awaits them, and for a function with half of what state
        takes."""
        for part in ("function", "predicate", "source", "sink"):
            refuse_async_methods(getattr(spec, part, None), f"operator {name!r}: ", JobDefinitionError)
        for part in ("function", "predicate"):
            _refuse_half_of_state(getattr(spec, part, None), name)
        declared = getattr(spec, "output_schema", None)
        if declared is not None and (inside := workable_schema(declared)) is not declared:
            spec = replace(spec, output_schema=inside)
        for edge in inputs:
            if not 0 <= edge.source < len(self.nodes):
                raise JobDefinitionError(f"operator {name!r} reads from a stream of another environment")
        node = StreamNode(len(self.nodes), name, spec, inputs, parallelism, stateful, commits)
        self.nodes.append(node)
        return node


def _refuse_half_of_state(function: object, name: str) -> None:
    """Raise JobDefinitionError for a function of which nothing would be kept, because it lacks one of two methods."""
    for has, lacks in (("snapshot_state", "initialize_state"), ("initialize_state", "snapshot_state")):
        if hasattr(function, has) and not hasattr(function, lacks):
            raise JobDefinitionError(
                f"operator {name!r}: {type(function).__name__} has {has} and no {lacks}, so that neither is called: state takes both"
            )


def order_splits(splits: Sequence[SourceSplit], strategy: WatermarkStrategy | None) -> tuple[SourceSplit, ...]:
    """The splits in the order of their least event time, where all have one: read so over all subtasks, what waits
    holds the watermark back as little as it can."""
    if strategy is None or not all(strategy.column in split.least_times_ms for split in splits):
        return tuple(splits)
    return tuple(sorted(splits, key=lambda split: split.least_times_ms[strategy.column]))


def add_fed_source(
    graph: StreamGraph, label: str, source: Source, splits: Sequence[SourceSplit], strategy: WatermarkStrategy | None
) -> StreamNode:
    """Append the enumerator of a source, one task, and its readers, which ask it for splits. Returns the readers."""
    column = strategy.column if strategy is not None and strategy.per_split else ""
    spec = SplitEnumeratorSpec(source, tuple(splits), column)
    enumerator = graph.add(f"{label}: splits", spec, parallelism=1, stateful=True)
    enumerator.max_parallelism = 1
    edge = StreamEdge(enumerator.node_id, Partitioning.DEMAND)
    return graph.add(label, SourceSpec(source, tuple(splits), strategy, is_fed=True), (edge,), stateful=True)
