"""Two inputs into one row-wise function: both keyed over one state, or one broadcast to all subtasks of the other.

Decides under which names each input has the key (the first input's name the state's), and how broadcast state is kept:
a dictionary per descriptor, the same in all subtasks, so that any one subtask's copy restores all. A job may declare it
otherwise than its snapshot, as keyed state. A rule that comes before the first row opens the function, whose keyed
states are there once that row tells the types of the key. It does not know how state is kept. Mirrors Flink's
KeyedCoProcessOperator, CoBroadcastWithKeyedOperator and CoBroadcastWithNonKeyedOperator.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from types import MappingProxyType
from typing import Any, Self

import pyarrow as pa

from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.state import (
    SERIALIZER_METADATA,
    MapStateDescriptor,
    ValueStateDescriptor,
    register_serializer,
)
from snapline.dataflow.columnar.validated import read_batches
from snapline.dataflow.config import DROP_STATE_COLUMNS
from snapline.dataflow.errors import JobDefinitionError, StateError
from snapline.dataflow.graph.operator_specs import CoProcessSpec, KeyedProcessSpec, ProcessSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.dataflow.snapshot.state_evolution import cast_values, convert, evolution_of
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.event_time import event_times_ms
from snapline.taskmanager.operators.base.failure import failed_read
from snapline.taskmanager.operators.base.function_operator import FunctionOperator
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot, RestoredState
from snapline.taskmanager.operators.base.rows import SEQUENCES, copy_of, rows_made, rows_of
from snapline.taskmanager.operators.process.function_results import emit_result
from snapline.taskmanager.operators.process.keyed_batches import KeyedBatchesOperator
from snapline.taskmanager.operators.process.keyed_process import KeyedProcessContext, KeyedProcessOperator
from snapline.taskmanager.operators.process.process_operator import (
    ContextWithoutKeys,
    ProcessOperator,
    TimesWithoutKeys,
)
from snapline.taskmanager.state.kept_values import Keeping, keeping_of
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from snapline.taskmanager.state.keyed_state import PythonValues

BROADCAST_PREFIX = "broadcast-"
ARROW = "arrow"
_AsKept = tuple[Keeping | None, Keeping | None]


def write_batch(batch: pa.RecordBatch) -> bytes:
    """A batch as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def read_batch(data: bytes) -> pa.RecordBatch:
    """Decode a batch that was encoded for operator state."""
    return next(read_batches(data))


register_serializer(ARROW, write_batch, read_batch)


class KeyedCoProcessOperator(KeyedProcessOperator):
    """Runs a KeyedCoProcessFunction on two inputs with shared keyed state."""

    def __init__(self, spec: CoProcessSpec) -> None:
        first, second = spec.key_columns
        time, side = spec.event_time_columns[0], spec.side_schemas
        super().__init__(KeyedProcessSpec(first, spec.function, spec.output_schema, time, side))
        self._inputs = tuple(zip((first, second), spec.event_time_columns, strict=True))
        function: Any = spec.function
        self._methods = (function.process_element1, function.process_element2)

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        keys, time = self._inputs[input_index]
        self.process_rows(batch, keys, time, self._methods[input_index])


class _Rules(dict[Any, Any]):
    """A dictionary of broadcast state, which refuses what its types do not hold when it is put in: a checkpoint, which
    would find it, does not know the row that brought it. What is put in is at once what a restore would give back, and
    a key is looked for as it was put in: with a column of float32, 0.1 is found under what that rounds it to."""

    def __init__(self, pairs: dict[Any, Any], keys: PythonValues, values: PythonValues, as_kept: _AsKept) -> None:
        """`as_kept`: what makes of a key, and of a value, what a snapshot keeps of it; None: it is that."""
        super().__init__(pairs)
        self._keys, self._values = keys, values
        self._kept_key, self._kept_value = as_kept

    def _as_key(self, key: Any) -> Any:
        return key if self._kept_key is None else self._kept_key(key)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._as_key(key))

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._as_key(key))

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(self._as_key(key), default)

    def pop(self, key: Any, *default: Any) -> Any:
        return super().pop(self._as_key(key), *default)

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(self._as_key(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._keys.to_arrow([key])
        self._values.to_arrow([value])
        super().__setitem__(self._as_key(key), value if self._kept_value is None else self._kept_value(value))

    def update(self, *others: Any, **named: Any) -> None:
        for key, value in dict(*others, **named).items():
            self[key] = value

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]  # as update takes it
        self.update(other)
        return self

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]


