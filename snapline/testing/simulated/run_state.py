"""What a simulated run of a user's job shares with the objects of the job, which are pickled and find it by themselves.

Only one run goes on at a time, on one thread, so that there is one of it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from snapline.runtime.cores.machine import check
from snapline.testing.simulated.lineage import Lineage
from snapline.testing.simulated.world import Process


@dataclass
class RunState:
    """The outside world of one run."""

    rng: random.Random
    pause_ms: int
    """How long a scripted source waits at most between two batches."""
    commit_fault: Callable[[str], str] = lambda _: ""
    """`before` or `after`: a commit of this sink fails there."""
    lineage: Lineage = field(default_factory=Lineage)
    visible: dict[str, list[Any]] = field(default_factory=dict)
    """What readers of a sink would see: batches or rows, by the uid of the sink."""
    staged: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    """What checked sinks have written and not committed."""
    noted: dict[tuple[str, str], int] = field(default_factory=dict)
    """The checkpoint id that checked sinks which commit together have noted last, by job and sink."""
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    at_step: Callable[[str, str], None] = lambda *_: None
    """Told of each call of a connector under test, before and after it; may raise, or kill the process."""
    process: Callable[[], Process] = lambda: check(None, "no simulated process is at work")
    """Return the process that does something at this moment."""
    process_is_gone: Callable[[], None] = lambda: None
    """Told that objects of a process that was killed are forgotten."""

    def show(self, uid: str, value: Any) -> None:
        """Make a batch or a row visible."""
        self.visible.setdefault(uid, []).append(value)


_current: list[RunState] = []


def current_run() -> RunState:
    """Return the state of the run that goes on."""
    return check(_current[-1] if _current else None, "this source or sink belongs to a simulated run")


@contextmanager
def run_with(state: RunState) -> Iterator[None]:
    """Within, this is the run that goes on."""
    _current.append(state)
    try:
        yield
    finally:
        _current.pop()
