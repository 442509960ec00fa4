"""Ctrl-C that has to wait, and Ctrl-C that does nothing but raise KeyboardInterrupt; for a command that must not leave
its work half done, SIGTERM and the end of its terminal as well.

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
from typing import Any


@contextmanager
def interrupt_waits() -> Iterator[None]:
    """Hold the first SIGINT back until the block has ended, and raise for a second one at once. Only the main thread
    gets signals; elsewhere nothing is held. What is ignored stays so, as of a job that a script has sent to the
    background."""
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
    if before is not signal.SIG_IGN:
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
    nothing else. Only the main thread gets signals; elsewhere nothing is changed, and what is ignored stays so."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


class HeldInterrupts:
    """SIGINT, SIGTERM and SIGHUP as KeyboardInterrupt: the first one where `let_through` allows it, which may be never,
    a second one at once. Only the main thread gets signals; elsewhere nothing is held. What is ignored stays so
    (nohup).

    >>> with HeldInterrupts() as held:
    ...     with held.let_through():
    ...         pass
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._came = 0
        self._is_let_through = False

    def __enter__(self) -> HeldInterrupts:
        """Hold signals back from now on."""
        if threading.current_thread() is threading.main_thread():
            for number in self.NUMBERS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Listen as before; what was held and not let through is forgotten."""
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._came += 1
        if self._is_let_through or self._came > 1:
            raise KeyboardInterrupt

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Raise within the block, at once when one came before."""
        self._is_let_through = True
        try:
            if self._came:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_let_through = False
