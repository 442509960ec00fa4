"""Rows that replace or delete those of a table by a key, and how they wait for the commit.

Decides that the rows of a checkpoint lie in files that no version of the table ever names, which rows are to be deleted
by their row kind, and that the last row of each key counts. It does not know how a table takes them in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from snapline.connectors.files.file_writer import SealedFile
from snapline.connectors.files.output_files import open_output
from snapline.connectors.tables.table_columns import require_no_nulls
from snapline.connectors.tables.table_commits import path_of
from snapline.dataflow.errors import ConnectorError

GONE = "__snapline_gone"
"""The column of waiting rows that is true for keys that are to be deleted."""
KINDS = ("+I", "+U", "-U", "-D")


def require_meeting(sink: str, key: Sequence[str], delete: str, shuffle: bool | None) -> None:
    """Raise ConnectorError when what a sink was given does not say how rows of one key meet."""
    if delete and not key:
        raise ConnectorError(f"{sink}: delete= needs key=, the columns by which rows are found")
    if delete and delete in key:
        raise ConnectorError(
            f"{sink}: delete= names {delete!r}, which is in key= and is not written; take another column"
        )
    if len(set(key)) != len(key):
        raise ConnectorError(f"{sink}: key= names each column once, not {list(key)}")
    if shuffle and key:
        raise ConnectorError(f"{sink}: rows with key= meet by their key; leave out shuffle=")


def without(rows: pa.Schema, column: str) -> pa.Schema:
    """The columns of the rows but for this one, if they have it."""
    return pa.schema([field for field in rows if field.name != column])


class PreparedRows(Protocol):
    """How rows get the columns of one table."""

    def fit(self, rows: pa.Schema) -> pa.Schema:
        """The columns that are written for such rows. Raises ConnectorError when they do not fit."""
        ...

    def prepared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the columns that are written. Raises ConnectorError when they do not fit."""
        ...

    def note(self) -> dict[str, Any]:
        """What the commit must know of all files of this writer; JSON-like."""
        ...


class KeyedRows:
    """How rows become files that wait for a merge."""

    def __init__(
        self, rows: PreparedRows, key: Sequence[str], delete: str, what: str, *, takes_nan: bool = True
    ) -> None:
        """`takes_nan`: whether rows can be found by not-a-number, and by a float32 that is infinite."""
        self._takes_nan = takes_nan
        self._rows, self._key, self._delete, self._what = rows, tuple(key), delete, what

    def fit(self, rows: pa.Schema) -> pa.Schema:
        """The columns that the table gets for such rows. Raises ConnectorError when they do not fit."""
        self._require_columns(rows)
        return self._rows.fit(without(rows, self._delete))

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        gone = pa.array([False] * batch.num_rows)
        self._require_columns(batch.schema)
        if self._delete:
            batch, gone = self._without_kinds(batch)
        rows = self._rows.prepared(batch)
        require_no_nulls(rows.filter(pc.invert(gone)), self._what)
        for name in self._key:
            if rows.column(name).null_count:
                raise ConnectorError(f"{self._what}: a row has no key: {name!r} is null")
            is_float = pa.types.is_floating(rows.column(name).type)
            if is_float and not self._takes_nan and pc.any(pc.is_nan(rows.column(name))).as_py():
                raise ConnectorError(
                    f"{self._what}: {name!r} is not-a-number in a row, by which no row can be found; make it a number or leave it out"
                )
            is_narrow = pa.types.is_float32(rows.column(name).type)
            if is_narrow and not self._takes_nan and pc.any(pc.is_inf(rows.column(name))).as_py():
                raise ConnectorError(
                    f"{self._what}: {name!r} is infinite in a row, and no row can be found by a float32 that is; make it a number or "
                    "leave it out"
                )
        fields = [field.with_nullable(True) for field in rows.schema]
        yield "", pa.RecordBatch.from_arrays([*rows.columns, gone], schema=pa.schema([*fields, (GONE, pa.bool_())]))

    def note(self) -> dict[str, Any]:
        return {**self._rows.note(), "key": list(self._key)}

    def note_of_file(self, file: SealedFile) -> dict[str, Any]:
        return {}

    def _require_columns(self, rows: pa.Schema) -> None:
        for name in (*self._key, *([self._delete] if self._delete else ())):
            if name not in rows.names:
                raise ConnectorError(f"{self._what}: the rows have no column {name!r} but {', '.join(rows.names)}")

    def _without_kinds(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
        """The rows without those before updates, and which of them are to be deleted."""
        kinds = batch.column(self._delete)
        if pa.types.is_dictionary(kinds.type):
            kinds = kinds.dictionary_decode()
        rest = batch.drop_columns([self._delete])
        if pa.types.is_boolean(kinds.type):
            return rest, kinds.fill_null(False)
        if not (pa.types.is_string(kinds.type) or pa.types.is_large_string(kinds.type)):
            raise ConnectorError(
                f"{self._what}: delete= names {self._delete!r}, which is {kinds.type}; give truth values or row kinds"
            )
        known = pc.is_in(kinds, pa.array(KINDS, kinds.type))
        if not pc.all(known, min_count=0).as_py():
            wrong = kinds.filter(pc.invert(known))[0].as_py()
            raise ConnectorError(f"{self._what}: {self._delete!r} is {wrong!r} in a row; there are {', '.join(KINDS)}")
        kept = pc.not_equal(kinds, "-U")
        return rest.filter(kept), pc.equal(kinds, "-D").filter(kept)


def waiting_rows(directory: str, options: Mapping[str, str], notes: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows of a checkpoint, of each key the last one."""
    files, location = open_output(directory, options)
    tables = []
    for note in sorted(notes, key=lambda note: int(note["checkpoint_id"])):
        for file in note["files"]:
            with files.read(path_of(location.path, file)) as stream:
                tables.append(pq.read_table(stream))
    rows, key = pa.concat_tables(tables, promote_options="default"), list(notes[0]["key"])
    numbered = rows.select(key).append_column(GONE, pa.array(range(rows.num_rows), pa.int64()))
    for place, kind in enumerate(numbered.schema.types):
        if isinstance(kind, pa.BaseExtensionType):
            numbered = numbered.set_column(place, key[place], numbered.column(place).cast(kind.storage_type))
        if pa.types.is_floating(kind):  # both zeros are one key, and a merge takes one row of a key
            numbered = numbered.set_column(place, key[place], pc.add(numbered.column(place), pa.scalar(0.0, kind)))
    last = numbered.group_by(key).aggregate([(GONE, "max")]).column(f"{GONE}_max")
    return rows.take(last.sort())
