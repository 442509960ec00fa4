"""`key_by(function)`: keys that are computed from a batch become named columns, and are keys like any other from there
on.

Decides how the function's answer becomes columns and what is wrong with one. The columns travel with the rows, so that
exchange, state, checkpoints and rescaling know keys by column only. Flink's KeySelector is called on both sides of the
exchange instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from snapline.dataflow.errors import JobDefinitionError
from snapline.stream_results import refuse_state

if TYPE_CHECKING:
    from snapline.dataflow.api.function_contexts import RuntimeContext

DEFAULT_KEY = "key"
"""Name of the column of a function that says nothing about its result."""

KeyFunction = Callable[[pa.RecordBatch], "pa.Array | pa.ChunkedArray"]


@dataclass(frozen=True)
class WithKeys:
    """Adds the key columns that a function computes to each batch; a function for `map_batches`."""

    function: KeyFunction
    schema: pa.Schema | None
    """Names and types of the key columns; None: one column of the default name, of the type that the function gives."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the key columns."""
        return (DEFAULT_KEY,) if self.schema is None else tuple(self.schema.names)

    def open(self, context: RuntimeContext) -> None:
        """Open the function, if it is one that is opened."""
        if callable(opener := getattr(self.function, "open", None)):
            opener(context)

    def close(self) -> None:
        """Close the function, if it is one that is closed."""
        if callable(closer := getattr(self.function, "close", None)):
            closer()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with its keys. Raises TypeError or ValueError that says what the function should have given."""
        for name, column in zip(self.names, self._columns(batch), strict=True):
            if name in batch.schema.names:
                raise ValueError(f"key_by: the rows have a column {name!r} already; name the key by schema=")
            batch = batch.append_column(name, column)
        return batch

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        keys = self.function(batch)
        if isinstance(keys, pa.ChunkedArray):
            keys = keys.combine_chunks()
        if not isinstance(keys, pa.Array):
            raise TypeError(f"key_by: the function must give a pyarrow array of keys, not {type(keys).__name__}")
        if len(keys) != batch.num_rows:
            raise ValueError(f"key_by: the function gave {len(keys)} keys for {batch.num_rows} rows")
        if not pa.types.is_struct(keys.type):
            columns = [keys]
        elif keys.null_count:
            raise ValueError("key_by: a key of several columns is null as a whole; its fields may be")
        else:
            columns = keys.flatten()
        if len(columns) != len(self.names):
            raise TypeError(
                f"key_by: the function gave a key of {len(columns)} columns ({keys.type}); name them by schema=, which has "
                f"{len(self.names)}"
            )
        if self.schema is None:
            return columns
        return [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)]


def check_key_function(function: KeyFunction, schema: pa.Schema | None, known: pa.Schema | None) -> WithKeys:
    """What adds the keys. JobDefinitionError for a schema that is none, or names that the rows have already."""
    if schema is not None and not (isinstance(schema, pa.Schema) and len(schema)):
        raise JobDefinitionError(f"key_by: schema= names the key columns as a pyarrow schema, got {schema!r}")
    refuse_state(function, "key_by", "compute the column before it, by map_batches(...)")
    adding = WithKeys(function, schema)
    taken = set(adding.names) & set(known.names if known is not None else ())
    if taken:
        raise JobDefinitionError(f"key_by: the rows have a column {min(taken)!r} already; name the key by schema=")
    return adding
