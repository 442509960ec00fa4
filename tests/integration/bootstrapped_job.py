"""Adds what comes to what was there: the job that the bootstrap test starts from a savepoint that no job has
written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import snapline as sl
from snapline.dataflow.api.functions import KeyedProcessFunction

OUTPUT = pa.schema([("user", pa.int64()), ("total", pa.int64())])


class Total(KeyedProcessFunction):
    """A running total per user."""

    def open(self, context: Any) -> None:
        """One value."""
        self.total = context.get_state(sl.ValueStateDescriptor("total", pa.int64()))

    def process_element(self, row: dict[str, Any], context: Any) -> Any:
        """Add the row's amount."""
        self.total.update((self.total.value() or 0) + row["amount"])
        yield {"user": row["user"], "total": self.total.value()}
