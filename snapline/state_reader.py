"""The state in a snapshot as data, without the job's code: what there is, its rows, and how two snapshots differ.

A row per key: the key columns, then a column per state and timer queue, of the types that stand in the snapshot. Keyed
state of several files (one per subtask, and those that an incremental checkpoint builds on) reads as one table; reading
is batch by batch, and for one key only the blocks that may hold it. Takes the role of Flink's State Processor API for
reading.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapline.coordinator.snapshots import Snapshot, read_blob_range, read_elements, read_snapshot, read_state_header
from snapline.dataflow.api.state import descriptor_of
from snapline.dataflow.columnar.arrow_columns import BoolArray
from snapline.dataflow.columnar.key_partition import assign_to_key_groups
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import KeyedStateHandle, OperatorState, OperatorSubtaskState
from snapline.dataflow.snapshot.state_evolution import cast_values, convert, evolution_of
from snapline.dataflow.snapshot.state_format import (
    STATE_COLUMN,
    TIMERS_COLUMN,
    KeyedStateHeader,
    column_role,
    decode_keyed_state,
)
from snapline.runtime.absolute_paths import absolute_path
from snapline.runtime.settings import default_layers, resolve
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.taskmanager.state.index.key_index import KeyIndex

CHANGE = "change"
ADDED, REMOVED, CHANGED = "added", "removed", "changed"
_DIFF_KEY_GROUPS = 16
"""So many key groups of both snapshots are held at once."""


class StateReadError(SnaplineError):
    """There is no such state, or it cannot be read so.

    >>> savepoint = sl_state.SavepointWriter.new_savepoint()
    >>> path = savepoint.with_operator("n", pa.table({"k": [1], "n": [2]}), key="k").write(f"{tmp}/n")
    >>> sl_state.open_state(path).table("m")
    Traceback (most recent call last):
    snapline.state_reader.StateReadError: ... holds no keyed state of an operator 'm'; there is some of 'n'
    """


@dataclass(frozen=True, slots=True)
class StateColumn:
    """One state of an operator.

    >>> sl_state.StateColumn("total", "value", pa.int64()).ttl_ms is None
    True
    """

    name: str
    kind: str
    """value, list, map, reducing, aggregating, running_aggregate, or timers."""
    data_type: pa.DataType
    serializer: str = ""
    ttl_ms: int | None = None


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """The keyed state of one operator.

    >>> savepoint = sl_state.SavepointWriter.new_savepoint()
    >>> path = savepoint.with_operator("n", pa.table({"k": [1], "n": [2]}), key="k").write(f"{tmp}/n")
    >>> sl_state.open_state(path).table("n").schema.names
    ['k', 'n']
    """

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    rows_at_most: int
    """Keys; less what newer files of an incremental checkpoint say again, or have no state for any more."""
    size_bytes: int
    key_schema: pa.Schema
    columns: tuple[StateColumn, ...]

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the table's rows. A state that is called as a column of the key has `_` behind its
        name."""
        names = names_beside(self.key_schema.names, [column.name for column in self.columns])
        types = [column.data_type for column in self.columns]
        return pa.schema([*self.key_schema, *map(pa.field, names, types)])


@dataclass(frozen=True, slots=True)
class ListStates:
    """The lists that an operator without keyed state has: positions of a source, or the state of an external task.

    >>> sl_state.ListStates("orders", "orders", 2, {"numbers": (b"1", b"2")}, {"numbers": "split"}).elements["numbers"]
    (b'1', b'2')
    """

    uid: str
    name: str
    parallelism: int
    elements: Mapping[str, tuple[bytes, ...]]
    """The elements of all subtasks, by the state's name, whose bytes mean what the operator or program wants."""
    modes: Mapping[str, str]
    """What a rescale does with the elements, by the state's name (`split`, `union` or `broadcast`)."""


@dataclass(frozen=True, slots=True)
class _File:
    handle: KeyedStateHandle
    header: KeyedStateHeader


