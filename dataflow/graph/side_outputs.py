"""Which side outputs an operator has, as far as its specification tells.

Operators with a function of the user's that may emit aside can have any: what their tags are is known only when rows
come. All others have the one for late rows, where it was asked for, or none. Flink knows tags by their type at run time
only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from snapline.dataflow.api.bad_rows import BAD_ROWS_TAG
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import (
    CoProcessSpec,
    CustomOperatorSpec,
    KeyedBatchProcessSpec,
    KeyedProcessSpec,
    MapBatchesSpec,
    OperatorSpec,
    ProcessSpec,
    SourceSpec,
    WindowProcessSpec,
)

_ANY = (MapBatchesSpec, ProcessSpec, KeyedProcessSpec, KeyedBatchProcessSpec, CoProcessSpec, CustomOperatorSpec)


def why_no_side_output(spec: OperatorSpec, tag: str) -> str:
    """What is wrong with reading this tag, and the way out; empty: nothing, as far as can be known."""
    if not isinstance(tag, str) or not tag:
        return f"the tag of a side output is a name, not {tag!r}"
    if tag == BAD_ROWS_TAG:
        return _why_no_bad_rows(spec)
    if isinstance(spec, _ANY) or (isinstance(spec, WindowProcessSpec) and spec.form in ("rows", "batches")):
        return ""
    late = getattr(spec, "late_output_tag", None)
    if late == tag:
        return ""
    if late:
        return f"there is no side output {tag!r}, only {late!r}"
    if late is not None:
        return f"there is no side output {tag!r}: late rows go to one with side_output_late_data(...) (of joins: late_tag=)"
    return f"there is no side output {tag!r}: only functions that are handed a context, or return SideOutput(...), have some"


def with_side_schema(spec: Any, tag: str, schema: pa.Schema, name: str) -> Any:
    """The specification that makes the rows of this tag as they were declared, where it makes batches of rows that a
    function puts aside. Raises JobDefinitionError for two schemas of one tag."""
    declared = getattr(spec, "side_schemas", None)
    if declared is None or tag in (BAD_ROWS_TAG, getattr(spec, "late_output_tag", "")):
        return spec
    if not dict(declared).get(tag, schema).equals(schema):
        raise JobDefinitionError(
            f"get_side_output of {name!r}: {tag!r} is read with two schemas; read it once, and select columns of that"
        )
    return replace(spec, side_schemas=tuple({**dict(declared), tag: schema}.items()))


def _why_no_bad_rows(spec: OperatorSpec) -> str:
    """Bad rows are set aside by those that were asked to."""
    if isinstance(spec, SourceSpec):
        if spec.source.sets_bad_rows_aside:
            return ""
        return (
            f"its bad rows are not set aside: give {type(spec.source).__name__} on_error='side_output', if it has that"
        )
    on_error = getattr(spec, "on_error", None)
    if on_error == "side_output":
        return ""
    if on_error is not None:
        return "its bad rows are not set aside: give it on_error='side_output'"
    return "sources, map, flat_map, filter_rows and process set bad rows aside, with on_error='side_output', and nothing else does"
