"""A user's job made ready for the simulator: sources are scripted, sinks of Snapline's are checked, the rest is as
it is.

Decides what can be simulated, and says why if something cannot.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeAlias

import pyarrow as pa

from snapline.dataflow.api.connector_api import InputStatus, Sink, Source
from snapline.dataflow.api.two_phase_commit import TwoPhaseCommitSinkFunction
from snapline.dataflow.api.user_metrics import MetricGroup
from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.columnar.python_values import misspelled, table_in_arrow, table_of
from snapline.dataflow.config import CHECKPOINTING_MODE
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.graph.operator_specs import (
    AsyncSpec,
    GlobalCommitterSpec,
    SinkFunctionSpec,
    SinkSpec,
    SinkWriterSpec,
    SourceFunctionSpec,
    SourceSpec,
)
from snapline.dataflow.graph.stream_graph import StreamNode
from snapline.dataflow.ids import JobID, JobVertexID, operator_id_of
from snapline.environment import StreamExecutionEnvironment
from snapline.stream import DataStream
from snapline.testing.simulated.scripted_input import SimulatedInput
from snapline.testing.simulated.watched_connectors import WatchedSink, WatchedSource
from snapline.testing.simulated.watched_sinks import CheckedSink

Build = Callable[[StreamExecutionEnvironment], object]
Input: TypeAlias = "pa.Table | pa.RecordBatch | Iterable[Any]"
MOST_ROWS = 10_000
"""The most rows of one input: a simulated run is for short data, and is made hundreds of times."""
MOST_EMPTY_POLLS = 1_000
JOB = JobID("5".rjust(32, "0"))
SETTINGS = {
    "execution.checkpointing.interval": "50 ms",
    "execution.checkpointing.dir": "/checkpoints",
    "execution.checkpointing.savepoint-dir": "/savepoints",
    "execution.checkpointing.timeout": "2 s",
    "execution.checkpointing.tolerable-failed-checkpoints": "-1",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000000",
    "restart-strategy.fixed-delay.delay": "10 ms",
    "task.cancellation.interval": "500 ms",
    "task.cancellation.timeout": "5 s",
    "slot.request.timeout": "10 min",
}
"""What the simulator decides about a job, whatever the program says."""


class SimulationError(SnaplineError):
    """A job that cannot be simulated, and why.

    >>> raise sl_testing.SimulationError("source 'orders' has no end: give inputs={'orders': [...]}")
    Traceback (most recent call last):
    snapline.testing.simulated.user_job.SimulationError: source 'orders' has no end: give inputs={'orders': [...]}
    """


@dataclass(frozen=True)
class OperatorInfo:
    """One operator of the job, for stories."""

    uid: str
    name: str
    inputs: tuple[str, ...]
    spec: Any

    @property
    def is_sink(self) -> bool:
        """Whether rows end here; the committer of a sink that commits together follows it."""
        return isinstance(self.spec, (SinkSpec, SinkWriterSpec, SinkFunctionSpec))


@dataclass(frozen=True)
class UserJob:
    """A job, ready to be run by the simulator."""

    graph: JobGraph
    operators: tuple[OperatorInfo, ...]
    """The operators of the job, sources first."""
    kept_parallelism: frozenset[JobVertexID]
    """Vertices whose parallelism the program has set itself."""

    @property
    def that_pass_committables(self) -> frozenset[str]:
        """Return the operators whose output are no rows of the job: writers of sinks that commit together, and what
        follows them."""
        found: set[str] = set()
        for operator in self.operators:
            if isinstance(operator.spec, SinkWriterSpec) or found.intersection(operator.inputs):
                found.add(operator.uid)
        return frozenset(found)

    @property
    def uid_of_payload(self) -> dict[bytes, str]:
        """Return which operator a pickled specification belongs to."""
        return {o.payload: o.uid for vertex in self.graph.vertices for o in vertex.operators}


class SimulatedEnvironment(StreamExecutionEnvironment):
    """Where a job is built that is simulated: nothing is asked whose place another takes."""

    inputs: Mapping[str, Input] = MappingProxyType({})

    def from_source(
        self,
        source: Source,
        watermark_strategy: WatermarkStrategy | None = None,
        *,
        uid: str = "",
        name: str = "",
    ) -> DataStream:
        """Read the rows that were given for it; a source without any is asked for its own."""
        if uid in self.inputs and isinstance(source, Source):
            name, source = name or type(source).__name__, _scripted(uid, self.inputs[uid], source.schema())
        return super().from_source(source, watermark_strategy, uid=uid, name=name)

    def validate_sink(self, sink: Sink) -> None:
        """Ask a user's own sink alone."""
        if not _comes_with_snapline(sink):
            super().validate_sink(sink)