class BroadcastStates:
    """Dictionaries by descriptor, in operator state of the mode broadcast."""

    def __init__(self, descriptors: tuple[MapStateDescriptor, ...], operator_state: Any, *, drop_columns: bool) -> None:
        """StateError for what was restored, and cannot be what the descriptors say."""
        self._descriptors = {descriptor.name: descriptor for descriptor in descriptors}
        self._operator_state = operator_state
        self._maps: dict[str, dict[Any, Any]] = {}
        for name, descriptor in self._descriptors.items():
            batches = self._list(name).get()
            pairs: dict[Any, Any] = {}
            keys, values = self._codecs(descriptor)
            for batch in batches:
                stored_keys, stored = _as_declared(batch, descriptor, drop_columns=drop_columns)
                pairs.update(zip(keys.to_python(stored_keys), values.to_python(stored), strict=True))
            kept_value = None if descriptor.serializer else keeping_of(descriptor.element_type, copies=True)
            self._maps[name] = _Rules(pairs, keys, values, (keeping_of(descriptor.key_type, copies=True), kept_value))

    def _list(self, name: str) -> Any:
        return self._operator_state.list_state(BROADCAST_PREFIX + name, OperatorStateMode.BROADCAST, ARROW)

    @staticmethod
    def _codecs(descriptor: MapStateDescriptor) -> tuple[PythonValues, PythonValues]:
        return (
            PythonValues(descriptor.name, descriptor.key_type, ""),
            PythonValues(descriptor.name, descriptor.element_type, descriptor.serializer),
        )

    def get(self, descriptor: MapStateDescriptor) -> dict[Any, Any]:
        """The dictionary. StateError for a descriptor that the stream was not broadcast with, and for what is none."""
        if not isinstance(descriptor, MapStateDescriptor):
            raise StateError(
                f"broadcast state is asked for by its MapStateDescriptor, not by {descriptor!r}: give one of those that the "
                f"stream was broadcast with ({', '.join(self._maps)})"
            )
        found = self._maps.get(descriptor.name)
        if found is None:
            raise StateError(
                f"broadcast state {descriptor.name!r} is not one of those the stream was broadcast with "
                f"({', '.join(self._maps)}): add its descriptor to broadcast_state(...)"
            )
        return found

    def freeze(self) -> None:
        """Write all into the operator state."""
        for name, descriptor in self._descriptors.items():
            pairs = self._maps[name]
            keys, values = self._codecs(descriptor)
            columns = [keys.to_arrow(list(pairs)), values.to_arrow(list(pairs.values()))]
            written = {SERIALIZER_METADATA: descriptor.serializer.encode()}
            fields = [pa.field("key", columns[0].type), pa.field("value", columns[1].type, metadata=written)]
            self._list(name).update([pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))])


def _as_declared(
    batch: pa.RecordBatch, declared: MapStateDescriptor, *, drop_columns: bool
) -> tuple[pa.Array, pa.Array]:
    """Keys and values of a snapshot as the job declares them now."""
    keys, values = batch.columns
    said = (batch.schema.field(1).metadata or {}).get(SERIALIZER_METADATA)
    if said is None and values.type == declared.element_type:  # snapshots of before do not say it
        said = declared.serializer.encode()
    serializer = (said or b"").decode()
    written = MapStateDescriptor(declared.name, keys.type, None if serializer else values.type, serializer)
    problems = evolution_of(written, declared, drop_columns=drop_columns).problems
    if problems:
        raise StateError(f"broadcast state {declared.name!r}: {'; '.join(problems)}")
    was, now = (
        ValueStateDescriptor(one.name, one.value_type, one.serializer, migrate=one.migrate)
        for one in (written, declared)
    )
    return cast_values(keys, declared.key_type), convert(values, was, now, 0)


class _BroadcastContext(KeyedProcessContext):
    """With broadcast state that can only be read."""

    states: BroadcastStates

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> Any:
        """Return the broadcast state, which can only be read here."""
        return MappingProxyType(self.states.get(descriptor))


class _TimesOfRules(TimesWithoutKeys):
    """The times of the task in `process_broadcast_element`."""

    def refusal(self) -> StateError:
        return StateError("process_broadcast_element has no timers: register them in process_element")


class _RulesContext:
    """The context of `process_broadcast_element`, which may change broadcast state."""

    time_domain = None

    def __init__(self, states: BroadcastStates, times: _TimesOfRules, batch: pa.RecordBatch, time_column: str) -> None:
        self.timer_service = times
        self.side_rows: dict[str, list[Row]] = {}
        self.position = 0
        """Where the row is in its batch."""
        self._states = states
        self._batch, self._time_column = batch, time_column
        self._times: list[int] | None = None

    @property
    def timestamp_ms(self) -> int | None:
        """Event time of the row, where rules have it; read when it is asked for, since rules may have none."""
        if not self._time_column:
            return None
        if self._times is None:
            self._times = event_times_ms(self._batch, self._time_column).tolist()
        return self._times[self.position]

    @property
    def current_key(self) -> Any:
        raise StateError("process_broadcast_element has no current key: its rows reach all subtasks")

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> MutableMapping[Any, Any]:
        """To read and to change."""
        return self._states.get(descriptor)

    def output(self, tag: str, row: Row) -> None:
        self.side_rows.setdefault(tag, []).append(copy_of(row))


