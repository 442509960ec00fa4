"""A savepoint made from data, to start a job with state that it never computed: from an Arrow table, or a Spark
DataFrame.

A row per key: the key columns, and a column per state, of the type in which the state is stored (a value, a list, a
map). Decides which subtask's file a key goes to (its key group, as in the job), that a key has one row, that nothing
but an empty directory is written to, that `_metadata` comes last, so that what is half written is no savepoint, and
that nothing is deleted but what this writer has written: somebody else may write there since it was empty. The same
writer changes a savepoint: operators that are not named again keep their state, in the files where it lies. Takes the
role of Flink's SavepointWriter and OperatorTransformation.bootstrapWith.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from snapline.coordinator.checkpoint.metadata import METADATA_FILE_NAME, build_metadata, metadata_path
from snapline.coordinator.snapshots import read_snapshot
from snapline.dataflow.api.state import StateDescriptor, StateKind, ValueStateDescriptor
from snapline.dataflow.columnar.arrow_columns import plain_type
from snapline.dataflow.config import Configuration
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, JobID, operator_id_of
from snapline.dataflow.key_groups import (
    DEFAULT_LOWER_BOUND_MAX_PARALLELISM,
    KeyGroupRange,
    check_parallelism,
    compute_key_group_range_for_operator_index,
)
from snapline.dataflow.snapshot.handles import (
    CheckpointMetadata,
    KeyedStateHandle,
    MasterState,
    OperatorState,
    OperatorSubtaskState,
    SegmentStateHandle,
)
from snapline.dataflow.urls import is_absolute
from snapline.runtime.settings import default_layers, resolve
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import StorageAlreadyExists, StorageError
from snapline.state_files import KeyedStatePlan, StateWriteError, SubtaskFiles, WrittenFile
from snapline.state_reader import located

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITABLE = (StateKind.VALUE, StateKind.LIST, StateKind.MAP, StateKind.REDUCING, StateKind.AGGREGATING)


@dataclass(frozen=True)
class _Bootstrap:
    uid: str
    data: Any
    key: pa.Schema | tuple[str, ...]
    states: tuple[StateDescriptor, ...] | None
    parallelism: int


@dataclass
class SavepointWriter:
    """Gathers operators, then writes. Make one with `new_savepoint` or `from_existing`.

    >>> totals = pa.table({"customer": ["x", "y"], "total": [120, 80]})
    >>> writer = sl_state.SavepointWriter.new_savepoint(max_parallelism=128)
    >>> path = writer.with_operator("total", totals, key="customer").write(f"{tmp}/start")
    >>> sl_state.open_state(path).read("total").num_rows
    2
    >>> others = sl_state.SavepointWriter.from_existing(path).remove_operator("total")
    """

    max_parallelism: int
    checkpoint_id: int = 1
    """The job that starts from it goes on with the next one."""
    _kept: dict[str, OperatorState] = field(default_factory=dict)
    _added: dict[str, _Bootstrap] = field(default_factory=dict)
    _master_states: tuple[MasterState, ...] = ()

    @classmethod
    def new_savepoint(cls, max_parallelism: int = 128) -> SavepointWriter:
        """With nothing in it. The max parallelism is that of the job: it fixes the key groups."""
        try:
            check_parallelism(max_parallelism)
        except ValueError as refusal:
            raise StateWriteError(str(refusal)) from None
        return cls(max_parallelism)

    @classmethod
    def from_existing(cls, path: str | os.PathLike[str], max_parallelism: int = 0) -> SavepointWriter:
        """With all operators of a savepoint or checkpoint, and the state of its master hooks; the files stay where they
        are, and have to. `max_parallelism` is that of operators that are added; 0: the greatest that one there has."""
        cls.new_savepoint(max_parallelism or DEFAULT_LOWER_BOUND_MAX_PARALLELISM)
        metadata = read_snapshot(_storages(), located(path)).metadata
        kept: dict[str, OperatorState] = {operator.operator_id: _unshared(operator) for operator in metadata.operators}
        greatest = max(
            (operator.max_parallelism for operator in metadata.operators), default=DEFAULT_LOWER_BOUND_MAX_PARALLELISM
        )
        return cls(max_parallelism or greatest, metadata.checkpoint_id, kept, _master_states=metadata.master_states)

    def with_operator(
        self,
        uid: str,
        data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch] | DataFrame,
        *,
        key: str | Sequence[str] | pa.Schema,
        states: Sequence[StateDescriptor] | None = None,
        parallelism: int = 0,
    ) -> SavepointWriter:
        """Give an operator this keyed state instead of what it has. `key`: names of the key columns, in the order of
        `key_by`, or a schema, if the job's types are others than the data's. `states`: descriptors as the job declares
        them, found by name in the columns; without them every other column is a value state. `parallelism`: subtasks
        among which the state is divided; 0: as many as Spark has cores, one for Arrow data. The job may have
        another."""
        if not uid or not isinstance(uid, str):
            raise StateWriteError("an operator is found by its uid: name one")
        names = key if isinstance(key, pa.Schema) else (key,) if isinstance(key, str) else _all_of(str, key)
        if not names:
            raise StateWriteError(f"operator {uid!r}: name at least one key column, not {key!r}")
        if states and not _all_of(StateDescriptor, states):
            raise StateWriteError(f"operator {uid!r}: states= is a list of state descriptors, not {states!r}")
        for state in states or ():
            if state.kind not in _WRITABLE:
                raise StateWriteError(
                    f"operator {uid!r}: state {state.name!r} is of a kind that only the operator can write"
                )
        if parallelism:
            try:
                check_parallelism(self.max_parallelism, parallelism)
            except ValueError as refusal:
                raise StateWriteError(f"operator {uid!r}: {refusal}") from None
        kept = self._kept.get(operator_id_of(uid))
        if kept is not None and any(each.input_channel or each.output_channel for each in kept.subtasks.values()):
            raise StateWriteError(
                f"operator {uid!r}: the checkpoint holds rows in flight at it, which would be lost: change a savepoint, which "
                "holds none"
            )
        self.remove_operator(uid)
        self._added[uid] = _Bootstrap(uid, data, names, None if states is None else tuple(states), parallelism)
        return self

    def remove_operator(self, uid: str) -> SavepointWriter:
        """Leave out an operator's state."""
        self._kept.pop(operator_id_of(uid), None)
        self._added.pop(uid, None)
        return self

    def write(self, path: str | os.PathLike[str]) -> str:
        """Write the savepoint to a directory that is empty or not there; returns where it is. Nothing is left of one
        that fails."""
        location = located(path).rstrip("/")
        if not is_absolute(location):
            raise StateWriteError(f"{path!r} is no directory to write to: give a path or a URL")
        settings = dict(resolve(default_layers(os.environ)))
        storage = open_storage(location, Configuration(settings))
        if storage.list(""):
            raise StateWriteError(f"{location} is not empty: a savepoint gets a directory of its own")
        now_ms = time.time_ns() // 1_000_000
        writer, written = uuid.uuid4().hex[:12], b""
        try:
            operators = [self._operator(one, location, settings, now_ms, writer) for one in self._added.values()]
            metadata = CheckpointMetadata(
                job_id=JobID(uuid.uuid4().hex),
                job_name="bootstrapped",
                checkpoint_id=CheckpointID(self.checkpoint_id),
                timestamp_ms=now_ms,
                snapshot_type=SnapshotType.SAVEPOINT,
                operators=(*self._kept.values(), *operators),
                master_states=self._master_states,
            )
            _forget_orphans(storage, writer, operators)
            written = build_metadata(metadata, location)
            storage.create(METADATA_FILE_NAME, written)
        except BaseException as error:
            if written and storage.exists(METADATA_FILE_NAME) and storage.get(METADATA_FILE_NAME) == written:
                storage.delete(METADATA_FILE_NAME)
            _forget_orphans(storage, writer, ())
            if isinstance(error, StorageAlreadyExists):
                taken = f"{metadata_path(location)}: somebody else has written a savepoint there"
                raise StateWriteError(taken) from None
            raise
        return location

    def _operator(
        self, one: _Bootstrap, location: str, settings: Mapping[str, str], now_ms: int, writer: str
    ) -> OperatorState:
        data = one.data
        if hasattr(data, "sparkSession"):
            from snapline.spark.state_sink import arrow_schema_of, default_parallelism, write_frame

            parallelism = one.parallelism or default_parallelism(data)
            plan = self._plan(one, arrow_schema_of(data), location, settings, now_ms, parallelism, writer)
            files = write_frame(data, plan)
        else:
            batches, schema = _batches_of(data, one.uid)
            plan = self._plan(one, schema, location, settings, now_ms, one.parallelism or 1, writer)
            gathered = SubtaskFiles(plan)
            for batch in batches:
                gathered.add(batch)
            files = list(gathered.write())
        return _operator_state(plan, files)

    def _plan(
        self,
        one: _Bootstrap,
        schema: pa.Schema,
        location: str,
        settings: Mapping[str, str],
        now_ms: int,
        parallelism: int,
        writer: str,
    ) -> KeyedStatePlan:
        if isinstance(one.key, pa.Schema):
            keys = list(one.key)
        else:
            keys = [_column(schema, name, one.uid) for name in one.key]
        names = {key.name for key in keys}
        states = one.states
        if states is None:
            others = [column for column in schema if column.name not in names]
            states = tuple(ValueStateDescriptor(column.name, column.type) for column in others)
        if not states:
            raise StateWriteError(f"operator {one.uid!r}: the data has no column beside the key, so there is no state")
        named = [*(key.name for key in keys), *(state.name for state in states)]
        for name in named:
            if named.count(name) > 1:
                raise StateWriteError(f"operator {one.uid!r}: {name!r} is named twice among keys and states")
        try:
            plain = pa.schema([pa.field(key.name, plain_type(key.type)) for key in keys])
        except TypeError as refusal:
            raise StateWriteError(f"operator {one.uid!r}: key: {refusal}") from None
        count = min(parallelism, self.max_parallelism)
        return KeyedStatePlan(one.uid, plain, states, self.max_parallelism, count, location, settings, now_ms, writer)


