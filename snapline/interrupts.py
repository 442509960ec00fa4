"""Ctrl-C that has to wait, and Ctrl-C that does nothing but raise KeyboardInterrupt.

While Java is being started, an interrupt would leave it behind half started: PySpark's Java ends with the standard
input that its driver holds, but looks at it only when it is up. Once there is a SparkContext, its own handler cancels
all jobs of Spark, TaskManagers among them, which would look like a failure to a job that is about to be cancelled.
Decides nothing but when KeyboardInterrupt is raised.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_waits() -> Iterator[None]:
    """Hold the first SIGINT back until the block has ended, and raise for a second one at once. Only the main thread
    gets signals; elsewhere nothing is held."""
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


@contextmanager
def interrupt_only_raises() -> Iterator[None]:
    """Raise KeyboardInterrupt for a SIGINT within the block, whatever handler there is (SparkContext's, say), and do
    nothing else. Only the main thread gets signals; elsewhere nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
