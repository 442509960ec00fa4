"""Rows that become the keyed state of subtasks: what a row must be, which subtask owns it, and the files that are
written.

Runs in the process that writes a savepoint, or in Spark's tasks (`snapline.spark.state_sink`); which savepoint it
becomes is `snapline.state_writer`'s to say.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import StateDescriptor
from snapline.dataflow.columnar.key_partition import assign_to_key_groups
from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.ids import operator_id_of
from snapline.dataflow.key_groups import compute_key_group_range_for_operator_index
from snapline.dataflow.snapshot.state_evolution import convert
from snapline.runtime.storage.object_storage import open_storage
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend


class StateWriteError(SnaplineError):
    """The data cannot become state as asked, or not there.

    >>> sl_state.SavepointWriter.new_savepoint().with_operator("n", pa.table({"k": [1]}), key="k").write(f"{tmp}/n")
    Traceback (most recent call last):
    snapline.state_files.StateWriteError: operator 'n': the data has no column beside the key, so there is no state
    """


@dataclass(frozen=True)
class KeyedStatePlan:
    """What becomes of the columns of a row; travels to the executors."""

    uid: str
    key: pa.Schema
    states: tuple[StateDescriptor, ...]
    max_parallelism: int
    parallelism: int
    location: str
    """Directory of the savepoint that is written."""
    settings: Mapping[str, str]
    """Settings of the storage that the savepoint lies in."""
    now_ms: int
    writer: str
    """What stands in the names of this writer's files, and of no other's."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows, as they are stored."""
        states = [pa.field(state.name, _without_ttl(state).storage_type) for state in self.states]
        return pa.schema([*self.key, *states])

    @property
    def uid_hash(self) -> str:
        """Return the hash of the operator's uid, as it stands in names of files."""
        return str(operator_id_of(self.uid))

    def conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are wanted, of the types that are wanted. StateWriteError naming the column."""
        return self._conformed(batch, self.schema)

    def conformed_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the key columns of the batch, cast to their types in the state."""
        return self._conformed(batch, self.key)

    def _conformed(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        columns = []
        for wanted in schema:
            place = batch.schema.get_field_index(wanted.name)
            if place < 0:
                raise StateWriteError(
                    f"operator {self.uid!r}: there is no column {wanted.name!r} (once) in the data: it has "
                    f"{', '.join(batch.schema.names)}"
                )
            try:
                columns.append(batch.column(place).cast(wanted.type))
            except (pa.ArrowException, ValueError) as refusal:
                raise StateWriteError(
                    f"operator {self.uid!r}: column {wanted.name!r} is {batch.column(place).type} and the state stores "
                    f"{wanted.type}: {refusal}"
                ) from None
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def subtasks_of(self, rows: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
        """For each row the subtask whose file it goes to."""
        groups = assign_to_key_groups(rows.columns[: len(self.key)], self.max_parallelism).astype(np.int64)
        return groups * self.parallelism // self.max_parallelism


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """The keyed state of one subtask."""

    subtask: int
    path: str
    size: int
    keys: int


class SubtaskFiles:
    """State of some subtasks, gathered and then written: in this process, or in a Spark task."""

    def __init__(self, plan: KeyedStatePlan) -> None:
        self._plan = plan
        self._backends: dict[int, KeyedStateBackend] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of any subtasks; those without any state are no keys. StateWriteError for a key that has a row
        already."""
        rows = self._plan.conformed(batch)
        states = rows.columns[len(self._plan.key) :]
        rows = rows.filter(pa.array(np.logical_or.reduce([np.asarray(column.is_valid()) for column in states])))
        subtasks = self._plan.subtasks_of(rows)
        for subtask in np.unique(subtasks).tolist():
            self._add(subtask, rows.filter(pa.array(subtasks == subtask)))

    def _add(self, subtask: int, rows: pa.RecordBatch) -> None:
        plan = self._plan
        backend = self._backends.get(subtask)
        if backend is None:
            groups = compute_key_group_range_for_operator_index(plan.max_parallelism, plan.parallelism, subtask)
            backend = self._backends[subtask] = KeyedStateBackend(plan.key, groups, plan.max_parallelism)
            backend.scope.now_ms = lambda: plan.now_ms
        keys = rows.columns[: len(plan.key)]
        repeated = backend.lookup(keys) >= 0
        slots = backend.slots(keys)
        repeated |= ~np.isin(np.arange(len(slots)), np.unique(slots, return_index=True)[1])
        if repeated.any():
            row = rows.slice(int(repeated.argmax()), 1).to_pylist()[0]
            key = ", ".join(f"{name}={row[name]!r}" for name in plan.key.names)
            raise StateWriteError(
                f"operator {plan.uid!r}: the key {key} has several rows: aggregate them to one per key"
            )
        for state, values in zip(plan.states, rows.columns[len(plan.key) :], strict=True):
            stored = convert(values.drop_null(), _without_ttl(state), state, plan.now_ms)
            backend.state_of(state).restore(slots[np.asarray(values.is_valid())], stored)

    def write(self) -> Iterator[WrittenFile]:
        """A file per subtask; its name is this attempt's own, because Spark may run a task twice."""
        storage = open_storage(self._plan.location, Configuration(self._plan.settings))
        for subtask in sorted(self._backends):
            snapshot = self._backends.pop(subtask).snapshot()
            data = bytes(snapshot.encode())
            name = f"{self._plan.uid_hash}-{subtask}-{self._plan.writer}-{uuid.uuid4().hex[:12]}"
            storage.create(name, data)
            yield WrittenFile(subtask, f"{self._plan.location}/{name}", len(data), snapshot.row_count)


def _without_ttl(state: Any) -> Any:
    """As users have it: a time-to-live adds the time when the row is written."""
    return state if state.ttl is None else replace(state, ttl=None)
