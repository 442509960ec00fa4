"""How long a killed process stops the output: from the kill to the first file that is committed after the job runs
again."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

OUTPUTS = ("daily", "alerts")
POLL_SECONDS = 0.02


def recoveries(
    kills: Sequence[float], runnings: Sequence[float], files: Mapping[Path, float]
) -> list[tuple[float, float]]:
    """(kill, seconds until the first new file) for each kill that was not overtaken by the next one. `runnings`: when
    the job entered RUNNING. `files`: when each became visible."""
    found = []
    for index, kill in enumerate(kills):
        until = kills[index + 1] if index + 1 < len(kills) else float("inf")
        again = next((moment for moment in runnings if kill < moment < until), None)
        first = min((seen for seen in files.values() if again is not None and again < seen < until), default=None)
        if first is not None:
            found.append((kill, first - kill))
    return found


class CommittedFiles:
    """Notes when each file of the output became visible, until `finished`."""

    def __init__(self, output: Path, finished: threading.Event) -> None:
        self._output = output
        self._finished = finished
        self.seen: dict[Path, float] = {}

    def watch(self) -> None:
        """Runs on a thread of its own."""
        while not self._finished.wait(POLL_SECONDS):
            for name in OUTPUTS:
                for file in (self._output / name).glob("*.parquet"):
                    self.seen.setdefault(file, time.monotonic())
