"""Expressions as the functions of operators: what `select`, `with_columns` and `filter` hand to the engine.

Decides the columns of a result and their order, and that no two have one name. Checked against the schema where it is
known, before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from snapline.dataflow.errors import JobDefinitionError
from snapline.expressions.expression import Expr, as_expression, col


def as_columns(positional: Sequence[object], named: Mapping[str, object], where: str) -> tuple[Expr, ...]:
    """Expressions with their final names, from names of columns, expressions, lists of them, and keywords."""
    flat: list[object] = []
    for one in positional:
        flat.extend(one if isinstance(one, (list, tuple)) else [one])
    expressions = [_expression(one, where, of_name=True) for one in flat]
    expressions += [_expression(one, where, of_name=False).alias(name) for name, one in named.items()]
    names = [one.name for one in expressions]
    for name in names:
        if names.count(name) > 1:
            raise JobDefinitionError(
                f"{where}: two columns would be called {name!r}: give one of them another name by .alias(...)"
            )
    return tuple(expressions)


def _expression(value: object, where: str, *, of_name: bool) -> Expr:
    if isinstance(value, Expr):
        return value
    if of_name and isinstance(value, str):
        return col(value)
    if of_name:
        raise JobDefinitionError(f"{where}: {value!r} is no column and no expression, such as sl.col('price') * 1.1")
    return as_expression(value)


@dataclass(frozen=True)
class Projection:
    """Computes columns of each batch; with `keep`, beside the columns that are there already."""

    expressions: tuple[Expr, ...]
    keep: bool

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The result for one batch."""
        computed = {one.name: one.evaluate(batch) for one in self.expressions}
        columns = dict(zip(batch.schema.names, batch.columns, strict=True)) | computed if self.keep else computed
        fields = self._fields_of(batch.schema)
        schema = pa.schema([_field(name, column.type, fields) for name, column in columns.items()])
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)

    def schema_over(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the result. Raises JobDefinitionError for operands of types that do not fit."""
        computed = {one.name: one.type_in(schema) for one in self.expressions}
        types = {field.name: field.type for field in schema} | computed if self.keep else computed
        fields = self._fields_of(schema)
        return pa.schema([_field(name, data_type, fields) for name, data_type in types.items()])

    def _fields_of(self, schema: pa.Schema) -> dict[str, pa.Field]:
        """Columns by name; one in whose place another value comes may be null from now on."""
        computed = {one.name for one in self.expressions if one.operation != "col"}
        return {field.name: field.with_nullable(field.nullable or field.name in computed) for field in schema}


def _field(name: str, data_type: pa.DataType, known: Mapping[str, pa.Field]) -> pa.Field:
    """As it was, where it still is of that type."""
    return known[name] if name in known and known[name].type == data_type else pa.field(name, data_type)


@dataclass(frozen=True)
class Predicate:
    """The condition of a filter."""

    condition: Expr

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """Return for each row whether it stays."""
        return self.condition.evaluate(batch)

    def check_over(self, schema: pa.Schema) -> None:
        """Raises JobDefinitionError unless the condition is true or false."""
        data_type = self.condition.type_in(schema)
        if not pa.types.is_boolean(data_type):
            raise JobDefinitionError(f"filter: {self.condition!r} is {data_type}, and a condition is true or false")
