"""A generator that keeps its last rows back until a file is there: a job that cannot end before the test has done its
part, however slow or fast the machine is.

    gate = tmp_path / "gate"
    source = GatedGenerator(gate, rows=60_000, ...)
    ...                  # wait for checkpoints, kill, stop: the job still runs
    gate.touch()         # now it runs to its end
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snapline.connectors.builtin.generator import GeneratorReader, GeneratorSource
from snapline.dataflow.api.connector_api import InputStatus, Polled, SourceContextInfo

LOOK_AGAIN_MS = 20


class GatedGenerator(GeneratorSource):
    """A bounded GeneratorSource; the last batch of every split waits for the gate."""

    def __init__(self, gate: Path, *, rows: int, **options: Any) -> None:
        super().__init__(rows=rows, **options)
        self.gate = str(gate)

    def create_reader(self, context: SourceContextInfo) -> GatedReader:
        return GatedReader(self)


class GatedReader(GeneratorReader):
    """Passes over the splits that have come to their last batch while the gate is closed."""

    def __init__(self, source: GatedGenerator) -> None:
        super().__init__(source)
        self._gate: Path | None = Path(source.gate)
        self._held_rows = source.batch_rows

    def poll_next(self, now_ms: int) -> Polled:
        if self._gate is not None and self._gate.exists():
            self._gate = None
        if self._gate is not None and self._unfinished:
            held = [(split.remaining or 0) <= self._held_rows for split in self._unfinished]
            if all(held):
                return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=now_ms + LOOK_AGAIN_MS)
            while held[self._turn % len(held)]:
                self._turn += 1
        return super().poll_next(now_ms)
