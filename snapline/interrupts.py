"""Ctrl-C that has to wait: while Java is being started, an interrupt would leave it behind half started.

PySpark's Java ends with the standard input that its driver holds, but looks at it only when it is up. Decides nothing
but when KeyboardInterrupt is raised: at the end of the block, or at once for whoever presses Ctrl-C a second time.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_waits() -> Iterator[None]:
    """Hold the first SIGINT back until the block has ended. Only the main thread gets signals; elsewhere nothing is
    held."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def hold(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
    if came:
        raise KeyboardInterrupt