def _unshared(operator: OperatorState) -> OperatorState:
    """Without the keys under which a job counts parts of incremental checkpoints: whoever claims what is written here
    must not delete them, because they are those of another snapshot."""
    subtasks = {
        number: replace(state, managed_keyed=tuple(replace(part, shared_key="") for part in state.managed_keyed))
        for number, state in operator.subtasks.items()
    }
    return replace(operator, subtasks=subtasks)


def _storages() -> StateStorages:
    configuration = resolve(default_layers(os.environ))
    return StateStorages(lambda url: open_storage(url, configuration))


def _batches_of(data: Any, uid: str) -> tuple[Iterable[pa.RecordBatch], pa.Schema]:
    if isinstance(data, pa.RecordBatch):
        return [data], data.schema
    if isinstance(data, pa.Table):
        return data.to_batches(), data.schema
    batches = _checked(data, uid)
    first = next(batches, None)
    if first is None:
        raise StateWriteError(f"operator {uid!r}: the data is no batch at all: one without rows says the columns")
    return chain([first], batches), first.schema


def _checked(data: Any, uid: str) -> Iterator[pa.RecordBatch]:
    for batch in data if isinstance(data, Iterable) else [data]:
        if not isinstance(batch, pa.RecordBatch):
            raise StateWriteError(
                f"operator {uid!r}: the data is an Arrow table, record batches or a Spark DataFrame, not {type(data).__name__} of "
                f"{type(batch).__name__}"
            )
        yield batch


