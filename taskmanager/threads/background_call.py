"""One call of a user's function beside the task: it may wait for the network, and the task takes checkpoints meanwhile.

Decides nothing: the function runs on a daemon thread of its own, and the task is woken when it has returned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

JOIN_TIMEOUT_SECONDS = 5.0
"""How long the end of a task waits for a call that is under way; after that its thread is left to itself."""


class BackgroundCall:
    """A call that has begun. `wake_up` makes the task loop run again soon."""

    def __init__(self, function: Callable[[], Any], wake_up: Callable[[], None]) -> None:
        self._function = function
        self._wake_up = wake_up
        self._result: Any = None
        self._failure: BaseException | None = None
        self._done = False
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="discover-splits", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # whatever a user's function raises belongs to the task
            self._failure = error
        self._done = True
        self._wake_up()

    @property
    def is_done(self) -> bool:
        """Whether the function has returned, or raised."""
        return self._done

    def result(self) -> Any:
        """Return what the function returned, or raise what it raised."""
        if self._failure is not None:
            raise self._failure
        return self._result

    def close(self) -> None:
        """Wait a little for the end of the function."""
        self._thread.join(JOIN_TIMEOUT_SECONDS)