def prepare_job(
    build: Build,
    inputs: Mapping[str, Input],
    parallelism: int,
    settings: Mapping[str, Any],
    outputs: Collection[str],
) -> UserJob:
    """Build the job and put scripted sources and checked sinks into it. Raises SimulationError, and what a job that
    cannot run raises."""
    if not callable(build):
        raise SimulationError(f"simulate({build!r}): the first argument is a function that takes the environment")
    environment = SimulatedEnvironment.get_execution_environment(settings)
    environment.inputs = inputs
    environment.set_parallelism(parallelism)
    build(environment)
    nodes = environment.graph.nodes
    if not nodes:
        raise SimulationError("build(env) has added nothing to the environment that it was given")
    if environment.configuration.get_option(CHECKPOINTING_MODE) != "EXACTLY_ONCE":
        raise SimulationError(
            "the job asks for AT_LEAST_ONCE, so rows may come twice: simulate compares the output of exactly-once jobs; "
            "set execution.checkpointing.mode to EXACTLY_ONCE for the simulation"
        )
    if environment.savepoint_restore.path:
        raise SimulationError("the job starts from a savepoint, which a simulated cluster has not: leave it out")
    _name_all(nodes)
    _check_names(nodes, inputs)
    for node in nodes:
        _prepare_source(node, inputs)
        _prepare_sink(node, outputs)
        _prepare_common_sink(node, outputs)
        _refuse_lookup(node)
    for key, value in SETTINGS.items():
        environment.configure(key, value)
    operators = tuple(
        OperatorInfo(node.uid, node.name, tuple(nodes[edge.source].uid for edge in node.inputs), node.spec)
        for node in nodes
    )
    set_by_program = {operator_id_of(node.uid) for node in nodes if node.parallelism is not None}
    graph = _translated(environment)
    kept = frozenset(
        vertex.vertex_id
        for vertex in graph.vertices
        if any(operator.operator_id in set_by_program for operator in vertex.operators)
    )
    return UserJob(graph, operators, kept)


def _name_all(nodes: Sequence[StreamNode]) -> None:
    """An operator without a uid is called by its name in stories."""
    taken = {node.uid for node in nodes if node.uid}
    for node in nodes:
        if not node.uid:
            names = (node.name if number == 1 else f"{node.name} {number}" for number in itertools.count(1))
            node.uid = next(name for name in names if name not in taken)
            taken.add(node.uid)


def _translated(environment: StreamExecutionEnvironment) -> JobGraph:
    graph = environment.translate("simulated", JOB).job_graph
    vertices = tuple(
        replace(
            vertex,
            operators=tuple(
                # What follows the end of a pickle is ignored: so no two operators have one payload.
                replace(operator, payload=operator.payload + operator.uid.encode())
                for operator in vertex.operators
            ),
        )
        for vertex in graph.vertices
    )
    return replace(graph, vertices=vertices)


