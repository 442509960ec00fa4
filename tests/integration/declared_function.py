"""A function that declared jobs of tests name; TaskManagers import it, the coordinator never does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import snapline as sl


class Numbered(sl.KeyedProcessFunction):
    """Numbers the rows of each key, from `first` on."""

    def __init__(self, first: int) -> None:
        self.first = first

    def open(self, context: sl.RuntimeContext) -> None:
        self.number = context.get_state(sl.ValueStateDescriptor("number", pa.int64()))

    def process_element(self, row: sl.Row, context: Any) -> Any:
        number = self.number.value()
        number = self.first if number is None else number + 1
        self.number.update(number)
        yield {"key": row["key"], "number": number}