class StateReader:
    """A snapshot, open for reading.

    >>> savepoint = sl_state.SavepointWriter.new_savepoint()
    >>> path = savepoint.with_operator("n", pa.table({"k": [1, 2], "n": [2, 3]}), key="k").write(f"{tmp}/n")
    >>> reader = sl_state.StateReader(path)
    >>> [table.uid for table in reader.tables()], reader.table("n").max_parallelism
    (['n'], 128)
    >>> reader.read("n", key=[2]).to_pylist()
    [{'k': 2, 'n': 3}]
    >>> sum(batch.num_rows for batch in reader.read_batches("n"))
    2
    """

    def __init__(self, path: str | os.PathLike[str], storages: StateStorages | None = None) -> None:
        """`path`: directory of a savepoint or checkpoint, or its `_metadata`. Raises SnaplineError when there is
        none."""
        if storages is None:
            configuration = resolve(default_layers(os.environ))
            storages = StateStorages(lambda url: open_storage(url, configuration))
        self._storages = storages
        self.snapshot: Snapshot = read_snapshot(storages, located(path))

    def tables(self) -> list[KeyedTable]:
        """Return a table for each operator with keyed state."""
        return [
            self._table(operator, files)
            for operator in self.snapshot.metadata.operators
            if (files := [file for subtask in self._files(operator) for file in subtask])
        ]

    def lists(self) -> list[ListStates]:
        """Return the lists of each operator that has some, and no keyed state.

        >>> savepoint = sl_state.SavepointWriter.new_savepoint()
        >>> path = savepoint.with_operator("n", pa.table({"k": [1], "n": [2]}), key="k").write(f"{tmp}/n")
        >>> sl_state.StateReader(path).lists()
        []
        """
        found = []
        for operator in self.snapshot.metadata.operators:
            elements: dict[str, tuple[bytes, ...]] = {}
            modes: dict[str, str] = {}
            if any(_keyed(operator)):
                continue
            for index in sorted(operator.subtasks):
                for part in operator.subtasks[index].managed_operator:
                    for entry, read in read_elements(self._storages, part):
                        elements[entry.name] = elements.get(entry.name, ()) + read
                        modes[entry.name] = entry.mode.value
            if elements:
                uid = operator.uid or operator.operator_id
                found.append(ListStates(uid, operator.name, operator.parallelism, elements, modes))
        return found

    def table(self, uid: str) -> KeyedTable:
        """The keyed state of the operator with this uid (or id). StateReadError, with those that there are."""
        operator = self._operator(uid)
        return self._table(operator, [file for subtask in self._files(operator) for file in subtask])

    def read(self, uid: str, *, key: Sequence[Any] | None = None, key_groups: KeyGroupRange | None = None) -> pa.Table:
        """All rows, those of one key, or of a range of key groups, as one table."""
        batches = list(self.read_batches(uid, key=key, key_groups=key_groups))
        return pa.Table.from_batches(batches, self.table(uid).schema)

    def read_batches(
        self, uid: str, *, key: Sequence[Any] | None = None, key_groups: KeyGroupRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The same a batch at a time. `key`: a value per key column."""
        operator = self._operator(uid)
        table = self.table(uid)
        wanted = KeyGroupRange(0, table.max_parallelism - 1) if key_groups is None else key_groups
        key_columns = None if key is None else _key_columns(table, key)
        if key_columns is not None:
            group = int(assign_to_key_groups(key_columns, table.max_parallelism)[0])
            wanted = wanted.intersect(KeyGroupRange(group, group))
        files_of = self._files(operator)
        declared = _declared_states([file for files in files_of for file in files])
        for files in files_of:
            for batch in self._subtask_rows(files, table, declared, wanted):
                chosen = batch if key_columns is None else _rows_of_key(batch, table, key_columns)
                if chosen.num_rows:
                    yield chosen

    # --- files ------------------------------------------------------------------------------------------------------

    def _operator(self, uid: str) -> OperatorState:
        operators = self.snapshot.metadata.operators
        for operator in operators:
            if uid in (operator.uid, operator.operator_id) and any(_keyed(operator)):
                return operator
        if any(uid in (each.uid, each.operator_id) and _has_lists(each) for each in operators):
            raise StateReadError(
                f"{self.snapshot.location} holds no keyed state of {uid!r}, but lists whose bytes only their writer "
                "understands: `snapline state ls` shows which, StateReader.lists gives their elements"
            )
        known = ", ".join(repr(operator.uid or operator.operator_id) for operator in operators if any(_keyed(operator)))
        raise StateReadError(
            f"{self.snapshot.location} holds no keyed state of an operator {uid!r}; there is some of {known or 'none'}"
        )

    def _files(self, operator: OperatorState) -> list[list[_File]]:
        """The files of each subtask, oldest first."""
        return [
            [_File(part, read_state_header(self._storages, part)) for part in parts]
            for parts in _keyed(operator)
            if parts
        ]

    def _table(self, operator: OperatorState, files: Sequence[_File]) -> KeyedTable:
        fields = {name: _state_column(field) for name, field in _declared_states(files).items()}
        for file in reversed(files):
            for field in file.header.timer_fields:
                fields.setdefault(field.name, StateColumn(field.name, "timers", field.type))
        keys = [field.remove_metadata() for field in files[-1].header.key_fields]
        return KeyedTable(
            uid=operator.uid or operator.operator_id,
            name=operator.name,
            parallelism=operator.parallelism,
            max_parallelism=operator.max_parallelism,
            rows_at_most=sum(file.header.row_count for file in files),
            size_bytes=sum(file.handle.handle.state_size_bytes for file in files),
            key_schema=pa.schema(keys),
            columns=tuple(fields.values()),
        )

    def _subtask_rows(
        self, files: list[_File], table: KeyedTable, declared: Mapping[str, pa.Field], wanted: KeyGroupRange
    ) -> Iterator[pa.RecordBatch]:
        def batches(file: _File) -> Iterator[pa.RecordBatch]:
            def read(offset: int, size: int) -> bytes:
                return read_blob_range(self._storages, file.handle.handle, offset, size)

            return decode_keyed_state(read, wanted, file.header)[1]

        schema, width = table.schema, len(table.key_schema)
        names = dict(zip((column.name for column in table.columns), schema.names[width:], strict=True))
        for rows in newest_rows([(file.header, batches(file)) for file in files]):
            own = [*schema.names[:width], *(names[name] for name in rows.schema.names[width:])]
            yield _conformed(self._as_declared(rows, declared, table.uid).rename_columns(own), schema)

    def _as_declared(self, rows: pa.RecordBatch, declared: Mapping[str, pa.Field], uid: str) -> pa.RecordBatch:
        """Subtasks may have gone over to a newer declaration of a state at different times."""
        for number, field in enumerate(rows.schema):
            if column_role(field) != STATE_COLUMN or declared[field.name].type == field.type:
                continue
            written, now = descriptor_of(field), descriptor_of(declared[field.name])
            if problems := evolution_of(written, now).problems:
                raise StateReadError(f"the state of {uid!r} cannot be read as one table: {'; '.join(problems)}")
            present = np.asarray(rows.column(number).is_valid())
            values = convert(rows.column(number).drop_null(), written, now, self.snapshot.metadata.timestamp_ms)
            places = pa.array(np.cumsum(present) - 1, mask=~present)
            rows = rows.set_column(number, declared[field.name], values.take(places))
        return rows


def newest_rows(files: Sequence[tuple[KeyedStateHeader, Iterator[pa.RecordBatch]]]) -> Iterator[pa.RecordBatch]:
    """What the files of one subtask, oldest first, say together: the newest is read first, and a key that it has named
    is not asked for again."""
    key_fields = files[0][0].key_fields
    seen = KeyIndex(key_fields) if any(header.is_delta for header, _ in files) else None
    width = len(key_fields)
    for _, batches in reversed(files):
        for batch in batches:
            if seen is None:
                yield batch
                continue
            known = seen.lookup(batch.columns[:width]) >= 0
            seen.lookup_or_insert(batch.columns[:width])
            yield batch.filter(pa.array(~known & _has_state(batch, width)))


def names_beside(key: Sequence[str], others: Sequence[str]) -> list[str]:
    """What columns of states and timers are called in a table, each by a name of its own: a state may be called as a
    column of the key, and has `_` behind its name then."""
    taken = {*key, *others}
    names: list[str] = []
    for name in others:
        own = name
        while own in key or (own != name and own in taken):
            own += "_"
        taken.add(own)
        names.append(own)
    return names


def located(path: str | os.PathLike[str]) -> str:
    """The URL, or the absolute path, of a directory."""
    text = os.fspath(path)
    return text if "://" in text else os.path.normpath(absolute_path(text))


def open_state(path: str | os.PathLike[str]) -> StateReader:
    """The state of a savepoint or checkpoint.

    >>> sl_state.open_state(f"{tmp}/none")
    Traceback (most recent call last):
    snapline...: ...
    """
    return StateReader(path)


def diff(before: StateReader, after: StateReader, uid: str) -> Iterator[pa.RecordBatch]:
    """Rows of the keys that are not the same in both: as they are in `after`, those that are gone as they were in
    `before`; the first column says which. StateReadError when the keys are of other types or the key groups are others.

    >>> def written(name, n):
    ...     data = pa.table({"k": [1, 2], "n": [2, n]})
    ...     return sl_state.SavepointWriter.new_savepoint().with_operator("n", data, key="k").write(f"{tmp}/{name}")
    >>> before, after = sl_state.open_state(written("before", 3)), sl_state.open_state(written("after", 4))
    >>> [row for batch in sl_state.diff(before, after, "n") for row in batch.to_pylist()]
    [{'change': 'changed', 'k': 2, 'n': 4}]
    """
    left, right = before.table(uid), after.table(uid)
    marked = changes_schema(before, after, uid)
    schema = marked.remove(0)
    for first in range(0, left.max_parallelism, _DIFF_KEY_GROUPS):
        groups = KeyGroupRange(first, min(first + _DIFF_KEY_GROUPS, left.max_parallelism) - 1)
        tables = [reader.read(uid, key_groups=groups).combine_chunks() for reader in (before, after)]
        try:
            old, new = (_conformed(table, schema) for table in tables)
        except pa.ArrowException as refusal:
            raise _cannot_compare(uid, left, right, refusal) from refusal
        yield from _differences(old, new, len(right.key_schema), marked.field(0))


def changes_schema(before: StateReader, after: StateReader, uid: str) -> pa.Schema:
    """The columns of what `diff` gives: the mark, whose name no state has, and those of both. Raises as `diff` does."""
    left, right = before.table(uid), after.table(uid)
    if left.key_schema != right.key_schema or left.max_parallelism != right.max_parallelism:
        raise StateReadError(f"the state of {uid!r} cannot be compared: it is keyed, or cut into key groups, otherwise")
    try:
        schema = pa.unify_schemas([right.schema, left.schema], promote_options="permissive")
    except pa.ArrowException as refusal:
        raise _cannot_compare(uid, left, right, refusal) from refusal
    mark = CHANGE
    while mark in schema.names:
        mark += "_"
    return schema.insert(0, pa.field(mark, pa.string()))


def _cannot_compare(uid: str, left: KeyedTable, right: KeyedTable, refusal: Exception) -> StateReadError:
    types = {column.name: column.data_type for column in left.columns}
    others = [each for each in right.columns if types.get(each.name, each.data_type) != each.data_type]
    named = ", ".join(f"{each.name!r} is {types[each.name]} before and {each.data_type} after" for each in others)
    return StateReadError(
        f"the state of {uid!r} cannot be compared: {named} ({refusal}); read both with `snapline state read`"
    )


def _differences(old: pa.Table, new: pa.Table, width: int, mark: pa.Field) -> Iterator[pa.RecordBatch]:
    index = KeyIndex([old.schema.field(number) for number in range(width)])
    places = index.lookup_or_insert([column.combine_chunks() for column in old.columns[:width]])
    row_of = np.full(max(index.high_water, 1), -1, np.int64)
    row_of[places] = np.arange(len(places))
    found = index.lookup([column.combine_chunks() for column in new.columns[:width]])
    rows = np.where(found >= 0, row_of[np.maximum(found, 0)], -1)
    kept = np.ones(old.num_rows, np.bool_)
    kept[rows[rows >= 0]] = False
    both = np.flatnonzero(rows >= 0)
    unequal = _unequal(old.take(rows[both]), new.take(both), width)
    for change, part in (
        (ADDED, new.take(np.flatnonzero(rows < 0))),
        (REMOVED, old.take(np.flatnonzero(kept))),
        (CHANGED, new.take(both[unequal])),
    ):
        if part.num_rows:
            marked = part.add_column(0, mark, pa.array([change] * part.num_rows))
            yield from marked.combine_chunks().to_batches()


def _unequal(left: pa.Table, right: pa.Table, width: int) -> BoolArray:
    """For each row, whether any column but the key differs."""
    unequal = np.zeros(left.num_rows, np.bool_)
    for number in range(width, left.num_columns):
        one, other = left.column(number), right.column(number)
        try:
            same = pc.or_(pc.fill_null(pc.equal(one, other), False), pc.and_(one.is_null(), other.is_null()))
            if pa.types.is_floating(one.type):
                same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))
            unequal |= ~np.asarray(same)
        except pa.ArrowNotImplementedError:  # lists, records, maps and some rare types
            pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
            unequal |= np.array([a != b and repr(a) != repr(b) for a, b in pairs], np.bool_)  # NaN is as NaN was
    return unequal


def _keyed(operator: OperatorState) -> Iterator[tuple[KeyedStateHandle, ...]]:
    subtasks: Sequence[OperatorSubtaskState] = [operator.subtasks[index] for index in sorted(operator.subtasks)]
    return (state.managed_keyed for state in subtasks)


def _has_lists(operator: OperatorState) -> bool:
    return any(state.managed_operator for state in operator.subtasks.values())


def _declared_states(files: Sequence[_File]) -> dict[str, pa.Field]:
    """Each state as the newest of these files declares it that says what all of them can become, as a restore takes
    them."""
    written: dict[str, list[pa.Field]] = {}
    for file in reversed(files):
        for field in file.header.state_fields:
            written.setdefault(field.name, []).append(field)
    return {name: next(filter(_fits(fields), fields), fields[0]) for name, fields in written.items()}


def _fits(fields: Sequence[pa.Field]) -> Callable[[pa.Field], bool]:
    written = [descriptor_of(field) for field in fields]
    return lambda field: not any(evolution_of(one, descriptor_of(field)).problems for one in written)


def _state_column(field: pa.Field) -> StateColumn:
    descriptor = descriptor_of(field)
    ttl = descriptor.ttl
    return StateColumn(
        field.name, descriptor.kind.value, field.type, descriptor.serializer, None if ttl is None else ttl.ttl_ms
    )


def _has_state(batch: pa.RecordBatch, width: int) -> BoolArray:
    """A delta also names keys that have no state any more: nulls, and empty lists of timers."""
    present = np.zeros(batch.num_rows, np.bool_)
    for field, column in zip(list(batch.schema)[width:], batch.columns[width:], strict=True):
        if column_role(field) == TIMERS_COLUMN:
            present |= np.asarray(pc.fill_null(pc.list_value_length(column), 0)) > 0
        else:
            present |= np.asarray(column.is_valid())
    return present


def _conformed(rows: Any, schema: pa.Schema) -> Any:
    """Columns in this order; what a file does not know is null."""
    columns = []
    for field in schema:
        place = rows.schema.get_field_index(field.name)
        columns.append(pa.nulls(rows.num_rows, field.type) if place < 0 else _cast(rows.column(place), field.type))
    return type(rows).from_arrays(columns, schema=schema)


def _cast(column: Any, data_type: pa.DataType) -> Any:
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([cast_values(chunk, data_type) for chunk in column.chunks], data_type)
    return cast_values(column, data_type)


def fits_key_columns(table: KeyedTable, key: Sequence[Any]) -> bool:
    """Whether the values are of the types of the key columns, so that there may be such a key."""
    try:
        _key_columns(table, key)
    except StateReadError:
        return False
    return True


def _key_columns(table: KeyedTable, key: Sequence[Any]) -> list[pa.Array]:
    if isinstance(key, (str, bytes)) or not isinstance(key, Sequence):
        raise StateReadError(f"key= is a list of a value for each key column of {table.uid!r}, not {key!r}")
    if len(key) != len(table.key_schema):
        names = ", ".join(table.key_schema.names)
        raise StateReadError(
            f"the key of {table.uid!r} has {len(table.key_schema)} columns ({names}), {len(key)} given"
        )
    columns = []
    for value, field in zip(key, table.key_schema, strict=True):
        try:
            columns.append(pa.array([value], field.type) if not isinstance(value, str) else _parsed(value, field.type))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as refusal:
            raise StateReadError(f"{value!r} is no {field.type}, as key column {field.name!r} is: {refusal}") from None
    return columns


def _parsed(text: str, data_type: pa.DataType) -> pa.Array:
    return pa.array([text]).cast(data_type)


def _rows_of_key(batch: pa.RecordBatch, table: KeyedTable, key: Sequence[pa.Array]) -> pa.RecordBatch:
    index = KeyIndex(list(table.key_schema))
    index.lookup_or_insert(key)
    return batch.filter(pa.array(index.lookup(batch.columns[: len(key)]) >= 0))