def _check_names(nodes: Sequence[StreamNode], inputs: Mapping[str, Input]) -> None:
    sources = [node.uid for node in nodes if isinstance(node.spec, (SourceSpec, SourceFunctionSpec))]
    for uid in inputs:
        if uid not in sources:
            near = get_close_matches(str(uid), sources, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            known = ", ".join(repr(one) for one in sources) or "none"
            raise SimulationError(f"inputs[{uid!r}]: the job has no source with this uid, only {known}{meant}")


# --- sources ----------------------------------------------------------------------------------------------------------


def _prepare_source(node: StreamNode, inputs: Mapping[str, Input]) -> None:
    spec = node.spec
    if isinstance(spec, SourceSpec) and isinstance(spec.source, SimulatedInput):
        return
    if isinstance(spec, SourceFunctionSpec) and node.uid in inputs:
        script = _scripted(node.uid, inputs[node.uid], None)
        node.spec = SourceSpec(script, tuple(script.enumerate_splits()), spec.watermark_strategy)
        node.stateful = True
    elif isinstance(spec, SourceSpec):
        if node.uid in inputs:
            source: Source = _scripted(node.uid, inputs[node.uid], spec.source.schema())
        elif isinstance(spec.source, WatchedSource):
            return  # its end, if it has none, is up to who tests it
        elif not spec.source.bounded:
            raise SimulationError(
                f"source {node.uid!r} ({type(spec.source).__name__}) has no end, and a simulated run has one: "
                f"give its rows, inputs={{{node.uid!r}: [...]}}"
            )
        elif _comes_with_snapline(spec.source):
            source = _recorded(node.uid, spec)
        else:
            return  # the user's own, which is simulated with the job
        node.spec = replace(spec, source=source, splits=tuple(source.enumerate_splits()))


def _scripted(uid: str, given: Any, schema: pa.Schema | None) -> SimulatedInput:
    """A source of what the user gives: rows, batches or a table; or a list of such, one for each split."""
    if isinstance(given, pa.RecordBatch) or _is_table(given):
        parts: list[Any] = [given]
    elif isinstance(given, (Mapping, str, bytes)) or not isinstance(given, Iterable):
        raise SimulationError(f"inputs[{uid!r}]: give a list of rows, batches or a table, not a {type(given).__name__}")
    else:
        taken = list(itertools.islice(given, MOST_ROWS + 1))
        is_nested = bool(taken) and all(isinstance(part, (list, tuple)) or _is_table(part) for part in taken)
        parts = taken if is_nested else [taken]
    tables = [_table(uid, part, schema) for part in parts]
    known = schema if schema is not None else next((table.schema for table in tables if table.num_columns), None)
    if known is None:
        raise SimulationError(f"inputs[{uid!r}] has no rows, so nobody knows its columns: give a table with a schema")
    rows = sum(table.num_rows for table in tables)
    if rows > MOST_ROWS:
        raise SimulationError(
            f"inputs[{uid!r}] gives more than {MOST_ROWS} rows: a simulated run is for short data, give a list of some"
        )
    return SimulatedInput([table if table.num_columns else known.empty_table() for table in tables], known)


def _is_table(part: object) -> bool:
    """A table that Arrow can read, of pyarrow, Polars or pandas."""
    return hasattr(part, "__arrow_c_stream__") and not isinstance(part, pa.RecordBatch)


def _table(uid: str, part: Any, schema: pa.Schema | None) -> pa.Table:
    try:
        if isinstance(part, pa.RecordBatch) or _is_table(part):
            table = table_in_arrow(part)
        elif all(isinstance(item, pa.RecordBatch) for item in part):
            table = pa.Table.from_batches(part) if part else pa.table({})
        else:
            rows = [dict(row) for row in part]
            if schema is None:
                return pa.Table.from_pylist(rows)
            if found := misspelled(rows, schema.names):
                raise SimulationError(f"inputs[{uid!r}]: row {found[0]} {found[1]}")
            return table_of(rows, schema)
        return table if schema is None or not table.num_columns else table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError, KeyError) as error:
        columns = f" (its columns: {', '.join(schema.names)})" if schema is not None else ""
        raise SimulationError(
            f"inputs[{uid!r}] does not fit the source{columns}: {str(error).splitlines()[0]}"
        ) from error