def _all_of(kind: type, given: Any) -> tuple[Any, ...]:
    """What is given, if it is some of this kind; else nothing."""
    found = tuple(given) if isinstance(given, Iterable) else ()
    return found if all(isinstance(each, kind) for each in found) else ()


def _column(schema: pa.Schema, name: str, uid: str) -> pa.Field:
    place = schema.get_field_index(name)
    if place < 0:
        raise StateWriteError(
            f"operator {uid!r}: there is no key column {name!r} in the data: it has {', '.join(schema.names)}"
        )
    return schema.field(place)


def _operator_state(plan: KeyedStatePlan, files: Sequence[WrittenFile]) -> OperatorState:
    subtasks = {
        file.subtask: OperatorSubtaskState(
            managed_keyed=(KeyedStateHandle(_groups(plan, file.subtask), SegmentStateHandle(file.path, 0, file.size)),)
        )
        for file in files
    }
    return OperatorState(
        operator_id=operator_id_of(plan.uid),
        uid=plan.uid,
        name=plan.uid,
        parallelism=plan.parallelism,
        max_parallelism=plan.max_parallelism,
        subtasks=dict(sorted(subtasks.items())),
    )


def _groups(plan: KeyedStatePlan, subtask: int) -> KeyGroupRange:
    return compute_key_group_range_for_operator_index(plan.max_parallelism, plan.parallelism, subtask)


def _forget_orphans(storage: Any, writer: str, operators: Sequence[OperatorState]) -> None:
    """Delete what this writer has written and none of these names, such as files of attempts of Spark tasks that did
    not count."""
    named = {
        handle.path.rpartition("/")[2]
        for operator in operators
        for subtask in operator.subtasks.values()
        for handle in subtask.stream_handles
        if isinstance(handle, SegmentStateHandle)
    }
    for name, _ in storage.list(""):
        if writer in name and name not in named:
            try:
                storage.delete(name)
            except StorageError:  # nobody refers to it
                pass
