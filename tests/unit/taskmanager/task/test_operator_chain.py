"""What goes from one operator of a chain into the next."""

from __future__ import annotations

from typing import Any

from snapline.dataflow.elements import MAX_WATERMARK_MS, Watermark
from snapline.taskmanager.task.operator_chain import ChainOutput


class Heard:
    """Stands for a chained operator."""

    def __init__(self) -> None:
        self.watermarks_ms: list[int] = []

    def process_watermark(self, watermark: Watermark) -> None:
        self.watermarks_ms.append(watermark.timestamp_ms)


def test_watermarks_of_a_chain_rise() -> None:
    """A source function may say one that falls, or say the last one itself, which comes once more at the end of its
    rows; between tasks none of them was ever passed on."""
    chained: Any = Heard()
    aside: Any = Heard()
    output = ChainOutput()
    output.add_chained(chained, 0)
    output.side("aside").add_chained(aside, 0)
    for watermark_ms in (1, 5, 3, 5, MAX_WATERMARK_MS, MAX_WATERMARK_MS):
        output.emit_watermark(Watermark(watermark_ms))
    assert chained.watermarks_ms == aside.watermarks_ms == [1, 5, MAX_WATERMARK_MS]