def _recorded(uid: str, spec: SourceSpec) -> Source:
    """What a bounded source of Snapline's reads, as a script; a split stays a split."""
    source, now_ms, empty = spec.source, 0, 0
    if spec.is_fed:
        raise SimulationError(
            f"source {uid!r} ({type(source).__name__}) looks for its input while the job runs, which a simulated run has not: "
            f"give its rows, inputs={{{uid!r}: [...]}}"
        )
    batches: dict[str, list[pa.RecordBatch]] = {split.split_id: [] for split in spec.splits}
    context: Any = SimpleNamespace(
        subtask_index=0,
        parallelism=1,
        attempt_number=0,
        job_id=JOB,
        operator_uid=uid,
        execution_attempt="script",
        metrics=MetricGroup(uid),
    )
    reader = source.create_reader(context)
    schema = source.schema()
    try:
        reader.add_splits(spec.splits)
        while (polled := reader.poll_next(now_ms)).status is not InputStatus.END_OF_INPUT or polled.batch is not None:
            empty = 0 if polled.batch is not None else empty + 1
            now_ms = max(now_ms + 1, polled.wake_at_ms or 0)
            if polled.batch is not None:
                batches.setdefault(polled.split_id, []).append(polled.batch)
                schema = schema if schema is not None else polled.batch.schema
            rows = sum(batch.num_rows for read in batches.values() for batch in read)
            if rows > MOST_ROWS or empty > MOST_EMPTY_POLLS:
                what = f"has more than {MOST_ROWS} rows" if rows > MOST_ROWS else "waits for something"
                raise SimulationError(
                    f"source {uid!r} ({type(source).__name__}) {what}: give inputs={{{uid!r}: [...]}}"
                )
    finally:
        reader.close()
    if schema is None:
        raise SimulationError(f"source {uid!r} has no rows, so nobody knows its columns: give inputs={{{uid!r}: ...}}")
    tables = [pa.Table.from_batches(read, schema) for read in batches.values()]
    return SimulatedInput(tables, schema)


def _refuse_lookup(node: StreamNode) -> None:
    spec = node.spec
    if isinstance(spec, AsyncSpec) and _comes_with_snapline(spec.function):
        raise SimulationError(
            f"operator {node.uid!r} ({type(spec.function).__name__}) asks a server, and a simulated run has none: let build "
            "take the function as an argument, and give one here that answers from memory"
        )


# --- sinks ------------------------------------------------------------------------------------------------------------


def _prepare_sink(node: StreamNode, outputs: Collection[str]) -> None:
    spec = node.spec
    if isinstance(spec, SinkSpec):
        if _comes_with_snapline(spec.sink):
            node.spec, node.commits, node.stateful = SinkSpec(CheckedSink(node.uid)), True, True
    elif isinstance(spec, SinkFunctionSpec):
        function = spec.function
        if _comes_with_snapline(function):
            node.spec, node.commits, node.stateful = SinkSpec(CheckedSink(node.uid)), True, True
        elif (
            not isinstance(function, TwoPhaseCommitSinkFunction)
            and hasattr(function, "snapshot_state")
            and node.uid not in outputs
        ):
            raise SimulationError(
                f"sink {node.uid!r} ({type(function).__name__}) keeps rows of its own, so only its target says what it has "
                f"written: give outputs={{{node.uid!r}: a function that returns the rows that are there}}"
            )


def _prepare_common_sink(node: StreamNode, outputs: Collection[str]) -> None:
    """One whose subtasks commit together, which is two operators."""
    spec = node.spec
    if not isinstance(spec, (SinkWriterSpec, GlobalCommitterSpec)):
        return
    if _comes_with_snapline(spec.sink):
        node.spec = replace(spec, sink=CheckedSink(node.uid, commits_together=True))
    elif (
        isinstance(spec, SinkWriterSpec)
        and not isinstance(spec.sink, WatchedSink)
        and type(spec.sink).before_committing is not Sink.before_committing
        and node.uid not in outputs
    ):
        raise SimulationError(
            f"sink {node.uid!r} ({type(spec.sink).__name__}) changes what was pre-committed, so only its target says what "
            f"it has written: give outputs={{{node.uid!r}: a function that returns the rows that are there}}"
        )


def _comes_with_snapline(connector: object) -> bool:
    """Whether the connector is one of Snapline's, and not one under test."""
    is_watched = isinstance(connector, (WatchedSource, WatchedSink))
    return type(connector).__module__.startswith("snapline.") and not is_watched


def is_own_sink(spec: Any) -> bool:
    """Whether a specification is that of a sink of the user's."""
    if isinstance(spec, (SinkSpec, SinkWriterSpec, GlobalCommitterSpec)):
        return isinstance(spec.sink, Sink) and not isinstance(spec.sink, (CheckedSink, WatchedSink))
    return isinstance(spec, SinkFunctionSpec)
