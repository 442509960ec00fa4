"""The contract of a function over a stream without keys, row by row. Mirrors Flink's ProcessFunction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from snapline.dataflow.api.function_contexts import ProcessContext, Row
from snapline.dataflow.api.functions import Function


class ProcessFunction(Function, ABC):
    """Row by row without keys: any number of rows for each, and side outputs (Flink: ProcessFunction).

    There is no keyed state; `context.timer_service` tells the times, and refuses timers, which belong to keys.

    >>> class Checked(sl.ProcessFunction):
    ...     def process_element(self, row, context):
    ...         if row["cents"] < 0:
    ...             context.output("negative", row)
    ...         else:
    ...             yield {**row, "seen_at": context.timer_service.current_processing_time()}
    >>> checked = orders.process(Checked(), schema=pa.schema([*orders.schema, ("seen_at", pa.int64())]))
    >>> negative = checked.get_side_output("negative", orders.schema)
    """

    @abstractmethod
    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Mapping[str, object]] | None:
        """Return or yield the rows to emit."""