def _call_with_rules(function: Any, context: _RulesContext, batch: pa.RecordBatch) -> list[Row]:
    """What the function gives for the rules of a batch."""
    rows = rows_of(batch)
    results: list[Row] = []
    iterator: Iterator[Row] = iter(rows)
    try:
        for context.position, row in enumerate(iterator):
            produced = function.process_broadcast_element(row, context)
            if produced is not None:
                results.extend(produced if type(produced) in SEQUENCES else rows_made(produced))
    except Exception as error:
        raise failed_read(rows, iterator, error) from error
    return results


class KeyedBroadcastProcessOperator(KeyedProcessOperator):
    """KeyedBroadcastProcessFunction; input 1 is the broadcast one."""

    def __init__(self, spec: CoProcessSpec) -> None:
        super().__init__(
            KeyedProcessSpec(
                spec.key_columns[0],
                spec.function,
                spec.output_schema,
                spec.event_time_columns[0],
                spec.side_schemas,
            )
        )
        self._descriptors = spec.broadcast or ()
        self._rules_time_column = spec.event_time_columns[1]
        self._times_of_rules = _TimesOfRules(self)
        self._states: BroadcastStates | None = None

    def initialize_state(self, restored: RestoredState) -> None:
        super().initialize_state(restored)
        self._states = BroadcastStates(
            self._descriptors, self.operator_state, drop_columns=self.setting(DROP_STATE_COLUMNS)
        )

    def _open_function(self, backend: KeyedStateBackend) -> None:
        super()._open_function(backend)
        service = check(self._service, "there is no service, although it was just made")
        states = check(self._states, "there is no states, although it was just made")
        context = _BroadcastContext(backend, service)
        context.states = states
        self._context = context

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if input_index == 0:
            super().process_batch(batch)
            return
        self.open_before_keys()
        states = check(self._states, "there is no states, although initialize_state made it")
        context = _RulesContext(states, self._times_of_rules, batch, self._rules_time_column)
        self._emit(_call_with_rules(self.function, context, batch), context.side_rows)

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        states = check(self._states, "there is no states, although initialize_state made it")
        states.freeze()
        return super().snapshot_state(checkpoint_id, timestamp_ms)


class _ReadingContext(ContextWithoutKeys):
    """The context of rows without keys, with broadcast state that can only be read."""

    def __init__(self, operator: BroadcastProcessOperator) -> None:
        super().__init__(operator)
        self.states: BroadcastStates | None = None

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> Any:
        """Return the broadcast state, which can only be read here."""
        states = check(self.states, "there is no states, although initialize_state made it")
        return MappingProxyType(states.get(descriptor))


class BroadcastProcessOperator(ProcessOperator):
    """BroadcastProcessFunction; input 1 is the broadcast one."""

    def __init__(self, spec: CoProcessSpec) -> None:
        function, times = spec.function, spec.event_time_columns
        super().__init__(ProcessSpec(function, spec.output_schema, times[0], side_schemas=spec.side_schemas))
        self._descriptors = spec.broadcast or ()
        self._rules_time_column = times[1]
        self._times_of_rules = _TimesOfRules(self)
        self._reading = self._call = _ReadingContext(self)

    def initialize_state(self, restored: RestoredState) -> None:
        super().initialize_state(restored)
        drops = DROP_STATE_COLUMNS.read(
            self.context.configuration.get(DROP_STATE_COLUMNS.key, DROP_STATE_COLUMNS.default)
        )
        self._reading.states = BroadcastStates(self._descriptors, self.operator_state, drop_columns=drops)

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if input_index == 0:
            super().process_batch(batch)
            return
        states = check(self._reading.states, "there is no states, although initialize_state made it")
        context = _RulesContext(states, self._times_of_rules, batch, self._rules_time_column)
        self.emit(_call_with_rules(self.function, context, batch), context.side_rows)

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        states = check(self._reading.states, "there is no states, although initialize_state made it")
        states.freeze()
        return super().snapshot_state(checkpoint_id, timestamp_ms)


class CoProcessOperator(FunctionOperator):
    """CoProcessFunction: two inputs without keys, batch by batch."""

    def __init__(self, spec: CoProcessSpec) -> None:
        super().__init__(spec.function)
        self._methods = (spec.function.process_batch1, spec.function.process_batch2)
        self._schema = spec.output_schema

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        emit_result(self._methods[input_index](batch), self._schema, self.output)


def create_co_process_operator(spec: CoProcessSpec) -> Any:
    """The operator of a function with two inputs."""
    if spec.broadcast is not None:
        return KeyedBroadcastProcessOperator(spec) if spec.key_columns[0] else BroadcastProcessOperator(spec)
    if not spec.key_columns[0]:
        return CoProcessOperator(spec)
    if spec.batches:
        return KeyedBatchesOperator(
            tuple(zip(spec.key_columns, spec.event_time_columns, strict=True)),
            (spec.function.process_batch1, spec.function.process_batch2),
            spec.function,
            spec.output_schema,
        )
    if len(spec.key_columns[0]) != len(spec.key_columns[1]):
        raise JobDefinitionError("both inputs need as many key columns as the other")
    return KeyedCoProcessOperator(spec)
