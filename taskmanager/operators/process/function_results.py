"""What a user's function over batches may return, and how it leaves the operator.

Decides that None, a batch, a table, a side output or an iterable of them are results, and that anything else is an
error that says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from snapline.dataflow.api.functions import SideOutput
from snapline.taskmanager.operators.base.stateless import conform, emit_side_output, is_frame


def emit_result(result: Any, schema: pa.Schema | None, output: Any) -> None:
    """What a function over batches has returned."""
    if result is None:
        return
    if isinstance(result, pa.RecordBatch):
        output.emit_batch(conform(result, schema))
    elif isinstance(result, SideOutput):
        emit_side_output(result, output)
    elif isinstance(result, pa.Table):
        for part in result.to_batches():
            output.emit_batch(conform(part, schema))
    elif isinstance(result, Iterable) and not (isinstance(result, (str, bytes, dict)) or is_frame(result)):
        for part in result:
            emit_result(part, schema, output)
    else:
        raise TypeError(
            f"a function over batches must return a pyarrow.RecordBatch, a SideOutput, an iterable of them, or None, not "
            f"{type(result).__name__}"
        )
